"""Steps of the user's functions: post_process, classify and pace."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from pydantic import BaseModel, field_validator
from staging import listen, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core import user_functions


class Number(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _is_large(cls, number: int) -> int:
        # No schema says so, so that no answer of the sandbox has the format.
        if number <= 10**9:
            raise ValueError("it is too small")
        return number


def provide(context: Context, kind: str, **settings: Any) -> None:
    context.kept_log = listen(context, "claude_batch")
    if kind == "batch":
        make_provider(context, **settings)
        return
    context.provider = cb.ClaudeProvider(**settings)
    context.add_cleanup(context.provider.close)
    configuration = cb.ActorConfiguration(name="tests/asker", model="claude-haiku-4-5")
    context.actor = cb.Actor(configuration, context.provider)


async def _hang(result: cb.ActorResult) -> None:
    await asyncio.sleep(60)


def _exit(result: cb.ActorResult) -> None:
    sys.exit(1)


async def _exit_later(result: cb.ActorResult) -> None:
    sys.exit(1)


@given("a {kind} provider whose post_process {does}")
def _(context: Context, kind: str, does: str) -> None:
    context.processed = []
    over = threading.Event()
    context.add_cleanup(over.set)

    def fail(result: cb.ActorResult) -> None:
        raise ValueError("the database is away")

    def hang(result: cb.ActorResult) -> None:
        over.wait()

    functions: dict[str, Callable[..., Any]] = {
        "keeps results": context.processed.append,
        "raises": fail,
        "exits": _exit,
        "exits on the loop": _exit_later,
        "hangs": hang,
        "hangs on the loop": _hang,
    }
    provide(context, kind, post_process=functions[does], post_process_timeout=0.2)


@when('the prompts "{prompts}" are asked, {how}')
def _(context: Context, prompts: str, how: str) -> None:
    asked = prompts.split(", ")
    context.results = results = []
    context.early = True

    def take(result: cb.ActorResult | cb.ActorResponse | None) -> None:
        results.append(result)
        context.early = context.early and len(context.processed) >= len(results)

    def one_sync(prompt: str) -> cb.ActorResponse | None:
        try:
            return context.actor.respond_sync(prompt)
        except cb.ActorError:
            return None

    async def one(prompt: str) -> cb.ActorResponse | None:
        try:
            return await context.actor.respond(prompt)
        except cb.ActorError:
            return None

    async def one_by_one() -> None:
        for prompt in asked:
            take(await one(prompt))

    async def together() -> None:
        async for result in context.actor.respond_all(asked):
            take(result)

    if how == "one by one":
        asyncio.run(one_by_one())
    elif how == "together":
        asyncio.run(together())
    elif how.startswith("one"):
        for prompt in asked:
            take(one_sync(prompt))
    else:
        for result in context.actor.respond_all_sync(asked):
            take(result)


@when('an answer in a format that it does not have is asked with the context "{words}", {how}')
def _(context: Context, words: str, how: str) -> None:
    actor, plain = context.actor, cb.ActorRequest("[[sandbox:text:no number]]", context=words)
    own = dataclasses.replace(plain, output_format=Number)

    async def first() -> cb.ActorResponse:
        async for result in actor.respond_all([plain], output_format=Number):
            return result.unwrap()
        raise AssertionError("no result")

    ways: dict[str, Callable[[], Any]] = {
        "awaited": lambda: asyncio.run(actor.respond(own)),
        "synchronously": lambda: actor.respond_sync(own),
        "awaited, for the call": lambda: asyncio.run(actor.respond(plain, output_format=Number)),
        "synchronously, for the call": lambda: actor.respond_sync(plain, output_format=Number),
        "together, for the call": lambda: asyncio.run(first()),
        "together, synchronously": lambda: [r.unwrap() for r in actor.respond_all_sync([own])],
    }
    try:
        ways[how]()
    except cb.OutputValidationError:
        context.results = [*context.processed]
        context.early = bool(context.results)
        context.result = context.results[0]
        return
    raise AssertionError("it had the format")


@then("post_process has had {good:d} answers and {bad:d} failures, each before its caller")
def _(context: Context, good: int, bad: int) -> None:
    oks = [result.ok for result in context.processed]
    assert (oks.count(True), oks.count(False)) == (good, bad), context.processed
    assert len(context.results) == good + bad and context.early, context.results


@then('the log says "{words}"')
def _(context: Context, words: str) -> None:
    until(lambda: any(words in line for line in context.kept_log.lines))


@rule("providers are refused")
def _(settings: dict[str, Any]) -> None:
    for made in (cb.ClaudeBatchProvider, cb.ClaudeProvider):
        try:
            made(**settings)
        except (cb.ActorConfigurationError, TypeError) as error:
            words = str(error)
        else:
            raise AssertionError(f"{made.__name__} took {settings}")
    raise ValueError(words)


# Functions that decide ----------------------------------------------------------------------------


class Nonsense(str):
    """A value that fails when it is looked at."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not to be compared")

    __hash__ = str.__hash__


def deciding(context: Context, does: str) -> Callable[..., Any]:
    over = threading.Event()
    context.add_cleanup(over.set)
    context.asked_about = []

    def decide(*arguments: Any) -> Any:
        context.asked_about.append(arguments)
        if does == "raises":
            raise ValueError("no idea")
        if does == "exits":
            raise SystemExit(3)
        if does == "hangs":
            over.wait()
        if does == "answers with nonsense":
            return Nonsense("retry")
        answer = json.loads(does.removeprefix("answers "))
        return None if answer == "none" else answer

    return decide


@given("a {kind} provider whose {which:w} {does}, with {settings:JsonObject}")
def _(context: Context, kind: str, which: str, does: str, settings: dict[str, Any]) -> None:
    assert which in ("classify", "pace"), which
    context.processed = []
    patience = mock.patch.object(user_functions, "SECONDS", 0.3)
    patience.start()
    context.add_cleanup(patience.stop)
    provide(context, kind, **{which: deciding(context, does)}, **settings)


@then("classify was asked about {count:d} errors")
def _(context: Context, count: int) -> None:
    assert len(context.asked_about) == count, context.asked_about
    for (fault,) in context.asked_about:
        assert isinstance(fault, cb.RequestFault) and fault.error_type, fault


@then("the API has processed {count:d} requests, none paid twice")
def _(context: Context, count: int) -> None:
    summary = context.api.billing_summary()
    assert summary["requests"] == count, summary
    assert summary["paid_more_than_once"] == 0, summary


@then("the second live call came after {least:g} to {most:g} seconds")
def _(context: Context, least: float, most: float) -> None:
    first, second = [call["at"] for call in context.api.log() if call["route"] == "messages"]
    assert least <= second - first <= most, second - first
