"""Steps of citations: of the whole answer, and of its fields."""

from __future__ import annotations

import asyncio
import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import shapes
from behave import given, then, use_step_matcher, when
from behave.runner import Context
from tables import rule

import claude_batch as cb
from claude_batch.actor.output import output_format_of
from claude_batch.actor.request import RequestEncoder

use_step_matcher("parse")


def shape_of(name: str) -> Any:
    return list[shapes.Flat] if name == "list[Flat]" else getattr(shapes, name)


@given("an actor response with the blocks")
def _(context: Context) -> None:
    message = {
        "model": "m",
        "stop_reason": "end_turn",
        "content": json.loads(context.text),
        "usage": {},
    }
    context.actor_response = cb.ActorResponse(json.dumps(message).encode(), batch_id="b")


@then("the actor response cites")
def _(context: Context) -> None:
    found = context.actor_response.citations
    for row, citation in zip(context.table, found, strict=True):
        shown = {name: getattr(citation, name) for name in row.headings}
        told = {name: "" if value is None else str(value) for name, value in shown.items()}
        assert told == dict(row.items()), (told, citation)


@then("the actor response's citations are frozen, and survive pickling")
def _(context: Context) -> None:
    first = context.actor_response.citations[0]
    assert pickle.loads(pickle.dumps(first)) == first and isinstance(first, cb.Citation)
    try:
        first.text = "another"
    except FrozenInstanceError:
        return
    raise AssertionError("it was changed")


def about(text: str, title: str, *, cited: bool = True) -> list[dict[str, Any]]:
    document: dict[str, Any] = {
        "type": "document",
        "title": title,
        "source": {"type": "text", "media_type": "text/plain", "data": text},
    }
    if cited:
        document["citations"] = {"enabled": True}
    return [{"role": "user", "content": [document, {"type": "text", "text": "What does it say?"}]}]


def asked_for(actor: cb.ActorConfiguration, kind: Any, *, cited: bool = True) -> dict[str, Any]:
    encoder = RequestEncoder(actor.with_response_schema(output_format_of(kind).schema))
    request = cb.ActorRequest(messages=about("R", "T", cited=cited), key="k")
    return json.loads(encoder.encode(request).params)


def check_told(told: str, params: dict[str, Any]) -> None:
    lines = told.splitlines()
    assert '[[number]] {"description":"As printed","type":"string"}' in lines or (
        '[[number]] {"type":"string","description":"As printed"}' in lines
    ), told
    assert '[[issued]] {"type":"string","format":"date"}' in lines, told
    assert any(line.startswith('[[currency]] {"enum":["EUR","USD"]') for line in lines), told
    assert "format" not in params.get("output_config", {}), params


@then(
    'the actor asked for a Receipt of a cited document receives the fields after "{words}", '
    "and sends no schema"
)
def _(context: Context, words: str) -> None:
    params = asked_for(context.actor, shapes.Receipt)
    assert params["system"].startswith(f"{words}\n\nAnswer with the fields"), params
    assert params["output_config"] == {"effort": "low"}, params
    check_told(params["system"], params)


@then(
    "the actor asked for a Receipt of a cited document, its system prompt in blocks, receives the "
    "fields in one more block"
)
def _(context: Context) -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    actor = cb.ActorConfiguration(model="m", options={"system": blocks})
    params = asked_for(actor, shapes.Receipt)
    assert params["system"][:-1] == blocks and "output_config" not in params
    check_told(params["system"][-1]["text"], params)


@then("the actor asked for a Receipt of a document that is not cited sends its schema")
def _(context: Context) -> None:
    params = asked_for(context.actor, shapes.Receipt, cited=False)
    assert params["output_config"]["format"]["schema"]["properties"]["tags"], params


@rule("models are asked for of a cited document")
def _(model: str) -> dict[str, Any]:
    try:
        return asked_for(cb.ActorConfiguration(model="m"), shape_of(model))
    except cb.InvalidRequestError as error:
        assert error.key == "k", error
        raise


@then("the actor response read as {name} has the field citations {expected}")
def _(context: Context, name: str, expected: str) -> None:
    response = context.actor_response.with_output(output_format_of(shape_of(name)))
    found = {key: [c.text for c in cited] for key, cited in response.field_citations.items()}
    assert found == json.loads(expected), found


@then("the actor asked for an {name} of a cited document receives")
def _(context: Context, name: str) -> None:
    told = asked_for(cb.ActorConfiguration(model="m"), shape_of(name))["system"]
    at = 0
    for line in context.text.splitlines():
        at = told.find(line, at)
        assert at >= 0, (line, told)


# Over real HTTP


@when('a question about a cited text "{text}" titled "{title}" is asked')
def _(context: Context, text: str, title: str) -> None:
    request = cb.ActorRequest(messages=about(text, title))
    context.outcomes = [context.actor.respond_sync(request)]


@then('the answer cites "{text}" of "{title}", {place}')
def _(context: Context, text: str, title: str, place: str) -> None:
    [answer] = context.outcomes
    [citation] = answer.citations
    assert (citation.text, citation.title, citation.place) == (text, title, place), citation
    assert citation.claim == answer.text and answer.field_citations == {}


@when('a question about a cited text "{text}" titled "{title}" is asked for as {name} in every way')
def _(context: Context, text: str, title: str, name: str) -> None:
    request, kind, actor = cb.ActorRequest(messages=about(text, title)), shape_of(name), None
    actor = context.actor

    async def ask() -> list[Any]:
        one = await actor.respond(request, output_format=kind)
        run = await actor.submit([request], output_format=kind)
        again = cb.open_run(run.id)
        context.add_cleanup(again.provider.close)
        many = [r.unwrap() async for r in again.results(output_format=kind)]
        return [one, *many, await live.respond(request, output_format=kind)]

    provider = cb.ClaudeProvider()
    context.add_cleanup(provider.close)
    live = cb.Actor(cb.ActorConfiguration(model="claude-haiku-4-5"), provider)
    context.outcomes = asyncio.run(ask())


@then("every answer has citations for {labels}")
def _(context: Context, labels: str) -> None:
    for answer in context.outcomes:
        assert list(answer.field_citations) == labels.split(", "), answer.field_citations
        assert all(answer.field_citations.values()), answer.field_citations


@then('every field of every answer cites "{text}" of "{title}"')
def _(context: Context, text: str, title: str) -> None:
    assert len(context.outcomes) == 3
    for answer in context.outcomes:
        cited = answer.field_citations
        assert list(cited) == list(type(answer.parsed_output).model_fields), cited
        assert all((c.text, c.title) == (text, title) for f in cited.values() for c in f)
        assert all(len(citations) == 1 for citations in cited.values()), cited
