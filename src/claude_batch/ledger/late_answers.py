"""Late answers to requests that left their batch while its outcome was undecided.

The first POST of a request may still be answered after the request was sent again on order, or
given up. `former_members` records which request left which batch, so that a late line finds its
request.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import run_deadlines, transitions
from claude_batch.ledger.batch_contents import batch, recount
from claude_batch.ledger.conversations import (
    continuing_counts,
    is_usable,
    of_this_turn,
)
from claude_batch.ledger.held_requests import answer_lost_doubles
from claude_batch.ledger.schema import batches, former_members, requests, results, runs
from claude_batch.ledger.store import Record

_FAILED = (RequestState.ERRORED, RequestState.EXPIRED, RequestState.CANCELED)


def former(tx: Connection, batch_id: int) -> dict[str, int]:
    """Return the requests that left a batch undecided: row numbers by request id."""
    rows = tx.execute(
        select(requests.c.id, requests.c.seq)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .where(former_members.c.batch_id == batch_id)
    )
    return {row.id: row.seq for row in rows}


def remember_former(tx: Connection, left: Select[Any, Any, Any]) -> None:
    """Record requests that leave a batch undecided; ``left`` selects batch, row number, sending."""
    tx.execute(
        insert(former_members)
        .from_select(["batch_id", "request_seq", "sending"], left)
        .on_conflict_do_nothing()
    )


def give_answers(tx: Connection, batch_id: int) -> int:
    """End requests that left a batch with its late lines; return their number.

    Only requests that have no answer and are not sent end this way. For the others, the line is
    kept and its cost counted.
    """
    if tx.scalar(select(former_members.c.request_seq).limit(1)) is None:
        return 0  # no request has ever left a batch
    line = and_(
        results.c.request_seq == requests.c.seq,
        results.c.batch_id == batch_id,
        exists().where(
            former_members.c.batch_id == batch_id,
            former_members.c.request_seq == requests.c.seq,
        ),
    )
    # A request that is queued again takes only a usable answer; instead of a failure it is sent
    # again.
    was_lost = requests.c.state == RequestState.LOST
    queued = and_(requests.c.state == RequestState.QUEUED, is_usable())
    answered = and_(line, or_(was_lost, queued), of_this_turn())
    # A lost request has counted this attempt already.
    counted = case((was_lost, 0), else_=1)
    return transitions.conclude(tx, answered, is_late=True, attempts=counted).total()


def lacks_result() -> ColumnElement[bool]:
    """Return the condition for requests whose batch has ended without a stored result of theirs."""
    lost = and_(
        requests.c.state == RequestState.LOST,
        exists().where(
            batches.c.id == requests.c.batch_id,
            batches.c.state == BatchState.COLLECTED,
            batches.c.remote_id.is_not(None),
        ),
    )
    waiting = and_(
        requests.c.state == RequestState.PACKED,
        exists().where(
            batches.c.id == requests.c.batch_id,
            batches.c.state == BatchState.ENDED,
            batches.c.missing.is_not(None),
        ),
        ~exists().where(
            results.c.request_seq == requests.c.seq,
            results.c.batch_id == requests.c.batch_id,
        ),
    )
    return or_(lost, waiting)


def missing_requests(tx: Connection, run_id: str) -> int:
    """Return how many requests of a run lack the result of their batch: lost, or still fetched."""
    mine = and_(requests.c.run_id == run_id, lacks_result())
    return tx.scalar(select(func.count()).select_from(requests).where(mine)) or 0


def missing_sendings(tx: Connection, run_id: str) -> int:
    """Count like `missing_requests`, plus earlier sendings whose results would be kept as well."""
    former = select(func.count()).select_from(former_members)
    former = former.join(requests, requests.c.seq == former_members.c.request_seq)
    former = former.join(batches, batches.c.id == former_members.c.batch_id)
    left = tx.scalar(former.where(requests.c.run_id == run_id, _ended(), _has_left_undecided()))
    return missing_requests(tx, run_id) + (left or 0)


def _ended() -> ColumnElement[bool]:
    return and_(
        batches.c.remote_id.is_not(None),
        or_(
            batches.c.state == BatchState.COLLECTED,
            and_(batches.c.state == BatchState.ENDED, batches.c.missing.is_not(None)),
        ),
    )


def _has_left_undecided() -> ColumnElement[bool]:
    return ~exists().where(
        results.c.request_seq == former_members.c.request_seq,
        results.c.batch_id == former_members.c.batch_id,
    )


def incomplete_batches(tx: Connection, run_id: str) -> list[Record]:
    """Return the ended batches that lack results of a run, oldest first.

    Includes batches whose missing results belong to requests that were sent again on order since.
    """
    lacking = select(requests.c.batch_id).where(requests.c.run_id == run_id, lacks_result())
    left = (
        select(former_members.c.batch_id)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.run_id == run_id, _has_left_undecided())
    )
    return list(
        tx.execute(
            select(batches)
            .where(batches.c.id.in_(lacking.union(left)), _ended())
            .order_by(batches.c.id)
        )
    )


def fill(tx: Connection, batch_id: int, *, contradicted: bool, now: float) -> None:
    """Apply late lines to requests that were lost in a collected batch, or left it undecided.

    A success also replaces a failure from another line of the same sending. ``contradicted``: some
    line still hides a success, so failures that would be retried stay lost.
    """
    former = requests.c.seq.in_(
        select(former_members.c.request_seq).where(former_members.c.batch_id == batch_id)
    )
    here = requests.c.batch_id == batch_id
    line = and_(results.c.request_seq == requests.c.seq, results.c.batch_id == batch_id)
    success = results.c.outcome == RequestState.SUCCEEDED
    belied = and_(requests.c.state.in_(_FAILED), requests.c.answered_by == results.c.sending)
    waits = and_(former, requests.c.state == RequestState.QUEUED, is_usable())
    is_lost = requests.c.state == RequestState.LOST
    answered = and_(success, of_this_turn(), or_(and_(or_(here, former), is_lost), waits, belied))
    failed = and_(here, is_lost, ~success)
    if contradicted:
        failed = and_(failed, results.c.disposition.not_in(("retry", "account")))
    concerned = list(
        tx.scalars(select(requests.c.run_id).distinct().where(line, or_(answered, failed)))
    )
    if not concerned:
        return
    counted = case((waits, 1), else_=0)
    transitions.conclude(tx, and_(line, answered), is_late=True, attempts=counted)
    transitions.conclude(tx, and_(line, failed), is_late=True, attempts=0)
    answer_lost_doubles(tx, batch_id)
    # The delivered output shows "lost"; the new answers require another delivery.
    tx.execute(update(runs).where(runs.c.id.in_(concerned)).values(delivered=None))
    for run_id in concerned:
        if continuing_counts(tx, run_id)[0]:
            run_deadlines.forget(tx, run_id)


def _answered_earlier(tx: Connection, batch_id: int) -> ColumnElement[bool] | None:
    """Return the condition for a batch's requests of which an earlier sending has succeeded.

    Only requests that left another batch undecided can have been sent before. None if there are
    none.
    """
    if tx.scalar(select(former_members.c.request_seq).limit(1)) is None:
        return None  # the usual case, at no cost
    sent_before = (
        select(former_members.c.request_seq)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    )
    return and_(
        requests.c.seq.in_(sent_before),
        results.c.request_seq == requests.c.seq,
        is_usable(),
        of_this_turn(),
    )


def has_earlier_answers(tx: Connection, batch_id: int) -> bool:
    """Return whether an earlier sending of any of a batch's requests has succeeded."""
    answered = _answered_earlier(tx, batch_id)
    return answered is not None and tx.scalar(select(requests.c.seq).where(answered)) is not None


def take_earlier_answers(tx: Connection, batch_id: int) -> int:
    """End a batch's requests of which an earlier sending has succeeded; return their number."""
    answered = _answered_earlier(tx, batch_id)
    if answered is None:
        return 0
    ended = transitions.conclude(tx, answered, is_late=True).total()
    if ended and batch(tx, batch_id).state == BatchState.PACKED:
        out = and_(requests.c.batch_id == batch_id, requests.c.state != RequestState.PACKED)
        transitions.leave_batch(tx, out)
        recount(tx, batch_id)
    return ended
