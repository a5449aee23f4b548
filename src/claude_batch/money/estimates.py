"""Cost estimates of requests: integer arithmetic on bytes, and on previous answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from claude_batch.core.quantities import usd
from claude_batch.core.usage import Usage
from claude_batch.money.prices import Prices, Tariff

TOKENS_PER_BYTE: Final = 0.3
"""Input tokens per byte of params, if nothing better is known. English prose has about 0.25; source
code and other languages have more.
"""
MEDIA_SHARE: Final = 0.4
"""Tokens of PDFs and images relative to their upper bound, if nothing better is known. A page of
average text, as an image of standard resolution, has about 3,800 of 9,500.
"""
EXPECTED_SHARE: Final = 0.25
LOW_SHARE: Final = 0.05
"""Fractions of ``max_tokens`` that an answer uses, if no answer of the model was seen before."""


class Rule(NamedTuple):
    """Factors that turn bytes into tokens, and the expected length of answers."""

    tokens_per_byte: float
    source: Literal["counted", "seen", "rule"]
    """The API's own count of some requests, answers in the ledger, or a fixed rule."""
    low_output: float | None = None
    """Tokens of a short answer; None if no answer was seen."""
    mean_output: float | None = None


UNKNOWN: Final = Rule(TOKENS_PER_BYTE, "rule")


@dataclass(slots=True)
class Load:
    """The requests to one model."""

    requests: int = 0
    size: int = 0
    """Bytes of their params."""
    media_size: int = 0
    """Bytes of the params that are base64 data of PDFs and images with a known token bound."""
    media_tokens: int = 0
    """Upper bound of the tokens of those PDFs and images."""
    most_input: int = 0
    """Upper bound of the input tokens of all requests with a known bound."""
    max_tokens: int = 0
    """Sum over all requests."""
    most: int = 0
    """The amount that a budget reserves for them, in nano-dollars."""
    unbounded: int = 0
    """Number of requests without a known upper bound of their cost."""
    turns: int = 1
    """The most turns that one of the requests may take."""
    prefixes: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    """For each prefix marked for the prompt cache: its bytes, and the number of requests sharing
    it.
    """
    hour: bool = False
    """Whether prefixes are cached for an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected cost of requests. Costs are integer nano-dollars (10⁻⁹ USD)."""

    requests: int
    size: int
    """Bytes of their encoded params."""
    batches: int
    """Lower bound of the number of batches; 0 if all requests are live calls."""
    input_tokens: int
    counted: Literal["counted", "seen", "rule"]
    """Source of the token counts: the API's count of a sample, answers in the ledger, or a rule."""
    output_low: int
    output_expected: int
    output_most: int
    """The sum of ``max_tokens``."""
    cost_low: int
    cost: int
    """Cost with the expected output: in batches, or live if all requests are live calls."""
    cost_most: int
    """Upper bound of the cost. At live prices if a mode or a deadline may cause live calls.
    Otherwise the amount that a budget reserves for all requests at once.
    """
    live_cost: int
    """The value of `cost` without batches."""
    saved_by_cache: int
    """Highest saving by the prompt cache; negative if writing costs more. Hits are not
    guaranteed.
    """
    unpriced: dict[str, int]
    """Number of requests to models without a known price, by model. No cost includes them."""
    way: Literal["batch", "live", "either"]
    """How the requests are sent. ``either``: in batches, and live if a deadline leaves no time."""
    unbounded: int
    """Number of requests that `cost_most` excludes, because their cost has no known upper bound."""
    turns: int = 1
    """The most turns that one of the requests may take: with tools (``max_turns``), or because an
    answer has not the right format (``validation_attempts``). All costs are those of first turns; a
    later turn costs as much as the first one, and what has become longer since.
    """

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    @property
    def saved_by_batch(self) -> int:
        """Return the saving compared with live calls."""
        return self.live_cost - self.cost

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = {**asdict(self), "saved_by_batch": self.saved_by_batch}
        for name in ("cost_low", "cost", "cost_most", "live_cost", "saved_by_batch",
                     "saved_by_cache"):  # fmt: skip
            values[f"{name}_usd"] = values[name] / 1e9
        return values


def estimate(
    loads: Mapping[str, Load],
    rules: Mapping[str, Rule],
    prices: Prices,
    *,
    batches: int,
    way: Literal["batch", "live", "either"] = "batch",
    now: float,
) -> Estimate:
    """Sum the loads of all models. ``rules`` has the rule of each model that has one."""
    batch = way != "live"
    tokens = low = expected = 0
    costs = [0, 0, 0, 0]
    unpriced: dict[str, int] = {}
    sources = {rules.get(model, UNKNOWN).source for model in loads}
    for model, load in loads.items():
        rule = rules.get(model, UNKNOWN)
        each = _input_tokens(load, rule) / load.requests
        longest = load.max_tokens / load.requests
        mean = min(rule.mean_output or longest * EXPECTED_SHARE, longest)
        short = min(rule.low_output or longest * LOW_SHARE, mean)
        tokens += round(each * load.requests)
        low += round(short * load.requests)
        expected += round(mean * load.requests)
        tariff = prices.tariff(model, at=now)
        if tariff is None:
            unpriced[model] = load.requests
            continue
        # Computed for one request of average length, because prices depend on the length of each
        # prompt.
        for place, output in ((0, short), (1, mean)):
            usage = Usage(input_tokens=round(each), output_tokens=round(output))
            charge = tariff.charge(usage, batch=batch)
            costs[place] += charge.cost * load.requests
            costs[2] += charge.live * load.requests * place
        costs[3] += sum(
            _saved(tariff, round(size * rule.tokens_per_byte), count, load.hour, batch=batch)
            for size, count in load.prefixes.values()
        )
    return Estimate(
        requests=sum(load.requests for load in loads.values()),
        size=sum(load.size for load in loads.values()),
        batches=batches if batch else 0,
        input_tokens=tokens,
        counted=next(kind for kind in ("rule", "seen", "counted") if kind in sources),
        output_low=low,
        output_expected=expected,
        output_most=sum(load.max_tokens for load in loads.values()),
        cost_low=costs[0],
        cost=costs[1],
        cost_most=sum(load.most for load in loads.values()),
        live_cost=costs[2],
        saved_by_cache=costs[3],
        unpriced=unpriced,
        way=way,
        unbounded=sum(load.unbounded for load in loads.values()),
        turns=max((load.turns for load in loads.values()), default=1),
    )


def _input_tokens(load: Load, rule: Rule) -> float:
    """Return the tokens of all prompts, limited to their upper bound."""
    if rule.source == "rule":
        text = (load.size - load.media_size) * rule.tokens_per_byte
        tokens = text + load.media_tokens * MEDIA_SHARE
    else:
        tokens = load.size * rule.tokens_per_byte
    return tokens if load.unbounded else min(tokens, load.most_input)


def _saved(tariff: Tariff, tokens: int, count: int, hour: bool, *, batch: bool) -> int:
    """Return the saving of one write and ``count - 1`` reads of a prefix over uncached reads."""
    writes = Usage(
        cache_creation_1h_input_tokens=tokens if hour else 0,
        cache_creation_5m_input_tokens=0 if hour else tokens,
    )
    written = tariff.charge(writes, batch=batch)
    read = tariff.charge(Usage(cache_read_input_tokens=tokens), batch=batch)
    return (written.uncached - written.cost) + (count - 1) * (read.uncached - read.cost)
