"""Steps of the batch provider and the lifecycle, against a real sandbox over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
import time
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import parse
import shapes
from behave import given, register_type, then, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import (
    QUICK,
    ledger_values,
    make_provider,
    run_of_a_process_that_dies,
    start_api,
    until,
)
from tables import check_fields, rule

import claude_batch as cb
from claude_batch.ledger.schema import batches as batch_table
from claude_batch.ledger.schema import requests as request_table
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
@when("the API has the faults")
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
@when('"{prompt}" is asked with the key "{key}" and {options:JsonObject}')
def _(context: Context, prompt: str, key: str, options: dict[str, Any] | None = None) -> None:
    try:
        request = cb.ActorRequest(prompt, options=options)
        context.outcomes = [context.actor.respond_sync(request, key=key)]
    except cb.ActorError as error:
        context.outcomes = [error]


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
    """`again`, `anew`, or `with` options of each request."""
    context.first = context.run
    options = json.loads(again.removeprefix("with ")) if again.startswith("with ") else None
    requests = [replace(cb.ActorRequest.of(each), options=options) for each in context.prompts]
    context.run = asyncio.run(context.actor.submit(requests, new=again == "anew"))


def _asked(context: Context) -> list[Any]:
    """The prompts of the step's table, with keys if it has them."""
    if "key" not in context.table.headings:
        return [row["prompt"] for row in context.table]
    return [cb.ActorRequest(row["prompt"], key=row["key"] or None) for row in context.table]


@when("a run of these prompts is submitted")
def _(context: Context) -> None:
    context.prompts = _asked(context)
    try:
        context.run = asyncio.run(context.actor.submit(context.prompts))
        context.runs, context.run_id = [context.run], context.run.id
        context.error = None
    except cb.ActorError as error:
        context.error = error


@when("a run of these prompts is stored")
def _(context: Context) -> None:
    context.prompts = _asked(context)
    context.run = context.provider.store(context.actor.configuration, context.prompts)
    context.run_id = context.run.id


@when("these requests are asked, {how}")
def _(context: Context, how: str) -> None:
    requests = _asked(context)

    async def ask() -> list[cb.ActorResult]:
        results = context.actor.respond_all(requests, ordered=how == "in order")
        return [result async for result in results]

    if how == "synchronously":
        context.results = list(context.actor.respond_all_sync(requests))
    else:
        context.results = asyncio.run(ask())


@rule("no request at all gives no result,")
def _(provider: str, given_as: str) -> dict[str, int]:
    batched = provider == "batch"
    configuration = cb.ActorConfiguration(
        provider="anthropic", model="claude-haiku-4-5", batch_processing=batched
    )

    async def nothing() -> Any:
        for each in ():
            yield each

    with cb.ClaudeBatchProvider(**QUICK) if batched else cb.ClaudeProvider() as made:
        actor = cb.Actor(configuration, made)

        async def read() -> list[cb.ActorResult]:
            requests: Any = [] if given_as == "a list" else nothing()
            return [result async for result in actor.respond_all(requests)]

        if "synchronously" in given_as:
            requests: Any = [] if given_as.startswith("a list") else iter(())
            return {"results": len(list(actor.respond_all_sync(requests)))}
        return {"results": len(asyncio.run(read()))}


@when("the provider is closed")
def _(context: Context) -> None:
    context.provider.close()


@when("another provider opens the run")
@when("another provider with {settings:JsonObject} opens the run")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    make_provider(context, **(settings or {}))
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
@when("the results are read in order, as {name}")
def _(context: Context, name: str = "") -> None:
    shape = {"output_format": getattr(shapes, name)} if name else {}

    async def read() -> list[cb.ActorResult]:
        return [result async for result in context.run.results(**shape)]

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


@when("a process with {settings:JsonObject} asks a run of {count:d} {kind:w}, and dies at {point}")
def _(context: Context, settings: dict[str, Any], count: int, kind: str, point: str) -> None:
    converses = kind == "conversations"
    asked = "Look at {} [[sandbox:tools]]" if converses else "prompt {}"
    context.prompts = [asked.format(n) for n in range(count)]
    tools = ["toolbox:weather"] if converses else []
    context.run_id = run_of_a_process_that_dies(point, context.prompts, tools=tools, **settings)


@when("this process opens that run")
def _(context: Context) -> None:
    make_provider(context)
    context.run = context.provider.open_run(context.run_id)


@when("this process opens that run and drives")
def _(context: Context) -> None:
    context.execute_steps("When this process opens that run")
    context.provider.resume()


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


@then("the error is a {name:w}")
def _(context: Context, name: str) -> None:
    assert isinstance(context.error, getattr(cb, name)), repr(context.error)


@then("there is no error")
def _(context: Context) -> None:
    assert context.error is None, context.error


@then("the error names the run and its batch")
def _(context: Context) -> None:
    assert context.error.run_id.startswith("run-")
    assert len(context.error.batch_ids) == 1 and context.error.batch_ids[0].startswith("msgbatch_")


@then("the results by place have")
def _(context: Context) -> None:
    """Compare what a path leads to, such as `0.response.text` of the first request's result."""
    check_fields(context, sorted(context.results, key=lambda result: result.position))


@then("there are {count:d} results in the order of the prompts")
def _(context: Context, count: int) -> None:
    assert [result.position for result in context.results] == list(range(count))
    for number, result in enumerate(context.results):
        assert result.ok, result.error
        assert f"prompt {number}" in result.unwrap().text, result.unwrap().text


@then("there are {count:d} results, each once")
def _(context: Context, count: int) -> None:
    assert sorted(result.position for result in context.results) == list(range(count))


@then("{good:d} result is an answer and {bad:d} are errors")
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
    until(lambda: context.api.billing_summary()["batches"] >= count)
    seen = context.api.billing_summary()["batches"]
    assert seen == count, seen


@then("the API has processed {count:d} requests in all")
def _(context: Context, count: int) -> None:
    """Equal ones among them: those are requests of their own."""
    summary = context.api.billing_summary()
    assert summary["requests"] == count, summary


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


def calls_of(context: Context, method: str, path: str) -> list[Any]:
    """Return the API's calls of a method, and of a path with `*` for anything."""
    log = context.api.log()
    return [each for each in log if each["method"] == method and fnmatchcase(each["path"], path)]


@then("the API was called {count:d} times by {method} {path}")
def _(context: Context, count: int, method: str, path: str) -> None:
    assert len(calls_of(context, method, path)) == count, context.api.log()


@then("the API was called at most {count:d} times by {method} {path}")
def _(context: Context, count: int, method: str, path: str) -> None:
    seen = calls_of(context, method, path)
    assert len(seen) <= count, len(seen)


@then("the API was called at least {count:d} times by {method} {path}")
def _(context: Context, count: int, method: str, path: str) -> None:
    seen = calls_of(context, method, path)
    assert len(seen) >= count, [(c["method"], c["path"], c.get("status")) for c in seen]


def statuses() -> list[cb.RunStatus]:
    from claude_batch.providers.status import newest_statuses

    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        return ledger.query(lambda tx: newest_statuses(ledger, tx))
    finally:
        ledger.close()


def status_of(run_id: str) -> cb.RunStatus:
    return next(status for status in statuses() if status.run_id == run_id)


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


@then("the ledger holds {count:d} requests")
def _(context: Context, count: int) -> None:
    def held() -> int:
        return ledger_values(select(func.count()).select_from(request_table))[0]

    until(lambda: held() == count)  # a call that times out may be stored a moment later
    time.sleep(0.1)
    assert held() == count, held()


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
