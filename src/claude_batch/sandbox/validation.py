"""The API's rules for a batch's body (checked at once), and for Messages params (checked later).

Only an error in the envelope rejects a whole batch. An error in one request's params appears as an
errored line after the batch has ended. Both use the API's message style, `path.to.field: what is
wrong`.

Params are checked by the limits and capabilities of their model (`.model_profiles`); messages by
`.content_blocks`, formats and tools by `.output_checks`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from .api_errors import ApiError, decoded, invalid, unknown_tag
from .content_blocks import (
    MessageParam,
    blocks_of,
    check_fields,
    check_messages,
    check_tool_results,
    cites,
    sources_of,
)
from .model_profiles import (
    LONG_CONTEXT_BETA,
    LONG_OUTPUT_BETA,
    SAMPLING_FREE_VERSION,
    Model,
    model_named,
)
from .output_checks import check_format, check_tools
from .token_usage import CACHE_MARK, cache_marks, media_tokens, written_size

# Requests -----------------------------------------------------------------------------------------

PAUSE_MARK = b"[[sandbox:pause"
"""Directive by which an answer pauses (docs/how-to/sandbox.md)."""

VERSIONS = ("2023-01-01", "2023-06-01", SAMPLING_FREE_VERSION)
"""The API versions that the sandbox supports."""

FILES_VERSION = "2026-10-21"
"""The `anthropic-version` from which files need no beta: the SDK 2.11 sends none with it."""

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


class SystemBlock(msgspec.Struct, gc=False):
    """A block of a system prompt."""

    type: str
    text: str


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


_decode_body = msgspec.json.Decoder(CreateBody).decode
_decode_params = msgspec.json.Decoder(Params).decode
_decode_counted = msgspec.json.Decoder(CountedParams).decode
_decode_system = msgspec.json.Decoder(str | list[SystemBlock] | None).decode
_decode_messages = msgspec.json.Decoder(list[MessageParam]).decode


def check_create(body: bytes, *, max_requests: int) -> list[Entry]:
    """Return the requests of a create's body; raises `ApiError` (400) for envelope errors."""
    entries = decoded(_decode_body, body).requests
    if not entries:
        raise invalid("requests: List should have at least 1 item after validation, not 0")
    if len(entries) > max_requests:
        raise invalid(
            f"requests: List should have at most {max_requests} items after validation, "
            f"not {len(entries)}"
        )
    fullmatch = CUSTOM_ID.fullmatch
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        custom_id = entry.custom_id
        if fullmatch(custom_id) is None:
            if len(custom_id) > MAX_CUSTOM_ID:
                raise invalid(
                    f"requests.{position}.custom_id: String should have at most {MAX_CUSTOM_ID} "
                    "characters"
                )
            raise invalid(
                f"requests.{position}.custom_id: String should match pattern '{_PATTERN}'"
            )
        if custom_id in seen:
            raise invalid(
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
            raise invalid(f"{name}: Extra inputs are not permitted")
    if params.system:
        _check_system(params.system)
    check_messages(messages, context.version)
    if any(map(blocks_of, messages)):
        check_fields(params.messages)
    thread: Any = params.thread
    if not (isinstance(thread, dict) and cast(dict[str, Any], thread).get("type") == "continue"):
        # The messages of the thread are not repeated.
        check_tool_results(messages)
    # A turn that paused ends with the assistant's message too. It has tools of the server.
    may_end_so = params.compaction or params.fallback_credit_token or counting
    if (
        messages[-1].role == "assistant"
        and messages[-1].content
        and model.newer
        and not (may_end_so or _has_server_tools(params) or PAUSE_MARK in bytes(raw))
    ):
        raise invalid(
            "This model does not support assistant message prefill. The conversation must end with "
            "a user message."
        )
    if params.output_config is not None:
        check_format(params.output_config, params.model, cited=cites(messages))
    if params.tools or params.tool_choice is not None:
        thinks = _thinks(params, "enabled")
        check_tools(tools_of(params), params.tool_choice, params.model, model, thinks=thinks)
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
            raise invalid('"stream=True" is not supported in the Message Batches API')
        for name in ("speed", "store", "cache_hint", "context_hint"):
            if getattr(params, name) is not UNSET:
                raise invalid(f"{name}: Not supported in a batch")
    if params.speed not in (UNSET, None, "standard", "fast"):
        raise invalid("speed: Input should be 'standard' or 'fast'")
    least = 1 if context.batch else 0
    if params.max_tokens < least:
        raise invalid(f"max_tokens: must be greater than or equal to {least}")
    if params.max_tokens > model.max_tokens:
        long_output = context.batch and LONG_OUTPUT_BETA in context.betas
        most = model.max_long_tokens if long_output else model.max_tokens
        if params.max_tokens > most:
            raise invalid(
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
            raise invalid(f"{name}: Extra inputs are not permitted")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise invalid(f"{name}: Input should be a valid number")
        if value < 0 or (most is not None and value > most):
            raise invalid(f"{name}: Input is out of range")
        if not model.takes_sampling:
            raise invalid(f"`{name}` is not supported for {model.id}")
    if UNSET not in (params.temperature, params.top_p) and not model.takes_both_samplings:
        raise invalid(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only "
            "one."
        )
    if _thinks(params, "enabled", "adaptive"):
        mode = "when thinking is enabled or in adaptive mode"
        if params.temperature not in (UNSET, 1):
            raise invalid(f"`temperature` may only be set to 1 {mode}.")
        if params.top_p is not UNSET and params.top_p < 0.95:
            raise invalid(f"`top_p` must be greater than or equal to 0.95 or unset {mode}.")
        if params.top_k is not UNSET:
            raise invalid(f"`top_k` must be unset {mode}.")


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
        raise invalid("thinking: Input should be a valid dictionary with a type")
    if kind not in _THINKING:
        raise unknown_tag("thinking", kind, _THINKING)
    if kind == "adaptive" and not model.newer:
        raise invalid("adaptive thinking is not supported on this model")
    if (kind == "enabled" and not model.takes_budget) or (
        kind == "disabled" and not model.takes_disabled
    ):
        raise invalid(
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.adaptive" '
            'and "output_config.effort" to control thinking behavior.'
        )
    if kind == "enabled":
        where, budget = "thinking.enabled.budget_tokens", fields.get("budget_tokens")
        if budget is None:
            raise invalid(f"{where}: Field required")
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise invalid(f"{where}: Input should be a valid integer")
        if budget < LEAST_BUDGET:
            raise invalid(f"{where}: Input should be greater than or equal to {LEAST_BUDGET}")
        # With this beta the budget is that of all thoughts between the calls of tools.
        interleaved = any(beta.startswith("interleaved-thinking") for beta in context.betas)
        if budget >= max_tokens and not interleaved:
            raise invalid("`max_tokens` must be greater than `thinking.budget_tokens`")


def _check_system(system: Raw) -> None:
    if memoryview(system)[0] not in b'"[n':
        raise invalid("system: Input should be a valid string or list")
    prompt: str | list[SystemBlock] | None = decoded(_decode_system, system, "system")
    if isinstance(prompt, list) and not all(block.text for block in prompt):
        raise invalid("system: text content blocks must be non-empty")


MAX_CACHE_POINTS = 4
"""Most blocks of a request with `cache_control`."""


def _check_cache_marks(params: dict[str, Any]) -> None:
    marks = cache_marks(params)
    if len(marks) > MAX_CACHE_POINTS:
        raise invalid(
            f"A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found "
            f"{len(marks)}."
        )
    ttls: list[str] = []
    for mark in marks:
        fields = cast(dict[str, Any], mark) if isinstance(mark, dict) else {}
        if fields.get("type") != "ephemeral":
            raise invalid("cache_control.type: Input should be 'ephemeral'")
        ttls.append(fields.get("ttl") or "5m")
        if ttls[-1] not in ("5m", "1h"):
            raise invalid("cache_control.ephemeral.ttl: Input should be '5m' or '1h'")
    if ttls != sorted(ttls):
        raise invalid(
            "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
            "cache_control block. Blocks are processed in the order tools, system, messages."
        )


def _check_length(request: Request, context: CallContext) -> None:
    """Check the prompt's length, without images and PDFs, which take long to count."""
    model, tokens = request.model, request.text_tokens
    long_context = LONG_CONTEXT_BETA in context.betas
    most = model.max_long_input_tokens if long_context else model.max_input_tokens
    if tokens > most:
        raise invalid(f"prompt is too long: {tokens} tokens > {most} maximum")


_decode_tools = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def tools_of(params: Params) -> list[dict[str, Any]]:
    """Return the decoded tools of the params."""
    return (decoded(_decode_tools, params.tools, "tools") or []) if params.tools else []


def _has_server_tools(params: Params) -> bool:
    return any(tool.get("type") not in (None, "custom") for tool in tools_of(params))
