"""Steps of callers that wait, and of observers, at the moments when they come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import QUICK, ledger_values, until
from tables import rule

import claude_batch as cb
from claude_batch.core import events
from claude_batch.core.events import Event
from claude_batch.ledger import schema
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import observers as observers_module
from claude_batch.lifecycle.notices import Noticing
from claude_batch.lifecycle.observers import Carriers, Observers, message_of_event
from claude_batch.lifecycle.waiters import CallFuture, Waiter, Waiting


@rule("the callers of one request come, and go before its answer is there")
def _(context: Context, callers: int, go: list[int], cancelled: bool, kept_by: list[int]) -> Any:
    """Callers by their numbers; what became of the answer, and who got it."""
    [seq] = ledger_values(select(schema.requests.c.seq))
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    seen: dict[str, list[int]] = {"taken": [], "let_go": [], "withdrawn": []}

    def note(seq: int, taken: bool, repeats: bool) -> None:
        if taken:
            seen["taken"].append(seq)

    def gone(seq: int, departure: str) -> None:
        seen["let_go" if departure == "keep" else "withdrawn"].append(seq)

    waiting = Waiting(ledger, note, gone, lambda waiter: None)
    futures = [CallFuture() for _ in range(callers)]
    mode = cb.BatchProcessingMode()
    waiters = [Waiter(each, seq, context.run.id, waiting, mode) for each in futures]

    async def come_and_go() -> None:
        for number, waiter in enumerate(waiters, 1):
            waiter.keeps = number in kept_by
            waiting.add(waiter, seconds=60, since=0)
        for number in go:
            if cancelled:
                # It is gone, and has not been able to say so yet.
                assert futures[number - 1].cancel()
            else:
                waiting.leave(waiters[number - 1])
        waiting.deliver()

    asyncio.run(come_and_go())
    assert not waiting.all() and all(each.timeout is None for each in waiters)
    answered = [
        number
        for number, each in enumerate(futures, 1)
        if each.done() and not each.cancelled() and each.result().seq == seq
    ]
    return {"answered": answered, **{what: len(set(seqs)) for what, seqs in seen.items()}}


@when("{count:d} prompts are asked at once, beside a task that counts the passes of the event loop")
def _(context: Context, count: int) -> None:
    passes = 0
    context.begun, context.answered = Counter[int](), Counter[int]()
    responder = context.provider._responder
    ask = responder.ask

    def begin(*arguments: Any) -> None:
        context.begun[passes] += 1
        ask(*arguments)

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

    with mock.patch.object(responder, "ask", begin):
        asyncio.run(all_of_them())


@then("at most {most:d} calls began, and at most {most_answered:d} were answered, in one pass")
def _(context: Context, most: int, most_answered: int) -> None:
    assert sum(context.begun.values()) == len(context.outcomes)
    assert max(context.begun.values()) <= most, context.begun
    assert max(context.answered.values()) <= most_answered, context.answered


# Callers that are cancelled while their answers are on the way


def _askers(context: Context) -> dict[str, Callable[[str], Any]]:
    """The ways to ask, by their names in the features."""
    provider = context.provider
    configuration = context.actor.configuration
    through = cb.ClaudeBatchProvider(**{**QUICK, "linger": "200ms"}, middleware=[cb.Middleware()])
    context.add_cleanup(through.close)
    client = cb.client(provider=provider)

    async def by_client(prompt: str) -> Any:
        messages = [{"role": "user", "content": prompt}]
        model = "claude-haiku-4-5"
        return await client.messages.create(model=model, max_tokens=100, messages=messages)

    return {
        "a plain call": lambda prompt: provider.respond(configuration, prompt),
        "a call with middleware": lambda prompt: through.respond(configuration, prompt),
        "the SDK's client": by_client,
    }


@when("{count:d} prompts are asked in a task group by {door}, and one of them fails")
def _(context: Context, count: int, door: str) -> None:
    context.ask = _askers(context)[door]
    context.prompts = [f"prompt {number}" for number in range(count)]
    context.answers = {}
    context.runner = asyncio.Runner()
    context.add_cleanup(context.runner.close)

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for number, prompt in enumerate(context.prompts):
                if number == 50:
                    failing = "[[sandbox:errored:invalid_request_error]]"
                    group.create_task(_ask_for(context, failing))
                group.create_task(_ask_for(context, prompt))

    try:
        context.runner.run(together())
    except* Exception as errors:
        assert len(errors.exceptions) == 1, errors.exceptions
    assert len(context.answers) < count  # else nothing was on its way


async def _ask_for(context: Context, prompt: str) -> None:
    context.answers[prompt] = await context.ask(prompt)


@when("the prompts without an answer are asked again")
def _(context: Context) -> None:
    left = [each for each in context.prompts if each not in context.answers]

    async def again() -> None:
        await asyncio.gather(*(_ask_for(context, prompt) for prompt in left))

    context.runner.run(again())


@then("all of them are answered, and the API has processed each prompt once")
def _(context: Context) -> None:
    assert context.answers.keys() == set(context.prompts)
    billed = Counter(each["params_sha256"] for each in context.api.billing())
    assert set(billed.values()) == {1}, billed.most_common(3)
    assert len(billed) == len(context.prompts) + 1, len(billed)  # and the one that failed


@when("a prompt is asked by a caller whose loop is busy while the answer comes and time ends")
def _(context: Context) -> None:
    async def busy() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                asking = asyncio.ensure_future(context.actor.respond("once"))
                await asyncio.sleep(0.2)
                until(lambda: _answered() == 1)  # blocks the loop
                time.sleep(0.5)  # noqa: ASYNC251 - the loop is to be busy
                await asking

    asyncio.run(busy())


@rule("a provider is used while all threads of asyncio wait for something else")
def _(context: Context, by: str, raises: str) -> dict[str, bool]:
    provider = cb.ClaudeBatchProvider(**QUICK)
    context.add_cleanup(provider.close)
    actor, given_up = cb.Actor(context.actor.configuration, provider), threading.Event()

    async def prompts() -> AsyncIterator[str]:
        yield by
        if raises:
            raise ZeroDivisionError

    async def use() -> None:
        if by == "respond_all":
            results = actor.respond_all([by], results_dir=context.tmp / by)
            assert [result.ok async for result in results] == [True]
        elif by == "submit":
            await (await actor.submit([by], results_dir=context.tmp / by)).wait()
        elif by == "estimate":
            await actor.estimate([by])
        elif by == "estimate a stream":
            await actor.estimate(prompts())
        elif by == "an input that fails":
            await actor.submit(prompts())
        else:
            await actor.respond("opens the ledger")
            await provider.aclose()

    async def while_all_wait() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads:
            loop.set_default_executor(threads)
            waiting = asyncio.ensure_future(asyncio.to_thread(given_up.wait))
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(10):
                    await use()
            finally:
                given_up.set()
                await waiting

    try:
        asyncio.run(while_all_wait())
    except ZeroDivisionError as error:
        return {"ends": type(error).__name__ == raises}
    except TimeoutError:
        return {"ends": False}
    return {"ends": not raises}


@rule("a caller is cancelled in the pass of its loop in which what it awaits is there")
def _(context: Context, awaits: str) -> dict[str, Any]:
    """How its task ends, and how often the prompt was paid for once it is asked again."""
    before = len(context.api.billing())

    async def come_and_go() -> str:
        asked, again = await _awaited(context, awaits)
        answered = _answered() + 1
        task = asyncio.ensure_future(asked)
        await asyncio.sleep(0.1)
        until(lambda: _answered() == answered)  # blocks the loop
        time.sleep(0.3)  # noqa: ASYNC251 - until the engine has handed it over
        task.cancel()
        [outcome] = await asyncio.gather(task, return_exceptions=True)
        await again()
        return "cancelled" if isinstance(outcome, asyncio.CancelledError) else repr(outcome)

    return {"ends": asyncio.run(come_and_go()), "paid": len(context.api.billing()) - before}


async def _awaited(
    context: Context, awaits: str
) -> tuple[Coroutine[Any, Any, Any], Callable[[], Any]]:
    """What the caller awaits, and what asks for the same again."""
    if awaits == "an SDK call with a timeout":
        client = cb.client(provider=context.provider)
        messages = [{"role": "user", "content": awaits}]
        create = client.messages.create
        given: Any = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": messages}
        return create(**given, timeout=60), lambda: create(**given)
    run = await context.actor.submit([awaits])

    async def results() -> list[Any]:
        return [result async for result in run.results()]

    return (run.wait() if awaits == "run.wait()" else results()), results


@when("a prompt is asked by a caller whose loop is closed {when}")
def _(context: Context, when: str) -> None:
    loop = asyncio.new_event_loop()
    context.task = loop.create_task(context.actor.respond("once"))
    loop.run_until_complete(asyncio.sleep(0.3))
    if when != "after the answer came":
        loop.close()
    if when != "while the answer is due":
        until(lambda: _answered() == 1)
        time.sleep(0.3)  # until the engine has tried to deliver it
    loop.close()


@when("a run is read on an event loop that is closed {when}")
def _(context: Context, when: str) -> None:
    storage = context.provider._storage
    make = storage._writer

    def make_slowly(*given: Any) -> Any:
        time.sleep(1 if when == "while it is stored" else 0)
        return make(*given)

    async def read() -> list[Any]:
        return [result async for result in context.actor.respond_all(["once"])]

    context.ignored = []
    loop = asyncio.new_event_loop()
    with (
        mock.patch.object(storage, "_writer", make_slowly),
        mock.patch.object(sys, "unraisablehook", context.ignored.append),
    ):
        task = loop.create_task(read())
        loop.run_until_complete(asyncio.sleep(0.5))
        loop.close()
        del task
        time.sleep(1)  # until the thread that makes the writer lets go of the task
        gc.collect()


@then("Python has reported no exception that it ignored")
def _(context: Context) -> None:
    assert not context.ignored, context.ignored


def _answered() -> int:
    ended = schema.requests.c.state == "succeeded"
    return ledger_values(select(func.count()).select_from(schema.requests).where(ended))[0]


@when("the same prompt is asked again")
def _(context: Context) -> None:
    context.actor.respond_sync("once")


@when("the objects that {few:d} and {many:d} waiting calls keep are counted")
def _(context: Context, few: int, many: int) -> None:
    async def kept(count: int) -> int:
        before = queued()
        ask = context.actor.respond
        tasks = [asyncio.create_task(ask(f"prompt {n} of {count}")) for n in range(count)]
        while queued() < before + count:  # noqa: ASYNC110 - in the ledger, which has no event
            await asyncio.sleep(0.05)
        gc.collect()
        found = len(gc.get_objects())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    def queued() -> int:
        return ledger_values(select(func.count()).select_from(schema.requests))[0]

    async def both() -> float:
        await kept(few)  # what is made once
        less = await kept(few)
        return (await kept(many) - less) / (many - few)

    context.objects = asyncio.run(both())


@then("each waiting call keeps at most {most:d} objects that the garbage collector examines")
def _(context: Context, most: int) -> None:
    assert context.objects <= most, context.objects


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


@rule("what observers carry is asked twice")
def _(observers_carry: list[str | None]) -> dict[str, list[str | None]]:
    """One that carries null fails when it is asked."""
    carriers = Carriers([_Carrying(each) for each in observers_carry])
    return {"carried": [carriers.carried() for _ in range(2)]}


@rule("asynchronous methods of observers are taken")
def _(method: str) -> dict[str, bool]:
    async def later(*_: object) -> bool:
        return True

    observer = mock.Mock(spec=["on_event", "wants", "carry"], **{method: later})
    with cb.ClaudeBatchProvider(observers=[observer]):
        return {"taken": True}


@rule("events are put into words")
def _(event: str, fields: dict[str, Any]) -> dict[str, str]:
    return {"words": message_of_event(getattr(events, event)(ledger="a ledger", **fields))}


def _event(run_id: str) -> events.RunCancelled:
    return events.RunCancelled(ledger="a ledger", run_id=run_id)


class _Told(NamedTuple):
    run_id: str
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop | None = None


def _observes(context: Context, observer: Any) -> None:
    context.all = Observers("a ledger", log=False)
    context.all.attach([observer])


def _take(context: Context) -> Callable[[Event], None]:
    context.told = []
    return lambda event: context.told.append(_Told(event.run_id, threading.current_thread()))


def _leaves(context: Context) -> None:
    def leave(_: type[Event]) -> bool:
        context.all.detach([observer])
        return True

    observer = SimpleNamespace(wants=leave, on_event=_take(context))
    _observes(context, observer)


def _no_room(context: Context) -> None:
    _observes(context, _take(context))
    _no_room_for_threads(context)


def _no_room_for_threads(context: Context) -> None:
    # No machine has room for a stack of this size.
    context.add_cleanup(threading.stack_size, threading.stack_size(1 << 60))


def _does_not_return(context: Context) -> None:
    patch = mock.patch.object(observers_module, "CLOSING_SECONDS", 0.05)
    patch.start()
    context.add_cleanup(patch.stop)
    take, word, context.ended = _take(context), threading.Event(), threading.Event()
    context.return_at_last = word.set

    def stay(event: Event) -> None:
        take(event)
        word.wait(30)

    def source() -> Iterator[Event]:
        try:
            for number in range(1, 4):
                yield _event(f"run {number}")
        finally:
            context.ended.set()

    _observes(context, stay)
    context.all.report_each(events.RunCancelled, source)
    until(lambda: context.told)


def _asynchronous(context: Context) -> None:
    context.told = []

    async def take(event: events.RunCancelled) -> None:
        await asyncio.sleep(0)
        if event.run_id == "run 2":
            raise ValueError("not that one")
        loop = asyncio.get_running_loop()
        context.told.append(_Told(event.run_id, threading.current_thread(), loop))

    _observes(context, take)


def _asynchronous_no_room(context: Context) -> None:
    _asynchronous(context)
    _no_room_for_threads(context)


OBSERVERS: dict[str, Callable[[Context], None]] = {
    "leaves when it is asked what it wants": _leaves,
    "takes the first of many events, and does not return until it is left behind": _does_not_return,
    "finds no room for a thread": _no_room,
    "is asynchronous, and fails at the second event": _asynchronous,
    "is asynchronous, and finds no room for a thread": _asynchronous_no_room,
}


@given("an observer which {what}")
def _(context: Context, what: str) -> None:
    OBSERVERS[what](context)


@when("{count:d} events are told")
def _(context: Context, count: int) -> None:
    for number in range(1, count + 1):
        context.all.report(_event(f"run {number}"))


@when("all observers are closed")
def _(context: Context) -> None:
    context.all.close()
    if "return_at_last" in context:
        context.return_at_last()
        assert context.ended.wait(30), "more is read for it"


@then("it was told the events {numbers}")
def _(context: Context, numbers: str) -> None:
    found = [told.run_id for told in context.told]
    assert found == [f"run {number}" for number in json.loads(numbers)], found


@then("it was told on {whose} thread")
def _(context: Context, whose: str) -> None:
    assert whose in ("the teller's own", "its own"), whose
    threads, loops = ({each[n] for each in context.told} for n in (1, 2))
    assert len(threads) == len(loops) == 1, context.told
    assert (threads == {threading.current_thread()}) == (whose == "the teller's own"), threads
    assert all(loop is None or loop.is_closed() for loop in loops), loops


@then("an observer of ends alone is told of that run once, and of none that is gone")
def _(context: Context) -> None:
    told: list[Event] = []
    ends = SimpleNamespace(wants=lambda kind: kind is events.RunFinished, on_event=told.append)
    everybody = Observers("a ledger", log=False)
    everybody.attach([ends])
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    noticing = Noticing(ledger, everybody, {}, list, lambda *_: None)
    for _ in range(2):
        noticing.follow(["run-that-is-gone", context.run.id])
        noticing.look()
    assert not noticing._runs
    everybody.close()
    assert [event.run_id for event in told] == [context.run.id], told
