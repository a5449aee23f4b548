"""Transactions of packing: which requests go into which batch, and how batches are split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    union,
    update,
)

from claude_batch.core.states import IN_FLIGHT, BatchState, RequestState
from claude_batch.ledger import charges, transitions
from claude_batch.ledger.charges import DAY
from claude_batch.ledger.portable_sql import insert_one, total, update_row
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    former_members,
    lanes,
    primers,
    requests,
    runs,
    workspaces,
)
from claude_batch.ledger.store import Record, plain_rows

_QUEUED = requests.c.state == RequestState.QUEUED
# Runs that go to the live API, are being stored, or are within the margin of their deadline. In the
# words of the partial index, so that the runs of years are not read for it.
_UNPACKABLE = select(runs.c.id).where(
    or_(runs.c.stored.is_(None), runs.c.live.is_not(None), runs.c.past_margin.is_not(None))
)
ELIGIBLE: tuple[Any, ...] = (
    _QUEUED,
    requests.c.live.is_(None),
    # Joined with the runs that are packed, PostgreSQL may compare each request with all of years.
    requests.c.run_id.not_in(_UNPACKABLE),
)
"""Conditions for requests that may be packed."""
IS_DIVISIBLE: Any = and_(
    batches.c.state == BatchState.PACKED, batches.c.half_of.is_(None), batches.c.refusal.is_(None)
)
"""Condition for unsent batches from which cancelled requests may be taken.

