"""Steps about requests that were cancelled, by us or by somebody at the API."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import anthropic
from behave import then, when
from behave.runner import Context
from retry_steps import change
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


@contextlib.contextmanager
def _canceled_at_the_api(context: Context) -> Iterator[None]:
    """Cancel what the block sends, as somebody else would."""

    def cancel() -> None:
        until(lambda: _created(context))
        _cancel_everything(context)

    canceling = threading.Thread(target=cancel)
    canceling.start()
    yield
    canceling.join()


@when('"{prompt}" is asked while somebody else cancels its batch at the API')
def _(context: Context, prompt: str) -> None:
    context.error = None
    with _canceled_at_the_api(context):
        try:
            context.actor.respond_sync(prompt)
        except cb.ActorError as error:
            context.error = error


@when("the batched client asks while somebody else cancels its batch at the API")
def _(context: Context) -> None:
    with _canceled_at_the_api(context):
        context.execute_steps("When the batched client asks")


@when('"{prompt}" is submitted, and somebody else cancels its second turn at the API')
def _(context: Context, prompt: str) -> None:
    context.run = context.actor.submit_sync([prompt])
    until(lambda: _created(context) == 1)
    # The first turn ends as if its 30 seconds had passed; the second is there when it is listed.
    context.api.advance_clock(31.0)
    until(lambda: _created(context) == 2)
    _cancel_everything(context)
    context.run.wait_sync()
    context.results = list(context.run.results_sync())


@when("the ledger says that the run was withdrawn for its deadline, and not cancelled")
def _(context: Context) -> None:
    change("UPDATE runs SET cancelled = NULL, past_margin = 1.0")


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


@then('its message has not "{words}"')
def _(context: Context, words: str) -> None:
    assert words not in str(context.error), str(context.error)


@then("the run's answers took {count:d} turns, and the API was asked for no turn twice")
def _(context: Context, count: int) -> None:
    assert [result.unwrap().turns for result in context.results] == [count], context.results
    summary = context.api.billing_summary()
    assert summary["paid_more_than_once"] == 0 and summary["paid"] == count, summary
