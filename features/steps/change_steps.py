"""Steps about a ledger that has changed since somebody looked at it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from ledger_steps import opened
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.schema import ForeignKey
from tables import rule

import claude_batch as cb
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.ids import new_request_ids
from claude_batch.core.states import Stop
from claude_batch.ledger import conversations, deliveries, enqueue, migrations, workspaces
from claude_batch.ledger.backends.sqlite_file import fault_of
from claude_batch.ledger.conversations import NextTurn
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.schema import lanes, meta, requests, runs
from claude_batch.ledger.store import Transaction, plain_rows
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders


@then("what a key has stored stays with its workspace when the key turns out to be of another one")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        first = workspaces.ensure_workspace(tx, "http://x/", "aa")
        other = workspaces.ensure_workspace(tx, "http://x/", "bb")
        workspaces.name_workspace(tx, first, "aa", "wrkspc_1")
        workspaces.name_workspace(tx, other, "bb", "wrkspc_2")
        lane = enqueue.ensure_lane(tx, first, "2023-06-01", "", "")
        assert workspaces.name_workspace(tx, first, "aa", "wrkspc_2") == other
    with context.ledger.write() as tx:
        assert workspaces.ensure_workspace(tx, "http://x/", "aa") == other
        assert tx.scalar(select(lanes.c.workspace_id).where(lanes.c.id == lane)) == first


@then("a run whose key joins the row of an earlier key while it is stored is wholly in that row")
def _(context: Context) -> None:
    with context.ledger.write() as tx:
        first = workspaces.ensure_workspace(tx, "http://x/", "aa")
        workspaces.name_workspace(tx, first, "aa", "wrkspc_1")
        own = workspaces.ensure_workspace(tx, "http://x/", "bb")
    asked = _new_run(own)
    body = '{"model":"m","n":%d}'
    writer = RunWriter(
        context.ledger,
        lambda request: EncodedRequest((body % int(request.prompt)).encode(), LaneHeaders()),
        asked,
        identities=[b""],
    )
    writer.add(cb.ActorRequest("1"))
    writer.flush()
    with context.ledger.write() as tx:
        # Requests of the first key are in a lane with the same headers.
        enqueue.ensure_lane(tx, first, *_headers_of_lane(tx, own))
        assert workspaces.name_workspace(tx, own, "bb", "wrkspc_1") == first
    writer.add(cb.ActorRequest("2"))
    assert writer.finish() == writer.run_id
    with context.ledger.write() as tx:
        enqueue.begin_run(tx, asked)  # another run, with the same old number
        assert set(tx.scalars(select(runs.c.workspace_id))) == {first}
        mine = select(lanes.c.workspace_id).join(requests, requests.c.lane_id == lanes.c.id)
        assert list(tx.scalars(mine)) == [first, first]


def _new_run(workspace_id: int) -> NewRun:
    return NewRun(
        kind="run",
        actor="tests/one",
        workspace_id=workspace_id,
        mode=BatchProcessingMode(),
        created=time.time(),
    )


def _headers_of_lane(tx: Transaction, workspace_id: int) -> tuple[str, str, str]:
    # A workspace with one lane.
    of_lane = select(lanes.c.api_version, lanes.c.betas, lanes.c.user_profile)
    row = tx.execute(of_lane.where(lanes.c.workspace_id == workspace_id)).one()
    return (row.api_version, row.betas, row.user_profile)


@given("a run of {count:d} requests that is wholly stored")
def _(context: Context, count: int) -> None:
    with context.ledger.write() as tx:
        workspace = workspaces.ensure_workspace(tx, "http://x/", "aa")
        lane = enqueue.ensure_lane(tx, workspace, "2023-06-01", "", "")
        context.run_id = enqueue.begin_run(tx, _new_run(workspace))
        new = [NewRequest(new_request_ids(1)[0], n, None, lane, b"{}") for n in range(count)]
        enqueue.add_requests(tx, context.run_id, new, created=0.0, due=0.0)
        enqueue.finish_storing(tx, context.run_id, digest="d", stored=1.0)


def _changed_run(context: Context, wholly_stored: bool, change: Callable[[Any], Any]) -> Any:
    """Do something to the run, and tell what is left."""
    with context.ledger.write() as tx:
        tx.execute(update(runs).values(stored=1.0 if wholly_stored else None))
        done = change(tx)
        requests_left, runs_left = (
            tx.scalar(select(func.count()).select_from(table)) for table in (requests, runs)
        )
    return {
        "requests_left": requests_left,
        "runs_left": runs_left,
        "more": getattr(done, "more", None),
    }


@rule("the run is removed in pieces")
def _(context: Context, wholly_stored: bool, requests_at_most: int) -> Any:
    def remove(tx: Any) -> Any:
        return deliveries.remove_some(tx, context.run_id, limit=requests_at_most)

    return _changed_run(context, wholly_stored, remove)


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


@rule("the high-water mark is raised")
def _(context: Context, to: int) -> dict[str, object]:
    mark = HighWater(context.ledger)
    before = mark.read()
    assert mark.raise_to(to)
    after = mark.read()
    assert after is not None
    return {"posts": after.posts, "written": after != before}


@rule("queries are read one after another")
def _(context: Context, numbers: int) -> int:
    with context.ledger.read() as tx:
        found = [list(plain_rows(tx, select(literal_column(str(n))))) for n in range(numbers)]
    return sum(rows == [(n,)] for n, rows in enumerate(found))


@then("a ledger that is to be migrated from version 1 is left as it is, without a copy beside it")
def _(context: Context) -> None:
    ledger = context.ledger
    migrations.migrate_file(ledger.backend, Path(ledger.backend.address), 1)
    assert not list(context.tmp.glob("*.v1*")), list(context.tmp.iterdir())
    assert opened(context, ledger.location).incarnation == ledger.incarnation


@rule("columns that refer to others are added")
def _(context: Context, column: str, refers_to: str) -> dict[str, object]:
    everything = MetaData()
    Table(refers_to.split(".")[0], everything, Column("id", Integer, primary_key=True))
    table = Table("marks", everything, Column(column, Integer, ForeignKey(refers_to)))
    with context.ledger.read() as tx:
        return {"statement": migrations._add_column(tx, table, table.c[column])}


@rule("errors of SQLite are understood")
def _(error: str) -> dict[str, str | None]:
    found = sqlite3.OperationalError("disk I/O error")
    found.sqlite_errorcode = getattr(sqlite3, error)
    return {"the_ledger_is": fault_of(found)}


@when("its meta table has lost its {fact}")
def _(context: Context, fact: str) -> None:
    context.path = Path(context.ledger.location)
    with context.ledger.write() as tx:
        tx.execute(delete(meta).where(meta.c.name == fact))