The halves of a refused batch are compared with each other, so they stay complete."""
_HAS_DEADLINE = and_(runs.c.deadline.is_not(None), runs.c.deadline_closed.is_(None))
# A shared batch cannot be cancelled for one of its runs alone, so a run with a deadline gets
# separate batches.
ALONE: Any = case((_HAS_DEADLINE, runs.c.id), else_="")
"""The run whose requests are packed alone; "" for runs without a deadline, or with a past one."""


def _of_queue(alone: ColumnElement[str]) -> ColumnElement[bool]:
    without = requests.c.run_id.not_in(select(runs.c.id).where(_HAS_DEADLINE))
    return or_(requests.c.run_id == alone, and_(alone == "", without))


OF_QUEUE: ColumnElement[bool] = _of_queue(bindparam("alone", type_=String))
"""The condition for requests whose run has this value of `ALONE`."""
# What decides when and how a run's requests are packed.
_SETTINGS = (
    runs.c.id,
    runs.c.actor,
    runs.c.kind,
    runs.c.mode,
    runs.c.auto_threshold,
    runs.c.request_count,
    runs.c.linger,
    runs.c.max_linger,
    runs.c.max_requests,
    runs.c.max_wait,
    runs.c.parallel_batches,
    runs.c.poll_interval,
    runs.c.max_poll_interval,
    runs.c.prefixed,
    runs.c.created,
    runs.c.deadline,
    runs.c.deadline_margin,
)

LOOK = 2000
"""Requests that are read to find out whether a queue is short; it takes a millisecond."""


class LaneQueue(NamedTuple):
    """Requests that wait in a lane and may share a batch: all of them, or the first.

    A long queue is read in part, since it is looked at once for each of its batches. The part is
    larger than one batch, and than what goes live, so it decides like the whole.
    """

    runs: list[Record]
    """For each run the number of requests, the bytes of their params, their due times, the first
    and the last row number, and its settings.
    """
    is_whole: bool = True

    @property
    def policies(self) -> dict[str, Record]:
        """The runs by their ids."""
        return {run.id: run for run in self.runs}

    @property
    def waiting(self) -> int:
        """The number of requests."""
        return sum(run.waiting for run in self.runs)

    @property
    def params_bytes(self) -> int:
        """Bytes of the params of the requests."""
        return sum(run.params_bytes for run in self.runs)

    @property
    def first_seq(self) -> int:
        """The first row number."""
        return min(run.first_seq for run in self.runs)

    @property
    def last_seq(self) -> int:
        """The last row number."""
        return max(run.last_seq for run in self.runs)


# What a driver asks in every pass is built once.
_OF_WORKSPACE = lanes.c.workspace_id == bindparam("workspace")
_IN_LANE = requests.c.lane_id == bindparam("lane")
_WAITING = select(
    requests.c.lane_id, requests.c.run_id, requests.c.seq, requests.c.size, requests.c.due
).where(
    # A run that is being stored is left out before the sums, which cost more than the rest of the
    # query.
    *ELIGIBLE
)


def _by_run(waiting: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    # The sums are made before the join, which would otherwise be made for each request.
    each = waiting.subquery()
    sums = (
        select(
            each.c.lane_id,
            each.c.run_id,
            func.count().label("waiting"),
            func.sum(each.c.size).label("params_bytes"),
            func.min(each.c.due).label("first_due"),
            func.max(each.c.due).label("last_due"),
            func.min(each.c.seq).label("first_seq"),
            func.max(each.c.seq).label("last_seq"),
        )
        .group_by(each.c.lane_id, each.c.run_id)
        .subquery()
    )
    return select(sums, ALONE.label("alone"), *_SETTINGS).join(runs, runs.c.id == sums.c.run_id)


_WAITING_HERE = _WAITING.where(requests.c.lane_id.in_(select(lanes.c.id).where(_OF_WORKSPACE)))
_ALL_LANES = _by_run(_WAITING_HERE)
_ANY_LANE = _by_run(_WAITING_HERE.limit(bindparam("most")))
_FIRST_OF_LANE = _by_run(_WAITING.where(_IN_LANE).order_by(requests.c.seq).limit(bindparam("most")))
_ALL_OF_LANE = _by_run(_WAITING.where(_IN_LANE))
_LANES = select(lanes.c.id).where(
    _OF_WORKSPACE, exists().where(requests.c.lane_id == lanes.c.id, _QUEUED)
)
_OPEN_DEADLINE = (
    select(runs.c.id)
    .where(
        _HAS_DEADLINE,
        runs.c.cancelled.is_(None),
        runs.c.workspace_id
        == select(lanes.c.workspace_id).where(lanes.c.id == bindparam("lane")).scalar_subquery(),
    )
    .limit(1)
)


def _reads_in_part(tx: Connection) -> bool:
    # For the first rows of a queue, PostgreSQL may go through all requests by their row numbers.
    return tx.dialect.name == "sqlite"


def queues(tx: Connection, workspace_id: int) -> dict[tuple[int, str], LaneQueue]:
    """Return what waits in each lane of a workspace.

    A lane has one queue for its requests without a deadline (run ""), and one for each run with a
    deadline.
    """
    in_part = _reads_in_part(tx)
    which: dict[str, Any] = {"workspace": workspace_id}
    if in_part:
        which["most"] = LOOK
    rows = list(tx.execute(_ANY_LANE if in_part else _ALL_LANES, which))
    if not in_part or sum(row.waiting for row in rows) < LOOK:
        return _by_queue(rows)
    found: dict[tuple[int, str], LaneQueue] = {}
    for lane_id in tx.scalars(_LANES, {"workspace": workspace_id}).all():
        found |= queues_of_lane(tx, lane_id)
    return found


def queues_of_lane(
    tx: Connection, lane_id: int, *, whole: bool = False
) -> dict[tuple[int, str], LaneQueue]:
    """Return the `queues` of one lane; ``whole``: do not stop at a part."""
    most = LOOK
    while not whole and _reads_in_part(tx):
        rows = list(tx.execute(_FIRST_OF_LANE, {"lane": lane_id, "most": most}))
        if sum(row.waiting for row in rows) < most:
            return _by_queue(rows)
        # No batch has more requests than the run of its first request allows.
        first = min(rows, key=lambda row: row.first_seq)
        enough = max(first.max_requests, first.auto_threshold) + 1
        if most >= enough:
            # Requests with prefixes are sorted by them, and a deadline must not wait behind others.
            decides = not any(row.prefixed or row.alone for row in rows)
            if decides and tx.scalar(_OPEN_DEADLINE, {"lane": lane_id}) is None:
                return _by_queue(rows, is_whole=False)
            break
        most = enough
    return _by_queue(list(tx.execute(_ALL_OF_LANE, {"lane": lane_id})))


def _by_queue(rows: Iterable[Record], *, is_whole: bool = True) -> dict[tuple[int, str], LaneQueue]:
    found: dict[tuple[int, str], LaneQueue] = {}
    for row in rows:
        found.setdefault((row.lane_id, row.alone), LaneQueue([], is_whole)).runs.append(row)
    return found


_limited, _counted = runs.alias("limited"), batches.alias("counted")


def _at_limit(states: Sequence[BatchState]) -> Any:
    """Select the runs that have as many batches in these states as ``parallel_batches`` allows."""
    # Literals, because `plain_rows` binds single values only.
    within = _counted.c.state.in_([literal_column(f"'{state}'") for state in states])
    return (
        select(_limited.c.id)
        .join(batch_runs, batch_runs.c.run_id == _limited.c.id)
        .join(_counted, _counted.c.id == batch_runs.c.batch_id)
        .where(_limited.c.parallel_batches.is_not(None), within)
        .group_by(_limited.c.id, _limited.c.parallel_batches)
        .having(func.count() >= _limited.c.parallel_batches)
    )


_FULL = _at_limit((BatchState.PACKED, *IN_FLIGHT))
PACKABLE_NOW: tuple[Any, ...] = (*ELIGIBLE, requests.c.run_id.not_in(_FULL))
"""Like `ELIGIBLE`, without the runs that have as many batches as ``parallel_batches`` allows.

