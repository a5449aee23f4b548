"""Steps about trouble inside the engine: what nobody foresaw, and disks that fail in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from engine_steps import attempt, configuration
from staging import until

from claude_batch.actor.request import ActorRequest
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import LedgerError
from claude_batch.ledger import cancellations
from claude_batch.ledger.backends.sqlite import DataVersion
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.pending_call import CallOptions
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
    "a time-out cannot be noted": (cancellations, "cancel_requests", GONE),
    "it cannot be noted that answers are taken": (CallStore, "note", GONE),
}


@when("a prompt is asked while {what}")
def _(context: Context, what: str) -> None:
    place, name, error = TROUBLE[what]
    with mock.patch.object(place, name, failing(error)):
        attempt(context, lambda: context.actor.respond_sync("one prompt"))
        # What an answer leaves to be noted is noted by the time that the provider is closed.
        context.provider.close()


@then("the API receives a cancellation of the batch")
def _(context: Context) -> None:
    until(lambda: any(call["path"].endswith("/cancel") for call in context.api.log()))


@when("the provider is closed while its engine works, and more is asked of the engine")
def _(context: Context) -> None:
    context.actor.respond_sync("makes the engine")
    engine, begun, late = context.provider.engine(), threading.Event(), CallFuture()
    session = context.provider.session()
    encoded = context.provider._encoders.of(configuration()).encode(ActorRequest("late"))
    mode = BatchProcessingMode()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(600)

    future = engine.do(work())
    assert begun.wait(20)
    context.provider.close()
    engine.calls.add(session, encoded, late, CallOptions(actor="tests/asker", mode=mode))
    context.outcomes = []
    for asked in (
        lambda: future.result(20),
        lambda: engine.do(work()).result(20),
        lambda: late.wait(20) and late.result(),
        lambda: engine.advance(session),
    ):
        attempt(context, asked)
        context.outcomes.append(context.error)
    assert len(set(map(str, context.outcomes))) == 1, context.outcomes
    # Neither of these waits for a change that never comes.
    engine.wake()
    assert engine.change_after(engine.version).result(0) == engine.version
