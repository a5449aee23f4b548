"""The user's price file, JSON or YAML, read with the line of each fault::

claude-haiku-4-5:        # a model's name; also matches the other names of the model
  input: 0.8             # dollars per million tokens, live; token prices halve in a batch
  output: 4
  cache_read: 0.08       # default: 0.1 times `input`, also for models that charge less
  cache_write_5m: 1      # default: 1.25 times `input`
  cache_write_1h: 1.6    # default: twice `input`
  web_search: 10         # dollars per thousand searches, also in a batch
  above:                 # prompts with more tokens than the number, including cached ones
    200000: {input: 1.6, output: 6}
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

import yaml

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.files import read_small
from claude_batch.core.yaml_text import BoundedLoader, YamlFault, pairs, yaml_faults
from claude_batch.money.rates import Rates, Tariff

_TOKENS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
_NEEDED = ("input", "output")
_SMALLEST = Decimal("0.000001")
_LARGEST = Decimal(1_000_000)


def read_prices(path: Path) -> dict[str, Tariff]:
    """Return the prices in a file by model name. Raises `ActorConfigurationError`."""
    try:
        text = read_small(path)
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
