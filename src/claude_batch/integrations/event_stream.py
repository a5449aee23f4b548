"""Convert a finished message to server-sent events, for callers that requested a stream.

Every value keeps the bytes that the API sent, so an accumulator reassembles the same message. Order
and shapes are those of the streaming API:
https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

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
_NOTHING: Final = (_NULL, _EMPTY_TEXT, _EMPTY_LIST)

_TOLD_AT_THE_END: Final = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Fields of a message that a stream sends only in ``message_delta``."""

_COUNTED_AT_THE_END: Final = (
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

_TAKE_INPUT: Final = ("tool_use", "server_tool_use", "mcp_tool_use")
"""Blocks whose ``input`` comes in deltas (the SDK's ``TRACKS_TOOL_INPUT``)."""


def events_of(message: bytes) -> bytes:
    """Return all events of a Message object's JSON, ``message_start`` to ``message_stop``.

    Raises `msgspec.DecodeError` if the bytes are not a Message.
    """
    return b"".join(_events(_fields.decode(message)))


def _events(message: _Fields) -> Iterator[bytes]:
    usage = _fields.decode(message["usage"])
    opening: dict[str, Any] = {**message, "content": [], "usage": {**usage, "output_tokens": 0}}
    for name in _TOLD_AT_THE_END:
        if name in opening:
            opening[name] = None
    yield _event("message_start", {"message": opening})
    for index, block in enumerate(_blocks.decode(message.get("content", _EMPTY_LIST))):
        start, deltas = _taken_apart(_word.decode(block["type"]), block)
        yield _event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending: dict[str, Any] = {
        "delta": {name: message[name] for name in _TOLD_AT_THE_END if name in message},
        "usage": {name: usage[name] for name in _COUNTED_AT_THE_END if name in usage},
    }
    if "context_management" in message:
        ending["context_management"] = message["context_management"]
    yield _event("message_delta", ending)
    yield _event("message_stop", {})


def _taken_apart(kind: str, block: _Fields) -> tuple[_Fields, list[dict[str, Any]]]:
    """Split a block into its start event and the deltas for the rest.

    A block of any other kind, including future ones, is sent whole in its start event.
    """
    start = dict(block)
    deltas: list[dict[str, Any]] = []

    def take(name: str, left: msgspec.Raw) -> msgspec.Raw | None:
        value = block.get(name, left)
        if value in _NOTHING:
            return None
        start[name] = left
        return value

    if kind == "text":
        if (text := take("text", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "text_delta", "text": text})
        # Anything but a list is not citations, and is sent with the start event.
        is_list = bytes(block.get("citations", _EMPTY_LIST)).startswith(b"[")
        if is_list and (citations := take("citations", _EMPTY_LIST)) is not None:
            deltas += [
                {"type": "citations_delta", "citation": each} for each in _items.decode(citations)
            ]
    elif kind == "thinking":
        if (thinking := take("thinking", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "thinking_delta", "thinking": thinking})
        if (signature := take("signature", _EMPTY_TEXT)) is not None:
            deltas.append({"type": "signature_delta", "signature": signature})
    elif kind in _TAKE_INPUT:
        start["input"] = _EMPTY_OBJECT
        text_of_input = bytes(block.get("input", _EMPTY_OBJECT)).decode()
        deltas.append({"type": "input_json_delta", "partial_json": text_of_input})
    elif kind == "compaction":
        content = take("content", _NULL)
        encrypted = take("encrypted_content", _NULL)
        deltas.append(
            {"type": "compaction_delta", "content": content, "encrypted_content": encrypted}
        )
    return start, deltas


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))
