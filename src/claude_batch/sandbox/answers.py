"""What the sandbox's model says: deterministic, visibly about its prompt, valid for its schema.

The same params and seed always give the same answer. An answer tells a digest of its prompt, how
the prompt begins and, where it holds Python, what it defines, so that a reader of a thousand
answers can see which prompt each belongs to.
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
"""`[[tool:NAME]]` in a prompt asks for a call of that tool, whatever `tool_choice` says."""

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
    """Fields of usage that a responder set; they replace the sandbox's own."""


def tokens_of(text: str) -> int:
    """One token for each four bytes of UTF-8, rounded up, and at least one."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4 or 1


def prompt_of(messages: list[MessageParam]) -> str:
    """The text of the last message, its documents and tool results included."""
    return text_of(messages[-1])


def text_of(message: MessageParam) -> str:
    """The text of a message, its documents and tool results included."""
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
    """The answer in plain words."""
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
    """Whether nothing but a text can be the answer: the hot path of a large batch."""
    return not params.tools and params.output_config is None and not params.stop_sequences


def plain_answer(request: Request, seed: int) -> tuple[str, str, int]:
    """Text, stop reason and output tokens for params that `is_plain`, documents not cited."""
    params = request.params
    text = text_answer(prompt_of(request.messages), params.model, seed)
    tokens = tokens_of(text)
    if tokens > params.max_tokens:
        text = _cut(text, params.max_tokens)
        return text, "max_tokens", params.max_tokens
    return text, "end_turn", tokens


def answer(request: Request, seed: int) -> Answer:
    """The model's message for any params."""
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
    """An answer of one text block, ended by a stop sequence or `max_tokens` where due."""
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
    """An answer that streaming classifiers stopped."""
    details = {
        "type": "refusal",
        "category": None,
        "explanation": "Refused, as the sandbox was told.",
    }
    return Answer([], "refusal", stop_details=details, output_tokens=1)


def wanted_schema(params: Params) -> dict[str, Any] | None:
    """The JSON schema of `output_config.format`, if the params ask for one."""
    if params.output_config is None:
        return None
    wanted = cast(dict[str, Any], params.output_config).get("format")
    return wanted["schema"] if wanted else None


def _tool_call(params: Params, messages: list[MessageParam], prompt: str) -> tuple[str, Any] | None:
    """Name and input schema of the tool to call, if one is to be called.

    `tool_choice` `tool` names it; `[[tool:NAME]]` in the last message asks for it; with `any` it is
    the last one listed, where frameworks put the tool that takes the final output.
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
    # A prompt that repeats in a tool's result would otherwise be asked for ever.
    if asked is not None and asked[1] in tools and not _has_tool_result(messages[-1]):
        return asked[1], tools[asked[1]]
    return list(tools.items())[-1] if kind == "any" else None


def _has_tool_result(message: MessageParam) -> bool:
    return any(block.type == "tool_result" for block in blocks_of(message))


def _cut(text: str, tokens: int) -> str:
    return text.encode("utf-8", "surrogatepass")[: tokens * 4].decode("utf-8", "ignore")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
