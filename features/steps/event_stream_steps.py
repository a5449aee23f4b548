"""Steps of messages that the batched client's callers read as streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
from behave import given, then, when
from behave.runner import Context
from integration_steps import MODEL, _params
from staging import start_api

from claude_batch.integrations.http_answers import events_of

_USAGE = {
    "input_tokens": 8,
    "output_tokens": 9,
    "cache_creation_input_tokens": 1,
    "cache_read_input_tokens": 2,
    "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 0},
    "service_tier": "batch",
}
_CITATION = {
    "type": "char_location",
    "cited_text": "so",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 2,
    "file_id": None,
}
_SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "größe"},
}
_FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "title": "t",
            "url": "https://x.example",
            "encrypted_content": "e",
            "page_age": None,
        }
    ],
}
_TOOL = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "f",
    "input": {"a": [1, 2.5, None, True], "b": {"c": 'é "q" \\ \n'}},
}
_THINKING = {"type": "thinking", "thinking": "let me see", "signature": "sig=="}
_CITED = {"type": "text", "text": "so it is", "citations": [_CITATION, {**_CITATION}]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _message(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(content),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _USAGE,
        **fields,
    }


MESSAGES: dict[str, dict[str, Any]] = {
    "a text": _message(_text("hello")),
    "an unusual text": _message(
        _text('data: \n\n\r\u2028\u2029\x85\x0b "quoted" \U0001f600\\u0041')
    ),
    "cited text": _message(_text("first"), _CITED, {**_CITED, "citations": []}),
    "thinking": _message(
        _THINKING, {**_THINKING, "thinking": ""}, {**_THINKING, "signature": ""}, _text("x")
    ),
    "redacted thinking": _message({"type": "redacted_thinking", "data": "zzz"}, _text("x")),
    "a tool call": _message(_text("calling"), _TOOL, {**_TOOL, "id": "toolu_2"}),
    "a call without input": _message({**_TOOL, "input": {}}, stop_reason="tool_use"),
    "server tools": _message(_SEARCH, _FOUND, _text("found"), stop_reason="pause_turn"),
    "a refusal": _message(
        stop_reason="refusal",
        stop_details={"type": "refusal", "category": "cyber", "explanation": "no"},
    ),
    "nothing": _message(_text("")),
    "a stop sequence": _message(_text("x"), stop_reason="stop_sequence", stop_sequence="END"),
    "a container": _message(
        _text("x"), container={"id": "container_1", "expires_at": "2026-11-21T00:00:00Z"}
    ),
    "a block of the future": _message({"type": "hologram", "beams": {"a": [1, 2]}}, _text("x")),
    "detailed usage": _message(
        _text("x"),
        usage={
            **_USAGE,
            "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1},
            "output_tokens_details": {"thinking_tokens": 4},
            "inference_geo": "us",
        },
    ),
    "an MCP call": _message(
        {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "s", "input": {"a": 1}}
    ),
    "a compaction": _message(
        {"type": "compaction", "content": "in short", "encrypted_content": "zz"}, _text("x")
    ),
    "a failed compaction": _message({"type": "compaction", "content": None}, _text("x")),
    "a fallback": _message(
        {
            "type": "fallback",
            "from": {"model": "claude-opus-5-5"},
            "to": {"model": MODEL},
            "trigger": {"type": "refusal", "category": None},
        },
        _text("x"),
    ),
    "managed context": _message(
        _text("x"),
        context_management={
            "applied_edits": [
                {
                    "type": "clear_tool_uses_20250919",
                    "cleared_input_tokens": 5,
                    "cleared_tool_uses": 1,
                }
            ]
        },
    ),
    "everything": _message(_THINKING, _CITED, _TOOL, stop_reason="tool_use"),
}


@given("an API for the batched client that answers: {name}")
def _(context: Context, name: str) -> None:
    message = MESSAGES[name]
    start_api(
        context,
        responder=lambda _: {name: message[name] for name in ("content", "stop_reason")},
    )


@when("the batched client tells this message as events: {name}")
def _(context: Context, name: str) -> None:
    context.message = json.dumps(MESSAGES[name], ensure_ascii=False).encode()
    context.events = events_of(context.message)


@then("the SDK's {kind} stream ends with that very message")
def _(context: Context, kind: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        streamed = json.loads(request.content).get("stream")
        content = context.events if streamed else context.message
        form = "text/event-stream" if streamed else "application/json"
        return httpx2.Response(200, content=content, headers={"content-type": form})

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with anthropic.Anthropic(api_key="sk-any", http_client=http) as sdk:
        messages: Any = sdk.beta.messages if kind == "beta" else sdk.messages
        whole = messages.create(**_params({}))
        with messages.stream(**_params({})) as stream:
            put_together = stream.get_final_message()
    assert whole.model_dump() == put_together.model_dump(), (whole, put_together)
    # What the SDK reads of the message is all that there is in it.
    assert [b["type"] for b in json.loads(context.message)["content"]] == [
        block.type for block in put_together.content
    ]


@then("the batched client's events are")
def _(context: Context) -> None:
    seen: list[str] = []
    for event in context.events.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}", event
        inner = told.get("content_block") or told.get("delta") or {}
        seen.append(f"{told['type']} {inner.get('type') or inner.get('stop_reason') or ''}".strip())
    assert seen == context.text.split("\n"), seen


@when("{sync:Client} asks the same with and without a stream")
def _(context: Context, sync: bool) -> None:
    async def ask() -> tuple[Any, ...]:
        async def streamed() -> Any:
            async with context.sdk.messages.stream(**_params({})) as stream:
                return await stream.get_final_message()

        async def raw() -> list[Any]:
            stream = await context.sdk.messages.create(**_params({}), stream=True)
            return [event async for event in stream]

        return await asyncio.gather(context.sdk.messages.create(**_params({})), streamed(), raw())

    def ask_sync() -> tuple[Any, ...]:
        whole = context.sdk.messages.create(**_params({}))
        with context.sdk.messages.stream(**_params({})) as stream:
            final = stream.get_final_message()
        return whole, final, list(context.sdk.messages.create(**_params({}), stream=True))

    context.whole, context.final, context.raw = ask_sync() if sync else asyncio.run(ask())


@then("the batched client's final messages are equal")
def _(context: Context) -> None:
    whole, final = context.whole.model_dump(), context.final.model_dump()
    # Two requests have two ids; the rest is the same answer.
    assert whole.pop("id") != final.pop("id")
    assert whole == final, (whole, final)
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]


@then("the batched client's raw stream begins with {first} and ends with {last}")
def _(context: Context, first: str, last: str) -> None:
    kinds = [event.type for event in context.raw]
    assert (kinds[0], kinds[-1]) == (first, last), kinds
    assert kinds.count("content_block_start") == 3, kinds
