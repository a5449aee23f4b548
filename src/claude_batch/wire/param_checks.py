"""The API's rules for Messages params, checked before a request is stored.

In a batch, a mistake appears as an errored line hours later. So every known rule is checked here.
Unknown values pass, because the API may accept them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.inbound import mapping_or_none, mappings
from claude_batch.wire.limits import (
    LEAST_THINKING_BUDGET,
    LEAST_THINKING_TOP_P,
    LONG_OUTPUT_BETA,
    MAX_CACHE_POINTS,
    MAX_LONG_OUTPUT_TOKENS,
    REFUSED_IN_BATCH,
    SAMPLING_API_VERSION,
    SAMPLING_PARAMETERS,
    has_capability,
    max_output_tokens,
    takes_adaptive_thinking,
    takes_both_samplings,
    takes_forced_tools,
    takes_long_output,
    takes_prefill,
    takes_thinking_budget,
)
from claude_batch.wire.media import IMAGE_TYPES
from claude_batch.wire.messages import cites
from claude_batch.wire.schemas import schema_fault

_ROLES = ("user", "assistant", "system")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MEDIA = {"image": IMAGE_TYPES, "document": ("application/pdf",)}

_CHECKED = frozenset(
    (
        *("cache_control", "metadata", "output_config", "stop_sequences", "thinking"),
        *("tool_choice", "tools"),
    )
)
_ENDINGS = ("compaction", "fallback_credit_token")
"""Params that let the messages end with the assistant's with any model (SDK 2.14)."""
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
        and not content.isspace()
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
    if block.get("type") != "text":
        return None
    if not isinstance(text, str):
        kind = "None" if text is None else text.__class__.__name__
        return f"its `text` must be a text, not {kind}"
    return None if text else "its `text` is empty, which the API does not accept"


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
    messages = list(mappings(params["messages"]))
    if not continues_thread(params):
        yield from _tool_result_faults(messages)
    if not (params.get("tools") or _has_more_tools(params) or any(map(params.get, _ENDINGS))):
        # A turn that a server's tool has paused is continued with its own message at the end.
        yield from _ending_faults(params["model"], messages)
    yield from _cache_faults(params)
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
    if thinking.get("type") == "adaptive" and not takes_adaptive_thinking(model):
        yield (
            f"{model} does not accept `thinking: {{type: adaptive}}`; use `{{type: enabled, "
            "budget_tokens: …}`"
        )
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
        if content is None or (not content and role == "user"):
            yield f"message {number} has no content, which the API does not accept"
        if not isinstance(content, str | list | tuple | None):
            yield f"message {number}: its content must be a text or a list of blocks"
        blocks = list(mappings(message.get("content")))
        # A blank block beside others passes: the model's own answers have some.
        texts: list[object] = [block.get("text") for block in blocks] or [content]
        if all(isinstance(text, str) and text.isspace() for text in texts):
            yield f"message {number} has only whitespace, which the API does not accept"
        for place, block in enumerate(blocks, 1):
            where = f"message {number}, block {place}"
            if (fault := _text_fault(block)) is not None:
                yield f"{where}: {fault}"
            if block.get("type") == "image_url":
                yield f"{where}: the type `image_url` is OpenAI's; write {{type: image, source: …}}"
            newer = api_version > SAMPLING_API_VERSION
            if newer and role == "assistant" and block.get("type") == "document":
                yield (
                    f"{where}: a document in an assistant's message is not allowed since API "
                    "version "
                    f"{api_version}; put it into a user's message"
                )
            yield from (f"{where}: {fault}" for fault in _source_faults(block))


def _tool_result_faults(messages: list[_Block]) -> Iterator[str]:
    """Yield calls of tools without their result, and results without their call.

    Messages of one role in a row are one turn. The results of a turn's calls begin the next turn.
    """
    calls: dict[object, int] = {}
    answered: set[object] = set()
    role = "user"
    for number, message in enumerate(messages, 1):
        if message.get("role") == "system":
            continue
        if message.get("role") == "assistant" and role == "user":
            yield from _unanswered(calls, answered)
            calls, answered = {}, set()
        role = message.get("role")
        for block in mappings(message.get("content")):
            kind = block.get("type")
            if kind == "tool_use":
                if role != "assistant":
                    yield f"message {number}: `tool_use` blocks belong into assistant's messages"
                calls[_call_id(block.get("id"))] = number
            elif kind == "tool_result":
                call = _call_id(block.get("tool_use_id"))
                if call in answered:
                    yield f"message {number}: the call of a tool {call!r} has two results"
                if role != "user" or call not in calls:
                    yield (
                        f"message {number}: the `tool_use_id` {call!r} of a result is that of no "
                        "call (`tool_use`) in the message before"
                    )
                answered.add(call)
    if role == "user":
        yield from _unanswered(calls, answered)


