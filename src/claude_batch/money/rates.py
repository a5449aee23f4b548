"""What one answer comes to: integer arithmetic on its usage, and nothing else.

Prices are **femto-dollars** (10⁻¹⁵ USD) a token, so that half of $0.0125 a million tokens, times
1.1, is still an integer. What one answer costs is rounded once, to **nano-dollars** (10⁻⁹ USD),
halves up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from claude_batch.core.usage import Usage

__all__ = [
    "CACHE_READ_FACTOR",
    "CACHE_WRITE_1H_FACTOR",
    "CACHE_WRITE_5M_FACTOR",
    "FREE",
    "PRICED_GEO",
    "UNPRICED",
    "WEB_SEARCH_USD",
    "Charge",
    "Rates",
    "Tariff",
    "femto_per_token",
]

# Anthropic's pricing page (https://platform.claude.com/docs/en/about-claude/pricing), read on
# 2026-11-21. Where a source of prices names one of these itself, its own number counts.
CACHE_WRITE_5M_FACTOR: Final = Decimal("1.25")
"""A cache write of five minutes costs this many times the input price ("Prompt caching")."""
CACHE_WRITE_1H_FACTOR: Final = Decimal(2)
"""A cache write of one hour costs this many times the input price ("Prompt caching")."""
CACHE_READ_FACTOR: Final = Decimal("0.1")
"""A cache read costs this many times the input price ("Prompt caching")."""
WEB_SEARCH_USD: Final = Decimal(10)
"""Dollars for 1,000 web searches, in a batch as well ("Web search tool")."""
_BATCH_DIVISOR: Final = 2
# "Batch processing": half of the price of every token category; fees stay as they are.
PRICED_GEO: Final = "us"
_GEO_NUMERATOR, _GEO_DENOMINATOR = 11, 10
# "Data residency pricing": `inference_geo: "us"` multiplies every token category by 1.1.

_FEMTO_PER_NANO: Final = 10**6
_FEMTO_PER_TOKEN: Final = 10**9
# One dollar a million tokens is 10⁻⁶ USD a token.
_FEMTO_PER_SEARCH: Final = 10**12
# One dollar a thousand searches is 10⁻³ USD a search.


class Charge(NamedTuple):
    """What one answer costs, in nano-dollars."""

    cost: int
    """What is paid for it."""
    live: int
    """What the same answer would have cost at once, without a batch."""
    uncached: int
    """What it would have cost, batched or not as it was, without a prompt cache."""


FREE: Final = Charge(0, 0, 0)
"""Requests that errored, expired or were canceled are not billed."""
UNPRICED: Final = (None, None, None)
"""In the place of a charge that is not known, which is not the same as nothing."""


class Rates(NamedTuple):
    """Live prices of one model, for prompts of one range of lengths, in femto-dollars a token."""

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int

    @classmethod
    def of(
        cls,
        input: Decimal,
        output: Decimal,
        cache_read: Decimal | None = None,
        cache_write_5m: Decimal | None = None,
        cache_write_1h: Decimal | None = None,
    ) -> Rates:
        """From dollars a million tokens; what is None follows from the input price."""
        if cache_read is None:
            cache_read = input * CACHE_READ_FACTOR
        if cache_write_5m is None:
            cache_write_5m = input * CACHE_WRITE_5M_FACTOR
        if cache_write_1h is None:
            cache_write_1h = input * CACHE_WRITE_1H_FACTOR
        prices = (input, output, cache_read, cache_write_5m, cache_write_1h)
        return cls(*map(femto_per_token, prices))


def femto_per_token(dollars: Decimal) -> int:
    """Dollars a million tokens, as femto-dollars a token."""
    return round(dollars * _FEMTO_PER_TOKEN)


def _nano(femto: int) -> int:
    return (femto + _FEMTO_PER_NANO // 2) // _FEMTO_PER_NANO


@dataclass(frozen=True, slots=True)
class Tariff:
    """All prices of one model."""

    base: Rates
    tiers: tuple[tuple[int, Rates], ...] = ()
    """Prices of longer prompts, the longest first: where the prompt, cached tokens included, has
    more tokens than the number, *all* tokens of the answer cost these."""
    search: int = round(WEB_SEARCH_USD * _FEMTO_PER_SEARCH)
    """Femto-dollars of one web search."""

    @classmethod
    def of(cls, base: Rates, tiers: Mapping[int, Rates], search: Decimal | None = None) -> Tariff:
        """From rates by length of prompt; ``search`` is dollars for 1,000 web searches."""
        fee = WEB_SEARCH_USD if search is None else search
        ordered = tuple(sorted(tiers.items(), reverse=True))
        return cls(base, ordered, round(fee * _FEMTO_PER_SEARCH))

    def charge(self, usage: Usage, *, batch: bool) -> Charge:
        """What an answer of this usage costs, from a batch or live."""
        fresh, read, output = usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens
        five, hour = usage.cache_creation_5m_input_tokens, usage.cache_creation_1h_input_tokens
        prompt = fresh + read + five + hour
        rates = self.base
        for above, dearer in self.tiers:
            if prompt > above:
                rates = dearer
                break
        plain = prompt * rates.input + output * rates.output
        tokens = plain
        if prompt != fresh:
            tokens = (
                fresh * rates.input
                + output * rates.output
                + read * rates.cache_read
                + five * rates.cache_write_5m
                + hour * rates.cache_write_1h
            )
        if usage.inference_geo == PRICED_GEO:
            tokens = tokens * _GEO_NUMERATOR // _GEO_DENOMINATOR
            plain = plain * _GEO_NUMERATOR // _GEO_DENOMINATOR
        fees = usage.web_search_requests * self.search
        live = _nano(tokens + fees)
        if not batch:
            return Charge(live, live, _nano(plain + fees))
        cost = _nano(tokens // _BATCH_DIVISOR + fees)
        if plain == tokens:
            return Charge(cost, live, cost)
        return Charge(cost, live, _nano(plain // _BATCH_DIVISOR + fees))

    def ceiling(
        self,
        *,
        input: int,
        output: int,
        cache: Literal["5m", "1h"] | None = None,
        searches: int = 0,
        us_only: bool = False,
        batch: bool,
    ) -> int:
        """The most that an answer can cost in nano-dollars, which `charge` never passes.

        ``input`` and ``output`` are tokens, at most; ``cache`` is the longest life of what may be
        written to the prompt cache; ``us_only``: it may be charged by `PRICED_GEO`.
        """
        ranges = [self.base, *(rates for above, rates in self.tiers if input > above)]
        tokens = 0
        for rates in ranges:
            dearest = rates.input
            if cache is not None:
                dearest = max(dearest, rates.cache_write_5m)
            if cache == "1h":
                dearest = max(dearest, rates.cache_write_1h)
            tokens = max(tokens, input * dearest + output * rates.output)
        if us_only:
            tokens = -(-tokens * _GEO_NUMERATOR // _GEO_DENOMINATOR)
        if batch:
            tokens = -(-tokens // _BATCH_DIVISOR)
        return -(-(tokens + searches * self.search) // _FEMTO_PER_NANO)
