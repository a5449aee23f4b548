"""Steps of the official SDK against the sandbox."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from behave import then
from behave.runner import Context
from sandbox_steps import MODEL, call, contains, end, equal, params, raw_results, sdk


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


@then("the official SDK reads all {count:d} batches of the sandbox, {size:d} a page")
def _(context: Context, count: int, size: int) -> None:
    batches = sdk(context).messages.batches
    forward = [each.id for each in batches.list(limit=size)]
    equal(forward, context.sandbox_batches[::-1])
    oldest = context.sandbox_batches[0]
    backward = [each.id for each in batches.list(limit=size, before_id=oldest)]
    equal(sorted(backward), sorted(context.sandbox_batches[1:]))
    equal(len(forward), count)


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


@then("the official SDK streams from the sandbox what it answers at once")
def _(context: Context) -> None:
    fields: dict[str, Any] = json.loads(context.text)
    client = sdk(context)
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    equal(kinds[0], "message_start")
    equal(kinds[-1], "message_stop")
    told = json.loads(streamed.model_dump_json(exclude={"id"}))
    wanted = json.loads(whole.model_dump_json(exclude={"id"}))
    for block in told["content"]:
        block.pop("parsed_output", None)
    equal(told["content"], wanted["content"])
    equal(told["stop_reason"], wanted["stop_reason"])
    equal(told["stop_details"], wanted["stop_details"])
    equal(told["usage"]["output_tokens"], wanted["usage"]["output_tokens"])


@then("the official SDK counts the tokens that the sandbox bills")
def _(context: Context) -> None:
    client = sdk(context)
    fields: Any = {**params("Count me"), "system": "Be brief."}
    billed = client.messages.create(**fields).usage.input_tokens
    del fields["max_tokens"]
    equal(client.messages.count_tokens(**fields).input_tokens, billed)
    equal(client.beta.messages.count_tokens(**fields).input_tokens, billed)


@then("the official SDK lists the sandbox's models")
def _(context: Context) -> None:
    client = sdk(context)
    contains(" ".join(model.id for model in client.models.list()), MODEL)
    equal(client.models.retrieve("claude-opus-5-5").display_name, "Claude Opus 5 5")


@then("the official SDK parses a structured answer of the sandbox")
def _(context: Context) -> None:
    from pydantic import BaseModel

    class Invoice(BaseModel):
        number: str
        total: float
        lines: list[str]
        paid: bool | None

    parsed = sdk(context).messages.parse(
        model=MODEL,
        max_tokens=1000,
        messages=[{"role": "user", "content": "Read the invoice"}],
        output_format=Invoice,
    )
    assert isinstance(parsed.parsed_output, Invoice), parsed


@then("the sandbox takes a batch of {count:d} requests and streams all results")
def _(context: Context, count: int) -> None:
    one = json.dumps(params("x " * 50)).encode()
    body = b",".join(b'{"custom_id":"r%d","params":%b}' % (each, one) for each in range(count))
    call(context, "POST", "/v1/messages/batches", b'{"requests":[' + body + b"]}")
    context.sandbox_batches.append(context.sandbox_answer.json()["id"])
    end(context)
    equal(len(set(raw_results(context).splitlines())), count)
    summary = context.sandbox.billing_summary()
    equal((summary["paid"], summary["paid_more_than_once"]), (count, 1))
