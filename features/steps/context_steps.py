"""Steps of contexts: what travels beside a request and comes back with its result."""

from __future__ import annotations

import asyncio
import enum
import json
import math
import pickle
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values
from tables import rule

import claude_batch as cb
from claude_batch.actor.request import json_context
from claude_batch.ledger.schema import runs


class Order:
    """No JSON value; only this process has it."""


class Word(enum.StrEnum):
    """Equals a JSON value and is none."""

    ONE = "one"


ORDER = Order()
CONTEXTS: dict[str, Any] = {
    "json": {"row": 7, "of": ["a", None, 2.5]},
    "object": ORDER,
    "word": Word.ONE,
    "none": None,
    "text": "beside",
}


@rule("the ledger keeps contexts")
def _(value: str) -> dict[str, bool]:
    one = {"Word": Word, "Number": enum.IntEnum("Number", "ONE")}
    names = {"datetime": datetime, "float": float, "object": object, "Decimal": Decimal, **one}
    written = eval(value, names)  # the table is this repository's own
    kept = json_context(written)
    assert kept is None or json.loads(kept) == written
    return {"kept": kept is not None}


def asked() -> list[cb.ActorRequest]:
    return [cb.ActorRequest(f"ask {name}", key=name, context=CONTEXTS[name]) for name in CONTEXTS]


@when("requests with contexts are asked, {how}")
def _(context: Context, how: str) -> None:
    actor: cb.Actor = context.actor
    context.asked = asked()

    async def many(ordered: bool) -> list[cb.ActorResult]:
        results = actor.respond_all(context.asked, ordered=ordered)
        return [result async for result in results]

    async def single() -> list[cb.ActorResponse]:
        return list(await asyncio.gather(*(actor.respond(each) for each in context.asked)))

    match how:
        case "many at once" | "many at once, as they come":
            context.results = asyncio.run(many(how == "many at once"))
        case "many at once synchronously":
            context.results = list(actor.respond_all_sync(context.asked))
        case "submitted":
            context.results = list(actor.submit_sync(context.asked).results_sync())
        case "one by one":
            context.results = _as_results(context.asked, asyncio.run(single()))
        case "one by one synchronously":
            found = [actor.respond_sync(each) for each in context.asked]
            context.results = _as_results(context.asked, found)
        case _:
            raise AssertionError(how)


def _as_results(
    requests: Sequence[cb.ActorRequest], responses: Sequence[cb.ActorResponse]
) -> list[cb.ActorResult]:
    return [
        cb.ActorResult(key=request.key, position=at, response=response, context=response.context)
        for at, (request, response) in enumerate(zip(requests, responses, strict=True))
    ]


@then("each result and its response have the very context of their request")
def _(context: Context) -> None:
    assert {result.key for result in context.results} == set(CONTEXTS), context.results
    for result in context.results:
        expected = CONTEXTS[result.key]
        for found in (result.context, result.unwrap().context):
            is_equal = found == expected and type(found) is type(expected)
            assert found is expected or (is_equal and result.key != "object"), result


@then("nothing of a context was sent")
def _(context: Context) -> None:
    assert len(context.seen) == len(CONTEXTS)
    assert "beside" not in json.dumps(context.seen) and "2.5" not in json.dumps(context.seen)


def stored() -> dict[str, Any]:
    """What another process reads: each run is opened by its id, by a provider of its own."""
    found: dict[str, Any] = {}
    for run_id in ledger_values(select(runs.c.id).where(runs.c.request_count > 0)):
        with cb.open_run(run_id, drive=False) as run:
            grouped = [each for group in run.by_outcome().values() for each in group]
            contexts = {result.position: result.context for result in grouped}
            for result in run:
                assert result.unwrap().context == result.context == contexts[result.position]
                found[result.key or str(result.position)] = result.context
    return found


@then("another process gets the contexts that are JSON values, and None for the others")
def _(context: Context) -> None:
    context.provider.close()
    assert stored() == {**CONTEXTS, "object": None, "word": None}, stored()


