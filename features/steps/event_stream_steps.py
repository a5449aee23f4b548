"""Steps of messages that the batched client's callers read as streams."""

from __future__ import annotations

import asyncio
from typing import Any

from behave import given, then
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


@then("{sync:Client} is answered the same with and without a stream")
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

    *context.outcomes, raw = ask_sync() if sync else asyncio.run(ask())
    one, other = (message.model_dump() for message in context.outcomes)
    # Two requests have two ids; the rest is the same answer.
    assert one.pop("id") != other.pop("id") and one == other, (one, other)
    # The lines of a text vary with its length.
    context.events = [event for event in raw if event.type != "content_block_delta"]
