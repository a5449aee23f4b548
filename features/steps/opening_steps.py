"""Steps about the first use of a provider, while others hold the ledger."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from engine_steps import configuration
from staging import QUICK, make_provider
from tables import rule

import claude_batch as cb
from claude_batch.ledger.backends import sqlite
from claude_batch.lifecycle import engine
from claude_batch.providers.registry import default_registry

PATIENCE = 8.0
"""Seconds until a write gives up, in place of a minute: a loop that is blocked never ticks."""


@given("a ledger that another program will lock {how}")
def _(context: Context, how: str) -> None:
    with cb.ClaudeBatchProvider(**QUICK, drive=False) as quiet:
        context.run_id = quiet.store(configuration(), ["makes the ledger"]).id
    context.how = how


@contextmanager
def locked(context: Context) -> Iterator[Callable[[], None]]:
    connection = sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"], isolation_level=None)
    if context.how == "altogether":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("UPDATE meta SET value = value WHERE name = 'stamp'")
    try:
        with mock.patch.object(sqlite, "_BUSY_SECONDS", PATIENCE):
            yield connection.close
    finally:
        connection.close()


async def prompts() -> AsyncIterator[str]:
    yield "prompt 0"
    raise ZeroDivisionError


async def first_use(context: Context, use: str) -> Any:
    actor: cb.Actor = context.actor
    if use == "respond":
        return await actor.respond("hello")
    if use == "submit":
        return await actor.submit(["hello"])
    if use == "respond to all":
        return [result.unwrap() async for result in actor.respond_all(["hello"])]
    if use == "ask by the SDK's client":
        async with cb.client(provider=context.provider) as client:
            return await client.messages.create(
                model="claude-haiku-4-5",
                max_tokens=9,
                messages=[{"role": "user", "content": "hello"}],
            )
    if use == "wait for an opened run":
        return await context.run.wait()
    try:
        await context.provider.submit(actor.configuration, prompts())
    except ZeroDivisionError:
        return "given up"
    raise AssertionError("the input had no fault")


@when("it is locked until the loop has ticked {count:d} times, and the first use is to {use}")
def _(context: Context, count: int, use: str) -> None:
    make_provider(context)
    if use == "wait for an opened run":
        context.run = context.provider.open_run(context.run_id)

    async def tick(free: Callable[[], None]) -> None:
        for _ in range(count):
            await asyncio.sleep(0.01)
            context.ticks += 1
        free()

    async def both(free: Callable[[], None]) -> Any:
        heart = asyncio.create_task(tick(free))
        used = await first_use(context, use)
        await heart
        return used

    context.ticks, context.wanted = 0, count
    with locked(context) as free:
        context.used = asyncio.run(both(free))


@then("the loop has ticked, and the first use has succeeded")
def _(context: Context) -> None:
    assert context.ticks == context.wanted, context.ticks
    assert context.used


def soon(context: Context, work: Callable[[Callable[[], None]], Awaitable[Any]]) -> Any:
    async def run(free: Callable[[], None]) -> Any:
        return await work(free)

    with locked(context) as free:
        return asyncio.run(run(free))


@when("two ask while it is locked, and the first gives up")
def _(context: Context) -> None:
    make_provider(context)

    async def ask(free: Callable[[], None]) -> Any:
        first = asyncio.create_task(context.actor.respond("first"))
        other = asyncio.create_task(context.actor.respond("other"))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        free()
        return await other

    context.used = soon(context, ask)


@then("the other one is answered")
def _(context: Context) -> None:
    assert "other" in context.used.text, context.used


@given("a ledger that is a folder for now")
def _(context: Context) -> None:
    Path(os.environ["CLAUDE_BATCH_LEDGER"]).mkdir()


@when("a prompt is asked before and after the folder is gone")
def _(context: Context) -> None:
    make_provider(context)

    async def ask() -> list[Any]:
        first = await asyncio.gather(context.actor.respond("first"), return_exceptions=True)
        await asyncio.to_thread(os.rmdir, os.environ["CLAUDE_BATCH_LEDGER"])
        return [*first, await context.actor.respond("second")]

    context.outcomes = asyncio.run(ask())


@then("the first is told, and the second is answered")
def _(context: Context) -> None:
    first, second = context.outcomes
    assert isinstance(first, cb.LedgerError), first
    assert "second" in second.text


@when("a provider is closed while it opens")
def _(context: Context) -> None:
    make_provider(context)

    async def ask(free: Callable[[], None]) -> Any:
        call = asyncio.create_task(context.actor.respond("never"))
        await asyncio.sleep(0.1)
        closing = threading.Thread(target=context.provider.close)
        closing.start()
        await asyncio.sleep(0.1)
        free()
        [outcome] = await asyncio.gather(call, return_exceptions=True)
        await asyncio.to_thread(closing.join, 20)
        return outcome

    context.outcome = soon(context, ask)


@then("the call is told that the provider is closed")
def _(context: Context) -> None:
    assert isinstance(context.outcome, cb.ActorError), context.outcome
    assert "closed" in str(context.outcome), context.outcome


# Closing what was opened


def engines() -> int:
    return len(engine._engines)


@when("the run is closed, and the provider after it")
def _(context: Context) -> None:
    context.run.close()
    context.left_open = not context.provider.closed and engines() == 1
    context.provider.close()


@then("the provider was closed by its own close alone")
def _(context: Context) -> None:
    assert context.left_open
    assert engines() == 0


@then("an opened run runs an engine until it is closed, by each way to close it")
def _(context: Context) -> None:
    with cb.open_run(context.run.id) as run:
        assert run.id == context.run.id and engines() == 1
    assert engines() == 0

    async def opened() -> None:
        async with cb.open_run(context.run.id):
            assert engines() == 1
        assert engines() == 0

    asyncio.run(opened())


@then("an unknown run leaves no engine behind")
def _(context: Context) -> None:
    try:
        cb.open_run("run-nowhere")
    except cb.RunNotFoundError:
        assert engines() == 0
    else:
        raise AssertionError("a run was opened that is not there")


def load(context: Context, **settings: Any) -> cb.Actor:
    path = Path(context.tmp / "actor.yaml")
    path.write_text(
        "name: tests/asker\nprovider: anthropic\nmodel: claude-haiku-4-5\nbatch_processing: true\n"
    )
    actor = cb.load_actor(path, **QUICK, **settings)
    context.add_cleanup(actor.provider.close)
    return actor


@when("two actors are loaded from a file, and one of them closes twice")
def _(context: Context) -> None:
    context.one, context.other = load(context), load(context)
    assert context.one.provider is context.other.provider
    with context.one as one:
        one.respond_sync("first")
    context.one.close()


@then("the other is answered still, and closes the provider")
def _(context: Context) -> None:
    async def ask() -> None:
        async with context.other as other:
            await other.respond("second")

    asyncio.run(ask())
    assert context.other.provider.closed and engines() == 0


@then("an actor that is loaded later is answered by a new provider")
def _(context: Context) -> None:
    with load(context) as later:
        assert later.provider is not context.one.provider
        assert "third" in later.respond_sync("third").text
    assert engines() == 0


@when("an actor is loaded whose provider others have, and is closed")
def _(context: Context) -> None:
    registry = default_registry
    context.actor = cb.Actor(configuration(), registry.for_actor(configuration(), **QUICK))
    before = load(context)
    assert before.provider is context.actor.provider
    before.close()
    context.actor.close()
    after = load(context, max_attempts=2)
    context.late = cb.Actor(
        configuration(), registry.for_actor(configuration(), **QUICK, max_attempts=2)
    )
    assert after.provider is context.late.provider
    after.close()


@then("the others are answered still")
def _(context: Context) -> None:
    for actor in (context.actor, context.late):
        assert actor.respond_sync("hello").text


@rule("providers are made with settings")
def _(provider: str, settings: dict[str, Any]) -> dict[str, Any]:
    made = getattr(cb, provider)(**settings)
    made.close()
    return {}


@rule("a mode of batch processing is checked")
def _(mode: Any) -> cb.BatchProcessingMode:
    return cb.BatchProcessingMode.model_validate(mode)
