"""A live message as server-sent events, in the order and shapes of the streaming API.

Source: https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

PIECE = 24
"""Characters of text or JSON in one delta."""


def event(name: str, fields: dict[str, Any]) -> bytes:
    """Return one event, whose data repeats its name as `type`."""
    data = msgspec.json.encode({"type": name, **fields})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def events(message: dict[str, Any]) -> Iterator[bytes]:
    """Yield all events of a finished message object."""
    usage = message["usage"]
    opening: dict[str, Any] = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    opening.pop("stop_details", None)
    yield event("message_start", {"message": opening})
    for index, block in enumerate(message["content"]):
        yield from _block(index, block)
        if index == 0:
            yield event("ping", {})
    delta: dict[str, Any] = {
        "stop_reason": message["stop_reason"],
        "stop_sequence": message["stop_sequence"],
    }
    if message.get("stop_details"):
        delta["stop_details"] = message["stop_details"]
    counted = (
        "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
    )  # fmt: skip
    yield event("message_delta", {"delta": delta, "usage": {name: usage[name] for name in counted}})
    yield event("message_stop", {})


def _block(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    deltas: list[dict[str, Any]] = []
    opening = dict(block)
    if kind == "text":
        opening["text"] = ""
        if "citations" in block:
            opening["citations"] = []
            deltas += [{"type": "citations_delta", "citation": each} for each in block["citations"]]
        deltas += [
            {"type": "text_delta", "text": piece} for piece in _pieces(block.get("text", ""))
        ]
    elif kind == "tool_use":
        opening["input"] = {}
        text = msgspec.json.encode(block.get("input", {})).decode()
        deltas += [
            {"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]
        ]
    elif kind == "thinking":
        opening.update(thinking="", signature="")
        deltas += [
            {"type": "thinking_delta", "thinking": piece}
            for piece in _pieces(block.get("thinking", ""))
        ]
        deltas.append({"type": "signature_delta", "signature": block.get("signature", "")})
    yield event("content_block_start", {"index": index, "content_block": opening})
    for delta in deltas:
        yield event("content_block_delta", {"index": index, "delta": delta})
    yield event("content_block_stop", {"index": index})


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
