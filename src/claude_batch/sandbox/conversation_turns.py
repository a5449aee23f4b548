"""Turns of a conversation that a prompt or the sandbox's settings request.

Directives may stand anywhere in the messages. `[[sandbox:tools]]` calls each of the client's tools
once, one per turn (`[[sandbox:tools:all]]`: all in one turn), and then answers with their results.
`[[sandbox:pause:2]]` pauses twice before the answer. `[[sandbox:invalid:2]]` gives two answers that
do not match the requested schema. `[[sandbox:window]]` fills the context window. The state is read
from the messages alone, so equal params have equal answers.
"""

from __future__ import annotations

import re
from typing import Any
from zlib import crc32

import msgspec

from .answers import Answer, prompt_of, text_content, text_of, tokens_of
from .instances import instance
from .validation import MessageParam, Request, blocks_of, tools_of

TURNS = ("tools", "pause", "invalid", "window")
"""First words of the directives that control turns."""

_DIRECTIVE = re.compile(rb"\[\[sandbox:(tools|pause|invalid|window)(?::(all|[0-9]{1,3}))?\]\]")
_MARKS = re.compile(r"\[\[[^\]]*\]\]")
_WORDS = 16
"""Words of the first prompt that a tool receives as text input."""

_PAUSED = "Still searching"
_INVALID = "This is not of the shape that was asked for"


def turn(raw: bytes, request: Request, seed: int, *, uses_tools: bool) -> Answer | None:
    """Return the next turn of a conversation, or `None` if its plain answer is due."""
    told = {match[1].decode(): match[2] for match in _DIRECTIVE.finditer(raw)}
    if "pause" in told:
        done = _said(request.messages, _PAUSED)
        if done < int(told["pause"] or 1):
            return _pause(done + 1)
    if "tools" in told or uses_tools:
        made = _tools(request, seed, at_once=told.get("tools") == b"all")
        if made is not None:
            return made
    if "invalid" in told:
        done = _said(request.messages, _INVALID)
        if done < int(told["invalid"] or 1):
            return text_content(f"{_INVALID} ({done + 1}).", request.params)
    if "window" in told:
        answer = text_content("An answer that fills the window", request.params)
        answer.stop_reason = "model_context_window_exceeded"
        return answer
    return None


def _said(messages: list[MessageParam], words: str) -> int:
    """Count the model's turns that begin with these words."""
    return sum(
        message.role == "assistant" and text_of(message).startswith(words) for message in messages
    )


def _pause(number: int) -> Answer:
    text = f"{_PAUSED} ({number})."
    return Answer([{"type": "text", "text": text}], "pause_turn", output_tokens=tokens_of(text))


def _tools(request: Request, seed: int, *, at_once: bool) -> Answer | None:
    tools = {
        tool["name"]: tool["input_schema"]
        for tool in tools_of(request.params)
        if "name" in tool and "input_schema" in tool
    }
    blocks = [block for message in request.messages for block in blocks_of(message)]
    called = [block.name for block in blocks if block.type == "tool_use"]
    left = [name for name in tools if name not in called]
    if not left:
        given = [_words(block.content) for block in blocks if block.type == "tool_result"]
        if not given:
            return None
        return text_content("The tools gave: " + "; ".join(given), request.params)
    prompt = prompt_of(request.messages)
    subject = " ".join(_MARKS.sub("", text_of(request.messages[0])).split()[:_WORDS])
    digest = crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)
    content: list[dict[str, Any]] = [
        {
            "type": "tool_use",
            "id": f"toolu_{digest:08x}{len(request.messages):04d}{place:02d}",
            "name": name,
            "input": instance(tools[name], subject),
        }
        for place, name in enumerate(left if at_once else left[:1])
    ]
    tokens = tokens_of(msgspec.json.encode(content).decode())
    return Answer(content, "tool_use", output_tokens=tokens)


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "" if content is None else msgspec.json.encode(content).decode()
