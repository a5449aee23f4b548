"""`Prices`: what each model costs, from a file of the user's own and from ``genai-prices``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from claude_batch.core.usage import Usage
from claude_batch.money.rates import Charge, Rates, Tariff

__all__ = ["Prices", "prices_of"]

_CATEGORIES = (
    "input_mtok",
    "output_mtok",
    "cache_read_mtok",
    "cache_write_mtok",
    "cache_write_1h_mtok",
)
# The names that genai-prices has for the fields of `Rates`, in their order.

DAY = 86400.0
"""Seconds; prices change from one day (UTC) to the next."""


class Prices:
    """Looks each model up once, and then only multiplies. Safe to share between threads."""

    def __init__(self, own: Mapping[str, Tariff] | None = None) -> None:
        """``own`` are prices by the name of a model, which rank before all others."""
        self._own = own or {}
        self._known: dict[tuple[str, str | None, int], Tariff | None] = {}

    def charge(self, model: str, usage: Usage, *, batch: bool, at: float) -> Charge | None:
        """What an answer costs; None where the model's price is unknown.

        ``model`` is the name in the answer, ``at`` the time that it was processed at (seconds since
        the epoch).
        """
        tariff = self.tariff(model, at=at, speed=usage.speed)
        return None if tariff is None else tariff.charge(usage, batch=batch)

    def tariff(self, model: str, *, at: float, speed: str | None = None) -> Tariff | None:
        """All prices of a model at a time (seconds since the epoch); None where they are unknown.

        ``speed`` is as `Usage` has it.
        """
        key = (model, speed, int(at // DAY))
        try:
            return self._known[key]
        except KeyError:
            tariff = self._known[key] = self._find(*key)
            return tariff

    def _find(self, model: str, speed: str | None, day: int) -> Tariff | None:
        fast = speed not in (None, "standard")
        own = self._own.get(model) or self._own.get(_undated(model))
        if own is not None:
            # What a faster answer costs is not in the file.
            return None if fast else own
        return _listed(model, speed if fast else None, day * DAY)


def _undated(model: str) -> str:
    """``claude-haiku-4-5-20251001`` as ``claude-haiku-4-5``; other names as they are."""
    name, _, date = model.replace("@", "-").rpartition("-")
    return name if len(date) == 8 and date.isdecimal() else model


def _listed(model: str, speed: str | None, at: float) -> Tariff | None:
    """What genai-prices has; imported here, since it takes a quarter of a second."""
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    def prices(context: dict[str, str] | None) -> Any:
        # Asked for no tokens at all: only the prices are of interest, and they are read once.
        return calc_price(
            Counted(input_tokens=0, output_tokens=0),
            model,
            provider_id="anthropic",
            genai_request_timestamp=datetime.fromtimestamp(at, UTC),
            price_context=context,
        ).model_price

    try:
        found = prices(None)
        if speed is not None:
            standard, found = found, prices({"speed": speed})
            if found == standard:
                return None  # it lists no price for this speed
    except (LookupError, ValueError):
        return None
    values = [getattr(found, name) for name in _CATEGORIES]
    if values[0] is None or values[1] is None:
        return None
    starts = {tier.start for value in values if hasattr(value, "tiers") for tier in value.tiers}
    return Tariff.of(
        Rates.of(*(_price(value, 0) for value in values)),
        {start: Rates.of(*(_price(value, start + 1) for value in values)) for start in starts},
        found.web_searches_kcount,
    )


def _price(value: Any, prompt: int) -> Any:
    """The price in dollars a million tokens for a prompt of so many tokens."""
    if value is None or isinstance(value, Decimal):
        return value
    reached = [tier for tier in value.tiers if prompt > tier.start]
    return max(reached, key=lambda tier: tier.start).price if reached else value.base


@lru_cache(maxsize=16)
def _of_file(path: Path, _state: tuple[int, int]) -> Prices:
    from claude_batch.money.price_file import read_prices

    return Prices(read_prices(path))


_listed_only = Prices()


def prices_of(path: str | os.PathLike[str] | None = None) -> Prices:
    """The prices of a file, and of ``genai-prices`` for what it does not name; "" for no file.

    A file is read again only when it has changed. Raises `ActorConfigurationError` that names file
    and line.
    """
    if not path or not os.fspath(path):
        return _listed_only
    file = Path(path).expanduser()
    try:
        found = file.stat()
        state = (found.st_mtime_ns, found.st_size)
    except OSError:
        state = (0, 0)  # reading it says what is wrong
    return _of_file(file, state)
