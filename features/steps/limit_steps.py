"""Steps of the user's own limits: batches in flight and in an hour, live calls in a minute."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import httpx2
from behave import then, when
from behave.runner import Context
from staging import KEY, make_provider
from tables import rule

import claude_batch as cb
from claude_batch.wire.pace import CallLog, Counted, OwnLimits


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


@when("{seconds:g} seconds pass")
def _(context: Context, seconds: float) -> None:
    time.sleep(seconds)


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


@rule("after calls of 40 bytes and at most 80 tokens another one waits for 100 tokens a minute,")
def _(answers: list[list[int] | None]) -> dict[str, bool]:
    """Each answer's tokens in and out, or null where the call did not leave."""
    log, limits = CallLog(), OwnLimits(tokens=100)
    for told in answers:
        counted = log.take(0.0, limits, 40, 80)
        assert isinstance(counted, Counted), counted
        if told is None:
            log.give_back(counted)
        else:
            log.correct(counted, *told)
    return {"it_waits": not isinstance(log.take(0.0, limits, 40, 80), Counted)}


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
