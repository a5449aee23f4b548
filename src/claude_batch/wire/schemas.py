"""Checks of JSON schemas for `output_config.format`, before anything is sent.

Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs ("JSON Schema
limitations"), and `anthropic.transform_schema` of the SDK, which moves unsupported keywords into
descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from claude_batch.wire.schema_safety import unsafe_part

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
    if not isinstance(reference, str) or not reference.startswith("#"):
        yield path, f"`$ref: {reference}` points outside; only `#/$defs/…` is supported"
        return
    if reference in above or reference == "#":
        yield path, f"`$ref: {reference}` is recursive, which is not supported; name the levels"
        return
    if reference in root.right:
        return  # many fields may share it
    found: Any = root.schema
    for step in reference.removeprefix("#").strip("/").split("/"):
        word = step.replace("~1", "/").replace("~0", "~")
        found = cast("Any", found).get(word) if isinstance(found, Mapping) else None
    if found is None:
        yield path, f"`$ref: {reference}` points to nothing"
        return
    yield from _faults(found, path, root, (*above, reference), rewritten)
    root.right.add(reference)  # callers stop at the first fault, so here there was none


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
