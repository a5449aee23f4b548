"""Steps of middleware, for the batch and the live provider alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from behave import given, then, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import ledger_values, make_provider

import claude_batch as cb
from claude_batch.ledger.schema import requests as request_table


def _with_text(response: cb.ActorResponse, words: str) -> cb.ActorResponse:
    message = json.loads(response.raw)
    message["content"] = [{"type": "text", "text": f"{response.text} {words}"}]
    return cb.ActorResponse(msgspec.json.encode(message), batch_id=response.batch_id)


class Naming(cb.Middleware):
    def __init__(self, name: str) -> None:
        self._name = name

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        assert actor == "tests/asker"
        return cb.ActorRequest(f"{request.prompt} {self._name}", key=request.key)

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        assert actor == "tests/asker"
        return _with_text(response, self._name)


class Guard:
    def __init__(self, word: str) -> None:
        self._word = word

    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        if self._word in (request.prompt or ""):
            raise ValueError("that must not leave the house")
        return request


class Judge:
    def __init__(self, key: str) -> None:
        self._key = key

    def after_response(
        self, actor: str, key: str | None, response: cb.ActorResponse
    ) -> cb.ActorResponse:
        if key == self._key:
            raise ValueError("that is no answer")
        return response


class Anew:
    def before_request(self, actor: str, request: cb.ActorRequest) -> cb.ActorRequest:
        return cb.ActorRequest("made anew")


class Forgetful:
    def before_request(self, actor: str, request: cb.ActorRequest) -> None: ...


class ForgetfulLater(cb.Middleware):
    def after_response(self, actor: str, key: str | None, response: Any) -> Any: ...


@given('the middleware "{first}" and "{second}", which add their names')
def _(context: Context, first: str, second: str) -> None:
    context.middleware = [Naming(first), Naming(second)]


@given('middleware that fails at what says "{word}"')
def _(context: Context, word: str) -> None:
    context.middleware = [cb.Middleware(), Guard(word)]


@given('middleware that fails at the response with the key "{key}"')
def _(context: Context, key: str) -> None:
    context.middleware = [Judge(key)]


@given("middleware that makes each request anew")
def _(context: Context) -> None:
    context.middleware = [Anew()]


@given("middleware that returns nothing from {stage}")
def _(context: Context, stage: str) -> None:
    context.middleware = [Forgetful() if stage == "before_request" else ForgetfulLater()]


@given("a batch provider that has it")
def _(context: Context) -> None:
    make_provider(context, middleware=context.middleware)


@given("a live provider that has it")
def _(context: Context) -> None:
    provider = cb.ClaudeProvider(middleware=context.middleware)
    context.add_cleanup(provider.close)
    configuration = cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5"
    )
    context.actor = cb.Actor(configuration, provider)


@when('"{prompt}" is asked through middleware, {how}')
def _(context: Context, prompt: str, how: str) -> None:
    actor = context.actor
    try:
        match how:
            case "awaited":
                context.answer = asyncio.run(actor.respond(prompt))
            case "synchronously":
                context.answer = actor.respond_sync(prompt)
            case "many at once":
                [result] = asyncio.run(_all(actor, [prompt], ordered=True))
                context.answer = result.unwrap()
            case "many at once synchronously":
                [result] = actor.respond_all_sync([prompt])
                context.answer = result.unwrap()
            case "submitted":
                [result] = actor.submit_sync([prompt]).results_sync()
                context.answer = result.unwrap()
            case _:
                raise AssertionError(how)
    except cb.ActorError as error:
        context.error = error


async def _all(actor: cb.Actor, requests: Any, *, ordered: bool) -> list[cb.ActorResult]:
    return [result async for result in actor.respond_all(requests, ordered=ordered)]


@when("the middleware's requests are asked, {how}")
def _(context: Context, how: str) -> None:
    requests = [cb.ActorRequest(row["prompt"], key=row["key"]) for row in context.table]
    if how == "synchronously":
        context.results = list(context.actor.respond_all_sync(requests))
    else:
        context.results = asyncio.run(_all(context.actor, requests, ordered=how == "ordered"))


@when('the prompts "{prompts}" are submitted through middleware')
def _(context: Context, prompts: str) -> None:
    try:
        asyncio.run(context.actor.submit(prompts.split(", ")))
    except cb.ActorError as error:
        context.error = error


@when("another process without middleware reads the same run")
def _(context: Context) -> None:
    [run] = ledger_values(select(request_table.c.run_id).distinct())
    with cb.open_run(run) as again:
        context.results = list(again.results_sync())


@when("a provider is given the middleware {number:d}")
def _(context: Context, number: int) -> None:
    try:
        cb.ClaudeProvider(middleware=[number])
    except TypeError as error:
        context.outcome = error


@then('the API was asked "{words}"')
def _(context: Context, words: str) -> None:
    # The sandbox's answers quote the prompt.
    answer = context.answer if "answer" in context else context.results[0].unwrap()
    assert f'begins: "{words}"' in answer.text, answer.text


@then("the API has been asked {count:d} requests")
def _(context: Context, count: int) -> None:
    assert context.api.billing_summary()["requests"] == count


@then('the answer ends with "{words}"')
def _(context: Context, words: str) -> None:
    assert context.answer.text.endswith(words), context.answer.text


@then('the results by place are "{kinds}" with the keys "{keys}"')
def _(context: Context, kinds: str, keys: str) -> None:
    results = sorted(context.results, key=lambda result: result.position)
    assert [result.position for result in results] == list(range(len(results)))
    assert [result.key for result in results] == keys.split(", "), results
    assert ["ok" if result.ok else "failed" for result in results] == kinds.split(", "), results


@then("the failures are MiddlewareErrors of {stage} that name the middleware and the key")
def _(context: Context, stage: str) -> None:
    for result in context.results:
        if result.ok:
            continue
        error = result.error
        assert isinstance(error, cb.MiddlewareError), error
        assert error.stage == stage and error.key == result.key
        assert error.middleware in str(error) and repr(result.key) in str(error)
        assert isinstance(error.__cause__, ValueError)


@then("the middleware's error is a MiddlewareError of {stage}")
def _(context: Context, stage: str) -> None:
    assert isinstance(context.error, cb.MiddlewareError), context.error
    assert context.error.stage == stage


@then("the ledger has no request")
def _(context: Context) -> None:
    assert ledger_values(select(func.count()).select_from(request_table)) == [0]


@then("all of its results are answers")
def _(context: Context) -> None:
    assert len(context.results) == 3 and all(result.ok for result in context.results)


@then("the outcome is a TypeError about middleware")
def _(context: Context) -> None:
    assert "middleware: 5 has neither" in str(context.outcome)
