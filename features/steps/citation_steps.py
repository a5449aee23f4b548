"""Steps of citations: of the whole answer, and of its fields."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from output_steps import shape_of
from tables import equals

import claude_batch as cb
from claude_batch.actor.output import output_format_of

use_step_matcher("parse")


@given("an actor response with the blocks")
def _(context: Context) -> None:
    message = {
        "model": "m",
        "stop_reason": "end_turn",
        "content": json.loads(context.text),
        "usage": {},
    }
    context.actor_response = cb.ActorResponse(json.dumps(message).encode(), batch_id="b")
    context.outcomes = [context.actor_response]


@then("the actor response read as {name} has the field citations {expected}")
def _(context: Context, name: str, expected: str) -> None:
    response = context.actor_response.with_output(output_format_of(shape_of(name)))
    found = {key: [c.text for c in cited] for key, cited in response.field_citations.items()}
    assert found == json.loads(expected), found


# Over real HTTP


@when('"{prompt}" about "{file}" is asked for as {name} in every way, with citations')
def _(context: Context, prompt: str, file: str, name: str) -> None:
    asked: dict[str, Any] = {} if name == "text" else {"output_format": shape_of(name)}
    request = cb.ActorRequest(prompt, documents=[context.tmp / file], citations=True)
    live = cb.ClaudeProvider()
    context.add_cleanup(live.close)

    async def ask() -> list[Any]:
        one = await context.actor.respond(request, **asked)
        run = await context.actor.submit([request], **asked)
        again = cb.open_run(run.id)
        context.add_cleanup(again.provider.close)
        many = [r.unwrap() async for r in again.results(**asked)]
        actor = cb.Actor(cb.ActorConfiguration(model="claude-haiku-4-5"), live)
        return [one, *many, await actor.respond(request, **asked)]

    context.outcomes = asyncio.run(ask())
    assert len(context.outcomes) == 3


@then("every answer cites")
def _(context: Context) -> None:
    for answer in context.outcomes:
        cited = answer.field_citations or {"": answer.citations}
        found = [(field, each) for field, citations in cited.items() for each in citations]
        for row, (field, citation) in zip(context.table, found, strict=True):
            for name, cell in row.as_dict().items():
                value = field if name == "field" else getattr(citation, name)
                assert equals(value, cell), (name, value, citation)
            assert citation.claim in answer.text or field, citation
            assert pickle.loads(pickle.dumps(citation)) == citation, citation
