"""Steps about budgets: what the API bills is compared with what was allowed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from behave import given, then, when
from behave.runner import Context
from money_steps import bill
from staging import make_provider

import claude_batch as cb
from claude_batch.core.dollars import nano_dollars


@given('a command\'s file "{name}" of {count:d} requests that use {usage}')
def _(context: Context, name: str, count: int, usage: str) -> None:
    used = json.loads(usage)
    lines: list[str] = []
    for number in range(1, count + 1):
        prompt = json.dumps({**used, "note": number})
        lines.append(json.dumps({"id": f"ask-{number}", "prompt": prompt}) + "\n")
    Path(name).write_text("".join(lines))


@then("the API's bill is within ${limit}, and has answers")
def _(context: Context, limit: str) -> None:
    cost, _ = bill(context)
    assert 0 < cost <= nano_dollars(limit), cost


@then("the API has processed each of {count:d} requests once")
def _(context: Context, count: int) -> None:
    billed = [each["params_sha256"] for each in context.api.billing()]
    assert len(billed) == len(set(billed)) == count, billed


@then('the file "{name}" has {count:d} answers')
def _(context: Context, name: str, count: int) -> None:
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"ask-{n}" for n in range(1, count + 1)], lines
    assert all(line.get("response") or line.get("text") for line in lines), lines[0]


@given("a provider with the settings {settings}")
def _(context: Context, settings: str) -> None:
    make_provider(context, **{"max_wait": "5s", **json.loads(settings)})


@when("somebody asks {usage} with {tokens:d} tokens at most")
def _(context: Context, usage: str, tokens: int) -> None:
    messages = [{"role": "user", "content": usage}]
    params = {"model": "claude-haiku-4-5", "max_tokens": tokens, "messages": messages}
    asked = cb.ActorRequest(params=params)
    try:
        context.answer, context.refused = context.actor.respond_sync(asked), None
    except cb.ActorError as error:
        context.answer, context.refused = None, error


@then("the call is refused with {kind}: {words}")
def _(context: Context, kind: str, words: str) -> None:
    assert type(context.refused).__name__ == kind, repr(context.refused)
    assert words in str(context.refused), context.refused


@then("the call has its answer")
def _(context: Context) -> None:
    assert context.refused is None, context.refused
    assert context.answer.text == "done"


@then("there is no ledger yet")
def _(context: Context) -> None:
    assert not Path(os.environ["CLAUDE_BATCH_LEDGER"]).exists()


@then("the API has counted {count:d} requests")
def _(context: Context, count: int) -> None:
    counted = [call for call in context.api.log() if call["route"] == "count_tokens"]
    assert [call["status"] for call in counted] == [200] * count, counted
