"""The API's rules for a batch's body (checked at once), and for Messages params (checked later).

Only an error in the envelope rejects a whole batch. An error in one request's params appears as an
errored line after the batch has ended. Both use the API's message style, `path.to.field: what is
wrong`.

Params are checked by the limits and capabilities of their model (`.model_profiles`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw

from .api_errors import TOO_DEEP, ApiError
from .instances import SchemaError, instance, unsupported_part
from .model_profiles import LONG_CONTEXT_BETA, LONG_OUTPUT_BETA, Model, model_named
from .token_usage import CACHE_MARK, cache_marks, media_tokens, written_size

# Requests -----------------------------------------------------------------------------------------

SAMPLING_FREE_VERSION = "2026-10-21"
"""The `anthropic-version` from which `temperature`, `top_p` and `top_k` are rejected."""

PAUSE_MARK = b"[[sandbox:pause"
"""Directive by which an answer pauses (docs/how-to/sandbox.md)."""

VERSIONS = ("2023-01-01", "2023-06-01", SAMPLING_FREE_VERSION)
"""The API versions that the sandbox supports."""

FILES_VERSION = "2026-10-21"
"""The `anthropic-version` from which files need no beta: the SDK 2.11 sends none with it."""

_NO_SCHEMAS = re.compile(r"claude-(?:[123]\b|instant|(?:opus|sonnet)-4-(?:0\b|20\d{6}))")
"""Models from before structured outputs, which Anthropic's page of them does not list."""

IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_MEDIA = {"image": IMAGES, "document": ("application/pdf",)}
"""Media types of base64 sources, by the type of their block."""

_BLOCKS = (
    "text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use",
    "tool_result", "tool_addition", "tool_removal", "server_tool_use", "web_search_tool_result",
    "web_fetch_tool_result", "advisor_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
    "tool_search_tool_result", "container_upload", "mcp_tool_use", "mcp_tool_result",
    "mcp_tool_listing", "compaction", "fallback",
)  # fmt: skip
"""Types of a message's blocks, of the API and its beta (from the SDK's 2.14 types)."""

_BETA_FIELDS = ("compaction", "context_management", "fallbacks", "mcp_servers")
"""Parameters that no call without a beta has."""

MAX_CUSTOM_ID = 64
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"


class Entry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """One request of a create body; its params stay undecoded bytes."""

    custom_id: str
    params: Raw


class CreateBody(msgspec.Struct, forbid_unknown_fields=True):
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
    id: Any = None
    name: Any = None


class SystemBlock(msgspec.Struct, gc=False):
    """A block of a system prompt."""

    type: str
    text: str


class MessageParam(msgspec.Struct, gc=False):
    """One of a request's messages."""

    role: str
    content: str | list[Block]


def blocks_of(message: MessageParam) -> list[Block]:
    """Return the message's content blocks; empty if its content is a plain string."""
    return [] if isinstance(message.content, str) else message.content


def inner_blocks(block: Block) -> list[tuple[str, dict[str, Any]]]:
    """Return the blocks inside a tool's result or a document, each after its path in the block."""
    found: list[tuple[str, dict[str, Any]]] = []
    source: Any = block.source
    held = cast(dict[str, Any], source).get("content") if isinstance(source, dict) else None
    for path, content in (("content", block.content), ("source.content", held)):
        if isinstance(content, list):
            for number, inner in enumerate(cast(list[Any], content)):
                if isinstance(inner, dict):
                    found.append((f"{path}.{number}", cast(dict[str, Any], inner)))
    return found


def sources_of(block: Block) -> list[Any]:
    """Return the sources of the block and of the blocks inside it."""
    if block.source is None and block.content is None:
        return []
    sources: list[Any] = [block.source, *(inner.get("source") for _, inner in inner_blocks(block))]
    return [each for each in sources if each is not None]


