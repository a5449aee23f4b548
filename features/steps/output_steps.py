"""Steps of structured output: schemas, what is sent, and what is read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import shlex
from typing import Any

import parse
import shapes
from behave import given, register_type, then, use_step_matcher, when
from behave.runner import Context
from pydantic import TypeAdapter
from tables import check_fields, rule

import claude_batch as cb
from claude_batch.actor.output import output_format_of
from claude_batch.actor.request import RequestEncoder
from claude_batch.wire.schemas import schema_fault

use_step_matcher("parse")


@parse.with_pattern(r'[{\["0-9].*')
def _written(text: str) -> str:
    return text


register_type(Written=_written)


def shape_of(name: str) -> Any:
    return list[shapes.Flat] if name == "list[Flat]" else getattr(shapes, name)


def _asked_for(context: Context, shape: str, request: Any) -> dict[str, Any]:
    schema = output_format_of(shape_of(shape)).schema
    encoder = RequestEncoder(context.actor.with_response_schema(schema))
    with contextlib.chdir(context.tmp):
        return json.loads(encoder.encode(request).params)


@then("the actor asked for {shape} with {request:Written} sends")
def _(context: Context, shape: str, request: str) -> None:
    check_fields(context, _asked_for(context, shape, json.loads(request)))


@then("the actor asked for {shape} with {request:Written} tells the model")
def _(context: Context, shape: str, request: str) -> None:
    system = _asked_for(context, shape, json.loads(request))["system"]
    told, at = system if isinstance(system, str) else system[-1]["text"], 0
    for line in context.text.splitlines():
        at = told.find(line, at)
        assert at >= 0, (line, told)


@rule("the actor is asked for these shapes")
def _(context: Context, shape: str, request: Any) -> dict[str, Any]:
    try:
        return _asked_for(context, shape, request)
    except cb.InvalidRequestError as error:
        assert error.key == request["id"], error
        raise


@rule("a request is encoded after another one of the same actor")
def _(first: str, second: str) -> dict[str, Any]:
    encoder = RequestEncoder(cb.ActorConfiguration(model="m"))
    names = {**vars(shapes), "Request": cb.ActorRequest}
    encoder.encode(eval(first, names))
    return {"sent": encoder.encode(eval(second, names)).params.decode()}


@rule("output formats are checked")
def _(model: str) -> dict[str, Any]:
    output_format_of(getattr(shapes, model))
    return {}


@given("an actor response of the text {texts}, stopped by {reason}")
def _(context: Context, texts: str, reason: str) -> None:
    context.actor_response = answer_of(shlex.split(texts), reason)


def answer_of(texts: list[str], reason: str) -> cb.ActorResponse[Any]:
    """An answer of blocks with these texts, which stopped for that reason."""
    message = {
        "id": "msg_1",
        "model": "m",
        "stop_reason": reason,
        "content": [{"type": "text", "text": text} for text in texts],
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    return cb.ActorResponse(json.dumps(message).encode(), batch_id="b")


def _read_as(context: Context, name: str) -> cb.ActorResponse[Any]:
    response = context.actor_response
    return (
        response
        if name == "JSON"
        else response.with_output(output_format_of(getattr(shapes, name)))
    )


@then("the actor response read as {name} is {expected:Written}")
def _(context: Context, name: str, expected: str) -> None:
    response = _read_as(context, name)
    value = response.parsed_output
    plain = TypeAdapter(Any).dump_python(value, mode="json")
    assert plain == json.loads(expected), value
    assert response.parsed_output is value
    copy = pickle.loads(pickle.dumps(response))
    assert copy == response and copy.parsed_output == value
    assert type(copy.parsed_output) is type(value)
    assert name == "JSON" or type(value) is getattr(shapes, name)


@then('the actor response read as {name} is refused with "{text}"')
def _(context: Context, name: str, text: str) -> None:
    response = _read_as(context, name)
    try:
        _ = response.parsed_output
    except cb.OutputValidationError as error:
        assert text in str(error), error
        assert error.text == response.text and error.batch_id == "b", vars(error)
        assert error.stop_reason == response.stop_reason
    else:
        raise AssertionError("it was read")


@then("a schema of {levels:d} levels that each point twice to the next is taken")
def _(context: Context, levels: int) -> None:
    def level(number: int) -> dict[str, Any]:
        inner = {"$ref": f"#/$defs/L{number + 1}"}
        return {"type": "object", "properties": {"a": inner, "b": inner}}

    names = {f"L{n}": level(n) for n in range(1, levels)}
    schema = {**level(0), "$defs": {**names, f"L{levels}": {"type": "null"}}}
    assert schema_fault(schema) is None


# Over real HTTP


@given("an API whose model answers as it is told")
def _(context: Context) -> None:
    from staging import start_api

    start_api(context, responder=_told)


def _told(params: dict[str, Any]) -> Any:
    """What stands after "say:" in the last message; `None`, the sandbox's own, where nothing."""
    content = params["messages"][-1]["content"]
    prompt = content if isinstance(content, str) else content[-1]["text"]
    _, said, words = prompt.partition("say:")
    return words.strip() if said else None


