"""Steps of the user's own limits: batches in flight and in an hour, live calls in a minute."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import httpx2
from behave import given, then, when
from behave.runner import Context
from staging import KEY, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.wire.pace import CallLog, Counted, OwnLimits

HOUR = 3600.0


def batches_at(context: Context) -> list[dict[str, Any]]:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    url = f"{context.api.url}/v1/messages/batches?limit=1000"
    return httpx2.get(url, headers=headers).json()["data"]


@then("never more than {most:d} batches were at the API")
@then("never more than {most:d} batch was at the API")
def _(context: Context, most: int) -> None:
    events: list[tuple[datetime, int]] = []
    for batch in batches_at(context):
        events.append((datetime.fromisoformat(batch["created_at"]), 1))
        events.append((datetime.fromisoformat(batch["ended_at"]), -1))
    there = peak = 0
    for _when, change in sorted(events):
        there += change
        peak = max(peak, there)
    assert 0 < peak <= most, (peak, events)


@then("the API comes to have seen {count:d} batches")
def _(context: Context, count: int) -> None:
    until(lambda: context.api.billing_summary()["batches"] >= count)
    assert context.api.billing_summary()["batches"] == count


@when("{seconds:g} seconds pass")
def _(context: Context, seconds: float) -> None:
    time.sleep(seconds)


@when("the API's clock is an hour ahead")
def _(context: Context) -> None:
    context.api.advance_clock(HOUR + 3)


@when("{count:d} prompts are asked by another provider with {settings:JsonObject}")
def _(context: Context, count: int, settings: dict[str, Any]) -> None:
    first, configuration = context.provider, context.actor.configuration
    make_provider(context, **settings)

    async def ask() -> None:
        await asyncio.gather(*(context.actor.respond(f"other {n}") for n in range(count)))

    asyncio.run(ask())
    context.provider, context.actor = first, cb.Actor(configuration, first)


@when("{runs:d} runs of {count:d} prompts are stored")
def _(context: Context, runs: int, count: int) -> None:
    for number in range(runs):
        prompts = [f"prompt {n} of run {number}" for n in range(count)]
        context.provider.store(context.actor.configuration, prompts)


@when("another process declares {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any]) -> None:
    context.provider.close()
    make_provider(context, **settings)
    if hasattr(context, "run"):
        context.run = context.provider.open_run(context.run.id)
    context.provider.resume()


# Live calls ---------------------------------------------------------------------------------------


@then("the API got at most {count:d} live calls")
def _(context: Context, count: int) -> None:
    seen = [each for each in context.api.log() if each["route"] == "messages"]
    assert len(seen) <= count, seen


@when(
    "{providers:d} live providers with {settings:JsonObject} are asked {count:d} prompts each, "
    "and closed after {seconds:g} seconds"
)
@when(
    "{providers:d} live provider with {settings:JsonObject} is asked {count:d} prompts, "
    "and closed after {seconds:g} second"
)
def _(
    context: Context, providers: int, settings: dict[str, Any], count: int, seconds: float
) -> None:
    url = context.live_server.url
    made = [cb.ClaudeProvider(base_url=url, api_key="k-1", **settings) for _ in range(providers)]

    async def ask() -> None:
        calls = [
            asyncio.ensure_future(provider.respond(context.live_actor, f"p{number}"))
            for provider in made
            for number in range(count)
        ]
        await asyncio.wait(calls, timeout=seconds)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(ask())
    for provider in made:
        provider.close()


@then("the live server was called {count:d} times")
def _(context: Context, count: int) -> None:
    seen = [call for call in context.live_server.log() if call["route"] == "messages"]
    assert len(seen) == count, seen


@rule("after the calls of a log one more waits")
def _(
    log: list[tuple[float, int, float]],
    second: float,
    requests: int | None,
    tokens: int | None,
    bytes: int,
    max_tokens: int,
) -> float:
    limits = OwnLimits(requests, tokens)
    found = CallLog(log).take(second, limits, bytes, max_tokens)
    return 0.0 if isinstance(found, Counted) else found


@given("the log of a minute with a limit of {tokens:d} tokens")
def _(context: Context, tokens: int) -> None:
    context.call_log, context.own_limits = CallLog(), OwnLimits(tokens=tokens)


def take(context: Context, size: int, most: int) -> Counted | float:
    return context.call_log.take(0.0, context.own_limits, size, most)


@when("a call of {size:d} bytes and at most {most:d} tokens is sent, and {end}")
def _(context: Context, size: int, most: int, end: str) -> None:
    counted = take(context, size, most)
    assert isinstance(counted, Counted), counted
    if end == "does not leave":
        context.call_log.give_back(counted)
    else:
        told = [int(word) for word in end.split() if word.isdigit()]
        context.call_log.correct(counted, *told)


@then("a call of {size:d} bytes and at most {most:d} tokens may be sent")
def _(context: Context, size: int, most: int) -> None:
    counted = take(context, size, most)
    assert isinstance(counted, Counted), counted
    context.call_log.give_back(counted)


@then("no call of {size:d} bytes and at most {most:d} tokens may be sent")
def _(context: Context, size: int, most: int) -> None:
    assert not isinstance(take(context, size, most), Counted)
