"""Prices of models, and the cost of an answer, in integer arithmetic.

Prices are **femto-dollars** (10⁻¹⁵ USD) per token, so that half of $0.0125 per million tokens,
times 1.1, is still an integer. The cost of one answer is rounded once, to **nano-dollars** (10⁻⁹
USD), with halves rounded up.

A price file of the user's own is JSON or YAML::

    claude-haiku-4-5:        # a model's name; also matches the other names of the model
      input: 0.8             # dollars per million tokens, live; token prices halve in a batch
      output: 4
      cache_read: 0.08       # default: 0.1 times `input`
      cache_write_5m: 1      # default: 1.25 times `input`
      cache_write_1h: 1.6    # default: twice `input`
      web_search: 10         # dollars per thousand searches, also in a batch
      above:                 # prompts with more tokens than the number, including cached ones
        200000: {input: 1.6, output: 6}
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.metadata import version
from operator import add
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from claude_batch.core.answer_parts import (
    CACHE_READ_FACTOR,
    CACHE_WRITE_1H_FACTOR,
    CACHE_WRITE_5M_FACTOR,
    Usage,
)
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.yaml_reader import BoundedLoader, YamlFault, pairs, yaml_faults

# Rates --------------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class Tariff:
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


# The user's price file ----------------------------------------------------------------------------

_TOKENS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
_NEEDED = ("input", "output")
_SMALLEST = Decimal("0.000001")
_LARGEST = Decimal(1_000_000)


def read_prices(path: Path) -> dict[str, Tariff]:
    """Return the prices in a file by model name. Raises `ActorConfigurationError`."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise _fault(path, None, f"the prices cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _fault(path, None, f"the prices are not UTF-8 text: {error.reason}") from None
    return _File(path).read(text)


def _fault(path: Path, line: int | None, message: str) -> ActorConfigurationError:
    return ActorConfigurationError(message, source=str(path), line=line)


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, text: str) -> dict[str, Tariff]:
        root = self._parsed(text)
        if root is None:
            raise _fault(self._path, None, "the file has no model")
        return {
            name: self._tariff(name, self._mapping(node, f"`{name}`"))
            for name, _, node in self._entries(root, "the file")
        }

    def _parsed(self, text: str) -> yaml.Node | None:
        if self._path.suffix == ".json":
            try:
                json.loads(text, parse_int=str)  # numbers stay text here and are parsed below
            except json.JSONDecodeError as error:
                raise _fault(self._path, error.lineno, f"invalid JSON: {error.msg}") from None
            except RecursionError:
                pass  # the YAML reader reports the line
            # In JSON, tabs occur only between tokens; in YAML they would be an error.
            text = text.replace("\t", " ")
        try:
            with yaml_faults(text):
                return BoundedLoader(text).get_single_node()
        except YamlFault as fault:
            raise _fault(self._path, fault.line, f"invalid YAML: {fault.words}") from None

    def _error(self, node: yaml.Node, message: str) -> ActorConfigurationError:
        return _fault(self._path, node.start_mark.line + 1, message)

    def _mapping(self, node: yaml.Node, what: str) -> yaml.MappingNode:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(
                node, f"{what} must be a mapping of names to prices, such as `input: 3`"
            )
        return node

    def _entries(self, node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        seen: set[str] = set()
        for key, value in pairs(self._mapping(node, what)):
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "the key must be a name")
            name = str(key.value)
            if name in seen:
                raise self._error(key, f"`{name}` is repeated; keep one")
            seen.add(name)
            yield name, key, value

    def _tariff(self, model: str, node: yaml.MappingNode) -> Tariff:
        found: dict[str, Decimal] = {}
        tiers: dict[int, Rates] = {}
        for name, key, value in self._entries(node, f"`{model}`"):
            if name == "above":
                tiers = self._tiers(model, value)
            else:
                self._known(name, key, (*_TOKENS, "web_search", "above"))
                found[name] = self._price(f"{model}: {name}", value)
        search = found.pop("web_search", None)
        return Tariff.of(self._rates(model, node, found), tiers, search)

    def _tiers(self, model: str, node: yaml.Node) -> dict[int, Rates]:
        tiers: dict[int, Rates] = {}
        for start, key, value in self._entries(node, f"`{model}: above`"):
            if not start.isdecimal() or not start.isascii():
                raise self._error(
                    key,
                    f"{model}: above: {start!r} is not a number of tokens; write for "
                    "example 200000",
                )
            prices: dict[str, Decimal] = {}
            what = f"{model}: above {start}"
            for name, inner, price in self._entries(value, f"`{what}`"):
                self._known(name, inner, _TOKENS)
                prices[name] = self._price(f"{what}: {name}", price)
            if int(start) in tiers:
                raise self._error(key, f"{what} is repeated; keep one")
            tiers[int(start)] = self._rates(what, value, prices)
        return tiers

    def _rates(self, what: str, node: yaml.Node, prices: dict[str, Decimal]) -> Rates:
        for name in _NEEDED:
            if name not in prices:
                raise self._error(
                    node, f"{what}: `{name}` is missing; give the dollars per million of its tokens"
                )
        return Rates.of(**prices)

    def _known(self, name: str, key: yaml.Node, names: tuple[str, ...]) -> None:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = (
                f"did you mean `{close[0]}`?" if close else f"the known keys are {', '.join(names)}"
            )
            raise self._error(key, f"unknown key `{name}`; {meant}")

    def _price(self, what: str, node: yaml.Node) -> Decimal:
        # Parsed from the text, so that 0.1 is exactly a tenth and not a binary fraction.
        if isinstance(node, yaml.ScalarNode) and node.style is None:
            try:
                price = Decimal(node.value)
            except InvalidOperation:
                price = Decimal(-1)
            if price.is_finite() and 0 <= price <= _LARGEST:
                if price % _SMALLEST:
                    raise self._error(node, f"{what}: at most six decimals are allowed")
                return price
        raise self._error(node, f"{what} must be a number of dollars, such as 0.8")


