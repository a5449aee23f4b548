"""Steps about trouble inside the engine: what nobody foresaw, and disks that fail in between."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from engine_steps import attempt, configuration
from staging import until

from claude_batch.actor.request import ActorRequest
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.errors import EngineStoppedError, LedgerError
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.ledger import collected_batches
from claude_batch.ledger.backends.sqlite import DataVersion
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.waiters import CallFuture, Waiting


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


GONE = LedgerError("the disk is gone")
TROUBLE: dict[str, tuple[object, str, Exception]] = {
    "the driver fails unforeseen": (Driver, "_poll_pass", RuntimeError("a surprise")),
    "the ledger cannot be watched": (DataVersion, "changed", GONE),
    "answers cannot be read": (Waiting, "deliver", GONE),
    "calls cannot be stored": (CallStore, "store", RuntimeError("a surprise")),
    "a time-out cannot be noted": (collected_batches, "cancel_request", GONE),
    "it cannot be noted that answers are taken": (CallStore, "note", GONE),
}


@when("a prompt is asked while {what}")
def _(context: Context, what: str) -> None:
    place, name, error = TROUBLE[what]
    with mock.patch.object(place, name, failing(error)):
        attempt(context, lambda: context.actor.respond_sync("one prompt"))
        # What an answer leaves to be noted is noted by the time that the provider is closed.
        context.provider.close()


@then("the API is told to cancel the batch")
def _(context: Context) -> None:
    until(lambda: any(call["path"].endswith("/cancel") for call in context.api.log()))


@when("an engine is used after its provider was closed")
def _(context: Context) -> None:
    context.actor.respond_sync("makes the engine")
    context.engine = context.provider._engine
    context.door = context.provider._door()
    encoded = context.provider._encoders.of(configuration())
    context.provider.close()
    answer = CallFuture()
    context.engine.call(
        context.door,
        encoded.encode(ActorRequest("late")),
        answer,
        actor="tests/asker",
        key=None,
        mode=BatchProcessingMode(),
    )
    attempt(context, answer.answer)


@then("waiting for a change of it ends at once, and nothing else can be asked of it")
def _(context: Context) -> None:
    context.engine.wake()
    try:
        context.engine.advance(context.door)
    except EngineStoppedError as error:
        assert "create a new one" in str(error)
    else:
        raise AssertionError("a stopped engine advances")


@when("the provider is closed while its engine works for somebody, whose next wish comes too late")
def _(context: Context) -> None:
    context.actor.respond_sync("makes the engine")
    engine, begun = context.provider._engine, threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(600)

    future = engine.do(work())
    assert begun.wait(20)
    context.provider.close()
    context.told = []
    for wish in (lambda: future, lambda: engine.do(work())):
        attempt(context, lambda wish=wish: wish().result(20))
        context.told.append(context.error)


@then("both are told that the provider was closed")
def _(context: Context) -> None:
    for error in context.told:
        assert isinstance(error, EngineStoppedError) and "closed" in str(error), context.told


@contextlib.contextmanager
def once_at(point: CrashPoint, what: Callable[[], None]) -> Generator[None]:
    before, done = crash_points.on_reach, threading.Event()

    def reached(at: CrashPoint) -> None:
        if at is point and not done.is_set():
            done.set()
            what()

    crash_points.on_reach = reached
    try:
        yield
        assert done.is_set(), f"{point} was not reached"
    finally:
        crash_points.on_reach = before


@when("the provider is closed before the end of an upload is armed")
def _(context: Context) -> None:
    context.prompts = [f"prompt {n}" for n in range(3)]
    closing = threading.Thread(target=context.provider.close)

    def close() -> None:
        closing.start()
        until(lambda: context.provider._entrance.closed)
        # The driver is told to stop on the thread that is here; what it does next is arm.
        context.driver.stop()

    context.driver = context.provider._door().driver
    with once_at(CrashPoint.BEFORE_ARMED, close):
        context.run = context.provider.store(context.actor.configuration, context.prompts)
        until(lambda: closing.ident is not None)  # it may be over already
        closing.join(30)


@when("a run of {count:d} prompts is submitted over a disk that is slow once")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    with once_at(CrashPoint.AFTER_ARMED, lambda: time.sleep(0.3)):
        context.run = context.actor.submit_sync(context.prompts)