A batch that waits to be sent counts too, because it takes the place of the next one."""
# A split makes two batches of one, so the limit is checked again before one is sent.
_SENDABLE = batches.c.id.not_in(
    select(batch_runs.c.batch_id).where(batch_runs.c.run_id.in_(_at_limit(IN_FLIGHT)))
)


_QUEUED_OF_LANE = (
    select(requests.c.seq, requests.c.size, requests.c.run_id)
    .where(*PACKABLE_NOW, requests.c.lane_id == bindparam("lane"), OF_QUEUE)
    # PostgreSQL may go through all requests by their row numbers: from the first that is queued.
    .where(requests.c.seq >= bindparam("first"))
    .order_by(requests.c.seq)
)


_QUEUED_BY_PREFIX = _QUEUED_OF_LANE.order_by(None).order_by(
    func.coalesce(requests.c.prefix, literal_column("-1")), requests.c.seq
)
_QUEUED_PRIMERS = _QUEUED_OF_LANE.join(primers, primers.c.request_seq == requests.c.seq).where(
    requests.c.attempts == literal_column("0")
)

Selection = Literal["first", "by_prefix", "primers"]
"""Which queued requests of a lane are taken: all in order of arrival; all, those that share a
prefix next to each other; or those that are sent ahead of others for the first time.
"""


def queued_of_lane(
    tx: Connection, lane_id: int, alone: str, which: Selection = "first", first_seq: int = 0
) -> Iterator[tuple[int, int, str]]:
    """Yield queued requests of a lane in the order of the selection: row number, size and run id.

    ``alone`` is the run with a deadline; "" selects requests without one. ``first_seq``: the first
    row number of the queue, if it is known.
    """
    queries = {
        "first": _QUEUED_OF_LANE,
        "by_prefix": _QUEUED_BY_PREFIX,
        "primers": _QUEUED_PRIMERS,
    }
    values = {"lane": lane_id, "alone": alone, "first": first_seq}
    yield from plain_rows(tx, queries[which], values)


def retry_on(tx: Connection, batch_ids: Sequence[int]) -> dict[str, str]:
    """Return what the runs of these batches have retried beside the default, by run id."""
    rows = tx.execute(
        select(runs.c.id, runs.c.retry_on)
        .join(batch_runs, batch_runs.c.run_id == runs.c.id)
        .where(batch_runs.c.batch_id.in_(batch_ids), runs.c.retry_on.is_not(None))
    )
    return {row.id: row.retry_on for row in rows}


def runs_of(tx: Connection, seqs: Sequence[int]) -> dict[int, str]:
    """Return the runs of requests by their row numbers."""
    rows = tx.execute(select(requests.c.seq, requests.c.run_id).where(requests.c.seq.in_(seqs)))
    return {row.seq: row.run_id for row in rows}


def full_runs(tx: Connection) -> set[str]:
    """Return the runs that have as many batches as their ``parallel_batches`` allows."""
    return set(tx.scalars(_FULL))


def batch(tx: Connection, batch_id: int) -> Record:
    """Return one batch with its lane's headers and workspace."""
    return tx.execute(_batch.where(batches.c.id == batch_id)).one()


