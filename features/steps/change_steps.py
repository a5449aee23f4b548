"""Steps about a ledger that has changed since somebody looked at it."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from behave import given, then, when
from behave.runner import Context
from ledger_steps import opened
from sqlalchemy import Column, Integer, MetaData, Table, delete, func, select, update
from sqlalchemy.schema import ForeignKey
from tables import rule

from claude_batch.core.ids import new_request_id
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.core.states import Stop
from claude_batch.ledger import conversations, deliveries, enqueue, migrations
from claude_batch.ledger.backends.sqlite_file import fault_of
from claude_batch.ledger.conversations import NextTurn
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.schema import lanes, meta, requests, runs
from claude_batch.ledger.store import Ledger


@when("a key of one workspace turns out to belong to another one that is known")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        context.first = enqueue.ensure_workspace(tx, "http://x/", "aa")
        context.other = enqueue.ensure_workspace(tx, "http://x/", "bb")
        enqueue.name_workspace(tx, context.first, "aa", "wrkspc_1")
        enqueue.name_workspace(tx, context.other, "bb", "wrkspc_2")
        context.lane = enqueue.ensure_lane(tx, context.first, "2023-06-01", "", "")
        assert enqueue.name_workspace(tx, context.first, "aa", "wrkspc_2") == context.other


@then("what it stored before stays with the first workspace")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        assert enqueue.ensure_workspace(tx, "http://x/", "aa") == context.other
        mine = select(lanes.c.workspace_id).where(lanes.c.id == context.lane)
        assert tx.scalar(mine) == context.first


@given("a run of {count:d} requests that is wholly stored")
def _(context: Context, count: int) -> None:
    with context.ledger.write() as tx:
        workspace = enqueue.ensure_workspace(tx, "http://x/", "aa")
        lane = enqueue.ensure_lane(tx, workspace, "2023-06-01", "", "")
        asked = NewRun(
            kind="run",
            actor="tests/one",
            workspace_id=workspace,
            mode=BatchProcessingMode(),
            created=time.time(),
        )
        context.run_id = enqueue.begin_run(tx, asked)
        new = [NewRequest(new_request_id(), n, None, lane, b"{}") for n in range(count)]
        enqueue.add_requests(tx, context.run_id, new, created=0.0, due=0.0)
        enqueue.finish_storing(tx, context.run_id, digest="d", stored=1.0)


def _count(ledger: Ledger) -> int:
    with ledger.read() as tx:
        return tx.scalar(select(func.count()).select_from(requests)) or 0


@when("it is dropped as one whose storing failed")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        enqueue.drop_run(tx, context.run_id)


@then("all of its {count:d} requests are there")
def _(context: Context, count: int) -> None:
    assert _count(context.ledger) == count


@when("pruning comes to it although it is unfinished")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        assert deliveries.begin_pruning(tx, context.run_id, "me") == "it is unfinished"
        removed = deliveries.remove_some(tx, context.run_id)
    assert (removed.requests, removed.more) == (0, False), removed


@when("storing it was never finished")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        tx.execute(update(runs).values(stored=None))


@rule("it is removed in pieces")
def _(context: Context, requests_at_most: int) -> dict[str, object]:
    with context.ledger.write() as tx:
        removed = deliveries.remove_some(tx, context.run_id, limit=requests_at_most)
        left = tx.scalar(select(func.count()).select_from(runs))
    return {"more": removed.more, "requests_left": _count(context.ledger), "runs_left": left}


@then("a turn of it that is over changes nothing")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        seq = tx.scalar(select(func.min(requests.c.seq))) or 0
        before = tx.execute(select(requests).where(requests.c.seq == seq)).one()
        conversations.stop(tx, seq, 1, Stop.MAX_TURNS, "it had all its turns")
        assert conversations.next_turns(tx, [NextTurn(seq, 1, b"{}", rejected=False)], due=1.0) == 0
        assert not conversations.start_call(
            tx, seq, 1, "toolu_1", name="look", process="me", now=time.time()
        )
        assert conversations.calls_of(tx, seq, 1) == {}
        assert tx.execute(select(requests).where(requests.c.seq == seq)).one() == before


@when("the mark stands at 0 posts, and is raised to 0 again")
def _(context: Context) -> None:
    context.mark = HighWater(context.ledger)
    assert context.mark.raise_to(0)
    context.before = context.mark.read()
    assert context.mark.raise_to(0)


@then("the mark's file was not written again")
def _(context: Context) -> None:
    assert context.mark.read() == context.before is not None


@when("it is to be migrated from version 1")
def _(context: Context) -> None:
    ledger = context.ledger
    migrations.migrate(
        Path(ledger.backend.address), ledger._engine, ledger.every_seat, ledger._writing, 1
    )


@then("it is as it was, without a copy beside it")
def _(context: Context) -> None:
    assert not list(context.tmp.glob("*.v1*")), list(context.tmp.iterdir())
    assert opened(context, context.ledger.location).incarnation == context.ledger.incarnation


@then('a column of "{name}" that refers to "{target}" is added as "{words}"')
def _(context: Context, name: str, target: str, words: str) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    everything = MetaData()
    Table(target.split(".")[0], everything, Column("id", Integer, primary_key=True))
    table = Table("marks", everything, Column(name, Integer, ForeignKey(target)))
    with ledger.read() as tx:
        assert migrations._add_column(tx, table, table.c[name]) == words


@then("SQLite's {name} means that the ledger is {what}")
def _(context: Context, name: str, what: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    assert fault_of(error) == what, fault_of(error)


@when("its meta table has lost its {fact}")
def _(context: Context, fact: str) -> None:
    context.path = Path(context.ledger.location)
    with context.ledger.write() as tx:
        tx.execute(delete(meta).where(meta.c.name == fact))
