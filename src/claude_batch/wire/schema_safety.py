"""Safety of JSON schemas: remote references, patterns that backtrack, unbounded expansion.

A schema may come from a file, an input line or a ledger that somebody else wrote. Answers are
validated against it, so it must neither reach the network nor hang the process.

Patterns are matched by the Rust engine in `pydantic_core`. Its time grows linearly with the text
for every pattern, so that a verdict never depends on a timeout. It has no look-around and no
backreferences, which the API refuses in schemas too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import msgspec
import pydantic_core
from pydantic_core import core_schema

MOST_PARTS = 10_000
"""Most parts of a schema that may be applied along one path, including those behind references."""

MOST_LEVELS = 150
"""Most levels of a schema, including those behind references."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset(("const", "default", "enum", "example", "examples"))
# Values, and never schemas, whatever they look like.
_NAMED = frozenset(("properties", "$defs", "definitions", "dependentSchemas"))
# Mappings of names to schemas: a property may be called `pattern`.
_REFUSED = {
    "patternProperties": "keys that the schema does not name are not supported",
    # To find the evaluated parts, a validator evaluates them again at every level.
    "unevaluatedItems": "`unevaluatedItems` is not supported",
    "unevaluatedProperties": "`unevaluatedProperties` is not supported",
}


class UnusableSchema(ValueError):
    """This schema cannot validate any answer; the message contains the reason."""


class _Unsafe(Exception):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"field `{path}`: {why}" if path else why)


def unsafe_part(schema: object, *, patterns: bool = True) -> str | None:
    """Return the first part of a schema that must not be used for validation, or `None`.

    Every keyword is checked at any depth, including those that the API does not define.
    ``patterns`` also refuses each `pattern` that the matcher does not accept.
    """
    try:
        _Survey(schema, patterns).visit(schema, "", 0)
    except _Unsafe as found:
        return str(found)
    return None


class _Survey:
    """Visitor of every part of a schema, once; it counts the parts behind references."""

    def __init__(self, root: object, patterns: bool) -> None:
        self._root = root
        self._patterns = patterns
        self._open = {"#"}
        self._known: dict[str, int] = {}

    def visit(self, node: object, path: str, level: int) -> int:
        """Return the number of parts that may be applied along one path through a value.

        Raises `_Unsafe`.
        """
        if level > MOST_LEVELS:
            raise _Unsafe(path, f"the schema is nested more than {MOST_LEVELS} levels deep")
        parts = 1
        if isinstance(node, Mapping):
            for word, value in cast("Mapping[object, object]", node).items():
                parts += self._keyword(str(word), value, path, level)
        elif isinstance(node, list | tuple):
            parts += sum(self.visit(each, path, level + 1) for each in cast("list[object]", node))
        if parts > MOST_PARTS:
            raise _Unsafe(
                path,
                f"the schema has more than {MOST_PARTS:,} parts once its references are followed",
            )
        return parts

    def _keyword(self, word: str, value: object, path: str, level: int) -> int:
        if word in _DATA:
            return 0
        if word in _REFERENCES:
            return self._reference(word, value, path, level)
        if word == "pattern":
            if self._patterns and isinstance(value, str):
                _check_pattern(value, path)
            return 0
        if word in _REFUSED:
            raise _Unsafe(path, _REFUSED[word])
        if level and word in ("$id", "$schema"):
            raise _Unsafe(path, f"`{word}` is allowed only at the top of a schema")
        if word in _NAMED and isinstance(value, Mapping):
            parts = [
                self.visit(inner, f"{path}.{name}" if path else str(name), level + 1)
                for name, inner in cast("Mapping[object, object]", value).items()
            ]
            # Each value of an object has one name; a definition is applied where it is referenced.
            largest = max(parts, default=0)
            return sum(parts) if word == "dependentSchemas" else largest
        if isinstance(value, Mapping | list | tuple):
            inside = cast("object", value)
            return self.visit(inside, f"{path}[]" if word == "items" else path, level + 1)
        return 0

    def _reference(self, word: str, value: object, path: str, level: int) -> int:
        if not isinstance(value, str) or not value.startswith("#"):
            raise _Unsafe(path, f"`{word}: {value}` points outside; only `#/$defs/…` is supported")
        if value in self._open:
            raise _Unsafe(
                path, f"`{word}: {value}` is recursive, which is not supported; name the levels"
            )
        if value not in self._known:
            self._open.add(value)
            self._known[value] = self.visit(self._target(word, value, path), path, level + 1)
            self._open.discard(value)
        return self._known[value]

    def _target(self, word: str, reference: str, path: str) -> object:
        found = self._root
        for step in unquote(reference).removeprefix("#/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = cast("Mapping[str, object]", found)[name]
            elif isinstance(found, list) and name.isdecimal():
                found = dict(enumerate(cast("list[object]", found))).get(int(name[:9]))
            else:
                found = None
            if found is None:
                raise _Unsafe(path, f"`{word}: {reference}` points to nothing")
        return found


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> pydantic_core.SchemaValidator:
    return pydantic_core.SchemaValidator(
        core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    )


def _check_pattern(pattern: str, path: str) -> None:
    try:
        _matcher(pattern)
    except pydantic_core.SchemaError as error:
        why = str(error).strip().splitlines()[-1].strip().removeprefix("error: ")
        why = why.removeprefix("SchemaError: ")
        shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}…"
        raise _Unsafe(path, f"`pattern: {shown}` cannot be used: {why}") from None


def _pattern(
    _validator: object, pattern: str, instance: object, _schema: object
) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _matcher(pattern).isinstance_python(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


@lru_cache(maxsize=1)
def _validator_class() -> Any:
    from jsonschema import validators

    extend: Any = cast("Any", validators).extend  # its stubs are incomplete
    return extend(validators.Draft202012Validator, {"pattern": _pattern})


@lru_cache(maxsize=64)
def validator_of(schema: bytes) -> Any:
    """Return a validator for a schema, given as JSON; it never uses the network.

    Raises `UnusableSchema`.
    """
    from jsonschema import SchemaError
    from referencing import Registry

    decoded: Any = msgspec.json.decode(schema)
    if (fault := unsafe_part(decoded)) is not None:
        raise UnusableSchema(fault)
    kind, nothing = _validator_class(), cast("Any", Registry)()
    try:
        # Keywords of a wrong type would fail in the middle of a validation.
        kind.check_schema(decoded)
    except SchemaError as error:
        raise UnusableSchema(str(error.message)) from None
    # An empty registry, which retrieves nothing.
    return kind(decoded, registry=nothing)
