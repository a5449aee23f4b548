"""Answers of the sandbox's model: deterministic, recognizable by prompt, valid for the schema.

The same params and seed always give the same answer. An answer contains a digest of its prompt, the
beginning of the prompt and, for Python code, the names that it defines. So a reader of a thousand
answers can match each to its prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast
from zlib import crc32

import msgspec

from .cited_answers import citations, fields_asked, in_fields
from .instances import instance
from .validation import Block, MessageParam, Params, Request, blocks_of, cites, tools_of

QUOTED_WORDS = 12
"""Words of the prompt that an answer repeats."""

TOOL_DIRECTIVE = re.compile(r"\[\[tool:([a-zA-Z0-9_-]{1,128})\]\]")
"""`[[tool:NAME]]` in a prompt requests a call of that tool, whatever `tool_choice` is."""

_DEFINES = re.compile(r"^\s*(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)
_NAMED = 8

Content = list[dict[str, Any]]


@dataclass(slots=True)
class Answer:
    """One message of the model, without what the API adds (id, model, usage)."""

    content: Content
    stop_reason: str = "end_turn"
    stop_sequence: str | None = None
    stop_details: dict[str, Any] | None = None
    output_tokens: int = 0
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    """Usage fields set by a responder; they replace the sandbox's own."""


def tokens_of(text: str) -> int:
    """Count one token per four bytes of UTF-8, rounded up, and at least one."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4 or 1


def prompt_of(messages: list[MessageParam]) -> str:
    """Return the text of the last message, including its documents and tool results."""
    return text_of(messages[-1])


def text_of(message: MessageParam) -> str:
    """Return the text of a message, including its documents and tool results."""
    content = message.content
    if isinstance(content, str):
        return content
    return "\n".join(text for block in content for text in _texts(block))


def _texts(block: Block) -> list[str]:
    texts = [block.text] if isinstance(block.text, str) else []
    source: Any = block.source
    if isinstance(source, dict):
        data = cast(dict[str, Any], source).get("data")
        if cast(dict[str, Any], source).get("type") == "text" and isinstance(data, str):
            texts.append(data)
    content: Any = block.content
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for part in cast(list[Any], content):
            text: Any = cast(dict[str, Any], part).get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                texts.append(text)
    return texts


def text_answer(prompt: str, model: str, seed: int) -> str:
    """Return the answer as plain text."""
    encoded = prompt.encode("utf-8", "surrogatepass")
    digest = crc32(model.encode(), crc32(encoded, seed & 0xFFFFFFFF))
    words = prompt.split(None, QUOTED_WORDS)
    begins = " ".join(words[:QUOTED_WORDS])
    more = " …" if len(words) > QUOTED_WORDS else ""
    answer = f'Sandbox answer {digest:08x} to a prompt that begins: "{begins}{more}"'
    if "def " in prompt or "class " in prompt:
        names = list(dict.fromkeys(_DEFINES.findall(prompt)))
        if names:
            others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            answer += (
                f" It has {prompt.count(chr(10)) + 1} lines and defines "
                f"{', '.join(names[:_NAMED])}{others}."
            )
    return answer


def is_plain(params: Params) -> bool:
    """Return whether the answer can only be a text: the hot path of a large batch."""
    return not params.tools and params.output_config is None and not params.stop_sequences


def plain_answer(request: Request, seed: int) -> tuple[str, str, int]:
    """Return text, stop reason and output tokens for `is_plain` params, without citations."""
    params = request.params
    text = text_answer(prompt_of(request.messages), params.model, seed)
    tokens = tokens_of(text)
    if tokens > params.max_tokens:
        text = _cut(text, params.max_tokens)
        return text, "max_tokens", params.max_tokens
    return text, "end_turn", tokens


def answer(request: Request, seed: int) -> Answer:
    """Return the model's message for any params."""
    params, messages = request.params, request.messages
    prompt = prompt_of(messages)
    called = _tool_call(params, messages, prompt)
    text = text_answer(prompt, params.model, seed)
    if called is not None:
        name, schema = called
        digest = crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)
        block = {
            "type": "tool_use",
            "id": f"toolu_{digest:08x}{len(messages):04d}",
            "name": name,
            "input": instance(schema, text),
        }
        tokens = tokens_of(_json(block["input"]))
        return Answer([block], "tool_use", output_tokens=tokens)
    schema = wanted_schema(params)
    if schema is not None:
        text = _json(instance(schema, text))
    if not cites(messages):
        return text_content(text, params)
    cited, fields = citations(messages), fields_asked(params)
    if fields:
        content = in_fields(fields, text, cited)
        tokens = tokens_of("".join(block["text"] for block in content))
        if tokens <= params.max_tokens:
            return Answer(content, output_tokens=tokens)
        text = "".join(block["text"] for block in content)
    given = text_content(text, params)
    if given.content:
        given.content[0]["citations"] = cited
    return given


def text_content(text: str, params: Params) -> Answer:
    """Return an answer of one text block, cut at a stop sequence or `max_tokens`."""
    reason, sequence = "end_turn", None
    for each in params.stop_sequences or []:
        at = text.find(each) if each.strip() else -1
        if at >= 0:
            text, reason, sequence = text[:at], "stop_sequence", each
    tokens = tokens_of(text)
    if tokens > params.max_tokens:
        text, reason, sequence = _cut(text, params.max_tokens), "max_tokens", None
        tokens = params.max_tokens
    content: Content = [{"type": "text", "text": text}] if text else []
    return Answer(content, reason, sequence, output_tokens=tokens)


def refusal() -> Answer:
    """Return an answer that streaming classifiers stopped."""
    details = {
        "type": "refusal",
        "category": None,
        "explanation": "Refused, as the sandbox was told.",
    }
    return Answer([], "refusal", stop_details=details, output_tokens=1)


def wanted_schema(params: Params) -> dict[str, Any] | None:
    """Return the JSON schema of `output_config.format`, or None."""
    if params.output_config is None:
        return None
    wanted = cast(dict[str, Any], params.output_config).get("format")
    return wanted["schema"] if wanted else None


def _tool_call(params: Params, messages: list[MessageParam], prompt: str) -> tuple[str, Any] | None:
    """Return name and input schema of the tool to call, or None.

    With `tool_choice` `tool`, the params name it. `[[tool:NAME]]` in the last message requests it.
    With `any`, it is the last one listed, because frameworks put the final output's tool there.
    """
    tools = {
        tool["name"]: tool.get("input_schema", {"type": "object"})
        for tool in tools_of(params)
        if "name" in tool
    }
    choice = cast(dict[str, Any], params.tool_choice or {"type": "auto"})
    kind = choice["type"]
    if not tools or kind == "none":
        return None
    if kind == "tool":
        return choice["name"], tools[choice["name"]]
    asked = TOOL_DIRECTIVE.search(prompt)
    # Otherwise, a prompt that repeats in a tool's result would request the call forever.
    if asked is not None and asked[1] in tools and not _has_tool_result(messages[-1]):
        return asked[1], tools[asked[1]]
    return list(tools.items())[-1] if kind == "any" else None


def _has_tool_result(message: MessageParam) -> bool:
    return any(block.type == "tool_result" for block in blocks_of(message))


def _cut(text: str, tokens: int) -> str:
    return text.encode("utf-8", "surrogatepass")[: tokens * 4].decode("utf-8", "ignore")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
