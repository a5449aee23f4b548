"""Steps of damaged ledgers: files that were cut, overwritten, or copied without their log."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import insert, select, update

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.backends import sqlite, sqlite_file
from claude_batch.ledger.backends.backend import written_ledgers
from claude_batch.ledger.schema import meta, params
from claude_batch.ledger.store import Ledger

PAGE = sqlite.PAGE_BYTES


def filled(path: Path, count: int) -> Ledger:
    ledger = Ledger(str(path))
    with ledger.write() as tx:
        rows = [{"request_seq": seq, "body": os.urandom(900)} for seq in range(count)]
        tx.execute(insert(params), rows)
    return ledger


@given("a ledger of {count:d} requests that was closed")
@given("a ledger of {count:d} requests that was copied without its {part}")
def _(context: Context, count: int, part: str = "") -> None:
    context.path = context.tmp / "damaged.db"
    if part:
        with closing(filled(context.tmp / "open.db", count)):
            shutil.copy(context.tmp / "open.db", context.path)
    else:
        filled(context.path, count).close()
        assert context.path.stat().st_size > 80 * PAGE
    written_ledgers.clear()  # as if another process had made it
    Path(f"{context.path}.seat-1").touch()


@given("its file is damaged: {damage}")
@when("its file is damaged: {damage}")
def _(context: Context, damage: str) -> None:
    if "path" not in context:
        context.path = Path(os.environ["CLAUDE_BATCH_LEDGER"])
    overwrite(context.path, damage)
    context.before = context.path.read_bytes()


def overwrite(path: Path, damage: str) -> None:
    if damage.startswith("cut"):
        half = path.stat().st_size // 2 // PAGE * PAGE
        left = {"cut in half": half, "cut within a page": half + 100, "cut to nothing": 0}
        os.truncate(path, left[damage])
        return
    if "last request" in damage:
        with closing(sqlite3.connect(path)) as connection:
            last = connection.execute("SELECT body FROM params ORDER BY rowid DESC").fetchone()[0]
        place = path.read_bytes().index(last[:200]) // PAGE * PAGE
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\xff" * PAGE)
        return
    # Midway through the requests: before them stand the roots of tables, most of them empty.
    midway = path.stat().st_size * 3 // 4 // PAGE * PAGE
    with path.open("r+b") as file:
        file.seek(0 if "header" in damage else midway)
        file.write(b"\xff" * (100 if "header" in damage else 8 * PAGE))


@when("somebody opens it, and {deeds}")
def _(context: Context, deeds: str) -> None:
    context.error = None
    try:
        with closing(Ledger(str(context.path))) as ledger:
            for deed in deeds.split(", then "):
                _do(ledger, deed)
    except LedgerError as error:
        context.error = error


def _do(ledger: Ledger, deed: str) -> None:
    if deed == "writes":
        with ledger.write() as tx:
            tx.execute(update(meta).where(meta.c.name == "stamp").values(value="7"))
        return
    count = int(deed.removeprefix("reads ").removesuffix(" requests"))
    with ledger.read() as tx:
        assert len(tx.execute(select(params).limit(count)).all()) == count


@given("ledgers of more than {size:d} bytes are large")
def _(context: Context, size: int) -> None:
    patched = mock.patch.object(sqlite_file, "_CHECKED_WHOLE", size)
    patched.start()
    context.add_cleanup(patched.stop)


@then("the damage is told with the file's name, and how to go on")
def _(context: Context) -> None:
    error = context.error
    assert error is not None, "nobody noticed"
    assert error.fault == "damaged" and not error.passes, error
    assert str(context.path) in str(error), error
    assert "claude-batch ledger recover" in str(error) and "backup" in str(error), error


@then("the file is, byte for byte, as it was")
def _(context: Context) -> None:
    assert context.path.read_bytes() == context.before
