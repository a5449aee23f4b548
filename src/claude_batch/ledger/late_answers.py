"""Answers of earlier sendings, to requests that have left their batch undecided.

Whatever is sent again on order, or was given up, may still be answered by its first sending.
`former_members` remembers who left which batch, so that such a line finds its request.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, case, exists, null, or_, select, update

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger.conversing import of_this_turn, state_after_answer, wants_a_turn
from claude_batch.ledger.packing import batch, recount
from claude_batch.ledger.schema import former_members, requests, results
from claude_batch.ledger.store import next_stamp

__all__ = ["former", "give_answers", "has_earlier_answers", "take_earlier_answers"]


def former(tx: Connection, batch_id: int) -> dict[str, int]:
    """The requests that have left a batch undecided: row numbers by request id."""
    rows = tx.execute(
        select(requests.c.id, requests.c.seq)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .where(former_members.c.batch_id == batch_id)
    )
    return {row.id: row.seq for row in rows}


def give_answers(tx: Connection, batch_id: int) -> int:
    """Late lines of a batch end those who left it, where they have no answer and are not sent.

    Returns how many got one. The others keep the line, and its cost is counted.
    """
    if tx.scalar(select(former_members.c.request_seq).limit(1)) is None:
        return 0  # nobody has ever left a batch
    stamp = next_stamp(tx)
    line = and_(
        results.c.request_seq == requests.c.seq,
        results.c.batch_id == batch_id,
        exists().where(
            former_members.c.batch_id == batch_id,
            former_members.c.request_seq == requests.c.seq,
        ),
    )
    # One that is queued again would rather be asked again than end with a failure.
    was_lost = requests.c.state == RequestState.LOST
    queued = and_(
        requests.c.state == RequestState.QUEUED, results.c.outcome == RequestState.SUCCEEDED
    )
    return tx.execute(
        update(requests)
        .where(line, or_(was_lost, queued), of_this_turn())
        .values(
            state=state_after_answer(),
            answered_by=results.c.sending,
            attempts=requests.c.attempts + case((was_lost, 0), else_=1),
            finished=case((wants_a_turn(), null()), else_=stamp),
        )
    ).rowcount


def _answered_earlier(tx: Connection, batch_id: int) -> ColumnElement[bool] | None:
    """The condition for a batch's requests of which an earlier sending has succeeded.

    Only what has left another batch undecided can have been sent before; None where nothing has.
    """
    if tx.scalar(select(former_members.c.request_seq).limit(1)) is None:
        return None  # as nearly always, at no cost
    sent_before = (
        select(former_members.c.request_seq)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    )
    return and_(
        requests.c.seq.in_(sent_before),
        results.c.request_seq == requests.c.seq,
        results.c.outcome == RequestState.SUCCEEDED,
        of_this_turn(),
    )


def has_earlier_answers(tx: Connection, batch_id: int) -> bool:
    """Whether an earlier sending of any of a batch's requests has succeeded."""
    answered = _answered_earlier(tx, batch_id)
    return answered is not None and tx.scalar(select(requests.c.seq).where(answered)) is not None


def take_earlier_answers(tx: Connection, batch_id: int) -> int:
    """End a batch's requests of which an earlier sending has succeeded; returns how many."""
    answered = _answered_earlier(tx, batch_id)
    if answered is None:
        return 0
    ended = tx.execute(
        update(requests)
        .where(answered)
        .values(
            state=state_after_answer(),
            answered_by=results.c.sending,
            attempts=requests.c.attempts + 1,
            finished=case((wants_a_turn(), null()), else_=next_stamp(tx)),
        )
    ).rowcount
    if ended and batch(tx, batch_id).state == BatchState.PACKED:
        out = and_(requests.c.batch_id == batch_id, requests.c.state != RequestState.PACKED)
        tx.execute(update(requests).where(out).values(batch_id=None))
        recount(tx, batch_id)
    return ended
