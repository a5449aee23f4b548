"""Answers of the sandbox's model or of the user's function, in the turns of a conversation.

A model that is given documents cites the beginning of each, as the API does: by characters of a
text, by the first page of a PDF, by the first block of a document made of blocks. A system prompt
may list fields, each as a line of `[[label]] {JSON schema}`; the answer then has such fields, each
cited. A label with `[]` belongs to a list of objects, of which the answer has two.

A prompt that asks for JSON is answered in JSON: with an instance of the last JSON schema in the
prompt, or else with an object whose `answer` is the text. A model that thinks begins its answer
with a block of thoughts, if `max_tokens` has room for them.

Directives about turns (docs/how-to/sandbox.md) may stand anywhere in the messages. The state is
read from the messages alone, so equal params have equal answers.

The same params and seed always give the same answer. An answer contains a digest of its prompt, the
beginning of the prompt and, for Python code, the names that it defines. So a reader of a thousand
answers can match each to its prompt.

A user's function (`--responder module:function`) is called once for each request, with its decoded
params, and returns

- a string: the text of the answer (cut at `max_tokens` as the API would);
- a list: the content blocks;
- a mapping with `content` (string or blocks) and, optionally, `stop_reason`, `stop_sequence`,
  `stop_details` and `usage` (fields that replace the sandbox's own);
- a mapping with `error` (`type`, `message`, `details`): the request ends errored;
- `None`: the sandbox's own answer.

An exception ends the request in an `api_error` that names it; the batch continues.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast
from zlib import crc32

import msgspec

from .api_errors import ApiError
from .content_blocks import Block, MessageParam, blocks_of, cites
from .instances import SchemaError, instance, last_schema
from .sandbox_settings import Responder
from .validation import Params, Request, tools_of

# Cited answers ------------------------------------------------------------------------------------

_FIELD = re.compile(r"^\[\[([\w.\[\]]+)\]\] (\{.*\})$", re.MULTILINE)
_LONGEST = 60

Citation = dict[str, Any]


def citations(messages: list[MessageParam]) -> list[Citation]:
    """Return one citation of the beginning of each document that allows citations."""
    found: list[Citation] = []
    index = 0
    for message in messages:
        for block in blocks_of(message):
            if block.type != "document":
                continue
            settings: Any = block.citations or {}
            if settings.get("enabled"):
                source: Any = block.source or {}
                file_id = source.get("file_id")
                found.append({**_beginning(block), "document_index": index, "file_id": file_id})
                found[-1]["document_title"] = block.title
            index += 1
    return found


def _beginning(block: Block) -> Citation:
    source: Any = block.source or {}
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        content: Any = source.get("content") or ""
        text = str(content if isinstance(content, str) else content[0].get("text"))
        return {
            "type": "content_block_location",
            "cited_text": text,
            "start_block_index": 0,
            "end_block_index": 1,
        }
    if kind == "text":
        text = str(data or "")[:_LONGEST]
        return {
            "type": "char_location",
            "cited_text": text,
            "start_char_index": 0,
            "end_char_index": len(text),
        }
    # The sandbox cannot read the text of a page.
    return {
        "type": "page_location",
        "cited_text": f"The first page of {block.title or 'the document'}.",
        "start_page_number": 1,
        "end_page_number": 2,
    }


def fields_asked(params: Params) -> list[tuple[str, Any]]:
    """Return name and schema of each field that the system prompt requests."""
    if not params.system or b"[[" not in bytes(params.system):
        return []
    text = _system_text(params)
    fields: list[tuple[str, Any]] = []
    for found in _FIELD.finditer(text):
        with suppress(msgspec.DecodeError, RecursionError, SchemaError):  # another text
            schema = msgspec.json.decode(found[2])
            instance(schema)
            fields.append((found[1], schema))
    return fields


def in_fields(
    fields: list[tuple[str, Any]], text: str, cited: list[Citation]
) -> list[dict[str, Any]]:
    """Return the content of an answer in labelled fields: each value is its own, cited block."""
    content: list[dict[str, Any]] = []
    for name, schema in _numbered(fields):
        value = instance(schema, text)
        for each in cast(list[Any], value) if isinstance(value, list) else [value]:
            written = each if isinstance(each, str) else _json(each)
            content.append({"type": "text", "text": f"[[{name}]] "})
            content.append({"type": "text", "text": written, "citations": cited})
            content.append({"type": "text", "text": "\n"})
    return content


def _numbered(fields: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the fields; those of a list of objects once for each of two objects."""
    for (_, listed), group in groupby(fields, lambda field: _place(field[0])):
        if not listed:
            yield from group
            continue
        found = list(group)
        for number in ("[0]", "[1]"):
            own = [(label.replace("[]", number, 1), schema) for label, schema in found]
            yield from _numbered(own)


