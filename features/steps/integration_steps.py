"""Steps of the batched client, and of pydantic-ai and LangChain over it, with a real sandbox."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any
from unittest import mock

import anthropic
import httpx2
import parse
from behave import given, register_type, then, when
from behave.runner import Context
from pydantic import BaseModel
from sqlalchemy import func, select
from staging import QUICK, is_sent, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.integrations import transport
from claude_batch.integrations.event_stream import events_of
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.schema import requests as request_table
from claude_batch.ledger.store import Ledger

MODEL = "claude-haiku-4-5"


@parse.with_pattern(r"\{.*\}")
def _json(text: str) -> Any:
    return json.loads(text)


@parse.with_pattern(r"(?:the|a) (?:synchronous )?batched client")
def _is_sync(text: str) -> bool:
    return "synchronous" in text


register_type(Json=_json, Client=_is_sync)


# Setting the scene


@given("an API for the batched client")
def _(context: Context) -> None:
    start_api(context, latency=0.05)


@given("an API for the batched client that takes {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    start_api(context, latency=seconds)


@given("an API for the batched client that answers: {name}")
def _(context: Context, name: str) -> None:
    message = MESSAGES[name]
    start_api(
        context,
        responder=lambda _: {name: message[name] for name in ("content", "stop_reason")},
    )


@given("{sync:Client}")
def _(context: Context, sync: bool) -> None:
    _make_client(context, sync)


@given("{sync:Client} with {settings:Json}")
def _(context: Context, sync: bool, settings: dict[str, Any]) -> None:
    _make_client(context, sync, **settings)


def _make_client(context: Context, sync: bool, **settings: Any) -> None:
    if "provider" not in settings:
        settings = {**QUICK, "linger": 0.05, **settings}
    made: list[cb.ClaudeBatchProvider] = []
    init = cb.ClaudeBatchProvider.__init__

    def remember(self: cb.ClaudeBatchProvider, **words: Any) -> None:
        init(self, **words)
        made.append(self)

    with mock.patch.object(cb.ClaudeBatchProvider, "__init__", remember):
        context.sdk = cb.client_sync(**settings) if sync else cb.client(**settings)
    if made:
        [context.provider] = made
        context.add_cleanup(context.provider.close)


@given("the SDK's own time-out is {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    patched = mock.patch.object(anthropic, "DEFAULT_TIMEOUT", httpx2.Timeout(seconds))
    patched.start()
    context.add_cleanup(patched.stop)
    context.sdk = context.sdk.with_options(max_retries=0)


@given("the batched client remembers {count:d} given-up waits")
def _(context: Context, count: int) -> None:
    patched = mock.patch.object(transport, "KEPT_WAITS", count)
    patched.start()
    context.add_cleanup(patched.stop)


@given("the batched client's credentials are those of a profile")
def _(context: Context) -> None:
    del os.environ["ANTHROPIC_API_KEY"]
    folder = context.tmp / "anthropic"
    for name, content in (
        ("configs", {"authentication": {"type": "user_oauth"}}),
        ("credentials", {"access_token": "sk-of-a-profile", "expires_at": time.time() + 3600}),
    ):
        (folder / name).mkdir(parents=True)
        file = folder / name / "work.json"
        file.write_text(json.dumps(content))
        file.chmod(0o600)
    os.environ["ANTHROPIC_CONFIG_DIR"] = str(folder)
    os.environ["ANTHROPIC_PROFILE"] = "work"


@given("the batched client's provider fails with a bug")
def _(context: Context) -> None:
    context.bug = mock.Mock(side_effect=RuntimeError("a bug"))
    context.provider.call = context.bug


# Asking


def _params(words: dict[str, Any]) -> dict[str, Any]:
    prompt = words.pop("prompt", "hello")
    defaults = {"model": MODEL, "max_tokens": 100}
    return {**defaults, "messages": [{"role": "user", "content": prompt}], **words}


def _create(sdk: Any, **words: Any) -> Any:
    beta = "betas" in words or "user_profile_id" in words
    messages = sdk.beta.messages if beta else sdk.messages
    return messages.create(**_params(words))


async def _ask(sdk: Any, **words: Any) -> Any:
    try:
        if isinstance(sdk, anthropic.AsyncAnthropic):
            return await _create(sdk, **words)
        return await asyncio.to_thread(_create, sdk, **words)
    except anthropic.APIError as error:
        return error


def _ask_all(context: Context, *calls: dict[str, Any]) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(_ask(context.sdk, **dict(words)) for words in calls))

    context.outcomes = asyncio.run(ask())


def _try(context: Context, work: Callable[[], Awaitable[Any]]) -> None:
    async def attempt() -> Any:
        return await work()

    try:
        context.outcomes = [asyncio.run(attempt())]
    except anthropic.APIError as error:
        context.outcomes = [error]


@when("{_:Client} asks")
def _(context: Context, _: bool) -> None:
    if isinstance(context.sdk, anthropic.AsyncAnthropic):
        _ask_all(context, {})
        return
    try:
        context.outcomes = [_create(context.sdk)]
    except anthropic.APIError as error:
        context.outcomes = [error]


@when("the synchronous batched client asks inside a running event loop")
def _(context: Context) -> None:
    async def ask() -> Any:
        return _create(context.sdk)

    context.outcomes = [asyncio.run(ask())]


@when("the batched client asks with {params:Json}")
def _(context: Context, params: dict[str, Any]) -> None:
    _ask_all(context, params)


@when("the batched client asks these at once")
def _(context: Context) -> None:
    _ask_all(context, *({"prompt": r["prompt"], **json.loads(r["params"])} for r in context.table))


@when("the batched client asks for a raw answer")
def _(context: Context) -> None:
    async def ask() -> None:
        answer = await context.sdk.messages.with_raw_response.create(**_params({}))
        context.raw, context.headers = answer.http_response.content, answer.headers

    asyncio.run(ask())


@when("three batched clients of one process ask {count:d} prompts each at once")
def _(context: Context, count: int) -> None:
    settings = {**QUICK, "linger": 1.5}
    clients = [cb.client(**settings), cb.client_sync(**settings), cb.client(**settings)]

    async def ask() -> list[Any]:
        outcomes = await asyncio.gather(
            *(_ask(sdk, prompt=f"{n} of {id(sdk)}") for sdk in clients for n in range(count))
        )
        for sdk in clients:
            if isinstance(sdk, anthropic.AsyncAnthropic):
                await sdk.close()
            else:
                sdk.close()
        return outcomes

    context.outcomes = asyncio.run(ask())


@when("the batched client counts tokens, lists models and lists batches")
def _(context: Context) -> None:
    async def ask() -> list[Any]:
        async with context.sdk as sdk:
            counted = await sdk.messages.count_tokens(model=MODEL, messages=_params({})["messages"])
            return [counted, await sdk.models.list(), await sdk.messages.batches.list()]

    context.outcomes = asyncio.run(ask())


@when("the batched client counts tokens")
def _(context: Context) -> None:
    async def count() -> Any:
        async with context.sdk as sdk:
            return await sdk.messages.count_tokens(model=MODEL, messages=_params({})["messages"])

    _try(context, count)


@when("the synchronous batched client counts tokens twice")
def _(context: Context) -> None:
    with context.sdk as sdk:
        context.outcomes = [
            sdk.messages.count_tokens(model=MODEL, messages=_params({})["messages"])
            for _ in range(2)
        ]


@when("the batched client posts {body}")
def _(context: Context, body: str) -> None:
    async def post() -> Any:
        files = {"a": b"b"} if body.startswith("a form") else None
        words: dict[str, Any] = {"content": body.encode()}
        if files is not None:
            words = {
                "files": files,
                "options": {"headers": {"content-type": "multipart/form-data"}},
            }
        return await context.sdk.post("/v1/messages", cast_to=httpx2.Response, **words)

    _try(context, post)


@when("a copy of the batched client with {options:Json} {does}")
def _(context: Context, options: dict[str, Any], does: str) -> None:
    sdk = context.sdk.copy(**options)
    words = {"model": MODEL, "messages": _params({})["messages"]}
    counting = does == "counts tokens"
    _try(context, lambda: sdk.messages.count_tokens(**words) if counting else _create(sdk))


@rule("batched clients are made")
def _(context: Context, client: str, settings: dict[str, Any]) -> dict[str, Any]:
    if settings.pop("provider", False):
        settings["provider"] = cb.ClaudeBatchProvider()
    if profile := settings.pop("profile", None):
        os.environ.pop("ANTHROPIC_API_KEY", None)
        os.environ["ANTHROPIC_CONFIG_DIR"] = str(context.tmp)
        os.environ["ANTHROPIC_PROFILE"] = profile
    _make_client(context, client == "synchronous", **settings)
    return {}


@when("{sync:Client} of that provider asks and is closed")
def _(context: Context, sync: bool) -> None:
    _make_client(context, sync, provider=context.provider)
    if sync:
        with context.sdk as sdk:
            context.outcomes = [_create(sdk)]
        return

    async def ask() -> Any:
        async with context.sdk as sdk:
            return await _create(sdk)

    context.outcomes = [asyncio.run(ask())]


@when("the batched client is closed")
def _(context: Context) -> None:
    asyncio.run(context.sdk.close())


# Going away


def _held() -> int:
    """Requests in the ledger."""
    if not os.path.exists(os.environ["CLAUDE_BATCH_LEDGER"]):
        return 0
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        with ledger.read() as tx:
            return int(tx.scalar(select(func.count()).select_from(request_table)) or 0)
    finally:
        ledger.close()


@when("a waiting call of the batched client is cancelled")
def _(context: Context) -> None:
    async def ask() -> None:
        task = asyncio.create_task(_create(context.sdk))
        await asyncio.to_thread(until, is_sent)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            context.was_cancelled = True

    asyncio.run(ask())


@when("the event loop of a waiting call of the batched client ends")
def _(context: Context) -> None:
    logged = mock.patch.object(logging.getLogger("concurrent.futures"), "exception")
    context.logged = logged.start()
    context.add_cleanup(logged.stop)
    loop = asyncio.new_event_loop()
    # The task is left pending on purpose, which asyncio would tell.
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(_create(context.sdk))

    async def begun() -> None:
        await asyncio.to_thread(until, is_sent)

    loop.run_until_complete(begun())
    loop.close()
    context.was_cancelled = not task.done()


@then("nothing was said of a loop that has ended")
def _(context: Context) -> None:
    context.logged.assert_not_called()


@when("a waiting call of the synchronous batched client is interrupted")
def _(context: Context) -> None:
    def interrupted(*_: Any) -> Any:
        until(is_sent)
        raise KeyboardInterrupt

    with mock.patch.object(transport.concurrent.futures, "wait", interrupted):
        try:
            _create(context.sdk)
        except KeyboardInterrupt:
            context.was_cancelled = True


def _slow_api(context: Context, seconds: float) -> None:
    context.provider.close()
    sync = isinstance(context.sdk, anthropic.Anthropic)
    start_api(context, latency=seconds)
    _make_client(context, sync)


def _impatient(sdk: Any, seconds: float, retries: int) -> Any:
    return sdk.with_options(timeout=seconds, max_retries=retries)


@when(
    "{_:Client} asks with a time-out of {seconds:g} seconds and {retries:d} retries,"
    " answers taking {latency:g} seconds"
)
def _(context: Context, _: bool, seconds: float, retries: int, latency: float) -> None:
    _slow_api(context, latency)
    context.sdk = _impatient(context.sdk, seconds, retries)
    _ask_all(context, {})


@when(
    "the batched client asks twice the same with a time-out of {seconds:g} seconds"
    " and {retries:d} retries"
)
def _(context: Context, seconds: float, retries: int) -> None:
    _slow_api(context, 0.8)
    context.sdk = _impatient(context.sdk, seconds, retries)
    _ask_all(context, {}, {})


@when("two prompts of the batched client time out and the first is retried")
def _(context: Context) -> None:
    context.sdk = _impatient(context.sdk, 0.05, 0)
    _ask_all(context, {"prompt": "first"})
    _ask_all(context, {"prompt": "second"})
    _ask_all(context, {"prompt": "first", "extra_headers": {"x-stainless-retry-count": "1"}})


@when("the batched client asks, and once more as the SDK's retry")
def _(context: Context) -> None:
    _ask_all(context, {})
    _ask_all(context, {"extra_headers": {"x-stainless-retry-count": "1"}})


@when("an errored line of a type of tomorrow is told to the batched client")
def _(context: Context) -> None:
    _make_client(context, False)
    error = {"type": "tomorrow_error", "message": "never seen"}
    line = {
        "custom_id": "x",
        "result": {"type": "errored", "error": {"type": "error", "error": error}},
    }
    raw = json.dumps(line).encode()
    future: Future[Answer] = Future()
    future.set_result(Answer(1, "run", 0, None, RequestState.ERRORED, 1, 1, raw, "msgbatch_1"))
    context.provider.call = lambda *_, **__: future
    _ask_all(context, {})


# What comes back


@then("the batched client's answer is the message of the batch, byte for byte")
def _(context: Context) -> None:
    [batch_id] = {record["batch_id"] for record in context.api.billing()}
    request = urllib.request.Request(
        f"{context.api.url}/v1/messages/batches/{batch_id}/results",
        headers={"x-api-key": "sk-any", "anthropic-version": "2023-06-01"},
    )
    with urllib.request.urlopen(request) as answer:
        line = answer.read()
    assert context.raw in line, (context.raw, line)
    assert json.loads(context.raw) == json.loads(line)["result"]["message"]


@then("the batched client's answer names its batch, its attempt and a request id")
def _(context: Context) -> None:
    [batch_id] = {record["batch_id"] for record in context.api.billing()}
    headers = context.headers
    assert headers["claude-batch-batch-id"] == batch_id, headers
    assert headers["claude-batch-attempt"] == "1", headers
    assert headers["request-id"] == f"batch:{batch_id}", headers


@then("the batched client has {count:d} messages")
def _(context: Context, count: int) -> None:
    assert len(context.outcomes) == count, context.outcomes
    for outcome in context.outcomes:
        assert outcome.__class__.__name__ in ("Message", "BetaMessage"), repr(outcome)
        assert outcome.content[0].text.startswith("Sandbox answer"), outcome
        assert outcome.usage.service_tier == "batch", outcome


@then("the batched client has no time-out of its own")
def _(context: Context) -> None:
    assert context.sdk.timeout is None


@then("the batched client's batches were created with")
def _(context: Context) -> None:
    names = context.table.headings
    seen = sorted(
        [call["headers"].get(name, "") for name in names]
        for call in context.api.log()
        if call["route"] == "create"
    )
    assert seen == [list(row.cells) for row in context.table], seen


@then("the batched client has sent nothing")
def _(context: Context) -> None:
    assert _held() == 0
    assert not [call for call in context.api.log() if call["method"] == "POST"]


@then("the batched client was answered by the real API")
def _(context: Context) -> None:
    for outcome in context.outcomes:
        assert not isinstance(outcome, Exception), repr(outcome)
        assert getattr(outcome, "_request_id", None) or outcome.data is not None
    assert context.outcomes[0].input_tokens > 0


@then("the batched client fails with {status:d} {error_type:w}")
def _(context: Context, status: int, error_type: str) -> None:
    for error in context.outcomes:
        assert isinstance(error, anthropic.APIStatusError), repr(error)
        assert error.status_code == status, repr(error)
        assert error.body["error"]["type"] == error_type, error.body
        assert error.body["error"]["message"], error.body
        assert error.response.headers["x-should-retry"] == "false"


@then("the batched client's failure is the SDK's APIStatusError, and was asked for once")
def _(context: Context) -> None:
    [error] = context.outcomes
    assert isinstance(error, anthropic.APIStatusError), repr(error)
    assert "was canceled at the API" in error.message, error.message
    assert "make the call again" in error.message, error.message
    assert context.api.billing_summary()["requests"] == 1


@then("the SDK's client, openai-style clients and HTTP retry layers do not repeat its status")
def _(context: Context) -> None:
    [error] = context.outcomes
    # Without our header: a layer between may drop it. The SDK's own rule is that of the clients
    # that are generated alike; the others repeat 408, 409, 425, 429 and all from 500 on.
    bare = httpx2.Response(error.status_code, request=error.request)
    assert not context.sdk._should_retry(bare)
    assert error.status_code not in (408, 409, 425, 429) and error.status_code < 500


@then("the batched client fails with APITimeoutError")
def _(context: Context) -> None:
    [error] = context.outcomes
    assert isinstance(error, anthropic.APITimeoutError), repr(error)


@then("the batched client fails with a redirect")
def _(context: Context) -> None:
    [error] = context.outcomes
    assert isinstance(error, anthropic.APIStatusError), repr(error)
    assert error.status_code == 307


@then("the batched client's outcomes are")
def _(context: Context) -> None:
    seen = [
        [str(o.status_code), o.body["error"]["type"]]
        if isinstance(o, anthropic.APIStatusError)
        else ["200", o.type]
        for o in context.outcomes
    ]
    assert seen == [list(row.cells) for row in context.table], seen


@then("every failure of the batched client forbids a retry and names its batch")
def _(context: Context) -> None:
    failures = [o for o in context.outcomes if isinstance(o, anthropic.APIStatusError)]
    assert failures
    for failure in failures:
        headers = failure.response.headers
        assert headers["x-should-retry"] == "false", headers
        assert headers["claude-batch-batch-id"].startswith("msgbatch_"), headers
        assert failure.request_id, headers


@then("the batched client's failure is the API's error {error:Json}")
def _(context: Context, error: dict[str, Any]) -> None:
    [failure] = context.outcomes
    told = failure.body
    assert told["type"] == "error" and told["error"] == error, told


@then("the batched client's failure names its request")
def _(context: Context) -> None:
    [failure] = context.outcomes
    assert failure.body["request_id"].startswith("req_"), failure.body
    assert failure.request_id == failure.body["request_id"], (failure.request_id, failure.body)


@then("the batched client's failure tells the reason {reason}")
def _(context: Context, reason: str) -> None:
    [failure] = context.outcomes
    assert failure.body["error"]["details"]["reason"] == reason, failure.body


@then("the bug was met once")
def _(context: Context) -> None:
    assert context.bug.call_count == 1, context.bug.mock_calls
    assert "a bug" in str(context.outcomes[0]), context.outcomes


@then("the batched client's ledger holds {count:d} request")
@then("the batched client's ledger holds {count:d} requests")
def _(context: Context, count: int) -> None:
    until(lambda: _held() == count)  # a call that times out may be stored a moment later
    time.sleep(0.1)
    assert _held() == count, _held()


@then("the batched client's provider is closed")
def _(context: Context) -> None:
    assert context.provider.closed


@then("the batched client's provider is open")
def _(context: Context) -> None:
    assert not context.provider.closed
    assert context.actor.respond_sync("still there?").text


# Streams

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


# pydantic-ai


class Invoice(BaseModel):
    number: str
    total: float


def _agent(sdk: Any, *, max_tokens: int | None = 1000, **words: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    model = AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=sdk))
    settings: Any = {"max_tokens": max_tokens} if max_tokens else {}
    return Agent(model, model_settings=settings, **words)


@when("{agents:d} pydantic-ai agents and {calls:d} plain calls of that provider ask together")
def _(context: Context, agents: int, calls: int) -> None:
    sdk = cb.client(provider=context.provider)
    made = [_agent(sdk) for _ in range(agents)]

    async def ask() -> list[Any]:
        runs = [asyncio.create_task(agent.run(f"agent {n}")) for n, agent in enumerate(made)]
        # The first run of an agent imports much: the batch shall not leave meanwhile.
        await asyncio.to_thread(until, lambda: _held() == agents)
        plain = [context.actor.respond(f"call {n}") for n in range(calls)]
        return await asyncio.gather(*runs, *plain)

    context.outcomes = asyncio.run(ask())
    context.asked = [f"agent {n}" for n in range(agents)] + [f"call {n}" for n in range(calls)]


@then("all pydantic-ai agents and plain calls are answered")
def _(context: Context) -> None:
    for prompt, outcome in zip(context.asked, context.outcomes, strict=True):
        text = outcome.text if isinstance(outcome, cb.ActorResponse) else outcome.output
        assert f'begins: "{prompt}"' in text, (prompt, text)


async def _for_output(context: Context, kind: Any) -> None:
    agent = _agent(context.sdk, output_type=kind)
    context.result = await agent.run("read this invoice [[tool:final_result]]")


async def _for_native_output(context: Context) -> None:
    from pydantic_ai import NativeOutput

    await _for_output(context, NativeOutput(Invoice))


async def _with_a_tool(context: Context) -> None:
    agent = _agent(context.sdk)
    context.called = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        context.called.append(city)
        return f"sunny in {city}"

    context.result = await agent.run("[[tool:weather]] how is it?")


async def _without_max_tokens(context: Context) -> None:
    agent = _agent(context.sdk, max_tokens=None)
    with mock.patch(
        "claude_batch.integrations.transport.response_of", wraps=transport.response_of
    ) as told:
        context.result = await agent.run("hello")
    context.streamed = [call.kwargs["stream"] for call in told.mock_calls]


async def _as_streams(context: Context) -> None:
    async with _agent(context.sdk).run_stream("hello") as result:
        context.pieces = [piece async for piece in result.stream_text(delta=True)]
        context.used = result.usage


async def _against_an_overloaded_api(context: Context) -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    try:
        await _agent(context.sdk).run("[[sandbox:errored:overloaded_error]]")
    except ModelHTTPError as error:
        context.error = error


AGENT_RUNS: dict[str, Callable[[Context], Awaitable[None]]] = {
    "for the tool's output": lambda context: _for_output(context, Invoice),
    "for native output": _for_native_output,
    "with a tool": _with_a_tool,
    "without max_tokens": _without_max_tokens,
    "as streams": _as_streams,
    "against an overloaded API": _against_an_overloaded_api,
}


@when("pydantic-ai agents are run {how}")
def _(context: Context, how: str) -> None:
    async def run() -> None:
        await AGENT_RUNS[how](context)

    asyncio.run(run())


@then("the pydantic-ai agents have an invoice")
def _(context: Context) -> None:
    assert isinstance(context.result.output, Invoice), context.result
    assert context.result.usage.output_tokens > 0
    assert context.api.billing_summary()["requests"] == 1


@then("the pydantic-ai agents have called the tool")
def _(context: Context) -> None:
    assert len(context.called) == 1, context.called
    assert "sunny in" in context.result.output, context.result.output


@then("the pydantic-ai agents' call was a stream, and answered")
def _(context: Context) -> None:
    assert context.streamed == [True], context.streamed
    assert context.result.output.startswith("Sandbox answer"), context.result


@then("the pydantic-ai agents have a text and its usage")
def _(context: Context) -> None:
    assert "".join(context.pieces).startswith("Sandbox answer"), context.pieces
    [record] = context.api.billing()
    used = context.used() if callable(context.used) else context.used
    assert used.output_tokens == record["usage"]["output_tokens"], (used, record)
    assert used.input_tokens == record["usage"]["input_tokens"], (used, record)


@then("the pydantic-ai agents fail with {status:d}, once")
def _(context: Context, status: int) -> None:
    assert context.error.status_code == status, context.error
    assert context.api.billing_summary()["requests"] == 1


# LangChain


@given("a LangChain model")
@given("a LangChain model with {settings:Json}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    context.model = context.provider.create_chat_model(MODEL, max_tokens=500, **(settings or {}))


@given("LangChain has a default temperature")
def _(context: Context) -> None:
    from claude_batch.integrations import langchain

    class WithDefault(langchain.BatchedChatAnthropic):
        temperature: float | None = 0.7

    patched = mock.patch.object(langchain, "BatchedChatAnthropic", WithDefault)
    patched.start()
    context.add_cleanup(patched.stop)


@given("LangChain is not installed")
def _(context: Context) -> None:
    modules = {"langchain_anthropic": None, "claude_batch.integrations.langchain": None}
    patched = mock.patch.dict(sys.modules, modules)
    patched.start()
    del sys.modules["claude_batch.integrations.langchain"]
    context.add_cleanup(patched.stop)
    # `from package import module` would find what an earlier scenario has left on the package.
    from claude_batch import integrations

    if hasattr(integrations, "langchain"):
        known = integrations.langchain
        del integrations.langchain
        context.add_cleanup(setattr, integrations, "langchain", known)


def _in_one(pieces: list[Any]) -> Any:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    return whole


async def _streamed(model: Any) -> Any:
    return _in_one([piece async for piece in model.astream("by astream")])


LANGCHAIN_WAYS: dict[str, Callable[[Any], Any]] = {
    "ainvoke": lambda model: model.ainvoke("by ainvoke"),
    "abatch": lambda model: model.abatch(["by abatch, 1", "by abatch, 2"]),
    "astream": _streamed,
    "structured output": lambda model: model.with_structured_output(
        Invoice, method="json_schema"
    ).ainvoke("structured"),
    "invoke": lambda model: model.invoke("by invoke"),
    "stream": lambda model: _in_one(list(model.stream("by stream"))),
}


@when("a LangChain model is asked at once by {ways}")
def _(context: Context, ways: str) -> None:
    context.ways = ways.split(", ")

    async def ask() -> list[Any]:
        calls = [LANGCHAIN_WAYS[way](context.model) for way in context.ways]
        return await asyncio.gather(*calls)

    context.outcomes = asyncio.run(ask())


@when("a LangChain model is asked by {ways}")
def _(context: Context, ways: str) -> None:
    context.ways, context.outcomes = ways.split(", "), []
    for way in context.ways:
        try:
            answer = LANGCHAIN_WAYS[way](context.model)
            context.outcomes.append(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
        except anthropic.APIError as error:
            context.outcomes.append(error)
    until(lambda: [call for call in context.api.log() if call["route"] == "create"])


@then("a LangChain model has answered in each way")
def _(context: Context) -> None:
    for way, outcome in zip(context.ways, context.outcomes, strict=True):
        if way == "structured output":
            assert isinstance(outcome, Invoice), outcome
            continue
        for answer in outcome if isinstance(outcome, list) else [outcome]:
            assert f'begins: "by {way}' in answer.content, answer
            assert answer.usage_metadata["output_tokens"] > 0, answer
            assert answer.response_metadata["stop_reason"] == "end_turn", answer
        assert not isinstance(outcome, list) or len(outcome) == 2, outcome


@when("a LangChain model counts tokens")
def _(context: Context) -> None:
    from langchain_core.messages import HumanMessage

    assert context.model.get_num_tokens_from_messages([HumanMessage("hello")]) > 0


@when("a LangChain model with {one:Json} and one with {other:Json} are asked at once")
def _(context: Context, one: dict[str, Any], other: dict[str, Any]) -> None:
    async def ask() -> None:
        models = [context.provider.create_chat_model(MODEL, **words) for words in (one, other)]
        answers = await asyncio.gather(*(model.ainvoke("hello") for model in models))
        assert all(answer.content for answer in answers), answers

    asyncio.run(ask())


@rule("LangChain models of claude-opus-5-5 are made")
def _(context: Context, kind: str, settings: dict[str, Any], kind_of_error: str) -> dict[str, Any]:
    provider = cb.ClaudeProvider(api_key="sk-any") if kind == "live" else context.provider
    try:
        return {"made": provider.create_chat_model("claude-opus-5-5", **settings)}
    except cb.ActorError as error:
        assert type(error).__name__ == kind_of_error, repr(error)
        raise


@when("a LangChain model of {model} is made and asked")
def _(context: Context, model: str) -> None:
    from claude_batch.integrations import langchain

    with mock.patch.object(langchain, "_log") as log:
        made = context.provider.create_chat_model(model, max_tokens=500)
    context.warned = [call.args[0] % call.args[1:] for call in log.warning.mock_calls]
    context.outcomes = [asyncio.run(made.ainvoke("hello"))]


@then("a LangChain model has answered, and warned of the dropped default")
def _(context: Context) -> None:
    assert context.outcomes[0].content.startswith("Sandbox answer"), context.outcomes
    [warning] = context.warned
    assert "temperature" in warning and "0.7" in warning and "dropped" in warning, warning


@when("a LangChain model of the live provider with {settings:Json} is asked")
def _(context: Context, settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {}
    if settings:
        given = {"base_url": context.api.url, "api_key": "sk-any"}
        os.environ["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    with cb.ClaudeProvider(**given) as provider:
        model = provider.create_chat_model(MODEL, max_tokens=500, **settings)
    context.outcomes = [model.invoke("hello")]


@then("a LangChain model was answered live under {version}")
def _(context: Context, version: str) -> None:
    assert context.outcomes[0].content.startswith("Sandbox answer"), context.outcomes
    summary = context.api.billing_summary()
    assert (summary["live"], summary["batches"]) == (1, 0), summary
    [call] = context.api.log()
    assert call["headers"]["anthropic-version"] == version, call
