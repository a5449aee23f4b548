"""Steps of conversations whose turns are asked live, by the ledger's own calls."""

from __future__ import annotations

import os
import threading
import time

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import func, select
from staging import (
    LIVE,
    QUICK,
    ledger_values,
    make_provider,
    run_of_a_process_that_dies,
    until,
)

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.ledger import live_calls as live_ledger
from claude_batch.ledger import queries
from claude_batch.ledger.schema import requests, runs
from claude_batch.ledger.store import Ledger

use_step_matcher("parse")


def _paid(context: Context) -> dict[str, int]:
    """How many turns were paid for, in batches and live; none of them twice."""
    summary = context.api.billing_summary()
    assert summary["paid_more_than_once"] == 0, summary
    bill = context.api.billing()
    return {
        route: sum(each["route"] == route and each["outcome"] == "succeeded" for each in bill)
        for route in ("batch", "live")
    }


@then("each of its {count:d} turns was asked live, and paid for once")
def _(context: Context, count: int) -> None:
    assert _paid(context) == {"batch": 0, "live": count}, _paid(context)
    assert not [each for each in context.api.log() if each["route"] == "create"]


# --- tools that wait --------------------------------------------------------------------------


@given("its actor has the tool that is held")
def _(context: Context) -> None:
    context.held = threading.Event()
    context.add_cleanup(context.held.set)
    held = context.held

    def hold(city: str) -> str:
        """Keep a city."""
        assert held.wait(60)
        return f"{city} was kept"

    context.actor = cb.Actor(context.actor.configuration, context.provider, tools=[hold])


@given("its actor has the tool that ends when the margin has passed")
def _(context: Context) -> None:
    def wait(city: str) -> str:
        """Wait for it."""
        until(lambda: any(ledger_values(select(runs.c.past_margin))))
        return f"{city} was waited for"

    context.actor = cb.Actor(context.actor.configuration, context.provider, tools=[wait])


@when("a conversation whose tool is held and one that pauses are asked as one run")
def _(context: Context) -> None:
    prompts = ["Look [[sandbox:tools]]", "Search [[sandbox:pause:2]]"]
    context.run = context.provider.store(context.actor.configuration, prompts)


@then("the one that pauses is answered while the tool is held")
def _(context: Context) -> None:
    until(lambda: context.run.status().counts.get(RequestState.SUCCEEDED))
    [state] = ledger_values(select(requests.c.state).where(requests.c.position == 0))
    assert state == RequestState.CONTINUING and not context.held.is_set(), state
    context.held.set()
    first, second = context.run.results_sync()
    assert "was kept" in first.unwrap().text and second.unwrap().turns == 3, (first, second)


# --- deadlines --------------------------------------------------------------------------------


@when("the run of a conversation is asked to its end")
def _(context: Context) -> None:
    context.run = context.actor.submit_sync(["Look [[sandbox:tools]]"])
    [context.result] = context.run.results_sync()


@then("its first turn came from a batch and its second from a live call, each paid once")
def _(context: Context) -> None:
    answer = context.result.unwrap()
    assert (answer.turns, answer.via) == (2, "live"), answer
    assert _paid(context) == {"batch": 1, "live": 1}, _paid(context)


@then("it has expired in its turn 2, and its first turn alone was paid for")
def _(context: Context) -> None:
    error = context.result.error
    assert isinstance(error, cb.BatchRequestError) and error.outcome == "expired", error
    assert "turn 2 of the conversation of request at position 0 did not run" in str(error), error
    assert _paid(context) == {"batch": 1, "live": 0}, _paid(context)


# --- other ways -------------------------------------------------------------------------------


@when('the run of "{prompt}" advances once')
def _(context: Context, prompt: str) -> None:
    run = context.provider.store(context.actor.configuration, [prompt])
    context.run_id = run.id
    context.provider.advance_sync()
    assert run.status().finished, run.status()
    context.results = list(run.results_sync())


@then("the progress and the report of the run have the cost of all {count:d} turns")
def _(context: Context, count: int) -> None:
    assert _paid(context) == {"batch": 0, "live": count}, _paid(context)
    [run_id] = ledger_values(select(runs.c.id))
    wanted = sum(result.unwrap().cost for result in context.results)
    with cb.open_run(run_id, **QUICK) as run:
        progress, report = run.progress(), run.cost().total
    assert progress.cost == report.cost == wanted > 0, (progress, report, wanted)
    assert progress.expected_end is None and progress.done == 1.0, progress


@when("a process of its own has {count:d} live conversations, and dies {point}")
def _(context: Context, count: int, point: str) -> None:
    prompts = [f"Look at {n} [[sandbox:tools]]" for n in range(count)]
    tools = ["toolbox:weather"]
    context.run_id = run_of_a_process_that_dies(point, prompts, tools=tools, **LIVE)
    make_provider(context)


@then("no turn was paid for twice, and {lost} of {count:d} are lost")
def _(context: Context, lost: str, count: int) -> None:
    assert len(context.results) == count
    good = [result for result in context.results if result.ok]
    bad = [result.error for result in context.results if not result.ok]
    assert all(result.response.turns == 2 for result in good), good
    assert all(isinstance(error, cb.SubmissionUnknownError) for error in bad), bad
    assert bad or "none" in lost, context.results
    assert _paid(context)["live"] >= 2 * len(good), _paid(context)


@when("the ledger is as if restored from a copy made before the tool's result")
def _(context: Context) -> None:
    context.run = context.provider.store(context.actor.configuration, ["Look [[sandbox:tools]]"])
    until(lambda: context.run.status().counts.get(RequestState.CONTINUING))
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        [workspace_id] = queries.workspace_ids(tx)
        assert live_ledger.forgotten(tx, workspace_id, time.time()) == 1
    # How many turns were asked, nothing tells: no bound is known of what they cost.
    assert ledger_values(select(requests.c.reserve)) == [-1]
    ledger.close()
    context.held.set()


@then("the conversation is lost, and its next turn is asked only on explicit order")
def _(context: Context) -> None:
    [result] = context.run.results_sync()
    assert isinstance(result.error, cb.SubmissionUnknownError), result
    time.sleep(0.3)  # nothing comes of its tool's result
    assert _paid(context) == {"batch": 0, "live": 1}, _paid(context)
    assert ledger_values(select(func.count()).where(requests.c.state == "lost")) == [1]
    assert context.run.resubmit_unknown_sync() == 1
    [result] = context.run.results_sync()
    assert "was kept" in result.unwrap().text, result
