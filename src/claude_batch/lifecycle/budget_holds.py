"""Runs that a budget holds: why their queued requests wait, and the error for their callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from claude_batch.core.errors import BudgetExceededError, BudgetScope
from claude_batch.core.quantities import count_of, usd, write_usd
from claude_batch.core.settings import naming_ledger
from claude_batch.ledger import budgets, charges, queries
from claude_batch.ledger.budgets import Budget, Waiting
from claude_batch.ledger.store import Transaction
from claude_batch.lifecycle.budget_room import today, whose


class Held(NamedTuple):
    """The reason why requests of a run wait for a budget. Money is in nano-dollars.

    Its fields are those of `held` in the output of `status --json`.
    """

    requests: int
    """Number of queued requests of the run, none of which fits now."""
    scope: BudgetScope
    name: str
    amount: int
    spent: int
    """Amount that was paid, or may have been paid for calls without a known end."""
    reserved: int
    """Highest possible cost of the work in progress; the unused part is released."""
    kept: int
    """Amount that the run keeps for the next turns of its conversations in progress."""
    needed: int | None
    """Amount that the smallest request needs, or None if no bound is known for any of them."""
    for_good: bool
    """Whether only a changed budget helps: neither the work in progress nor the next day would make
    room.
    """

    def describe(self, run_id: str) -> str:
        """Return a message that names the budget and the command that changes it."""
        spent, reserved = write_usd(self.spent), write_usd(self.reserved)
        kept = f", {write_usd(self.kept)} kept for next turns" if self.kept else ""
        words = (
            f"{count_of(self.requests, 'request is', 'requests are')} held: "
            f"{whose(self.scope, self.name)} is "
            f"{write_usd(self.amount)}, {spent} of it spent, {reserved} reserved{kept}; "
        )
        if self.needed is None:
            return (
                f"{words}the most that they can cost is unknown, so it cannot be reserved; "
                "give a price (--prices) or a limit, or remove the budget"
            )
        change = {
            "run": f"raise it with `claude-batch budget {run_id} USD`",
            "actor": f"raise it with `claude-batch budget --actor {self.name} USD`",
            "day": "raise it with `claude-batch budget --daily USD`",
        }[self.scope]
        if not self.for_good:
            # Answers are awaited, and most of them cost less than was reserved for them.
            waits = "wait for the next day" if self.scope == "day" else "wait for earlier answers"
            change = f"{waits}, or {change}"
        return f"{words}the smallest may cost {write_usd(self.needed)}; {change}"


def held_of(tx: Transaction, run_id: str, now: float) -> Held | None:
    """Return what holds a run's queued requests; `None` if nothing does or none is queued."""
    if not charges.any_budget(tx):
        return None
    run = queries.run_row(tx, run_id)
    each = budgets.budgets_of(tx, run_id, run.actor, today(now))
    if not each or run.stored is None:
        return None
    waits = budgets.waiting_of(tx, run_id)
    if not waits.requests or waits.unknown:
        return None
    return _held(each, waits, budgets.kept_for_turns(tx, run_id) or 0)


def _held(each: Sequence[Budget], waits: Waiting, kept: int) -> Held | None:
    smallest = waits.smallest
    short = [budget for budget in each if smallest is None or smallest + kept > budget.left]
    if not short:
        return None
    for_good = [budget for budget in short if _holds_for_good(budget, smallest)]
    tightest = min(for_good or short, key=lambda budget: budget.left)
    return Held(
        waits.requests,
        *tightest.key,
        amount=tightest.amount,
        spent=tightest.gone,
        reserved=tightest.reserved,
        kept=kept,
        needed=smallest,
        for_good=bool(for_good),
    )


def _holds_for_good(budget: Budget, smallest: int | None) -> bool:
    """Return whether a budget never fits the smallest request, unless it is changed."""
    if smallest is None:
        return True
    # The next day begins with nothing spent.
    spent = 0 if budget.scope == "day" else budget.gone
    return spent + smallest > budget.amount


def held_error(run_id: str, held: Held, location: str) -> BudgetExceededError:
    """Return the error of a run that can only continue with another budget.

    ``location`` is that of its ledger.
    """
    words = naming_ledger(held.describe(run_id), location)
    return BudgetExceededError(
        f"{run_id}: {words}. Nothing was marked failed",
        scope=held.scope,
        budget_usd=usd(held.amount),
        needed_usd=usd(held.needed or 0),
        run_id=run_id,
    )
