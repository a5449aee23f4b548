"""Messages params and batch bodies as bytes: each request is checked and encoded once, here.

In a batch, a mistake appears as an errored line hours later. So every known rule is checked here.
Unknown values pass, because the API may accept them.

A batch's body is ``{"requests":[ITEM,ITEM,…]}`` with ``ITEM = {"custom_id":"…","params":PARAMS}``.
The params' bytes are stored in the ledger and sent unchanged, so the size of a body is known
exactly before it exists.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.inbound import check_text, mappings, word_or_none
from claude_batch.wire.limits import (
    API_VERSION,
    LEAST_THINKING_BUDGET,
    LEAST_THINKING_TOP_P,
    LONG_OUTPUT_BETA,
    LONGEST_BETAS,
    LONGEST_MODEL_NAME,
    MAX_BODY_BYTES,
    MAX_LONG_OUTPUT_TOKENS,
    REFUSED_IN_BATCH,
    SAMPLING_API_VERSION,
    SAMPLING_PARAMETERS,
    has_capability,
    max_output_tokens,
    takes_both_samplings,
    takes_forced_tools,
    takes_long_output,
    takes_sampling,
    takes_thinking_budget,
)
from claude_batch.wire.media import IMAGE_TYPES
from claude_batch.wire.messages import cites
from claude_batch.wire.schemas import schema_fault

# Checks -------------------------------------------------------------------------------------------

_ROLES = ("user", "assistant", "system")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MEDIA = {"image": IMAGE_TYPES, "document": ("application/pdf",)}

_CHECKED = frozenset(
    (
        *("cache_control", "metadata", "output_config", "stop_sequences", "thinking"),
        *("tool_choice", "tools"),
    )
)
_ALL_TAKE = 4096
"""A ``max_tokens`` that every model accepts."""

_Block = Mapping[str, Any]


def check_batch_rules(params: dict[str, Any]) -> None:
    """Check the rules that hold only in batches; remove a ``stream`` that is false."""
    stream = params.get("stream")
    if stream is not None:
        if stream:
            raise InvalidRequestError("`stream: true` is not allowed in a batch; remove it")
        del params["stream"]
    if params["max_tokens"] == 0:
        raise InvalidRequestError("`max_tokens: 0` asks for no answer; give at least 1")
    for name in REFUSED_IN_BATCH:
        if name in params:
            # Nor in live calls of the ledger: a request is checked once, for whatever way it goes.
            raise InvalidRequestError(
                f"`{name}` is not allowed in a batch, nor in a live call of the ledger; remove it, "
                "or ask an actor with `batch_processing: false` in Python"
            )


def check_params(
    params: Mapping[str, Any],
    *,
    api_version: str,
    betas: Sequence[str],
    batch: bool,
    capabilities: Mapping[str, bool] | None = None,
) -> None:
    """Raise `InvalidRequestError` for what the API would refuse, with the item and the remedy.

    ``api_version`` and ``betas`` are those that the params are sent with. ``capabilities`` are the
    caller's data on the model; they take precedence over the table in `wire.limits`.
    """
    if _is_plain(params):
        return  # most are, and all other checks cost as much as the encoding
    for fault in _faults(params, api_version, betas, batch, capabilities):
        raise InvalidRequestError(fault)


def _is_plain(params: Mapping[str, Any]) -> bool:
    """Return whether it is one user text with few tokens, which is always valid."""
    messages: object = params["messages"]
    if not isinstance(messages, list) or len(cast("list[object]", messages)) != 1:
        return False
    first = cast("list[object]", messages)[0]
    if not isinstance(first, dict):
        return False
    message = cast("_Block", first)
    tokens: object = params["max_tokens"]
    content: object = message.get("content")
    return (
        message.get("role") == "user"
        and type(content) is str
        and content != ""
        and type(tokens) is int
        and 0 <= tokens <= _ALL_TAKE
        and params.keys().isdisjoint(_CHECKED)
        and isinstance(params.get("system", ""), str)
        and (
            params.keys().isdisjoint(SAMPLING_PARAMETERS)
            or next(_sampling_faults(params), None) is None
        )
    )


_MAPPINGS: Final = ("cache_control", "metadata", "output_config", "thinking", "tool_choice")


def kind_fault(params: Mapping[str, Any]) -> str | None:
    """Return the first parameter whose value is of a kind that the API refuses, or `None`."""
    for name in _MAPPINGS:
        value = params.get(name)
        if value is not None and not isinstance(value, Mapping):
            return f"`{name}` must be a mapping, not {type(value).__name__}"
    system: object = params.get("system")
    tools: object = params.get("tools")
    if system is not None and not isinstance(system, str | list | tuple):
        return f"`system` must be a text or a list of blocks, not {type(system).__name__}"
    if tools is not None and not isinstance(tools, list | tuple):
        return f"`tools` must be a list of tools, not {type(tools).__name__}"
    return _item_fault("`system`: block", params.get("system")) or _item_fault(
        "tool", params.get("tools")
    )


def _block(params: Mapping[str, Any], name: str) -> _Block:
    """Return a parameter that is a mapping, as `kind_fault` has checked; empty if it is not set."""
    return params.get(name) or {}


def _item_fault(what: str, items: object) -> str | None:
    if isinstance(items, list | tuple):
        for number, item in enumerate(cast("Sequence[object]", items), 1):
            if not isinstance(item, Mapping):
                return f"{what} {number} must be a mapping, not {type(item).__name__}"
            if (fault := _text_fault(cast("_Block", item))) is not None:
                return f"{what} {number}: {fault}"
    return None


def _text_fault(block: _Block) -> str | None:
    text: object = block.get("text")
    if block.get("type") != "text" or isinstance(text, str):
        return None
    kind = "None" if text is None else text.__class__.__name__
    return f"its `text` must be a text, not {kind}"


def _faults(
    params: Mapping[str, Any],
    api_version: str,
    betas: Sequence[str],
    batch: bool,
    capabilities: Mapping[str, bool] | None,
) -> Iterator[str]:
    if (fault := kind_fault(params)) is not None:
        yield fault
        return  # all that follows relies on the kinds
    yield from _length_faults(params["model"], params["max_tokens"], betas, batch)
    yield from _sampling_faults(params)
    yield from _message_faults(params["messages"], api_version)
    if (thinking := params.get("thinking")) is not None:
        yield from _thinking_faults(params["model"], thinking, params["max_tokens"], betas)
        yield from _combination_faults(params, thinking.get("type"))
    if (output := _block(params, "output_config").get("format")) is not None:
        yield from _format_faults(output, params["messages"])
    if params.get("tools") or params.get("tool_choice") is not None:
        yield from _tool_faults(params)
    if (asked := _asks_for_a_schema(params)) is not None:
        model: str = params["model"]
        if not has_capability(model, "structured_outputs", capabilities):
            yield (
                f"{model} has no structured outputs, which {asked} needs; name a model that has "
                "them, such as claude-haiku-4-5, or ask in the prompt. If this model does have "
                "them, write `model_capabilities: {structured_outputs: true}` in the actor"
            )
    stops: object = params.get("stop_sequences")
    if stops is not None and (not is_list_of_text(stops)):
        yield "`stop_sequences` must be a list of texts"


def _length_faults(model: str, tokens: object, betas: Sequence[str], batch: bool) -> Iterator[str]:
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        yield f"`max_tokens` must be a whole number, not {tokens!r}"
        return
    if tokens < 0:
        yield f"`max_tokens: {tokens}` is negative; give at least 1"
    most, remedy = max_output_tokens(model), "lower it"
    if takes_long_output(model):
        if batch and LONG_OUTPUT_BETA in betas:
            most = MAX_LONG_OUTPUT_TOKENS
        elif tokens <= MAX_LONG_OUTPUT_TOKENS:
            remedy = (
                f"lower it, or add the beta {LONG_OUTPUT_BETA} (`betas` in the options), which "
                f"lifts it to {MAX_LONG_OUTPUT_TOKENS:,} in batches"
            )
    if tokens > most:
        yield f"`max_tokens: {tokens}` is more than the {most:,} of {model}; {remedy}"


def _sampling_faults(params: Mapping[str, Any]) -> Iterator[str]:
    for name in SAMPLING_PARAMETERS:
        value: object = params.get(name)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue  # a number that is not finite is reported by the encoder, with its place
        if name == "top_k":
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield f"`top_k` must be a whole number of at least 0, not {value!r}"
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            yield f"`{name}` must be a number from 0 to 1, not {value!r}"
    model: str = params["model"]
    both = params.get("temperature") is not None and params.get("top_p") is not None
    if both and not takes_both_samplings(model):
        yield f"{model} accepts only one of `temperature` and `top_p`; remove the other"


def _thinking_faults(
    model: str, thinking: _Block, tokens: object, betas: Sequence[str]
) -> Iterator[str]:
    if thinking.get("type") != "enabled":
        return
    if not takes_thinking_budget(model):
        yield (
            f"{model} does not accept `thinking: {{type: enabled}}`; use `{{type: adaptive}}`, and "
            "`output_config: {effort: …}` to control how much it thinks"
        )
    budget = thinking.get("budget_tokens")
    if isinstance(budget, bool) or not isinstance(budget, int):
        yield f"`thinking.budget_tokens` must be a whole number, not {budget!r}"
        return
    if budget < LEAST_THINKING_BUDGET:
        yield f"`thinking.budget_tokens: {budget}` is less than {LEAST_THINKING_BUDGET:,}"
    # With this beta the budget is that of all thoughts between the calls of tools.
    interleaved = any(beta.startswith("interleaved-thinking") for beta in betas)
    if not interleaved and isinstance(tokens, int) and budget >= tokens:
        yield (
            f"`thinking.budget_tokens: {budget}` is not less than `max_tokens: {tokens}`; lower "
            "it, or raise `max_tokens`"
        )


def _combination_faults(params: Mapping[str, Any], thinking: object) -> Iterator[str]:
    """Yield what the API does not accept together with thinking of this type.

    Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking ("Feature
    compatibility"), and the API's error about `temperature`.
    """
    if thinking not in ("enabled", "adaptive"):
        return
    temperature, top_p = params.get("temperature"), params.get("top_p")
    if temperature is not None and temperature != 1:
        yield f"`temperature: {temperature}` is not allowed with `thinking`; remove one of them"
    if top_p is not None and top_p < LEAST_THINKING_TOP_P:
        yield (
            f"`top_p: {top_p}` is not allowed with `thinking`; remove one of them, or raise it to "
            f"at least {LEAST_THINKING_TOP_P}"
        )
    if params.get("top_k") is not None:
        yield "`top_k` is not allowed with `thinking`; remove one of them"
    kind = _block(params, "tool_choice").get("type")
    if thinking == "enabled" and kind in ("any", "tool"):
        yield (
            f"a forced `tool_choice` ({kind}) is not allowed with `thinking: {{type: enabled}}`; "
            "use `auto`, or remove `thinking`"
        )


def _message_faults(messages: object, api_version: str) -> Iterator[str]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        yield "`messages` must be a list of messages"
        return
    for number, given in enumerate(cast("Sequence[object]", messages), 1):
        if not isinstance(given, Mapping):
            yield (
                f"message {number} must be a mapping of role and content, not "
                f"{type(given).__name__}"
            )
            return
        message = cast("_Block", given)
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            yield f"message {number}: unknown role {role!r}; use `user` or `assistant`"
        if number == 1 and role == "assistant":
            yield "message 1 has the role `assistant`; the first message must have the role `user`"
        if not content:
            yield f"message {number} has no content, which the API does not accept"
        if content and not isinstance(content, str | list | tuple):
            yield f"message {number}: its content must be a text or a list of blocks"
        for place, block in enumerate(mappings(message.get("content")), 1):
            where = f"message {number}, block {place}"
            if (fault := _text_fault(block)) is not None:
                yield f"{where}: {fault}"
            newer = api_version > SAMPLING_API_VERSION
            if newer and role == "assistant" and block.get("type") == "document":
                yield (
                    f"{where}: a document in an assistant's message is not allowed since API "
                    "version "
                    f"{api_version}; put it into a user's message"
                )
            yield from (f"{where}: {fault}" for fault in _source_faults(block))


def is_list_of_text(value: object) -> bool:
    """Return whether a value is a list or tuple of texts."""
    return isinstance(value, list | tuple) and all(
        isinstance(item, str) for item in cast("Sequence[object]", value)
    )


def _source_faults(block: _Block) -> Iterator[str]:
    kind, given = str(block.get("type")), block.get("source")
    if kind not in _MEDIA:
        return
    if not isinstance(given, Mapping):
        yield f"a block of type {kind} needs a `source`"
        return
    source = cast("_Block", given)
    media = source.get("media_type")
    if source.get("type") == "base64":
        if media not in _MEDIA[kind]:
            known = ", ".join(_MEDIA[kind])
            yield f"`media_type: {media}` is not allowed in a block of type {kind}; use {known}"
    elif source.get("type") == "text" and (kind != "document" or media != "text/plain"):
        yield f"a source of type text is a document's, of `media_type: text/plain`, not {media!r}"
    data = source.get("data")
    if source.get("type") in ("base64", "text") and not data:
        yield "its source has no `data`"
    if source.get("type") == "base64" and isinstance(data, str) and not data.isascii():
        yield "the `data` of its source is not base64"


def _format_faults(given: object, messages: object) -> Iterator[str]:
    wanted = cast("_Block", given) if isinstance(given, Mapping) else dict[str, Any]()
    if wanted.get("type") != "json_schema":
        yield "`output_config.format` is {type: json_schema, schema: …}"
        return
    if (fault := schema_fault(wanted.get("schema"))) is not None:
        yield f"the API does not accept the schema of `output_config.format`: {fault}"
    if cites(messages):
        yield (
            "the API does not accept a schema (`output_config.format`) together with citations; "
            "turn one of them off, or use the actor's `response_format` or `output_format`, "
            "which then request labelled fields"
        )


def _asks_for_a_schema(params: Mapping[str, Any]) -> str | None:
    """Return the part of the params that needs structured outputs, or `None`."""
    if _block(params, "output_config").get("format") is not None:
        return "`output_config.format` (an actor's `response_format` or `output_format`)"
    for number, tool in enumerate(mappings(params.get("tools")), 1):
        if tool.get("strict") is True:
            return f"`strict` of tool {number}"
    return None


def _tool_faults(params: Mapping[str, Any]) -> Iterator[str]:
    names: set[str] = set()
    for number, tool in enumerate(mappings(params.get("tools")), 1):
        name = tool.get("name")
        if name is None and tool.get("type") not in (None, "custom"):
            continue  # the tools of a server's toolset have their own names
        if not isinstance(name, str) or _TOOL_NAME.fullmatch(name) is None:
            yield (
                f"tool {number}: {name!r} is not a valid name; use 1 to 128 letters, digits, `_` "
                "or `-`"
            )
        elif name in names:
            yield f"tool {number}: another tool has the name {name!r}; names must differ"
        else:
            names.add(name)
        schema: object = tool.get("input_schema")
        if schema is not None and (
            not isinstance(schema, Mapping)
            or cast("_Block", schema).get("type", "object") != "object"
        ):
            yield f"tool {number}: its `input_schema` must be a JSON schema of `type: object`"
    kind = _block(params, "tool_choice").get("type")
    if kind not in ("any", "tool"):
        return
    if not params.get("tools") and not params.get("mcp_servers"):
        yield f"`tool_choice: {kind}` needs `tools`; there are none"
    model: str = params["model"]
    if not takes_forced_tools(model):
        yield (
            f"{model} does not accept a forced `tool_choice` ({kind}); use `auto`, or request a "
            "format with `output_format`"
        )


# Encoding -----------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

BODY_START: Final = b'{"requests":['
BODY_END: Final = b"]}"
_ITEM_START: Final = b'{"custom_id":"'
_ITEM_MIDDLE: Final = b'","params":'
_ITEM_END: Final = b"}"
_CUSTOM_ID_LENGTH: Final = 32 + 1 + 8 + 1 + 4

ITEM_OVERHEAD: Final = (
    len(_ITEM_START) + _CUSTOM_ID_LENGTH + len(_ITEM_MIDDLE) + len(_ITEM_END) + len(b",")
)
"""Bytes that a request adds to a body beyond its params, including the separating comma."""

_ALONE: Final = ITEM_OVERHEAD + len(BODY_START) + len(BODY_END)
"""Bytes of a body beyond the params of its only request."""

MAX_SENDING: Final = 9999
"""Highest sending number of one request, because the ``custom_id`` has four digits for it."""


class LaneHeaders(msgspec.Struct, frozen=True):
    """Headers of a create call that all requests of a batch must share."""

    api_version: str = API_VERSION
    """``anthropic-version``."""
    betas: tuple[str, ...] = ()
    """``anthropic-beta``, sorted and without duplicates."""
    user_profile: str | None = None
    """``anthropic-user-profile-id``."""

    @classmethod
    def of_lane(cls, api_version: str, betas: str, user_profile: str) -> LaneHeaders:
        """Return the headers of a lane, given by its columns in the ledger."""
        return cls(api_version, tuple(betas.split(",")) if betas else (), user_profile or None)

    def as_lane(self) -> tuple[str, str, str]:
        """Return the columns of the lane, as `of_lane` takes them."""
        return self.api_version, ",".join(self.betas), self.user_profile or ""

    def as_headers(self) -> dict[str, str]:
        """Return the headers as they are sent."""
        headers = {"anthropic-version": self.api_version}
        if self.betas:
            headers["anthropic-beta"] = ",".join(self.betas)
        if self.user_profile is not None:
            headers["anthropic-user-profile-id"] = self.user_profile
        return headers


# A struct, because each request of a run makes one, and a data class takes eight times as long.
class EncodedRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, ready to be stored and sent."""

    params: bytes
    """Messages params as JSON."""
    headers: LaneHeaders
    """Headers that all requests of its batch share."""
    identity: bytes | None = None
    """Content that identifies the request, if its params do not.

    It contains the digests of documents instead of the documents, because these may be inline once
    and uploaded files another time."""


def plain_text(value: object) -> str:
    """Return the text of a subclass of `str`, which msgspec does not encode by itself.

    Templates make such texts, and numpy. Raises ``TypeError`` for any other value.
    """
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder = msgspec.json.Encoder(enc_hook=plain_text)


def _check_words(what: str, values: Iterable[str]) -> None:
    """Raise `InvalidRequestError` for a value that is no word of a header, or is a list of them."""
    for value in values:
        if word_or_none(value) is None or "," in value:
            raise InvalidRequestError(
                f"{what} {value[:100]!r} is not a word of printable ASCII characters; correct it"
            )


@lru_cache(maxsize=1000)
def _headers(api_version: str, betas: tuple[str, ...], user_profile: str | None) -> LaneHeaders:
    # Equal headers share one object, because a run of a million requests has few lanes.
    _check_words("the API version", (api_version,))
    _check_words("a beta", betas)
    if (length := len(",".join(betas))) > LONGEST_BETAS:
        raise InvalidRequestError(
            f"the betas have {length:,} characters together; at most {LONGEST_BETAS:,} are possible"
        )
    _check_words("the user profile", () if user_profile is None else (user_profile,))
    return LaneHeaders(api_version, tuple(sorted(set(betas))), user_profile)


def encode_params(
    params: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    betas: Sequence[str] = (),
    api_version: str | None = None,
    user_profile: str | None = None,
    batch: bool = True,
    capabilities: Mapping[str, bool] | None = None,
) -> EncodedRequest:
    """Check Messages params and encode them, once.

    ``defaults`` are parameters that the caller did not set. They fill gaps; a default that the
    model does not accept is dropped with a warning, while a set parameter raises an error.
    ``betas`` in the params (as in the SDK's beta client) move to the headers. ``batch=False`` skips
    the rules that hold only in batches. ``capabilities`` are the caller's data on the model, which
    take precedence over the table in `wire.limits`. Raises `InvalidRequestError`.
    """
    merged: dict[str, Any] = {**defaults, **params} if defaults else dict(params)
    model = merged.get("model")
    if model is None:
        raise InvalidRequestError("`model` is missing; name one in the actor or in `params`")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError(f"`model` must be a text that is not empty, not {model!r:.100}")
    if len(model) > LONGEST_MODEL_NAME:
        raise InvalidRequestError(
            f"`model` has {len(model):,} characters; at most {LONGEST_MODEL_NAME} are possible"
        )
    if "max_tokens" not in merged:
        raise InvalidRequestError("`max_tokens` is missing; the API requires it")
    if not merged.get("messages"):
        raise InvalidRequestError("`messages` is missing or empty; give a prompt or messages")
    if batch:
        check_batch_rules(merged)
    elif merged.get("stream"):
        raise InvalidRequestError(
            "`stream: true` is not supported, because an actor returns whole answers; remove it"
        )
    version = api_version or API_VERSION
    for name in SAMPLING_PARAMETERS:
        if name not in merged:
            continue
        if merged[name] is None:
            del merged[name]
        elif takes_sampling(model):
            version = SAMPLING_API_VERSION
        elif params.get(name) is not None:
            raise InvalidRequestError(
                f"{model} does not accept `{name}`; remove it from the request or the actor's "
                "options"
            )
        else:
            _log.warning(
                "%s does not accept `%s`: the default %r is dropped", model, name, merged[name]
            )
            del merged[name]
    own_betas: object = merged.pop("betas", None)
    if own_betas is not None and not is_list_of_text(own_betas):
        raise InvalidRequestError(f"`betas` must be a list of names, not {own_betas!r:.100}")
    all_betas = [*betas, *cast("Sequence[str]", own_betas)] if own_betas else betas
    check_params(
        merged, api_version=version, betas=all_betas, batch=batch, capabilities=capabilities
    )
    try:
        encoded = _encoder.encode(merged)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
    # JSON has no such numbers, and the encoder writes null in their place.
    if b"null" in encoded and (place := not_finite(merged)) is not None:
        raise InvalidRequestError(
            f"the params cannot be written as JSON: `{place}` is not a finite number"
        )
    try:
        # How deep a decoder gets depends on the stack beneath it, and the driver has another one.
        check_text(encoded)
    except ValueError as error:
        raise InvalidRequestError(f"the params cannot be used: {error}") from None
    if batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
        raise _too_large(encoded)
    return EncodedRequest(encoded, _headers(version, tuple(all_betas), user_profile))


def not_finite(value: object) -> str | None:
    """Return the place of the first NaN or infinity, such as ``tools.0.limit``; None without."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
    for name, item in items:
        if (place := not_finite(item)) is not None:
            return f"{name}.{place}".removesuffix(".")
    return None


def _too_large(encoded: bytes) -> InvalidRequestError:
    return InvalidRequestError(
        f"the request has {len(encoded):,} bytes, more than the {MAX_BODY_BYTES:,} of a whole "
        "batch; shorten the prompt or upload its documents as files"
    )


class PromptParams:
    """`encode_params` for params that differ in only one text; they are checked and encoded once.

    The bytes before and after the text are kept; the result is the same, byte for byte.
    """

    __slots__ = ("_after", "_batch", "_before", "_headers")

    def __init__(self, build: Callable[[str], Mapping[str, Any]], **options: Any) -> None:
        """Encode the params around the text; ``build`` returns the params for a text.

        ``options`` are those of `encode_params`. Raises `InvalidRequestError` if the params are
        invalid with any text.
        """
        # A random text, so its position in the bytes is where the text belongs.
        probe = secrets.token_hex(16)
        encoded = encode_params(build(probe), **options)
        self._before, _, self._after = encoded.params.partition(_encoder.encode(probe))
        self._headers = encoded.headers
        self._batch: bool = options.get("batch", True)

    def encode(self, text: str) -> EncodedRequest:
        """Return the params with this text. Raises `InvalidRequestError`."""
        try:
            encoded = self._before + _encoder.encode(text) + self._after
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"the params cannot be written as JSON: {error}") from None
        if self._batch and len(encoded) + _ALONE > MAX_BODY_BYTES:
            raise _too_large(encoded)
        return EncodedRequest(encoded, self._headers)


class _Asked(msgspec.Struct, gc=False):
    model: str = ""
    max_tokens: int = 0


_asked = msgspec.json.Decoder(_Asked)


def asked_of(params: bytes, *, unchecked: bool = False) -> tuple[str, int]:
    """Return the model and ``max_tokens`` of encoded params.

    ``unchecked`` params may be wrong: without a usable value, the result is ``""`` and 0.
    """
    try:
        found = _asked.decode(params)
    except msgspec.ValidationError:
        if not unchecked:
            raise
        return "", 0
    return found.model, max(found.max_tokens, 0)


_MODEL = re.compile(rb'\{"model":"([^"\\]{1,150})"')


def model_at_beginning(params: bytes) -> str | None:
    """Return the model from the first bytes of encoded params; `None` if they do not name it."""
    found = _MODEL.match(params)
    return None if found is None else found[1].decode(errors="replace")


def custom_id(request_id: str, incarnation: str, sending: int) -> str:
    """Return ``<request id>-<ledger incarnation>-<sending>``, which proves whose a line is."""
    if sending > MAX_SENDING:
        raise InvalidRequestError(
            f"request {request_id} was sent {MAX_SENDING} times without being accepted, and is "
            "not sent again; cancel its run and make a new one"
        )
    return f"{request_id}-{incarnation}-{sending:04d}"


def parse_custom_id(text: str) -> tuple[str, str, int] | None:
    """Return request id, incarnation and sending of a `custom_id`; `None` if it is not ours."""
    # By positions, not by a pattern, because this runs once for every result line.
    sending = text[42:]
    if (
        len(text) != _CUSTOM_ID_LENGTH
        or text[32] != "-"
        or text[41] != "-"
        or not text.isascii()  # the ledger cannot look up a lone surrogate
        or not sending.isdigit()
    ):
        return None
    return text[:32], text[33:41], int(sending)


def body_length(count: int, params_bytes: int) -> int:
    """Return the exact bytes of a body with ``count`` requests and ``params_bytes`` of params."""
    commas_saved = 1 if count else 0
    return len(BODY_START) + params_bytes + count * ITEM_OVERHEAD - commas_saved + len(BODY_END)


def body_items(requests: Iterable[tuple[str, bytes]], *, first: bool) -> Iterator[bytes]:
    """Yield pieces of a body for ``(custom_id, params)`` pairs.

    ``first`` omits the comma before the first pair.
    """
    for identifier, params in requests:
        start = _ITEM_START if first else b"," + _ITEM_START
        first = False
        yield b"%b%b%b%b%b" % (start, identifier.encode("ascii"), _ITEM_MIDDLE, params, _ITEM_END)
