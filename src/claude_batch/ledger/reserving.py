"""Reservations of single requests: learned where nobody has asked before, and those that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select, update

from claude_batch.core.states import RequestState
from claude_batch.ledger.schema import former_members, params, requests, runs
from claude_batch.ledger.store import plain_rows

__all__ = [
    "Source",
    "Waiting",
    "lane_totals",
    "put_reserves",
    "reserved_of_lane",
    "unreserved",
    "waiting_of",
]

PAGE = 1000
"""Requests whose params are read at once."""

_BODIES = (
    select(requests.c.seq, params.c.body)
    .join(params, params.c.request_seq == requests.c.seq)
    .where(requests.c.reserve.is_(None), requests.c.seq > bindparam("after"))
    .order_by(requests.c.seq)
    .limit(PAGE)
)
_OF_BATCH = _BODIES.where(requests.c.batch_id == bindparam("of"))
_FORMER = _BODIES.join(former_members, former_members.c.request_seq == requests.c.seq).where(
    former_members.c.batch_id == bindparam("of")
)
_QUEUED = _BODIES.where(
    requests.c.lane_id == bindparam("of"), requests.c.state == RequestState.QUEUED
)

Source = Literal["batch", "former", "lane"]
_SOURCES: dict[str, Any] = {"batch": _OF_BATCH, "former": _FORMER, "lane": _QUEUED}


def unreserved(
    tx: Connection, source: Source, identifier: int, after: int
) -> list[tuple[int, bytes]]:
    """A page of the requests of a batch, or of a lane's queue, whose reservations nobody knows.

    Row numbers above ``after``, and params; empty at the end.
    """
    values = {"of": identifier, "after": after}
    return [(seq, body) for seq, body in plain_rows(tx, _SOURCES[source], values)]


_PUT = (
    update(requests)
    .where(requests.c.seq == bindparam("of_seq"), requests.c.reserve.is_(None))
    .values(reserve=bindparam("of_reserve"))
)


def put_reserves(tx: Connection, reserves: Sequence[tuple[int, int]]) -> None:
    """Note reservations (nano-dollars; -1 where there is no bound) of requests by row number."""
    if reserves:
        tx.execute(_PUT, [{"of_seq": seq, "of_reserve": amount} for seq, amount in reserves])


# What waits ------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """The queued requests of a run, by their reservations in nano-dollars."""

    requests: int
    total: int
    smallest: int | None
    """The smallest known one; None where none is known."""
    unknown: int
    """Requests whose reservation nobody has asked for yet."""
    unbounded: int
    """Requests of which nothing tells what they can cost."""


_KNOWN = requests.c.reserve >= 0
_TOTALS = (
    func.count(),
    func.coalesce(func.sum(case((_KNOWN, requests.c.reserve), else_=0)), 0),
    func.min(case((_KNOWN, requests.c.reserve))),
    func.coalesce(func.sum(case((requests.c.reserve.is_(None), 1), else_=0)), 0),
    func.coalesce(func.sum(case((requests.c.reserve < 0, 1), else_=0)), 0),
)


def lane_totals(tx: Connection, lane_id: int) -> dict[str, Waiting]:
    """What waits in a lane, by run."""
    rows = tx.execute(
        select(requests.c.run_id, *_TOTALS)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(
            requests.c.state == RequestState.QUEUED,
            requests.c.lane_id == lane_id,
            runs.c.stored.is_not(None),
        )
        .group_by(requests.c.run_id)
    )
    return {str(run_id): Waiting(*rest) for run_id, *rest in rows}


def waiting_of(tx: Connection, run_id: str) -> Waiting:
    """What of a run waits."""
    return Waiting(
        *tx.execute(
            select(*_TOTALS).where(
                requests.c.run_id == run_id, requests.c.state == RequestState.QUEUED
            )
        ).one()
    )


def reserved_of_lane(
    tx: Connection, lane_id: int, bounded: Sequence[str], most: int, free: Sequence[str]
) -> Iterator[tuple[int, int, str, int]]:
    """Queued requests of a lane, in order: row number, size, run and reservation.

    Those of the runs ``bounded`` that reserve ``most`` at most, and all of the runs ``free``.
    """
    rows = tx.execute(
        select(
            requests.c.seq,
            requests.c.size,
            requests.c.run_id,
            func.coalesce(requests.c.reserve, 0),
        )
        .where(
            requests.c.state == RequestState.QUEUED,
            requests.c.lane_id == lane_id,
            or_(
                and_(requests.c.run_id.in_(bounded), requests.c.reserve.between(0, most)),
                requests.c.run_id.in_(free),
            ),
        )
        .order_by(requests.c.seq)
        .execution_options(yield_per=1000)
    )
    for row in rows:
        yield row[0], row[1], row[2], row[3]
