"""Steps of the ledger's log: who moves it into the file, and when."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import func, insert, select
from staging import until
from tables import rule

from claude_batch.ledger.schema import params
from claude_batch.ledger.store import Ledger

MIB = 1 << 20


def size(context: Context, suffix: str = "") -> int:
    path = Path(f"{getattr(context, 'path', os.environ['CLAUDE_BATCH_LEDGER'])}{suffix}")
    return path.stat().st_size if path.exists() else 0


@given("a ledger whose log has grown to {mib:d} MiB")
def _(context: Context, mib: int) -> None:
    context.path = context.tmp / "log.db"
    context.ledger = Ledger(str(context.path))
    context.add_cleanup(context.ledger.close)
    write(context, 0, mib)
    context.mib = mib


def write(context: Context, start: int, mib: int) -> None:
    for number in range(start, start + mib):
        with context.ledger.write() as tx:
            tx.execute(insert(params).values(request_seq=number, body=os.urandom(MIB)))


@when("it is checkpointed")
def _(context: Context) -> None:
    context.moved = context.ledger.checkpoint()


@then("the log begins anew with the next write")
def _(context: Context) -> None:
    assert context.moved
    before = size(context, "-wal")
    write(context, 100, 2)
    assert size(context, "-wal") == before


@then("the ledger's {part} has {bound} than {mib:d} MiB")
def _(context: Context, part: str, bound: str, mib: int) -> None:
    suffix = {"file": "", "log": "-wal"}[part]
    if bound == "less":
        assert size(context, suffix) < mib * MIB, size(context, suffix)
    else:
        # Who drives may move the log a moment later.
        assert bound == "more" and until(lambda: size(context, suffix) > mib * MIB)


@when("the ledger is closed by {who}")
def _(context: Context, who: str) -> None:
    assert who in ("the process that writes", "another process, which has read it"), who
    if who == "the process that writes":
        context.ledger.close()
        return
    other = Ledger(str(context.path))
    with other.read() as tx:
        assert tx.scalar(select(func.count()).select_from(params)) == context.mib
    other.close()


@then("the ledger's log is gone")
def _(context: Context) -> None:
    assert not Path(f"{context.path}-wal").exists()


@rule("a ledger's connection has the pragmas")
def _(context: Context, platform: str) -> dict[str, object]:
    with mock.patch("sys.platform", platform):
        ledger = Ledger(str(context.tmp / f"{platform}.db"))
    context.add_cleanup(ledger.close)
    with ledger.read() as tx:
        names = ("journal_mode", "synchronous", "fullfsync")
        return {name: tx.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
