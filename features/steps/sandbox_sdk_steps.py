"""Steps of the official SDK against the sandbox."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import anthropic
from behave import then
from behave.runner import Context
from sandbox_steps import MODEL, end, equal, params, sdk
from tables import rule


@then("the official SDK lives through a batch in the sandbox")
def _(context: Context) -> None:
    batches = sdk(context).messages.batches
    requests: Any = [
        {"custom_id": f"r{each}", "params": params(f"Prompt {each}")} for each in range(3)
    ]
    made = batches.create(requests=requests)
    equal((made.processing_status, made.request_counts.processing), ("in_progress", 3))
    equal((made.expires_at - made.created_at).total_seconds(), 86400.0)
    end(context)
    read = batches.retrieve(made.id)
    equal((read.processing_status, read.request_counts.succeeded), ("ended", 3))
    assert read.ended_at is not None and read.results_url is not None
    found = {each.custom_id: each.result for each in batches.results(made.id)}
    equal(sorted(found), ["r0", "r1", "r2"])
    for result in found.values():
        assert result.type == "succeeded"
        equal(result.message.usage.service_tier, "batch")
    equal([each.id for each in batches.list()], [made.id])
    equal(batches.delete(made.id).type, "message_batch_deleted")
    stopped = batches.cancel(batches.create(requests=requests).id)
    equal(stopped.processing_status, "canceling")


@then("the official SDK raises {name} for a batch in the sandbox")
def _(context: Context, name: str) -> None:
    try:
        sdk(context).messages.batches.create(
            requests=[{"custom_id": "r0", "params": params()}]  # type: ignore[typeddict-item]
        )
    except anthropic.APIError as error:
        equal(type(error).__name__, name)
    else:
        raise AssertionError("nothing was raised")


@then("the official SDK parses a structured answer of the sandbox")
def _(context: Context) -> None:
    from pydantic import BaseModel, Field

    class Invoice(BaseModel):
        # The SDK moves the bounds into descriptions.
        number: str = Field(max_length=12, pattern="^[0-9]+$")
        total: float = Field(gt=10, lt=11, description="In dollars {with tax}")
        lines: list[str] = Field(min_length=2, max_length=4)
        numbers: set[int] = Field(min_length=3)
        paid: bool | None

    parsed = sdk(context).messages.parse(
        model=MODEL,
        max_tokens=1000,
        messages=[{"role": "user", "content": "Read the invoice"}],
        output_format=Invoice,
    )
    assert isinstance(parsed.parsed_output, Invoice), parsed


@rule("the official SDK reads from the sandbox")
def _(context: Context, call: str, arguments: str, field: str) -> Any:
    """A field of what a call returns, `*.id` for all pages; a batch is named by its number."""
    names = {batch: f"batch {number}" for number, batch in enumerate(context.sandbox_batches, 1)}
    for batch, name in names.items():
        arguments = arguments.replace(name, batch)
    found = attrgetter(call)(sdk(context))(**json.loads(arguments))
    if field.startswith("*."):
        found = [attrgetter(field[2:])(each) for each in found]
        return [names.get(each, each) for each in found]
    return attrgetter(field)(found)


@rule("the official SDK reads a stream like the whole answer,")
def _(context: Context, params: dict[str, Any]) -> dict[str, Any]:
    fields = {"model": MODEL, "max_tokens": 100, **params}
    client = sdk(context)
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    equal((kinds[0], kinds[-1]), ("message_start", "message_stop"))
    told, wanted = (json.loads(each.model_dump_json()) for each in (streamed, whole))
    for block in told["content"]:
        block.pop("parsed_output", None)
    for name in ("content", "stop_reason", "stop_details"):
        equal(told[name], wanted[name])
    equal(told["usage"]["output_tokens"], wanted["usage"]["output_tokens"])
    return {"stop_reason": told["stop_reason"], "blocks": len(told["content"])}
