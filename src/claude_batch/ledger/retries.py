"""New attempts of failed requests: one transaction, after which they are queued again.

`retry_failed` obeys an order, and may choose any failure. `rerun` and `retry_call` are for a run or
a call that is asked for again: they choose the failures that may pass, by the disposition that is
stored with each result line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, exists, func, or_, select, update

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import run_deadlines, transitions
from claude_batch.ledger.collected_batches import fetch_soon
from claude_batch.ledger.conversations import (
    is_usable,
    of_this_turn,
)
from claude_batch.ledger.late_answers import lacks_result, remember_former
from claude_batch.ledger.queries import last_stamp, request_counts, unfinished
from claude_batch.ledger.schema import batch_runs, batches, doubles, requests, results, runs

__all__ = [
    "FAILED",
    "ON_ORDER",
    "Rerun",
    "Retried",
    "StillCancelling",
    "rerun",
    "retry_call",
    "retry_failed",
    "send_missing",
]

FAILED = (RequestState.ERRORED, RequestState.EXPIRED, RequestState.CANCELED)
"""States that may be tried again: the API says for sure that nothing was billed for them."""

ON_ORDER = (*FAILED, RequestState.MALFORMED)
"""States that an order may name. A malformed answer was paid for, so nothing else asks again."""


_STANDS = (RequestState.REFUSED, RequestState.WINDOW_EXCEEDED, RequestState.STOPPED)
"""States of requests whose answer was paid for and is no answer: asking again would pay again."""


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
    missing: int = 0
    """Of ``queued``: those whose result stayed missing, and which may be paid for twice."""
    found: int = 0
    """Requests whose missing result was fetched after all."""
    refused: Mapping[str, str] = MappingProxyType({})
    """The API's ids of batches whose results it does not give, and why: nothing of them is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """What a run already held when it was asked for again, and what is asked anew."""

    answered: int
    """Requests that have their answer."""
    first: float | None
    last: float | None
    """When the first and the last batch of the run ended, in seconds since the epoch."""
    queued: Mapping[str, int]
    """Requests that are asked again, by ``expired``, ``canceled`` or the type of their error."""
    failed: Mapping[str, int]
    """Requests whose failure stands, by the same words."""
    lost: int
    """Requests that may have been paid for and have no answer. Only an order asks them again."""
    unknown: int
    """Requests in a batch of which it is unknown whether the API took it."""
    unfinished: int
    """Requests without a final state, apart from ``queued``."""
    cancelling: bool
    """True while batches of a cancelled run have not ended: nothing can be asked again yet."""
    stamp: int
    """The ledger-wide stamp: a request that finished later was answered after the rerun."""


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
        requests.c.state.in_(ON_ORDER),
        or_(
            requests.c.state.in_(states),
            and_(requests.c.state == RequestState.ERRORED, said),
        ),
    )
    return Retried(*_ask_again(tx, run_id, failed, due=now), left)


def _ask_again(tx: Connection, run_id: str, failed: Any, *, due: float) -> tuple[int, int]:
    """Queue the failed requests of a run that has ended; how many are queued, and were answered."""
    answered = _give_known_answers(tx, failed)
    queued = _queue(tx, failed, due)
    if queued or answered:
        _reopen(tx, run_id)
    return queued, answered


