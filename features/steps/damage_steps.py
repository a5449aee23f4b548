"""Steps of damaged ledgers: files that were cut, overwritten, or copied without their log."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import insert, select, update

from claude_batch.core.errors import LedgerError
from claude_batch.ledger import store
from claude_batch.ledger.backends import sqlite, sqlite_file
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
def _(context: Context, count: int) -> None:
    context.path = context.tmp / "damaged.db"
    filled(context.path, count).close()
    store._written.clear()  # as if another process had made it
    Path(f"{context.path}.seat-1").touch()
    assert context.path.stat().st_size > 80 * PAGE


@given("a ledger of {count:d} requests that is open, all of it in its log")
def _(context: Context, count: int) -> None:
    context.open = filled(context.tmp / "open.db", count)
    context.add_cleanup(context.open.close)


@given("its file is damaged: {damage}")
def _(context: Context, damage: str) -> None:
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


@when("somebody reads all of it and writes to it")
def _(context: Context) -> None:
    context.error = None
    try:
        ledger = Ledger(str(context.path))
        context.add_cleanup(ledger.close)
        with ledger.read() as tx:
            tx.execute(select(params)).all()
        with ledger.write() as tx:
            tx.execute(update(meta).values(value="x"))
    except LedgerError as error:
        context.error = error


def attempt(context: Context, work: Callable[[Ledger], object]) -> None:
    context.error = None
    ledger = Ledger(str(context.path))
    try:
        work(ledger)
    except LedgerError as error:
        context.error = error
    finally:
        ledger.close()


def write(ledger: Ledger) -> None:
    with ledger.write() as tx:
        tx.execute(update(meta).where(meta.c.name == "stamp").values(value="7"))


def read(ledger: Ledger, most: int) -> int:
    with ledger.read() as tx:
        return len(tx.execute(select(params).limit(most)).all())


@given("ledgers of more than {size:d} bytes are large")
def _(context: Context, size: int) -> None:
    patched = mock.patch.object(sqlite_file, "_CHECKED_WHOLE", size)
    patched.start()
    context.add_cleanup(patched.stop)


@when("somebody writes to it")
def _(context: Context) -> None:
    attempt(context, write)


@when("somebody reads the first {count:d} requests")
def _(context: Context, count: int) -> None:
    def work(ledger: Ledger) -> None:
        assert read(ledger, count) == count

    attempt(context, work)


@when("somebody writes to it and reads all of it")
def _(context: Context) -> None:
    def work(ledger: Ledger) -> None:
        write(ledger)
        read(ledger, 1000)

    attempt(context, work)


@then('the message says "{words}"')
def _(context: Context, words: str) -> None:
    assert words in str(context.error), context.error


@when("a database that is no ledger is opened as one")
def _(context: Context) -> None:
    context.path = context.tmp / "other.db"
    with closing(sqlite3.connect(context.path)) as connection:
        connection.execute("CREATE TABLE ours (a)")
    context.before = context.path.read_bytes()
    try:
        Ledger(str(context.path))
    except LedgerError as error:
        context.error = error


@then("it is refused, and is, byte for byte, as it was")
def _(context: Context) -> None:
    assert "not a ledger of claude-batch; it was not changed" in str(context.error), context.error
    assert context.path.read_bytes() == context.before
    assert not list(context.tmp.glob("other.db-*"))


@when("its file alone is put where a ledger was driven")
def _(context: Context) -> None:
    context.path = context.tmp / "copy.db"
    shutil.copy(context.tmp / "open.db", context.path)
    Path(f"{context.path}.seat-1").touch()
    context.execute_steps("When somebody reads all of it and writes to it")


@then("the damage is told with the file's name, and how to go on")
def _(context: Context) -> None:
    error = context.error
    assert error is not None, "nobody noticed"
    assert error.fault == "damaged" and not error.passes, error
    assert str(context.path) in str(error), error
    assert "claude-batch ledger recover" in str(error) and "backup" in str(error), error


@then("the damaged file is, byte for byte, as it was")
def _(context: Context) -> None:
    assert context.path.read_bytes() == context.before


@when("an empty file is opened as a ledger")
def _(context: Context) -> None:
    path = context.tmp / "empty.db"
    path.touch()
    context.ledger = Ledger(str(path))
    context.add_cleanup(context.ledger.close)


@then("it is a ledger like any other")
def _(context: Context) -> None:
    assert len(context.ledger.incarnation) == 8


@when("a command's ledger is damaged")
def _(context: Context) -> None:
    overwrite(context.tmp / "ledger.db", "its header is overwritten")
