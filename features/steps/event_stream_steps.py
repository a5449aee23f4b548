"""Steps of messages that the batched client's callers read as streams."""

from __future__ import annotations

import asyncio
from typing import Any

from behave import given, then, when
from behave.runner import Context
from finished_messages import finished_messages
from integration_steps import _params
from staging import start_api


@given("an API for the batched client that answers: {name}")
def _(context: Context, name: str) -> None:
    message = finished_messages()[name].value
    start_api(
        context,
        responder=lambda _: {name: message[name] for name in ("content", "stop_reason")},
    )


@when("{sync:Client} asks the same with and without a stream")
def _(context: Context, sync: bool) -> None:
    async def ask() -> tuple[Any, ...]:
        async def streamed() -> Any:
            async with context.sdk.messages.stream(**_params({})) as stream:
                return await stream.get_final_message()

        async def raw() -> list[Any]:
            stream = await context.sdk.messages.create(**_params({}), stream=True)
            return [event async for event in stream]

        return await asyncio.gather(context.sdk.messages.create(**_params({})), streamed(), raw())

    def ask_sync() -> tuple[Any, ...]:
        whole = context.sdk.messages.create(**_params({}))
        with context.sdk.messages.stream(**_params({})) as stream:
            final = stream.get_final_message()
        return whole, final, list(context.sdk.messages.create(**_params({}), stream=True))

    context.whole, context.final, context.raw = ask_sync() if sync else asyncio.run(ask())


@then("the batched client's final messages are equal")
def _(context: Context) -> None:
    whole, final = context.whole.model_dump(), context.final.model_dump()
    # Two requests have two ids; the rest is the same answer.
    assert whole.pop("id") != final.pop("id")
    assert whole == final, (whole, final)
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]


@then("the batched client's raw stream begins with {first} and ends with {last}")
def _(context: Context, first: str, last: str) -> None:
    kinds = [event.type for event in context.raw]
    assert (kinds[0], kinds[-1]) == (first, last), kinds
    assert kinds.count("content_block_start") == 3, kinds
