"""The API's rules for a batch's body (checked at once), and for Messages params (checked later).

Only an error in the envelope rejects a whole batch. An error in one request's params appears as an
errored line after the batch has ended. Both use the API's message style, `path.to.field: what is
wrong`.

Params are checked by their model's limits and ways of thinking. A model is known by the shape of
its name, so that tests with the models of tomorrow work: `claude-`, then a family and a version
(`claude-haiku-4-5`) or, as in older names, a version and a family (`claude-3-5-haiku`), and
optionally a date or `latest`. A name of another shape is an unknown model, as a typing mistake is
for the API (`claude-haiku-4.5`, `gpt-5`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw

from .api_errors import ApiError
from .instances import SchemaError, instance
from .token_usage import media_tokens, written_size

# Models -------------------------------------------------------------------------------------------

# Sources: https://platform.claude.com/docs/en/about-claude/models, the names in the SDK's type
# `Model`, and the model profiles of pydantic-ai 2.68 and langchain-anthropic 1.7.

LISTED = (
    *("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"),
    "claude-haiku-4-5-20251001",
)
"""Models that `GET /v1/models` lists; every other known name is answered too."""

_SHAPE = re.compile(
    r"claude-(?:[a-z]+(?:-\d{1,2}){1,2}|[a-z]+-preview|\d(?:-\d)?-[a-z]+"  # opus-4-5, 3-5-haiku
    r"|[12](?:\.\d)?|instant-1(?:\.\d)?)"
    r"(?:-latest|-100k|-\d{8})?"
)

_ID_OF = {
    "claude-haiku-4-5": "claude-haiku-4-5-20251001",
    "claude-sonnet-4-5": "claude-sonnet-4-5-20250929",
    "claude-opus-4-5": "claude-opus-4-5-20251101",
    "claude-opus-4-1": "claude-opus-4-1-20250805",
    "claude-opus-4-0": "claude-opus-4-20250514",
    "claude-sonnet-4-0": "claude-sonnet-4-20250514",
    "claude-3-7-sonnet-latest": "claude-3-7-sonnet-20250219",
    "claude-3-5-sonnet-latest": "claude-3-5-sonnet-20241022",
    "claude-3-5-haiku-latest": "claude-3-5-haiku-20241022",
    "claude-3-opus-latest": "claude-3-opus-20240229",
}
"""Ids of aliases. Since version 4.6, ids have no date, and a name is its own id."""

# All others are prefixes of ids.

_MAX_TOKENS = {
    "claude-1": 4_096,
    "claude-2": 4_096,
    "claude-instant": 4_096,
    "claude-3-7": 64_000,
    "claude-3-5": 8_192,
    "claude-3": 4_096,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-2025": 32_000,
    "claude-opus-4-5": 64_000,
    "claude-sonnet-4-2025": 64_000,
    "claude-sonnet-4-5": 64_000,
    "claude-haiku-4-5": 64_000,
}
_NEWER_MAX_TOKENS = 128_000
_LONG_MAX_TOKENS = 300_000

_OLDER = (
    *("claude-1", "claude-2", "claude-3", "claude-instant", "claude-haiku-4"),
    *("claude-sonnet-4-2025", "claude-sonnet-4-5"),
    *("claude-opus-4-1", "claude-opus-4-2025", "claude-opus-4-5"),
)
"""Models from before adaptive thinking, with a context of 200,000 tokens."""

_BUDGETED = ("claude-opus-4-6", "claude-sonnet-4-6", "claude-mythos-preview")
"""Newer models that still take a budget of thinking tokens."""

_THINKS_IF_ASKED = ("claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-6")
_THINKS_ALWAYS = ("claude-fable-", "claude-mythos-", "claude-opus-5-5")
_TAKES_NO_DISABLED = (*_THINKS_ALWAYS, "claude-sonnet-5-5")
_LONG_OUTPUT = ("claude-opus-", "claude-sonnet-", "claude-haiku-5-5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model."""

    id: str
    """Dated id for an alias; answers name it."""
    max_tokens: int
    """Highest `max_tokens` without a beta."""
    max_long_tokens: int
    """The same with the beta for long output, in a batch."""
    max_input_tokens: int
    newer: bool
    """Whether it knows adaptive thinking, and reports how many of its tokens were thoughts."""
    takes_budget: bool
    """Whether `thinking` may be `enabled`."""
    takes_disabled: bool
    """Whether `thinking` may be `disabled`."""
    thinks_unasked: bool
    """Whether it thinks if `thinking` is not given."""


