"""The part of Messages params that is marked for the prompt cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

_MARK = "cache_control"


class MarkedPrefix(NamedTuple):
    """The longest marked prefix."""

    digest: bytes
    """Equal for equal prefixes."""
    size: int
    """Bytes of its JSON."""
    hour: bool
    """Whether any mark asks for an hour instead of five minutes."""


def marked_prefix(params: bytes) -> MarkedPrefix | None:
    """Return the longest prefix of encoded params with a ``cache_control`` mark, or `None`."""
    if b'"cache_control"' not in params:
        return None  # quotes inside texts are escaped
    read = cast("dict[str, Any]", msgspec.json.decode(params))
    parts = list(_parts(read))
    marks = [(at, part[_MARK]) for at, part in enumerate(parts) if part.get(_MARK)]
    if read.get(_MARK):
        marks.append((len(parts) - 1, read[_MARK]))
    if not marks:
        return None
    last = max(at for at, _ in marks)
    encoded = msgspec.json.encode([read.get("model"), parts[: last + 1]])
    hour = any(isinstance(mark, dict) and "1h" in mark.values() for _, mark in marks)
    return MarkedPrefix(hashlib.blake2b(encoded, digest_size=16).digest(), len(encoded), hour)


def _parts(params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield tools, system and content blocks in the order of the prefix."""
    yield from params.get("tools") or ()
    yield from _blocks(params.get("system"))
    for message in params.get("messages") or ():
        yield from ({"role": message.get("role"), **each} for each in _blocks(message["content"]))


def _blocks(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (cast("dict[str, Any]", each) for each in cast("list[object]", content)
                    if isinstance(each, dict))  # fmt: skip
