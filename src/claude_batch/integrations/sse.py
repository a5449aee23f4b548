"""Turn a finished Message into the server-sent events of the Messages API.

Order and shapes are those of the streaming API:
https://platform.claude.com/docs/en/build-with-claude/streaming

Values keep the bytes that the API sent, so numbers keep their digits. Only the parts of a message
that become separate events are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec

LARGEST_DELTA: Final = 16 * 1024
"""Most bytes of text, thinking or tool input in one event."""

_Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(_Fields)
_blocks = msgspec.json.Decoder(list[_Fields])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_word = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode

_NULL: Final = msgspec.Raw(b"null")
_EMPTY_TEXT: Final = msgspec.Raw(b'""')
_EMPTY_LIST: Final = msgspec.Raw(b"[]")
_EMPTY_OBJECT: Final = msgspec.Raw(b"{}")

_STOP_FIELDS: Final = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that are null until ``message_delta``."""

_FINAL_USAGE: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "server_tool_use",
    "output_tokens_details",
    "iterations",
    "fallback_credit",
)
"""Fields of ``usage`` that ``message_delta`` has (`BetaMessageDeltaUsage` of the SDK)."""

_COMPACTED: Final = ("content", "encrypted_content")
"""Fields of a ``compaction`` block that its delta has."""

_LINE_BREAKS: Final = (
    (b"\n", b" "),
    (b"\r", b" "),
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
"""Line breaks, and how JSON spells the same value without them.

The first two occur only between JSON values. The others occur in texts, and would end an event
early in clients that split lines as `str.splitlines` does.
"""

_uncut = re.compile(
    rb"""(?:
        [^\\]++
      | \\[^u]
      | \\u(?![dD][89abAB])....
      | \\u[dD][89abAB]..(?:\\u....|(?=[^\\]|\\[^u]))
    )*+""",
    re.VERBOSE | re.DOTALL,
)
"""The longest start of a JSON text that ends neither in an escape nor in a surrogate pair."""


def events_of(message: bytes) -> Iterator[bytes]:
    """Return the events of a Message object's JSON, ``message_start`` to ``message_stop``.

    Each item is one whole event, so a large answer needs no second copy. Raises
    `msgspec.DecodeError` at once if the bytes are not a Message.
    """
    for line_break, instead in _LINE_BREAKS:
        message = message.replace(line_break, instead)
    fields = _fields.decode(message)
    blocks = _blocks.decode(fields.get("content", _EMPTY_LIST))
    usage = _fields.decode(fields.get("usage", _NULL))
    kinds = [_word.decode(block.get("type", _NULL)) for block in blocks]
    return _events(fields, usage, list(zip(kinds, blocks, strict=True)))


def _events(message: _Fields, usage: _Fields, blocks: list[tuple[str, _Fields]]) -> Iterator[bytes]:
    opening: dict[str, Any] = {**message, "content": [], "usage": {**usage, "output_tokens": 0}}
    for name in _STOP_FIELDS:
        if name in opening:
            opening[name] = None
    yield _event("message_start", {"message": opening})
    for index, (kind, block) in enumerate(blocks):
        start, deltas = _split(kind, block)
        yield _event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending: dict[str, Any] = {
        "delta": {name: message[name] for name in (*_STOP_FIELDS, "container") if name in message},
        "usage": {name: usage[name] for name in _FINAL_USAGE if name in usage},
    }
    if "context_management" in message:
        ending["context_management"] = message["context_management"]
    yield _event("message_delta", ending)
    yield _event("message_stop", {})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


def _split(kind: str, block: _Fields) -> tuple[_Fields, Iterable[dict[str, Any]]]:
    """Split a block into its start event and its deltas.

    A block of any other kind, including future kinds, is sent whole in its start event.
    """
    start = dict(block)

    def take(name: str, empty: msgspec.Raw) -> msgspec.Raw:
        value = block.get(name, _NULL)
        # A value of another JSON type has no delta: it stays in the start event.
        if memoryview(value)[0] != memoryview(empty)[0]:
            return empty
        start[name] = empty
        return value

    match kind:
        case "text":
            text, citations = take("text", _EMPTY_TEXT), take("citations", _EMPTY_LIST)
            return start, chain(
                _deltas("text_delta", "text", _pieces_of_text(text)),
                _deltas("citations_delta", "citation", _items.decode(citations)),
            )
        case "thinking":
            thinking, signature = take("thinking", _EMPTY_TEXT), take("signature", _EMPTY_TEXT)
            # A client replaces its signature with each delta's, so the signature is not cut.
            signatures = () if signature == _EMPTY_TEXT else (signature,)
            return start, chain(
                _deltas("thinking_delta", "thinking", _pieces_of_text(thinking)),
                _deltas("signature_delta", "signature", signatures),
            )
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            value = take("input", _EMPTY_OBJECT)
            return start, _deltas("input_json_delta", "partial_json", _pieces_of_input(value))
        case "compaction":
            # A client replaces both fields. A null field differs from an absent one.
            fields = {name: block[name] for name in _COMPACTED if name in block}
            start.update(dict.fromkeys(fields, _NULL))
            return start, [{"type": "compaction_delta", "content": _NULL, **fields}]
        case _:
            return start, ()


def _deltas(kind: str, name: str, values: Iterable[object]) -> Iterator[dict[str, Any]]:
    return ({"type": kind, name: value} for value in values)


def _pieces_of_text(text: msgspec.Raw) -> Iterator[msgspec.Raw]:
    """Yield a JSON string in pieces that are JSON strings."""
    for piece in _cut(memoryview(text)[1:-1]):
        yield msgspec.Raw(b'"%b"' % piece)


def _pieces_of_input(value: msgspec.Raw) -> Iterator[str]:
    """Yield the JSON text of a tool's input in pieces, after the empty piece that the API sends.

    An empty input has only that piece. Vercel's AI SDK already has ``{}`` from the start event, and
    would read ``{}{}``.
    """
    yield ""
    if _fields.decode(value):
        for piece in _cut(memoryview(value)):
            yield str(piece, "utf-8")


def _cut(text: memoryview) -> Iterator[memoryview]:
    """Cut JSON text into pieces, but never inside a character or an escape."""
    start = 0
    while (end := start + LARGEST_DELTA) < len(text):
        while text[end] & 0b1100_0000 == 0b1000_0000:
            end -= 1  # this byte continues a character
        found = _uncut.match(text, start, end)
        assert found is not None
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:]
