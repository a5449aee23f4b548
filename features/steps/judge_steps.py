"""Steps of answers that only the program that asked can judge, while another process drives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import programs
import shapes
from behave import given, then, when
from behave.runner import Context
from pydantic import field_validator
from sqlalchemy import func, select, update
from staging import is_sent, ledger_values, make_provider, start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.ids import new_request_ids
from claude_batch.core.states import RequestState
from claude_batch.ledger import conversations, enqueue, schema, workspaces
from claude_batch.ledger.conversations import Verdict
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import requests, results, verdicts
from claude_batch.lifecycle import answer_judges
from claude_batch.lifecycle.answer_judges import LONGEST_JUDGING

ASKS = """
import asyncio, json, sys, time
import programs
import shapes
import claude_batch as cb
name, settings = sys.argv[1], json.loads(sys.argv[2])
provider = cb.ClaudeBatchProvider(linger=0.3, poll_interval=0.05, **settings)
configuration = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
actor = cb.Actor(configuration, provider)
run = asyncio.run(actor.submit(["prompt 0"], output_format=getattr(shapes, name)))
print(run.id, flush=True)
time.sleep(600)
"""


def _answers(first: str, second: str) -> Any:
    return lambda params: first if len(params["messages"]) == 1 else second


@given("an API whose model first answers {first}, and then {second}")
def _(context: Context, first: str, second: str) -> None:
    start_api(context, responder=_answers(first, second))


@given("an API that takes {seconds:g} seconds for a batch, and then answers {text}")
def _(context: Context, seconds: float, text: str) -> None:
    start_api(context, latency=seconds, responder=_answers(text, text))


@given("its actor has a function that says of the first answer: {words}")
def _(context: Context, words: str) -> None:
    said: list[str | None] = [None, json.loads(words)]
    configuration = context.actor.configuration.with_response_schema(
        {"type": "object"}, lambda _: said.pop()
    )
    context.actor = cb.Actor(configuration, context.provider)


@given("a program that asks for a {name:w} with {settings:JsonObject}")
def _(context: Context, name: str, settings: dict[str, Any]) -> None:
    program = programs.start(
        *(ASKS, name, json.dumps(settings)),
        env={**os.environ, shapes.Considered.FOLDER: str(context.tmp)},
        stdout=subprocess.PIPE,
        text=True,
    )
    context.program, context.shape = program, getattr(shapes, name)

    def end() -> None:
        program.kill()
        program.wait(60)

    context.add_cleanup(end)
    assert program.stdout is not None
    context.run_id = program.stdout.readline().strip()
    assert context.run_id


@when("the program is killed while it judges")
def _(context: Context) -> None:
    until((context.tmp / "begun").exists)
    context.program.kill()


@when("the program is killed while its batch is processed")
def _(context: Context) -> None:
    until(is_sent)
    context.program.kill()
    context.program.wait(60)


@when("the same run is asked for again by a provider with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any]) -> None:
    make_provider(context, **settings)
    _submit(context, 1, context.shape)
    assert context.run.id == context.run_id


@when("a run of {count:d} prompt is submitted for {name:w}")
@when("a run of {count:d} prompts is submitted {own:w} for {name:w}")
@when("a run of {count:d} prompts is submitted for {name:w}")
def _(context: Context, count: int, name: str, own: str = "") -> None:
    os.environ[shapes.Considered.FOLDER] = str(context.tmp)
    _submit(context, count, getattr(shapes, name), of_each=bool(own))


def _submit(context: Context, count: int, shape: type[Any], *, of_each: bool = False) -> None:
    prompts: list[Any] = [f"prompt {number}" for number in range(count)]
    if of_each:
        prompts = [cb.ActorRequest(prompt, output_format=shape) for prompt in prompts]
    whole = None if of_each else shape
    context.run = asyncio.run(context.actor.submit(prompts, output_format=whole))
    context.run_id = context.run.id


@given("a driver that waits {seconds:d} second for a verdict")
def _(context: Context, seconds: int) -> None:
    for name in ("JUDGE_PATIENCE", "LONGEST_JUDGING"):
        patience = mock.patch.object(answer_judges, name, seconds)
        patience.start()
        context.add_cleanup(patience.stop)
    make_provider(context)
    context.provider.resume()


@when("that provider is closed")
def _(context: Context) -> None:
    context.provider.close()


@when("the type Considered has begun")
def _(context: Context) -> None:
    until((context.tmp / "begun").exists)


@when("the other process is killed")
def _(context: Context) -> None:
    context.other.kill()
    context.other.wait(60)


@rule("verdicts are recorded")
def _(context: Context, request: int, sending: int, run: str) -> dict[str, str]:
    ledger = context.ledger
    with contextlib.suppress(_Undone), ledger.write() as tx:
        lane = enqueue.ensure_lane(
            tx, workspaces.ensure_workspace(tx, "http://127.0.0.1:9/", "f"), "v", "", ""
        )
        asked = NewRun(
            kind="run",
            actor="a",
            workspace_id=1,
            mode=BatchProcessingMode(),
            created=1.0,
            process="p",
        )
        run_id = enqueue.begin_run(tx, asked)
        ids = enumerate(new_request_ids(2))
        rows = [NewRequest(identifier, n, None, lane, b"{}") for n, identifier in ids]
        enqueue.add_requests(tx, run_id, rows, created=1.0, due=1.0)
        # The first one's answer is to be judged; the second one was not sent yet.
        waits = {"state": RequestState.CONTINUING, "answered_by": 1}
        tx.execute(update(requests).where(requests.c.seq == 1).values(waits))
        found = Verdict(request, sending, run_id if run == "its" else "run-of-before", "wrong")
        conversations.add_verdicts(tx, [found], process="p", now=2.0)
        recorded = tx.execute(select(verdicts)).first() is not None
        raise _Undone
    return {"recorded": "yes" if recorded else "no"}


class _Undone(Exception):
    """Rolls a transaction back."""


@when("a program that asks for a Stuck closes its provider while it judges")
def _(context: Context) -> None:
    os.environ[shapes.Considered.FOLDER] = str(context.tmp)
    ends = ASKS.replace("time.sleep(600)", "sys.stdin.read(); provider.close(); print(flush=True)")
    path = os.pathsep.join(sys.path)
    context.program = subprocess.Popen(
        [sys.executable, "-c", ends, "Stuck", json.dumps({"validation_attempts": 2})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    context.add_cleanup(context.program.kill)
    context.program.stdout.readline()
    until((context.tmp / "begun").exists)
    context.program.stdin.close()


@then("the program has closed it within {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    begun = time.monotonic()
    assert context.program.stdout.readline() == b"\n"
    assert time.monotonic() - begun < seconds


@then("the program ends without waiting for the function")
def _(context: Context) -> None:
    # What still waits for the function, waits for so long.
    assert context.program.wait(LONGEST_JUDGING / 2) == 0


@when("the actor is asked for a {name:w} on another thread")
def _(context: Context, name: str) -> None:
    os.environ[shapes.Considered.FOLDER] = str(context.tmp)
    shape = getattr(shapes, name)
    context.pool = ThreadPoolExecutor(2)
    context.add_cleanup(context.pool.shutdown)
    context.add_cleanup((context.tmp / "decided").touch)
    ask = context.actor.respond_sync
    context.asked = context.pool.submit(ask, "an invoice", output_format=shape)


@then("the actor answers another call meanwhile")
def _(context: Context) -> None:
    assert context.pool.submit(context.actor.respond_sync, "hello").result(10.0).text


@then("that thread has its answer")
def _(context: Context) -> None:
    assert isinstance(context.asked.result(30.0).parsed_output, shapes.Considered)


@given("no other process")
def _(_context: Context) -> None: ...


@when("{count:d} prompts are asked for a type whose validator asks for a Picky")
def _(context: Context, count: int) -> None:
    numbers = itertools.count()

    class Asking(shapes.Flat):
        @field_validator("number")
        @classmethod
        def _ask(cls, number: str) -> str:
            prompt = f"Is this right? {next(numbers)}"
            return context.actor.respond_sync(
                prompt, output_format=shapes.Picky
            ).parsed_output.number

    async def ask() -> list[Any]:
        prompts = [f"prompt {number}" for number in range(count)]
        calls = (context.actor.respond(prompt, output_format=Asking) for prompt in prompts)
        return await asyncio.gather(*calls, return_exceptions=True)

    context.answers = asyncio.run(ask())


@then("{count:d} calls are answered")
def _(context: Context, count: int) -> None:
    found = [each for each in context.answers if isinstance(each, cb.ActorResponse)]
    assert len(found) == count, context.answers


@when("the type Considered decides")
def _(context: Context) -> None:
    (context.tmp / "decided").touch()


@when("the batch ends")
def _(context: Context) -> None:
    context.api.advance_clock(7200.0)


@then("the program's run is answered, in {count:d} turn")
def _(context: Context, count: int) -> None:
    state = select(requests.c.state).where(requests.c.run_id == context.run_id)
    until(lambda: ledger_values(state) == [RequestState.SUCCEEDED])
    answers = ledger_values(select(func.count()).select_from(results))
    assert answers == [count], answers


@then("the batch's answer was asked for again")
def _(context: Context) -> None:
    until(lambda: len(context.api.billing()) == 2 or context.api.advance_clock(7200.0))
    assert ledger_values(select(schema.conversations.c.rejected)) == [1]
