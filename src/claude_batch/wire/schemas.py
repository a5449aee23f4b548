"""Checks of JSON schemas before anything is sent: what the API refuses, and what is unsafe.

A schema may come from a file, an input line or a ledger that somebody else wrote. Answers are
validated against it, so it must neither reach the network nor hang the process.

Patterns are matched by the Rust engine in `pydantic_core`. Its time grows linearly with the text
for every pattern, so that a verdict never depends on a timeout. It has no look-around and no
backreferences, which the API refuses in schemas too.

Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs ("JSON Schema
limitations"), and `anthropic.transform_schema` of the SDK, which moves unsupported keywords into
descriptions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import msgspec
import pydantic_core
from pydantic_core import core_schema

# Schema safety ------------------------------------------------------------------------------------

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
        self._open: set[str] = set()
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
        name = str(value)
        if name not in self._known:
            if (fault := _reference_fault(word, value, self._open, self._root)) is not None:
                raise _Unsafe(path, fault)
            self._open.add(name)
            self._known[name] = self.visit(_target(self._root, name), path, level + 1)
            self._open.discard(name)
        return self._known[name]


def _reference_fault(word: str, value: object, above: Collection[str], root: object) -> str | None:
    """Return why a reference, below those that lead to it, cannot be followed, or `None`."""
    if not isinstance(value, str) or not value.startswith("#"):
        return f"`{word}: {value}` points outside; only `#/$defs/…` is supported"
    if value == "#" or value in above:
        return f"`{word}: {value}` is recursive, which is not supported; name the levels"
    return f"`{word}: {value}` points to nothing" if _target(root, value) is None else None


def _target(root: object, reference: str) -> object:
    """Return the part of a schema that a reference points to; None for nothing."""
    found = root
    for step in unquote(reference).removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Mapping[str, object]", found).get(name)
        elif isinstance(found, list) and name.isdecimal():
            found = dict(enumerate(cast("list[object]", found))).get(int(name[:9]))
        else:
            return None
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


# Schemas ------------------------------------------------------------------------------------------

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)
_SHAPES = ("type", "anyOf", "oneOf", "allOf", "enum", "const")

_NEVER = {
    "prefixItems": "a list with a schema for each position is not supported; use an object with "
    "named fields",
    "patternProperties": "keys that the schema does not name are not supported",
    "not": "`not` is not supported",
    "if": "`if` is not supported",
}
# Keywords that no rewriting can replace.

_BOUNDS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "maxItems", "uniqueItems", "contains"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired"),
    )
)
# Keywords that a rewriting can turn into descriptions.


def schema_fault(schema: object, *, rewritten: bool = False) -> str | None:
    """Return what the API would refuse in a schema, with the field's path; `None` if nothing.

    ``rewritten``: the schema will pass through `anthropic.transform_schema`, so bounds are allowed.
    A path has the form ``lines[].price``.
    """
    try:
        # Every request of a run has its actor's schema, so it is checked once.
        return _fault_in(msgspec.json.encode(schema), rewritten)
    except (TypeError, ValueError, RecursionError):
        return _fault_of(schema, rewritten)  # it is no JSON, and its fault is reported


@lru_cache(maxsize=64)
def _fault_in(schema: bytes, rewritten: bool) -> str | None:
    return _fault_of(msgspec.json.decode(schema), rewritten)


def _fault_of(schema: object, rewritten: bool) -> str | None:
    root = cast("Mapping[str, Any]", schema)  # if it is no mapping, no reference is followed
    try:
        for path, fault in _faults(schema, "", _Root(root, set()), (), rewritten):
            return f"field `{path}`: {fault}" if path else fault
    except RecursionError:
        return "the schema is nested too deeply"
    # Rewritten patterns are not sent, and not matched here.
    return unsafe_part(schema, patterns=not rewritten)


def close_objects(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with ``additionalProperties: false``, which the API requires, added.

    Nothing else is changed.
    """
    closed = {key: _closed(key, value) for key, value in schema.items()}
    if schema.get("type") == "object" or "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {name: _closed("items", inner) for name, inner in named.items()}
    if key in ("anyOf", "allOf") and isinstance(value, list):
        return [_closed("items", inner) for inner in cast("list[Any]", value)]
    if key == "items" and isinstance(value, Mapping):
        return close_objects(cast("Mapping[str, Any]", value))
    return value


_Faults = Iterator[tuple[str, str]]


class _Root(NamedTuple):
    """The schema that references point into, and the references that were found valid."""

    schema: Mapping[str, Any]
    right: set[str]


