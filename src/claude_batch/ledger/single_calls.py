"""Transactions of single calls: their keys, their waiting processes, and untaken answers.

An *orphan* is a call without a key whose caller went away before it took the answer. An equal call
takes the orphan over, whatever its state, so that a billed request is not billed again. If the
caller leaves before the call is sent, the call is withdrawn at no cost and is not an orphan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
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
from claude_batch.ledger.batch_contents import IS_DIVISIBLE, recount
from claude_batch.ledger.portable_sql import among, in_chunks
from claude_batch.ledger.schema import (
    batches,
    call_keys,
    calls,
    conversations,
    former_members,
    lanes,
    params,
    requests,
    runs,
)
from claude_batch.ledger.store import Record, insert_many

LONGEST_CALL_KEY = 1024
"""Most bytes of a single call's key: an index of PostgreSQL holds 2,700, with the actor's name."""


class NewCall(NamedTuple):
    """A call without a key, as the ledger stores it beside its request."""

    request_seq: int
    digest: bytes
    process: str


class Orphan(NamedTuple):
    """A call that no caller waits for, and whose answer was not taken."""

    seq: int
    run_id: str
    lane_id: int
    digest: bytes


class Tried(NamedTuple):
    """A request that a client may have asked for before it repeated its call."""

    seq: int
    run_id: str
    lane_id: int
    actor: str
    digest: bytes
    taken: float | None
    """When its answer was written to a caller; None while a process seems to wait for it."""
    is_repeated: bool
    """Whether that caller was a retry itself."""


class StoredCall(NamedTuple):
    """A call in the ledger."""

    seq: int
    run_id: str
    actor: str
    is_final: bool
    is_sent: bool
    is_untaken: bool
    """Whether no caller has its answer yet. False for a call with a key, which is not tracked."""


def stored_call(tx: Connection, seq: int) -> StoredCall | None:
    """Return a single call by its row number; None for other requests and unknown numbers."""
    row = tx.execute(
        select(
            requests.c.run_id,
            runs.c.actor,
            requests.c.finished,
            batches.c.state,
            and_(calls.c.request_seq.is_not(None), calls.c.taken.is_(None)).label("untaken"),
        )
        .join(runs, runs.c.id == requests.c.run_id)
        .outerjoin(batches, batches.c.id == requests.c.batch_id)
        .outerjoin(calls, calls.c.request_seq == requests.c.seq)
        .where(requests.c.seq == seq, runs.c.kind == "calls")
    ).first()
    if row is None:
        return None
    is_sent = row.state not in (None, BatchState.PACKED)
    is_final = row.finished is not None
    return StoredCall(seq, row.run_id, row.actor, is_final, is_sent, bool(row.untaken))


def digest_of(body: bytes) -> bytes:
    """Return a 16-byte digest, equal for equal params."""
    return hashlib.blake2b(body, digest_size=16).digest()


_INSERT_CALLS = insert(calls)


def add_calls(tx: Connection, new: Sequence[NewCall]) -> None:
    """Store the waiting process of calls that were just stored."""
    insert_many(tx, _INSERT_CALLS, [(*call, None) for call in new])


def other_processes(tx: Connection, own: str) -> list[str | None]:
    """Return the other processes that wait, or waited, for answers that were not taken.

    None stands for calls that were let go.
    """
    column = calls.c.process
    untaken = select(column).where(calls.c.taken.is_(None))
    # One by one, because each is a range of the index: this process may wait for many answers.
    found: list[str | None] = list(tx.scalars(untaken.where(column.is_(None)).limit(1)))
    for others in (column < own, column > own):
        found += tx.scalars(untaken.where(others).distinct())
    return found


def orphans(
    tx: Connection, digests: Collection[bytes], dead: Collection[str], *, let_go: bool
) -> list[Orphan]:
    """Return untaken calls of these digests that no process waits for; oldest first.

    Their process is dead, or let them go. Cancelled calls are excluded, because their caller does
    not want them any more.
    """
    who: list[Any] = [calls.c.process.in_(list(dead))]
    if let_go:
        who.append(calls.c.process.is_(None))
    unclaimed = (
        select(requests.c.seq, requests.c.run_id, requests.c.lane_id, calls.c.digest)
        .join(calls, calls.c.request_seq == requests.c.seq)
        .where(
            calls.c.taken.is_(None),
            or_(*who),
            requests.c.state != RequestState.CANCELED,
            ~requests.c.cancelled,
        )
        .order_by(requests.c.seq)
    )
    return [Orphan(*row) for row in among(tx, unclaimed, calls.c.digest, digests)]


def tried(tx: Connection, digests: Collection[bytes], own: str, since: float) -> list[Tried]:
    """Return the requests of these digests whose caller may have failed and repeats its call.

    Either another process seems to wait for the answer, or the answer was taken after ``since``.
    A caller may have given up as the last byte was written.
    """
    waits = and_(
        calls.c.taken.is_(None),
        calls.c.process != own,
        requests.c.state != RequestState.CANCELED,
        ~requests.c.cancelled,
    )
    taken = and_(calls.c.taken > since, requests.c.state == RequestState.SUCCEEDED)
    stored = (
        select(
            requests.c.seq,
            requests.c.run_id,
            requests.c.lane_id,
            runs.c.actor,
            calls.c.digest,
            calls.c.taken,
            calls.c.process.is_(None),
        )
        .join(calls, calls.c.request_seq == requests.c.seq)
        .join(runs, runs.c.id == requests.c.run_id)
    )
    # One by one, because each is a range of the index.
    return sorted(
        Tried(*row)
        for which in (waits, taken)
        for row in among(tx, stored.where(which), calls.c.digest, digests)
    )


def request_of_retry(found: Sequence[Tried], retries: int) -> Tried | None:
    """Return the request that a client's retry joins; ``retries`` is its number, from 1.

    First one that still waits, the first of several, then the newest answer. An answer that a retry
    has received already is for a later retry of the same call, so a first retry never joins it.
    """
    if retries == 1:
        found = [each for each in found if each.taken is None or not each.is_repeated]

    def rank(each: Tried) -> tuple[bool, bool, float]:
        return each.taken is None, each.is_repeated, each.taken or 0.0

    return max(found, key=rank, default=None)


def _change(
    tx: Connection, seqs: Collection[int], *which: ColumnElement[bool], **values: Any
) -> None:
    for some in in_chunks(seqs):
        mine = calls.c.request_seq.in_(some)
        tx.execute(update(calls).where(mine, *which).values(**values))


def take_over(tx: Connection, seqs: Collection[int], own: str) -> None:
    """Set this process as the one that waits for these calls."""
    _change(tx, seqs, process=own, taken=None)


def rows_of(tx: Connection, identifiers: Collection[str]) -> list[int]:
    """Return the row numbers of those of these requests that are stored."""
    return [row.seq for row in among(tx, select(requests.c.seq), requests.c.id, identifiers)]


def let_go(tx: Connection, seqs: Collection[int], own: str) -> None:
    """Let these calls go: no caller waits any more, and an equal call may take them over.

    ``own`` is the process that waited for them. A call that another process has taken over stays
    unchanged.
    """
    _change(tx, seqs, calls.c.process == own, process=None)


def taken_over(tx: Connection, seqs: Collection[int], own: str) -> set[int]:
    """Return those of these calls that another process has taken over, because it waits now."""
    others = select(calls.c.request_seq).where(calls.c.process != own)
    return {row.request_seq for row in among(tx, others, calls.c.request_seq, seqs)}


class Place(NamedTuple):
    """Where a request is that has no answer yet."""

    state: RequestState
    batch_state: BatchState | None
    """None if it is in no batch."""
    remote_id: str | None
    """The API's id of its batch."""

    @property
    def is_unsent(self) -> bool:
        """Whether it is in no batch, or in one that waits to be sent."""
        return self.batch_state in (None, BatchState.PACKED)


