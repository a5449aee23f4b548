"""Rates of a model, and the cost of an answer at them, in integer arithmetic.

Rates are **femto-dollars** (10⁻¹⁵ USD) per token, so that half of $0.0125 per million tokens,
times 1.1, is still an integer. The cost of one answer is rounded once, to **nano-dollars** (10⁻⁹
USD), with halves rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from claude_batch.core.answer_parts import (
    CACHE_READ_FACTOR,
    CACHE_WRITE_1H_FACTOR,
    CACHE_WRITE_5M_FACTOR,
    Usage,
)

# Anthropic's pricing page (https://platform.claude.com/docs/en/about-claude/pricing), read on
# 2026-11-21. If a price source names one of these values, the source's value is used.
WEB_SEARCH_USD: Final = Decimal(10)
"""Dollars per 1,000 web searches, also in a batch ("Web search tool")."""
_BATCH_DIVISOR: Final = 2
# "Batch processing": half the price of every token category; fees are not reduced.
PRICED_GEO: Final = "us"
_GEO_NUMERATOR, _GEO_DENOMINATOR = 11, 10
# "Data residency pricing": `inference_geo: "us"` multiplies every token category by 1.1.

_FEMTO_PER_NANO: Final = 10**6
_FEMTO_PER_TOKEN: Final = 10**9
# One dollar per million tokens is 10⁻⁶ USD per token.
_FEMTO_PER_SEARCH: Final = 10**12
# One dollar per thousand searches is 10⁻³ USD per search.


class Charge(NamedTuple):
    """The cost of one answer, in nano-dollars."""

    cost: int
    """The actual cost."""
    live: int
    """The cost of the same answer from a live call."""
    uncached: int
    """The cost without a prompt cache, batched or live as the answer was."""


FREE: Final = Charge(0, 0, 0)
"""Requests that errored, expired or were canceled are not billed."""
UNPRICED: Final = (None, None, None)
"""Stands for an unknown charge, which is not the same as zero."""


class Rates(NamedTuple):
    """Live prices of one model, for one range of prompt lengths, in femto-dollars per token."""

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
        """Return rates from dollars per million tokens; None values follow from the input price."""
        if cache_read is None:
            cache_read = input * CACHE_READ_FACTOR
        if cache_write_5m is None:
            cache_write_5m = input * CACHE_WRITE_5M_FACTOR
        if cache_write_1h is None:
            cache_write_1h = input * CACHE_WRITE_1H_FACTOR
        prices = (input, output, cache_read, cache_write_5m, cache_write_1h)
        return cls(*(round(price * _FEMTO_PER_TOKEN) for price in prices))


def _nano(femto: int) -> int:
    return (femto + _FEMTO_PER_NANO // 2) // _FEMTO_PER_NANO


class Tariff(msgspec.Struct, frozen=True):
    """All prices of one model."""

    base: Rates
    tiers: tuple[tuple[int, Rates], ...] = ()
    """Prices of longer prompts, the longest first. If the prompt, including cached tokens, has more
    tokens than the number, *all* tokens of the answer have these prices.
    """
    search: int = round(WEB_SEARCH_USD * _FEMTO_PER_SEARCH)
    """Femto-dollars per web search."""

    @classmethod
    def of(cls, base: Rates, tiers: Mapping[int, Rates], search: Decimal | None = None) -> Tariff:
        """Return a tariff from rates by prompt length; ``search`` is dollars per 1,000 searches."""
        fee = WEB_SEARCH_USD if search is None else search
        ordered = tuple(sorted(tiers.items(), reverse=True))
        return cls(base, ordered, round(fee * _FEMTO_PER_SEARCH))

    def charge(self, usage: Usage, *, batch: bool) -> Charge:
        """Return the cost of an answer with this usage, from a batch or live."""
        fresh, read, output = usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens
        five, hour = usage.cache_creation_5m_input_tokens, usage.cache_creation_1h_input_tokens
        tokens = plain = 0
        for part in usage.compactions:
            mine = (
                part.input_tokens,
                part.cache_read_input_tokens,
                part.output_tokens,
                part.cache_creation_5m_input_tokens,
                part.cache_creation_1h_input_tokens,
            )
            more, more_plain = self._of_prompt(*mine)
            tokens, plain = tokens + more, plain + more_plain
            fresh, read, output = fresh - mine[0], read - mine[1], output - mine[2]
            five, hour = five - mine[3], hour - mine[4]
        more, more_plain = self._of_prompt(fresh, read, output, five, hour)
        tokens, plain = tokens + more, plain + more_plain
        if usage.inference_geo == PRICED_GEO:
            tokens = tokens * _GEO_NUMERATOR // _GEO_DENOMINATOR
            plain = plain * _GEO_NUMERATOR // _GEO_DENOMINATOR
        fees = usage.web_search_requests * self.search
        live = _nano(tokens + fees)
        cost = _nano(tokens // _BATCH_DIVISOR + fees) if batch else live
        if plain == tokens:
            return Charge(cost, live, cost)
        return Charge(cost, live, _nano(plain // _BATCH_DIVISOR + fees if batch else plain + fees))

    def _of_prompt(
        self, fresh: int, read: int, output: int, five: int, hour: int
    ) -> tuple[int, int]:
        """Return the femto-dollars of one prompt and its output, and those without a cache."""
        prompt = fresh + read + five + hour
        rates = self.base
        for above, dearer in self.tiers:
            if prompt > above:
                rates = dearer
                break
        plain = prompt * rates.input + output * rates.output
        if prompt == fresh:
            return plain, plain
        tokens = (
            fresh * rates.input
            + output * rates.output
            + read * rates.cache_read
            + five * rates.cache_write_5m
            + hour * rates.cache_write_1h
        )
        return tokens, plain

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
        """Return an upper bound of an answer's cost in nano-dollars, which `charge` never exceeds.

        ``input`` and ``output`` are upper bounds in tokens. ``cache`` is the longest lifetime of
        anything written to the prompt cache. ``us_only``: the price of `PRICED_GEO` may apply.
        """
        ranges = [self.base, *(rates for above, rates in self.tiers if input > above)]
        tokens = 0
        for rates in ranges:
            # A price file may have any prices.
            dearest = max(rates.input, rates.cache_read)
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
