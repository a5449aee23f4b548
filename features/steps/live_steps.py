"""Steps for the live provider, against the sandbox over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from tables import rule

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    InvalidRequestError,
    LiveRequestError,
)
from claude_batch.providers.live import ClaudeProvider
from claude_batch.sandbox import SandboxServer, SandboxSettings

use_step_matcher("parse")


class _Responder:
    """The sandbox's own mind for a scenario: notes the params, and may take its time."""

    def __init__(self) -> None:
        self.params: list[dict[str, Any]] = []
        self.delay = 0.0
        self.look: Callable[[], None] = lambda: None

    def __call__(self, params: dict[str, Any]) -> str:
        self.params.append(params)
        self.look()
        prompt = params["messages"][-1]["content"]
        time.sleep(self.delay)
        return f"answer to {prompt}"


@given('a live server, and a live actor of model "{model}"')
def _(context: Context, model: str) -> None:
    context.live_responder = _Responder()
    settings = SandboxSettings(responder=context.live_responder)
    context.api = context.live_server = SandboxServer(settings).start()
    context.add_cleanup(context.live_server.stop)
    context.live_actor = ActorConfiguration(name="live", model=model)
    _provide(context)


def _provide(context: Context, **settings: Any) -> None:
    settings = {"base_url": context.live_server.url, "api_key": "k-live", **settings}
    context.live_provider = ClaudeProvider(**settings)
    context.add_cleanup(context.live_provider.close)


@given("a live provider with {settings}")
def _(context: Context, settings: str) -> None:
    _provide(context, **json.loads(settings))


@given("the live server takes {milliseconds:d} ms to answer")
def _(context: Context, milliseconds: int) -> None:
    context.live_responder.delay = milliseconds / 1000


def _faults(context: Context, fault: str, **selector: Any) -> None:
    rule = {"route": "messages", "action": json.loads(fault), **selector}
    context.live_server.set_faults({"rules": [rule]})


@given("the live server answers with the fault {fault}")
def _(context: Context, fault: str) -> None:
    _faults(context, fault)


@given("the live server answers the first call with the fault {fault}")
@given("the live server answers the first {times:d} calls with the fault {fault}")
def _(context: Context, fault: str, times: int = 1) -> None:
    _faults(context, fault, times=times)


# --- single calls ---------------------------------------------------------------------------------


def _keep(context: Context, ask: Any) -> None:
    context.live_answer = context.live_error = None
    try:
        context.live_answer = ask()
    except ActorError as error:
        context.live_error = error


def _ask(context: Context, request: Any) -> ActorResponse:
    return asyncio.run(context.live_provider.respond(context.live_actor, request))


@when('the live actor is asked "{prompt}"')
@when('the live actor is asked "{prompt}" {how:w}')
def _(context: Context, prompt: str, how: str = "") -> None:
    respond = context.live_provider.respond_sync
    sync = how == "synchronously"
    _keep(context, lambda: respond(context.live_actor, prompt) if sync else _ask(context, prompt))


@then('the live answer has text, its model is "{model}", and it came from no batch')
def _(context: Context, model: str) -> None:
    assert context.live_error is None, context.live_error
    answer = context.live_answer
    assert answer.text == "answer to Say hello" and answer.model == model, answer
    assert answer.batch_id is None and answer.attempt == 1
    assert answer.usage.output_tokens > 0


def _calls(context: Context) -> list[dict[str, Any]]:
    return [call for call in context.live_server.log() if call["route"] == "messages"]


@then('the live server was called once, with the version "{version}", and sent')
def _(context: Context, version: str) -> None:
    [call] = _calls(context)
    assert call["headers"]["anthropic-version"] == version, call
    assert "anthropic-beta" not in call["headers"], call
    assert context.live_responder.params == [json.loads(context.text)], context.live_responder


