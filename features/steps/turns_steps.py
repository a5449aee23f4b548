"""Steps of conversations: pauses, tools, answers that are asked for again."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from unittest import mock

import parse
import programs
import shapes
import toolbox
from behave import given, register_type, then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import QUICK, ledger_values, make_provider, start_api, until
from tables import check_fields

import claude_batch as cb
from claude_batch.core.settings import has_ledger
from claude_batch.ledger import queries, submissions
from claude_batch.ledger.schema import batches, requests, results, tool_calls
from claude_batch.ledger.store import Leader, Ledger
from claude_batch.lifecycle import conversation_driver, conversation_loop
from claude_batch.lifecycle.conversation_driver import Conversations
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.engine import Engine

use_step_matcher("parse")


@parse.with_pattern(r'[{\["].*')
def _json_text(text: str) -> Any:
    return json.loads(text)


register_type(JsonText=_json_text)


@given("an API that remembers what it is asked")
def _(context: Context) -> None:
    context.seen = []

    def remember(params: dict[str, Any]) -> None:
        context.seen.append(params)

    start_api(context, responder=remember)


@given("an API whose model calls the tool {name} with {arguments:JsonText}")
def _(context: Context, name: str, arguments: Any) -> None:
    context.seen = []

    def answer(params: dict[str, Any]) -> Any:
        context.seen.append(params)
        if len(params["messages"]) > 1:
            return "done"
        return [{"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}]

    start_api(context, responder=answer)


@given(
    "an API that calls a tool twice before each answer, and bills {tokens_in:d} tokens in "
    "and {tokens_out:d} out a turn"
)
def _(context: Context, tokens_in: int, tokens_out: int) -> None:
    def answer(params: dict[str, Any]) -> Any:
        turn = len(params["messages"]) // 2
        call = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": "population",
            "input": {"city": "Kiel"},
        }
        usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
        if turn == 2:
            return {"content": "done", "usage": usage}
        return {"content": [call], "stop_reason": "tool_use", "usage": usage}

    start_api(context, responder=answer)


def _with_tools(context: Context, functions: list[Any]) -> None:
    context.actor = cb.Actor(context.actor.configuration, context.provider, tools=functions)


@given("its actor's file has")
def _(context: Context) -> None:
    text = f"name: tests/asker\nmodel: claude-haiku-4-5\nbatch_processing: true\n{context.text}\n"
    (context.tmp / "actor.yaml").write_text(text)
    configuration = cb.ActorLoader.load(context.tmp / "actor.yaml")
    context.actor = cb.Actor(configuration, context.provider)


@given('its actor has the tools "{names}"')
def _(context: Context, names: str) -> None:
    _with_tools(context, [getattr(toolbox, name) for name in names.split(",")])


@given("its actor has the tool that notes its calls")
def _(context: Context) -> None:
    context.notes = context.tmp / "notes.txt"
    context.notes.touch()
    context.noting = toolbox.noting(context.notes)
    _with_tools(context, [context.noting])


@given("its actor has a tool that asks an actor with tools {how}")
def _(context: Context, how: str) -> None:
    provider, numbers = context.provider, itertools.count()
    inner = cb.Actor(context.actor.configuration, provider, tools=[toolbox.population])

    def prompt() -> str:
        return f"Inner {next(numbers)} [[sandbox:tools]]"

    def blocking(city: str) -> str:
        """Ask somebody else."""
        return inner.respond_sync(prompt(), max_wait="30s").text

    async def waiting(city: str) -> str:
        """Ask somebody else."""
        return (await inner.respond(prompt(), max_wait="30s")).text

    def many(city: str) -> str:
        """Ask somebody else."""
        [result] = inner.respond_all_sync([prompt()], max_wait="30s")
        return result.unwrap().text

    tool: Any = {"respond_sync": blocking, "respond": waiting, "respond_all_sync": many}
    _with_tools(context, [tool[how.removeprefix("with ")]])


@given("its actor has a {kind} tool that asks in a batch")
def _(context: Context, kind: str) -> None:
    context.tool_kind, context.tool_runs = kind, 0
    provider = context.provider
    inner = cb.Actor(context.actor.configuration, provider)

    @cb.tool(repeatable=kind == "repeatable")
    def ask(city: str) -> str:
        """Ask somebody else."""
        context.tool_runs += 1
        return inner.respond_sync("Inner", mode="batch").text

    _with_tools(context, [ask])


QUESTION = cb.ActorRequest("Look [[sandbox:tools]]", key="a")


@when("the provider closes at once, although the tool waits for its answer")
def _(context: Context) -> None:
    pool = ThreadPoolExecutor(1)
    context.add_cleanup(pool.shutdown)
    asked = pool.submit(context.actor.respond_sync, QUESTION)
    is_sent = select(batches.c.remote_id).where(batches.c.state == "in_progress")
    until(lambda: ledger_values(is_sent))
    begun = time.monotonic()
    context.provider.close()
    assert time.monotonic() - begun < conversation_loop.TOOL_GRACE / 2
    assert isinstance(asked.exception(), cb.EngineStoppedError), asked.exception()


@when("the same question is asked by another provider with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any]) -> None:
    make_provider(context, **settings)
    context.execute_steps(f"Given its actor has a {context.tool_kind} tool that asks in a batch")
    try:
        context.said = context.actor.respond_sync(QUESTION).text
    except cb.ActorError as error:
        context.said = str(error)


@then('it is told "{words}" after {count:d} more runs of the tool')
def _(context: Context, words: str, count: int) -> None:
    assert words in context.said, context.said
    assert context.tool_runs == count, context.tool_runs


@then("each answer quotes the actor that its tool has asked")
def _(context: Context) -> None:
    for result in context.results:
        assert result.response.text.count("The tools gave: ") == 2, result.response.text


@when('the actor is asked: "{prompt}"')
def _(context: Context, prompt: str) -> None:
    context.answer = context.actor.respond_sync(prompt)


@when("the actor is asked with {request:JsonObject}")
def _(context: Context, request: dict[str, Any]) -> None:
    context.answer = context.actor.respond_sync(cb.ActorRequest(**request))


@when('the actor is asked in vain: "{prompt}"')
def _(context: Context, prompt: str) -> None:
    _fail(context, prompt)


@when('the actor is asked for a {name}: "{prompt}"')
def _(context: Context, prompt: str, name: str) -> None:
    kind = getattr(shapes, name)
    context.answer = asyncio.run(context.actor.respond(prompt, output_format=kind))


@when('the actor is asked in vain for a {name}: "{prompt}"')
def _(context: Context, prompt: str, name: str) -> None:
    _fail(context, prompt, output_format=getattr(shapes, name))


def _fail(context: Context, prompt: str, **how: Any) -> None:
    try:
        context.answer = context.actor.respond_sync(prompt, **how)
    except cb.ActorError as error:
        context.error = error
    else:
        raise AssertionError(f"it was answered: {context.answer!r}")


@when('a client is asked: "{prompt}"')
def _(context: Context, prompt: str) -> None:
    with cb.client_sync(**QUICK) as client:
        context.message = client.messages.create(
            model="claude-haiku-4-5",
            max_tokens=100,
            messages=[{"role": "user", "content": prompt}],
        )


@when('{count:d} conversations are asked as one run: "{prompt}"')
def _(context: Context, count: int, prompt: str) -> None:
    prompts = [prompt.format(n=n) for n in range(count)]
    context.results = list(context.actor.respond_all_sync(prompts))


@then("the process keeps the functions of these runs after the last one, if it says so")
def _(context: Context) -> None:
    """A run that is ``pruned`` has failed requests, which may be retried until then."""
    provider, ids = context.provider, list[str]()
    for row in context.table:
        run = context.actor.submit_sync([row["prompt"]])
        run.wait_sync()
        run.mark_delivered()
        ids.append(run.id)
    kept = {row["prompt"]: run_id for row, run_id in zip(context.table, ids, strict=True)}
    provider.prune(runs=[kept[row["prompt"]] for row in context.table if row["kept"] == "pruned"])
    workbench = provider.engine().workbench
    for row in context.table:
        assert workbench.runs_undriven(kept[row["prompt"]]) == (row["kept"] == "yes"), row


@given("its actor begins with a long text")
def _(context: Context) -> None:
    configuration = context.actor.configuration
    changed = configuration.model_copy(update={"system_prompt": "shared text " * 2000})
    context.actor = cb.Actor(changed, context.provider)


@then("the first turn of one went ahead alone, and before its last one all had begun")
def _(context: Context) -> None:
    batch_of = {each["custom_id"]: each["accepted_at"] for each in context.api.billing()}
    assert len(batch_of) == 3 * len(context.results), batch_of
    times = sorted(batch_of.values())
    [primer] = [name for name, time in batch_of.items() if time == times[0]]
    last = batch_of[primer.replace("-0001", "-0003")]
    assert max(time for name, time in batch_of.items() if name.endswith("-0001")) < last, batch_of


@then("it is answered in {count:d} turns, each in a batch of its own")
def _(context: Context, count: int) -> None:
    assert context.answer.stop_reason == "end_turn", context.answer.stop_reason
    assert context.answer.turns == count, context.answer.turns
    sizes = ledger_values(select(batches.c.request_count))
    assert sizes == [1] * count, sizes


@then("its cost is that of all its turns")
def _(context: Context) -> None:
    costs = ledger_values(select(results.c.cost))
    assert len(costs) > 1 and context.answer.cost == sum(costs), (context.answer.cost, costs)


@then('the answer\'s text has "{words}"')
def _(context: Context, words: str) -> None:
    assert words in context.answer.text, context.answer.text


@then("the client is told the stop reason {reason}")
def _(context: Context, reason: str) -> None:
    assert context.message.stop_reason == reason, context.message


@then("each turn begins with the one before it, byte for byte")
def _(context: Context) -> None:
    written = [json.dumps(params["messages"]) for params in context.seen]
    for before, after in pairwise(written):
        assert after.startswith(before[:-1]), (before, after)


@then("the tool was called {count:d} time")
@then("the tool was called {count:d} times")
def _(context: Context, count: int) -> None:
    calls = context.notes.read_text().splitlines()
    assert len(calls) == count, calls


@then("the model's requests have")
def _(context: Context) -> None:
    """Compare what a path leads to, such as `0.messages.0.role` of the first request."""
    check_fields(context, context.seen)


@then('it fails as {name} with "{text}"')
@then('it fails as {name} with ""')
def _(context: Context, name: str, text: str = "") -> None:
    error = context.error
    assert type(error).__name__ == name, repr(error)
    assert error.text == text and error.response.text == text, (error.text, str(error))


@then("the answer is an object of {name}")
def _(context: Context, name: str) -> None:
    parsed = context.answer.parsed_output
    assert isinstance(parsed, getattr(shapes, name)), parsed


@then("the model was told {count:d} times what was wrong")
def _(context: Context, count: int) -> None:
    told = [
        message["content"]
        for message in context.seen[-1]["messages"]
        if message["role"] == "user" and "cannot be used" in str(message["content"])
    ]
    assert len(told) == count and all("JSON" in words for words in told), told


@given('an actor that is asked live, with the tools "{names}"')
@given('an actor that is asked live with {settings:JsonText}, with the tools "{names}"')
def _(context: Context, names: str, settings: Any = None) -> None:
    provider = cb.ClaudeProvider(**(settings or {}))
    context.add_cleanup(provider.close)
    configuration = cb.ActorConfiguration(name="tests/asker", model="claude-haiku-4-5")
    tools = [getattr(toolbox, name) for name in names.split(",")]
    context.actor = cb.Actor(configuration, provider, tools=tools)


@then("the answer took {count:d} turns")
def _(context: Context, count: int) -> None:
    assert context.answer.turns == count, (context.answer.turns, context.answer.text)


@given("a batch provider that does not drive")
def _(context: Context) -> None:
    make_provider(context, drive=False)


@given("its actor has the tool that takes its time")
def _(context: Context) -> None:
    context.notes = context.tmp / "notes.txt"
    context.notes.touch()
    _with_tools(context, [toolbox.slow(context.notes)])


def _stored(context: Context, prompt: str) -> str:
    run = context.provider.store(context.actor.configuration, [prompt])
    context.prompt, context.run_id = prompt, run.id
    return run.id


@when('the run of "{prompt}" is stored, and another provider drives it')
def _(context: Context, prompt: str) -> None:
    run_id = _stored(context, prompt)
    # With its provider goes what this process has of the tool.
    context.provider.close()
    context.run = cb.open_run(run_id, **QUICK)
    context.add_cleanup(context.run.close)
    context.run.provider.resume()
    until(lambda: context.run.status().counts.get(cb.RequestState.CONTINUING))


@when('the run of "{prompt}" is stored, and the tool runs')
def _(context: Context, prompt: str) -> None:
    context.run = context.provider.store(context.actor.configuration, [prompt])
    until(lambda: context.notes.read_text())


@then('the status does not say "{words}"')
def _(context: Context, words: str) -> None:
    assert words not in context.run.status().waiting_for, context.run.status()


@when("the same run is asked again by a provider that has the tool")
def _(context: Context) -> None:
    if "run" in context:
        context.run.close()
    provider = cb.ClaudeBatchProvider(**QUICK)
    context.add_cleanup(provider.close)
    actor = cb.Actor(context.actor.configuration, provider)
    context.results = list(actor.respond_all_sync([context.prompt]))


@then('the run\'s answer has "{words}"')
def _(context: Context, words: str) -> None:
    [result] = context.results
    assert words in result.unwrap().text, result
    with cb.open_run(context.run_id, **QUICK) as run:
        assert run.status().total == 1 and run.status().waiting_for == "", run.status()


DRIVING = """
import sys, claude_batch as cb
with cb.ClaudeBatchProvider(linger=0.3, poll_interval=0.05) as provider:
    provider.resume()
    sys.stdin.read()
