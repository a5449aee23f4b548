"""Steps of calls whose callers leave while their requests are queued, packed or sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import is_sent, ledger_values, make_provider, until

import claude_batch as cb
from claude_batch.ledger import budgets
from claude_batch.ledger.schema import batches, calls, charges, requests
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.waiters import CallFuture

_PARAMS: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "what is a knot?"}],
}


def _states() -> list[str]:
    return ledger_values(select(requests.c.state).order_by(requests.c.seq))


def _are(*states: str) -> Callable[[], bool]:
    return lambda: _states() == list(states)


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
    if how == "closed":
        # As a framework does that drives coroutines by hand.
        call.send(None)
        await _come(_stored)
        call.close()
        return
    task = asyncio.ensure_future(call)
    await _come(_stored)
    await _leave(task)


@then("its request comes to be canceled")
def _(context: Context) -> None:
    until(lambda: _states()[0] == "canceled")


@when('"{prompt}" is asked and cancelled at once, beside "{other}"')
def _(context: Context, prompt: str, other: str) -> None:
    async def ask() -> list[Any]:
        given_up = asyncio.create_task(context.actor.respond(prompt))
        beside = asyncio.create_task(context.actor.respond(other))
        await asyncio.sleep(0)  # both have begun, and the ledger is being opened
        await _leave(given_up)
        return [await beside]

    context.outcomes = asyncio.run(ask())


async def _packed(context: Context, *prompts: str) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(context.actor.respond(prompt)) for prompt in prompts]
    await _come(lambda: _stored() and _states() == ["packed"] * len(prompts))
    assert ledger_values(select(batches.c.state)) == ["packed"]
    return tasks


@when("two calls are packed in a batch that cannot be sent, and the caller of one leaves")
def _(context: Context) -> None:
    loop = asyncio.new_event_loop()
    context.add_cleanup(loop.close)

    async def ask() -> None:
        gone, context.other = await _packed(context, "what is a knot?", "what is a bend?")
        await _leave(gone)

    loop.run_until_complete(ask())
    context.loop = loop


@then("the other one is answered, in a batch of {count:d}")
def _(context: Context, count: int) -> None:
    assert context.loop.run_until_complete(context.other).text
    assert ledger_values(select(batches.c.request_count)) == [count]


@when("two calls are packed in a batch that cannot be sent, and both callers leave")
def _(context: Context) -> None:
    async def ask() -> None:
        tasks = await _packed(context, "what is a knot?", "what is a hitch?")
        for task in tasks:
            await _leave(task)
        await _come(_are("canceled", "canceled"))

    asyncio.run(ask())
    assert ledger_values(select(batches.c.state)) == ["rejected"]


@when("a call is packed within the budget, its caller leaves, and another call has no other room")
def _(context: Context) -> None:
    loop = asyncio.new_event_loop()
    context.add_cleanup(loop.close)

    async def ask() -> None:
        [gone] = await _packed(context, "what is a knot?")
        [reserved] = ledger_values(select(charges.c.reserved))
        assert reserved
        ledger: Ledger = context.provider._engine.ledger
        context.budget = reserved * 3 // 2
        with ledger.write() as tx:
            budgets.set_amount(tx, "actor", "tests/asker", context.budget)
        context.other = asyncio.create_task(context.actor.respond("what is a bend?"))
        await _come(lambda: _stored(2))
        await _leave(gone)
        await _come(lambda: _states()[0] == "canceled")

    loop.run_until_complete(ask())
    context.loop = loop


@then("the other call is answered within the budget")
def _(context: Context) -> None:
    assert context.loop.run_until_complete(context.other).text
    every = charges.c.reserved + charges.c.spent + charges.c.doubt
    [accounted] = ledger_values(select(func.coalesce(func.sum(every), 0)))
    assert 0 < accounted <= context.budget, (accounted, context.budget)
    assert len(context.api.billing()) == 1


@when('"{prompt}" is asked, and its caller leaves once it is sent')
def _(context: Context, prompt: str) -> None:
    async def ask() -> None:
        task = asyncio.create_task(context.actor.respond(prompt))
        await _come(is_sent)
        await _leave(task)

    asyncio.run(ask())


@when('"{prompt}" is asked, cancelled, and the provider closed in the same moment')
def _(context: Context, prompt: str) -> None:
    async def ask() -> None:
        task = asyncio.create_task(context.actor.respond(prompt))
        await _come(_stored)
        task.cancel()
        await context.provider.aclose()

    asyncio.run(ask())


@when('another provider drives the ledger, and asks "{prompt}"')
def _(context: Context, prompt: str) -> None:
    make_provider(context)
    context.outcomes = [context.actor.respond_sync(prompt)]


@when("two calls are made live one after the other, and the caller of the second leaves")
def _(context: Context) -> None:
    async def ask() -> None:
        first = asyncio.create_task(context.actor.respond("what is a knot?"))
        await _come(lambda: _stored() and _are("packed")())
        second = asyncio.create_task(context.actor.respond("what is a bend?"))
        await _come(lambda: _stored(2))
        await _leave(second)
        context.answer = await first

    asyncio.run(ask())


@then("the first is answered, and the second is canceled")
def _(context: Context) -> None:
    assert context.answer.via == "live"
    until(_are("succeeded", "canceled"))


@when('"{prompt}" has had its first turn, and its caller leaves before the second one is sent')
def _(context: Context, prompt: str) -> None:
    async def ask() -> None:
        task = asyncio.create_task(context.actor.respond(prompt))
        await _come(is_sent)
        # Nothing is sent while the list cannot be read.
        broken = {"route": "list", "action": {"type": "error", "status": 500}}
        context.api.set_faults({"rules": [broken]})
        two_batches = select(batches.c.state).order_by(batches.c.id)
        await _come(lambda: ledger_values(two_batches)[1:] == ["packed"])
        await _leave(task)
        await _come(lambda: ledger_values(select(calls.c.process)) == [None])

    asyncio.run(ask())


@when("{count:d} calls are cancelled at once while they are queued")
def _(context: Context, count: int) -> None:
    async def ask() -> None:
        tasks = [
            asyncio.create_task(context.actor.respond(f"prompt {number}"))
            for number in range(count)
        ]
        await _come(lambda: _stored(count))
        ledger: Ledger = context.provider._engine.ledger
        before = ledger.commits
        context.ticks = 0
        ticking = asyncio.create_task(_tick(context))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        canceled = select(func.count()).where(requests.c.state == "canceled")
        await _come(lambda: ledger_values(canceled) == [count])
        context.commits = ledger.commits - before
        ticking.cancel()
        context.count = count

    asyncio.run(ask())


async def _tick(context: Context) -> None:
    while True:
        await asyncio.sleep(0)
        context.ticks += 1


@then("all of them are canceled, in few transactions")
def _(context: Context) -> None:
    assert _states() == ["canceled"] * context.count
    assert context.commits <= 20, context.commits
    assert ledger_values(select(calls.c.request_seq)) == []


@then("the loop of their callers went on meanwhile")
def _(context: Context) -> None:
    assert context.ticks > 2, context.ticks
