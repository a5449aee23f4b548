"""Steps of the batched client, and of pydantic-ai and LangChain over it, with a real sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, cast
from unittest import mock

import anthropic
import httpx2
import parse
import toolbox
from behave import given, register_type, then, when
from behave.runner import Context
from sdk_calls import field_of, make
from sqlalchemy import func, select
from staging import KEY, QUICK, is_sent, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.core.errors import HaltReason
from claude_batch.core.states import RequestState
from claude_batch.integrations.http_messages import failure, response_of
from claude_batch.ledger import held_requests
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.schema import digests
from claude_batch.ledger.schema import requests as request_table
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.waiters import CallFuture
from claude_batch.providers.engine_access import EngineAccess

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


@given("an API for the batched client whose model uses tools")
def _(context: Context) -> None:
    start_api(context, latency=0.05, uses_tools=True)


@given("{sync:Client}")
def _(context: Context, sync: bool) -> None:
    _make_client(context, sync)


@given("{sync:Client} with {settings:Json}")
def _(context: Context, sync: bool, settings: dict[str, Any]) -> None:
    _make_client(context, sync, **settings)


def _make_client(context: Context, sync: bool, **settings: Any) -> None:
    """A client; the setting `provider`, if it is true, stands for the scenario's provider."""
    if settings.pop("provider", False):
        settings["provider"] = context.provider
    else:
        settings = {**QUICK, "linger": 0.05, **settings}
    context.settings = settings
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


@given("an SDK client of one's own over {door:w}")
@given("an SDK client of one's own over {door:w} with {settings:Json}")
def _(context: Context, door: str, settings: dict[str, Any] | None = None) -> None:
    # Its key and base URL are known to itself alone.
    del os.environ["ANTHROPIC_API_KEY"], os.environ["ANTHROPIC_BASE_URL"]
    words = {**QUICK, "linger": 0.05, **(settings or {})}
    kind = anthropic.Anthropic if door.endswith("_sync") else anthropic.AsyncAnthropic
    http: Any = getattr(cb, door)(**words)
    context.sdk = kind(api_key=KEY, base_url=context.api.url, http_client=http)
    context.provider = http._transport._provider
    context.add_cleanup(context.provider.close)


