"""New attempts of failed requests: one transaction queues them again.

`retry_failed` follows a user's order and may select any failure. `rerun` and `retry_call` handle a
run or a call that is requested again. They select transient failures only, by the disposition that
is stored with each result line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, or_, select

from claude_batch.core.states import FAILED, OPEN, BatchState, RequestState
from claude_batch.ledger import run_deadlines, transitions
from claude_batch.ledger.conversations import begin_anew
from claude_batch.ledger.portable_sql import count_rows
from claude_batch.ledger.queries import last_stamp, request_counts, run_row, unfinished
from claude_batch.ledger.schema import (
    OF_ANSWER,
    batch_runs,
    batches,
    doubles,
    requests,
    results,
    runs,
)
from claude_batch.ledger.unknown_batches import (
    give_known_answers,
    lacks_result,
    remember_former,
)

ON_ORDER = (*FAILED, RequestState.MALFORMED)
"""States that an order may name. A malformed answer was billed, so only an order retries it."""


_STANDS = (RequestState.REFUSED, RequestState.WINDOW_EXCEEDED, RequestState.STOPPED)
"""States of requests with a billed but unusable answer. A retry would be billed again."""


class StillCancelling(Exception):
    """The run was cancelled, and its batches have not ended yet."""


class SendsNothing(Exception):
    """The run is past the margin of its deadline with ``fallback: none``, and has not ended.

    What is queued would expire at once.
    """


class Retried(NamedTuple):
    """The result of retrying a run's failed requests."""

    queued: int
    """Number of requests that are sent again."""
    answered: int
    """Number of requests for which another sending turned out to be answered: they succeeded."""
    cancelled: int
    """Number of requests that were left alone because they were cancelled with their run."""
    missing: int = 0
    """Number of ``queued`` requests whose result stayed missing, and which may be billed twice."""
    found: int = 0
    """Number of requests whose missing result was fetched after all."""
    refused: Mapping[str, str] = MappingProxyType({})
    """API ids of batches whose results the API refuses, with the reason. Their requests are not
    sent.
    """


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was requested again: the requests that it held, and those that are retried."""

    answered: int
    """Number of requests that have their answer."""
    first: float | None
    last: float | None
    """When the first and the last batch of the run ended, in seconds since the epoch."""
    queued: Mapping[str, int]
    """Requests that are sent again, by ``expired``, ``canceled`` or the type of their error."""
    failed: Mapping[str, int]
    """Requests whose failure is final, by the same words."""
    lost: int
    """Requests that may have been billed and have no answer. Only a user's order sends them
    again.
    """
    unknown: int
    """Requests in a batch whose acceptance by the API is unknown."""
    unfinished: int
    """Requests without a final state, apart from ``queued``."""
    cancelling: bool
    """True while batches of a cancelled run have not ended: no request can be retried yet."""
    stamp: int
    """The ledger-wide stamp. A request with a later one was answered after the rerun."""


def retry_failed(
    tx: Connection,
    run_id: str,
    *,
    states: Collection[RequestState] | None,
    error_types: Collection[str],
    now: float,
) -> Retried:
    """Queue a run's failed requests again; each has its full number of attempts once more.

    ``states`` and ``error_types`` select them. If ``states`` is None, all failed requests are
    selected except those that were cancelled with their run. Requests that succeeded, are under way
    or were lost stay unchanged. Raises `StillCancelling` and `SendsNothing`.
    """
    was_cancelled = _was_cancelled(tx, run_id)
    left = 0
    if states is None:
        states = [each for each in FAILED if not was_cancelled or each != RequestState.CANCELED]
        if was_cancelled:
            canceled = requests.c.state == RequestState.CANCELED
            left = count_rows(tx, requests, requests.c.run_id == run_id, canceled)
    said = exists().where(OF_ANSWER, results.c.error_type.in_(error_types))
    failed = and_(
        requests.c.run_id == run_id,
        requests.c.state.in_(ON_ORDER),
        or_(requests.c.state.in_(states), and_(requests.c.state == RequestState.ERRORED, said)),
    )
    _check_deadline(tx, run_id, failed, now)
    return Retried(*_ask_again(tx, run_id, failed, due=now), left)


def _was_cancelled(tx: Connection, run_id: str) -> bool:
    """Return whether a run was cancelled and has ended. Raises `StillCancelling`."""
    was_cancelled = run_row(tx, run_id).cancelled is not None
    if was_cancelled and unfinished(tx, run_id):
        raise StillCancelling
    return was_cancelled


def _check_deadline(tx: Connection, run_id: str, chosen: Any, now: float) -> None:
    """Raise `SendsNothing` if the deadline of a run would end the chosen requests unsent."""
    stops = run_deadlines.stops_sending(tx, run_id, now) and unfinished(tx, run_id)
    if stops and tx.scalar(select(requests.c.seq).where(chosen).limit(1)) is not None:
        raise SendsNothing


def _ask_again(tx: Connection, run_id: str, failed: Any, *, due: float) -> tuple[int, int]:
    """Queue failed requests of a run.

    Returns how many were queued, and how many had been answered after all.
    """
    had_ended = not unfinished(tx, run_id)
    answered = give_known_answers(tx, failed)
    queued = _queue(tx, failed, due)
    if queued or answered:
        run_deadlines.reopen_run(tx, run_id, due, had_ended=had_ended)
    return queued, answered


def _queue(tx: Connection, failed: Any, due: float) -> int:
    begin_anew(tx, failed)
    return transitions.ask_again(tx, failed, due=due)


_PASSING = ("retry", "account")
"""Dispositions of a line after which another attempt may succeed."""


def _failed_in_passing() -> ColumnElement[bool]:
    """Return the condition for requests with a transient failure."""
    line = exists().where(OF_ANSWER, results.c.disposition.in_(_PASSING)).correlate(requests)
    return and_(requests.c.state.in_(FAILED), or_(requests.c.state != RequestState.ERRORED, line))


def rerun(tx: Connection, run_id: str, now: float) -> Rerun:
    """Queue a requested run's transient failures again, and report its present requests.

    A run that has not ended continues as it is, and nothing more of it is queued.
    """
    cancelled = tx.scalar(select(runs.c.cancelled).where(runs.c.id == run_id)) is not None
    left = unfinished(tx, run_id)
    chosen = and_(requests.c.run_id == run_id, _failed_in_passing())
    given = 0 if left else give_known_answers(tx, chosen)
    passing, failed = _failures(tx, run_id)
    queued: dict[str, int] = {}
    if left:
        failed = {**passing, **failed}
    elif passing:
        queued = passing
        _queue(tx, chosen, now)
    if queued or given:
        run_deadlines.reopen_run(tx, run_id, now, had_ended=True)
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


def to_send(tx: Connection, run_id: str) -> list[int]:
    """Return the positions of a run's unsent requests, or of those that `rerun` queues, in order.

    If batches of a cancelled run have not ended, these are all open requests, because those that do
    not run are queued again.
    """
    cancelled = tx.scalar(select(runs.c.cancelled).where(runs.c.id == run_id)) is not None
    if not unfinished(tx, run_id):
        chosen = _failed_in_passing()
    elif cancelled:
        chosen = requests.c.state.in_(OPEN)
    else:
        unsent = select(batches.c.id).where(batches.c.state == BatchState.PACKED)
        chosen = or_(
            requests.c.state.in_([state for state in OPEN if state != RequestState.PACKED]),
            and_(requests.c.state == RequestState.PACKED, requests.c.batch_id.in_(unsent)),
        )
    where = and_(requests.c.run_id == run_id, chosen)
    return list(tx.scalars(select(requests.c.position).where(where).order_by(requests.c.position)))


def _failures(tx: Connection, run_id: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the failed requests of a run by reason: transient failures, and others."""
    passing: dict[str, int] = {}
    final: dict[str, int] = {}
    kind = case(
        (requests.c.state == RequestState.ERRORED, results.c.error_type), else_=requests.c.state
    )
    passes = _failed_in_passing().label("passes")
    rows: Sequence[Any] = tx.execute(
        select(kind.label("kind"), passes, func.count())
        .select_from(requests)
        .outerjoin(results, OF_ANSWER)
        .where(requests.c.run_id == run_id, requests.c.state.in_(FAILED))
        .group_by("kind", "passes")
        .order_by(func.count().desc(), "kind")
    ).all()
    for name, is_passing, count in rows:
        (passing if is_passing else final)[name or str(RequestState.ERRORED)] = count
    return passing, final


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
    return count_rows(tx, requests, requests.c.run_id == run_id, requests.c.batch_id.in_(unknown))


