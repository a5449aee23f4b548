"""Reservations of live calls in budgets. Each call reserves alone, in its run's row for the day.

From its claim on, a call's reservation at the live price is in ``requests.reserve``. Rows of
`batch_runs` change with each call, and only if a budget has asked for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, case, func, select, update

from claude_batch.core.states import RequestState
from claude_batch.ledger.budgets import UNBOUNDED, any_budget
from claude_batch.ledger.schema import batch_runs, requests, results

_RESERVE = case((requests.c.reserve < 0, UNBOUNDED), else_=func.coalesce(requests.c.reserve, 0))


def _row(batch_id: int, seq: int) -> Any:
    """Return the condition for the row that counts a live call; no row matches without a budget."""
    run_id = select(requests.c.run_id).where(requests.c.seq == seq).scalar_subquery()
    return and_(
        batch_runs.c.batch_id == batch_id,
        batch_runs.c.run_id == run_id,
        batch_runs.c.reserved.is_not(None),
    )


def _reserve_of(seq: int) -> Any:
    return select(_RESERVE).where(requests.c.seq == seq).scalar_subquery()


def call_left(tx: Connection, batch_id: int, seq: int) -> None:
    """Reserve the amount of a live call that is about to be made.

    Its ``reserve`` must be stored already.
    """
    tx.execute(
        update(batch_runs)
        .where(_row(batch_id, seq))
        .values(reserved=batch_runs.c.reserved + _reserve_of(seq))
    )


def call_ended(
    tx: Connection, batch_id: int, seq: int, *, cost: int | None, answered: bool, lost: bool
) -> None:
    """Settle a live call that has ended: its reservation is spent, kept or released.

    An answer without a price may have cost as much as its reservation; so may a ``lost`` call.
    """
    reserve = _reserve_of(seq)
    doubt = lost or (answered and cost is None)
    tx.execute(
        update(batch_runs)
        .where(_row(batch_id, seq))
        .values(
            reserved=batch_runs.c.reserved - reserve,
            spent=func.coalesce(batch_runs.c.spent, 0) + ((cost or 0) if answered else 0),
            kept=func.coalesce(batch_runs.c.kept, 0) + (reserve if doubt else 0),
        )
    )


def calls_lost(tx: Connection, seqs: Sequence[int]) -> None:
    """Keep the reservations of live calls that were under way when their driver ended."""
    if any_budget(tx):
        for seq in seqs:
            batch_id = tx.execute(
                select(requests.c.batch_id).where(requests.c.seq == seq)
            ).scalar_one()
            call_ended(tx, batch_id, seq, cost=None, answered=False, lost=True)


def count_calls(tx: Connection, batch_id: int) -> None:
    """Sum what live calls made before a budget asked have cost, and may still cost."""
    mine = requests.c.batch_id == batch_id, requests.c.run_id == batch_runs.c.run_id

    def reserved(*of: Any) -> Any:
        of_call = select(func.coalesce(func.sum(_RESERVE), 0)).where(*mine, *of)
        return of_call.correlate(batch_runs).scalar_subquery()

    spent = (
        select(func.coalesce(func.sum(results.c.cost), 0))
        .join(requests, requests.c.seq == results.c.request_seq)
        .where(results.c.batch_id == batch_id, requests.c.run_id == batch_runs.c.run_id)
        .correlate(batch_runs)
        .scalar_subquery()
    )
    tx.execute(
        update(batch_runs)
        .where(batch_runs.c.batch_id == batch_id, batch_runs.c.reserved.is_(None))
        .values(
            reserved=reserved(requests.c.state == RequestState.PACKED),
            spent=spent,
            kept=reserved(requests.c.state == RequestState.LOST),
        )
    )
