"""Steps of the life of a live provider: closing, cancelling, forks and limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import types
from typing import Any

from behave import then, when
from behave.runner import Context
from live_steps import _ask, _keep

from claude_batch.providers.live import ClaudeProvider


def _live_threads() -> int:
    return sum(thread.name == "claude-live" for thread in threading.enumerate())


@when("the live provider is used and closed, in every way")
def _(context: Context) -> None:
    before = _live_threads()
    _ask(context, "hello")
    assert _live_threads() == before + 1
    context.live_provider.close()
    context.live_provider.close()
    assert context.live_provider.closed and _live_threads() == before

    async def inside() -> None:
        async with ClaudeProvider(base_url=context.live_server.url, api_key="k") as provider:
            assert (await provider.respond(context.live_actor, "hello")).text
        assert provider.closed

    asyncio.run(inside())
    with ClaudeProvider(base_url=context.live_server.url, api_key="k") as provider:
        assert provider.respond_sync(context.live_actor, "hello").text
    assert provider.closed and _live_threads() == before
    _keep(context, lambda: _ask(context, "hello"))


@then("an unused live provider closes, and has started no thread")
def _(context: Context) -> None:
    before = _live_threads()
    provider = ClaudeProvider(api_key="k")
    assert not provider.closed
    provider.close()
    assert provider.closed and _live_threads() == before


def _close_soon(context: Context) -> threading.Thread:
    def close() -> None:
        _until_called(context)
        context.live_provider.close()

    thread = threading.Thread(target=close)
    thread.start()
    return thread


def _until_called(context: Context) -> None:
    """Until the server holds a call: a hang is logged when it ends, so its counter is asked."""
    for _ in range(400):
        counters = context.live_server._call("GET", "/sandbox/faults/counters")
        if '"fired":1' in json.dumps(counters).replace(" ", ""):
            return
        time.sleep(0.01)
    raise AssertionError(f"the server was never called: {counters}")


@when("the live provider is closed while a call waits {how}")
def _(context: Context, how: str) -> None:
    closing, provider = _close_soon(context), context.live_provider
    if how == "synchronously":
        _keep(context, lambda: provider.respond_sync(context.live_actor, "hello"))
    else:
        _keep(context, lambda: _ask(context, "hello"))
    closing.join()


def _running_calls(provider: ClaudeProvider) -> int:
    assert provider._thread is not None
    return len(asyncio.all_tasks(provider._thread._loop))


def _until_idle(provider: ClaudeProvider) -> None:
    for _ in range(200):
        if _running_calls(provider) == 0:
            return
        time.sleep(0.01)
    raise AssertionError("the call still runs")


@then("cancelling a live call raises CancelledError, and the provider goes on")
def _(context: Context) -> None:
    provider = context.live_provider

    async def run() -> None:
        call = asyncio.ensure_future(provider.respond(context.live_actor, "hello"))
        await asyncio.to_thread(_until_called, context)
        assert _running_calls(provider) == 1
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            return
        raise AssertionError("it was not cancelled")

    asyncio.run(run())
    _until_idle(provider)
    context.live_server.clear_faults()
    assert _ask(context, "again").text == "answer to again"


@then("an interrupt during a synchronous live call cancels the call")
def _(context: Context) -> None:
    provider = context.live_provider

    def interrupt() -> None:
        _until_called(context)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        provider.respond_sync(context.live_actor, "hello")
    except KeyboardInterrupt:
        _until_idle(provider)
    else:
        raise AssertionError("it was answered")
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


@then("a forked child of the live provider is answered too")
def _(context: Context) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            answer = context.live_provider.respond_sync(context.live_actor, "from the child")
            os.write(writing, answer.text.encode())
            context.live_provider.close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert said == "answer to from the child", said
    assert _ask(context, "again").text == "answer to again"


@then("the live provider's chat model is made with its server, its key and the caller's words")
def _(context: Context) -> None:
    asked: list[Any] = []

    def create_live_chat_model(model: str, **words: Any) -> str:
        asked.append((model, words))
        return "the chat model"

    name = "claude_batch.integrations.langchain"
    before = sys.modules.get(name)
    stand_in = types.ModuleType(name)
    stand_in.create_live_chat_model = create_live_chat_model  # type: ignore[attr-defined]
    sys.modules[name] = stand_in
    try:
        made = context.live_provider.create_chat_model("m", temperature=0.5, max_tokens=3)
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
    assert made == "the chat model"
    url = context.live_server.url
    words = {"temperature": 0.5, "base_url": url, "api_key": "k-live", "max_tokens": 3}
    words["max_retries"] = 0
    assert asked == [("m", words)], asked
