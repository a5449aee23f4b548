"""Steps about the first use of a provider, while others hold the ledger."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from behave import given, when
from behave.runner import Context
from engine_steps import attempt, configuration
from staging import QUICK
from tables import rule

import claude_batch as cb
from claude_batch.ledger.backends import sqlite
from claude_batch.lifecycle import engine

PATIENCE = 8.0
"""Seconds until a write gives up, in place of a minute: a loop that is blocked never ticks."""


@contextmanager
def locked(how: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Hold the ledger, with a run in it; the run's id, and what lets the ledger go."""
    with cb.ClaudeBatchProvider(**QUICK, drive=False) as quiet:
        run_id = quiet.store(configuration(), ["makes the ledger"]).id
    connection = sqlite3.connect(
        os.environ["CLAUDE_BATCH_LEDGER"], isolation_level=None, check_same_thread=False
    )
    if how == "altogether":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("UPDATE meta SET value = value WHERE name = 'stamp'")
    try:
        with mock.patch.object(sqlite, "_BUSY_SECONDS", PATIENCE):
            yield run_id, connection.close
    finally:
        connection.close()


@given("another program that has locked the ledger {how}")
def _(context: Context, how: str) -> None:
    scene = ExitStack()
    context.add_cleanup(scene.close)
    _, context.let_go = scene.enter_context(locked(how))


@when("the other program lets the ledger go")
def _(context: Context) -> None:
    context.let_go()


async def prompts() -> AsyncIterator[str]:
    yield "prompt 0"
    raise ZeroDivisionError


async def first_use(provider: cb.ClaudeBatchProvider, use: str, run: cb.Run | None) -> Any:
    actor = cb.Actor(configuration(), provider)
    if run is not None:
        return await run.wait()
    if use == "respond":
        return await actor.respond("hello")
    if use == "submit":
        return await actor.submit(["hello"])
    if use == "respond to all":
        return [result.unwrap() async for result in actor.respond_all(["hello"])]
    if use == "ask by the SDK's client":
        async with cb.client(provider=provider) as client:
            return await client.messages.create(
                model="claude-haiku-4-5",
                max_tokens=9,
                messages=[{"role": "user", "content": "hello"}],
            )
    try:
        await provider.submit(actor.configuration, prompts())
    except ZeroDivisionError:
        return "given up"
    raise AssertionError("the input had no fault")


@rule("the first use of a provider succeeds once the loop of its caller has freed the ledger")
def _(context: Context, locked_by_others: str, first_use_is_to: str, ticks: int) -> dict[str, bool]:
    os.environ["CLAUDE_BATCH_LEDGER"] = str(context.tmp / f"{len(list(context.tmp.iterdir()))}.db")

    async def tick(let_go: Callable[[], None]) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0.01)
        let_go()

    async def both(let_go: Callable[[], None], used: Coroutine[Any, Any, Any]) -> Any:
        heart = asyncio.create_task(tick(let_go))
        result = await used
        assert heart.done(), "the ledger was used before it was free"
        return result

    with locked(locked_by_others) as (run_id, let_go), cb.ClaudeBatchProvider(**QUICK) as provider:
        opened = provider.open_run(run_id) if "opened run" in first_use_is_to else None
        used = first_use(provider, first_use_is_to, opened)
        return {"succeeds": bool(asyncio.run(both(let_go, used)))}


@contextmanager
def _folder() -> Iterator[None]:
    place = Path(os.environ["CLAUDE_BATCH_LEDGER"])
    place.mkdir()
    yield
    place.rmdir()


OBSTACLES = {
    "there is a folder in the place of the ledger": _folder,
}


@when('"{prompt}" is asked while {obstacle}')
def _(context: Context, prompt: str, obstacle: str) -> None:
    with OBSTACLES[obstacle]():
        attempt(context, lambda: context.actor.respond_sync(prompt))


@when("the provider begins to close")
def _(context: Context) -> None:
    closing = threading.Thread(target=context.provider.close)
    closing.start()
    context.add_cleanup(closing.join, 20)
    closing.join(0.1)  # it may have to wait for what happens next


def engines() -> int:
    return len(engine._engines)


@rule("providers are made with settings")
def _(provider: str, settings: dict[str, Any]) -> dict[str, Any]:
    made = getattr(cb, provider)(**settings)
    made.close()
    return {}


@rule("a mode of batch processing is checked")
def _(mode: Any) -> cb.BatchProcessingMode:
    return cb.BatchProcessingMode.model_validate(mode)
