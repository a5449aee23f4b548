"""Steps about what is asked again when the same is asked once more."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path

import programs
from behave import then, when
from behave.runner import Context
from cli_steps import command, spawn
from event_steps import keep_log
from orphan_steps import MORTAL
from sqlalchemy import select
from staging import ledger_values, make_provider
from tables import rule

import claude_batch as cb
from claude_batch.ledger.schema import runs


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


@when("two processes rerun at once: {words}")
def _(context: Context, words: str) -> None:
    both = [spawn(context, f"{words} -o {name}.jsonl") for name in ("one", "two")]
    context.both = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [1, 1], context.both


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


@when('the requests of "{name}" are {asked} by {way}')
def _(context: Context, name: str, asked: str, way: str) -> None:
    assert asked in ("asked", "asked anew"), asked
    if not hasattr(context, "actor"):
        make_provider(context)
    keep_log(context)
    try:
        results = asyncio.run(_asked(context, way, prompts_of(name), asked == "asked anew"))
    except cb.ActorError as error:
        context.error = error
        return
    context.results = sorted(results, key=lambda each: each.position)


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def _failed(context: Context) -> list[int]:
    return [each.position + 1 for each in context.results if not each.ok]


def _reused(context: Context) -> list[int]:
    """The reused results; each says so, and when it was answered, the reused ones first."""
    ages: dict[bool, list[datetime]] = {True: [], False: []}
    for each in context.results:
        assert each.response is None or each.response.reused == each.reused, each
        # A result of a live call does not say when it was answered, only its response does.
        answered = each.response.answered if each.response else each.answered
        assert each.answered in (answered, None), each
        if answered is not None:
            assert answered.tzinfo is UTC, each
            assert abs((datetime.now(UTC) - answered).total_seconds()) < 600, answered
            ages[each.reused].append(answered)
        else:
            assert not each.ok and not each.reused, each
    assert not all(ages.values()) or max(ages[True]) < min(ages[False]), ages
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


@then("people are {how}")
def _(context: Context, how: str) -> None:
    (record,) = (each for each in context.kept if getattr(each, "for_people", False))
    assert record.levelno == {"warned": logging.WARNING, "told": logging.INFO}[how], record
    for line in context.text.split("\n"):
        assert line in record.getMessage(), record.getMessage()


@when("the run is opened from Python, and its failures but one are retried")
def _(context: Context) -> None:
    with cb.open_run(context.run_id, poll_interval=0.05) as run:
        assert not any(each.reused for each in run.results_sync())
        assert run.retry_failed_sync(["expired", "canceled", "type=overloaded_error"]) == 3
        context.results = list(run.results_sync())


@when('a block of Actor.run asks "{name}", and what failed is retried in it')
def _(context: Context, name: str) -> None:
    make_provider(context)
    asked = prompts_of(name)

    async def ask() -> list[cb.ActorResult]:
        async with context.actor.run(asked, label="a block") as run:
            context.run = run
            assert [each.ok async for each in run].count(True) == 1
            assert await run.retry_failed(["expired", "canceled", "errored"]) == 4
            return [each async for each in run.results()]

    context.results = asyncio.run(ask())
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


# Single calls --------------------------------------------------------------------------------


@when("the ledger's last run is cancelled")
def _(context: Context) -> None:
    run_id = ledger_values(select(runs.c.id).order_by(runs.c.created))[-1]
    context.provider.open_run(run_id).cancel_sync()