def retry_call(tx: Connection, seq: int, *, due: float) -> str | None:
    """Queue a single call again after a transient failure; return the reason of the failure.

    Returns None if the call has no transient failure. Also returns None if its run is past a
    deadline or cancelled and other calls of the run have not ended.
    """
    withdrawn = or_(runs.c.cancelled.is_not(None), runs.c.past_margin.is_not(None))
    row = tx.execute(
        select(
            requests.c.run_id,
            requests.c.state,
            results.c.error_type,
            withdrawn.label("withdrawn"),
        )
        .select_from(requests)
        .outerjoin(results, OF_ANSWER)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(requests.c.seq == seq, _failed_in_passing())
    ).first()
    if row is None or (row.withdrawn and unfinished(tx, row.run_id)):
        return None
    failed = and_(requests.c.seq == seq, requests.c.state == row.state)
    _ask_again(tx, row.run_id, failed, due=due)
    return str(row.error_type if row.state == RequestState.ERRORED else row.state)


def send_missing(tx: Connection, run_id: str, batch_ids: Collection[int], *, now: float) -> int:
    """Queue a run's requests that lack the result of one of these batches; return their number.

    They may have been billed, so a late line still finds them. Raises `StillCancelling` and
    `SendsNothing`.
    """
    if not batch_ids:
        return 0
    _was_cancelled(tx, run_id)
    had_ended = not unfinished(tx, run_id)
    mine = and_(
        requests.c.run_id == run_id,
        requests.c.batch_id.in_(batch_ids),
        lacks_result(),
    )
    _check_deadline(tx, run_id, mine, now)
    # The last sending of a lost request is counted already.
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
    run_deadlines.reopen_run(tx, run_id, now, had_ended=had_ended)
    return queued
