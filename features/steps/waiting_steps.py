"""Steps of callers that wait, and of observers, at the moments when they come and go."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from engine_steps import configuration
from sqlalchemy import select
from staging import QUICK, ledger_values, until

import claude_batch as cb
from claude_batch.core import events
from claude_batch.core.events import Event
from claude_batch.ledger import schema
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import observers as observers_module
from claude_batch.lifecycle.notices import Noticing
from claude_batch.lifecycle.observers import Carriers, Observers, words_of
from claude_batch.lifecycle.waiters import CallFuture, Waiter, Waiting


class _Callers:
    """Callers of the only request of the scenario's run, and what becomes of their waiting."""

    def __init__(self, context: Context, count: int) -> None:
        [seq] = ledger_values(select(schema.requests.c.seq))
        self.taken: list[int] = []
        self.let_go: list[int] = []
        self.futures = [CallFuture() for _ in range(count)]
        mode = cb.BatchProcessingMode()
        self.waiters = [Waiter(each, seq, context.run.id, self, mode) for each in self.futures]
        self.ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
        context.add_cleanup(self.ledger.close)
        self.left: list[int] = []
        self.waiting = Waiting(
            self.ledger,
            self._take,
            self.let_go.append,
            self.left.append,
            self.left.append,
            lambda waiter: None,
        )

    def _take(self, seq: int, _: bool) -> None:
        self.taken.append(seq)

    def add(self) -> None:
        for each in self.waiters:
            self.waiting.add(each, seconds=60)


@when("its answer comes for a caller who has just gone")
def _(context: Context) -> None:
    context.callers = callers = _Callers(context, 1)

    async def deliver() -> None:
        callers.add()
        assert callers.futures[0].cancel()
        callers.waiting.deliver()

    asyncio.run(deliver())


@when("{count:d} prompts are asked at once, beside a task that counts the passes of the event loop")
def _(context: Context, count: int) -> None:
    passes = 0
    context.begun, context.answered = Counter[int](), Counter[int]()
    responder = context.provider._responder
    ask = responder._ask

    def begin(*arguments: Any) -> CallFuture:
        context.begun[passes] += 1
        return ask(*arguments)

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def one(number: int) -> Any:
        answer = await context.actor.respond(f"prompt {number}")
        context.answered[passes] += 1
        return answer

    async def all_of_them() -> None:
        await context.actor.respond("opens the ledger")
        context.begun.clear()
        counting = asyncio.create_task(count_passes())
        context.outcomes = await asyncio.gather(*map(one, range(count)))
        counting.cancel()

    with mock.patch.object(responder, "_ask", begin):
        asyncio.run(all_of_them())


@then("at most {most:d} calls began, and at most {most_answered:d} were answered, in one pass")
def _(context: Context, most: int, most_answered: int) -> None:
    assert sum(context.begun.values()) == len(context.outcomes)
    assert max(context.begun.values()) <= most, context.begun
    assert max(context.answered.values()) <= most_answered, context.answered


@then("nobody has taken the answer, and it is let go")
def _(context: Context) -> None:
    callers = context.callers
    assert callers.taken == [] and len(callers.let_go) == 1, vars(callers)
    assert callers.waiters[0].timeout is None
    assert not callers.waiting.all()


@then("one of its two callers may go, and the other has the answer")
def _(context: Context) -> None:
    callers = _Callers(context, 2)

    async def leave() -> None:
        callers.add()
        callers.waiting.leave(callers.waiters[0])
        assert callers.let_go == []
        callers.waiting.deliver()

    asyncio.run(leave())
    assert len(callers.taken) == 1 and callers.let_go == []
    assert callers.futures[1].result().seq == callers.taken[0]
    assert not callers.futures[0].done()


@then("where both go it is left once, to be withdrawn if it is not sent")
def _(context: Context) -> None:
    callers = _Callers(context, 2)

    async def leave() -> None:
        callers.add()
        for each in callers.waiters:
            callers.waiting.leave(each)
        callers.waiting.deliver()

    asyncio.run(leave())
    assert callers.taken == [] and callers.let_go == [], vars(callers)
    assert len(callers.left) == 1, vars(callers)


@then("where one of both wanted it to be kept, and goes first, it is let go")
def _(context: Context) -> None:
    callers = _Callers(context, 2)
    callers.waiters[0].keeps = True

    async def leave() -> None:
        callers.add()
        for each in callers.waiters:
            callers.waiting.leave(each)

    asyncio.run(leave())
    assert callers.left == [] and len(callers.let_go) == 1, vars(callers)


@when("a provider of another ledger is opened, used and closed")
def _(context: Context) -> None:
    context.actor.respond_sync("here")
    with cb.ClaudeBatchProvider(**QUICK, ledger=str(context.tmp / "other.db")) as other:
        assert cb.Actor(configuration(), other).respond_sync("there").text


@then("a change that is waited for after the provider was closed is there at once")
def _(context: Context) -> None:
    engine = context.run._engine
    context.provider.close()
    assert engine.change_after(engine.version).result(0) == engine.version


# Observers


class _Carrying:
    def __init__(self, carried: str | None) -> None:
        self._carried = carried

    def carry(self) -> str:
        if self._carried is None:
            raise ValueError("there is nothing here")
        return self._carried

    def on_event(self, event: Event) -> None:
        raise AssertionError("nothing is told here")


@given("observers of which the first cannot say what it carries")
def _(context: Context) -> None:
    context.carriers = Carriers([_Carrying(None), _Carrying("the second's")])


@then("what is carried twice is what the second one says")
def _(context: Context) -> None:
    assert [context.carriers.carried() for _ in range(2)] == ["the second's"] * 2


