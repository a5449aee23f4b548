"""Steps of the batch provider and the lifecycle, against a real sandbox over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import parse
from behave import given, register_type, then, when
from behave.runner import Context
from sqlalchemy import select
from staging import (
    KEY,
    QUICK,
    is_sent,
    make_provider,
    run_of_a_process_that_dies,
    start_api,
    until,
)

import claude_batch as cb
from claude_batch.ledger.schema import batches as batch_table
from claude_batch.ledger.schema import strange_lines
from claude_batch.ledger.store import Ledger


@parse.with_pattern(r"\{.*\}")
def _json_object(text: str) -> Any:
    return json.loads(text)


register_type(JsonObject=_json_object)


@given("an API")
def _(context: Context) -> None:
    start_api(context)


@given("an API that takes {seconds:g} seconds for a batch")
def _(context: Context, seconds: float) -> None:
    start_api(context, latency=seconds)


@given("an API with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any]) -> None:
    start_api(context, **settings)


@given("the API has the faults")
def _(context: Context) -> None:
    context.api.set_faults(json.loads(context.text))


@when("the API has no faults any more")
def _(context: Context) -> None:
    context.api.clear_faults()


@given("a batch provider")
def _(context: Context) -> None:
    make_provider(context)


@given("a batch provider with {settings}")
def _(context: Context, settings: str) -> None:
    make_provider(context, **json.loads(settings))


# Asking


@when("{count:d} prompts are asked at once")
@when("{count:d} prompts are asked, one every {pause:g} seconds")
def _(context: Context, count: int, pause: float = 0.0) -> None:
    async def ask_one(number: int) -> Any:
        await asyncio.sleep(number * pause)
        return await context.actor.respond(f"prompt {number}")

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(ask_one, range(count)), return_exceptions=True)

    context.outcomes = asyncio.run(ask())


@when("the prompts are asked at once")
def _(context: Context) -> None:
    prompts = [row["prompt"] for row in context.table]

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(context.actor.respond(prompt) for prompt in prompts), return_exceptions=True
        )

    context.outcomes = asyncio.run(ask())


@when("{count:d} prompts are asked by each of {threads:d} threads with loops of their own")
def _(context: Context, count: int, threads: int) -> None:
    outcomes: list[Any] = []
    start = threading.Barrier(threads)

    def work(name: int) -> None:
        async def ask() -> list[Any]:
            return await asyncio.gather(
                *(context.actor.respond(f"prompt {n} of {name}") for n in range(count))
            )

        start.wait()
        outcomes.extend(asyncio.run(ask()))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    context.outcomes = outcomes


@when('"{prompt}" is asked with the key "{key}"')
def _(context: Context, prompt: str, key: str) -> None:
    try:
        context.outcomes = [context.actor.respond_sync(prompt, key=key)]
    except cb.ActorError as error:
        context.outcomes = [error]


@when("a prompt is asked synchronously inside a running event loop")
def _(context: Context) -> None:
    async def ask() -> cb.ActorResponse:
        return context.actor.respond_sync("sync inside async")

    context.outcomes = [asyncio.run(ask())]


@when("a waiting call is cancelled by its caller, once it is sent")
def _(context: Context) -> None:
    async def ask() -> None:
        task = asyncio.create_task(context.actor.respond("given up"))
        await asyncio.sleep(0)
        await asyncio.to_thread(until, is_sent)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            context.was_cancelled = True

    asyncio.run(ask())


@then("the caller sees its own cancellation, and the request is answered in the ledger")
def _(context: Context) -> None:
    assert context.was_cancelled
    [status] = statuses()
    until(lambda: status_of(status.run_id).counts.get(cb.RequestState.SUCCEEDED) == 1)


@when("a run of {count:d} prompts is submitted")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    context.run = asyncio.run(context.actor.submit(context.prompts))


@when("the same run is submitted {again}")
def _(context: Context, again: str) -> None:
    context.first = context.run
    context.run = asyncio.run(context.actor.submit(context.prompts, new=again == "anew"))


@when("a run of these prompts is submitted")
def _(context: Context) -> None:
    context.prompts = [row["prompt"] for row in context.table]
    try:
        context.run = asyncio.run(context.actor.submit(context.prompts))
        context.runs, context.run_id = [context.run], context.run.id
        context.error = None
    except cb.ActorError as error:
        context.error = error


@when("a run of these prompts is stored")
def _(context: Context) -> None:
    context.prompts = [row["prompt"] for row in context.table]
    context.run = context.provider.store(context.actor.configuration, context.prompts)
    context.run_id = context.run.id


@when("a run with the keys {keys} is submitted")
def _(context: Context, keys: str) -> None:
    requests = [cb.ActorRequest("the same", key=key) for key in keys.split()]
    try:
        context.run = context.actor.submit_sync(requests)
        context.error = None
    except cb.ActorError as error:
        context.error = error


@then("respond_all of no request gives nothing: {provider}, {how}")
def _(context: Context, provider: str, how: str) -> None:
    batched = provider == "batch"
    configuration = cb.ActorConfiguration(
        name="tests/asker",
        provider="anthropic",
        model="claude-haiku-4-5",
        batch_processing=batched,
    )
    made = cb.ClaudeBatchProvider(**QUICK) if batched else cb.ClaudeProvider()
    context.add_cleanup(made.close)
    actor = cb.Actor(configuration, made)

    async def nothing() -> Any:
        for each in ():
            yield each

    async def read() -> list[cb.ActorResult]:
        requests: Any = [] if how == "a list" else nothing()
        return [result async for result in actor.respond_all(requests)]

    if "synchronously" in how:
        requests: Any = [] if how.startswith("a list") else (each for each in ())
        assert list(actor.respond_all_sync(requests)) == []
    else:
        assert asyncio.run(read()) == []


@when("requests without keys are asked, {how}")
def _(context: Context, how: str) -> None:
    prompts = [row["prompt"] for row in context.table]

    async def read() -> list[cb.ActorResult]:
        results = context.actor.respond_all(prompts, ordered=how == "in order")
        return [result async for result in results]

    if how == "synchronously":
        context.results = list(context.actor.respond_all_sync(prompts))
    else:
        context.results = asyncio.run(read())


@then("the errors at the positions 2 and 3 name their positions")
def _(context: Context) -> None:
    results = sorted(context.results, key=lambda result: result.position)
    assert [result.position for result in results] == [0, 1, 2, 3], results
    for result in results[2:]:
        words = f"request at position {result.position} in batch"
        assert words in str(result.error), str(result.error)
        assert isinstance(result.error, cb.BatchRequestError), result
    assert results[2].error.error_type == "invalid_request_error", results[2]


@when("an empty run is submitted")
def _(context: Context) -> None:
    try:
        context.actor.submit_sync([])
        context.error = None
    except cb.ActorError as error:
        context.error = error


@when("the provider is closed")
def _(context: Context) -> None:
    context.provider.close()


@when("another provider opens the run")
def _(context: Context) -> None:
    make_provider(context)
    context.run = context.provider.open_run(context.run.id)


@when("the run is waited for")
def _(context: Context) -> None:
    try:
        context.status = asyncio.run(context.run.wait())
        context.error = None
    except cb.ActorError as error:
        context.error = error


@when("the run is cancelled")
def _(context: Context) -> None:
    asyncio.run(context.run.cancel())


@when("everything that is due is advanced until the run is finished")
def _(context: Context) -> None:
    def once() -> bool:
        assert context.provider.advance_sync()
        return context.run.status().finished

    until(once)


@when("the results are read in order")
def _(context: Context) -> None:
    async def read() -> list[cb.ActorResult]:
        return [result async for result in context.run.results()]

    context.results = asyncio.run(read())


@when("the results are read as they come")
def _(context: Context) -> None:
    context.results = list(context.run.results_sync(ordered=False))


@when("{count:d} prompts are answered by respond_all, {order}")
def _(context: Context, count: int, order: str) -> None:
    async def prompts() -> Any:
        for n in range(count):
            yield f"prompt {n}"

    async def read() -> list[cb.ActorResult]:
        answers = context.actor.respond_all(prompts(), ordered=order == "in order")
        return [result async for result in answers]

    context.results = asyncio.run(read())


@when("a process of its own submits a run of {count:d} prompts and is killed at once")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    script = (
        "import claude_batch as cb, os, signal\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "p = cb.ClaudeBatchProvider(linger=0.3, poll_interval=0.05)\n"
        f"run = cb.Actor(c, p).submit_sync(['prompt %d' % n for n in range({count})])\n"
        "print(run.id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9, done.stderr
    context.run_id = done.stdout.strip()


@when("a process with {settings:JsonObject} asks a run of {count:d} prompts, and dies at {point}")
def _(context: Context, settings: dict[str, Any], count: int, point: str) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    context.run_id = run_of_a_process_that_dies(point, context.prompts, **settings)


@when("this process opens that run")
def _(context: Context) -> None:
    make_provider(context)
    context.run = context.provider.open_run(context.run_id)


@when("a process of its own asks a prompt on the same ledger")
def _(context: Context) -> None:
    script = (
        "import claude_batch as cb\n"
        "c = cb.ActorConfiguration(name='tests/asker', provider='anthropic',"
        " model='claude-haiku-4-5', batch_processing=True)\n"
        "p = cb.ClaudeBatchProvider(linger=0.3, poll_interval=0.05)\n"
        "print(cb.Actor(c, p).respond_sync('from elsewhere').text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    context.elsewhere = done.stdout


# What comes back


@then("all {count:d} are answered")
def _(context: Context, count: int) -> None:
    failed = [o for o in context.outcomes if not isinstance(o, cb.ActorResponse)]
    assert not failed, failed[:3]
    assert len(context.outcomes) == count, len(context.outcomes)
    assert all(outcome.text for outcome in context.outcomes)


@then("every call fails with {name}")
def _(context: Context, name: str) -> None:
    kind = getattr(cb, name)
    assert context.outcomes
    wrong = [o for o in context.outcomes if not isinstance(o, kind)]
    assert not wrong, wrong[:3]
    context.error = context.outcomes[0]


@then("outcome {number:d} is an answer")
def _(context: Context, number: int) -> None:
    outcome = context.outcomes[number - 1]
    assert isinstance(outcome, cb.ActorResponse), outcome
    assert outcome.batch_id and outcome.usage.output_tokens > 0
    assert outcome.usage.service_tier == "batch"


@then("outcome {number:d} is a BatchRequestError that was {outcome} with {error_type}")
def _(context: Context, number: int, outcome: str, error_type: str) -> None:
    error = context.outcomes[number - 1]
    assert isinstance(error, cb.BatchRequestError), error
    assert error.outcome == outcome, error.outcome
    assert str(error.error_type) == error_type, error.error_type
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.outcome == outcome


@then("the error is a {name} that says")
def _(context: Context, name: str) -> None:
    assert isinstance(context.error, getattr(cb, name)), repr(context.error)
    for word in context.text.split("\n"):
        assert word.strip() in str(context.error), str(context.error)


@then("the error is a {name}")
def _(context: Context, name: str) -> None:
    assert isinstance(context.error, getattr(cb, name)), repr(context.error)


@then("there is no error")
def _(context: Context) -> None:
    assert context.error is None, context.error


@then("the error names the run and its batch")
def _(context: Context) -> None:
    assert context.error.run_id.startswith("run-")
    assert len(context.error.batch_ids) == 1 and context.error.batch_ids[0].startswith("msgbatch_")


@then("there are {count:d} results in the order of the prompts")
def _(context: Context, count: int) -> None:
    assert [result.position for result in context.results] == list(range(count))
    for number, result in enumerate(context.results):
        assert result.ok, result.error
        assert f"prompt {number}" in result.unwrap().text, result.unwrap().text


@then("there are {count:d} results, each once")
def _(context: Context, count: int) -> None:
    assert sorted(result.position for result in context.results) == list(range(count))


@then("{good:d} results are answers and {bad:d} are errors")
def _(context: Context, good: int, bad: int) -> None:
    seen = Counter(result.ok for result in context.results)
    assert (seen[True], seen[False]) == (good, bad), seen


@then("result {number:d} failed with {name:w}")
def _(context: Context, number: int, name: str) -> None:
    result = context.results[number - 1]
    assert isinstance(result.error, getattr(cb, name)), result
    context.error = result.error


@then("it is {which} run")
def _(context: Context, which: str) -> None:
    assert (context.run.id == context.first.id) == (which == "the same"), which


# What the API and the ledger saw


@then("the API has seen {count:d} batch")
@then("the API has seen {count:d} batches")
def _(context: Context, count: int) -> None:
    seen = context.api.billing_summary()["batches"]
    assert seen == count, seen


@then("the API has seen {least:d} batches or more")
def _(context: Context, least: int) -> None:
    seen = context.api.billing_summary()["batches"]
    assert seen >= least, seen


@then("the API has processed {count:d} requests, none twice")
def _(context: Context, count: int) -> None:
    until(lambda: context.api.billing_summary()["requests"] >= count)
    summary = context.api.billing_summary()
    assert summary["requests"] == count, summary
    assert summary["processed_more_than_once"] == 0, summary


@then("the API has been paid {count:d} times, never twice for the same")
def _(context: Context, count: int) -> None:
    summary = context.api.billing_summary()
    assert summary["paid"] == count, summary
    assert summary["paid_more_than_once"] == 0, summary


@then("the API was called {count:d} times by {method} {path}")
def _(context: Context, count: int, method: str, path: str) -> None:
    calls = [(call["method"], call["path"]) for call in context.api.log()]
    seen = [call for call in calls if call[0] == method and fnmatchcase(call[1], path)]
    assert len(seen) == count, calls


@then("the API was called at least {count:d} times by {method} {path}")
def _(context: Context, count: int, method: str, path: str) -> None:
    seen = [c for c in context.api.log() if (c["method"], c["path"]) == (method, path)]
    assert len(seen) >= count, [(c["method"], c["path"], c.get("status")) for c in seen]


@then("before each create the newest batches were listed")
def _(context: Context) -> None:
    calls = [(c["method"], c["path"]) for c in context.api.log()]
    creates = [n for n, call in enumerate(calls) if call == ("POST", "/v1/messages/batches")]
    assert creates
    for place in creates:
        assert ("GET", "/v1/messages/batches") in calls[max(0, place - 2) : place], calls


def statuses() -> list[cb.RunStatus]:
    from claude_batch.providers.status import all_statuses

    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        return all_statuses(ledger)
    finally:
        ledger.close()


def status_of(run_id: str) -> cb.RunStatus:
    return next(status for status in statuses() if status.run_id == run_id)


@then('the run\'s batches have the note "{note}"')
def _(context: Context, note: str) -> None:
    assert {batch.note for batch in context.run.status().batches} == {note}


@then("the status shows {count:d} requests {state}")
def _(context: Context, count: int, state: str) -> None:
    until(lambda: context.run.status().counts.get(cb.RequestState(state)) == count)


@then("the run's state becomes {state}")
def _(context: Context, state: str) -> None:
    until(lambda: context.run.status().state == state)


@then("a batch of the run becomes {state}")
def _(context: Context, state: str) -> None:
    until(lambda: state in [b.state for b in context.run.status().batches])


@then('the status says "{words}"')
def _(context: Context, words: str) -> None:
    until(lambda: words in context.run.status().waiting_for)
    json.dumps(context.run.status().to_dict())


@then("the ledger keeps {count:d} strange line")
@then("the ledger keeps {count:d} strange lines")
def _(context: Context, count: int) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.read() as tx:
        kept = tx.execute(select(strange_lines)).all()
    ledger.close()
    assert len(kept) == count, kept
    assert context.run.status().strange_lines == count


@then("no batch was posted more than once")
def _(context: Context) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.read() as tx:
        posts = [row.posts for row in tx.execute(select(batch_table.c.posts))]
    ledger.close()
    assert posts and max(posts) == 1, posts


@then("the key is nowhere in the ledger's files")
def _(context: Context) -> None:
    folder = context.tmp
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


@then("for 1 second the API is called at most {count:d} times")
def _(context: Context, count: int) -> None:
    # Nothing to wait for: that nothing happens can only be seen by looking for a while.
    time.sleep(1.0)
    assert len(context.api.log()) <= count, len(context.api.log())
