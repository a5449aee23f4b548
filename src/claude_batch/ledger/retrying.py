"""New attempts of failed requests, on order: one transaction, after which they are queued again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, exists, func, null, or_, select, update

from claude_batch.core.states import RequestState
from claude_batch.ledger import deadlines
from claude_batch.ledger.conversing import of_this_turn, state_after_answer, wants_a_turn
from claude_batch.ledger.holding import is_double
from claude_batch.ledger.reading import unfinished
from claude_batch.ledger.schema import requests, results, runs
from claude_batch.ledger.store import next_stamp

__all__ = ["FAILED", "Retried", "StillCancelling", "retry_failed"]

FAILED = (RequestState.ERRORED, RequestState.EXPIRED, RequestState.CANCELED)
"""States that may be tried again: the API says for sure that nothing was billed for them."""


class StillCancelling(Exception):
    """The run was cancelled, and its batches have not ended yet."""


class Retried(NamedTuple):
    """What became of the failed requests of a run."""

    queued: int
    """Requests that are asked again."""
    answered: int
    """Requests of which another sending had been answered after all: they succeeded."""
    cancelled: int
    """Requests that were left alone, since they were cancelled with their run."""


def retry_failed(
    tx: Connection,
    run_id: str,
    *,
    states: Collection[RequestState] | None,
    error_types: Collection[str],
    now: float,
) -> Retried:
    """Queue a run's failed requests again; each has all its attempts once more.

    ``states`` and ``error_types`` choose them; where ``states`` is None, all that failed are meant
    but those that were cancelled with their run. What succeeded, is under way or was lost stays as
    it is. Raises `StillCancelling`.
    """
    was_cancelled = tx.scalar(select(runs.c.cancelled).where(runs.c.id == run_id)) is not None
    if was_cancelled and unfinished(tx, run_id):
        raise StillCancelling
    left = 0
    if states is None:
        states = [each for each in FAILED if not was_cancelled or each != RequestState.CANCELED]
        if was_cancelled:
            left = _count_canceled(tx, run_id)
    said = exists().where(
        results.c.request_seq == requests.c.seq,
        results.c.sending == requests.c.answered_by,
        results.c.error_type.in_(error_types),
    )
    failed = and_(
        requests.c.run_id == run_id,
        requests.c.state.in_(FAILED),
        or_(
            requests.c.state.in_(states),
            and_(requests.c.state == RequestState.ERRORED, said),
        ),
    )
    answered = _give_known_answers(tx, failed)
    queued = tx.execute(
        update(requests)
        .where(failed)
        .values(
            # What was not sent then has the new answer of the one that it equals.
            state=case((is_double(), RequestState.HELD), else_=RequestState.QUEUED),
            batch_id=None,
            due=now,
            finished=None,
            answered_by=None,
            cancelled=False,
            forgiven=requests.c.attempts,
        )
    ).rowcount
    if queued or answered:
        # What was delivered says "failed"; what comes now is worth another delivery.
        tx.execute(update(runs).where(runs.c.id == run_id).values(delivered=None, cancelled=None))
        deadlines.forget(tx, run_id)
    return Retried(queued, answered, left)


def _count_canceled(tx: Connection, run_id: str) -> int:
    canceled = requests.c.state == RequestState.CANCELED
    where = and_(requests.c.run_id == run_id, canceled)
    return tx.scalar(select(func.count()).select_from(requests).where(where)) or 0


def _give_known_answers(tx: Connection, failed: Any) -> int:
    """What another sending of a request has answered is not asked (and paid for) once more."""
    known = results.alias()
    first = (
        select(func.min(known.c.sending))
        .where(
            known.c.request_seq == requests.c.seq,
            known.c.outcome == RequestState.SUCCEEDED,
            of_this_turn(known),
        )
        .correlate(requests)
        .scalar_subquery()
    )
    answer = results.alias()
    return tx.execute(
        update(requests)
        .where(failed, answer.c.request_seq == requests.c.seq, answer.c.sending == first)
        .values(
            state=state_after_answer(answer),
            answered_by=answer.c.sending,
            attempts=requests.c.attempts + 1,
            finished=case((wants_a_turn(answer), null()), else_=next_stamp(tx)),
        )
    ).rowcount
