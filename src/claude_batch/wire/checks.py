"""Checks of Messages params for everything that the API would refuse, before anything is sent.

In a batch, a mistake appears as an errored line hours later. So every known rule is checked here.
Unknown values pass, because the API may know them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.answer_citations import cites
from claude_batch.wire.limits import (
    LONG_OUTPUT_BETA,
    MAX_LONG_OUTPUT_TOKENS,
    REFUSED_IN_BATCH,
    SAMPLING_API_VERSION,
    max_output_tokens,
    takes_forced_tools,
    takes_long_output,
)
from claude_batch.wire.media import IMAGE_TYPES
from claude_batch.wire.models import has_capability
from claude_batch.wire.schemas import schema_fault

_ROLES = ("user", "assistant", "system")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MEDIA = {"image": IMAGE_TYPES, "document": ("application/pdf",)}

_CHECKED = frozenset(("output_config", "tools", "tool_choice", "stop_sequences"))
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
        raise InvalidRequestError("`max_tokens: 0` is not allowed in a batch; give at least 1")
    for name in REFUSED_IN_BATCH:
        if name in params:
            raise InvalidRequestError(f"`{name}` is not allowed in a batch; remove it")


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
    caller's data on the model; they take precedence over the table in `wire.models`.
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
    )


def _faults(
    params: Mapping[str, Any],
    api_version: str,
    betas: Sequence[str],
    batch: bool,
    capabilities: Mapping[str, bool] | None,
) -> Iterator[str]:
    yield from _length_faults(params["model"], params["max_tokens"], betas, batch)
    yield from _message_faults(params["messages"], api_version)
    config = params.get("output_config")
    if isinstance(config, Mapping) and "format" in config:
        yield from _format_faults(cast("_Block", config)["format"], params["messages"])
    if params.get("tools") or params.get("tool_choice") is not None:
        yield from _tool_faults(params)
    if (asked := _asks_for_a_schema(params)) is not None:
        model = str(params["model"])
        if not has_capability(model, "structured_outputs", capabilities):
            yield (
                f"{model} has no structured outputs, which {asked} needs; name a model that has "
                "them, such as claude-haiku-4-5, or ask in the prompt. If this model does have "
                "them, write `model_capabilities: {structured_outputs: true}` in the actor"
            )
    stops: object = params.get("stop_sequences")
    if stops is not None and (
        not isinstance(stops, list | tuple)
        or not all(isinstance(stop, str) for stop in cast("Sequence[object]", stops))
    ):
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
        for place, block in enumerate(_blocks(message.get("content")), 1):
            where = f"message {number}, block {place}"
            newer = api_version > SAMPLING_API_VERSION
            if newer and role == "assistant" and block.get("type") == "document":
                yield (
                    f"{where}: a document in an assistant's message is not allowed since API "
                    "version "
                    f"{api_version}; put it into a user's message"
                )
            yield from (f"{where}: {fault}" for fault in _source_faults(block))


def _blocks(content: object) -> Iterator[_Block]:
    if isinstance(content, list | tuple):
        for block in cast("Sequence[object]", content):
            if isinstance(block, Mapping):
                yield cast("_Block", block)


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
    if source.get("type") in ("base64", "text") and not source.get("data"):
        yield "its source has no `data`"


def _format_faults(given: object, messages: object) -> Iterator[str]:
    if given is None:
        return
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
    config: object = params.get("output_config")
    if isinstance(config, Mapping) and cast("_Block", config).get("format") is not None:
        return "`output_config.format` (an actor's `response_format` or `output_format`)"
    for number, tool in enumerate(_blocks(params.get("tools")), 1):
        if tool.get("strict") is True:
            return f"`strict` of tool {number}"
    return None


def _tool_faults(params: Mapping[str, Any]) -> Iterator[str]:
    names: set[str] = set()
    for number, tool in enumerate(_blocks(params.get("tools")), 1):
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
    choice = params.get("tool_choice")
    if not isinstance(choice, Mapping):
        return
    kind = cast("_Block", choice).get("type")
    if kind not in ("any", "tool"):
        return
    if not params.get("tools") and not params.get("mcp_servers"):
        yield f"`tool_choice: {kind}` needs `tools`; there are none"
    model = str(params["model"])
    if not takes_forced_tools(model):
        yield (
            f"{model} does not accept a forced `tool_choice` ({kind}); use `auto`, or request a "
            "format with `output_format`"
        )
