"""Steps of the preflight: what is asked before a run is sent, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from behave import then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import ledger_values, listen

import claude_batch as cb
from claude_batch.ledger.schema import requests as request_table
from claude_batch.ledger.schema import runs as run_table

use_step_matcher("parse")


def shaped(count: int, shapes: int) -> list[cb.ActorRequest]:
    """Requests whose tools differ, in turn."""
    return [
        cb.ActorRequest(
            params={
                "messages": [{"role": "user", "content": f"say {number}"}],
                "tools": [{"name": f"t{number % shapes}", "input_schema": {"type": "object"}}],
            }
        )
        if shapes > 1
        else cb.ActorRequest(f"say {number}")
        for number in range(count)
    ]


def ask(context: Context, requests: Any, actor: cb.Actor | None = None, how: str = "") -> None:
    context.heard = listen(context, "claude_batch.providers.preflight", level=logging.WARNING)
    actor = actor or context.actor
    try:
        if how == "in an event loop":
            asyncio.run(actor.submit(requests))
        context.outcomes = list(actor.respond_all_sync(requests))
    except cb.ActorError as error:
        context.outcomes = [error]


@when('a run of {count:d} prompts is asked of the model "{model}"')
@when('a run of {count:d} prompts is asked of the model "{model}", {how}')
def _(context: Context, count: int, model: str, how: str = "") -> None:
    configuration = cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model=model, batch_processing=True
    )
    actor = cb.Actor(configuration, context.provider)
    ask(context, [f"say {number}" for number in range(count)], actor, how)


@when("a run is asked of these requests")
def _(context: Context) -> None:
    ask(context, [cb.ActorRequest.of(json.loads(row["request"])) for row in context.table])


@when("a run of {count:d} requests of {shapes:d} shapes is asked")
def _(context: Context, count: int, shapes: int) -> None:
    ask(context, shaped(count, shapes))


@then('it is refused before anything is sent, because of "{words}"')
def _(context: Context, words: str) -> None:
    [error] = context.outcomes
    assert isinstance(error, cb.PreflightError) and words in str(error), repr(error)
    assert error.error_type is not None and error.error_type in str(error), error
    assert [call["route"] for call in context.api.log() if call["route"] == "create"] == []
    context.refusal = error


@then('the refusal names "{item}"')
def _(context: Context, item: str) -> None:
    assert str(context.refusal).startswith(f"{item}: "), context.refusal


@then("nothing is left of it in the ledger")
def _(context: Context) -> None:
    assert ledger_values(select(func.count()).select_from(request_table)) == [0]
    assert ledger_values(select(func.count()).select_from(run_table)) == [0]


@then("the API has counted tokens {count:d} times")
def _(context: Context, count: int) -> None:
    counted = [call for call in context.api.log() if call["route"] == "count_tokens"]
    assert len(counted) == count, counted


@then("all of them are answered")
def _(context: Context) -> None:
    assert context.outcomes and all(
        isinstance(each, cb.ActorResult) and each.ok for each in context.outcomes
    ), context.outcomes[:3]


@then("no warning is given")
@then('a warning says "{words}"')
def _(context: Context, words: str | None = None) -> None:
    lines = context.heard.lines
    assert any(words in line for line in lines) if words else not lines, lines