UNSENT = Place(RequestState.QUEUED, None, None)


def places_of(tx: Connection, seqs: Collection[int]) -> dict[int, Place]:
    """Return where these requests are, by row number."""
    query = select(
        requests.c.seq, requests.c.state, batches.c.state, batches.c.remote_id
    ).outerjoin(batches, batches.c.id == requests.c.batch_id)
    found: dict[int, Place] = {}
    for seq, state, batch_state, remote_id in among(tx, query, requests.c.seq, seqs):
        in_batch = None if batch_state is None else BatchState(batch_state)
        found[seq] = Place(RequestState(state), in_batch, remote_id)
    return found


def withdraw(tx: Connection, seqs: Collection[int], own: str) -> int:
    """End calls whose callers have left as ``canceled``, provided they cannot have been sent.

    That holds while a call is queued, or in a batch that is still ``packed``. The content of a
    batch is frozen when it becomes ``submitting``, and this transaction and that one exclude each
    other.

    All other calls are let go: a sent call may be billed, and an equal call takes it over. The same
    applies to a conversation between two turns, because its first turns were billed.

    ``own`` is the process that waits for the calls. A call that another process has taken over
    stays unchanged. Returns how many calls were withdrawn.
    """
    carriers: set[int] = set()
    withdrawn = 0
    for some in in_chunks(seqs):
        waits = and_(calls.c.process == own, calls.c.taken.is_(None))
        mine = select(calls.c.request_seq).where(calls.c.request_seq.in_(some), waits)
        unpaid = and_(
            requests.c.seq.in_(mine),
            ~exists().where(conversations.c.request_seq == requests.c.seq),
            # Sent again on order: an earlier sending may still be answered.
            requests.c.seq.not_in(select(former_members.c.request_seq)),
        )
        waiting = select(batches.c.id).where(IS_DIVISIBLE)
        packed = and_(requests.c.state == RequestState.PACKED, requests.c.batch_id.in_(waiting))
        carriers.update(tx.scalars(select(requests.c.batch_id).distinct().where(unpaid, packed)))
        unsent = and_(unpaid, or_(requests.c.state == RequestState.QUEUED, packed))
        withdrawn += transitions.cancel(tx, unsent, by_caller=True)
        ended = select(requests.c.seq).where(
            requests.c.seq.in_(some), requests.c.state == RequestState.CANCELED
        )
        tx.execute(delete(calls).where(calls.c.request_seq.in_(ended)))
        _change(tx, some, waits, process=None)
    for batch_id in carriers:
        recount(tx, batch_id)
    return withdrawn


