"""Steps about how runs end, and what they say of it."""

from __future__ import annotations

from unittest import mock

from behave import given, then, when
from behave.runner import Context
from meanwhile_steps import _at
from sqlalchemy import select
from staging import ledger_values, until

from claude_batch.ledger.schema import requests
from claude_batch.lifecycle.conversation_driver import Conversations
from claude_batch.providers import run_waiter


@given("no patience with what was cancelled")
def _(context: Context) -> None:
    context.add_cleanup(setattr, run_waiter, "CANCEL_GRACE", run_waiter.CANCEL_GRACE)
    run_waiter.CANCEL_GRACE = 0.3


@then('its first error says "{words}"')
def _(context: Context, words: str) -> None:
    error = context.results[0].error
    assert error.outcome == "canceled" and words in str(error), error


@when('a run of "{prompt}" stands between two turns')
def _(context: Context, prompt: str) -> None:
    context.run = context.provider.store(context.actor.configuration, [prompt])
    with mock.patch.object(Conversations, "look", lambda *_, **__: 60.0):
        states = select(requests.c.state)
        until(lambda: context.provider.advance_sync() and ledger_values(states) == ["continuing"])


@then("the status does not speak of tools")
def _(context: Context) -> None:
    assert "tools" not in context.run.status().waiting_for, context.run.status().waiting_for


@when("two runs are delivered, and the failure of the second is asked again as the first is pruned")
def _(context: Context) -> None:
    configuration = context.actor.configuration
    prompts = ("a", "[[sandbox:errored:invalid_request_error]] b")
    context.runs = [context.provider.submit_sync(configuration, [each]) for each in prompts]
    for run in context.runs:
        run.wait_sync()
        run.mark_delivered()
    _at(context, "during_pruning", lambda context: context.runs[1].retry_failed_sync())
    context.pruned = context.provider.prune(runs=[run.id for run in context.runs])


@then("the first is gone, and the second is kept because it is unfinished")
def _(context: Context) -> None:
    first, second = (run.id for run in context.runs)
    assert context.pruned.runs == [first], context.pruned
    assert context.pruned.kept == {second: "it is unfinished"}, context.pruned
    assert context.provider.open_run(second).status().total == 1