def _reopen(tx: Connection, run_id: str) -> None:
    """A run that had ended has new attempts, or answers that its delivery did not have."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(delivered=None, cancelled=None))
    run_deadlines.forget(tx, run_id)


def _queue(tx: Connection, failed: Any, due: float) -> int:
    return transitions.ask_again(tx, failed, due=due)


_PASSING = ("retry", "account")
"""Dispositions of a line after which another attempt may succeed."""


def _passes() -> Any:
    """Whether a failed request failed for a reason that passes, by its joined result line."""
    return or_(
        requests.c.state.in_((RequestState.EXPIRED, RequestState.CANCELED)),
        and_(requests.c.state == RequestState.ERRORED, results.c.disposition.in_(_PASSING)),
    )


def _failed_in_passing() -> Any:
    """Whether a request failed for a reason that passes."""
    line = exists().where(
        results.c.request_seq == requests.c.seq,
        results.c.sending == requests.c.answered_by,
        results.c.disposition.in_(_PASSING),
    )
    return and_(requests.c.state.in_(FAILED), or_(requests.c.state != RequestState.ERRORED, line))


def rerun(tx: Connection, run_id: str, now: float) -> Rerun:
    """A run is asked for again: queue what failed for a passing reason; report what is there.

    A run that has not ended goes on as it is, and nothing more of it is queued.
    """
    cancelled = tx.scalar(select(runs.c.cancelled).where(runs.c.id == run_id)) is not None
    left = unfinished(tx, run_id)
    chosen = and_(requests.c.run_id == run_id, _failed_in_passing())
    given = 0 if left else _give_known_answers(tx, chosen)
    passing, failed = _failures(tx, run_id)
    queued: dict[str, int] = {}
    if left:
        failed = {**passing, **failed}
    elif passing:
        queued = passing
        _queue(tx, chosen, now)
    if queued or given:
        _reopen(tx, run_id)
    counts = request_counts(tx, run_id)
    failed |= {str(state): counts[state] for state in _STANDS if state in counts}
    first, last = _ended(tx, run_id)
    return Rerun(
        answered=counts.get(RequestState.SUCCEEDED, 0),
        first=first,
        last=last,
        queued=queued,
        failed=failed,
        lost=counts.get(RequestState.LOST, 0),
        unknown=_unknown(tx, run_id) if RequestState.PACKED in counts else 0,
        unfinished=left,
        cancelling=cancelled and left > 0,
        stamp=last_stamp(tx),
    )


def _failures(tx: Connection, run_id: str) -> tuple[dict[str, int], dict[str, int]]:
    """The failed requests of a run, counted by what they failed of: those that pass, and others."""
    passing: dict[str, int] = {}
    final: dict[str, int] = {}
    kind = case(
        (requests.c.state == RequestState.ERRORED, results.c.error_type), else_=requests.c.state
    )
    rows: Sequence[Any] = tx.execute(
        _with_lines(select(kind, _passes(), func.count()))
        .where(requests.c.run_id == run_id, requests.c.state.in_(FAILED))
        .group_by(kind, _passes())
        .order_by(func.count().desc(), kind)
    ).all()
    for name, passes, count in rows:
        (passing if passes else final)[name or str(RequestState.ERRORED)] = count
    return passing, final


def _with_lines(query: Any) -> Any:
    """A query of requests, joined with the result line that each has its state from."""
    line = and_(
        results.c.request_seq == requests.c.seq,
        results.c.sending == requests.c.answered_by,
    )
    return query.select_from(requests).outerjoin(results, line)


def _ended(tx: Connection, run_id: str) -> tuple[float | None, float | None]:
    first, last = tx.execute(
        select(func.min(batches.c.ended), func.max(batches.c.ended))
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(
            batch_runs.c.run_id == run_id,
            batches.c.state.in_((BatchState.COLLECTED, BatchState.LIVE)),
        )
    ).one()
    return first, last


def _unknown(tx: Connection, run_id: str) -> int:
    unknown = select(batches.c.id).where(batches.c.state == BatchState.UNKNOWN)
    return (
        tx.scalar(
            select(func.count())
            .select_from(requests)
            .where(requests.c.run_id == run_id, requests.c.batch_id.in_(unknown))
        )
        or 0
    )


def retry_call(tx: Connection, seq: int, *, due: float) -> str | None:
    """Queue a single call again that failed for a passing reason; what it had failed of.

    None if it has not failed so, or if its run is past a deadline or cancelled and other calls of
    it have not ended.
    """
    query = select(
        requests.c.run_id,
        requests.c.state,
        results.c.error_type,
        or_(runs.c.cancelled.is_not(None), runs.c.past_margin.is_not(None)).label("withdrawn"),
    )
    of_run = runs.c.id == requests.c.run_id
    row = tx.execute(
        _with_lines(query).join(runs, of_run).where(requests.c.seq == seq, _passes())
    ).first()
    if row is None or (row.withdrawn and unfinished(tx, row.run_id)):
        return None
    failed = and_(requests.c.seq == seq, requests.c.state == row.state)
    _ask_again(tx, row.run_id, failed, due=due)
    return str(row.error_type if row.state == RequestState.ERRORED else row.state)


def send_missing(tx: Connection, run_id: str, batch_ids: Collection[int], *, now: float) -> int:
    """Queue the requests of a run that lack the result of one of these batches; returns how many.

    They may have been paid for, so a late line of theirs still finds them. Raises
    `StillCancelling`.
    """
    if not batch_ids:
        return 0
    was_cancelled = tx.scalar(select(runs.c.cancelled).where(runs.c.id == run_id)) is not None
    if was_cancelled and unfinished(tx, run_id):
        raise StillCancelling
    mine = and_(
        requests.c.run_id == run_id,
        requests.c.batch_id.in_(batch_ids),
        or_(~requests.c.cancelled, requests.c.state == RequestState.LOST),
        lacks_result(),
    )
    # Of a lost one its last sending is counted already.
    posts = select(batches.c.posts).where(batches.c.id == requests.c.batch_id).scalar_subquery()
    sent = requests.c.sendings + case((requests.c.state == RequestState.LOST, 0), else_=posts)
    remember_former(tx, select(requests.c.batch_id, requests.c.seq, sent).where(mine))
    queued = transitions.ask_again(tx, mine, due=now, sendings=sent)
    if not queued:
        return 0
    original = requests.alias("original")
    lost_with_it = exists().where(
        doubles.c.request_seq == requests.c.seq,
        original.c.seq == doubles.c.of_seq,
        original.c.finished.is_(None),
    )
    lost = and_(requests.c.run_id == run_id, requests.c.state == RequestState.LOST)
    queued += transitions.ask_again(tx, and_(lost, lost_with_it), due=now)
    for batch_id in batch_ids:
        fetch_soon(tx, batch_id, now)
    tx.execute(update(runs).where(runs.c.id == run_id).values(delivered=None, cancelled=None))
    run_deadlines.forget(tx, run_id)
    return queued


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
            is_usable(known),
            of_this_turn(known),
        )
        .correlate(requests)
        .scalar_subquery()
    )
    answer = results.alias()
    known = and_(failed, answer.c.request_seq == requests.c.seq, answer.c.sending == first)
    return transitions.conclude(tx, known, answer=answer, is_late=True).total()