@rule("live calls are answered")
def _(context: Context, where: str) -> list[str]:
    provider, actor = context.live_provider, context.live_actor

    async def inside() -> list[ActorResponse]:
        one = provider.respond_sync(actor, "p0")
        return [one, *(r.unwrap() for r in provider.respond_all_sync(actor, ["p1", "p2"]))]

    if where == "synchronously inside a running event loop":
        answers = asyncio.run(inside())
    else:
        assert where == "in threads, each with an event loop of its own", where
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda n: _ask(context, f"p{n}"), range(6)))
    return [answer.text for answer in answers]


# --- many calls -----------------------------------------------------------------------------------


class _Source:
    """Requests to read: counts how many were read, and says when it was left."""

    def __init__(
        self, requests: Iterable[Any], *, endless: bool = False, patience: float | None = None
    ) -> None:
        self.requests = requests
        self.endless = endless
        self.patience = patience
        self.read = 0
        self.left = self.left_in_time = False

    def __iter__(self) -> Iterator[Any]:
        for request in self.requests:
            self.read += 1
            yield request

    async def later(self) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(self.patience):
                for request in self:
                    await asyncio.sleep(0)
                    yield request
                if self.endless:
                    await asyncio.sleep(3600)
        except TimeoutError:
            raise ValueError("the caller's own time-out") from None
        finally:
            self.left = True


def _all(
    context: Context, source: Any, how: str, note: Any = None, stop: int | None = None
) -> list[ActorResult]:
    """The results of all requests, or of the first few: `note` is called for each."""
    provider, actor = context.live_provider, context.live_actor
    ordered = "as completed" not in how
    requests = source.later() if "from an async iterable" in how else source
    results: list[ActorResult] = []

    def take(result: ActorResult) -> bool:
        results.append(result)
        if note is not None:
            note(len(results))
        return len(results) == stop

    async def run() -> None:
        iterator = provider.respond_all(actor, requests, ordered=ordered)
        async for result in iterator:
            if take(result):
                break
        await iterator.aclose()
        # When the loop ends, it would end the iterable in any case.
        if isinstance(source, _Source):
            source.left_in_time = source.left

    async def one_by_one() -> None:
        async def ask(position: int, request: Any) -> None:
            response = await provider.respond(actor, request)
            take(ActorResult(key=None, position=position, response=response))

        await asyncio.gather(*(ask(*each) for each in enumerate(source)))

    if how == "in calls of their own":
        asyncio.run(one_by_one())
    elif "synchronously" in how:
        iterator = provider.respond_all_sync(actor, requests, ordered=ordered)
        for result in iterator:
            if take(result):
                break
        iterator.close()
    else:
        asyncio.run(asyncio.wait_for(run(), 60))
    return results


def _broken() -> Iterator[str]:
    yield "p0"
    yield "p1"
    raise ValueError("the caller's own")


def _source(prompts: Any) -> Any:
    if prompts == "a broken iterable":
        return _Source(_broken())
    if prompts == "one, and then none for an hour":
        return _Source(["p0"], endless=True)
    if prompts == "one, and then a time-out":
        return _Source(["p0"], endless=True, patience=0.5)
    if isinstance(prompts, str):
        return prompts
    return _Source(
        ({"prompt": f"p{n}", "id": f"k{n}"} if n % 2 else ActorRequest(f"p{n}", key=f"k{n}"))
        if isinstance(prompt, int)
        else prompt
        for n, prompt in enumerate(range(prompts) if isinstance(prompts, int) else prompts)
    )


