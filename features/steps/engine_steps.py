"""Steps about the engine of a process, and about opening and closing providers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import ledgers_on_postgres
import programs
from behave import given, then, when
from behave.runner import Context
from callers import callers
from sqlalchemy import select
from staging import QUICK, ledger_values, until
from tables import rule

import claude_batch as cb
from claude_batch.ledger.schema import runs
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import engine
from claude_batch.lifecycle.threads import EventLoopThread
from claude_batch.providers.run_waiter import RunWaiter
from claude_batch.providers.run_writer import RunWriter


def configuration() -> cb.ActorConfiguration:
    return cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )


def attempt(context: Context, work: Callable[[], Any]) -> None:
    context.error = None
    try:
        context.outcomes = [work()]
    except cb.ActorError as error:
        context.error = error
        context.outcomes = [error]


def rows(query: str) -> list[Any]:
    return ledgers_on_postgres.rows(os.environ["CLAUDE_BATCH_LEDGER"], query)


def execute(statement: str) -> None:
    ledgers_on_postgres.execute(os.environ["CLAUDE_BATCH_LEDGER"], statement)


MOMENTS: dict[str, tuple[type, str]] = {
    "it is stored": (RunWriter, "report"),
    "its wait reads the ledger": (RunWaiter, "_sending"),
}


@when("a run is submitted by {asks}, and the provider is closed when {moment}")
def _(context: Context, asks: str, moment: str) -> None:
    of, name = MOMENTS[moment]
    work = getattr(of, name)

    def close_first(*given: Any) -> Any:
        # On a thread, because the engine's end waits for the thread that does this work.
        threading.Thread(target=context.provider.close).start()
        until(lambda: context.provider.closed)
        return work(*given)

    with mock.patch.object(of, name, close_first):
        if asks == "submit":
            attempt(context, lambda: asyncio.run(context.actor.submit(["stored"])))
        else:
            attempt(context, lambda: context.actor.submit_sync(["stored"]))


@when("another provider opens the ledger, and the provider is closed a moment later")
def _(context: Context) -> None:
    other = cb.ClaudeBatchProvider(poll_interval=3600)
    context.add_cleanup(other.close)
    other.opening().result()
    time.sleep(2)  # until nothing changes the ledger any more
    context.provider.close()


@when('a provider with {settings:JsonObject} asks "{prompt}", and is closed')
def _(context: Context, settings: dict[str, Any], prompt: str) -> None:
    with cb.ClaudeBatchProvider(**{**QUICK, **settings}) as other:
        attempt(context, lambda: cb.Actor(configuration(), other).respond_sync(prompt))


@when("the ledger loses a table while a call waits")
def _(context: Context) -> None:
    callers(context).ask({"waits": context.actor.respond("waits")})
    until(lambda: rows("SELECT 1 FROM requests"))
    execute("DROP TABLE batch_runs")
    context.outcomes = callers(context).outcomes()


@when("the disk refuses the ids of batches for a while")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider(drive=False) as quiet:
        quiet.store(configuration(), ["makes the ledger"]).cancel_sync()
    execute(
        "CREATE TRIGGER full BEFORE UPDATE OF remote_id ON batches "
        "BEGIN SELECT RAISE(FAIL, 'disk is full'); END",
    )
    callers(context).ask({"accepted": context.actor.respond("accepted")})
    until(lambda: any(call["method"] == "POST" for call in context.api.log()))
    until(lambda: rows("SELECT 1 FROM batches WHERE state = 'submitting' AND armed IS NOT NULL"))
    execute("DROP TRIGGER full")
    context.outcomes = callers(context).outcomes()


@when("a process asks, forks, and its child asks with {whose} provider")
def _(context: Context, whose: str) -> None:
    assert whose in ("the same", "another"), whose
    script = (
        "import os, claude_batch as cb\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "def made():\n"
        "    return cb.Actor(c, cb.ClaudeBatchProvider(linger=0.1, poll_interval=0.05))\n"
        "actor = made()\n"
        "print(actor.respond_sync('from the parent').text, flush=True)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    actor = {'made()' if whose == 'another' else 'actor'}\n"
        "    print(actor.respond_sync('from the child').text, flush=True)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(actor.respond_sync('from the parent again').text, flush=True)\n"
    )
    context.done = programs.run(script)


@when("a process with many calls forks {count:d} children, each of which opens a ledger of its own")
def _(context: Context, count: int) -> None:
    script = (
        "import os, sys, threading, time, claude_batch as cb\n"
        "from claude_batch.ledger.store import Ledger\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "actor = cb.Actor(c, cb.ClaudeBatchProvider(linger=0, poll_interval=0.05))\n"
        "def ask(caller):\n"
        "    for number in range(10**6):\n"
        "        actor.respond_sync(f'{caller} asks {number}')\n"
        "for caller in range(8):\n"
        "    threading.Thread(target=ask, args=(caller,), daemon=True).start()\n"
        "time.sleep(2)\n"
        f"for number in range({count}):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        Ledger(f'{sys.argv[1]}/of-child-{number}.db').close()\n"
        "        os._exit(0)\n"
        "    end = time.monotonic() + 20\n"
        "    while os.waitpid(child, os.WNOHANG)[0] == 0:\n"
        "        if time.monotonic() > end:\n"
        "            os.kill(child, 9)\n"
        "            print('a child hangs', flush=True)\n"
        "            os._exit(1)\n"
        "        time.sleep(0.001)\n"
        "print('none hangs', flush=True)\n"
        "os._exit(0)\n"
    )
    context.done = programs.run(script, str(context.tmp))


@then("none of its children hangs")
def _(context: Context) -> None:
    assert context.done.stdout == "none hangs\n", (context.done.stdout, context.done.stderr)


@then("parent and child are answered")
def _(context: Context) -> None:
    assert context.done.returncode == 0, context.done.stderr
    for words in ('"from the parent"', '"from the child"', '"from the parent again"'):
        assert words in context.done.stdout, context.done.stdout


@when("another process holds the leader lock")
def _(context: Context) -> None:
    """As another process does, whose locks are not shared with this one."""
    with cb.ClaudeBatchProvider(drive=False) as quiet:
        quiet.store(configuration(), ["makes the ledger"])
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    context.leader = contextlib.ExitStack()
    context.leader.enter_context(ledger.every_leader_lock([1], "the scenario holds it"))
    context.add_cleanup(context.leader.close)


@when("the other process releases the leader lock")
def _(context: Context) -> None:
    context.leader.close()


@then("advancing the ledger returns {result}")
def _(context: Context, result: str) -> None:
    assert context.provider.advance_sync() is json.loads(result)


@when("the ledger is advanced")
def _(context: Context) -> None:
    assert context.provider.advance_sync() is True


# API sessions


@rule("a provider finds its credentials")
def _(environment: dict[str, str], settings: dict[str, str]) -> dict[str, bool]:
    with mock.patch.dict(os.environ):
        del os.environ["ANTHROPIC_API_KEY"]
        os.environ.update(environment)
        with cb.ClaudeBatchProvider(**{**QUICK, **settings}) as provider:
            try:
                answer = cb.Actor(configuration(), provider).respond_sync("hello")
            except cb.ActorError as error:
                assert "sk-" not in str(error), error
                raise
    return {"answered": bool(answer.text)}


@rule("runs are submitted")
def _(context: Context, requests: Any) -> dict[str, int]:
    run = context.provider.submit_sync(configuration(), requests)
    return {"requests_stored": run.status().total}


@rule("a run is stored with an output")
def _(context: Context, output: str) -> dict[str, list[str]]:
    context.provider.store(configuration(), ["prompt 0"], output=output)
    return {"outputs_in_the_ledger": ledger_values(select(runs.c.output))}


@when("the run is {what} without a loop")
def _(context: Context, what: str) -> None:
    ways = {"waited for": context.run.wait_sync, "cancelled": context.run.cancel_sync}
    attempt(context, ways[what])


@rule("the run is opened")
def _(context: Context, by: str) -> dict[str, str]:
    part = re.fullmatch(r"the (?:first (\d+) characters|whole) of its id", by)
    wanted = context.run.id[: int(part[1] or 99)] if part else by
    context.provider.close()
    try:
        with cb.open_run(wanted) as found:
            assert found.id == context.run.id
    finally:
        assert not engine._engines, "something was left open"
    return {"shown": repr(found).replace(context.run.id, "RUN")}


@then("every name in __all__ resolves, and no other")
def _(context: Context) -> None:
    assert set(cb.__all__) <= set(dir(cb))
    for name in cb.__all__:
        assert getattr(cb, name) is not None, name
    try:
        cb.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("a name that does not exist resolved")


@rule("prompts are asked at once with one key")
def _(context: Context, prompts: list[str]) -> dict[str, int]:
    async def ask() -> list[Any]:
        calls = [context.actor.respond(prompt, key="k") for prompt in prompts]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(ask())
    answers = [each for each in outcomes if isinstance(each, cb.ActorResponse)]
    conflicts = [each for each in outcomes if isinstance(each, cb.KeyConflictError)]
    return {
        "answered": len(answers),
        "different_answers": len({each.text for each in answers}),
        "in_conflict": len(conflicts),
    }


_OUTLIVES = """
import asyncio, sys, threading, time, claude_batch as cb
c = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
actor = cb.Actor(c, cb.ClaudeBatchProvider(linger=0.05, poll_interval=0.05))
def ask():
    threading.main_thread().join()
    print(eval(sys.argv[1]), flush=True)
threading.Thread(target=ask).start()
"""


@rule("a thread that outlives the main thread asks")
def _(asks: str) -> dict[str, str]:
    done = programs.run(_OUTLIVES, asks)
    # The end of the process shuts the thread's provider down, without a word.
    return {"prints": done.stdout.strip(), "complains": done.stderr.strip().rpartition("\n")[2]}


@rule("an engine that has closed is asked to read")
def _(context: Context, by: str) -> dict[str, Any]:
    entered = context.provider.opening().result()
    context.provider.close()
    return {"reads": getattr(entered.engine, by)(lambda: True).result()}


@given("each call is stored while it is still being handed over")
def _(context: Context) -> None:
    soon = EventLoopThread.soon

    def at_once(self: EventLoopThread, work: Callable[..., object], *arguments: object) -> bool:
        taken = soon(self, work, *arguments)
        if getattr(work, "__name__", "") == "_flush":
            flushed = threading.Event()
            soon(self, flushed.set)
            assert flushed.wait(20)
        return taken

    patch = mock.patch.object(EventLoopThread, "soon", at_once)
    patch.start()
    context.add_cleanup(patch.stop)