@given("the SDK's own time-out is {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    patched = mock.patch.object(anthropic, "DEFAULT_TIMEOUT", httpx2.Timeout(seconds))
    patched.start()
    context.add_cleanup(patched.stop)
    context.sdk = context.sdk.with_options(max_retries=0)


@given("the ledger takes 1 second to open")
def _(context: Context) -> None:
    opened = EngineAccess.session

    def slowly(self: EngineAccess) -> Any:
        time.sleep(1)
        return opened(self)

    patched = mock.patch.object(EngineAccess, "session", slowly)
    patched.start()
    context.add_cleanup(patched.stop)


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


@when("the batched client asks these in turn")
def _(context: Context) -> None:
    outcomes: list[Any] = []
    for row in context.table:
        match row["before"].split():
            case []:
                pass
            case ["another", "client"]:
                context.provider.close()
                _make_client(context, False, **context.settings)
            case [seconds, "seconds"]:
                time.sleep(float(seconds))
        _ask_all(context, *[json.loads(row["params"] or "{}")] * int(row["calls"] or 1))
        outcomes += context.outcomes
    context.outcomes = outcomes


@when("three batched clients of one process ask {count:d} prompts each at once")
def _(context: Context, count: int) -> None:
    settings = {**QUICK, "linger": 4}
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


@rule("other calls of a batched client return")
def _(context: Context, client: str, call: str, arguments: str, field: str) -> Any:
    """Made twice, because the second call finds an open connection."""
    _make_client(context, client == "synchronous")

    async def ask() -> list[Any]:
        async with context.sdk as sdk:
            return [await make(sdk, call, arguments) for _ in range(2)]

    if client == "synchronous":
        with context.sdk as sdk:
            first, second = (make(sdk, call, arguments) for _ in range(2))
    else:
        first, second = asyncio.run(ask())
    found = field_of(first, field)
    assert field_of(second, field) == found, second
    return found


@rule("other bodies than requests are posted to the batched client")
def _(context: Context, body: str, form: bool) -> dict[str, Any]:
    words: dict[str, Any] = {"content": body.encode()}
    if form:
        words = {
            "files": {"a": body.encode()},
            "options": {"headers": {"content-type": "multipart/form-data"}},
        }
    _try(context, lambda: context.sdk.post("/v1/messages", cast_to=httpx2.Response, **words))
    [error] = context.outcomes
    assert isinstance(error, anthropic.APIStatusError), repr(error)
    return {"status": error.status_code, "type": error.body["error"]["type"]}


@when("the batched client counts tokens")
def _(context: Context) -> None:
    async def count() -> Any:
        async with context.sdk as sdk:
            return await sdk.messages.count_tokens(model=MODEL, messages=_params({})["messages"])

    _try(context, count)


@when("the batched client counts tokens, and is closed on another event loop")
def _(context: Context) -> None:
    words = {"model": MODEL, "messages": _params({})["messages"]}
    asyncio.run(context.sdk.messages.count_tokens(**words))
    # httpx2's own error: its connections cannot be closed without their loop.
    with contextlib.suppress(RuntimeError):
        asyncio.run(context.sdk.close())


@when("a copy of the batched client with {options:Json} {does}")
def _(context: Context, options: dict[str, Any], does: str) -> None:
    sdk = context.sdk.copy(**options)
    words = {"model": MODEL, "messages": _params({})["messages"]}
    counting = does == "counts tokens"
    _try(context, lambda: sdk.messages.count_tokens(**words) if counting else _ask(sdk))


@rule("batched clients are made")
def _(context: Context, client: str, settings: dict[str, Any]) -> dict[str, Any]:
    if profile := settings.pop("profile", None):
        os.environ.pop("ANTHROPIC_API_KEY", None)
        os.environ["ANTHROPIC_CONFIG_DIR"] = str(context.tmp)
        os.environ["ANTHROPIC_PROFILE"] = profile
    _make_client(context, client == "synchronous", **settings)
    return {}


@when("the batched client is closed")
def _(context: Context) -> None:
    closing = context.sdk.close()
    if closing is not None:
        asyncio.run(closing)


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


@when("the event loop of a waiting call of the batched client ends")
def _(context: Context) -> None:
    loop = asyncio.new_event_loop()
    # The task is left pending on purpose, which asyncio would tell.
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(_create(context.sdk))

    async def begun() -> None:
        await asyncio.to_thread(until, is_sent)

    loop.run_until_complete(begun())
    loop.close()
    context.was_cancelled = not task.done()


@when("a waiting call of the synchronous batched client is interrupted")
def _(context: Context) -> None:
    def interrupted(*_: Any) -> Any:
        until(is_sent)
        raise KeyboardInterrupt

    with mock.patch.object(CallFuture, "wait", interrupted):
        try:
            _create(context.sdk)
        except KeyboardInterrupt:
            context.was_cancelled = True


def _slow_api(context: Context, seconds: float) -> None:
    context.provider.close()
    sync = isinstance(context.sdk, anthropic.Anthropic)
    start_api(context, latency=seconds)
    _make_client(context, sync, **context.settings)


def _impatient(sdk: Any, seconds: float, retries: int) -> Any:
    return sdk.with_options(timeout=seconds, max_retries=retries)


@when(
    "{_:Client} asks {calls:d} times at once, with a time-out of {seconds:g} seconds and"
    " {retries:d} retries, answers taking {latency:g} seconds"
)
def _(context: Context, _: bool, calls: int, seconds: float, retries: int, latency: float) -> None:
    _slow_api(context, latency)
    context.sdk = _impatient(context.sdk, seconds, retries)
    _ask_all(context, *({} for _ in range(calls)))


@when("three prompts of the batched client time out, and are asked again")
def _(context: Context) -> None:
    context.sdk = _impatient(context.sdk, 0.05, 0)
    for prompt in ("first", "second", "third") * 2:
        _ask_all(context, {"prompt": prompt})


@when("{calls:d} waiting calls of the batched client share a batch, and one is cancelled")
def _(context: Context, calls: int) -> None:
    async def ask() -> None:
        tasks = [asyncio.create_task(_ask(context.sdk, prompt=f"{n}")) for n in range(calls)]
        await asyncio.to_thread(until, is_sent)
        tasks[0].cancel()
        [left] = await asyncio.gather(tasks[0], return_exceptions=True)
        context.was_cancelled = isinstance(left, asyncio.CancelledError)
        context.outcomes = await asyncio.gather(*tasks[1:])

    asyncio.run(ask())


# What comes back


@then("a raw answer is the message of its result line, byte for byte, with the headers")
def _(context: Context) -> None:
    async def ask() -> None:
        answer = await context.sdk.messages.with_raw_response.create(**_params({}))
        context.raw, context.headers = answer.http_response.content, answer.headers

    asyncio.run(ask())
    [batch_id] = {record["batch_id"] for record in context.api.billing()}
    request = urllib.request.Request(
        f"{context.api.url}/v1/messages/batches/{batch_id}/results",
        headers={"x-api-key": "sk-any", "anthropic-version": "2023-06-01"},
    )
    with urllib.request.urlopen(request) as answer:
        line = answer.read()
    assert context.raw in line, (context.raw, line)
    assert json.loads(context.raw) == json.loads(line)["result"]["message"]
    for row in context.table:
        found = context.headers[row["header"]].replace(batch_id, "BATCH")
        assert found == row["value"], (row["header"], found)


@when("{sync:Client} asks for a raw response")
def _(context: Context, sync: bool) -> None:
    asked = context.sdk.messages.with_raw_response.create(**_params({}))

    async def answer() -> Any:
        return await asked

    context.raw = asked if sync else asyncio.run(answer())


@when('the SDK\'s tool runner asks with the tool "{name}"')
def _(context: Context, name: str) -> None:
    tool = anthropic.beta_async_tool(_as_coroutine(getattr(toolbox, name)))
    runner = context.sdk.beta.messages.tool_runner(**_params({}), tools=[tool])
    context.runners_answer = asyncio.run(runner.until_done())


def _as_coroutine(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def called(*given: Any, **named: Any) -> str:
        return str(function(*given, **named))

    return called


@then('the tool runner\'s answer has "{words}"')
def _(context: Context, words: str) -> None:
    assert words in context.runners_answer.content[-1].text, context.runners_answer


@then("the raw response took between {least:g} and {most:g} seconds")
def _(context: Context, least: float, most: float) -> None:
    assert least <= context.raw.elapsed.total_seconds() <= most, context.raw.elapsed


@rule("the SDK repeats a call by its status alone")
def _(context: Context, status: int) -> bool:
    # Without our header: a layer between may drop it.
    return context.sdk._should_retry(httpx2.Response(status, request=_NO_REQUEST))


_NO_REQUEST = httpx2.Request("POST", "http://localhost")


@rule("failures that the API reports for a request are answered")
def _(failure: dict[str, Any]) -> dict[str, Any]:
    line = {"custom_id": "x", "result": {"type": "errored", "error": failure}}
    raw = json.dumps(line).encode()
    answer = Answer(1, "run", 0, None, RequestState.ERRORED, 1, 1, raw, "msgbatch_1")
    response = response_of(answer, stream=False)
    return {"status": response.status_code, "body": response.json()}


@rule("calls that end by a halt are answered")
def _(reason: str) -> dict[str, Any]:
    response = failure(cb.AccountHaltedError("halted", reason=cast("HaltReason", reason)))
    return {"status": response.status_code, "type": response.json()["error"]["type"]}


@then("the batched client has {count:d} messages")
def _(context: Context, count: int) -> None:
    assert len(context.outcomes) == count, context.outcomes
    for outcome in context.outcomes:
        assert outcome.__class__.__name__ in ("Message", "BetaMessage"), repr(outcome)
        assert outcome.content[-1].text.startswith("Sandbox answer"), outcome
        assert outcome.usage.service_tier == "batch", outcome


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


@then("the batched client fails with {status:d} {error_type:w}")
def _(context: Context, status: int, error_type: str) -> None:
    for error in context.outcomes:
        assert isinstance(error, anthropic.APIStatusError), repr(error)
        assert error.status_code == status, repr(error)
        assert error.body["error"]["type"] == error_type, error.body
        assert error.body["error"]["message"], error.body
        assert error.response.headers["x-should-retry"] == "false"
        context.failure = error


@then("the batched client fails with APITimeoutError")
def _(context: Context) -> None:
    [error] = context.outcomes
    assert isinstance(error, anthropic.APITimeoutError), repr(error)


@then("the batched client's outcomes are")
def _(context: Context) -> None:
    seen: list[dict[str, str]] = []
    for outcome in context.outcomes:
        found = {"status": "", "type": type(outcome).__name__, "reused": ""}
        if isinstance(outcome, anthropic.APIStatusError):
            reused = outcome.response.headers.get("claude-batch-reused", "")
            found |= {"status": str(outcome.status_code), "reused": reused}
            # A redirect has no body.
            found["type"] = outcome.body["error"]["type"] if outcome.body else ""
        elif not isinstance(outcome, anthropic.APIError):
            found |= {"status": "200", "type": outcome.type}
        seen.append(found)
    wanted = [row.as_dict() for row in context.table]
    assert [{name: each[name] for name in wanted[0]} for each in seen] == wanted, seen


@then("every failure of the batched client forbids a retry and names its batch")
def _(context: Context) -> None:
    failures = [o for o in context.outcomes if isinstance(o, anthropic.APIStatusError)]
    assert failures
    for each in failures:
        headers = each.response.headers
        assert headers["x-should-retry"] == "false", headers
        assert headers["claude-batch-batch-id"].startswith("msgbatch_"), headers
        assert each.request_id, headers


@then("the bug was met once")
def _(context: Context) -> None:
    assert context.bug.call_count == 1, context.bug.mock_calls
    told = str(context.outcomes[0])
    assert "claude-batch failed: RuntimeError" in told and "a bug" not in told, told


@then("the batched client's provider is closed")
def _(context: Context) -> None:
    assert context.provider.closed


@then("{count:d} failed calls are recorded, and forgotten, in one transaction")
def _(_: Context, count: int) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        with ledger.write() as tx:
            held_requests.remember_failures(tx, range(1, count + 1), time.time())
            assert tx.scalar(select(func.count()).select_from(digests)) == 1
            held_requests.forget_failures(tx, range(1, count + 1))
            assert tx.scalar(select(func.count()).select_from(digests)) == 0
    finally:
        ledger.close()
