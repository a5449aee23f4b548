"""Transactions that cancel runs and single calls, and ask the API to cancel their batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    update,
)

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import batch_contents, transitions
from claude_batch.ledger.batch_contents import may_be_forgotten
from claude_batch.ledger.portable_sql import count_rows, in_chunks
from claude_batch.ledger.queries import find_run, unfinished
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    lanes,
    requests,
    runs,
)


def cancel_run(tx: Connection, run_id: str, now: float) -> bool:
    """Cancel a run; return False, and change nothing, if it has ended, or was removed.

    Unsent requests end as ``canceled`` at once, also those of batches that wait to be sent. The
    others end with their batch. What a restored ledger may have sent live ends when it is
    recovered.
    """
    run = find_run(tx, run_id)
    if run is None or (run.stored is not None and not unfinished(tx, run_id)):
        return False
    tx.execute(
        update(runs).where(runs.c.id == run_id, runs.c.cancelled.is_(None)).values(cancelled=now)
    )
    unsent = and_(
        requests.c.run_id == run_id,
        requests.c.state.in_((RequestState.QUEUED, RequestState.HELD)),
        ~may_be_forgotten(),
    )
    mine = select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)
    transitions.cancel(tx, unsent)
    cancel_batches(tx, mine, now)
    return True


def cancel_requests(tx: Connection, seqs: Iterable[int], now: float) -> None:
    """Cancel single calls that have not ended, as `cancel_run` does for a run."""
    for some in in_chunks(seqs):
        mine = and_(requests.c.seq.in_(some), requests.c.finished.is_(None))
        of_these = select(requests.c.batch_id).where(mine)
        transitions.mark_cancelled(tx, mine)
        unsent = and_(mine, requests.c.state == RequestState.QUEUED, ~may_be_forgotten())
        transitions.cancel(tx, unsent)
        cancel_batches(tx, of_these, now)


_CANCELLED_UNSENT = (
    select(batches.c.id)
    .join(lanes, lanes.c.id == batches.c.lane_id)
    .where(
        batch_contents.IS_DIVISIBLE,
        # Before its first POST the cancellation itself has emptied it.
        batches.c.posts > 0,
        lanes.c.workspace_id == bindparam("workspace"),
        exists().where(
            batch_runs.c.batch_id == batches.c.id,
            runs.c.id == batch_runs.c.run_id,
            or_(
                runs.c.cancelled.is_not(None),
                and_(
                    runs.c.kind == "calls",
                    exists().where(
                        requests.c.batch_id == batch_runs.c.batch_id, requests.c.cancelled
                    ),
                ),
            ),
        ),
    )
    .order_by(batches.c.id)
)


def cancelled_unsent(tx: Connection, workspace_id: int) -> list[int]:
    """Return the unsent batches with requests that were cancelled while the batch was posted.

    The next sending leaves these requests out. It may be hours away, if the API refused this one
    with a wait or a halt.
    """
    return list(tx.scalars(_CANCELLED_UNSENT, {"workspace": workspace_id}))


def cancel_batches(tx: Connection, of: Any, now: float) -> None:
    """Take what is not sent any more out of unsent batches, and cancel the others; ``of``: ids.

    The cancellation of a batch is requested if no caller waits in it any more. It is due at once,
    also if the API has refused it before.
    """
    packed = and_(batches.c.id.in_(of), batches.c.state == BatchState.PACKED)
    for batch_id in tx.scalars(select(batches.c.id).where(packed)).all():
        batch_contents.withdraw_cancelled(tx, batch_id)
    others = exists().where(
        requests.c.batch_id == batches.c.id,
        requests.c.state == RequestState.PACKED,
        ~requests.c.cancelled,
        runs.c.id == requests.c.run_id,
        runs.c.cancelled.is_(None),
        runs.c.past_margin.is_(None),
    )
    tx.execute(
        update(batches)
        .where(
            batches.c.id.in_(of),
            batches.c.state.in_(
                (
                    BatchState.PACKED,
                    BatchState.SUBMITTING,
                    BatchState.IN_PROGRESS,
                    BatchState.UNKNOWN,
                )
            ),
            ~others,
        )
        .values(
            cancel_requested=func.coalesce(batches.c.cancel_requested, now),
            next_check=case(
                (batches.c.state == BatchState.IN_PROGRESS, now), else_=batches.c.next_check
            ),
        )
    )


def uncancelled(tx: Connection, run_id: str) -> int:
    """Return the number of batches of a run whose cancel request may not have reached the API."""
    mine = select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)
    unasked = (BatchState.SUBMITTING, BatchState.UNKNOWN, BatchState.IN_PROGRESS)
    return count_rows(
        tx,
        batches,
        batches.c.id.in_(mine),
        batches.c.cancel_requested.is_not(None),
        batches.c.state.in_(unasked),
    )
