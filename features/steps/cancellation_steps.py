"""Steps about requests that were cancelled, by us or by somebody at the API."""

from __future__ import annotations

import threading

import anthropic
from behave import given, then, when
from behave.runner import Context
from staging import until

import claude_batch as cb


def _cancel_everything(context: Context) -> None:
    """As the Console does, or another program with the same key."""
    with anthropic.Anthropic() as client:
        listed = client.messages.batches.list()
        for batch in listed:
            if batch.processing_status == "in_progress":
                client.messages.batches.cancel(batch.id)


def _created(context: Context) -> int:
    return sum(call["route"] == "create" for call in context.api.log())


@when("somebody else cancels the batches at the API")
@when("somebody else cancels the batches at the API, {seconds:d} seconds later")
def _(context: Context, seconds: int = 0) -> None:
    context.api.advance_clock(float(seconds))
    _cancel_everything(context)


@given("somebody else cancels the first batch at the API, as soon as it is there")
def _(context: Context) -> None:
    def cancel() -> None:
        until(lambda: _created(context))
        _cancel_everything(context)

    canceling = threading.Thread(target=cancel)
    canceling.start()
    context.add_cleanup(canceling.join)


@when("the canceled requests are asked again as the error says")
def _(context: Context) -> None:
    *_, command, run_id, flag, outcome = str(context.results[0].error).split()
    assert (command, run_id, flag) == ("retry", context.run.id, "--only"), context.results[0].error
    before = _created(context)
    assert context.run.retry_failed_sync([outcome]) == len(context.results)
    until(lambda: _created(context) > before)
    context.api.advance_clock(31.0)
    context.run.wait_sync()
    context.results = list(context.run.results_sync())


@then("each result says that it is canceled")
def _(context: Context) -> None:
    words = context.text.strip().replace("RUN", context.run.id)
    assert context.results
    for result in context.results:
        assert isinstance(result.error, cb.BatchRequestError), result
        assert result.error.outcome == "canceled", result.error
        assert words in str(result.error), str(result.error)


@then('the errors were canceled by "{whom}"')
def _(context: Context, whom: str) -> None:
    found = {result.error.canceled_by for result in context.results}
    assert found == {whom}, found


@then("the errors do not speak of conversations")
def _(context: Context) -> None:
    for result in context.results:
        assert "conversation" not in str(result.error), str(result.error)
        assert "turn" not in str(result.error), str(result.error)