def _call_id(given: object) -> object:
    return given if isinstance(given, str) else None


def _unanswered(calls: dict[object, int], answered: set[object]) -> Iterator[str]:
    for call, number in calls.items():
        if call not in answered:
            yield (
                f"message {number}: the call of a tool {call!r} has no result (`tool_result`) in "
                "the next message"
            )


def _ending_faults(model: str, messages: list[_Block]) -> Iterator[str]:
    """Yield why the last message cannot be the beginning of the answer."""
    last = messages[-1]
    content: object = last.get("content")
    blocks = list(mappings(content))
    text: object = (
        blocks[-1].get("text") if blocks and blocks[-1].get("type") == "text" else content
    )
    if last.get("role") != "assistant" or not isinstance(text, str) or not text:
        return
    if not takes_prefill(model):
        yield (
            f"{model} does not accept an `assistant` message as the last one (prefill); end with a "
            "`user` message, or request a format with `output_format`"
        )
    elif text != text.rstrip():
        yield "the last message ends with whitespace, which the API does not accept; remove it"


def _cache_faults(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the number and the order of ``cache_control`` marks."""
    marks = [block["cache_control"] for block in _prefix(params) if block.get("cache_control")]
    if len(marks) > MAX_CACHE_POINTS:
        yield (
            f"{len(marks)} blocks have `cache_control`; the API accepts at most {MAX_CACHE_POINTS}"
        )
    lifetimes = [mark.get("ttl") or "5m" for mark in mappings(marks)]
    if set(lifetimes) == {"5m", "1h"} and lifetimes != sorted(lifetimes):
        yield (
            "a `cache_control` of `ttl: 1h` stands after one of `5m`, in the order tools, system, "
            "messages; put the longer ones first"
        )


def _prefix(params: Mapping[str, Any]) -> Iterator[_Block]:
    """Yield what may have a cache mark, in the order of the prompt: the params themselves last."""
    yield from mappings(params.get("tools"))
    yield from mappings(params.get("system"))
    for message in mappings(params["messages"]):
        for block in mappings(message.get("content")):
            yield from mappings(block.get("content"))  # of a tool's result
            yield block
    yield params


def continues_thread(params: Mapping[str, Any]) -> bool:
    """Return whether the API has the earlier messages, so that they are not repeated."""
    return (mapping_or_none(params.get("thread")) or {}).get("type") == "continue"


def _has_more_tools(params: Mapping[str, Any]) -> bool:
    """Return whether tools may come from a server, from the thread or from the messages."""
    return bool(params.get("mcp_servers") or params.get("thread")) or any(
        block.get("type") in ("tool_addition", "compaction") for block in _prefix(params)
    )


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
        if tool.get("type") in (None, "custom") and tool.get("input_schema") is None:
            yield f"tool {number}: it has no `input_schema`"
        schema: object = tool.get("input_schema")
        if schema is not None and (
            not isinstance(schema, Mapping)
            or cast("_Block", schema).get("type", "object") != "object"
        ):
            yield f"tool {number}: its `input_schema` must be a JSON schema of `type: object`"
    choice = _block(params, "tool_choice")
    kind, wanted = choice.get("type"), choice.get("name")
    if kind not in ("any", "tool"):
        return
    if not _has_more_tools(params):
        are_all_named = len(names) == len(params.get("tools") or ())
        if kind == "tool" and names and are_all_named and str(wanted) not in names:
            known = ", ".join(sorted(names))
            yield f"`tool_choice` names {wanted!r}, which is no tool; the tools are {known}"
        if not params.get("tools"):
            yield f"`tool_choice: {kind}` needs `tools`; there are none"
    model: str = params["model"]
    if not takes_forced_tools(model):
        yield (
            f"{model} does not accept a forced `tool_choice` ({kind}); use `auto`, or request a "
            "format with `output_format`"
        )