def some_batches(tx: Connection, batch_ids: Sequence[int]) -> list[Record]:
    """Return these batches as `batch` does, oldest first."""
    return list(tx.execute(_batch.where(batches.c.id.in_(batch_ids)).order_by(batches.c.id)))


_batch = select(
    batches, lanes.c.workspace_id, lanes.c.api_version, lanes.c.betas, lanes.c.user_profile
).join(lanes, lanes.c.id == batches.c.lane_id)


class Cut(msgspec.Struct, frozen=True):
    """The first part of a lane's queue, which makes one batch."""

    last_seq: int
    count: int
    params_bytes: int
    poll_interval: float
    max_poll_interval: float


def pack(
    tx: Connection,
    lane_id: int,
    cut: Cut,
    now: float,
    *,
    alone: str = "",
    which: Selection = "first",
    only: Sequence[int] | None = None,
    first_seq: int = 0,
) -> int:
    """Bind queued requests of a lane to a new batch; return its id.

    They are those of the selection up to the cut's end, or as many of ``by_prefix``.
    ``only``: these row numbers, and no others. ``first_seq`` is as in `queued_of_lane`.
    """
    batch_id = insert_one(
        tx,
        batches,
        lane_id=lane_id,
        state=BatchState.PACKED,
        request_count=cut.count,
        params_bytes=cut.params_bytes,
        poll_interval=cut.poll_interval,
        max_poll_interval=cut.max_poll_interval,
        created=now,
        day=int(now // DAY),
    )
    if only is not None:
        transitions.pack_each(tx, batch_id, only)
        note_runs(tx, batch_id)
        return batch_id
    mine: Any = requests.c.seq.between(first_seq, cut.last_seq)
    if which == "by_prefix":
        chosen = _QUEUED_BY_PREFIX.with_only_columns(requests.c.seq).limit(cut.count).subquery()
        named = {"lane": lane_id, "alone": alone, "first": first_seq}
        mine = requests.c.seq.in_(select(chosen.c.seq).params(**named))
    elif which == "primers":
        ahead = exists().where(primers.c.request_seq == requests.c.seq)
        mine = and_(mine, ahead, requests.c.attempts == 0)
    of_queue = _of_queue(literal(alone, String))
    transitions.pack(
        tx, and_(*PACKABLE_NOW, requests.c.lane_id == lane_id, mine, of_queue), batch_id
    )
    note_runs(tx, batch_id)
    return batch_id


def note_runs(tx: Connection, batch_id: int) -> None:
    """Record which runs have requests in a batch, or had, and reserve what these can cost."""
    present = select(requests.c.run_id).where(requests.c.batch_id == batch_id)
    left_undecided = (
        select(requests.c.run_id)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .where(former_members.c.batch_id == batch_id)
    )
    mine = union(present, left_undecided).subquery()
    tx.execute(delete(batch_runs).where(batch_runs.c.batch_id == batch_id))
    tx.execute(
        insert(batch_runs).from_select(
            ["batch_id", "run_id"],
            select(literal(batch_id), mine.c.run_id),
        )
    )
    charges.reserve(tx, batch_id)


_PACKED = (
    select(batches.c.id)
    .join(lanes, lanes.c.id == batches.c.lane_id)
    .where(batches.c.state == BatchState.PACKED, _OF_WORKSPACE, _SENDABLE)
)
_NEXT_PACKED = _PACKED.where(batches.c.refusal.is_(None)).order_by(batches.c.id).limit(1)
_SMALLEST_PACKED = _PACKED.order_by(
    batches.c.refusal.is_not(None), batches.c.params_bytes, batches.c.id
).limit(1)

_other = batches.alias("other")
_REFUSED_HALVES = (
    select(batches, _other.c.state.label("other_state"), _other.c.refusal.label("other_refusal"))
    .join(lanes, lanes.c.id == batches.c.lane_id)
    .outerjoin(_other, and_(_other.c.half_of == batches.c.half_of, _other.c.id != batches.c.id))
    .where(batches.c.state == BatchState.PACKED, batches.c.refusal.is_not(None), _OF_WORKSPACE)
    .order_by(batches.c.id)
)


def next_packed(tx: Connection, workspace_id: int) -> int | None:
    """Return the oldest batch of a workspace that waits to be sent; None if none does.

    A refused half waits until the outcome of its other half shows whether the API accepts anything.
    """
    return tx.scalar(_NEXT_PACKED, {"workspace": workspace_id})


def refused_halves(tx: Connection, workspace_id: int) -> list[Record]:
    """Return packed batches that the API refused without naming a request, with their other halves.

    The other half's state and refusal are ``other_state`` and ``other_refusal``.
    """
    return list(tx.execute(_REFUSED_HALVES, {"workspace": workspace_id}))


def other_half(tx: Connection, batch_id: int) -> Record | None:
    """Return the other half of the batch that was split; None if this batch is not a half."""
    mine = batches.alias("mine")
    return tx.execute(
        select(batches)
        .join(mine, and_(mine.c.half_of == batches.c.half_of, mine.c.id != batches.c.id))
        .where(mine.c.id == batch_id)
    ).first()


def note_refusal(tx: Connection, batch_id: int, refusal: str) -> None:
    """Store the API's refusal of a batch that named no request."""
    update_row(tx, batches, batch_id, refusal=refusal)


def forget_refusal(tx: Connection, batch_id: int) -> None:
    """Send a refused half again, as an independent batch."""
    update_row(tx, batches, batch_id, refusal=None, half_of=None)


def probe(tx: Connection, workspace_id: int, now: float) -> int | None:
    """Prepare the smallest batch that can be sent: a single request. None if no request waits.

    A request that shares a batch moves to a new one. Requests that were refused before come last.
    """
    batch_id: int | None = tx.scalar(_SMALLEST_PACKED, {"workspace": workspace_id})
    if batch_id is None:
        return None
    smallest = tx.execute(
        select(requests.c.seq)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.size, requests.c.seq)
        .limit(1)
    ).scalar_one()
    return part_off(tx, batch_id, [smallest], now)


