"""Steps of calls whose callers leave while their requests are queued, packed or sent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from callers import callers
from sqlalchemy import select
from staging import ledger_values, until

import claude_batch as cb
from claude_batch.ledger.schema import requests
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.call_queue import CallQueue
from claude_batch.lifecycle.threads import EventLoopThread
from claude_batch.lifecycle.waiters import CallFuture

_PARAMS: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "what is a knot?"}],
}


def _states() -> list[str]:
    return ledger_values(select(requests.c.state).order_by(requests.c.seq))


def _stored(count: int = 1) -> bool:
    with contextlib.suppress(cb.LedgerError):  # nobody has made it yet
        return len(_states()) >= count
    return False


async def _come(what: Callable[[], Any]) -> None:
    await asyncio.to_thread(until, what)


async def _leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


@when('"{prompt}" is asked, and its caller leaves while it is queued: {how}')
def _(context: Context, prompt: str, how: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "cancelled, with keep": {"keep": True},
        "cancelled, with a key": {"key": "k"},
    }
    if how == "interrupted without loop":
        _interrupted(context, prompt)
    else:
        asyncio.run(_left(context, prompt, how, ways.get(how, {})))


def _interrupted(context: Context, prompt: str) -> None:
    def interrupt(_: CallFuture) -> Any:
        until(_stored)
        raise KeyboardInterrupt

    with mock.patch.object(CallFuture, "wait", interrupt):
        try:
            context.actor.respond_sync(prompt)
        except KeyboardInterrupt:
            return
    raise AssertionError("it was not interrupted")


@when('"{prompt}" is asked on a thread that is interrupted {where}')
def _(context: Context, prompt: str, where: str) -> None:
    """As by a signal handler, which raises its exception between any two lines."""
    owner, name = {
        "when it was queued": (CallQueue, "add"),
        "before the engine hears of it": (EventLoopThread, "soon"),
        "as it locks what it waits by": (threading.Condition, "__enter__"),
    }[where]
    function, ended = getattr(owner, name), threading.Event()

    def interrupt(*given: Any) -> Any:
        if threading.current_thread() is not thread:
            return function(*given)
        setattr(owner, name, function)
        if where != "before the engine hears of it":
            function(*given)
        raise KeyboardInterrupt

    def ask() -> None:
        with contextlib.suppress(KeyboardInterrupt), mock.patch.object(owner, name, interrupt):
            context.actor.respond_sync(prompt)
        ended.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert ended.wait(20)


async def _left(context: Context, prompt: str, how: str, keywords: dict[str, Any]) -> None:
    if how == "cancelled over a client":
        sdk = cb.client(provider=context.provider)
        call: Coroutine[Any, Any, Any] = sdk.messages.create(**_PARAMS)
    else:
        call = context.actor.respond(prompt, **keywords)
    if how == "timed out by its caller":
        waiting = asyncio.create_task(_come(_stored))
        try:
            async with asyncio.timeout(None) as patience:
                waiting.add_done_callback(
                    lambda _: patience.reschedule(asyncio.get_running_loop().time())
                )
                await call
        except TimeoutError:
            return
        raise AssertionError("it was not timed out")
    if how in ("closed", "ended by any exception"):
        # As a framework does that drives coroutines by hand.
        call.send(None)
        await _come(_stored)
        with contextlib.suppress(GeneratorExit, KeyboardInterrupt):
            call.throw(GeneratorExit if how == "closed" else KeyboardInterrupt)
        return
    task = asyncio.ensure_future(call)
    await _come(_stored)
    await _leave(task)


# Callers in the background


@when('"{prompt}" is asked in the background')
@when('"{prompt}" is asked in the background with the key "{key}"')
@when('"{prompt}" is asked in the background by {caller}')
def _(context: Context, prompt: str, key: str | None = None, caller: str = "respond") -> None:
    async def read_run() -> None:
        run = await context.actor.submit([prompt])
        if caller == "run.wait":
            await run.wait()
        else:
            assert caller == "run.results"
            _ = [result async for result in run.results()]

    asked = context.actor.respond(prompt, key=key) if caller == "respond" else read_run()
    callers(context).ask({prompt: asked})


@when('the caller of "{prompt}" leaves')
def _(context: Context, prompt: str) -> None:
    callers(context).leave(prompt)


@when("the calls in the background have ended")
def _(context: Context) -> None:
    """Those whose callers have not left."""
    context.outcomes = callers(context).outcomes()


@when('"{prompt}" is asked and {end} at once {how}, beside "{other}"')
def _(context: Context, prompt: str, end: str, how: str, other: str) -> None:
    """``end``: cancelled; or its loop closed, before it can be told that the request is stored."""
    key = re.fullmatch('with the key "(.+)"|without a key', how)
    assert key, how
    is_closed = end == "its loop closed"

    async def ask() -> list[Any]:
        first = asyncio.create_task(context.actor.respond(prompt, key=key[1]))
        beside = asyncio.create_task(context.actor.respond(other))
        await asyncio.sleep(0)  # both have begun
        if not is_closed:
            await _leave(first)
        async with asyncio.timeout(20):
            return [await beside]

    with _closed_loop_of(context, prompt) if is_closed else contextlib.nullcontext():
        context.outcomes = asyncio.run(ask())


@contextlib.contextmanager
def _closed_loop_of(context: Context, prompt: str) -> Iterator[None]:
    """A call's loop is closed when its request is stored, together with the one beside it."""
    closed, calls = asyncio.new_event_loop(), context.provider.engine().calls
    closed.close()
    add, flush = calls.add, calls._flush

    def adding(session: Any, encoded: Any, future: CallFuture, *more: Any) -> None:
        if prompt.encode() in encoded.params:
            future.on_stored(lambda: closed.call_soon_threadsafe(print))
        add(session, encoded, future, *more)

    def flushing() -> None:
        until(lambda: len(calls._inbox) != 1)
        flush()

    with (
        mock.patch.object(calls, "add", adding),
        mock.patch.object(calls, "_flush", flushing),
    ):
        yield


@when("the callers of {count:d} queued calls {end} at once")
def _(context: Context, count: int, end: str) -> None:
    """``end``: leave, or time out."""
    everybody, prompts = callers(context), [f"prompt {number}" for number in range(count)]
    everybody.ask({prompt: context.actor.respond(prompt) for prompt in prompts})
    until(lambda: _stored(count))
    ledger: Ledger = context.provider.engine().ledger
    before = ledger.commits

    def leave() -> None:
        if end == "leave":
            everybody.leave(*prompts)
        until(lambda: _states() == ["canceled"] * count)

    context.passes = everybody.passes_during(leave)
    context.commits = ledger.commits - before


@then("they were withdrawn in at most {count:d} transactions, and their event loop was not blocked")
def _(context: Context, count: int) -> None:
    assert context.commits <= count, context.commits
    assert context.passes > 20, context.passes
