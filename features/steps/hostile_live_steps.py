"""Steps of a server that answers live calls with successes that cannot be read."""

from __future__ import annotations

import os

from behave import given, then, when
from behave.runner import Context
from hostile_server import MESSAGES, Answer, spelled
from sqlalchemy import select
from staging import KEY, ledger_values, make_provider

import claude_batch as cb
from claude_batch.ledger.schema import charges, results

BODIES = {
    "with the page of a proxy": b"<html>Welcome</html>",
    "with half a Message": b'{"type": "message", "content": [{"ty',
    "with an object that is no Message": b'{"status": "ok"}',
    "with an error in a success": b'{"type": "error", "error": {"type": "x", "message": "y"}}',
    "with carriage returns": (
        b'{\r\n"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5",'
        b'\r\n"content": [\r\n{"type": "text",\r\n"text": "prompt 1"}],"stop_reason": "end_turn",'
        b'\r\n"stop_sequence": null, "usage": {\r\n"input_tokens": 9,\r"output_tokens": 9}\r\n}'
    ),
}


@given("it answers live calls {how}")
def _(context: Context, how: str) -> None:
    context.bodies = []

    def trick(answer: Answer) -> None:
        if answer.kind != "live":
            return
        if how in MESSAGES:
            message = answer.json()
            MESSAGES[how](message)
            answer.body = spelled(message)
        else:
            answer.body = BODIES[how]
        context.bodies.append(answer.body)

    context.hostile.trick = trick


@when("a prompt is asked live through the ledger")
def _(context: Context) -> None:
    make_provider(context, mode="live", max_attempts=1, budget_usd="1")
    context.run = context.actor.submit_sync(["hello"])
    [result] = context.run.results_sync()
    context.error, context.through_ledger = result.error, True


@then("the malformed answer has the server's bytes")
@then("the malformed answer has the server's bytes, and so has the ledger")
def _(context: Context) -> None:
    error = context.error
    assert isinstance(error, cb.MalformedAnswerError) and error.problem, error
    [body] = context.bodies
    assert body in error.raw
    if context.through_ledger:
        assert "billed" in str(error), error
        [kept] = ledger_values(select(results.c.raw))
        assert body in kept


@then("its price counts as {known}")
def _(context: Context, known: str) -> None:
    total = context.run.cost().total
    spent = sum(ledger_values(select(charges.c.spent)))
    kept = sum(ledger_values(select(charges.c.doubt)))
    reserved = sum(ledger_values(select(charges.c.reserved)))
    assert reserved == 0
    if known == "known":
        assert total.cost > 0 and total.unpriced_answers == 0, total
        assert (spent, kept) == (total.cost, 0), (spent, kept)
    else:
        # Budgets keep what it may have cost.
        assert total.cost == 0 and total.unpriced_answers == 1, total
        assert spent == 0 < kept, (spent, kept)


@when("a prompt is asked of a live provider")
def _(context: Context) -> None:
    context.bodies.clear()
    url = os.environ["ANTHROPIC_BASE_URL"]
    with cb.ClaudeProvider(base_url=url, api_key=KEY) as provider:
        configuration = cb.ActorConfiguration(
            name="tests/live", provider="anthropic", model="claude-haiku-4-5"
        )
        [result] = cb.Actor(configuration, provider).respond_all_sync(["hello"])
        context.error, context.through_ledger = result.error, False


@then("the server was asked once")
def _(context: Context) -> None:
    assert len(context.bodies) == 1
