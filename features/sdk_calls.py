"""Calls of the official SDK as rows of a table: a method by its path, its arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import attrgetter
from typing import Any

import anthropic


def make(client: anthropic.Anthropic, call: str, arguments: str) -> Any:
    """Make a call such as `models.list`; the body of the API's error if it is refused."""
    given: dict[str, Any] = json.loads(arguments)
    if "file" in given:
        name, content = given["file"]
        given["file"] = (name, content.encode())
    try:
        return attrgetter(call)(client)(**given)
    except anthropic.APIStatusError as error:
        return error.body


def field_of(found: Any, field: str) -> Any:
    """What a path such as `usage.input_tokens` leads to; `0.id` and `*.id` read all pages."""
    first, _, rest = field.partition(".")
    if first == "*":
        return [field_of(each, rest) for each in found]
    if first.isdigit():
        found, field = list(found)[int(first)], rest
    return reduce(_step, field.split("."), found)


def _step(found: Any, name: str) -> Any:
    if isinstance(found, list):
        return found[int(name)]
    return found[name] if isinstance(found, Mapping) else getattr(found, name)