def _place(label: str) -> tuple[str, bool]:
    """Return the list of objects that a label belongs to first, or itself; and which it is."""
    place, brackets, _ = label.partition("[]")
    return place, bool(brackets)


# Conversation turns -------------------------------------------------------------------------------

_DIRECTIVE = re.compile(
    rb"\[\[sandbox:(tools|pause|invalid|window)"
    rb"(?::((?<=tools:)all|(?:(?<=pause:)|(?<=invalid:))[0-9]{1,3}))?\]\]"
)
_MARKS = re.compile(r"\[\[[^\]]*\]\]")
_WORDS = 16
"""Words of the first prompt that a tool receives as text input."""

_PAUSED = "Still searching"
_INVALID = "This is not of the shape that was asked for"


def is_turn_directive(text: bytes) -> bool:
    """Return whether this whole text is a valid directive that controls turns."""
    return _DIRECTIVE.fullmatch(text) is not None


def turn(raw: bytes, request: Request, seed: int, *, uses_tools: bool) -> Answer | None:
    """Return the next turn of a conversation, or `None` if its plain answer is due."""
    made = _turn(raw, request, seed, uses_tools=uses_tools)
    return None if made is None else thoughtful(made, request)


def _turn(raw: bytes, request: Request, seed: int, *, uses_tools: bool) -> Answer | None:
    directives = {match[1].decode(): match[2] for match in _DIRECTIVE.finditer(raw)}
    if "pause" in directives:
        done = _said(request.messages, _PAUSED)
        if done < int(directives["pause"] or 1):
            return _pause(done + 1)
    if "tools" in directives or uses_tools:
        made = _tools(request, seed, at_once=directives.get("tools") == b"all")
        if made is not None:
            return made
    if "invalid" in directives:
        done = _said(request.messages, _INVALID)
        if done < int(directives["invalid"] or 1):
            return text_content(f"{_INVALID} ({done + 1}).", request.params)
    if "window" in directives:
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
    choice: Any = request.params.tool_choice or {}
    left = [name for name in tools if name not in called and choice.get("type") != "none"]
    if not left:
        given = [_words(block.content) for block in blocks if block.type == "tool_result"]
        if not given or wanted_schema(request.params) is not None:
            return None
        return text_content("The tools gave: " + "; ".join(given), request.params)
    subject = " ".join(_MARKS.sub("", text_of(request.messages[0])).split()[:_WORDS])
    content = [
        _tool_use(request, seed, name, instance(tools[name], subject), f"{place:02d}")
        for place, name in enumerate(left if at_once else left[:1])
    ]
    tokens = tokens_of(_json(content))
    return Answer(content, "tool_use", output_tokens=tokens)


def _tool_use(
    request: Request, seed: int, name: str, given: Any, place: str = ""
) -> dict[str, Any]:
    """Return the block of a tool's call; ``place`` tells the calls of one answer apart."""
    prompt = prompt_of(request.messages)
    digest = crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)
    return {
        "type": "tool_use",
        "id": f"toolu_{digest:08x}{len(request.messages):04d}{place}",
        "name": name,
        "input": given,
        "caller": {"type": "direct"},  # by the model itself
    }


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "" if content is None else _json(content)


# Thoughts and JSON --------------------------------------------------------------------------------

_THOUGHTS = "The sandbox thinks about the prompt before it answers."


def thinks(request: Request) -> bool:
    """Return whether the model thinks before it answers these params."""
    thinking: Any = request.params.thinking
    if thinking is None:
        return request.model.thinks_unasked
    return thinking["type"] in ("enabled", "adaptive")


def thoughtful(given: Answer, request: Request) -> Answer:
    """Return the answer, with the model's thoughts before it if there is room for them."""
    params = request.params
    choice: Any = params.tool_choice or {}
    tokens = tokens_of(_THOUGHTS)
    if (
        not thinks(request)
        or choice.get("type") in ("any", "tool")  # begins with the call, so without a thought
        or given.output_tokens + tokens > params.max_tokens
    ):
        return given
    settings: dict[str, Any] = params.thinking or {}
    shown = settings.get("display", "summarized" if request.model.takes_budget else "omitted")
    thoughts = _THOUGHTS if shown == "summarized" else ""
    signature = b64encode(f"sandbox:{request.model.id}".encode()).decode()
    block = {"type": "thinking", "thinking": thoughts, "signature": signature}
    given.content = [block, *given.content]
    given.thinking_tokens = tokens
    given.output_tokens += tokens
    return given


_ASKS_JSON = re.compile(
    r"\b(?:respond|reply|answer|return|output|write|give|provide|produce|format(?:ted)?)\b"
    r"[^.!?\n]{0,60}\bjson\b(?!\.\w|\()",
    re.IGNORECASE,
)
_JSON = re.compile(r"\bjson\b", re.IGNORECASE)


def asks_json(request: Request) -> bool:
    """Return whether the prompt asks for an answer in JSON."""
    return _json_schema(request) is not None


