"""Set and show budgets. Needs a ledger, and no API key."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from claude_batch.core.dollars import usd
from claude_batch.core.errors import BudgetScope
from claude_batch.ledger import budgets
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.budget_room import count_under_way, today
from claude_batch.money.prices import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """A budget and its use. Amounts are integer nano-dollars (10⁻⁹ USD)."""

    scope: BudgetScope
    name: str
    """The run's id, the actor's name, or "" for the daily budget."""
    budget: int
    spent: int
    """Cost of the answers."""
    in_doubt: int
    """Possible cost of requests whose answers or prices are unknown."""
    reserved: int
    """Maximum cost of the requests in progress."""

    @property
    def left(self) -> int:
        """Return what may still be reserved; negative if the budget was lowered."""
        return self.budget - self.spent - self.in_doubt - self.reserved

    @property
    def budget_usd(self) -> Decimal:
        """`budget` in dollars, exactly."""
        return usd(self.budget)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = asdict(self)
        values["left"] = self.left
        for name in ("budget", "spent", "in_doubt", "reserved", "left"):
            values[f"{name}_usd"] = values[name] / 1e9
        return values


def budget_statuses(
    ledger: Ledger, scope: BudgetScope | None = None, name: str = ""
) -> list[BudgetStatus]:
    """Return every budget of the ledger, or one."""
    with ledger.read() as tx:
        found = budgets.all_budgets(tx, today(time.time()))
    return [
        BudgetStatus(
            scope=each.scope,
            name=each.name,
            budget=each.amount,
            spent=each.spent,
            in_doubt=each.doubt,
            reserved=each.reserved,
        )
        for each in found
        if scope is None or (each.scope, each.name) == (scope, name)
    ]


def set_budget(
    ledger: Ledger, scope: BudgetScope, name: str, amount: int | None, prices: Prices
) -> None:
    """Set, raise or lower a budget (nano-dollars), or remove it (None).

    Earlier requests count towards it. The ledger's driver notices the change at once.
    """
    with ledger.write() as tx:
        budgets.set_amount(tx, scope, name, amount)
    if amount is not None:
        count_under_way(ledger, None, prices, [(scope, name)], time.time())