# Prices -------------------------------------------------------------------------------------------

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


class Prices:
    """Prices of models. Each model is looked up once. Safe to share between threads."""

    def __init__(self, own: Mapping[str, Tariff] | None = None) -> None:
        """``own`` has prices by model name, which take precedence over all others."""
        self._own = own or {}
        self._known: dict[tuple[str, str | None, int], Tariff | None] = {}

    @cached_property
    def digest(self) -> str:
        """A text that differs for prices that differ."""
        listed = version("genai-prices")
        own = blake2b(repr(sorted(self._own.items())).encode(), digest_size=16)
        return f"{listed} {own.hexdigest()}"

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
        key = (model, speed, int(at // DAY))
        try:
            return self._known[key]
        except KeyError:
            tariff = self._known[key] = self._find(*key)
            return tariff

    def possible(self, model: str, *, at: float) -> list[Tariff]:
        """Return every tariff that an answer may have if this model is requested; often one.

        The answer names the version that the API chose, and a price file may name some versions.
        """
        if own := self._of_family(model):
            return own
        tariff = self.tariff(model, at=at)
        return [] if tariff is None else [tariff]

    def _find(self, model: str, speed: str | None, day: int) -> Tariff | None:
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
    # The order of the numbers tells versions apart: 4-5 is not 5-4.
    numbers = [word for word in words if word.isdecimal()]
    return (*sorted(word for word in words if not word.isdecimal()), *numbers)


def is_same_model(one: str, other: str) -> bool:
    """Return whether two names are of one model, whatever their date."""
    return _family(one) == _family(other)


def _listed(model: str, speed: str | None, at: float) -> Tariff | None:
    """Return the prices of genai-prices.

    It is imported here, because the import takes a quarter of a second.
    """
    from genai_prices import Usage as Counted
    from genai_prices import calc_price

    def prices(context: dict[str, str] | None) -> Any:
        # Called with zero tokens, because only the prices are needed. They are read once.
        found = calc_price(
            Counted(input_tokens=0, output_tokens=0),
            model,
            provider_id="anthropic",
            genai_request_timestamp=datetime.fromtimestamp(at, UTC),
            price_context=context,
        )
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


def _price(value: Any, prompt: int) -> Any:
    """Return the price in dollars per million tokens for a prompt of this many tokens."""
    if value is None or isinstance(value, Decimal):
        return value
    reached = [tier for tier in value.tiers if prompt > tier.start]
    return max(reached, key=lambda tier: tier.start).price if reached else value.base


@lru_cache(maxsize=16)
def _of_file(path: Path, _state: tuple[int, int]) -> Prices:
    return Prices(read_prices(path))


_listed_only = Prices()


def prices_of(path: str | os.PathLike[str] | None = None) -> Prices:
    """Return the prices of a file, and of ``genai-prices`` for other models; "" for no file.

    A file is read again only when it has changed. Raises `ActorConfigurationError` with file and
    line.
    """
    if not path or not os.fspath(path):
        return _listed_only
    file = Path(path).expanduser()
    try:
        found = file.stat()
        state = (found.st_mtime_ns, found.st_size)
    except OSError:
        state = (0, 0)  # reading the file raises the error
    return _of_file(file, state)