"""


@given("another process that drives the ledger")
def _(context: Context) -> None:
    other = programs.start(DRIVING, stdin=subprocess.PIPE)

    def end() -> None:
        assert other.stdin is not None
        other.stdin.close()
        other.wait(60)

    context.add_cleanup(end)
    context.other = other
    until(lambda: _is_driven(), 60)


def _is_driven() -> bool:
    location = os.environ["CLAUDE_BATCH_LEDGER"]
    if not has_ledger(location):
        return False
    ledger = Ledger(location)
    try:
        with ledger.read() as tx:
            workspaces = queries.workspace_ids(tx)
        return any(ledger.has_leader(each) for each in workspaces)
    finally:
        ledger.close()


@then("the other process still drives")
def _(context: Context) -> None:
    context.provider.close()
    assert context.other.poll() is None and _is_driven()


ENDS = """
import os, signal, sys, time
from pathlib import Path

import claude_batch as cb
import toolbox

prompt, notes, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
provider = cb.ClaudeBatchProvider(linger=0.3, poll_interval=0.05)
configuration = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
actor = cb.Actor(configuration, provider, tools=[toolbox.slow(notes)])
print(provider.store(actor.configuration, [prompt]).id)
provider.resume()
while not notes.read_text():
    time.sleep(0.01)
