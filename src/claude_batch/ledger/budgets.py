"""Budgets: limits in dollars for a run, an actor or a day, and how much of them is used.

What a budget has left is its amount less three sums over `claude_batch.ledger.charges`. The
transaction that packs requests also reads these sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from claude_batch.core.errors import BudgetScope
from claude_batch.ledger import charges
from claude_batch.ledger.schema import batch_runs, budgets, meta, runs
from claude_batch.ledger.schema import charges as charges_table
from claude_batch.ledger.store import Record

_ORDER = {"run": 0, "actor": 1, "day": 2}


class Budget(NamedTuple):
    """A budget with its current sums, in nano-dollars."""

    scope: BudgetScope
    name: str
    """The run's id, the actor's name, or "" for the budget of the day."""
    amount: int
    spent: int
    """Cost of the answers whose price is known."""
    doubt: int
    """Amount that may have been billed without proof. It is released only if that is disproved."""
    reserved: int
    """The most that requests under way can cost."""
    warned: int = 0

    @property
    def left(self) -> int:
        """Amount that can be reserved now; negative if the budget was lowered."""
        return self.amount - self.spent - self.doubt - self.reserved


def set_amount(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> None:
    """Set, raise or lower a budget in nano-dollars; None removes it."""
    mine = and_(budgets.c.scope == scope, budgets.c.name == name)
    removed = _removed(scope, name)
    declared = tx.scalar(select(budgets.c.declared).where(mine))
    tx.execute(delete(meta).where(meta.c.name == removed))
    if amount is None:
        tx.execute(delete(budgets).where(mine))
        if declared is not None:
            tx.execute(insert(meta).values(name=removed, value=str(declared)))
    elif not tx.execute(update(budgets).where(mine).values(amount=amount, warned=0)).rowcount:
        tx.execute(insert(budgets).values(scope=scope, name=name, amount=amount, warned=0))


def forget_run(tx: Connection, run_id: str) -> None:
    """Remove the budget of a run that leaves the ledger, and what `set_amount` recorded of it."""
    tx.execute(delete(budgets).where(budgets.c.scope == "run", budgets.c.name == run_id))
    tx.execute(delete(meta).where(meta.c.name == _removed("run", run_id)))


def _removed(scope: BudgetScope, name: str) -> str:
    """Return the name of the meta row with the amount that was declared of a removed budget."""
    return f"removed budget of {scope} {name}"


def declare(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> None:
    """Declare a budget from a flag, a keyword or an actor's YAML; None declares nothing.

    Declaring the same amount as last time changes nothing, because the budget may have been raised
    or removed since.
    """
    mine = and_(budgets.c.scope == scope, budgets.c.name == name)
    if amount is None or tx.scalar(select(budgets.c.declared).where(mine)) == amount:
        return
    removed = tx.scalar(select(meta.c.value).where(meta.c.name == _removed(scope, name)))
    if removed == str(amount):
        return
    set_amount(tx, scope, name, amount)
    tx.execute(update(budgets).where(mine).values(declared=amount))


def _rows(tx: Connection, run_id: str | None, actor: str) -> Sequence[Record]:
    return tx.execute(
        select(budgets).where(
            or_(
                and_(budgets.c.scope == "run", budgets.c.name == run_id),
                and_(budgets.c.scope == "actor", budgets.c.name == actor),
                budgets.c.scope == "day",
            )
        )
    ).all()


def amounts(tx: Connection, run_id: str | None, actor: str) -> dict[BudgetScope, int]:
    """Return the budget amounts of a run, its actor and the day, by scope.

    Scopes without a budget are left out.
    """
    return {row.scope: row.amount for row in _rows(tx, run_id, actor)}


# Sums ---------------------------------------------------------------------------------------------


def _stand(tx: Connection, row: Record, day: int) -> Budget:
    concerned = {
        "run": charges_table.c.run_id == row.name,
        "actor": charges_table.c.actor == row.name,
        "day": charges_table.c.day == day,
    }[row.scope]
    spent, doubt, reserved = tx.execute(
        select(
            func.coalesce(func.sum(charges_table.c.spent), 0),
            func.coalesce(func.sum(charges_table.c.doubt), 0),
            func.coalesce(func.sum(charges_table.c.reserved), 0),
        ).where(concerned)
    ).one()
    return Budget(row.scope, row.name, row.amount, spent, doubt, reserved, row.warned)


def budgets_of(tx: Connection, run_id: str, actor: str, day: int) -> list[Budget]:
    """Return the budgets that apply to a run's requests; usually none."""
    rows = _rows(tx, run_id, actor)
    return [_stand(tx, row, day) for row in sorted(rows, key=lambda row: _ORDER[row.scope])]


def all_budgets(tx: Connection, day: int) -> list[Budget]:
    """Return every budget of the ledger."""
    rows = tx.execute(select(budgets).order_by(budgets.c.scope, budgets.c.name)).all()
    return [_stand(tx, row, day) for row in rows]


def uncounted(tx: Connection, of: Sequence[tuple[str, str]], day: int) -> list[tuple[int, str]]:
    """Return the batches that these budgets (scope, name) cover but that are not charged yet.

    Each batch comes with its state.
    """

    def concerned(scope: str, name: str) -> ColumnElement[bool]:
        if scope == "run":
            return batch_runs.c.run_id == name
        return runs.c.actor == name if scope == "actor" else charges.of_day(day)

    return charges.uncounted(tx, or_(*(concerned(scope, name) for scope, name in of)))


def charged_runs(tx: Connection, batch_id: int) -> list[tuple[str, str]]:
    """Return the runs, each with its actor, that a batch is charged to."""
    query = select(charges_table.c.run_id, charges_table.c.actor)
    return [(row[0], row[1]) for row in tx.execute(query.where(charges.of_batch(batch_id)))]


def note_warned(tx: Connection, budget: Budget, percent: int) -> None:
    """Record the percentage of a budget that the last warning reported."""
    mine = and_(budgets.c.scope == budget.scope, budgets.c.name == budget.name)
    tx.execute(update(budgets).where(mine).values(warned=percent))