@lru_cache(maxsize=1000)
def model_named(name: str) -> Model | None:
    """Return the model of an id or alias, or `None` for a name of unknown shape."""
    if _SHAPE.fullmatch(name) is None:
        return None
    known = _ID_OF.get(name, name)
    newer = not known.startswith(_OLDER)
    limits = (most for start, most in _MAX_TOKENS.items() if known.startswith(start))
    max_tokens = next(limits, _NEWER_MAX_TOKENS)
    long_output = newer and known.startswith(_LONG_OUTPUT)
    return Model(
        id=known,
        max_tokens=max_tokens,
        max_long_tokens=_LONG_MAX_TOKENS if long_output else max_tokens,
        max_input_tokens=1_000_000 if newer else 200_000,
        newer=newer,
        takes_budget=not newer or known.startswith(_BUDGETED),
        takes_disabled=not known.startswith(_TAKES_NO_DISABLED),
        thinks_unasked=newer and not known.startswith(_THINKS_IF_ASKED),
    )


# Requests -----------------------------------------------------------------------------------------

SAMPLING_FREE_VERSION = "2026-10-21"
"""The `anthropic-version` from which `temperature`, `top_p` and `top_k` are rejected."""

VERSIONS = ("2023-01-01", "2023-06-01", SAMPLING_FREE_VERSION)
"""The API versions that the sandbox supports."""

FILES_VERSION = "2026-10-21"
"""The `anthropic-version` from which files need no beta: the SDK 2.11 sends none with it."""

LONG_OUTPUT_BETA = "output-300k-2026-03-24"

TOO_DEEP = "The request body is nested too deeply"
"""Error message for a body that exceeds the decoder's nesting limit."""

_NO_SCHEMAS = re.compile(r"claude-(?:[123]\b|instant|(?:opus|sonnet)-4-(?:0\b|20\d{6}))")
"""Models from before structured outputs, which Anthropic's page of them does not list."""

MAX_CUSTOM_ID = 64
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"


class Entry(msgspec.Struct, gc=False):
    """One request of a create body; its params stay undecoded bytes."""

    custom_id: str
    params: Raw


class CreateBody(msgspec.Struct):
    """The body of a create call."""

    requests: list[Entry]


class Block(msgspec.Struct, gc=False):
    """A content block of a message; fields that the sandbox does not read are skipped."""

    type: str
    text: Any = None
    title: Any = None
    source: Any = None
    content: Any = None
    citations: Any = None
    tool_use_id: Any = None
    name: Any = None


class MessageParam(msgspec.Struct, gc=False):
    """One of a request's messages."""

    role: str
    content: str | list[Block]


def blocks_of(message: MessageParam) -> list[Block]:
    """Return the message's content blocks; empty if its content is a plain string."""
    return [] if isinstance(message.content, str) else message.content


