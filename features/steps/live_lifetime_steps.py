"""Steps of the life of a live provider: closing, cancelling, forks and limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from live_steps import _ask, _keep
from staging import listen

from claude_batch.providers.live import ClaudeProvider


def _live_threads() -> int:
    return sum(thread.name == "claude-live" for thread in threading.enumerate())


@when("the live provider is used and closed, in every way")
def _(context: Context) -> None:
    before = _live_threads()
    unused = ClaudeProvider(api_key="k")
    assert not unused.closed
    unused.close()
    assert unused.closed and _live_threads() == before
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


def _until_called(context: Context) -> None:
    """Until the server holds a call: a hang is logged when it ends, so its counter is asked."""
    for _ in range(400):
        counters = context.live_server._call("GET", "/sandbox/faults/counters")
        if '"fired":1' in json.dumps(counters).replace(" ", ""):
            return
        time.sleep(0.01)
    raise AssertionError(f"the server was never called: {counters}")


def _running_calls(provider: ClaudeProvider) -> int:
    assert provider._thread is not None
    return len(asyncio.all_tasks(provider._thread._loop))


def _until_idle(provider: ClaudeProvider) -> None:
    for _ in range(200):
        if _running_calls(provider) == 0:
            return
        time.sleep(0.01)
    raise AssertionError("the call still runs")


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


@when("a live call that waits {how} is ended by {event}")
def _(context: Context, how: str, event: str) -> None:
    provider, actor = context.live_provider, context.live_actor
    cancel: list[Callable[[], None]] = []

    def end() -> None:
        _until_called(context)
        if event == "closing the provider":
            provider.close()
        elif event == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        elif event != "Ctrl-C as it begins":
            assert event in ("cancelling it", "cancelling it and closing the provider"), event
            cancel[0]()

    async def awaited() -> Any:
        call = asyncio.ensure_future(provider.respond(actor, "hello"))
        cancel.append(partial(asyncio.get_running_loop().call_soon_threadsafe, call.cancel))
        try:
            return await call
        finally:
            if event == "cancelling it and closing the provider":
                provider.close()

    call_soon, main = asyncio.BaseEventLoop.call_soon_threadsafe, threading.main_thread()
    context.kept = listen(context, "asyncio").records

    def begin(loop: asyncio.BaseEventLoop, *given: Any, **more: Any) -> Any:
        handle = call_soon(loop, *given, **more)
        if event == "Ctrl-C as it begins" and threading.current_thread() is main:
            asyncio.BaseEventLoop.call_soon_threadsafe = call_soon
            _until_called(context)
            raise KeyboardInterrupt
        return handle

    ending = threading.Thread(target=end)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ending.start()
        if how == "synchronously":
            with mock.patch.object(asyncio.BaseEventLoop, "call_soon_threadsafe", begin):
                _keep(context, lambda: provider.respond_sync(actor, "hello"))
        else:
            _keep(context, lambda: asyncio.run(awaited()))
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        context.live_error = error
    finally:
        ending.join()
        signal.signal(signal.SIGINT, before)
    if not provider.closed:
        _until_idle(provider)
