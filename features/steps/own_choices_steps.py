"""Steps of calls, runs and requests that decide for themselves, and of results by outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import shapes
from behave import then, when
from behave.model import Row
from behave.runner import Context
from opening_steps import engines
from sqlalchemy import select
from staging import QUICK, reading
from tables import rule

import claude_batch as cb
from claude_batch.ledger.schema import budgets, runs
from claude_batch.providers import run

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


def ask(
    asked: cb.Actor, requests: Sequence[cb.ActorRequest], how: str, **settings: Any
) -> list[cb.ActorResult]:
    """Ask in one of the ways that an actor offers; a call that fails raises its error."""

    async def block() -> list[cb.ActorResult]:
        async with asked.run(requests, **settings) as found:
            return [result async for result in found]

    async def submitted() -> list[cb.ActorResult]:
        return await collected((await asked.submit(requests, **settings)).results())

    def each(call: Callable[[cb.ActorRequest], cb.ActorResponse]) -> list[cb.ActorResult]:
        return [
            cb.ActorResult(key=request.key, position=at, response=call(request))
            for at, request in enumerate(requests)
        ]

    ways: dict[str, Callable[[], list[cb.ActorResult]]] = {
        "awaited": lambda: each(lambda request: asyncio.run(asked.respond(request, **settings))),
        "synchronously": lambda: each(lambda request: asked.respond_sync(request, **settings)),
        "many at once": lambda: asyncio.run(collected(asked.respond_all(requests, **settings))),
        "many at once synchronously": lambda: list(asked.respond_all_sync(requests, **settings)),
        "submitted": lambda: asyncio.run(submitted()),
        "submitted synchronously": lambda: list(
            asked.submit_sync(requests, **settings).results_sync()
        ),
        "as a block": lambda: asyncio.run(block()),
    }
    return ways[how]()


@rule("calls with settings of their own end")
def _(
    context: Context, actor: str, settings: dict[str, Any], how: str, document: str = ""
) -> cb.ActorResponse:
    asked = (
        handed_over(context)
        if actor == "handed over"
        else loaded(context, batched=actor == "in batches")
    )
    # A prompt of its own, so that no row takes over what another one has asked.
    context.rows = context.rows + 1 if "rows" in context else 1
    documents = [document.encode()] if document else []
    request = cb.ActorRequest(f"row {context.rows}", documents=documents)
    return ask(asked, [request], how, **settings)[0].unwrap()


@when("{count:d} prompts are asked with {settings:JsonObject}")
def _(context: Context, count: int, settings: dict[str, Any]) -> None:
    async def ask() -> list[Any]:
        prompts = (f"{number} with {settings}" for number in range(count))
        return await asyncio.gather(*(context.actor.respond(each, **settings) for each in prompts))

    context.outcomes = asyncio.run(ask())


@then("the runs of the ledger have these requests, budgets and deadlines")
def _(context: Context) -> None:
    with reading() as tx:
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


@when("a run of {count:d} prompts is submitted with {settings:JsonObject}")
def _(context: Context, count: int, settings: dict[str, Any]) -> None:
    context.run = context.actor.submit_sync([f"prompt {n}" for n in range(count)], **settings)


@rule("calls of an actor without batches open, until it is closed,")
def _(context: Context, mode: str) -> dict[str, Any]:
    with loaded(context, batched=False) as actor:
        via = actor.respond_sync("a prompt", mode=mode).via
        meanwhile = engines()
    return {
        "via": via,
        "engines": meanwhile,
        "engines_later": engines(),
        "closed": actor.provider.closed,
    }


# Requests that differ


@when("requests with these fields are asked, {how}")
@when("requests with these fields are asked with {settings:JsonObject}, {how}")
def _(context: Context, how: str, settings: dict[str, Any] | None = None) -> None:
    requests = list(map(_request, context.table))
    context.results = ask(context.actor, requests, how, **(settings or {}))


def _request(row: Row) -> cb.ActorRequest:
    fields: dict[str, Any] = {name: row[name] for name in row.headings if row[name]}
    for name in {"options", "params"} & fields.keys():
        fields[name] = json.loads(fields[name])
    if document := fields.pop("document", ""):
        fields["documents"] = [document.encode()]
    if shape := fields.pop("format", ""):
        kind = getattr(shapes, shape.removeprefix("schema of "))
        fields["output_format"] = kind if hasattr(shapes, shape) else kind.model_json_schema()
    return cb.ActorRequest(**fields)


# Results by outcome


@rule("the run's results by outcome are")
def _(context: Context, outcome: str) -> dict[str, Any]:
    outcomes = context.run.by_outcome()
    try:
        group = outcomes[outcome]
    except KeyError as error:
        raise ValueError(*error.args) from error
    results = list(group)
    positions = [result.position for result in results]
    assert [each.position for each in asyncio.run(collected(aiter(group)))] == positions
    assert all(result.ok == (outcome == "succeeded") for result in results)
    assert len(group) == len(results) and (outcome in outcomes) == bool(results)
    assert len(outcomes) == len(dict(outcomes)), outcomes
    return {"positions": positions, "outcomes": list(map(str, outcomes))}


@then('the {count:d} that succeeded are read in order, a few at a time, and end with "{words}"')
def _(context: Context, count: int, words: str) -> None:
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
        assert first.position == 0 and len(read) <= run.PAGE + 1, len(read)
        rest = list(results)
    finally:
        run.queries.answers_by_position = whole
    assert len(group) == count
    assert [result.position for result in (first, *rest)] == list(range(count))
    assert all(each.unwrap().text.endswith(words) for each in (first, *rest)), first
