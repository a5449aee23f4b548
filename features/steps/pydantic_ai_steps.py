"""Steps of pydantic-ai's agents over the batched client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import httpx2
from behave import given, then, when
from behave.runner import Context
from integration_steps import MODEL, _held
from pydantic import BaseModel
from staging import QUICK, until

import claude_batch as cb
from claude_batch.integrations import transport


class Invoice(BaseModel):
    number: str
    total: float


def _agent(sdk: Any, *, max_tokens: int | None = 1000, **words: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    kind = "http_client" if isinstance(sdk, httpx2.AsyncClient) else "anthropic_client"
    model = AnthropicModel(MODEL, provider=AnthropicProvider(**{kind: sdk}))
    settings: Any = {"max_tokens": max_tokens} if max_tokens else {}
    return Agent(model, model_settings=settings, **words)


@given("an http_client")
def _(context: Context) -> None:
    context.sdk = cb.http_client(**QUICK)
    context.add_cleanup(context.sdk._transport._provider.close)


@when("{agents:d} pydantic-ai agents and {calls:d} plain calls of that provider ask together")
def _(context: Context, agents: int, calls: int) -> None:
    sdk = cb.client(provider=context.provider)
    made = [_agent(sdk) for _ in range(agents)]

    async def ask() -> list[Any]:
        runs = [asyncio.create_task(agent.run(f"question {n}")) for n, agent in enumerate(made)]
        # The first run of an agent imports much: the batch shall not leave meanwhile.
        await asyncio.to_thread(until, lambda: _held() == agents)
        plain = [context.actor.respond(f"question {agents + n}") for n in range(calls)]
        found = await asyncio.gather(*runs, *plain)
        return [each.output for each in found[:agents]] + [each.text for each in found[agents:]]

    context.answers = asyncio.run(ask())


async def _for_output(context: Context, kind: Any) -> None:
    agent = _agent(context.sdk, output_type=kind)
    context.result = await agent.run("read this invoice [[tool:final_result]]")


async def _for_native_output(context: Context) -> None:
    from pydantic_ai import NativeOutput

    await _for_output(context, NativeOutput(Invoice))


async def _with_a_tool(context: Context) -> None:
    agent = _agent(context.sdk)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    context.result = await agent.run("[[tool:weather]] how is it?")


async def _without_max_tokens(context: Context) -> None:
    agent = _agent(context.sdk, max_tokens=None)
    with mock.patch(
        "claude_batch.integrations.transport.response_of", wraps=transport.response_of
    ) as told:
        context.result = await agent.run("hello")
    [call] = told.mock_calls
    context.call = call.kwargs


async def _as_streams(context: Context) -> None:
    async with _agent(context.sdk).run_stream("hello") as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
        used = result.usage
    context.result = {"output": "".join(pieces), "usage": used() if callable(used) else used}


async def _against_an_overloaded_api(context: Context) -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    try:
        await _agent(context.sdk).run("[[sandbox:errored:overloaded_error]]")
    except ModelHTTPError as error:
        context.error = error


AGENT_RUNS: dict[str, Callable[[Context], Awaitable[None]]] = {
    "for the tool's output": lambda context: _for_output(context, Invoice),
    "for native output": _for_native_output,
    "with a tool": _with_a_tool,
    "without max_tokens": _without_max_tokens,
    "as streams": _as_streams,
    "against an overloaded API": _against_an_overloaded_api,
}


@when("pydantic-ai agents are run {how}")
def _(context: Context, how: str) -> None:
    async def run() -> None:
        await AGENT_RUNS[how](context)

    asyncio.run(run())


@then("the pydantic-ai agents have an invoice")
def _(context: Context) -> None:
    assert isinstance(context.result.output, Invoice), context.result
    assert context.result.usage.output_tokens > 0
    assert context.api.billing_summary()["requests"] == 1
