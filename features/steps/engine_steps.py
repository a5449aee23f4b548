"""Steps about the engine of a process, and about opening and closing providers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any
from unittest import mock

import ledgers_on_postgres
from behave import then, when
from behave.runner import Context
from staging import QUICK, make_provider, until

import claude_batch as cb
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.event_loop_thread import EventLoopThread
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders


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


def in_a_thread(context: Context, prompt: str) -> threading.Thread:
    def ask() -> None:
        attempt(context, lambda: context.actor.respond_sync(prompt))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def rows(query: str) -> list[Any]:
    return ledgers_on_postgres.rows(os.environ["CLAUDE_BATCH_LEDGER"], query)


def execute(statement: str) -> None:
    ledgers_on_postgres.execute(os.environ["CLAUDE_BATCH_LEDGER"], statement)


@when("two providers of the ledger are asked at once")
def _(context: Context) -> None:
    other = cb.ClaudeBatchProvider(**{**QUICK, "linger": 0.8})
    context.add_cleanup(other.close)

    async def ask() -> list[Any]:
        return await asyncio.gather(
            context.actor.respond("one"), cb.Actor(configuration(), other).respond("two")
        )

    context.outcomes = asyncio.run(ask())


@when("another provider of the ledger is opened, used and closed")
def _(context: Context) -> None:
    context.actor.respond_sync("first")
    with cb.ClaudeBatchProvider(**QUICK) as other:
        cb.Actor(configuration(), other).respond_sync("second")


@when("another provider of the ledger with other ledger settings is used")
def _(context: Context) -> None:
    other = cb.ClaudeBatchProvider(**QUICK, settling=1)
    attempt(context, lambda: cb.Actor(configuration(), other).respond_sync("never"))


@when("the provider is closed while a call waits")
def _(context: Context) -> None:
    thread = in_a_thread(context, "waits")
    until(lambda: rows("SELECT 1 FROM batches WHERE remote_id IS NOT NULL"))
    context.provider.close()
    thread.join(30)


@when("the ledger loses a table while a call waits")
def _(context: Context) -> None:
    thread = in_a_thread(context, "waits")
    until(lambda: rows("SELECT 1 FROM requests"))
    execute("DROP TABLE batch_runs")
    thread.join(30)


@when("the disk refuses the ids of batches for a while")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider(drive=False) as quiet:
        quiet.store(configuration(), ["makes the ledger"]).cancel_sync()
    execute(
        "CREATE TRIGGER full BEFORE UPDATE OF remote_id ON batches "
        "BEGIN SELECT RAISE(FAIL, 'disk is full'); END",
    )
    thread = in_a_thread(context, "accepted")
    until(lambda: any(call["method"] == "POST" for call in context.api.log()))
    until(lambda: rows("SELECT 1 FROM batches WHERE state = 'submitting' AND armed IS NOT NULL"))
    execute("DROP TRIGGER full")
    thread.join(30)


@when("the provider is closed while a POST is under way")
def _(context: Context) -> None:
    context.prompts = ["prompt 0"]
    context.run = context.provider.store(context.actor.configuration, context.prompts)
    until(lambda: rows("SELECT 1 FROM batches WHERE state = 'submitting' AND armed IS NOT NULL"))
    context.provider.close()
    assert rows("SELECT remote_id FROM batches WHERE state = 'in_progress'")


@when("a process asks, forks, and its child asks too")
def _(context: Context) -> None:
    script = (
        "import os, claude_batch as cb\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "def ask(words):\n"
        "    with cb.ClaudeBatchProvider(linger=0.1, poll_interval=0.05) as p:\n"
        "        print(cb.Actor(c, p).respond_sync(words).text, flush=True)\n"
        "ask('from the parent')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ask('from the child')\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    context.done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )


@when("a process asks, forks, and its child asks with the same provider")
def _(context: Context) -> None:
    script = (
        "import os, claude_batch as cb\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "actor = cb.Actor(c, cb.ClaudeBatchProvider(linger=0.1, poll_interval=0.05))\n"
        "print(actor.respond_sync('from the parent').text, flush=True)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(actor.respond_sync('from the child').text, flush=True)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(actor.respond_sync('from the parent again').text, flush=True)\n"
    )
    context.done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )


@then("both are answered")
def _(context: Context) -> None:
    assert context.done.returncode == 0, context.done.stderr
    assert "from the parent" in context.done.stdout and "from the child" in context.done.stdout


@when("the same key is asked three times at once, once with other words")
def _(context: Context) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(
            context.actor.respond("same", key="k"),
            context.actor.respond("same", key="k"),
            context.actor.respond("other", key="k"),
            return_exceptions=True,
        )

    context.outcomes = asyncio.run(ask())


@then("two are answered alike and one is a KeyConflictError")
def _(context: Context) -> None:
    one, two, three = context.outcomes
    assert one == two, (one, two)
    assert isinstance(three, cb.KeyConflictError)


@contextlib.contextmanager
def _another_process_drives() -> Generator[None]:
    """Hold the seat as another process does, whose locks are not shared with this one."""
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        with ledger.every_seat([1], "the scenario holds it"):
            yield
    finally:
        ledger.close()


@when("another process holds the seat while a run is stored")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider(drive=False) as quiet:
        quiet.store(configuration(), ["makes the ledger"]).cancel_sync()
    with _another_process_drives():
        context.run = context.provider.store(context.actor.configuration, ["prompt 0"])
        until(lambda: context.provider.contact.made)
        assert not rows("SELECT 1 FROM batches")
        assert context.run.status().counts == {cb.RequestState.QUEUED: 1}


@then("nothing is sent until it leaves, and then all is answered")
def _(context: Context) -> None:
    [result] = list(context.run.results_sync())
    assert result.ok


@when("another process holds the seat")
def _(context: Context) -> None:
    context.provider.store(configuration(), ["prompt 0"])
    another = _another_process_drives()
    another.__enter__()
    context.add_cleanup(another.__exit__, None, None, None)


@then("advance says that it did not drive")
def _(context: Context) -> None:
    assert context.provider.advance_sync() is False


@when("the ledger is advanced")
def _(context: Context) -> None:
    assert context.provider.advance_sync() is True


@then("the provider's contact is not made, with a reason")
def _(context: Context) -> None:
    contact = context.provider.contact
    assert not contact.made and contact.failures == 1 and "connect" in contact.last_failure.lower()
    assert context.provider.address.startswith("http://127.0.0.1:")


# Doors


@when("a provider is used as a context manager, and another as an asynchronous one")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider(**QUICK) as one:
        first = cb.Actor(configuration(), one).respond_sync("one")

    async def ask() -> cb.ActorResponse:
        async with cb.ClaudeBatchProvider(**QUICK) as two:
            context.two = two
            return await cb.Actor(configuration(), two).respond("two")

    context.one, context.outcomes = one, [first, asyncio.run(ask())]


@then("both are closed")
def _(context: Context) -> None:
    assert context.one.closed and context.two.closed
    assert context.one.ledger == os.environ["CLAUDE_BATCH_LEDGER"]


@when("a provider takes its key from OTHER_KEY")
def _(context: Context) -> None:
    os.environ["OTHER_KEY"] = os.environ.pop("ANTHROPIC_API_KEY")
    make_provider(context, api_key_env="OTHER_KEY")
    attempt(context, lambda: context.actor.respond_sync("with the other key"))


@when("a provider is used with {what}")
def _(context: Context, what: str) -> None:
    settings: dict[str, Any] = {}
    if what == "no key":
        del os.environ["ANTHROPIC_API_KEY"]
    elif what == "a profile that is not there":
        del os.environ["ANTHROPIC_API_KEY"]
        os.environ["ANTHROPIC_PROFILE"] = "nobody"
        os.environ["ANTHROPIC_CONFIG_DIR"] = str(context.tmp)
    elif what == "an unset variable":
        settings["api_key_env"] = "NOT_SET_ANYWHERE"
    else:
        settings["api_key"] = "sk-one\nsk-two"
    make_provider(context, **settings)
    attempt(context, lambda: context.actor.respond_sync("never"))
    assert "sk-" not in str(context.error)


@when("a text is submitted in place of a list")
def _(context: Context) -> None:
    attempt(context, lambda: context.provider.submit_sync(configuration(), "letters"))


@when("the run {run_id} is opened")
def _(context: Context, run_id: str) -> None:
    attempt(context, lambda: cb.open_run(run_id))


@then("it is found by the beginning of its id, by open_run too")
def _(context: Context) -> None:
    assert cb.open_run(context.run.id[:8]).id == context.run.id
    assert repr(context.run) == f"<Run {context.run.id}>"
    assert context.run.provider is context.provider


@when("the same run is stored with two outputs")
def _(context: Context) -> None:
    for output in ("first.jsonl", "second.jsonl"):
        context.run = context.provider.store(configuration(), ["prompt 0"], output=output)


@when("the run is waited for without a loop")
def _(context: Context) -> None:
    attempt(context, context.run.wait_sync)


@then("the run can be cancelled and marked delivered without a loop")
def _(context: Context) -> None:
    context.run.cancel_sync()
    context.run.mark_delivered()
    assert context.run.status().delivered is not None


@then("every name in __all__ resolves")
def _(context: Context) -> None:
    assert set(cb.__all__) <= set(dir(cb))
    for name in cb.__all__:
        assert getattr(cb, name) is not None, name


@then("a name that does not exist is an AttributeError")
def _(context: Context) -> None:
    try:
        cb.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("a name that does not exist resolved")


@when("a keyed call that was answered before is asked again and given up, beside another call")
def _(context: Context) -> None:
    context.actor.respond_sync("asked before", key="k")

    async def ask() -> list[Any]:
        given_up = asyncio.create_task(context.actor.respond("asked before", key="k"))
        other = asyncio.create_task(context.actor.respond("beside it"))
        await asyncio.sleep(0)
        given_up.cancel()
        return [await other]

    context.outcomes = asyncio.run(ask())


@when("two prompts are asked, each stored while it is still being handed over")
def _(context: Context) -> None:
    context.provider.resume()
    soon = EventLoopThread.soon

    def at_once(self: EventLoopThread, work: Callable[..., object], *arguments: object) -> bool:
        taken = soon(self, work, *arguments)
        if getattr(work, "__name__", "") == "_flush":
            flushed = threading.Event()
            soon(self, flushed.set)
            assert flushed.wait(20)
        return taken

    with mock.patch.object(EventLoopThread, "soon", at_once):
        asked = [context.provider.call(_encoded(n), actor="tests/asker") for n in range(2)]
        context.answers = [each.answer() for each in asked if each.wait(20)]


def _encoded(number: int) -> EncodedRequest:
    messages = [{"role": "user", "content": f"prompt {number}"}]
    body = {"model": "claude-haiku-4-5", "max_tokens": 10, "messages": messages}
    return EncodedRequest(json.dumps(body).encode(), LaneHeaders())


@then("neither call is forgotten")
def _(context: Context) -> None:
    assert [answer.state for answer in context.answers] == ["succeeded"] * 2, context.answers
