"""Recognize a list of requests in a text that would be sent as one prompt."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, Final, cast

from claude_batch.actor.request import ActorRequest
from claude_batch.core.errors import InvalidRequestError

_ASKING: Final = frozenset(("prompt", "messages", "params", "custom_id"))
"""Keys of an object that is a request, or is meant as one."""

_BATCH_ITEM: Final = frozenset(("custom_id", "params"))
"""Keys of an item of the API's batch body."""

_BROKEN: Final = re.compile(r'\{[^{}]*"(?:prompt|messages|params|custom_id)"\s*:')
"""The start of a request that may have an error after it."""

_IN_ARRAY: Final = re.compile(r"\s*,\s*")
_IN_STREAM: Final = re.compile(r"\s*")
_LINE: Final = re.compile(r"[^\r\n]+")

_LINES = 6
"""How many lines of a text are read, with the last one. A text may be as large as a batch."""

_RENAMED = "give the file a name that ends with .jsonl, or pipe it to standard input (-)"
_AS_LINES = "write one request a line to a file that ends with .jsonl, or to standard input (-)"
_AS_ITEMS = (
    'write each item of `requests` as a line {"id": …, "params": …} to a file that ends with .jsonl'
)


def list_fault(text: str) -> str | None:
    """Return the error message for a text that is a list of requests; None if it is a prompt.

    Returns None if the text may well be one prompt: a text that begins with a quoted sentence, a
    JSON document without requests, or code.

    A text is a list if its first two items are requests, or if none of its items is anything else
    than a request or a text, and there are several. A single item must be exactly a request.
    """
    text = text.strip()
    if text[:1] not in ("{", "[", '"'):
        return None
    is_array = text.startswith("[")
    try:
        whole: object = json.loads(text)
    except (ValueError, RecursionError):
        is_list = _are_requests(_items_of_array(text) if is_array else _items_of_lines(text))
    else:
        if _is_batch_body(whole):
            return _fault("a batch body of the Messages API", _AS_ITEMS)
        items = cast("list[object]", whole) if is_array else [whole]
        if len(items) == 1:
            # Over several lines it is a JSON document, which may have such keys too.
            is_list = _is_request(items[0]) and (is_array or _LINE.fullmatch(text) is not None)
        else:
            is_list = _are_requests(list(map(_kind, items)))
    if not is_list:
        return None
    if is_array:
        return _fault("a JSON array of requests", _AS_LINES)
    return _fault("requests as JSON lines", _RENAMED)


def _fault(form: str, remedy: str) -> str:
    return (
        f"it holds {form}, and would be sent as one prompt; {remedy}. If it is one prompt, write "
        "it there as one JSON string"
    )


def _is_batch_body(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    items: object = cast("dict[str, object]", value).get("requests")
    if not isinstance(items, list):
        return False
    first = cast("list[object]", items)[:1]
    return any(isinstance(item, dict) and "params" in item for item in first)


def _are_requests(kinds: list[str]) -> bool:
    """Return whether items of these kinds (as `_kind_of_line` has them) are a list of requests."""
    if kinds[:2] == ["request", "request"]:
        return True
    if len(kinds) < 2 or "other" in kinds:
        return False
    return any(kind.endswith("request") for kind in kinds) or kinds.count("text") > 1


def _items_of_array(text: str) -> list[str]:
    """Return the first two items of an array with an error.

    Only requests count, because code has arrays of texts too.
    """
    start = _IN_STREAM.match(text, 1)
    values, end = _two_values(text, start.end() if start else 1, _IN_ARRAY)
    kinds = list(map(_kind, values))
    if len(kinds) < 2:
        kinds.append("broken request" if _BROKEN.match(text, end) else "other")
    return ["other" if kind == "text" else kind for kind in kinds]


def _items_of_lines(text: str) -> list[str]:
    """Return the first items of a text, and the last one."""
    # Requests that are written over several lines follow each other too.
    kinds = list(map(_kind, _two_values(text, 0, _IN_STREAM)[0]))
    if kinds == ["request", "request"]:
        return kinds
    lines = filter(str.strip, (found[0] for found in _LINE.finditer(text)))
    first = list(islice(lines, _LINES))
    if len(first) == _LINES:
        # A question often follows quoted sentences.
        first[-1] = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
    return list(map(_kind_of_line, first))


def _kind_of_line(line: str) -> str:
    """Return whether a line is a request, a text, a broken one of both, or something other."""
    line = line.strip()
    try:
        return _kind(json.loads(line))
    except (ValueError, RecursionError):
        if _BROKEN.match(line):
            return "broken request"
        # A sentence that begins with a quotation has its second quotation mark too.
        return "broken text" if line.startswith('"') and line.count('"') == 1 else "other"


def _two_values(text: str, at: int, separator: re.Pattern[str]) -> tuple[list[object], int]:
    """Return up to two JSON values from a place on, and where the next one would begin."""
    decode = json.JSONDecoder().raw_decode
    values: list[object] = []
    while len(values) < 2:
        try:
            value, end = cast("tuple[object, int]", decode(text, at))
        except (ValueError, RecursionError):
            break
        values.append(value)
        found = separator.match(text, end)
        at = len(text) if found is None else found.end()
    return values, at


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    asks = isinstance(value, dict) and not _ASKING.isdisjoint(cast("dict[str, object]", value))
    return "request" if asks else "other"


def _is_request(value: object) -> bool:
    """Return whether a value is exactly a request, or an item of the API's batch body."""
    if _kind(value) != "request":
        return False
    given = cast("dict[str, Any]", value)
    if given.keys() == _BATCH_ITEM:
        return True
    try:
        ActorRequest.of(given)
    except InvalidRequestError:
        return False
    return True