@rule("many calls are made live")
def _(context: Context, prompts: Any, how: str, stop: int = 0) -> dict[str, object]:
    """`prompts` are a number, or requests of which a number stands for the prompt p0, p1, …"""
    source = _source(prompts)
    outstanding: list[int] = []
    at_the_server: list[int] = []
    seconds: list[float] = []
    started = time.monotonic()

    def note(given_back: int) -> None:
        # The one given back last is out of the window, but the next was not read yet.
        outstanding.append(source.read - given_back + 1)
        seconds.append(time.monotonic() - started)

    def look() -> None:
        live = context.live_provider._live
        at_the_server.append(live.pace(context.live_actor.resolved_model).under_way)

    context.live_responder.look = look
    try:
        results = _all(context, source, how, note, stop)
    except InvalidRequestError:
        assert _calls(context) == []
        raise
    positions = [result.position for result in results]
    for result in results:
        if how != "in calls of their own":
            assert result.ok or isinstance(result.error, InvalidRequestError), result
        if result.ok:
            assert result.unwrap().text == f"answer to p{result.position}", result
    return {
        "answered": sum(result.ok for result in results),
        "errors": sorted({str(result.error) for result in results if not result.ok}),
        "keys": [result.key for result in sorted(results, key=lambda each: each.position)],
        "in_order": positions == sorted(positions),
        "complete": sorted(positions) == [*range(len(results))]
        and all(each.answered == each.response.answered for each in results if each.response),
        "most_outstanding": max(outstanding),
        "most_at_the_server": max(at_the_server),
        "few_read": source.read < 20,
        "source_left": source.left_in_time,
        "first_within_0.8_s": seconds[0] < 0.8,
        "last_after_1_s": seconds[-1] >= 1.0,
    }


@then("what a broken iterable yielded is answered {how}, and then its exception is raised")
def _(context: Context, how: str) -> None:
    given_back: list[int] = []
    try:
        _all(context, _source("a broken iterable"), how, given_back.append)
    except ValueError as error:
        assert str(error) == "the caller's own", error
    else:
        raise AssertionError("its exception was not raised")
    assert len(given_back) == 2, given_back


@when("the live actor is asked for all of {count:d} prompts in order")
def _(context: Context, count: int) -> None:
    source = _Source([f"p{number}" for number in range(count)])
    context.live_results = _all(context, source, "in order")


# --- limits and refusals --------------------------------------------------------------------------


@when(
    "{count:d} live providers with the same key are asked for all of {prompts:d} prompts each {how}"
)
def _(context: Context, count: int, prompts: int, how: str) -> None:
    providers = [context.live_provider]
    while len(providers) < count:
        _provide(context)
        providers.append(context.live_provider)
    found: list[ActorResult] = []

    def ask(provider: ClaudeProvider) -> None:
        found.extend(
            provider.respond_all_sync(context.live_actor, [f"p{n}" for n in range(prompts)])
        )

    threads = [threading.Thread(target=ask, args=(provider,)) for provider in providers]
    for thread in threads:
        thread.start()
        if how == "in turn":
            thread.join()
    for thread in threads:
        thread.join()
    assert len(found) == count * prompts
    context.live_results = found


@then("all live results have text, and the live server has refused at most {count:d} calls")
def _(context: Context, count: int) -> None:
    assert all(result.unwrap().text for result in context.live_results)
    refused = [call for call in _calls(context) if call["status"] == 429]
    assert len(refused) <= count, len(refused)


@then("no live call came within {seconds:g} seconds of the last refusal")
def _(context: Context, seconds: float) -> None:
    calls = _calls(context)
    last = max(call["at"] for call in calls if call["status"] == 429)
    after = min(call["at"] for call in calls if call["status"] == 200)
    assert after - last >= seconds, (last, after)


