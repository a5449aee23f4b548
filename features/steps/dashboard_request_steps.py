"""Steps of requests whose prompts and answers have blocks of every kind."""

from __future__ import annotations

import base64
from typing import Any

from behave import given
from behave.runner import Context
from staging import make_provider, start_api

import claude_batch as cb

_PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
).decode()

_WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}


def _answer(_: dict[str, Any]) -> Any:
    return {
        "content": [
            {"type": "thinking", "thinking": "I thought about it.", "signature": "c2lnbmVk"},
            {"type": "text", "text": "It is **warm**."},
        ]
    }


@given("an API whose answers have blocks of several kinds")
def _(context: Context) -> None:
    start_api(context, responder=_answer)


@given("a ledger with a prompt that has blocks of every kind")
def _(context: Context) -> None:
    make_provider(context)
    actor = context.actor.configuration.model_copy(
        update={
            "system_prompt": "Be brief.",
            "options": {"max_tokens": 1024, "tools": [_WEATHER]},
        }
    )
    text = {"type": "text", "media_type": "text/plain", "data": "a plain text of a document"}
    png = {"type": "base64", "media_type": "image/png", "data": _PNG}
    pdf = {"type": "url", "url": "https://example.com/a.pdf"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "21 degrees"}],
    }
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "document", "title": "Notes", "source": text},
                {"type": "document", "source": pdf},
                {"type": "image", "source": png},
                {"type": "text", "text": "How is it?"},
            ],
        },
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    run = context.provider.store(actor, [cb.ActorRequest(messages=messages)])
    run.wait_sync()
    context.dashboard_runs = {"blocks": run}
