"""Transactions that remove finished runs, in small steps that may be interrupted at any point.

A run that is removed is first put into the state that a dead process leaves: not fully stored. No
query then finds or packs it any more, and if the removal is interrupted, a sweep continues it. A
batch's row stays, without its long columns, because reconciliation needs every batch that was ever
ours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, or_, select, union_all, update

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger.budgets import set_amount
from claude_batch.ledger.charges import keep_run
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    conversations,
    digests,
    doubles,
    former_members,
    params,
    primers,
    requests,
    results,
    runs,
    strange_lines,
    tool_calls,
)
from claude_batch.ledger.uploaded_files import drop_run_files

_CLOSED = (BatchState.COLLECTED, BatchState.REJECTED, BatchState.LIVE)


class Removed(NamedTuple):
    """The result of one removal step."""

    requests: int
    size: int
    """Bytes of the removed params and answers."""
    more: bool
    """Whether some rows of the run are left."""


def delivered_runs(tx: Connection, before: float) -> list[str]:
    """Return runs that were delivered before a time, oldest first.

    They are not yet checked by `why_kept`.
    """
    query = select(runs.c.id).where(
        runs.c.kind == "run", runs.c.stored.is_not(None), runs.c.delivered < before
    )
    return list(tx.scalars(query.order_by(runs.c.delivered, runs.c.id)))


def why_kept(tx: Connection, run_id: str) -> str | None:
    """Return the reason why a run cannot be removed, in words; None if it can."""
    run: Any = tx.execute(select(runs).where(runs.c.id == run_id)).one()
    if run.kind != "run":
        return "it contains single calls, which are kept for the next equal call"
    if run.stored is None:
        return "it is still being stored"
    if _count(tx, run_id, requests.c.finished.is_not(None)) < run.request_count:
        return "it is unfinished"
    if _count(tx, run_id, requests.c.state == RequestState.LOST):
        return "it has requests that may or may not have been paid for; see `claude-batch unknown`"
    of_run = select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)
    former = (
        select(former_members.c.batch_id)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.run_id == run_id)
    )
    found = union_all(of_run, former).subquery()
    still_open = select(batches.c.state).where(
        batches.c.id.in_(select(found.c.batch_id)), batches.c.state.not_in(_CLOSED)
    )
    state = tx.scalar(still_open.limit(1))
    if state is not None:
        return f"a batch of it is {state}"
    if run.delivered is None and (run.output is not None or run.results_dir is not None):
        return "its output is not written yet; write it with `claude-batch resume`"
    return None


def _count(tx: Connection, run_id: str, where: Any) -> int:
    query = select(func.count()).select_from(requests).where(requests.c.run_id == run_id, where)
    return tx.scalar(query) or 0


def begin_pruning(tx: Connection, run_id: str, process: str) -> str | None:
    """Withdraw a run from all other processes; return the reason if it is kept.

    ``process`` is the one that removes it now. If that process dies, another one continues.
    """
    why = why_kept(tx, run_id)
    if why is None:
        set_amount(tx, "run", run_id, None)
        keep_run(tx, run_id)
        values = {"stored": None, "digest": None, "process": process}
        tx.execute(update(runs).where(runs.c.id == run_id).values(**values))
    return why


def remove_some(tx: Connection, run_id: str, *, limit: int = 2000) -> Removed:
    """Remove some requests of a run that is not fully stored, and finally the run itself."""
    mine = (
        select(requests.c.seq)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(requests.c.run_id == run_id, runs.c.stored.is_(None))
        .limit(limit)
    )
    chosen = list(tx.scalars(mine))
    if not chosen:
        _remove_run(tx, run_id)
        return Removed(0, 0, False)
    size = _size(tx, chosen)
    # Row numbers are reused, so no row may remain under an old number.
    of_requests = (results, former_members, params, digests, doubles, primers)
    for table in (*of_requests, conversations, tool_calls):
        tx.execute(delete(table).where(table.c.request_seq.in_(chosen)))
    removed = tx.execute(delete(requests).where(requests.c.seq.in_(chosen))).rowcount
    if removed < limit:
        _remove_run(tx, run_id)
        return Removed(removed, size, False)
    return Removed(removed, size, True)


def _size(tx: Connection, chosen: list[int]) -> int:
    asked = select(func.sum(requests.c.size)).where(requests.c.seq.in_(chosen))
    answered = select(func.sum(func.length(results.c.raw))).where(results.c.request_seq.in_(chosen))
    return int(tx.scalar(asked) or 0) + int(tx.scalar(answered) or 0)


def _remove_run(tx: Connection, run_id: str) -> None:
    gone = tx.execute(delete(runs).where(runs.c.id == run_id, runs.c.stored.is_(None))).rowcount
    if not gone:
        return
    mine = list(tx.scalars(select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)))
    set_amount(tx, "run", run_id, None)
    tx.execute(delete(batch_runs).where(batch_runs.c.run_id == run_id))
    drop_run_files(tx, run_id)
    if not mine:
        return
    shared = select(batch_runs.c.batch_id)
    empty = (batches.c.id.in_(mine), batches.c.id.not_in(shared))
    nothing_left = select(batches.c.id).where(*empty)
    tx.execute(delete(strange_lines).where(strange_lines.c.batch_id.in_(nothing_left)))
    long = or_(batches.c.snapshot.is_not(None), batches.c.note.is_not(None))
    tx.execute(update(batches).where(*empty, long).values(snapshot=None, note=None, refusal=None))
