"""Steps of requests whose prompts and answers have blocks of every kind."""

from __future__ import annotations

import base64
from typing import Any

from behave import given
from behave.runner import Context
from sqlalchemy import update
from staging import make_provider, start_api, writing

import claude_batch as cb
from claude_batch.ledger.schema import params, results

_PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
).decode()

_WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}


def _cite(text: str) -> dict[str, Any]:
    return {
        "type": "char_location",
        "cited_text": text,
        "document_index": 0,
        "document_title": "Notes",
        "start_char_index": 0,
        "end_char_index": len(text),
    }


def _answer(_: dict[str, Any]) -> Any:
    return {
        "content": [
            {"type": "thinking", "thinking": "I thought about it.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {
                "type": "text",
                "text": "It is **warm**.",
                "citations": [_cite("twenty-one degrees"), _cite("warm")],
            },
            {"type": "text", "text": "Bring a coat.", "citations": [_cite("bring a coat")]},
        ]
    }


@given("a ledger with a prompt and an answer that have blocks of every kind")
def _(context: Context) -> None:
    start_api(context, responder=_answer)
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
    broken = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "is_error": True,
        "content": "the sensor is broken",
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
        {"role": "assistant", "content": [call, {**call, "id": "toolu_2"}]},
        {"role": "user", "content": [result, broken]},
    ]
    run = context.provider.store(actor, [cb.ActorRequest(messages=messages)])
    run.wait_sync()
    context.dashboard_runs = {"blocks": run}


@given("the ledger's prompts and results are overwritten")
def _(context: Context) -> None:
    with writing() as tx:
        tx.execute(update(params).values(body=b"[not json"))
        tx.execute(update(results).values(raw=b"[not json"))