def _faults(
    schema: object, path: str, root: _Root, above: tuple[str, ...], rewritten: bool
) -> _Faults:
    if not isinstance(schema, Mapping):
        yield path, f"a schema must be a mapping, not {schema!r}"
        return
    node = cast("Mapping[str, Any]", schema)
    if "$ref" in node:
        yield from _reference_faults(node["$ref"], path, root, above, rewritten)
        return
    yield from ((path, why) for why in _own_faults(node, rewritten))
    branches: list[tuple[str, object]] = []
    properties = node.get("properties", {})
    if isinstance(properties, Mapping):
        for name, inner in cast("Mapping[str, Any]", properties).items():
            branches.append((f"{path}.{name}" if path else str(name), inner))
    else:
        yield path, "`properties` must be a mapping of names to schemas"
    if "items" in node:
        branches.append((f"{path}[]", node["items"]))
    for word in ("anyOf", "oneOf", "allOf"):
        alternatives = node.get(word, [])
        if isinstance(alternatives, list):
            branches += [(path, inner) for inner in cast("list[object]", alternatives)]
        else:
            yield path, f"`{word}` must be a list of schemas"
    for where, inner in branches:
        yield from _faults(inner, where, root, above, rewritten)


def _reference_faults(
    reference: object, path: str, root: _Root, above: tuple[str, ...], rewritten: bool
) -> _Faults:
    if (fault := _reference_fault("$ref", reference, above, root.schema)) is not None:
        yield path, fault
        return
    name = str(reference)
    if name in root.right:
        return  # many fields may share it
    yield from _faults(_target(root.schema, name), path, root, (*above, name), rewritten)
    root.right.add(name)  # callers stop at the first fault, so here there was none


def _required_faults(node: Mapping[str, Any]) -> Iterator[str]:
    required = node.get("required")
    if required is None:
        return
    if not isinstance(required, list) or not all(
        isinstance(name, str) for name in cast("list[object]", required)
    ):
        yield "`required` must be a list of names, such as [name]"
        return
    properties = node.get("properties", {})
    if isinstance(properties, Mapping) and (node.get("type") == "object" or "properties" in node):
        for name in cast("list[str]", required):
            if name not in properties:
                # Objects are closed, so no answer could have it.
                yield f"`required` names {name!r}, which is not in `properties`"


def _unmatched(kinds: object, values: list[object]) -> str | None:
    """Return why no answer can match values that a type allows, or `None`."""
    if kinds is None:
        return None
    types = cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]
    if any(isinstance(value, bool) for value in values) and "boolean" not in types:
        # YAML reads `yes`, `no`, `on` and `off` as booleans.
        return f"has true or false, but the type is {kinds}; put words such as yes and no in quotes"
    if any(any(kind in types for kind in _TYPES_OF.get(type(value), types)) for value in values):
        return None
    return f"has no value of the type {kinds}; correct the values or the type"


_TYPES_OF: dict[type, Sequence[str]] = {
    str: ("string",),
    int: ("integer", "number"),
    bool: ("boolean",),
    type(None): ("null",),
}
"""The types of values; other values are not checked."""


def _own_faults(node: Mapping[str, Any], rewritten: bool) -> Iterator[str]:
    kinds = node.get("type")
    for kind in cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]:
        if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
            yield f"`type: {kind}` is not a type of JSON Schema"
    if not any(word in node for word in _SHAPES):
        yield "it does not define the value's type; give it a `type`"
    for word, why in _NEVER.items():
        if word in node:
            yield why
    if node.get("additionalProperties", False) is not False:
        yield (
            "keys that the schema does not name (`additionalProperties`) are not supported; "
            "use a list of objects with a field for the key"
        )
    values = node.get("enum")
    if values is not None:
        if not isinstance(values, list) or not values:
            yield "`enum` must be a list of at least one value"
        elif any(isinstance(value, list | Mapping) for value in cast("list[object]", values)):
            yield "`enum` may contain texts, numbers, booleans and null, but no lists or objects"
        elif (fault := _unmatched(node.get("type"), cast("list[object]", values))) is not None:
            yield f"`enum` {fault}"
    if "const" in node and (fault := _unmatched(node.get("type"), [node["const"]])) is not None:
        yield f"`const` {fault}"
    yield from _required_faults(node)
    if rewritten:
        return
    if "oneOf" in node:
        yield "`oneOf` is not supported; write `anyOf`"
    for word in node:
        if word in _BOUNDS:
            yield f"`{word}` is not supported; write it in the `description`"
    if node.get("minItems") not in (None, 0, 1):
        yield "`minItems` must be 0 or 1; write anything else in the `description`"
    if node.get("type") == "string" and node.get("format") not in (None, *_FORMATS):
        known = ", ".join(sorted(_FORMATS))
        yield f"`format: {node['format']}` is not supported; use one of {known}"