class Params(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Messages parameters, of the Messages API and its beta (from the SDK's 2.11 types)."""

    model: str
    max_tokens: int
    messages: Raw
    system: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Any = None
    output_config: Any = None
    stop_sequences: list[str] | None = None
    stream: Any = None
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    speed: Any = UNSET
    store: Any = UNSET
    cache_hint: Any = UNSET
    context_hint: Any = UNSET
    billing_policy: Any = None
    cache_control: Any = None
    compaction: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    metadata: Any = None
    service_tier: Any = None
    thinking: Any = None
    thread: Any = None
    user_profile_id: Any = None


class CountParams(Params, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The parameters of `count_tokens`: the same, but `max_tokens` may be missing."""

    max_tokens: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Context for validating params: the headers of the call that brought them."""

    batch: bool
    version: str
    betas: frozenset[str]


@dataclass(slots=True)
class Request:
    """Valid params with their messages decoded, and their model."""

    params: Params
    messages: list[MessageParam]
    model: Model

    @property
    def input_tokens(self) -> int:
        """Return one token for each four bytes of messages, system and tools as JSON, rounded up.

        Images and PDFs count by their pixels and pages instead, at any position.
        """
        params = self.params
        size = len(memoryview(params.messages))
        if params.system:
            size += len(memoryview(params.system))
        if params.tools:
            size += len(memoryview(params.tools))
        media = 0
        for message in self.messages:
            for block in blocks_of(message):
                if block.source is not None:
                    size -= written_size(block.source)
                    media += media_tokens(block.source)
        return (size + 3) // 4 + media


_T = TypeVar("_T")

_decode_body = msgspec.json.Decoder(CreateBody).decode
_decode_params = msgspec.json.Decoder(Params).decode
_decode_count = msgspec.json.Decoder(CountParams).decode
_decode_messages = msgspec.json.Decoder(list[MessageParam]).decode

_MISSING = re.compile(r"Object missing required field `(.+?)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`")
_EXPECTED = re.compile(r"Expected `(.+?)`, got `(.+?)`")
_PATH = re.compile(r" - at `(?:key in )?\$(.*)`$")
_KINDS = {
    "str": "string",
    "int": "integer",
    "array": "list",
    "object": "dictionary",
    "str | array": "string or list",
    "array | null": "list",
}


def api_message(problem: str, prefix: str = "") -> str:
    """Return a decoder's error in the API's style: `requests.0.custom_id: Field required`."""
    path = prefix
    at = _PATH.search(problem)
    if at is not None:
        # `.requests[0].custom_id` becomes `requests.0.custom_id`.
        path += at[1].replace("[", ".").replace("]", "")
    path = path.strip(".")
    if match := _MISSING.match(problem):
        return f"{path}.{match[1]}: Field required".lstrip(".")
    if match := _UNKNOWN.match(problem):
        return f"{path}.{match[1]}: Extra inputs are not permitted".lstrip(".")
    if match := _EXPECTED.match(problem):
        kind = _KINDS.get(match[1], match[1])
        return f"{path or 'body'}: Input should be a valid {kind}"
    return f"{path or 'body'}: {problem}"


def _invalid(message: str) -> ApiError:
    return ApiError("invalid_request_error", message)


def decoded(decode: Callable[[Raw | bytes], _T], raw: Raw | bytes, path: str = "") -> _T:
    """Return JSON that stands at this path of a body; raises `ApiError` (400) if it is invalid."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(api_message(str(error), path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        words = f"{path}: not valid JSON" if path else "The request body is not valid JSON"
        raise _invalid(f"{words}: {error}") from None
    except RecursionError:
        raise _invalid(TOO_DEEP) from None


def check_create(body: bytes, *, max_requests: int) -> list[Entry]:
    """Return the requests of a create's body; raises `ApiError` (400) for envelope errors."""
    entries = decoded(_decode_body, body).requests
    if not entries:
        raise _invalid("requests: List should have at least 1 item after validation, not 0")
    if len(entries) > max_requests:
        raise _invalid(
            f"requests: List should have at most {max_requests} items after validation, "
            f"not {len(entries)}"
        )
    fullmatch = CUSTOM_ID.fullmatch
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        custom_id = entry.custom_id
        if fullmatch(custom_id) is None:
            if len(custom_id) > MAX_CUSTOM_ID:
                raise _invalid(
                    f"requests.{position}.custom_id: String should have at most {MAX_CUSTOM_ID} "
                    "characters"
                )
            raise _invalid(
                f"requests.{position}.custom_id: String should match pattern '{_PATTERN}'"
            )
        if custom_id in seen:
            raise _invalid(
                "requests: custom_id's must be unique within a batch. Duplicate custom_id found: "
                f"{custom_id}"
            )
        seen.add(custom_id)
    return entries


def check_params(raw: Raw | bytes, context: CallContext, *, counting: bool = False) -> Request:
    """Return the decoded request, or raise the `ApiError` for an errored line or live answer."""
    params: Params = decoded(_decode_count if counting else _decode_params, raw)
    messages = decoded(_decode_messages, params.messages, "messages")
    model = _model(params)
    _check_fields(params, model, context)
    if params.system and memoryview(params.system)[0] not in b'"[n':
        raise _invalid("system: Input should be a valid string or list")
    _check_messages(messages, context)
    if params.output_config is not None or params.tools or params.tool_choice is not None:
        _check_output(params, messages)
    return Request(params, messages, model)


def passed_params(raw: Raw | bytes) -> Request:
    """Return the decoded request of params that `check_params` has accepted before."""
    params = _decode_params(raw)
    return Request(params, _decode_messages(params.messages), _model(params))


def _model(params: Params) -> Model:
    model = model_named(params.model)
    if model is None:
        raise ApiError("not_found_error", f"model: {params.model}")
    return model


def _check_fields(params: Params, model: Model, context: CallContext) -> None:
    if context.batch:
        if params.stream:
            raise _invalid('"stream=True" is not supported in the Message Batches API')
        for name in ("speed", "store", "cache_hint", "context_hint"):
            if getattr(params, name) is not UNSET:
                raise _invalid(f"{name}: Not supported in a batch")
    least = 1 if context.batch else 0
    if params.max_tokens < least:
        raise _invalid(f"max_tokens: must be greater than or equal to {least}")
    if params.max_tokens > model.max_tokens:
        long_output = context.batch and LONG_OUTPUT_BETA in context.betas
        most = model.max_long_tokens if long_output else model.max_tokens
        if params.max_tokens > most:
            raise _invalid(
                f"max_tokens: {params.max_tokens} > {most}, which is the maximum allowed number "
                f"of output tokens for {model.id}"
            )
    if params.thinking is not None:
        _check_thinking(params.thinking, model)
    for name, most in (("temperature", 1), ("top_p", 1), ("top_k", None)):
        value = getattr(params, name)
        if value is UNSET:
            continue
        if context.version >= SAMPLING_FREE_VERSION:
            raise _invalid(f"{name}: Extra inputs are not permitted")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _invalid(f"{name}: Input should be a valid number")
        if value < 0 or (most is not None and value > most):
            raise _invalid(f"{name}: Input is out of range")


def _check_thinking(thinking: Any, model: Model) -> None:
    kind = cast(dict[str, Any], thinking).get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str):
        raise _invalid("thinking: Input should be a valid dictionary with a type")
    if (kind == "enabled" and not model.takes_budget) or (
        kind == "disabled" and not model.takes_disabled
    ):
        raise _invalid(
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.adaptive" '
            'and "output_config.effort" to control thinking behavior.'
        )


def _check_messages(messages: list[MessageParam], context: CallContext) -> None:
    if not messages:
        raise _invalid("messages: at least one message is required")
    if messages[0].role == "assistant":
        raise _invalid('messages: first message must use the "user" role')
    for position, message in enumerate(messages):
        role, content = message.role, message.content
        if role not in ("user", "assistant", "system"):
            raise _invalid(f"messages.{position}.role: Input should be 'user' or 'assistant'")
        if not content:
            raise _invalid(f"messages.{position}.content: must not be empty")
        if role == "assistant" and context.version >= SAMPLING_FREE_VERSION:
            for number, block in enumerate(blocks_of(message)):
                if block.type == "document":
                    raise _invalid(
                        f"messages.{position}.content.{number}: document blocks are not "
                        "permitted in assistant messages"
                    )


def _check_output(params: Params, messages: list[MessageParam]) -> None:
    output = params.output_config
    if output is not None:
        if not isinstance(output, dict):
            raise _invalid("output_config: Input should be a valid dictionary")
        wanted = cast(dict[str, Any], output).get("format")
        if wanted is not None:
            if _NO_SCHEMAS.match(params.model):
                raise _invalid(
                    f"output_config.format: '{params.model}' does not support output format."
                )
            _check_format(wanted)
            if cites(messages):
                raise _invalid(
                    "output_config.format: cannot be combined with citations: disable one of them"
                )
    names = _tool_names(params)
    choice = params.tool_choice
    if choice is not None:
        if not isinstance(choice, dict):
            raise _invalid("tool_choice: Input should be a valid dictionary")
        choice = cast(dict[str, Any], choice)
        kind = choice.get("type")
        if kind not in ("auto", "any", "tool", "none"):
            raise _invalid("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
        if not names and kind in ("any", "tool"):
            raise _invalid("tool_choice: tool_choice may only be specified while providing tools")
        name = choice.get("name")
        if kind == "tool" and not (isinstance(name, str) and name in names):
            raise _invalid(f"tool_choice.name: tool {name!r} not found in tools")


def _check_format(wanted: Any) -> None:
    fields = cast(dict[str, Any], wanted) if isinstance(wanted, dict) else {}
    if fields.get("type") != "json_schema":
        raise _invalid("output_config.format.type: Input should be 'json_schema'")
    _check_schema(fields.get("schema"), "output_config.format.schema")


def _check_schema(schema: Any, path: str) -> None:
    if not isinstance(schema, dict):
        raise _invalid(f"{path}: Input should be a valid dictionary")
    try:
        instance(cast(dict[str, Any], schema))
    except SchemaError as error:
        raise _invalid(f"{path}: {error}") from None


def _tool_names(params: Params) -> set[str]:
    names: set[str] = set()
    for position, tool in enumerate(tools_of(params)):
        name = tool.get("name")
        if tool.get("type") == "mcp_toolset":
            continue  # its server defines its content
        if not isinstance(name, str) or not name:
            raise _invalid(f"tools.{position}.name: Field required")
        if name in names:
            raise _invalid(f"tools: Tool names must be unique, and {name!r} came before")
        if tool.get("strict") is True and _NO_SCHEMAS.match(params.model):
            raise _invalid(
                f"tools.{position}.strict: '{params.model}' does not support strict tools."
            )
        _check_schema(tool.get("input_schema", {}), f"tools.{position}.input_schema")
        names.add(name)
    return names


_decode_tools = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def tools_of(params: Params) -> list[dict[str, Any]]:
    """Return the decoded tools of the params."""
    return (decoded(_decode_tools, params.tools, "tools") or []) if params.tools else []


def cites(messages: list[MessageParam]) -> bool:
    """Return whether any document or search result of the messages has citations enabled."""
    for message in messages:
        for block in blocks_of(message):
            settings: Any = block.citations
            if isinstance(settings, dict) and cast(dict[str, Any], settings).get("enabled"):
                return True
    return False
