"""Recognize a list of requests in a text that would be sent as one prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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

_LINES = 5
"""How many lines of a text are read. A text may be as large as a whole batch."""

_RENAMED = "give the file a name that ends with .jsonl, or pipe it to standard input (-)"
_AS_LINES = "write one request a line to a file that ends with .jsonl, or to standard input (-)"
_AS_ITEMS = (
    'write each item of `requests` as a line {"id": …, "params": …} to a file that ends with .jsonl'
)


def list_fault(text: str) -> str | None:
    """Return the error message for a text that is a list of requests; None if it is a prompt.

    Returns None if the text may well be one prompt: a text that begins with a quoted sentence, a
    JSON document without requests, or code.
    """
    text = text.strip()
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        whole: object = json.loads(text)
    except (ValueError, RecursionError):
        if text.startswith("["):
            return _fault("a JSON array of requests", _AS_LINES) if _is_array(text) else None
        return _fault("requests as JSON lines", _RENAMED) if _is_json_lines(text) else None
    if isinstance(whole, list):
        listed = _is_list(cast("list[object]", whole))
        return _fault("a JSON array of requests", _AS_LINES) if listed else None
    if _is_batch_body(whole):
        return _fault("a batch body of the Messages API", _AS_ITEMS)
    # Over several lines it is a JSON document, which may have such keys too.
    is_line = _LINE.fullmatch(text) is not None and _is_request(whole)
    return _fault("requests as JSON lines", _RENAMED) if is_line else None


def _fault(form: str, remedy: str) -> str:
    return (
        f"it holds {form}, and would be sent as one prompt; {remedy}. If it is one prompt, write "
        "it there as one JSON string"
    )


def _is_list(items: list[object]) -> bool:
    if len(items) < 2:
        # A single object may be anything that has such a key, and a single text too.
        return bool(items) and _is_request(items[0])
    return all(map(_asks, items[:2])) or all(map(_is_item, items))


def _is_batch_body(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    items: object = cast("dict[str, object]", value).get("requests")
    if not isinstance(items, list):
        return False
    first = cast("list[object]", items)[:1]
    return any(isinstance(item, dict) and "params" in item for item in first)


def _is_array(text: str) -> bool:
    """Return whether an array with an error is one of requests.

    An array of texts is accepted, because code has such arrays too.
    """
    first = _IN_STREAM.match(text, 1)
    found = list(islice(_values(text, first.end() if first else 1, _IN_ARRAY), 2))
    if not found or not all(_asks(value) for value, _ in found):
        return False
    after = _IN_ARRAY.match(text, found[0][1])
    return len(found) == 2 or (after is not None and bool(_BROKEN.match(text, after.end())))


def _is_json_lines(text: str) -> bool:
    # Requests that are written over several lines follow each other too.
    first = [value for value, _ in islice(_values(text, 0, _IN_STREAM), 2)]
    if len(first) == 2 and all(map(_asks, first)):
        return True
    lines = (found[0] for found in _LINE.finditer(text))
    kinds = [_kind(line) for line in islice(filter(str.strip, lines), _LINES)]
    # A question often follows quoted sentences, so the last line counts too.
    kinds.append(_kind(text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]))
    if len(kinds) < 3 or "other" in kinds:
        return False
    return any(kind.endswith("request") for kind in kinds) or kinds[:-1].count("text") > 1


def _kind(line: str) -> str:
    """Return whether a line is a request, a text, a broken one of both, or something other."""
    line = line.strip()
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        if _BROKEN.match(line):
            return "broken request"
        # A sentence that begins with a quotation has its second quotation mark too.
        return "broken text" if line.startswith('"') and line.count('"') == 1 else "other"
    if isinstance(value, str):
        return "text"
    return "request" if _asks(value) else "other"


def _values(text: str, at: int, separator: re.Pattern[str]) -> Iterator[tuple[object, int]]:
    """Yield JSON values from a place on, each with its end, until one has an error."""
    decode = json.JSONDecoder().raw_decode
    while True:
        try:
            value, end = cast("tuple[object, int]", decode(text, at))
        except (ValueError, RecursionError):
            return
        yield value, end
        if (found := separator.match(text, end)) is None:
            return
        at = found.end()


def _asks(value: object) -> bool:
    return isinstance(value, dict) and not _ASKING.isdisjoint(cast("dict[str, object]", value))


def _is_item(value: object) -> bool:
    return isinstance(value, str) or _asks(value)


def _is_request(value: object) -> bool:
    """Return whether a value is exactly a request, or an item of the API's batch body."""
    if not _asks(value):
        return False
    given = cast("dict[str, Any]", value)
    if given.keys() == _BATCH_ITEM:
        return True
    try:
        ActorRequest.of(given)
    except InvalidRequestError:
        return False
    return True
