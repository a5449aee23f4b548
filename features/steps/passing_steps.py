"""Steps of what passes through: the bytes that are sent, and what the sandbox makes of them."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import msgspec
from behave import then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values, listen

import claude_batch as cb
from claude_batch.ledger.schema import params as params_table
from claude_batch.sandbox.token_usage import params_sha256

use_step_matcher("parse")


@when("an actor with these options asks once in a batch and once live")
def _(context: Context) -> None:
    context.options = json.loads(context.text)
    configuration = cb.ActorConfiguration(
        name="tests/passing",
        model="claude-haiku-4-5",
        options=context.options,
        batch_processing=True,
    )
    actor = cb.Actor(configuration, context.provider)
    live = cb.ClaudeProvider()
    context.add_cleanup(live.close)
    heard = listen(context, "claude_batch.actor.request", level=logging.WARNING)
    context.outcomes = []
    try:
        for prompt in ("first", "second"):
            context.outcomes.append(actor.respond_sync(prompt))
    except cb.ActorError as error:
        context.outcomes.append(error)
    context.heard = heard.lines
    try:
        context.outcomes.append(live.respond_sync(configuration, "live"))
    except cb.ActorError as error:
        context.outcomes.append(error)


def sent() -> list[bytes]:
    return ledger_values(select(params_table.c.body))


@then("the API has received each option as it was written, and the betas as a header")
def _(context: Context) -> None:
    answered = [isinstance(outcome, cb.ActorResponse) for outcome in context.outcomes]
    assert answered == [True] * 3, context.outcomes
    bodies = sent()
    assert len(bodies) == 2
    options: dict[str, Any] = dict(context.options)
    betas = options.pop("betas")
    for body in bodies:
        for name, value in options.items():
            written = msgspec.json.encode({name: value})[1:-1]
            assert written in body, (name, body)
        assert "betas" not in json.loads(body)
    received = {entry["params_sha256"] for entry in context.api.billing()}
    # What came over HTTP is what lies in the ledger, and the live call differs in its prompt alone.
    assert {params_sha256(body) for body in bodies} < received and len(received) == 3
    live = bodies[0].replace(b'"first"', b'"live"')
    assert params_sha256(live) in received, hashlib.sha256(live).hexdigest()
    creates = [entry for entry in context.api.log() if entry["method"] == "POST"]
    headers = [entry["headers"].get("anthropic-beta") for entry in creates]
    assert headers == [",".join(betas)] * len(creates) and len(creates) == 3, headers


@then("nobody was warned")
@then('one warning says "{words}"')
def _(context: Context, words: str | None = None) -> None:
    assert len(context.heard) == (words is not None), context.heard
    assert words is None or words in context.heard[0], context.heard


@then("the request was sent as it was written, and the API had the last word")
def _(context: Context) -> None:
    [body] = sent()
    assert b'"of_tomorrow":{"a":[1,2]}' in body, body
    refused, live = context.outcomes
    assert isinstance(refused, cb.BatchRequestError) and isinstance(live, cb.LiveRequestError)
    assert "of_tomorrow" in str(refused) and "of_tomorrow" in str(live)


@when("a request with these params asks once in a batch")
def _(context: Context) -> None:
    context.params = json.loads(context.text)
    names = ("claude_batch.actor.request", "claude_batch.providers.preflight")
    heard = listen(context, *names, level=logging.WARNING)
    configuration = cb.ActorConfiguration(
        name="tests/passing", model="claude-haiku-4-5", batch_processing=True
    )
    asked = [cb.ActorRequest(params=context.params)]
    context.outcomes = list(cb.Actor(configuration, context.provider).respond_all_sync(asked))
    context.heard = heard.lines


@then("the API has received these params as they were written, and their betas as a header")
def _(context: Context) -> None:
    [result] = context.outcomes
    assert result.ok, result.error
    params = dict(context.params)
    betas = params.pop("betas")
    [body] = sent()
    assert body == msgspec.json.encode(params), body
    assert {entry["params_sha256"] for entry in context.api.billing()} == {params_sha256(body)}
    posts = [entry for entry in context.api.log() if entry["method"] == "POST"]
    asked = [entry["headers"].get("anthropic-beta") for entry in posts]
    assert asked and asked == [",".join(sorted(betas))] * len(posts), asked
