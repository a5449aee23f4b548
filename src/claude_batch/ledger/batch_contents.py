"""Transactions of packing: which requests travel in which batch, and how batches are parted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import transitions
from claude_batch.ledger.budgets import DAY, reserved_sum
from claude_batch.ledger.schema import batch_runs, batches, lanes, primers, requests, runs
from claude_batch.ledger.store import Record, plain_rows

__all__ = [
    "ALONE",
    "ELIGIBLE",
    "batch",
    "due_lanes",
    "forget_refusal",
    "next_packed",
    "note_refusal",
    "other_half",
    "pack",
    "part_off",
    "policies",
    "probe",
    "queue_totals",
    "queued_by_prefix",
    "queued_of_lane",
    "queued_primers",
    "recount",
    "refused_halves",
    "split",
    "withdraw_cancelled",
]

_QUEUED = requests.c.state == RequestState.QUEUED
# What goes to the live API, and what came too near to its deadline, is in no batch any more.
_PACKABLE = (runs.c.stored.is_not(None), runs.c.live.is_(None), runs.c.past_margin.is_(None))
ELIGIBLE: tuple[Any, ...] = (_QUEUED, requests.c.live.is_(None), *_PACKABLE)
"""What may be packed at all, of requests joined to their runs."""
# A batch that is shared cannot be cancelled for one of its runs alone: a run with a deadline gets
# batches of its own.
ALONE: Any = case((runs.c.deadline.is_not(None), runs.c.id), else_="")
"""The run whose requests travel alone; "" for those without a deadline."""


def due_lanes(tx: Connection, workspace_id: int, now: float) -> list[tuple[int, str, float]]:
    """Lanes with queued requests, each with the earliest time that one asks to be packed at.

    A lane stands there once for its requests without a deadline (run ""), and once for each run
    that has one.
    """
    # One that is due later than its linger lasts was queued before the clock jumped back.
    due = case((requests.c.due > now + runs.c.linger + 1, now), else_=requests.c.due)
    rows = tx.execute(
        select(requests.c.lane_id, ALONE, func.min(due))
        .join(runs, runs.c.id == requests.c.run_id)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .where(*ELIGIBLE, lanes.c.workspace_id == workspace_id)
        .group_by(requests.c.lane_id, ALONE)
    )
    return [(int(lane), str(run), float(due)) for lane, run, due in rows]


_QUEUED_OF_LANE = (
    select(requests.c.seq, requests.c.size, requests.c.run_id)
    .join(runs, runs.c.id == requests.c.run_id)
    .where(*ELIGIBLE, requests.c.lane_id == bindparam("lane"), bindparam("alone") == ALONE)
    .order_by(requests.c.seq)
)


def queued_of_lane(tx: Connection, lane_id: int, alone: str = "") -> Iterator[tuple[int, int, str]]:
    """Queued requests of a lane in the order they came: row number, size and run id.

    ``alone`` is the run with a deadline that they are of; "" for those without one.
    """
    yield from plain_rows(tx, _QUEUED_OF_LANE, {"lane": lane_id, "alone": alone})


_by_prefix = (func.coalesce(requests.c.prefix, literal_column("-1")), requests.c.seq)
_QUEUED_BY_PREFIX = (
    select(requests.c.seq, requests.c.size, requests.c.run_id)
    .join(runs, runs.c.id == requests.c.run_id)
    .where(*ELIGIBLE, requests.c.lane_id == bindparam("lane"), bindparam("alone") == ALONE)
    .order_by(*_by_prefix)
)


def queued_by_prefix(
    tx: Connection, lane_id: int, alone: str = ""
) -> Iterator[tuple[int, int, str]]:
    """`queued_of_lane`, but those that share a prefix follow each other."""
    yield from plain_rows(tx, _QUEUED_BY_PREFIX, {"lane": lane_id, "alone": alone})


def queued_primers(tx: Connection, lane_id: int, alone: str = "") -> list[tuple[int, int, str]]:
    """The queued requests of a lane that go ahead of others for the first time."""
    rows = tx.execute(
        select(requests.c.seq, requests.c.size, requests.c.run_id)
        .join(runs, runs.c.id == requests.c.run_id)
        .join(primers, primers.c.request_seq == requests.c.seq)
        .where(*ELIGIBLE, requests.c.lane_id == lane_id, alone == ALONE, requests.c.attempts == 0)
        .order_by(requests.c.seq)
    )
    return [(row.seq, row.size, row.run_id) for row in rows]


def queue_totals(tx: Connection, lane_id: int, alone: str = "") -> tuple[int, int, int]:
    """Of a lane's queued requests: their number, the bytes of their params, the last row number."""
    count, size, last = tx.execute(
        select(
            func.count(),
            func.coalesce(func.sum(requests.c.size), 0),
            func.coalesce(func.max(requests.c.seq), 0),
        )
        .select_from(requests)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(*ELIGIBLE, requests.c.lane_id == lane_id, alone == ALONE)
    ).one()
    return count, size, last


