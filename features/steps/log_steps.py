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
    path = Path(f"{context.path}{suffix}")
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


@then("all of it is in the file, and the log begins anew with the next write")
def _(context: Context) -> None:
    assert context.moved and size(context) > 6 * MIB, size(context)
    before = size(context, "-wal")
    write(context, 100, 2)
    assert size(context, "-wal") == before


@then("there was nothing to do")
def _(context: Context) -> None:
    assert not context.moved and size(context) < MIB


@then("the file has hardly grown")
def _(context: Context) -> None:
    assert size(context) < MIB, size(context)


@then("the log has stayed under {mib:d} MiB")
def _(context: Context, mib: int) -> None:
    assert size(context, "-wal") < mib * MIB, size(context, "-wal")


@when("somebody else opens, reads and closes it")
def _(context: Context) -> None:
    other = Ledger(str(context.path))
    with other.read() as tx:
        assert tx.scalar(select(func.count()).select_from(params)) == context.mib
    other.close()


@then("the log is still there")
def _(context: Context) -> None:
    assert size(context, "-wal") > 5 * MIB and size(context) < MIB


@when("the ledger is closed")
def _(context: Context) -> None:
    context.ledger.close()


@then("the log is gone, and everything is in the file")
def _(context: Context) -> None:
    assert not Path(f"{context.path}-wal").exists() and size(context) > 6 * MIB


@when("a run of {count:d} prompts of {mib:d} MiB is answered")
def _(context: Context, count: int, mib: int) -> None:
    context.path = os.environ["CLAUDE_BATCH_LEDGER"]
    prompts = [f"{n} {'x' * (mib * MIB)}" for n in range(count)]
    assert all(result.ok for result in context.actor.respond_all_sync(prompts))


@then("the driver has moved the log into the file")
def _(context: Context) -> None:
    until(lambda: size(context) > 9 * MIB)


@rule("a ledger's connection has the pragmas")
def _(context: Context, platform: str) -> dict[str, object]:
    with mock.patch("sys.platform", platform):
        ledger = Ledger(str(context.tmp / f"{platform}.db"))
    context.add_cleanup(ledger.close)
    with ledger.read() as tx:
        names = ("journal_mode", "synchronous", "fullfsync")
        return {name: tx.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