@when('"{prompt}" is asked for as {name} in every way')
def _(context: Context, prompt: str, name: str) -> None:
    _ask_in_every_way(context, prompt, getattr(shapes, name))


@when('every way asks for "{prompt}" by the JSON schema {schema:Written}')
def _(context: Context, prompt: str, schema: str) -> None:
    _ask_in_every_way(context, prompt, json.loads(schema))


@then('every answer is a mapping with "{name}"')
def _(context: Context, name: str) -> None:
    assert context.outcomes
    assert all(isinstance(o.parsed_output, dict) for o in context.outcomes)
    assert all(name in o.parsed_output for o in context.outcomes), context.outcomes


@rule("formats of a call are refused")
def _(context: Context, format: Any) -> None:
    context.actor.respond_sync("a prompt", output_format=format)


def _ask_in_every_way(context: Context, prompt: str, kind: Any) -> None:
    actor = context.actor

    async def ask() -> list[Any]:
        one = await actor.respond(prompt, output_format=kind)
        many = [r.unwrap() async for r in actor.respond_all([prompt], output_format=kind)]
        if not actor.configuration.batch_processing:
            return [one, *many]
        run = await actor.submit([prompt, "another"], output_format=kind)
        many += [r.unwrap() async for r in run.results()]
        many += [r.unwrap() async for r in run.results(output_format=kind)]
        return [one, *many]

    context.outcomes = asyncio.run(ask())
    context.outcomes.append(actor.respond_sync(prompt, output_format=kind))
    context.outcomes += [
        r.unwrap() for r in actor.respond_all_sync([prompt + " twice"], output_format=kind)
    ]
    if actor.configuration.batch_processing:
        run = actor.submit_sync([prompt, "third"], output_format=kind)
        context.outcomes += [r.unwrap() for r in run.results_sync()]


@then("every answer is an object of {name}")
def _(context: Context, name: str) -> None:
    kind = getattr(shapes, name)
    assert context.outcomes
    assert all(type(o.parsed_output) is kind for o in context.outcomes)


@when("a run of these prompts is submitted as {name}")
def _(context: Context, name: str) -> None:
    context.shape = getattr(shapes, name)
    prompts = [row["prompt"] for row in context.table]
    context.error = None
    try:
        context.run = asyncio.run(context.actor.submit(prompts, output_format=context.shape))
    except cb.ActorError as error:
        context.error = error


@given("a live actor")
def _(context: Context) -> None:
    provider = cb.ClaudeProvider()
    context.add_cleanup(provider.close)
    context.actor = cb.Actor(cb.ActorConfiguration(model="claude-haiku-4-5"), provider)


@when('"{prompt}" is asked for as {name} with the key "{key}"')
def _(context: Context, prompt: str, name: str, key: str) -> None:
    try:
        kind = getattr(shapes, name)
        context.outcomes = [context.actor.respond_sync(prompt, key=key, output_format=kind)]
    except cb.ActorError as error:
        context.outcomes = [error]