def policies(tx: Connection, lane_id: int, alone: str = "") -> dict[str, Record]:
    """The runs that have queued requests in a lane, with their policies, by run id."""
    queued = exists().where(
        requests.c.run_id == runs.c.id,
        _QUEUED,
        requests.c.live.is_(None),
        requests.c.lane_id == lane_id,
    )
    rows = tx.execute(select(runs).where(*_PACKABLE, alone == ALONE, queued))
    return {row.id: row for row in rows}


def batch(tx: Connection, batch_id: int) -> Record:
    """One batch with its lane's headers and workspace."""
    return tx.execute(
        select(
            batches, lanes.c.workspace_id, lanes.c.api_version, lanes.c.betas, lanes.c.user_profile
        )
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(batches.c.id == batch_id)
    ).one()


def pack(
    tx: Connection,
    lane_id: int,
    *,
    last_seq: int,
    count: int,
    params_bytes: int,
    poll_interval: float,
    max_poll_interval: float,
    now: float,
    alone: str = "",
    which: Literal["first", "by_prefix", "primers"] = "first",
    only: Sequence[int] | None = None,
) -> int:
    """Bind a lane's queued requests up to ``last_seq`` to a new batch; returns its id.

    ``which``: ``by_prefix`` means the first ``count`` in the order of `queued_by_prefix` instead,
    ``primers`` those of `queued_primers` alone. ``only``: these row numbers, and no others.
    """
    batch_id = _insert_batch(
        tx, lane_id, count, params_bytes, poll_interval, max_poll_interval, now, int(now // DAY)
    )
    if only is not None:
        transitions.pack_each(tx, _QUEUED, batch_id, only)
        _note_runs(tx, batch_id)
        return batch_id
    eligible_runs = select(runs.c.id).where(*_PACKABLE, alone == ALONE)
    mine: Any = requests.c.seq <= last_seq
    if which == "by_prefix":
        chosen = _QUEUED_BY_PREFIX.with_only_columns(requests.c.seq).limit(count).subquery()
        mine = requests.c.seq.in_(select(chosen.c.seq).params(lane=lane_id, alone=alone))
    elif which == "primers":
        ahead = exists().where(primers.c.request_seq == requests.c.seq)
        mine = and_(mine, ahead, requests.c.attempts == 0)
    chosen = and_(
        _QUEUED,
        requests.c.live.is_(None),
        requests.c.lane_id == lane_id,
        mine,
        requests.c.run_id.in_(eligible_runs),
    )
    transitions.pack(tx, chosen, batch_id)
    _note_runs(tx, batch_id)
    return batch_id


def _insert_batch(
    tx: Connection,
    lane_id: int,
    count: int,
    params_bytes: int,
    poll_interval: float,
    max_poll_interval: float,
    now: float,
    day: int | None,
) -> int:
    result = tx.execute(
        insert(batches).values(
            lane_id=lane_id,
            state=BatchState.PACKED,
            request_count=count,
            params_bytes=params_bytes,
            poll_interval=poll_interval,
            max_poll_interval=max_poll_interval,
            created=now,
            day=day,
        )
    )
    key: Any = result.inserted_primary_key
    return int(key[0])


def _note_runs(tx: Connection, batch_id: int) -> None:
    tx.execute(delete(batch_runs).where(batch_runs.c.batch_id == batch_id))
    tx.execute(
        insert(batch_runs).from_select(
            ["batch_id", "run_id", "reserved"],
            select(
                requests.c.batch_id,
                requests.c.run_id,
                reserved_sum(requests.c.reserve, requests.c.state == RequestState.PACKED),
            )
            .where(requests.c.batch_id == batch_id)
            .group_by(requests.c.batch_id, requests.c.run_id),
        )
    )


def _packed_of(workspace_id: int) -> Any:
    return (
        select(batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(batches.c.state == BatchState.PACKED, lanes.c.workspace_id == workspace_id)
    )


def next_packed(tx: Connection, workspace_id: int) -> int | None:
    """The oldest batch of a workspace that waits to be sent; None where none does.

    A half that was refused waits until its other half tells whether the API takes anything.
    """
    return tx.scalar(
        _packed_of(workspace_id).where(batches.c.refusal.is_(None)).order_by(batches.c.id).limit(1)
    )


def refused_halves(tx: Connection, workspace_id: int) -> list[Record]:
    """Packed batches that the API refused without naming a request, each with its other half.

    The other half's state and refusal are ``other_state`` and ``other_refusal``.
    """
    other = batches.alias("other")
    return list(
        tx.execute(
            select(
                batches,
                other.c.state.label("other_state"),
                other.c.refusal.label("other_refusal"),
            )
            .join(lanes, lanes.c.id == batches.c.lane_id)
            .outerjoin(
                other, and_(other.c.half_of == batches.c.half_of, other.c.id != batches.c.id)
            )
            .where(
                batches.c.state == BatchState.PACKED,
                batches.c.refusal.is_not(None),
                lanes.c.workspace_id == workspace_id,
            )
            .order_by(batches.c.id)
        )
    )


def other_half(tx: Connection, batch_id: int) -> Record | None:
    """The batch that was parted from the same one; None for a batch that is no half."""
    mine = batches.alias("mine")
    return tx.execute(
        select(batches)
        .join(mine, and_(mine.c.half_of == batches.c.half_of, mine.c.id != batches.c.id))
        .where(mine.c.id == batch_id)
    ).first()


def note_refusal(tx: Connection, batch_id: int, refusal: str) -> None:
    """Keep what was said of a batch without naming a request of it."""
    tx.execute(update(batches).where(batches.c.id == batch_id).values(refusal=refusal))


def forget_refusal(tx: Connection, batch_id: int) -> None:
    """Send a refused half again, as a batch of its own."""
    tx.execute(update(batches).where(batches.c.id == batch_id).values(refusal=None, half_of=None))


def probe(tx: Connection, workspace_id: int, now: float) -> int | None:
    """Prepare the smallest batch that can be sent: a single request; None where nothing waits.

    Where it is in company it gets a batch of its own. What was refused before comes last.
    """
    batch_id: int | None = tx.scalar(
        _packed_of(workspace_id)
        .order_by(batches.c.refusal.is_not(None), batches.c.params_bytes, batches.c.id)
        .limit(1)
    )
    if batch_id is None:
        return None
    smallest = tx.execute(
        select(requests.c.seq)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.size, requests.c.seq)
        .limit(1)
    ).scalar_one()
    return part_off(tx, batch_id, smallest, now)


def part_off(tx: Connection, batch_id: int, seq: int, now: float) -> int:
    """Give one request of a batch that was not taken a batch of its own; returns that one's id."""
    old = batch(tx, batch_id)
    if old.request_count < 2:
        return batch_id
    mine = requests.c.seq == seq
    size = tx.execute(select(requests.c.size).where(mine)).scalar_one()
    part = _part(tx, old, mine, 1, size, now)
    # It was sent with the others so far, and they go on without it.
    recount(tx, batch_id)
    return part


def withdraw_cancelled(tx: Connection, batch_id: int) -> bool:
    """Take out of a batch that was not sent what shall not be; False where nothing is left.

    Cancelled requests end; those whose deadline is too near are queued again, for what becomes of
    them there. Count and bytes of the batch are counted again.
    """
    mine = requests.c.batch_id == batch_id
    cancelled = select(runs.c.id).where(runs.c.cancelled.is_not(None))
    waits = and_(mine, requests.c.state == RequestState.PACKED)
    by_user = requests.c.cancelled | requests.c.run_id.in_(cancelled)
    gone = transitions.cancel(tx, and_(waits, by_user))
    late = select(runs.c.id).where(
        runs.c.past_margin.is_not(None),
        runs.c.id.in_(select(batch_runs.c.run_id).where(batch_runs.c.batch_id == batch_id)),
    )
    left = 0
    # Mostly there is none, and a hundred thousand requests need not be looked at for it.
    if tx.scalar(late.limit(1)) is not None:
        posts = select(batches.c.posts).where(batches.c.id == batch_id).scalar_subquery()
        sent = requests.c.sendings + posts
        left = transitions.unpack(tx, and_(waits, requests.c.run_id.in_(late)), sendings=sent)
    if not gone and not left:
        return True
    return recount(tx, batch_id)


def recount(tx: Connection, batch_id: int) -> bool:
    """Count what a batch that was not taken still holds; False, and dissolved, where nothing."""
    count, size = tx.execute(
        select(func.count(), func.coalesce(func.sum(requests.c.size), 0)).where(
            requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED
        )
    ).one()
    values: dict[str, Any] = {"request_count": count, "params_bytes": size}
    if not count:
        values["state"] = BatchState.REJECTED
    tx.execute(update(batches).where(batches.c.id == batch_id).values(**values))
    _note_runs(tx, batch_id)
    return bool(count)


def split(tx: Connection, batch_id: int, now: float) -> tuple[int, int] | None:
    """Part a batch that was not taken into two halves by bytes; None for a single request."""
    old = batch(tx, batch_id)
    rows = tx.execute(
        select(requests.c.seq, requests.c.size)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.seq)
    ).all()
    if len(rows) < 2:
        return None
    total, cut, first_bytes = old.params_bytes, 0, 0
    while cut < len(rows) - 1 and (cut == 0 or first_bytes + rows[cut].size <= total / 2):
        first_bytes += rows[cut].size
        cut += 1
    halves: list[int] = []
    for part, size in ((rows[:cut], first_bytes), (rows[cut:], total - first_bytes)):
        mine = and_(requests.c.seq >= part[0].seq, requests.c.seq <= part[-1].seq)
        halves.append(_part(tx, old, mine, len(part), size, now))
    tx.execute(update(batches).where(batches.c.id.in_(halves)).values(half_of=batch_id))
    tx.execute(update(batches).where(batches.c.id == batch_id).values(state=BatchState.REJECTED))
    _note_runs(tx, batch_id)
    return halves[0], halves[1]


def _part(tx: Connection, old: Record, which: Any, count: int, size: int, now: float) -> int:
    """Move some requests of a batch that was not taken to a new batch; returns its id."""
    part = _insert_batch(
        tx, old.lane_id, count, size, old.poll_interval, old.max_poll_interval, now, old.day
    )
    transitions.move(tx, and_(requests.c.batch_id == old.id, which), part, posts=old.posts)
    _note_runs(tx, part)
    return part