def mark_taken(
    tx: Connection, seqs: Collection[int], now: float, repeated: Collection[int]
) -> None:
    """Mark the answers of these calls as taken by their callers.

    ``repeated`` are those whose caller was a retry that joined them. Such an answer is marked by
    the absence of a process, see `request_of_retry`.
    """
    _change(tx, seqs, taken=now)
    _change(tx, [seq for seq in seqs if seq in repeated], process=None)


def find_call(tx: Connection, actor: str, key: str) -> Record | None:
    """Return the call of that actor and key; None if it is new.

    Columns: ``seq``, ``run_id``, ``body``, and those of its lane's headers.
    """
    return tx.execute(
        select(
            requests.c.seq,
            requests.c.run_id,
            func.coalesce(conversations.c.first_params, params.c.body).label("body"),
            lanes.c.api_version,
            lanes.c.betas,
            lanes.c.user_profile,
        )
        .select_from(call_keys)
        .join(requests, requests.c.seq == call_keys.c.request_seq)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .join(params, params.c.request_seq == requests.c.seq)
        .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
        .where(call_keys.c.actor == actor, call_keys.c.key == key)
    ).first()


def remember_call(tx: Connection, actor: str, key: str, seq: int) -> None:
    """Bind an actor's key to the request just stored."""
    tx.execute(insert(call_keys).values(actor=actor, key=key, request_seq=seq))
