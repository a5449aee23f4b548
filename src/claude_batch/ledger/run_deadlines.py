"""Transactions of deadlines: which runs have one, and what is stored when it approaches."""

from __future__ import annotations

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, or_, select, update

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import batch_contents, transitions
from claude_batch.ledger.cancellations import cancel_batches
from claude_batch.ledger.held_requests import is_held
from claude_batch.ledger.portable_sql import of_workspace, update_row
from claude_batch.ledger.schema import batch_runs, batches, requests, runs
from claude_batch.ledger.store import Record
from claude_batch.ledger.transitions import is_double

_RECENT = 20
"""Number of recent batches from which durations are learned."""

_LONGEST_CANCEL = 1800.0
"""Most seconds that one cancelled batch counts. It may have been collected hours after its end."""


class Experience(msgspec.Struct, frozen=True):
    """Durations observed in a workspace; None if nothing was observed."""

    cancel_seconds: float | None
    """The longest recent time from a batch's cancellation to its collection, in seconds."""
    live_seconds: float | None
    """Recent seconds per live call of a run, one after another, with their concurrency taken into
    account.
    """


_OPEN = (
    select(runs)
    .where(
        runs.c.deadline.is_not(None),
        runs.c.deadline_closed.is_(None),
        runs.c.workspace_id == bindparam("workspace"),
        runs.c.stored.is_not(None),
        runs.c.cancelled.is_(None),
    )
    .order_by(runs.c.deadline)
)


def open_deadlines(tx: Connection, workspace_id: int) -> list[Record]:
    """Return the stored runs of a workspace with a deadline that are not known to have ended."""
    return list(tx.execute(_OPEN, {"workspace": workspace_id}))


def is_over(tx: Connection, batch_id: int, now: float) -> bool:
    """Return whether the deadline of a batch's run has passed, and the run has not ended by it."""
    mine = select(batch_runs.c.run_id).where(batch_runs.c.batch_id == batch_id)
    over = and_(runs.c.deadline <= now, runs.c.deadline_closed.is_(None))
    return tx.scalar(select(runs.c.id).where(runs.c.id.in_(mine), over).limit(1)) is not None


def experience(tx: Connection, workspace_id: int) -> Experience:
    """Return the durations observed in a workspace."""
    here = of_workspace(batches.c.lane_id, workspace_id)
    asked = batches.c.cancel_requested
    cancelled = tx.scalars(
        select(func.min(batches.c.collected - asked, _LONGEST_CANCEL))
        .where(
            here,
            batches.c.state == BatchState.COLLECTED,
            asked.is_not(None),
        )
        .order_by(batches.c.id.desc())
        .limit(_RECENT)
    ).all()
    # A row of live calls lasts from its first to its last. Those of a run follow each other;
    # between single calls, minutes may pass.
    of_run = (
        select(batch_runs.c.batch_id)
        .join(runs, runs.c.id == batch_runs.c.run_id)
        .where(batch_runs.c.batch_id == batches.c.id, runs.c.kind == "run")
        .exists()
    )
    calls = tx.execute(
        select(batches.c.request_count, batches.c.ended - batches.c.created)
        .where(
            here,
            of_run,
            batches.c.state == BatchState.LIVE,
            batches.c.collected.is_not(None),
        )
        .order_by(batches.c.id.desc())
        .limit(_RECENT)
    ).all()
    count = sum(row[0] for row in calls)
    return Experience(
        max((max(0.0, seconds) for seconds in cancelled), default=None),
        sum(max(0.0, row[1]) for row in calls) / count if count else None,
    )


def pass_margin(tx: Connection, run: Record, *, margin: float, now: float) -> None:
    """Stop packing a run, and request the cancellation of its unfinished batches at the API.

    Its batches hold no other run, so each is cancelled as a whole. A batch whose POST may not have
    been accepted is cancelled once the outcome is known.
    """
    live = now if run.live is None and run.fallback == "live" else run.live
    update_row(tx, runs, run.id, past_margin=now, margin=margin, live=live)
    withdraw(tx, run.id, now)


def withdraw(tx: Connection, run_id: str, now: float) -> None:
    """Remove unsent requests of a run past its margin from their batches; cancel the rest.

    Safe to repeat: the API may later refuse a batch whose POST was in progress.
    """
    # No primer is sent ahead any more. Doubles still end with their originals.
    transitions.release(tx, and_(requests.c.run_id == run_id, is_held(), ~is_double()))
    mine = select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id)
    cancel_batches(tx, mine, now)


def end_queued(tx: Connection, run_id: str) -> None:
    """End a run's waiting requests, because they did not run before the deadline.

    They become ``expired``, but ``lost`` if an earlier sending may have been accepted: that one may
    have been billed, and its answer may still arrive. What may have been sent before the ledger was
    restored waits for the recovery.
    """
    queued = and_(requests.c.run_id == run_id, requests.c.state == RequestState.QUEUED)
    transitions.expire(tx, and_(queued, ~batch_contents.may_be_forgotten()))


def sends_nothing(now: float) -> ColumnElement[bool]:
    """Return the condition for a run whose queued requests end unsent, because of its deadline."""
    passed = and_(runs.c.deadline <= now, runs.c.deadline_closed.is_(None))
    return and_(or_(runs.c.past_margin.is_not(None), passed), runs.c.fallback == "none")


def stops_sending(tx: Connection, run_id: str, now: float) -> bool:
    """Return whether `sends_nothing` holds for a run."""
    stops = select(runs.c.id).where(runs.c.id == run_id, sends_nothing(now))
    return tx.scalar(stops) is not None


def conclude(tx: Connection, run_id: str, outcome: str, *, closed: float | None = None) -> None:
    """Record that a deadline was ``met``, or why it was missed; the first record stays.

    ``closed`` is when every request of the run had ended; after that the run is not checked again.
    """
    update_row(
        tx,
        runs,
        run_id,
        deadline_outcome=func.coalesce(runs.c.deadline_outcome, outcome),
        deadline_closed=closed,
    )


def reopen(tx: Connection, run_id: str) -> None:
    """Check a run's deadline again although the run had ended."""
    tx.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.deadline_closed.is_not(None))
        .values(deadline_closed=None, deadline_outcome=None)
    )


def reopen_run(tx: Connection, run_id: str, now: float, *, had_ended: bool) -> None:
    """Reopen a run, because it has new attempts or undelivered answers.

    Its deadline is checked again if it is to come. A missed deadline is removed, unless other
    requests of the run have not ended: these still go by it. A deadline that has passed after the
    run had ended is kept for its outcome, and stops nothing any more.
    """
    update_row(tx, runs, run_id, delivered=None, cancelled=None)
    if had_ended:
        over = and_(runs.c.deadline <= now, runs.c.deadline_closed.is_(None))
        tx.execute(update(runs).where(runs.c.id == run_id, over).values(deadline=None))
        forget(tx, run_id)
    deadline = tx.scalar(select(runs.c.deadline).where(runs.c.id == run_id))
    if deadline is not None and deadline > now:
        reopen(tx, run_id)


def forget(tx: Connection, run_id: str) -> None:
    """Remove the deadline of a withdrawn run whose requests are sent again on order."""
    tx.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.past_margin.is_not(None))
        .values(
            deadline=None,
            past_margin=None,
            live=case((runs.c.mode == "live", runs.c.live), else_=None),
        )
    )