def _json_schema(request: Request) -> dict[str, Any] | None:
    """Return the JSON schema that the prompt asks for in words; `{}` if it gives none."""
    texts = [_own_text(message) for message in request.messages if message.role == "user"]
    if request.params.system:
        texts.insert(0, _system_text(request.params))
    text = "\n".join(texts)
    if _JSON.search(text) is None:
        return None
    schema = last_schema(text)
    return {} if schema is None and _ASKS_JSON.search(text) else schema


def _in_words(schema: dict[str, Any], text: str) -> str:
    """Return an answer in JSON for a schema that was given in words."""
    try:
        return _json(instance(schema, text) if schema else {"answer": text})
    except SchemaError:
        return _json({"answer": text})


def _own_text(message: MessageParam) -> str:
    """Return the text of a message, without its documents and tool results."""
    content = message.content
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block.text, str))


def _system_text(params: Params) -> str:
    system: Any = msgspec.json.decode(params.system)
    blocks = cast(list[dict[str, Any]], [{"text": system}] if isinstance(system, str) else system)
    return "\n".join(str(block.get("text", "")) for block in blocks or [])


# Answers ------------------------------------------------------------------------------------------

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
    thinking_tokens: int = 0
    """Part of `output_tokens`."""
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


def is_plain(request: Request) -> bool:
    """Return whether the answer can only be a text: the hot path of a large batch."""
    params = request.params
    return not (
        params.tools
        or params.output_config is not None
        or params.stop_sequences
        or params.inference_geo
        or thinks(request)
    )


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
    return thoughtful(_answered(request, seed), request)


def _answered(request: Request, seed: int) -> Answer:
    params, messages = request.params, request.messages
    prompt = prompt_of(messages)
    called = _tool_call(params, messages, prompt)
    text = text_answer(prompt, params.model, seed)
    if called is not None:
        name, schema = called
        block = _tool_use(request, seed, name, instance(schema, text))
        tokens = tokens_of(_json(block["input"]))
        return Answer([block], "tool_use", output_tokens=tokens)
    schema = wanted_schema(params)
    if schema is not None:
        text = _json(instance(schema, text))
    if not cites(messages):
        asked = None if schema is not None else _json_schema(request)
        return text_content(text if asked is None else _in_words(asked, text), params)
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
        name = choice["name"]  # it may be of a server's toolset
        return (name, tools[name]) if name in tools else None
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


# Responders ---------------------------------------------------------------------------------------


class ResponderError(ValueError):
    """`--responder` names an object that cannot be called."""


def load_responder(named: str | Responder) -> Responder:
    """Return the function of `module:function`; the working directory is searched first."""
    if not isinstance(named, str):
        return named
    module, _, function = named.partition(":")
    if not module or not function:
        raise ResponderError(f"--responder {named!r}: write module:function")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")
    try:
        # Not `pkgutil.resolve_name`, which takes no file whose name has a hyphen.
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ResponderError(f"--responder {named!r}: {error}") from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ResponderError(f"--responder {named!r} is not a plain function")
    return cast(Responder, found)


def respond(responder: Responder, raw: bytes, params: Params) -> Answer | None:
    """Return the responder's answer, or `None` for the sandbox's own.

    Raises `ApiError` if the responder fails.
    """
    try:
        given = responder(msgspec.json.decode(raw))
    except Exception as error:
        raise ApiError("api_error", f"responder raised {type(error).__name__}: {error}") from error
    if given is None:
        return None
    try:
        made = _read(given, params)
        # An answer that cannot be sent must fail now, not in the middle of a results stream.
        msgspec.json.encode(made)
    except ApiError:
        raise
    except Exception as error:
        raise ApiError("api_error", f"responder gave no answer: {error!r}") from error
    return made


def _read(given: Any, params: Params) -> Answer:
    if not isinstance(given, Mapping):
        return _answer(given, params)
    fields = cast(Mapping[str, Any], given)
    if "error" in fields:
        error = cast(Mapping[str, Any], fields["error"])
        kind, message, details = error.get("type"), error.get("message"), error.get("details")
        msgspec.json.encode([message, details])
        raise ApiError(str(kind or "api_error"), message, details=details)
    made = _answer(fields["content"], params)
    made.stop_reason = fields.get("stop_reason", made.stop_reason)
    made.stop_sequence = fields.get("stop_sequence", made.stop_sequence)
    made.stop_details = fields.get("stop_details")
    made.usage = dict(fields.get("usage") or {})
    return made


def _answer(content: Any, params: Params) -> Answer:
    if isinstance(content, str):
        return text_content(content, params)
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} is neither text nor a list of blocks")
    blocks = cast(list[dict[str, Any]], content)
    called = "tool_use" in [block["type"] for block in blocks]
    tokens = tokens_of(_json(blocks))
    return Answer(blocks, "tool_use" if called else "end_turn", output_tokens=tokens)