def part_off(tx: Connection, batch_id: int, seqs: Sequence[int], now: float) -> int:
    """Move some requests of a batch that was not accepted to a new batch; return that batch's id.

    If it has no others, they stay in it.
    """
    old = batch(tx, batch_id)
    if old.request_count <= len(seqs):
        return batch_id
    mine = requests.c.seq.in_(seqs)
    size = tx.execute(select(func.sum(requests.c.size)).where(mine)).scalar_one()
    part = _part(tx, old, mine, len(seqs), size, now)
    # Earlier POSTs carried them with the others, which stay in their batch without them.
    recount(tx, batch_id)
    return part


def may_be_live() -> ColumnElement[bool]:
    """Return the condition for a run whose requests are, or may soon be, sent live."""
    near = and_(runs.c.deadline.is_not(None), runs.c.fallback == "live")
    return or_(runs.c.mode != "batch", runs.c.live.is_not(None), near)


def may_be_forgotten() -> ColumnElement[bool]:
    """Return the condition for requests that may have been sent live before a ledger was restored.

    A ledger that is recovered has none. The API keeps no list of live calls, so recovery ends such
    requests as lost. They must not end as canceled, which means that nothing was sent, so that a
    retry would send them.
    """
    behind = (
        select(lanes.c.id)
        .join(workspaces, workspaces.c.id == lanes.c.workspace_id)
        .where(workspaces.c.behind.is_not(None))
    )
    goes_live = exists().where(runs.c.id == requests.c.run_id, may_be_live())
    return and_(requests.c.lane_id.in_(behind), goes_live)


