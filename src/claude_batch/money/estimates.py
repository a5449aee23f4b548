"""What requests will come to: integer arithmetic on bytes, and on what was seen before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

from claude_batch.core.usage import Usage
from claude_batch.money.prices import Prices
from claude_batch.money.rates import Tariff

__all__ = ["Estimate", "Load", "Rule", "estimate"]

TOKENS_PER_BYTE: Final = 0.3
"""Input tokens a byte of params, where nothing better is known: English prose has about a quarter,
source code and other languages have more."""
MEDIA_SHARE: Final = 0.4
"""Tokens of PDFs and images against the most that they can come to, where nothing better is known:
a page of average text, as an image of standard resolution, has about 3,800 of 9,500."""
EXPECTED_SHARE: Final = 0.25
LOW_SHARE: Final = 0.05
"""Parts of ``max_tokens`` that an answer has, where no answer of the model was seen before."""


class Rule(NamedTuple):
    """How bytes become tokens, and how long answers are."""

    tokens_per_byte: float
    source: Literal["counted", "seen", "rule"]
    """By the API's own count of some requests, by what the ledger has seen, or by a rule."""
    low_output: float | None = None
    """Tokens of a short answer; None where none was seen."""
    mean_output: float | None = None


UNKNOWN: Final = Rule(TOKENS_PER_BYTE, "rule")


@dataclass(slots=True)
class Load:
    """What is asked of one model."""

    requests: int = 0
    size: int = 0
    """Bytes of their params."""
    media_size: int = 0
    """Bytes of them that are the base64 of PDFs and images whose tokens are bounded."""
    media_tokens: int = 0
    """Tokens that those can come to at most."""
    most_input: int = 0
    """Tokens that the requests with a known bound can come to at most, without the answers."""
    max_tokens: int = 0
    """Of all requests together."""
    most: int = 0
    """What a budget reserves for them, in nano-dollars."""
    unbounded: int = 0
    """Requests of which nothing tells what they cost at most."""
    prefixes: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    """Of each prefix that is marked for the prompt cache: its bytes, and requests that share it."""
    hour: bool = False
    """Whether prefixes are cached for an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What requests will come to. Costs are integer nano-dollars (10⁻⁹ USD)."""

    requests: int
    size: int
    """Bytes of their encoded params."""
    batches: int
    """At least; 0 where all are asked live."""
    input_tokens: int
    counted: Literal["counted", "seen", "rule"]
    """How they were: by the API on a sample, by what the ledger has seen, or by a rule."""
    output_low: int
    output_expected: int
    output_most: int
    """The sum of ``max_tokens``."""
    cost_low: int
    cost: int
    """With the expected output: in batches, or live where all are asked live."""
    cost_most: int
    """They cannot cost more: at live prices where a mode or a deadline may have them asked live,
    else what a budget reserves for all of them at once."""
    live_cost: int
    """What `cost` would be without batches."""
    saved_by_cache: int
    """What the prompt cache saves at best; below 0 where writing costs more. Hits are not sure."""
    unpriced: dict[str, int]
    """Requests to models whose price is not known, which are in no cost, by model."""
    way: Literal["batch", "live", "either"]
    """How they are asked; ``either``: in batches, and live what a deadline leaves no time for."""
    unbounded: int
    """Requests that are not in `cost_most`, since nothing tells what they cost at most."""

    @property
    def saved_by_batch(self) -> int:
        """Against the same live."""
        return self.live_cost - self.cost

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; ``…_usd`` are dollars."""
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
    """Add up what is asked of each model; ``rules`` are those of the models that have some."""
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
        # By one request of average length, since prices depend on how long each prompt is.
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
    )


def _input_tokens(load: Load, rule: Rule) -> float:
    """Tokens of all prompts; never more than they can have."""
    if rule.source == "rule":
        text = (load.size - load.media_size) * rule.tokens_per_byte
        tokens = text + load.media_tokens * MEDIA_SHARE
    else:
        tokens = load.size * rule.tokens_per_byte
    return tokens if load.unbounded else min(tokens, load.most_input)


def _saved(tariff: Tariff, tokens: int, count: int, hour: bool, *, batch: bool) -> int:
    """What one write and ``count - 1`` reads of a prefix save against reading it each time."""
    writes = Usage(
        cache_creation_1h_input_tokens=tokens if hour else 0,
        cache_creation_5m_input_tokens=0 if hour else tokens,
    )
    written = tariff.charge(writes, batch=batch)
    read = tariff.charge(Usage(cache_read_input_tokens=tokens), batch=batch)
    return (written.uncached - written.cost) + (count - 1) * (read.uncached - read.cost)
