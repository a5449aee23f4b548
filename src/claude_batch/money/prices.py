"""Prices of models by name: those of the user's price file, and those of ``genai-prices``."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.metadata import version
from operator import add
from pathlib import Path
from typing import Any, cast

from claude_batch.core.answer_parts import Usage
from claude_batch.money.rates import Charge, Rates, Tariff

_log = logging.getLogger(__name__)

_CATEGORIES = (
    "input_mtok",
    "output_mtok",
    "cache_read_mtok",
    "cache_write_mtok",
    "cache_write_1h_mtok",
)
# The names in genai-prices for the fields of `Rates`, in their order.

DAY = 86400.0
"""Seconds in a day; prices change between days (UTC)."""

_EPOCH = date(1970, 1, 1)

_RULES = 4
"""Version of the rules by which requests are bounded (`claude_batch.wire.bounds`).

If it has changed since a waiting request was stored, its reservation is computed again."""


_LONGEST_NAME = 256
"""Most characters of a model's name that may have a price. An answer may name anything."""
_REMEMBERED = 1024
"""Most prices that are remembered, because every call may name another model."""


class Prices:
    """Prices of models. Each model is looked up once a day. Safe to share between threads."""

    def __init__(
        self,
        own: Mapping[str, Tariff] | None = None,
        file: Path | None = None,
        state: tuple[int, int] | None = None,
    ) -> None:
        """``own`` has prices by model name, read from ``file``; they take precedence."""
        self._own = own or {}
        self._file = file
        self._state = state
        self._known = lru_cache(maxsize=_REMEMBERED)(self._find)

    @cached_property
    def digest(self) -> str:
        """A text that differs for prices, and for rules of reservations, that differ."""
        listed = version("genai-prices")
        own = blake2b(repr(sorted(self._own.items())).encode(), digest_size=16)
        return f"{listed} {own.hexdigest()} {_RULES}"

    def warn_if_changed(self) -> None:
        """Warn once if the file has changed since it was read."""
        state = _state_of(self._file)
        if state not in (None, self._state):
            _log.warning(
                "the prices in %s have changed, but this process goes on with those that it has "
                "read. Restart it, or close all providers of the ledger, to use the new ones",
                self._file,
                extra={"for_people": True},
            )
            self._file = None

    def charge(self, model: str, usage: Usage, *, batch: bool, at: float) -> Charge | None:
        """Return the cost of an answer; None if the model's price or its tokens are unknown.

        ``model`` is the name in the answer. ``at`` is the time of processing (seconds since the
        epoch). The cost of its advisors is included.
        """
        tariff = self.tariff(model, at=at, speed=usage.speed)
        if tariff is None or usage.is_missing:
            return None
        found = tariff.charge(usage, batch=batch)
        for name, used in usage.advisors:
            more = self.charge(name, used, batch=batch, at=at)
            if more is None:
                return None
            found = Charge(*map(add, found, more))
        return found

    def tariff(self, model: str, *, at: float, speed: str | None = None) -> Tariff | None:
        """Return all prices of a model at a time; None if they are unknown.

        ``at`` is in seconds since the epoch. ``speed`` is the value in `Usage`.
        """
        return None if len(model) > _LONGEST_NAME else self._known(model, speed, at // DAY)

    def possible(self, model: str, *, at: float) -> list[Tariff]:
        """Return every tariff that an answer may have if this model is requested; often one.

        The answer names the version that the API chose, and a price file may name some versions.
        A listed price may change before the answer comes, because a request can wait for days.
        """
        if len(model) > _LONGEST_NAME:
            return []
        if own := self._of_family(model):
            return own
        days = [at, *(day * DAY for day in _listed_changes(model) if day * DAY > at)]
        found = (self.tariff(model, at=day) for day in days)
        return [tariff for tariff in found if tariff is not None]

    def _find(self, model: str, speed: str | None, day: float) -> Tariff | None:
        fast = speed not in (None, "standard")
        if own := self._of_family(model):
            # The file has no prices for faster answers.
            return (
                None if fast else self._own.get(model) or self._own.get(_undated(model)) or own[0]
            )
        return _listed(model, speed if fast else None, day * DAY)

    def _of_family(self, model: str) -> list[Tariff]:
        """Return the file's prices of any version of a model, the one with most per token first."""
        if not self._own:
            return []
        mine = _family(model)
        found = [tariff for name, tariff in self._own.items() if _family(name) == mine]
        return sorted(found, key=lambda tariff: max(tariff.base), reverse=True)


_DATE = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")


def _undated(model: str) -> str:
    """Return ``claude-haiku-4-5`` for ``claude-haiku-4-5-20251001``; other names unchanged."""
    return _DATE.sub("", model)


@lru_cache(maxsize=1024)
def _family(model: str) -> tuple[str, ...]:
    """Return what all names of a model have in common.

    It is the same for ``claude-sonnet-4-0``, ``claude-sonnet-4-20250514`` and ``claude-4-sonnet``,
    or for ``claude-3-5-haiku-latest`` and ``claude-3.5-haiku``.
    """
    words = re.split(r"[-.@]", _undated(model.lower()).removesuffix("-latest"))
    if words[-1] == "0":
        words.pop()
    # The numbers keep their order, because version 4-5 is not version 5-4.
    numbers = [word for word in words if word.isdecimal()]
    return (*sorted(word for word in words if not word.isdecimal()), *numbers)


def is_same_model(one: str, other: str) -> bool:
    """Return whether two names are of one model, whatever their date."""
    return _family(one) == _family(other)


def _calculated(model: str, **options: Any) -> Any:
    """Return the calculation of genai-prices for no tokens, because only its prices are needed.

    It is imported here, because the import takes a quarter of a second.
    """
    from genai_prices import Usage, calc_price

    return calc_price(
        Usage(input_tokens=0, output_tokens=0), model, provider_id="anthropic", **options
    )


def _listed(model: str, speed: str | None, at: float) -> Tariff | None:
    """Return the prices of genai-prices."""

    def prices(context: dict[str, str] | None) -> Any:
        day = datetime.fromtimestamp(at, UTC)
        found = _calculated(model, genai_request_timestamp=day, price_context=context)
        if _family(found.model.id) != _family(model):
            # Some names are found by how they begin: claude-opus-4-10 is not claude-opus-4-1.
            raise LookupError(model)
        return found.model_price

    try:
        found = prices(None)
        if speed is not None:
            standard, found = found, prices({"speed": speed})
            if found == standard:
                return None  # no listed price for this speed
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


@lru_cache(maxsize=1024)
def _listed_changes(model: str) -> tuple[int, ...]:
    """Return the days since the epoch on which prices of genai-prices begin."""
    try:
        listed: object = _calculated(model).model.prices
    except (LookupError, ValueError):
        return ()
    if not isinstance(listed, list):
        return ()
    changes = cast("list[Any]", listed)
    starts = (getattr(each.constraint, "start_date", None) for each in changes)
    return tuple(sorted((start - _EPOCH).days for start in starts if start is not None))


def _price(value: Any, prompt: int) -> Any:
    """Return the price in dollars per million tokens for a prompt of this many tokens."""
    if value is None or isinstance(value, Decimal):
        return value
    reached = [tier for tier in value.tiers if prompt > tier.start]
    return max(reached, key=lambda tier: tier.start).price if reached else value.base


def _state_of(file: Path | None) -> tuple[int, int] | None:
    """Return what differs once a file was written; None without one, or if it cannot be found."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=16)
def _of_file(path: Path, state: tuple[int, int] | None) -> Prices:
    # Most programs have no price file, and the YAML reader is a thirtieth of the start of `run`.
    from claude_batch.money.price_file import read_prices

    return Prices(read_prices(path), path.absolute(), state)


_listed_only = Prices()


def prices_of(path: str | os.PathLike[str] | None = None) -> Prices:
    """Return the prices of a file, and of ``genai-prices`` for other models; "" for no file.

    A file is read again only when it has changed. Raises `ActorConfigurationError` with file and
    line.
    """
    if not path or not os.fspath(path):
        return _listed_only
    file = Path(os.path.expanduser(path))  # reading it reports a home that is not there
    return _of_file(file, _state_of(file))  # and a file that is not there