def withdraw_cancelled(tx: Connection, batch_id: int) -> bool:
    """Remove requests that must not be sent from an unsent batch; return False if none is left.

    Cancelled requests end. Requests too near to their deadline are queued again, and the queue
    decides what happens to them. The batch's request count and bytes are updated.
    """
    mine = requests.c.batch_id == batch_id
    # Not all runs of years: this is asked for each batch that is sent.
    of_batch = runs.c.id.in_(select(batch_runs.c.run_id).where(batch_runs.c.batch_id == batch_id))
    cancelled = select(runs.c.id).where(runs.c.cancelled.is_not(None), of_batch)
    waits = and_(mine, requests.c.state == RequestState.PACKED)
    by_user = requests.c.cancelled | requests.c.run_id.in_(cancelled)
    gone = transitions.cancel(tx, and_(waits, by_user, ~may_be_forgotten()))
    late = select(runs.c.id).where(runs.c.past_margin.is_not(None), of_batch)
    left = 0
    # Usually there is none, so this avoids a scan of up to a hundred thousand requests.
    if tx.scalar(late.limit(1)) is not None:
        sent = transitions.sent_with(batch_id)
        left = transitions.unpack(tx, and_(waits, requests.c.run_id.in_(late)), sendings=sent)
    if not gone and not left:
        return True
    return recount(tx, batch_id)


def withdraw_runs(tx: Connection, batch_id: int, run_ids: Sequence[str]) -> bool:
    """Queue the requests of some runs of an unsent batch again; return False if none is left."""
    waits = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    mine = and_(waits, requests.c.run_id.in_(run_ids))
    transitions.unpack(tx, mine, sendings=transitions.sent_with(batch_id))
    return recount(tx, batch_id)


def recount(tx: Connection, batch_id: int) -> bool:
    """Update the counts of a batch that was not accepted; dissolve it and return False if empty."""
    count, size = tx.execute(
        select(func.count(), total(requests.c.size)).where(
            requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED
        )
    ).one()
    values: dict[str, Any] = {"request_count": count, "params_bytes": size}
    if not count:
        values["state"] = BatchState.REJECTED
    update_row(tx, batches, batch_id, **values)
    note_runs(tx, batch_id)
    return bool(count)


def split(tx: Connection, batch_id: int, now: float) -> tuple[int, int] | None:
    """Split a batch that was not accepted into halves by bytes; None for a single request."""
    old = batch(tx, batch_id)
    rows = tx.execute(
        select(requests.c.seq, requests.c.size)
        .where(requests.c.batch_id == batch_id)
        .order_by(requests.c.seq)
    ).all()
    if len(rows) < 2:
        return None
    half, cut, first_bytes = old.params_bytes / 2, 0, 0
    while cut < len(rows) - 1 and (cut == 0 or first_bytes + rows[cut].size <= half):
        first_bytes += rows[cut].size
        cut += 1
    halves: list[int] = []
    for part, size in (
        (rows[:cut], first_bytes),
        (rows[cut:], old.params_bytes - first_bytes),
    ):
        mine = and_(requests.c.seq >= part[0].seq, requests.c.seq <= part[-1].seq)
        halves.append(_part(tx, old, mine, len(part), size, now))
    tx.execute(update(batches).where(batches.c.id.in_(halves)).values(half_of=batch_id))
    update_row(tx, batches, batch_id, state=BatchState.REJECTED)
    note_runs(tx, batch_id)
    return halves[0], halves[1]


def _part(tx: Connection, old: Record, which: Any, count: int, size: int, now: float) -> int:
    """Move some requests of a batch that was not accepted to a new batch; return its id."""
    part = insert_one(
        tx,
        batches,
        lane_id=old.lane_id,
        state=BatchState.PACKED,
        request_count=count,
        params_bytes=size,
        poll_interval=old.poll_interval,
        max_poll_interval=old.max_poll_interval,
        created=now,
        day=old.day,
    )
    transitions.move(tx, and_(requests.c.batch_id == old.id, which), part, posts=old.posts)
    note_runs(tx, part)
    return part