class CountedParams(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Parameters of `count_tokens`, of the API and its beta (from the SDK's 2.11 types)."""

    model: str
    messages: Raw
    system: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Any = None
    output_config: Any = None
    speed: Any = UNSET
    billing_policy: Any = None
    cache_control: Any = None
    compaction: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    thinking: Any = None
    thread: Any = None
    user_profile_id: Any = None


class Params(CountedParams, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Messages parameters, of the Messages API and its beta (from the SDK's 2.11 types)."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: Any = None
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    store: Any = UNSET
    cache_hint: Any = UNSET
    context_hint: Any = UNSET
    container: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What the headers of a call say of its caller, and whether it brings a batch."""

    workspace: str
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
        media = sum(
            media_tokens(source)
            for message in self.messages
            for block in blocks_of(message)
            for source in sources_of(block)
        )
        return self.text_tokens + media

    @property
    def text_tokens(self) -> int:
        """Return the same without images and PDFs."""
        params = self.params
        size = len(memoryview(params.messages))
        if params.system:
            size += len(memoryview(params.system))
        if params.tools:
            size += len(memoryview(params.tools))
        for message in self.messages:
            for block in blocks_of(message):
                size -= sum(written_size(source) for source in sources_of(block))
        return (size + 3) // 4


_T = TypeVar("_T")

_decode_body = msgspec.json.Decoder(CreateBody).decode
_decode_params = msgspec.json.Decoder(Params).decode
_decode_counted = msgspec.json.Decoder(CountedParams).decode
_decode_system = msgspec.json.Decoder(str | list[SystemBlock] | None).decode
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
    "str | array | null": "string or list",
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
    if counting:
        counted = decoded(_decode_counted, raw)
        fields = {name: getattr(counted, name) for name in counted.__struct_fields__}
        params = Params(max_tokens=_model(counted).max_tokens, **fields)
    else:
        params = decoded(_decode_params, raw)
    messages = decoded(_decode_messages, params.messages, "messages")
    model = _model(params)
    _check_fields(params, model, context)
    for name in () if context.betas else _BETA_FIELDS:
        if getattr(params, name) is not None:
            raise _invalid(f"{name}: Extra inputs are not permitted")
    if params.system:
        _check_system(params.system)
    _check_messages(messages, context)
    thread: Any = params.thread
    if not (isinstance(thread, dict) and cast(dict[str, Any], thread).get("type") == "continue"):
        # The messages of the thread are not repeated.
        _check_tool_results(messages)
    # A turn that paused ends with the assistant's message too. It has tools of the server.
    may_end_so = params.compaction or params.fallback_credit_token or counting
    if (
        messages[-1].role == "assistant"
        and messages[-1].content
        and model.newer
        and not (may_end_so or _has_server_tools(params) or PAUSE_MARK in bytes(raw))
    ):
        raise _invalid(
            "This model does not support assistant message prefill. The conversation must end with "
            "a user message."
        )
    if params.output_config is not None or params.tools or params.tool_choice is not None:
        _check_output(params, messages, model)
    if CACHE_MARK in bytes(raw):
        _check_cache_marks(decoded(msgspec.json.decode, raw))
    request = Request(params, messages, model)
    # A token has four bytes, so most requests are too small to be too long.
    if not counting and len(memoryview(raw)) // 4 >= model.max_input_tokens:
        _check_length(request, context)
    return request


def passed_params(raw: Raw | bytes) -> Request:
    """Return the decoded request of params that `check_params` has accepted before."""
    params = _decode_params(raw)
    return Request(params, _decode_messages(params.messages), _model(params))


def _model(params: CountedParams) -> Model:
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
    if params.speed not in (UNSET, None, "standard", "fast"):
        raise _invalid("speed: Input should be 'standard' or 'fast'")
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
        _check_thinking(params.thinking, params.max_tokens, model, context)
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
        if not model.takes_sampling:
            raise _invalid(f"`{name}` is not supported for {model.id}")
    if UNSET not in (params.temperature, params.top_p) and not model.takes_both_samplings:
        raise _invalid(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only "
            "one."
        )
    if _thinks(params, "enabled", "adaptive"):
        mode = "when thinking is enabled or in adaptive mode"
        if params.temperature not in (UNSET, 1):
            raise _invalid(f"`temperature` may only be set to 1 {mode}.")
        if params.top_p is not UNSET and params.top_p < 0.95:
            raise _invalid(f"`top_p` must be greater than or equal to 0.95 or unset {mode}.")
        if params.top_k is not UNSET:
            raise _invalid(f"`top_k` must be unset {mode}.")


def _thinks(params: Params, *kinds: str) -> bool:
    """Return whether params, whose `thinking` was checked, ask for thinking of one of the kinds."""
    thinking: Any = params.thinking
    return thinking is not None and thinking["type"] in kinds


LEAST_BUDGET = 1024
"""Lowest `budget_tokens` of thinking."""

_THINKING = ("enabled", "disabled", "adaptive", "between_tools")


def _check_thinking(thinking: Any, max_tokens: int, model: Model, context: CallContext) -> None:
    fields = cast(dict[str, Any], thinking) if isinstance(thinking, dict) else {}
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _invalid("thinking: Input should be a valid dictionary with a type")
    if kind not in _THINKING:
        raise _unknown_tag("thinking", kind, _THINKING)
    if kind == "adaptive" and not model.newer:
        raise _invalid("adaptive thinking is not supported on this model")
    if (kind == "enabled" and not model.takes_budget) or (
        kind == "disabled" and not model.takes_disabled
    ):
        raise _invalid(
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.adaptive" '
            'and "output_config.effort" to control thinking behavior.'
        )
    if kind == "enabled":
        where, budget = "thinking.enabled.budget_tokens", fields.get("budget_tokens")
        if budget is None:
            raise _invalid(f"{where}: Field required")
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise _invalid(f"{where}: Input should be a valid integer")
        if budget < LEAST_BUDGET:
            raise _invalid(f"{where}: Input should be greater than or equal to {LEAST_BUDGET}")
        # With this beta the budget is that of all thoughts between the calls of tools.
        interleaved = any(beta.startswith("interleaved-thinking") for beta in context.betas)
        if budget >= max_tokens and not interleaved:
            raise _invalid("`max_tokens` must be greater than `thinking.budget_tokens`")


def _unknown_tag(where: str, kind: str, known: tuple[str, ...]) -> ApiError:
    return _invalid(
        f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: "
        f"{', '.join(repr(each) for each in known)}"
    )


def _check_system(system: Raw) -> None:
    if memoryview(system)[0] not in b'"[n':
        raise _invalid("system: Input should be a valid string or list")
    prompt: str | list[SystemBlock] | None = decoded(_decode_system, system, "system")
    if isinstance(prompt, list) and not all(block.text for block in prompt):
        raise _invalid("system: text content blocks must be non-empty")


def _check_messages(messages: list[MessageParam], context: CallContext) -> None:
    if not messages:
        raise _invalid("messages: at least one message is required")
    for position, message in enumerate(messages):
        role, content = message.role, message.content
        if role not in ("user", "assistant", "system"):
            raise _invalid(f"messages.{position}.role: Input should be 'user' or 'assistant'")
        if not content and role == "user":
            raise _invalid(f"messages.{position}: user messages must have non-empty content")
        for number, block in enumerate(blocks_of(message)):
            where = f"messages.{position}.content.{number}"
            if block.type not in _BLOCKS:
                raise _unknown_tag(where, block.type, _BLOCKS)
            if (
                block.type == "document"
                and role == "assistant"
                and context.version >= SAMPLING_FREE_VERSION
            ):
                raise _invalid(f"{where}: document blocks are not permitted in assistant messages")
            _check_block(block, where)
            if block.type == "text" and not block.text:  # a tool may return an empty one
                raise _invalid("messages: text content blocks must be non-empty")


def _check_block(block: Block, where: str) -> None:
    where = f"{where}.{block.type}"
    if block.type == "text":
        _check_text(block.text, where)
    elif block.type in ("document", "image"):
        if not isinstance(block.citations, dict | None):
            raise _invalid(f"{where}.citations: Input should be a valid dictionary")
        if block.source is None:
            raise _invalid(f"{where}.source: Field required")
        _check_source(block.source, f"{where}.source", _MEDIA[block.type])
    elif block.type == "tool_result":
        _check_inner(block.content, f"{where}.content")


def _check_text(text: Any, where: str) -> None:
    if text is None:
        raise _invalid(f"{where}.text: Field required")
    if not isinstance(text, str):
        raise _invalid(f"{where}.text: Input should be a valid string")


def _check_source(source: Any, where: str, media: tuple[str, ...]) -> None:
    fields = cast(dict[str, Any], source) if isinstance(source, dict) else {}
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _invalid(f"{where}: Input should be a valid dictionary with a type")
    if kind == "base64" and fields.get("media_type") not in media:
        known = ", ".join(repr(each) for each in media)
        raise _invalid(f"{where}.base64.media_type: Input should be {known}")
    if kind == "content":
        if not fields.get("content"):
            raise _invalid(f"{where}.content.content: Field required")
        _check_inner(fields["content"], f"{where}.content.content")


def _check_inner(content: Any, where: str) -> None:
    """Check the content of a tool's result or of a document, which may be blocks too."""
    try:
        inner = cast(
            str | list[Block] | None, msgspec.convert(content, type=str | list[Block] | None)
        )
    except msgspec.ValidationError as error:
        raise _invalid(api_message(str(error), where)) from None
    if isinstance(inner, list):
        for number, block in enumerate(inner):
            _check_block(block, f"{where}.{number}")


def _check_tool_results(messages: list[MessageParam]) -> None:
    """Check that each tool's result follows its call, and that each call has one result.

    Messages of one role in a row are one turn.
    """
    calls: dict[str, int] = {}
    answered: set[str] = set()
    role = "user"
    for position, message in enumerate(messages):
        if message.role == "system":
            continue
        if (message.role, role) == ("assistant", "user"):
            _check_answered(calls, answered)
            calls, answered = {}, set()
        role = message.role
        for number, block in enumerate(blocks_of(message)):
            where = f"messages.{position}.content.{number}"
            if block.type == "tool_use":
                if role != "assistant":
                    raise _invalid(
                        f"messages.{position}: `tool_use` blocks can only be in `assistant` "
                        "messages"
                    )
                calls[_call_id(block.id, f"{where}.tool_use.id")] = position
            elif block.type == "tool_result":
                call_id = _call_id(block.tool_use_id, f"{where}.tool_result.tool_use_id")
                if call_id in answered:
                    raise _invalid(
                        f"{where}: each tool_use must have a single result. Found multiple "
                        f"`tool_result` blocks with id: {call_id}"
                    )
                if role != "user" or call_id not in calls:
                    raise _invalid(
                        f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: "
                        f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` "
                        "block in the previous message."
                    )
                answered.add(call_id)
    if role == "user":
        _check_answered(calls, answered)


def _call_id(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"{where}: Input should be a valid string")
    return value


def _check_answered(calls: dict[str, int], answered: set[str]) -> None:
    if missing := [call_id for call_id in calls if call_id not in answered]:
        raise _invalid(
            f"messages.{calls[missing[0]]}: `tool_use` ids were found without `tool_result` blocks "
            f"immediately after: {', '.join(missing)}. Each `tool_use` block must have a "
            "corresponding `tool_result` block in the next message."
        )


def _check_output(params: Params, messages: list[MessageParam], model: Model) -> None:
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
    tools = tools_of(params)
    names = _tool_names(tools, params.model)
    choice = params.tool_choice
    if choice is not None:
        if not isinstance(choice, dict):
            raise _invalid("tool_choice: Input should be a valid dictionary")
        choice = cast(dict[str, Any], choice)
        kind = choice.get("type")
        if kind not in ("auto", "any", "tool", "none"):
            raise _invalid("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
        if kind not in ("any", "tool"):
            return
        if not tools:
            raise _invalid("tool_choice: tool_choice may only be specified while providing tools")
        if _thinks(params, "enabled"):
            raise _invalid("Thinking may not be enabled when tool_choice forces tool use.")
        if not model.takes_forced_tool:
            raise _invalid(f"tool_choice.type: '{kind}' is not supported for {model.id}")
        name = choice.get("name")
        known = isinstance(name, str) and (name in names or len(names) < len(tools))
        if kind == "tool" and not known:
            raise _invalid(f"tool_choice.name: tool {name!r} not found in tools")


MAX_CACHE_POINTS = 4
"""Most blocks of a request with `cache_control`."""


def _check_cache_marks(params: dict[str, Any]) -> None:
    marks = cache_marks(params)
    if len(marks) > MAX_CACHE_POINTS:
        raise _invalid(
            f"A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found "
            f"{len(marks)}."
        )
    ttls: list[str] = []
    for mark in marks:
        fields = cast(dict[str, Any], mark) if isinstance(mark, dict) else {}
        if fields.get("type") != "ephemeral":
            raise _invalid("cache_control.type: Input should be 'ephemeral'")
        ttls.append(fields.get("ttl") or "5m")
        if ttls[-1] not in ("5m", "1h"):
            raise _invalid("cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    if ttls != sorted(ttls):
        raise _invalid(
            "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
            "cache_control block. Blocks are processed in the order tools, system, messages."
        )


def _check_length(request: Request, context: CallContext) -> None:
    """Check the prompt's length, without images and PDFs, which take long to count."""
    model, tokens = request.model, request.text_tokens
    long_context = LONG_CONTEXT_BETA in context.betas
    most = model.max_long_input_tokens if long_context else model.max_input_tokens
    if tokens > most:
        raise _invalid(f"prompt is too long: {tokens} tokens > {most} maximum")


def _check_format(wanted: Any) -> None:
    fields = cast(dict[str, Any], wanted) if isinstance(wanted, dict) else {}
    if fields.get("type") != "json_schema":
        raise _invalid("output_config.format.type: Input should be 'json_schema'")
    _check_schema(fields.get("schema"), "output_config.format.schema")
    if (fault := unsupported_part(fields["schema"])) is not None:
        raise _invalid(f"output_config.format.schema: {fault}")


def _check_schema(schema: Any, path: str) -> None:
    if not isinstance(schema, dict):
        raise _invalid(f"{path}: Input should be a valid dictionary")
    try:
        instance(cast(dict[str, Any], schema))
    except SchemaError as error:
        raise _invalid(f"{path}: {error}") from None


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def _tool_names(tools: list[dict[str, Any]], model: str) -> set[str]:
    """Return the names of the tools; those of a server's toolset have their own."""
    names: set[str] = set()
    for position, tool in enumerate(tools):
        name, kind = tool.get("name"), tool.get("type")
        if name is None and kind not in (None, "custom"):
            continue
        if not isinstance(name, str) or not name:
            raise _invalid(f"tools.{position}.name: Field required")
        if _TOOL_NAME.fullmatch(name) is None:
            raise _invalid(
                f"tools.{position}.custom.name: String should match pattern "
                f"'^{_TOOL_NAME.pattern}$'"
            )
        if name in names:
            raise _invalid(f"tools: Tool names must be unique, and {name!r} came before")
        if tool.get("strict") is True and _NO_SCHEMAS.match(model):
            raise _invalid(f"tools.{position}.strict: '{model}' does not support strict tools.")
        if kind in (None, "custom") and "input_schema" not in tool:
            raise _invalid(f"tools.{position}.custom.input_schema: Field required")
        schema: Any = tool.get("input_schema", {})
        _check_schema(schema, f"tools.{position}.input_schema")
        if schema.get("type", "object") != "object":
            raise _invalid(f"tools.{position}.custom.input_schema.type: Input should be 'object'")
        names.add(name)
    return names


_decode_tools = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def tools_of(params: Params) -> list[dict[str, Any]]:
    """Return the decoded tools of the params."""
    return (decoded(_decode_tools, params.tools, "tools") or []) if params.tools else []


def _has_server_tools(params: Params) -> bool:
    return any(tool.get("type") not in (None, "custom") for tool in tools_of(params))


def cites(messages: list[MessageParam]) -> bool:
    """Return whether any document or search result of the messages has citations enabled."""
    for message in messages:
        for block in blocks_of(message):
            settings: Any = block.citations
            if isinstance(settings, dict) and cast(dict[str, Any], settings).get("enabled"):
                return True
    return False