class _Leaving:
    def __init__(self, everybody: Observers) -> None:
        self._everybody = everybody
        self.told: list[Event] = []

    def wants(self, kind: type[Event]) -> bool:
        self._everybody.detach([self])
        return True

    def on_event(self, event: Event) -> None:
        self.told.append(event)


def _leaves(context: Context) -> None:
    context.all = Observers("a ledger", log=False)
    context.leaving = _Leaving(context.all)
    context.all.attach([context.leaving])


def _event(run_id: str = "run") -> events.RunCancelled:
    return events.RunCancelled(ledger="a ledger", run_id=run_id)


@when("an event is told")
def _(context: Context) -> None:
    context.all.report(_event())


@then("it was told nothing")
def _(context: Context) -> None:
    context.all.close()
    assert context.leaving.told == []


def _no_room(context: Context) -> None:
    context.on: list[threading.Thread] = []
    context.all = Observers("a ledger", log=False)
    context.all.attach([lambda event: context.on.append(threading.current_thread())])
    # No machine has room for a stack of this size.
    context.add_cleanup(threading.stack_size, threading.stack_size(1 << 60))


@then("it was told at once, on the teller's own thread")
def _(context: Context) -> None:
    assert context.on == [threading.current_thread()], context.on
    context.all.close()


def _takes_the_first(context: Context) -> None:
    before = observers_module.CLOSING_SECONDS
    context.add_cleanup(setattr, observers_module, "CLOSING_SECONDS", before)
    observers_module.CLOSING_SECONDS = 0.05
    context.took, context.word, context.ended = [], threading.Event(), threading.Event()

    def take(event: events.RunCancelled) -> None:
        context.took.append(event.run_id)
        context.word.wait(30)

    def source() -> Iterator[Event]:
        try:
            for number in range(3):
                yield _event(f"run {number}")
        finally:
            context.ended.set()

    context.all = Observers("a ledger", log=False)
    context.all.attach([take])
    context.all.report_each(events.RunCancelled, source)
    until(lambda: context.took)


@when("all observers are closed, and it returns at last")
def _(context: Context) -> None:
    context.all.close()
    context.word.set()
    assert context.ended.wait(30)


@then("it was told the first event alone")
def _(context: Context) -> None:
    assert context.took == ["run 0"], context.took


class _Later:
    def __init__(self) -> None:
        self.took: list[tuple[str, int, asyncio.AbstractEventLoop]] = []

    async def on_event(self, event: Event) -> None:
        assert isinstance(event, events.RunCancelled)
        await asyncio.sleep(0)
        if event.run_id == "run 1":
            raise ValueError("not that one")
        self.took.append((event.run_id, threading.get_ident(), asyncio.get_running_loop()))


def _asynchronous(context: Context) -> None:
    context.later = _Later()
    context.all = Observers("a ledger", log=False)
    context.all.attach([context.later])


@when("{count:d} events are told, and all observers are closed")
def _(context: Context, count: int) -> None:
    for number in range(count):
        context.all.report(_event(f"run {number}"))
    context.all.close()


@then("it has taken the first and the third, on one loop of its own thread")
def _(context: Context) -> None:
    took = context.later.took
    assert [run_id for run_id, _, _ in took] == ["run 0", "run 2"], took
    assert len({thread for _, thread, _ in took}) == 1 and took[0][1] != threading.get_ident()
    assert took[0][2] is took[1][2] and took[0][2].is_closed()


def _asynchronous_no_room(context: Context) -> None:
    context.leaving = _Ends()
    context.later = _Later()

    async def take(event: Event) -> None:
        context.leaving.told.append(event)

    context.all = Observers("a ledger", log=False)
    context.all.attach([take])
    context.add_cleanup(threading.stack_size, threading.stack_size(1 << 60))


OBSERVERS: dict[str, Callable[[Context], None]] = {
    "leaves when it is asked what it wants": _leaves,
    "takes the first event of many, and does not return": _takes_the_first,
    "finds no room for a thread": _no_room,
    "is asynchronous, and fails at the second event": _asynchronous,
    "is asynchronous, and finds no room for a thread": _asynchronous_no_room,
}


@given("an observer which {what}")
def _(context: Context, what: str) -> None:
    OBSERVERS[what](context)


@then("it was told nothing, and the log says that the process ends")
def _(context: Context) -> None:
    [outlet] = context.all._outlets
    assert outlet._faults == {"RuntimeError"}
    context.all.close()
    assert context.leaving.told == []


@then("an observer with an asynchronous wants, or carry, is refused")
def _(context: Context) -> None:
    async def later(*_: object) -> bool:
        return True

    for name in ("wants", "carry"):
        observer: Any = _Later()
        setattr(observer, name, later)
        try:
            cb.ClaudeBatchProvider(observers=[observer])
        except TypeError as error:
            assert f"{name} is called synchronously" in str(error), error
        else:
            raise AssertionError(f"an asynchronous {name} was taken")


class _Ends:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def wants(self, kind: type[Event]) -> bool:
        return kind is events.RunFinished

    def on_event(self, event: Event) -> None:
        self.told.append(event)


@then("an observer of ends alone is told of that run once, and of none that is gone")
def _(context: Context) -> None:
    ends, everybody = _Ends(), Observers("a ledger", log=False)
    everybody.attach([ends])
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    noticing = Noticing(ledger, everybody, list)
    for _ in range(2):
        noticing.follow(["run-that-is-gone", context.run.id])
        noticing.look()
    assert not noticing._runs
    everybody.close()
    assert [event.run_id for event in ends.told] == [context.run.id], ends.told


@then("the log's words for QueueMeasured are its name")
def _(context: Context) -> None:
    measured = events.QueueMeasured(
        ledger="a ledger", queued=1, at_api=2, batches=1, oldest_batch=1.0
    )
    assert words_of(measured) == "QueueMeasured"
