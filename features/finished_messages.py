"""Finished Messages of every kind, and the events that claude-batch makes of them.

`integrations/finished_messages.jsonl` has one message a line, with a name, and the SDK's resource
that knows all of its fields: `messages` (`beta.messages` then does too) or `beta`. The messages are
kept as bytes, because numbers lose digits in some clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

FILE = Path(__file__).parent / "integrations" / "finished_messages.jsonl"


class Finished(msgspec.Struct):
    """A finished Message object, as JSON."""

    name: str
    api: Literal["messages", "beta"]
    message: msgspec.Raw

    @property
    def body(self) -> bytes:
        return bytes(self.message)

    @property
    def value(self) -> dict[str, Any]:
        return json.loads(self.body)


def finished_messages() -> dict[str, Finished]:
    """Return all messages by name: those of the file, and long ones."""
    decoder = msgspec.json.Decoder(Finished)
    with FILE.open("rb") as lines:
        found = [decoder.decode(line) for line in lines]
    found += _long_ones(found[0].value)
    by_name = {each.name: each for each in found}
    assert len(by_name) == len(found), "two messages have the same name"
    return by_name


def _long_ones(like: dict[str, Any]) -> Iterator[Finished]:
    """Yield messages of 100 kB and more."""
    texts = {
        "words": "word " * 20_000,
        "large characters": "x" + "\U0001f600日é" * 12_000,
        "quotes": 'x"\\' * 40_000,
        "escapes": "x" + "\U0001f600日\n" * 8_000,
    }
    rows = [{"n": number, "é\U0001f600": '"\\' * (number % 5)} for number in range(4_000)]
    # Each letter before the pairs shifts them against the ends of the deltas.
    pairs = ["x" * letters + "\U0001f600" * 3_000 for letters in range(12)]
    contents: dict[str, list[dict[str, Any]]] = {
        "long thinking": [
            {"type": "thinking", "thinking": texts["words"], "signature": "s" * 40_000}
        ],
        "long texts of escapes": [
            {"type": "text", "text": text, "citations": None} for text in pairs
        ],
    }
    for name, text in texts.items():
        contents[f"a long text of {name}"] = [{"type": "text", "text": text, "citations": None}]
    for name, value in {**texts, "rows": rows}.items():
        tool = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"value": value}}
        contents[f"a long tool input of {name}"] = [tool]
    for name, content in contents.items():
        escaped = name.endswith("escapes")
        message = json.dumps({**like, "content": content}, ensure_ascii=escaped)
        yield Finished(name, "messages", msgspec.Raw(message.encode()))


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    data: bytes

    @property
    def value(self) -> dict[str, Any]:
        return json.loads(self.data)


def parse_events(stream: bytes) -> Iterator[Event]:
    """Read events as the strictest clients do, which end lines wherever `str.splitlines` does."""
    *events, rest = stream.decode().split("\n\n")
    assert not rest, rest
    for event in events:
        first, second = event.splitlines()
        assert first.startswith("event: ") and second.startswith("data: "), event
        yield Event(first.removeprefix("event: "), second.removeprefix("data: ").encode())
