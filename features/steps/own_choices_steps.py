"""Steps of calls, runs and requests that decide for themselves, and of results by outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import shapes
from behave import given, then, when
from behave.runner import Context
from opening_steps import engines
from sqlalchemy import func, select
from staging import QUICK, ledger_values, make_provider
from tables import rule

import claude_batch as cb
from claude_batch.ledger.schema import budgets, requests, runs
from claude_batch.ledger.store import Ledger
from claude_batch.providers import result_cursor, run

YAML = "name: tests/asker\nprovider: anthropic\nmodel: claude-haiku-4-5\n"


def loaded(context: Context, *, batched: bool) -> cb.Actor:
    path = Path(context.tmp / f"actor-{batched}.yaml")
    path.write_text(YAML + f"batch_processing: {str(batched).lower()}\n")
    actor = cb.load_actor(path, **QUICK)
    context.add_cleanup(actor.close)
    return actor


def handed_over(context: Context) -> cb.Actor:
    provider = cb.ClaudeProvider()
    context.add_cleanup(provider.close)
    return cb.Actor(cb.ActorConfiguration(name="tests/asker", model="claude-haiku-4-5"), provider)


async def collected(results: AsyncIterator[cb.ActorResult]) -> list[cb.ActorResult]:
    return [result async for result in results]


@rule("calls with settings of their own end")
def _(context: Context, actor: str, settings: dict[str, Any], how: str) -> cb.ActorResponse:
    asked = (
        handed_over(context)
        if actor == "handed over"
        else loaded(context, batched=actor == "in batches")
    )
    # A prompt of its own, so that no row takes over what another one has asked.
    context.rows = context.rows + 1 if "rows" in context else 1
    prompts = [f"row {context.rows}"]

    async def block() -> list[cb.ActorResult]:
        async with asked.run(prompts, **settings) as found:
            return [result async for result in found]

    async def submitted() -> list[cb.ActorResult]:
        return await collected((await asked.submit(prompts, **settings)).results())

    ways: dict[str, Callable[[], Any]] = {
        "awaited": lambda: asyncio.run(asked.respond(prompts[0], **settings)),
        "synchronously": lambda: asked.respond_sync(prompts[0], **settings),
        "many at once": lambda: asyncio.run(collected(asked.respond_all(prompts, **settings))),
        "many at once synchronously": lambda: list(asked.respond_all_sync(prompts, **settings)),
        "submitted": lambda: asyncio.run(submitted()),
        "submitted synchronously": lambda: list(
            asked.submit_sync(prompts, **settings).results_sync()
        ),
        "as a block": lambda: asyncio.run(block()),
    }
    found = ways[how]()
    return found[0].unwrap() if isinstance(found, list) else found


@when("{count:d} prompts are asked with {settings:JsonObject}")
def _(context: Context, count: int, settings: dict[str, Any]) -> None:
    async def ask() -> list[Any]:
        prompts = (f"{number} with {settings}" for number in range(count))
        return await asyncio.gather(*(context.actor.respond(each, **settings) for each in prompts))

    context.outcomes = asyncio.run(ask())


@then("the runs of the ledger have these requests, budgets and deadlines")
def _(context: Context) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with contextlib.closing(ledger), ledger.read() as tx:
        found = tx.execute(
            select(runs.c.request_count, budgets.c.amount, runs.c.deadline - runs.c.created)
            .outerjoin(budgets, budgets.c.name == runs.c.id)
            .where(runs.c.request_count > 0)
            .order_by(runs.c.request_count)
        ).all()
    facts = [
        [str(count), str((amount or 0) / 1e9), str(round((left or 0) / 3600))]
        for count, amount, left in found
    ]
    assert facts == [list(row) for row in context.table], facts


@when("a call with a document and a budget of its own is made")
def _(context: Context) -> None:
    request = cb.ActorRequest("What does it say?", documents=[b"a text of a few words"])
    context.outcomes = [context.actor.respond_sync(request, budget_usd=1)]


@when("a run is submitted with {first:JsonObject}, then with {second:JsonObject}")
def _(context: Context, first: dict[str, Any], second: dict[str, Any]) -> None:
    one = context.actor.submit_sync(["a", "b"], **first)
    assert context.actor.submit_sync(["a", "b"], **second).id == one.id


@then("no request of it is live")
def _(context: Context) -> None:
    query = select(func.count()).select_from(requests).where(requests.c.live.is_not(None))
    assert ledger_values(query) == [0]


@when("an actor without batches makes a call in a batch, and is closed")
def _(context: Context) -> None:
    with loaded(context, batched=False) as actor:
        assert actor.respond_sync("live").via == "live" and engines() == 0
        assert actor.respond_sync("in a batch", mode="batch").via == "batch" and engines() == 1
    context.actor = actor


@then("no engine runs, and none of its providers is open")
def _(context: Context) -> None:
    assert engines() == 0
    assert context.actor.provider.closed


# Requests that differ


DIFFERENT: list[cb.ActorRequest] = [
    cb.ActorRequest("as the actor", key="plain"),
    cb.ActorRequest(
        "an invoice",
        key="all",
        model="claude-opus-5-5",
        options={"max_tokens": 77, "system": "Be brief."},
        output_format=shapes.Flat,
        documents=[b"what it is about"],
    ),
    cb.ActorRequest("warm", key="options", options={"temperature": 0.5, "stop_sequences": ["."]}),
    cb.ActorRequest("a schema", key="schema", output_format=shapes.Flat.model_json_schema()),
    cb.ActorRequest("another invoice", key="again", output_format=shapes.Flat),
    cb.ActorRequest(
        params={"messages": [{"role": "user", "content": "raw"}]},
        key="raw",
        output_format=shapes.Flat,
    ),
]


@when("requests that differ in all this are asked, {how}")
def _(context: Context, how: str) -> None:
    actor: cb.Actor = context.actor
    match how:
        case "many at once":
            context.results = asyncio.run(collected(actor.respond_all(DIFFERENT)))
        case "many at once synchronously":
            context.results = list(actor.respond_all_sync(DIFFERENT))
        case "one by one":
            context.results = [
                cb.ActorResult(key=each.key, position=at, response=actor.respond_sync(each))
                for at, each in enumerate(DIFFERENT)
            ]
        case _:
            raise AssertionError(how)


@then("each has its own model, options, document and format in what the API was sent")
def _(context: Context) -> None:
    seen = {_prompt(params): params for params in context.seen}
    assert len(seen) == len(DIFFERENT), seen
    told = {
        name: [params.get(name) for params in map(seen.__getitem__, seen)]
        for name in ("model", "max_tokens", "system", "temperature")
    }
    assert sorted(told["model"]) == ["claude-haiku-4-5"] * 5 + ["claude-opus-5-5"], told
    invoice = seen["an invoice"]
    assert invoice["max_tokens"] == 77 and invoice["system"] == "Be brief."
    assert invoice["messages"][0]["content"][0]["type"] == "document"
    assert "document" not in json.dumps(seen["another invoice"])
    assert seen["warm"]["temperature"] == 0.5 and seen["warm"]["stop_sequences"] == ["."]
    formatted = {prompt for prompt, params in seen.items() if "output_config" in params}
    assert formatted == {"an invoice", "a schema", "another invoice", "raw"}, formatted


def _prompt(params: dict[str, Any]) -> str:
    content: Any = params["messages"][0]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


@then("each answer is in its own format")
def _(context: Context) -> None:
    by_key = {result.key: result.unwrap() for result in context.results}
    for key in ("all", "again", "raw"):
        assert isinstance(by_key[key].parsed_output, shapes.Flat), by_key[key].text
    assert by_key["schema"].parsed_output["total"] == 1.0, by_key["schema"].text
    assert by_key["all"].model == "claude-opus-5-5"


@when("a run is asked in which one request has a format that its answer does not have")
def _(context: Context) -> None:
    asked = [
        cb.ActorRequest("a", output_format=shapes.Flat),
        cb.ActorRequest("b", output_format=shapes.Picky),
        cb.ActorRequest("c"),
    ]
    context.results = list(context.actor.respond_all_sync(asked))


@then("that request alone has failed, with an OutputValidationError")
def _(context: Context) -> None:
    errors = [type(result.error) for result in context.results]
    assert errors == [type(None), cb.OutputValidationError, type(None)], errors


@when("a request with a format of its own is asked in vain twice with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any]) -> None:
    request = cb.ActorRequest("invoice [[sandbox:invalid:2]]", output_format=shapes.Flat)
    context.single = context.actor.respond_sync(request, **settings)
    [result] = context.actor.respond_all_sync([request], **settings)
    context.many = result.unwrap()


@then("its answer took {count:d} turns, alone and in a run")
def _(context: Context, count: int) -> None:
    for answer in (context.single, context.many):
        assert answer.turns == count and isinstance(answer.parsed_output, shapes.Flat), answer


# Results by outcome


def positions(outcomes: Any) -> dict[str, list[int]]:
    return {
        str(outcome): [result.position for result in group] for outcome, group in outcomes.items()
    }


@then("by outcome the run has")
def _(context: Context) -> None:
    outcomes = context.run.by_outcome()
    expected = {row["outcome"]: json.loads(row["positions"]) for row in context.table}
    assert positions(outcomes) == expected == positions(outcomes), positions(outcomes)
    for row in context.table:
        group = outcomes[row["outcome"]]
        assert len(group) == int(row["count"]) and row["outcome"] in outcomes
        found = asyncio.run(collected(aiter(group)))
        assert [result.position for result in found] == expected[row["outcome"]]
        assert all(result.ok == (row["outcome"] == "succeeded") for result in found)
    context.expected = expected


@then("an outcome that does not occur is an empty group, and other words are refused")
def _(context: Context) -> None:
    outcomes = context.run.by_outcome()
    assert len(outcomes["lost"]) == 0 and list(outcomes[cb.RequestState.LOST]) == []
    assert "lost" not in outcomes
    for word in ("queued", "faild"):
        try:
            outcomes[word]
        except KeyError as error:
            assert "the outcomes are: succeeded, errored," in str(error), error
        else:
            raise AssertionError(f"there is a group of {word}")


@then("another process finds the same groups")
def _(context: Context) -> None:
    with cb.open_run(context.run.id) as again:
        assert positions(again.by_outcome()) == context.expected


@then("by outcome the run has nothing yet")
def _(context: Context) -> None:
    outcomes = context.run.by_outcome()
    assert len(outcomes) == 0 and dict(outcomes) == {} and len(outcomes["succeeded"]) == 0


class Louder(cb.Middleware):
    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        message = json.loads(response.raw)
        message["content"] = [{"type": "text", "text": "!"}]
        return cb.ActorResponse(json.dumps(message).encode(), batch_id=response.batch_id)


@given("a batch provider that makes each answer louder")
def _(context: Context) -> None:
    make_provider(context, middleware=[Louder()])


@then("the {count:d} that succeeded are read in order, louder, and a few at a time")
def _(context: Context, count: int) -> None:
    read: list[int] = []
    whole = run.queries.answers_by_position

    def counted(*arguments: Any, **named: Any) -> Iterator[Any]:
        for answer in whole(*arguments, **named):
            read.append(answer.position)
            yield answer

    group = context.run.by_outcome()["succeeded"]
    run.queries.answers_by_position = counted
    try:
        results = iter(group)
        first = next(results)
        assert first.position == 0 and len(read) <= result_cursor.PAGE + 1, len(read)
        rest = list(results)
    finally:
        run.queries.answers_by_position = whole
    assert len(group) == count
    assert [result.position for result in (first, *rest)] == list(range(count))
    assert all(result.unwrap().text == "!" for result in (first, *rest))
