"""`claude-batch budget`: show, set and raise budgets."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.cost_lines import dollars
from claude_batch.cli.options import option
from claude_batch.cli.status_command import require_ledger
from claude_batch.cli.user_messages import say, tell, tell_json
from claude_batch.core.dollars import nano_dollars, write_usd
from claude_batch.core.settings import default_ledger

if TYPE_CHECKING:
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.budget_status import BudgetStatus


class _Sum(click.ParamType[Decimal]):
    """Converts dollars to nano-dollars, or ``none`` to -1."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Implement click's hook: text to nano-dollars."""
        if value == "none":
            return -1
        try:
            return nano_dollars(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("budget")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.argument("amount", metavar="[USD]", type=_Sum(), required=False)
@click.option(
    "--actor",
    nargs=2,
    type=(str, _Sum()),
    metavar="NAME USD",
    help="The budget of all runs of an actor.",
)
@click.option(
    "--daily",
    type=_Sum(),
    metavar="USD",
    help="The budget of each day (UTC), for the whole ledger.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@option("prices")
@option("ledger")
def budget_command(
    run_id: str | None,
    amount: int | None,
    actor: tuple[str, int] | None,
    daily: int | None,
    as_json: bool,
    prices: str | None,
    ledger: str | None,
) -> None:
    """Set what a run may cost, in dollars, or show all budgets; needs no key.

    USD is the whole budget, including what was spent before; `none` removes it. Held requests that
    now fit are sent by the process that drives the ledger (`claude-batch resume`).
    """
    from claude_batch.ledger.store import Ledger
    from claude_batch.providers.budget_status import budget_statuses
    from claude_batch.providers.status import find_run_id

    location = default_ledger(ledger)
    if run_id is not None or daily is None:
        require_ledger(location)
    store = Ledger(location)
    try:
        if run_id is not None:
            run_id = find_run_id(store, run_id)
        _set(store, run_id, amount, actor, daily, prices)
        found = budget_statuses(store)
    finally:
        store.close()
    if run_id is not None and amount is None:
        found = [each for each in found if each.name == run_id]
    if as_json:
        tell_json([each.to_dict() for each in found])
        return
    for each in found:
        tell(_line(each))
    if not found:
        tell("no budget")


def _set(
    store: Ledger,
    run_id: str | None,
    amount: int | None,
    actor: tuple[str, int] | None,
    daily: int | None,
    prices: str | None,
) -> None:
    from claude_batch.money.prices import prices_of
    from claude_batch.providers.budget_status import set_budget

    known = prices_of(prices)
    if run_id is not None and amount is not None:
        set_budget(store, "run", run_id, None if amount < 0 else amount, known)
        say(f"{run_id}: {_told(amount)}")
    if actor is not None:
        set_budget(store, "actor", actor[0], None if actor[1] < 0 else actor[1], known)
        say(f"actor {actor[0]}: {_told(actor[1])}")
    if daily is not None:
        set_budget(store, "day", "", None if daily < 0 else daily, known)
        say(f"each day: {_told(daily)}")


def _told(amount: int) -> str:
    return "the budget was removed" if amount < 0 else f"the budget is now {write_usd(amount)}"


def _line(each: BudgetStatus) -> str:
    name = {"run": each.name, "actor": f"actor {each.name}", "day": "today (UTC)"}[each.scope]
    words = (
        f"{name}: budget {write_usd(each.budget)}, spent {dollars(each.spent)}, "
        f"reserved {dollars(each.reserved)}"
    )
    if each.in_doubt:
        words += f", in doubt {dollars(each.in_doubt)}"
    return f"{words}, left {dollars(each.left)}"