@then("a call that joins one of them by its key gets its context, or its own")
def _(context: Context) -> None:
    with cb.ClaudeBatchProvider() as provider:
        actor = cb.Actor(context.actor.configuration, provider)
        assert actor.respond_sync("ask text", key="text").context == "beside"
        own = cb.ActorRequest("ask text", key="text", context=ORDER)
        assert actor.respond_sync(own).context is ORDER


@when("a run with the contexts {values} is submitted")
def _(context: Context, values: str) -> None:
    requests = [
        cb.ActorRequest(f"prompt {at}", context=value)
        for at, value in enumerate(eval(values, {"null": None}))
    ]
    context.run = context.actor.submit_sync(requests)
    context.runs = [context.run]
    context.run.wait_sync()


@then("both are one run, whose contexts in another process are {values}")
def _(_: Context, values: str) -> None:
    assert len(ledger_values(select(runs.c.id))) == 1
    assert list(stored().values()) == json.loads(values), stored()


class Noting:
    """Makes everything anew, without a context of its own."""

    def __init__(self) -> None:
        self.before: dict[str | None, Any] = {}
        self.after: dict[str | None, Any] = {}

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        self.before[request.key] = request.context
        return cb.ActorRequest(f"{request.prompt} anew")

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        self.after[key] = response.context
        return cb.ActorResponse(response.raw, batch_id=response.batch_id)


@given("middleware which notes contexts and makes requests and responses anew")
def _(context: Context) -> None:
    # Twice, because the second one must get the context that the first one has left out.
    context.middleware = [Noting(), Noting()]


@then("the middleware has seen each context before and after")
def _(context: Context) -> None:
    for each in context.middleware:
        assert each.before == CONTEXTS == each.after, (each.before, each.after)


@when("the prompts {prompts} are asked, each with a context")
def _(context: Context, prompts: str) -> None:
    asked = json.loads(prompts)
    context.expected = [{"at": at} if at % 2 else ORDER for at in range(len(asked))]
    requests = [
        cb.ActorRequest(prompt, context=value)
        for prompt, value in zip(asked, context.expected, strict=True)
    ]
    context.results = list(context.actor.respond_all_sync(requests))


@then("each of their results has its context")
def _(context: Context) -> None:
    found = [result.context for result in context.results]
    assert found == context.expected, found


@then("a response with a context equals the same answer without, and keeps it when it is pickled")
def _(_: Context) -> None:
    plain = cb.ActorResponse(b'{"content": []}', cost=5, batch_id="b")
    own = plain.with_context({"a": 1})
    assert own == plain and hash(own) == hash(plain) and plain.context is None
    copied = pickle.loads(pickle.dumps(own))
    assert copied == own and copied.context == {"a": 1} and copied.cost == 5
    result = cb.ActorResult(key=None, position=0, response=plain)
    assert result.with_context(3) == result and result.with_context(3).unwrap().context == 3
    failed = cb.ActorResult(key="k", position=0, error=cb.ActorError("no"))
    assert failed.with_context([1]).to_dict()["context"] == [1]
    assert "context" not in failed.with_context(ORDER).to_dict() | failed.to_dict()
    request = cb.ActorRequest("a", context=math.nan)
    assert request == cb.ActorRequest("a")


@when("a run with contexts is given up before it is stored")
def _(context: Context) -> None:
    try:
        context.actor.submit_sync([cb.ActorRequest("a", context=1), cb.ActorRequest(params={})])
    except cb.InvalidRequestError:
        return
    raise AssertionError("it was stored")


@then('in "{name}" the contexts by id are {values}')
def _(context: Context, name: str, values: str) -> None:
    lines = [json.loads(line) for line in (context.tmp / name).read_text().splitlines()]
    found = {line["id"]: line["context"] for line in lines if "context" in line}
    assert found == json.loads(values), found
