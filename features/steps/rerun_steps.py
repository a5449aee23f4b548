"""Steps about what is asked again when the same is asked once more."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import programs
from behave import given, then, when
from behave.runner import Context
from cli_steps import command, creates, spawn
from orphan_steps import MORTAL
from retry_steps import change
from sqlalchemy import select
from staging import ledger_values, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.ledger.schema import requests, runs


def prompts_of(name: str) -> list[str]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


@rule("runs of one prompt are found")
def _(context: Context, run_key: str) -> dict[str, int]:
    if "provider" not in context:
        make_provider(context, drive=False)
        context.found = []
    asked = cb.ActorRequest("Name a knot.")
    run = context.provider.store(context.actor.configuration, [asked], run_key=run_key or None)
    if run.id not in context.found:
        context.found.append(run.id)
    return {"run": 1 + context.found.index(run.id)}


# Commands and processes ----------------------------------------------------------------------


@then('the files "{first}" and "{second}" are the same')
def _(context: Context, first: str, second: str) -> None:
    assert Path(first).read_bytes() == Path(second).read_bytes()


def rerun_and_die(name: str, point: str) -> None:
    actor = 'cb.load_actor("actor.yaml", linger=0.1, poll_interval=0.05)'
    # The command line's requests have keys, by their lines.
    asked = f"[cb.ActorRequest(p, key=str(n)) for n, p in enumerate({prompts_of(name)!r}, 1)]"
    done = programs.run(f"{MORTAL}\n{actor}.submit_sync({asked})", point)
    assert done.returncode == -9, (done.returncode, done.stderr)


@when('a process reruns the requests of "{name}", and is killed when "{point}" is reached')
def _(context: Context, name: str, point: str) -> None:
    rerun_and_die(name, point)


@when('a command runs while another process reruns "{name}" before it writes: {words}')
def _(context: Context, name: str, words: str) -> None:
    def rerun(point: CrashPoint) -> None:
        if point is CrashPoint.BEFORE_DELIVERY:
            rerun_and_die(name, CrashPoint.AFTER_STORED)

    with mock.patch.object(crash_points, "on_reach", rerun):
        command(context, words)


@when("two processes rerun at once: {words}")
def _(context: Context, words: str) -> None:
    both = [spawn(context, f"{words} -o {name}.jsonl") for name in ("one", "two")]
    context.both = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [1, 1], context.both


@then("both have written the states {states}")
def _(context: Context, states: str) -> None:
    for name in ("one", "two"):
        context.execute_steps(f'Then the output "{name}.jsonl" has the states {states}')


@when("half of the batches' time goes by")
def _(context: Context) -> None:
    context.api.advance_clock(1800.0)


@when("a command runs while the API's clock goes on by an hour at a time: {words}")
def _(context: Context, words: str) -> None:
    done = threading.Event()

    def wind() -> None:
        while not done.wait(0.5):
            context.api.advance_clock(3600.0)

    winding = threading.Thread(target=wind)
    winding.start()
    try:
        command(context, words)
    finally:
        done.set()
        winding.join()


# From Python ---------------------------------------------------------------------------------


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "for_people", False):
            self.seen.append(record)


def listen(context: Context) -> None:
    """Keep the log records that are for people, from now on."""
    if getattr(context, "records", None) is None:
        context.records = _Records()
        logger = logging.getLogger("claude_batch")
        level = logger.level
        logger.addHandler(context.records)
        logger.setLevel(logging.INFO)
        context.add_cleanup(logger.setLevel, level)
        context.add_cleanup(logger.removeHandler, context.records)
    context.records.seen.clear()


async def _asked(context: Context, way: str, asked: list[str], new: bool) -> list[cb.ActorResult]:
    actor = context.actor
    match way:
        case "respond_all" | "respond_all, as they come":
            ordered = way == "respond_all"
            return [each async for each in actor.respond_all(asked, ordered=ordered, new=new)]
        case "respond_all_sync":
            return list(actor.respond_all_sync(asked, new=new))
        case "submit":
            run = await actor.submit(asked, new=new)
            return [each async for each in run.results()]
        case "a block of Actor.run":
            async with actor.run(asked, new=new, label="block", ordered=False) as run:
                return [each async for each in run]
        case _:
            with actor.run(asked, new=new) as run:
                return list(run)


@when('the requests of "{name}" are asked by {way}')
def _(context: Context, name: str, way: str, new: bool = False) -> None:
    if not hasattr(context, "actor"):
        make_provider(context)
    listen(context)
    results = asyncio.run(_asked(context, way, prompts_of(name), new))
    context.results = sorted(results, key=lambda each: each.position)


@when('the requests of "{name}" are asked anew by {way}')
def _(context: Context, name: str, way: str) -> None:
    results = asyncio.run(_asked(context, way, prompts_of(name), True))
    context.results = sorted(results, key=lambda each: each.position)


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def _failed(context: Context) -> list[int]:
    return [each.position + 1 for each in context.results if not each.ok]


def _reused(context: Context) -> list[int]:
    for each in context.results:
        assert each.response is None or each.response.reused == each.reused, each
    return [each.position + 1 for each in context.results if each.reused]


@then("the results {failed} have failed, and none is reused")
@then("the result {failed} has failed, and none is reused")
def _(context: Context, failed: str) -> None:
    assert _failed(context) == _numbers(failed), context.results
    assert not _reused(context), context.results


@then("the result {failed} has failed, and the results {reused} are reused")
def _(context: Context, failed: str, reused: str) -> None:
    assert _failed(context) == _numbers(failed), context.results
    assert _reused(context) == _numbers(reused), context.results


@then("each result says when it was answered, the reused ones before the others")
def _(context: Context) -> None:
    for each in context.results:
        assert each.answered is not None and each.answered.tzinfo is UTC, each
        assert each.response is None or each.response.answered == each.answered
        assert abs((datetime.now(UTC) - each.answered).total_seconds()) < 600, each.answered
    old = [each.answered for each in context.results if each.reused]
    new = [each.answered for each in context.results if not each.reused]
    assert max(old) < min(new), (old, new)


def _said(context: Context, level: int) -> None:
    (record,) = context.records.seen
    assert record.levelno == level, record
    for line in context.text.split("\n"):
        assert line in record.getMessage(), record.getMessage()


@then("people are warned")
def _(context: Context) -> None:
    _said(context, logging.WARNING)


@then("people are told, and not warned")
def _(context: Context) -> None:
    _said(context, logging.INFO)


@when("the run is opened from Python, and its failures but one are retried")
def _(context: Context) -> None:
    with cb.open_run(context.run_id, poll_interval=0.05) as run:
        assert not any(each.reused for each in run.results_sync())
        assert run.retry_failed_sync(["expired", "canceled", "type=overloaded_error"]) == 3
        context.results = list(run.results_sync())


@when('a block of Actor.run asks "{name}", looks at its progress and retries in it')
def _(context: Context, name: str) -> None:
    make_provider(context)
    asked = prompts_of(name)

    async def ask() -> list[int]:
        async with context.actor.run(asked, label="a block") as run:
            context.run = run
            await run.wait()
            assert run.progress().done == 1.0 and run.status().label == "a block"
            seen = [sum([each.ok async for each in run])]
            assert await run.retry_failed(["expired", "canceled", "errored"]) == 4
            seen.append(sum([each.ok async for each in run.results()]))
            return seen

    context.seen = asyncio.run(ask())


@then("there were {first:d} and then {second:d} answers, and the block had the run's id")
def _(context: Context, first: int, second: int) -> None:
    assert context.seen == [first, second], context.seen
    assert ledger_values(select(runs.c.id)) == [context.run.id]


@then("leaving a block by an exception cancels nothing")
def _(context: Context) -> None:
    async def leave() -> None:
        async with context.actor.run(["left alone"]):
            raise ZeroDivisionError

    def leave_plainly() -> None:
        with context.actor.run(["left alone"]):
            raise ZeroDivisionError

    for block in (lambda: asyncio.run(leave()), leave_plainly):
        try:
            block()
        except ZeroDivisionError:
            continue
        raise AssertionError("the exception was swallowed")
    assert not context.provider.closed
    with context.actor.run(["left alone"]) as run:
        (result,) = run
    assert result.ok and run.status().state == cb.RunState.FINISHED


@when("a live actor is asked for a block, and for all anew")
def _(context: Context) -> None:
    provider = cb.ClaudeProvider()
    context.add_cleanup(provider.close)
    actor = cb.Actor(cb.ActorConfiguration(name="tests/live", model="claude-haiku-4-5"), provider)
    try:
        actor.run(["never"])
    except cb.ActorConfigurationError as error:
        context.refusal = str(error)

    async def ask() -> list[cb.ActorResult]:
        return [each async for each in actor.respond_all(["one"], new=True)]

    context.results = [*asyncio.run(ask()), *actor.respond_all_sync(["two"], new=True)]


@then("the block is refused, and all is answered")
def _(context: Context) -> None:
    assert "keeps no runs" in context.refusal, context.refusal
    for each in context.results:
        answer = each.unwrap()
        assert not answer.reused and answer.answered is not None, answer


# Single calls --------------------------------------------------------------------------------


@then("the call was asked anew")
def _(context: Context) -> None:
    assert not context.outcomes[0].reused


@then("the call has the old answer, and says when it was answered")
def _(context: Context) -> None:
    answer = context.outcomes[0]
    assert answer.reused and answer.answered is not None, answer
    assert answer.answered.tzinfo is UTC


@given("people are listened to")
def _(context: Context) -> None:
    listen(context)


@when('"{prompt}" is asked with the key "{key}", and its run is cancelled before it is sent')
def _(context: Context, prompt: str, key: str) -> None:
    def cancel() -> None:
        (run_id,) = until(lambda: ledger_values(select(requests.c.run_id)))
        context.provider.open_run(run_id).cancel_sync()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    try:
        context.outcomes = [context.actor.respond_sync(prompt, key=key)]
    except cb.ActorError as error:
        context.outcomes = [error]
    cancelling.join()


@when("its run is cancelled while another call of it has not ended")
def _(context: Context) -> None:
    refused = {"type": "error", "status": 529, "retry_after": 600}
    context.api.set_faults({"rules": [{"route": "create", "action": refused}]})
    before = len(creates(context))

    async def ask() -> None:
        call = asyncio.create_task(context.actor.respond("another", key="other"))
        await asyncio.to_thread(until, lambda: len(creates(context)) > before)
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(ask())
    # As it stands between the order to cancel and the end of its batches.
    change(f"UPDATE runs SET cancelled = {time.time()}")


@when("its call fails for a passing reason once another process has sent it")
def _(context: Context) -> None:
    make_provider(context, max_attempts=1)
    context.provider.resume()
    until(lambda: ledger_values(select(requests.c.state)) == ["errored"])
    assert os.environ["CLAUDE_BATCH_MAX_ATTEMPTS"] == "1"