if end == "closes":
    provider.close()
elif end == "is killed":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@when('a program asks "{prompt}", and {ends} while the tool runs')
def _(context: Context, prompt: str, ends: str) -> None:
    context.prompt = prompt
    words = (ENDS, prompt, str(context.notes), ends)
    if ends == "closes":
        done = programs.run(*words)
    else:  # an interpreter of its own: its end is what counts
        path = os.pathsep.join((*sys.path, os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-c", *words],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
    is_killed = ends == "is killed"
    assert done.returncode == (-9 if is_killed else 0) and not done.stderr, done
    context.run_id = done.stdout.strip()
    [finished] = ledger_values(select(tool_calls.c.finished))
    assert (finished is None) == is_killed


def _continuing(context: Context) -> tuple[Engine, Leader]:
    """A conversation whose tool has to run, and the leader of the driver that will run it."""
    with mock.patch.object(Conversations, "look", lambda *_, **__: 60.0):
        until(lambda: context.provider.advance_sync() and _state() == cb.RequestState.CONTINUING)
    engine, workspace = context.provider.engine(), context.provider.session().workspace_id
    with engine.ledger.write() as tx:
        return engine, Leader(workspace, submissions.begin_epoch(tx, workspace))


def _driver(engine: Engine) -> Conversations:
    client = mock.Mock(server_now=engine.ledger.now)
    context = DriverContext(engine.ledger, client, engine.settings)
    return Conversations(context, engine.workbench, lambda: None)


@then("a driver starts its tool only once it has found the retried conversation")
def _(context: Context) -> None:
    engine, leader = _continuing(context)
    driver = _driver(engine)
    workspace = leader.workspace_id
    engine.workbench.most_running = 0
    driver.look(workspace, leader, patient=False)
    context.run.cancel_sync()
    driver.look(workspace, leader, patient=False)
    assert _state() == cb.RequestState.CANCELED, _state()
    context.run.retry_failed_sync(["canceled"])
    assert _state() == cb.RequestState.CONTINUING, _state()
    engine.workbench.most_running = 16
    with mock.patch.object(driver, "_listed_until", float("inf")):
        driver.look(workspace, leader)
    assert not driver.running, driver.running
    driver.look(workspace, leader, patient=False)
    until(lambda: driver.look(workspace, leader) and not driver.running)


@then("a driver that finds its tool started by another one goes on from the result")
@then("a driver that finds its tool started by another one, {fault}, goes on from the result")
def _(context: Context, fault: str = "") -> None:
    engine, leader = _continuing(context)
    workspace = leader.workspace_id
    first, other = _driver(engine), _driver(engine)
    if fault == "which had no thread for it":
        no_thread = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        with mock.patch.object(conversation_driver, "run_call", no_thread):
            assert other.look(workspace, None) and not other.running
        assert first.look(workspace, leader) and first.running == 1, _state()
    else:
        first.look(workspace, leader, starting=False)
        assert other.look(workspace, None) and other.running == 1
    first.look(workspace, leader)
    until(lambda: other.look(workspace, None) and not other.running)
    until(lambda: first.look(workspace, leader) and _state() == cb.RequestState.QUEUED)


def _state() -> cb.RequestState:
    return ledger_values(select(requests.c.state))[0]


@then('it fails as {name} and says "{words}"')
def _(context: Context, name: str, words: str) -> None:
    assert type(context.error).__name__ == name and words in str(context.error), context.error