@given("a server that sends a byte of its answer now and then")
def _(context: Context) -> None:
    import claude_batch.wire.live_client as wire

    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            with contextlib.suppress(OSError):
                while not ended.wait(0.02):
                    connection.sendall(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    before, wire.CONNECT_SECONDS = wire.CONNECT_SECONDS, 0.3

    def stop() -> None:
        wire.CONNECT_SECONDS = before
        ended.set()
        thread.join()
        listener.close()

    context.add_cleanup(stop)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    _provide(context, base_url=url, max_retries=0, timeout="200ms")


# --- failures -------------------------------------------------------------------------------------


@then(
    'all {count:d} live results are halted for "{reason}", and the server was called '
    "at most {calls:d} times"
)
def _(context: Context, count: int, reason: str, calls: int) -> None:
    assert len(context.live_results) == count
    for result in context.live_results:
        assert isinstance(result.error, AccountHaltedError), result
        assert result.error.reason == reason
    assert 1 <= len(_calls(context)) <= calls, len(_calls(context))


@rule("a live call ends")
def _(
    context: Context,
    settings: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    each_call_meets: Any = None,
    the_first_call_meets: Any = None,
    request: Any = "Say hello",
) -> dict[str, object]:
    fault = each_call_meets or the_first_call_meets
    if fault:
        _faults(context, json.dumps(fault), **({} if each_call_meets else {"nth": 1}))
    else:
        context.live_server.clear_faults()
    context.live_actor = context.live_actor.model_copy(update={"options": options or {}})
    before, earlier = dict(os.environ), len(_calls(context))
    url = context.live_server.url
    given = {name: url if v == "the server" else v for name, v in (environment or {}).items()}
    os.environ.update(given)
    try:
        _provide(context, **(settings or {}))
        _keep(context, lambda: _ask(context, ActorRequest.of(request)))
    finally:
        os.environ.clear()
        os.environ.update(before)
        context.live_provider.close()
    calls = _calls(context)[earlier:]
    error = context.live_error
    if error is None:
        params, headers = context.live_responder.params[-1], calls[-1]["headers"]
        prompt = params["messages"][-1]["content"]
        assert context.live_answer.text == f"answer to {prompt}", context.live_answer
        assert "betas" not in params
        return {
            "ends_with": "an answer",
            "calls": len(calls),
            "says": None,
            "prompt": prompt,
            "model": params["model"],
            "version": headers["anthropic-version"],
            "beta": headers.get("anthropic-beta"),
        }
    # One line, without the key.
    assert "secret" not in repr(error) and "\n" not in str(error), error
    named = getattr(error, "request_id", None)
    found = {
        "ends_with": type(error).__name__,
        "calls": len(calls),
        "says": str(error),
        "names_the_call": named is not None and named == calls[-1]["request_id"],
    }
    return {**vars(error), **found}


@rule("a live chat model is made")
def _(context: Context, settings: dict[str, Any], arguments: dict[str, Any]) -> dict[str, object]:
    _provide(context, **settings)
    model = context.live_provider.create_chat_model("claude-haiku-4-5", **arguments)
    assert model.anthropic_api_url == context.live_server.url, model
    return {
        "max_retries": model.max_retries,
        "temperature": model.temperature,
        "max_tokens": model.max_tokens,
        "key": model.anthropic_api_key.get_secret_value(),
    }


@then('the live call failed as {name} with the words "{words}"')
@then('the live call failed as {name} with the words ""')
def _(context: Context, name: str, words: str = "") -> None:
    assert type(context.live_error).__name__ == name, repr(context.live_error)
    assert words in str(context.live_error), context.live_error


@then("the first of 3 live results failed with status {status:d}, and the others have text")
def _(context: Context, status: int) -> None:
    first, *others = context.live_results
    assert isinstance(first.error, LiveRequestError) and first.error.status == status, first
    assert [result.unwrap().text for result in others] == ["answer to p1", "answer to p2"]
    assert len(_calls(context)) == 3, _calls(context)


@rule("a live call may be silent")
def _(context: Context, model: str, max_tokens: int) -> dict[str, float]:
    seen: list[Any] = []
    changes = {"model": model, "options": {"max_tokens": max_tokens}}
    actor = context.live_actor.model_copy(update=changes)

    async def run() -> None:
        connection = context.live_provider._client()._connection

        async def send(*_: Any, timeout: Any, **__: Any) -> Any:
            seen.append(timeout)
            raise LiveRequestError("enough")

        connection.send = send
        await context.live_provider._ask(actor, ActorRequest("hello"))

    try:
        asyncio.run(run())
    except LiveRequestError as error:
        assert str(error) == "enough", error
    [timeout] = seen
    assert timeout.connect == 10, timeout
    return {"seconds": timeout.read}
