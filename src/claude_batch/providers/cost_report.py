"""Report what runs have cost, what batches and the prompt cache have saved, and budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, get_args

from claude_batch.core.answer_parts import cache_hit_rate, effective_input_tokens
from claude_batch.core.errors import ActorConfigurationError, BudgetScope
from claude_batch.core.quantities import usd, write_usd
from claude_batch.core.states import RequestState
from claude_batch.ledger import budgets, charges, cost_sums, queries
from claude_batch.ledger.budgets import Budget, BudgetKey
from claude_batch.ledger.cost_sums import Grouping, Priced, Sums
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.budget_room import limit, today
from claude_batch.money.prices import Prices
from claude_batch.wire.messages import UnreadableLine, decode_line

if TYPE_CHECKING:  # with pydantic, which commands that only read do not need
    from claude_batch.core.batch_processing import BatchProcessingMode

# Cost report --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of all answers, by category."""

    input: int
    """Input tokens at the full price, without cached ones."""
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int

    @property
    def cache_write(self) -> int:
        """Return the tokens that were written to the prompt cache, for either time."""
        return self.cache_write_5m + self.cache_write_1h


@dataclass(frozen=True, slots=True, kw_only=True)
class CostShare:
    """Usage and cost of a group of results. Costs are integer nano-dollars (10⁻⁹ USD)."""

    group: str | None
    """An actor, a model (None without an answer), or a day as ``2026-11-21`` (UTC)."""
    results: dict[str, int]
    """Number of results by outcome from the API. Every attempt of every request counts."""
    tokens: Tokens
    web_searches: int
    unpriced_answers: int
    """Answers whose model has no known price; the sums below leave them out."""
    reused_answers: int
    """Answers reused from another request at no cost; they count nowhere else."""
    cost: int
    """The cost of the answers, in nano-dollars."""
    live_cost: int
    """The cost of the same answers without batches."""
    saved_by_batch: int
    saved_by_cache: int
    """Savings against no prompt cache; negative if cache writes cost more than reads saved."""

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    @property
    def cache_hit_rate(self) -> float:
        """Share of the prompts' tokens that were read from the prompt cache, from 0 to 1."""
        tokens = self.tokens
        return cache_hit_rate(
            plain=tokens.input, read=tokens.cache_read, written=tokens.cache_write
        )

    @property
    def effective_input_tokens(self) -> int:
        """About how many plain input tokens cost as much as the prompts, cache included.

        The factors are those of most models; see `core.answer_parts.effective_input_tokens`.
        """
        return effective_input_tokens(
            plain=self.tokens.input,
            read=self.tokens.cache_read,
            written_5m=self.tokens.cache_write_5m,
            written_1h=self.tokens.cache_write_1h,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = asdict(self)
        values["cache_hit_rate"] = self.cache_hit_rate
        values["effective_input_tokens"] = self.effective_input_tokens
        for name in ("cost", "live_cost", "saved_by_batch", "saved_by_cache"):
            values[f"{name}_usd"] = values[name] / 1e9
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """Cost of a run, or of all runs of a ledger."""

    run_id: str | None
    """None for the whole ledger."""
    requests: Mapping[RequestState, int]
    """Requests by current state, without empty states. Empty for the whole ledger."""
    total: CostShare
    by: Grouping | None
    shares: tuple[CostShare, ...]
    unpriced: dict[str, int]
    """Number of answers by model, for models without a known price."""
    unreadable_usage: int = 0
    """Number of answers whose usage cannot be read, so that their cost is unknown."""
    first_answer: float | None
    """Seconds from submission to the first results; None without results."""
    last_answer: float | None
    """Seconds from submission to the last results."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = {
            "run_id": self.run_id,
            "requests": {str(state): count for state, count in self.requests.items()},
            **self.total.to_dict(),
            "unpriced": self.unpriced,
            "unreadable_usage": self.unreadable_usage,
            "seconds_to_first_answer": self.first_answer,
            "seconds_to_last_answer": self.last_answer,
        }
        del values["group"]
        if self.by is not None:
            values["by"] = self.by
            values["shares"] = [share.to_dict() for share in self.shares]
        return values


def cost_of(
    ledger: Ledger,
    run_id: str | None = None,
    by: Grouping | None = None,
    counts: Mapping[RequestState, int] | None = None,
) -> CostReport:
    """Return the cost of an existing run or of the whole ledger, optionally split into groups.

    Every result from the API counts, also those of requests that were sent again. ``counts`` are
    the run's requests by state, if the caller has just counted them. Raises
    `ActorConfigurationError` for an unknown grouping.
    """
    if by is not None and by not in get_args(Grouping):
        known = ", ".join(get_args(Grouping))
        raise ActorConfigurationError(f"by: {by!r} is unknown; costs are grouped by: {known}")
    return ledger.query(lambda tx: cost_in(tx, run_id, by, counts))


def cost_in(
    tx: Transaction,
    run_id: str | None,
    by: Grouping | None = None,
    counts: Mapping[RequestState, int] | None = None,
) -> CostReport:
    """Return the same in a transaction of the caller."""
    (total,) = cost_sums.sums(tx, run_id)
    shares = () if by is None else tuple(_share(row, by) for row in cost_sums.sums(tx, run_id, by))
    unpriced = cost_sums.unpriced_models(tx, run_id) if total.unpriced else {}
    first = last = None
    if run_id is not None:
        if counts is None:
            counts = queries.request_counts(tx, run_id)
        asked = queries.run_row(tx, run_id).created
        times = cost_sums.answer_times(tx, run_id)
        first, last = (None if at is None else max(0.0, at - asked) for at in times)
    return CostReport(
        run_id=run_id,
        requests=counts or {},
        total=_share(total, None),
        by=by,
        shares=shares,
        unpriced=unpriced,
        unreadable_usage=total.unpriced - sum(unpriced.values()),
        first_answer=first,
        last_answer=last,
    )


def _share(row: Sums, by: Grouping | None) -> CostShare:
    group = row.group
    if by == "day" and isinstance(group, int):
        group = time.strftime("%Y-%m-%d", time.gmtime(group * charges.DAY))
    return CostShare(
        group=None if group is None else str(group),
        results={
            "succeeded": row.succeeded,
            "errored": row.errored,
            "expired": row.expired,
            "canceled": row.canceled,
        },
        tokens=Tokens(
            input=row.input_tokens,
            output=row.output_tokens,
            cache_read=row.cache_read_tokens,
            cache_write_5m=row.cache_5m_tokens,
            cache_write_1h=row.cache_1h_tokens,
        ),
        web_searches=row.web_searches,
        unpriced_answers=row.unpriced,
        reused_answers=row.reused,
        cost=row.cost,
        live_cost=row.live_cost,
        saved_by_batch=row.live_cost - row.cost,
        saved_by_cache=row.uncached_cost - row.cost,
    )


def price_unpriced(ledger: Ledger, prices: Prices, run_id: str | None = None) -> int:
    """Price the answers that had no price when they were collected and have one now.

    Covers a run, or the whole ledger. Returns the number of answers priced. Their price was not
    known yet at the time, or they were collected by a version without prices.
    """
    count = 0
    for page in cost_sums.unpriced_answers(ledger, run_id):
        priced: list[Priced] = []
        for seq, sending, raw, ended, of_batch in page:
            try:
                line = decode_line(raw)
            except UnreadableLine:  # pragma: no cover - only lines that were read are stored
                continue
            if line.usage is None:
                continue
            charge = prices.charge(
                line.model or "", line.usage, batch=bool(of_batch), at=ended or 0.0
            )
            if charge is not None:
                priced.append((seq, sending, line.model, charge.cost, charge.live, charge.uncached))
        if priced:
            with ledger.write() as tx:
                cost_sums.put_costs(tx, priced)
            count += len(priced)
    return count


# Budgets ------------------------------------------------------------------------------------------


def read_budgets(ledger: Ledger, of: Sequence[BudgetKey] = ()) -> list[Budget]:
    """Return those of these budgets that are set; without any, every budget of the ledger."""
    day = today(ledger.now())
    with ledger.read() as tx:
        return budgets.named_budgets(tx, of, day) if of else budgets.all_budgets(tx, day)


def tightest_budget(ledger: Ledger, actor: str, mode: BatchProcessingMode) -> Budget | None:
    """Return the budget with the least left of those that a run stored now will have."""
    day = today(ledger.now())
    with ledger.read() as tx:
        found = {each.scope: each for each in budgets.budgets_of(tx, "", actor, day)}
        amount = mode.actor_budget
        if amount is not None and budgets.is_set_by(tx, "actor", actor, amount):
            known = found.get("actor", Budget("actor", actor, amount, 0, 0, 0))
            found["actor"] = known._replace(amount=amount)
    if mode.budget is not None:
        found["run"] = Budget("run", "", mode.budget, 0, 0, 0)
    return min(found.values(), key=lambda budget: budget.left, default=None)


def budget_dict(budget: Budget) -> dict[str, Any]:
    """Return plain values for JSON; ``…_usd`` are dollars."""
    amounts = {
        "budget": budget.amount,
        "spent": budget.spent,
        "in_doubt": budget.doubt,
        "reserved": budget.reserved,
        "left": budget.left,
    }
    return {
        "scope": budget.scope,
        "name": budget.name,
        **amounts,
        **{f"{name}_usd": amount / 1e9 for name, amount in amounts.items()},
    }


def set_budget(
    ledger: Ledger, scope: BudgetScope, name: str, amount: int | None, prices: Prices
) -> str:
    """Set, raise or lower a budget (nano-dollars), or remove it (None); return the change in words.

    Earlier requests count towards it. The ledger's driver notices the change at once.
    """
    if amount is None:
        with ledger.write() as tx:
            was_set = budgets.set_amount(tx, scope, name, None)
        return "the budget was removed" if was_set else "there was no budget"
    limit(ledger, prices, scope, name, lambda tx: budgets.set_amount(tx, scope, name, amount))
    return f"the budget is now {write_usd(amount)}"
