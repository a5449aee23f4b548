"""Transactions of single calls: their keys, who waits for them, and answers that nobody took.

An *orphan* is a call without a key whose waiter has gone before it took the answer. The same call
made again takes it over, whatever its state: what was paid for once is not paid for again. A call
whose caller leaves before it is sent is no orphan: it is withdrawn, and costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import transitions
from claude_batch.ledger.batch_contents import recount
from claude_batch.ledger.schema import (
    batches,
    call_keys,
    calls,
    conversations,
    former_members,
    params,
    requests,
)
from claude_batch.ledger.store import Record, insert_many

__all__ = [
    "NewCall",
    "Orphan",
    "add_calls",
    "digest_of",
    "find_call",
    "let_go",
    "mark_taken",
    "orphans",
    "other_processes",
    "remember_call",
    "take_over",
    "withdraw",
]

_MANY = 500
"""Values in one IN list."""


class NewCall(NamedTuple):
    """A call without a key, as it is stored beside its request."""

    request_seq: int
    digest: bytes
    process: str


class Orphan(NamedTuple):
    """A call that nobody waits for, and whose answer nobody took."""

    seq: int
    run_id: str
    lane_id: int
    digest: bytes


def digest_of(body: bytes) -> bytes:
    """What equal params have in common: 16 bytes."""
    return hashlib.blake2b(body, digest_size=16).digest()


_INSERT_CALLS = insert(calls)


def add_calls(tx: Connection, new: Sequence[NewCall]) -> None:
    """Remember who waits for calls that were just stored."""
    insert_many(tx, _INSERT_CALLS, [(*call, None) for call in new])


def other_processes(tx: Connection, own: str) -> list[str | None]:
    """Processes but our own that wait, or waited, for answers that nobody took.

    None stands for calls that their waiters have let go.
    """
    column = calls.c.process
    return list(
        tx.scalars(
            select(column)
            .where(calls.c.taken.is_(None), or_(column.is_(None), column < own, column > own))
            .distinct()
        )
    )


def orphans(
    tx: Connection, digests: Collection[bytes], dead: Collection[str], *, let_go: bool
) -> list[Orphan]:
    """Untaken calls of these digests whose process is dead, or that were let go; oldest first.

    Those that were cancelled are none: their caller did not want them any more.
    """
    found: list[Orphan] = []
    listed = list(digests)
    who: list[Any] = [calls.c.process.in_(list(dead))]
    if let_go:
        who.append(calls.c.process.is_(None))
    for start in range(0, len(listed), _MANY):
        rows = tx.execute(
            select(requests.c.seq, requests.c.run_id, requests.c.lane_id, calls.c.digest)
            .join(calls, calls.c.request_seq == requests.c.seq)
            .where(
                calls.c.digest.in_(listed[start : start + _MANY]),
                calls.c.taken.is_(None),
                or_(*who),
                requests.c.state != RequestState.CANCELED,
                ~requests.c.cancelled,
            )
            .order_by(requests.c.seq)
        )
        found += [Orphan(*row) for row in rows]
    return found


_TAKE_OVER = (
    update(calls)
    .where(calls.c.request_seq == bindparam("seq"))
    .values(process=bindparam("new_process"))
)
_MARK_TAKEN = (
    update(calls).where(calls.c.request_seq == bindparam("seq")).values(taken=bindparam("at"))
)


def take_over(tx: Connection, seqs: Sequence[int], own: str) -> None:
    """Our process waits for these calls from now on."""
    if seqs:
        tx.execute(_TAKE_OVER, [{"seq": seq, "new_process": own} for seq in seqs])


def let_go(tx: Connection, seqs: Sequence[int]) -> None:
    """Nobody waits for these calls any more; whoever asks the same may have them."""
    if seqs:
        tx.execute(_TAKE_OVER, [{"seq": seq, "new_process": None} for seq in seqs])


def withdraw(tx: Connection, seqs: Collection[int], own: str) -> int:
    """End calls whose callers have left as ``canceled``, if nothing of them can have been sent.

    That is so while a call is queued, or in a batch that is still ``packed``: the content of a
    batch is frozen when it becomes ``submitting``, and this transaction and that one exclude each
    other. All other calls are let go: what was sent may be paid for, and an equal call takes it
    over. So is a conversation between two turns, because its first turns have been paid for.
    ``own`` is the process that waits for them; a call that another process has taken over stays as
    it is. Returns how many calls were withdrawn.
    """
    listed = list(seqs)
    carriers: set[int] = set()
    withdrawn = 0
    for start in range(0, len(listed), _MANY):
        some = listed[start : start + _MANY]
        waits = and_(calls.c.process == own, calls.c.taken.is_(None))
        mine = select(calls.c.request_seq).where(calls.c.request_seq.in_(some), waits)
        unpaid = and_(
            requests.c.seq.in_(mine),
            ~exists().where(conversations.c.request_seq == requests.c.seq),
            # Sent again on order: an earlier sending of it may still be answered.
            requests.c.seq.not_in(select(former_members.c.request_seq)),
        )
        # The halves of a batch that was refused are compared with each other: they stay whole.
        unsent = select(batches.c.id).where(
            batches.c.state == BatchState.PACKED,
            batches.c.half_of.is_(None),
            batches.c.refusal.is_(None),
        )
        packed = and_(requests.c.state == RequestState.PACKED, requests.c.batch_id.in_(unsent))
        carriers.update(tx.scalars(select(requests.c.batch_id).distinct().where(unpaid, packed)))
        unsent = and_(unpaid, or_(requests.c.state == RequestState.QUEUED, packed))
        withdrawn += transitions.cancel(tx, unsent, by_caller=True)
        ended = select(requests.c.seq).where(
            requests.c.seq.in_(some), requests.c.state == RequestState.CANCELED
        )
        tx.execute(delete(calls).where(calls.c.request_seq.in_(ended)))
        left = calls.c.request_seq.in_(some)
        tx.execute(update(calls).where(left, waits).values(process=None))
    for batch_id in carriers:
        recount(tx, batch_id)
    return withdrawn


def mark_taken(tx: Connection, seqs: Sequence[int], now: float) -> None:
    """The answers of these calls have reached their callers."""
    if seqs:
        tx.execute(_MARK_TAKEN, [{"seq": seq, "at": now} for seq in seqs])


def find_call(tx: Connection, actor: str, key: str) -> Record | None:
    """The single call of that actor and key: ``seq``, ``run_id`` and ``body``; None where new."""
    return tx.execute(
        select(
            requests.c.seq,
            requests.c.run_id,
            func.coalesce(conversations.c.first_params, params.c.body).label("body"),
        )
        .select_from(call_keys)
        .join(requests, requests.c.seq == call_keys.c.request_seq)
        .join(params, params.c.request_seq == requests.c.seq)
        .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
        .where(call_keys.c.actor == actor, call_keys.c.key == key)
    ).first()


def remember_call(tx: Connection, actor: str, key: str, seq: int) -> None:
    """Bind an actor's key to the request just stored."""
    tx.execute(insert(call_keys).values(actor=actor, key=key, request_seq=seq))
