"""Valid instances of JSON schemas, so that structured answers and tool calls can be parsed.

Deterministic: the same schema and text give the same instance. It covers the API's structured
output schemas, and also the bounds that these do not support: those of a tool, and those that the
SDK has moved into a description. It is not a general solver: if a schema contradicts itself, the
first rule wins.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, cast

_FORMATS = {
    "date-time": "2026-11-21T12:00:00Z",
    "date": "2026-11-21",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "sandbox@example.com",
    "hostname": "sandbox.example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/sandbox",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_SAMPLES = (
    "a", "A", "0", "a1", "aaa", "AAA", "000", "abc-123", "2026-11-21", "AB12", "1.0",
    "0000000000", "00000", "0000", "00", "AA", "aa", "a@b.co", "#000000",
)  # fmt: skip
_DESCRIBED = re.compile(r"\{(.*)\}\s*\Z")
"""The end of a description: what `anthropic.transform_schema` has moved there."""
_KEYWORD = re.compile(r"(?:^|, )([a-zA-Z]+): ((?:(?!, [a-zA-Z]+: ).)*)")
_NUMBERS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "minItems", "maxItems",
)  # fmt: skip
_UNSUPPORTED = {
    "integer": frozenset(_NUMBERS[:5]),
    "number": frozenset(_NUMBERS[:5]),
    "string": frozenset(("minLength", "maxLength")),
    "array": frozenset(("maxItems", "uniqueItems")),
}
"""Keywords that the schema of an output must not have, by its type."""
_DEEPEST = 24
"""Depth at which a recursive schema gets `null`, an empty list or nothing optional."""

_MOST_VALUES = 10_000
_LONGEST = 1_000_000
"""Values and characters of an instance: a schema of a few bytes may request any number."""

Schema = dict[str, Any]


class SchemaError(ValueError):
    """The value is not a valid JSON Schema."""


def instance(schema: Any, text: str = "sandbox") -> Any:
    """Return a value that `schema` accepts; free strings are filled with `text`.

    Raises `SchemaError` if `schema` is not a valid JSON Schema.
    """
    root = cast(Schema, schema) if isinstance(schema, dict) else {}
    try:
        return _Builder(root, text).build(root, 0)
    except (
        AttributeError,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ) as error:
        # Any misplaced value in the schema; the message is Python's.
        raise SchemaError(f"not a valid JSON schema: {error}") from error


def unsupported_part(schema: Any) -> str | None:
    """Return what the API refuses in the schema of an output, in its words; `None` if nothing."""
    if not isinstance(schema, dict):
        return None
    fields = cast(Schema, schema)
    kind = str(fields.get("type"))
    if kind == "object" and fields.get("additionalProperties") is not False:
        return "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if words := sorted(_UNSUPPORTED.get(kind, frozenset()) & fields.keys()):
        which = f"properties {', '.join(words)} are" if words[1:] else f"property '{words[0]}' is"
        return f"For '{kind}' type, {which} not supported"
    if kind == "array" and fields.get("minItems") not in (None, 0, 1):
        return "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    parts: list[Any] = [fields.get("items")]
    for name in ("properties", "$defs", "definitions", "anyOf", "allOf"):
        held: Any = fields.get(name)
        if isinstance(held, dict | list):
            named = cast(Any, held)
            parts += named.values() if isinstance(held, dict) else named
    return next(filter(None, map(unsupported_part, parts)), None)


def _described(schema: Schema) -> Schema:
    """Return a schema with the bounds at the end of its description; its own keywords win."""
    description: Any = schema.get("description")
    found = _DESCRIBED.search(description) if isinstance(description, str) else None
    if found is None:
        return schema
    words = dict(_KEYWORD.findall(found[1]))
    bounds: Schema = {}
    for name in _NUMBERS:
        with suppress(KeyError, ValueError):
            bounds[name] = json.loads(words[name])
    if "pattern" in words:
        bounds["pattern"] = words["pattern"]
    if words.get("uniqueItems") == "True":
        bounds["uniqueItems"] = True
    return bounds | schema


class _Builder:
    def __init__(self, root: Schema, text: str) -> None:
        self.root = root
        self.text = text
        self._values = 0

    def build(self, schema: Any, depth: int) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"it asks for more than {_MOST_VALUES:,} values")
        if not isinstance(schema, dict):
            return self.text
        schema = _described(self.resolved(cast(Schema, schema)))
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.build(self.choose(schema, schema[key], depth), depth)
        kind = self.kind(schema, depth)
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            return self.array(schema, depth)
        if kind == "string":
            return self.string(schema)
        if kind in ("integer", "number"):
            return number(schema, integer=kind == "integer")
        if kind == "boolean":
            return True
        return None

    def resolved(self, schema: Schema) -> Schema:
        """Return `schema` with its `$ref` followed and its `allOf` merged; own keys win."""
        hops = 0
        while "$ref" in schema and hops < _DEEPEST:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**self.pointed(str(schema["$ref"])), **rest}
            hops += 1
        for part in cast(list[Any], schema.get("allOf") or []):
            if isinstance(part, dict):
                schema = _merged(self.resolved(cast(Schema, part)), schema)
        return {key: value for key, value in schema.items() if key != "allOf"}

    def pointed(self, reference: str) -> Schema:
        found: Any = self.root
        for step in reference.removeprefix("#").strip("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if name and isinstance(found, dict):
                found = cast(Schema, found).get(name)
        return cast(Schema, found) if isinstance(found, dict) else {}

    def choose(self, schema: Schema, options: list[Any], depth: int) -> Any:
        """Return the first alternative; below the deepest level one that ends, if there is any."""
        if depth >= _DEEPEST:
            for option in options:
                if isinstance(option, dict) and cast(Schema, option).get("type") == "null":
                    return cast(Schema, option)
        outer = {key: schema[key] for key in ("properties", "required", "type") if key in schema}
        first = options[0]
        if outer and isinstance(first, dict):
            return _merged(self.resolved(cast(Schema, first)), outer)
        return first

    def kind(self, schema: Schema, depth: int) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [str(each) for each in cast(list[Any], kind)]
            if depth >= _DEEPEST and "null" in kinds:
                return "null"
            return kinds[0] if kinds else "null"
        if isinstance(kind, str):
            return kind
        if "properties" in schema or "required" in schema:
            return "object"
        if "items" in schema or "prefixItems" in schema:
            return "array"
        if {"minimum", "maximum", "multipleOf"} & schema.keys():
            return "number"
        return "string"

    def object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = cast(Schema, schema.get("properties") or {})
        required = cast(list[str], schema.get("required") or [])
        names = [name for name in properties if name in required or depth < _DEEPEST // 4]
        names += [name for name in required if name not in properties]
        extra = schema.get("additionalProperties", {})
        return {name: self.build(properties.get(name, extra), depth + 1) for name in names}

    def array(self, schema: Schema, depth: int) -> list[Any]:
        prefix: list[Any] = schema.get("prefixItems") or []
        first = [self.build(each, depth + 1) for each in prefix]
        least = int(schema.get("minItems") or 0)
        most = int(schema.get("maxItems", max(least, 1)))
        wanted = min(max(least, 0 if depth >= _DEEPEST // 4 else 1), most)
        if schema.get("items") is False:
            return first
        items: Any = schema.get("items") or {}
        while len(first) < wanted:
            first.append(_varied(self.build(items, depth + 1), len(first), schema, items))
        return first

    def string(self, schema: Schema) -> str:
        value = _FORMATS.get(str(schema.get("format")), self.text)
        if schema.get("pattern") is not None:
            value = _matching(str(schema["pattern"])) or value
        least = int(schema.get("minLength") or 0)
        if least > _LONGEST:
            raise ValueError(f"it asks for a text of more than {_LONGEST:,} characters")
        if len(value) < least:
            value = value.ljust(least, "x")
        most = schema.get("maxLength")
        return value if most is None else value[: int(most)]


_OPENING = re.compile(r"\{")
_MOST_OPENINGS = 200
_decode = json.JSONDecoder().raw_decode


def last_schema(text: str) -> Schema | None:
    """Return the last JSON schema of an object that is written in a text."""
    found: Schema | None = None
    start = 0
    for _ in range(_MOST_OPENINGS):
        opening = _OPENING.search(text, start)
        if opening is None:
            break
        start = opening.end()
        try:
            value, end = _decode(text, opening.start())
        except (ValueError, RecursionError):
            continue
        start = end
        fields = cast(Schema, value)
        if isinstance(fields.get("properties"), dict) or "$ref" in fields:
            found = fields
    return found


def number(schema: Schema, *, integer: bool) -> int | float:
    """Return the valid number nearest to 1 by the schema's bounds and `multipleOf`."""
    step = schema.get("multipleOf") or (1 if integer else None)
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if above is not None and (low is None or above >= low):
        low = above + (step or _gap(above, high if high is not None else below))
    if below is not None and (high is None or below <= high):
        high = below - (step or _gap(below, low))
    value: int | float = 1
    if high is not None and value > high:
        value = math.floor(high) if integer else high
    if low is not None and value < low:
        value = math.ceil(low) if integer else low
    if step and value % step:
        upward = math.ceil(value / step) * step
        value = upward if high is None or upward <= high else math.floor(value / step) * step
    return int(value) if integer else value


def _gap(bound: float, other: float | None) -> float:
    return 1 if other is None else abs(other - bound) / 2 or 1


def _merged(base: Schema, over: Schema) -> Schema:
    """Merge two schemas: unite properties and required names; else `over`'s keys win."""
    merged = {**base, **over}
    if "properties" in base and "properties" in over:
        merged["properties"] = {**base["properties"], **over["properties"]}
    if "required" in base and "required" in over:
        merged["required"] = list(dict.fromkeys([*base["required"], *over["required"]]))
    return merged


def _varied(value: Any, position: int, schema: Schema, items: Any) -> Any:
    """Return a different item for each position if items must be unique."""
    if not schema.get("uniqueItems") or position == 0:
        return value
    options: Any = cast(Schema, items).get("enum") if isinstance(items, dict) else None
    if options:
        return options[position % len(options)]
    if isinstance(value, str):
        return f"{value}{position}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value + position
    return value


def _matching(pattern: str) -> str | None:
    """Return a string for the few simple patterns that schemas use; `None` for any other."""
    for sample in _SAMPLES:
        try:
            if re.search(pattern, sample):
                return sample
        except re.error:
            return None
    return None
