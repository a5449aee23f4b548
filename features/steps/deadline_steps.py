"""Steps for deadlines, modes and live calls of the ledger, against the sandbox over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import time
from types import SimpleNamespace
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select, update
from staging import (
    LIVE,
    ledger_values,
    make_provider,
    run_of_a_process_that_dies,
    unknown_command,
    until,
)
from tables import rule

import claude_batch as cb
from claude_batch.core.errors import LedgerError
from claude_batch.core.outcome import Disposition, Outcome
from claude_batch.core.quantities import parse_duration
from claude_batch.ledger import live_calls as live_ledger
from claude_batch.ledger import run_deadlines, submissions
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.run_deadlines import Experience
from claude_batch.ledger.schema import runs, workspaces
from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.deadline_driver import Deadlines, margin_of, missed_because
from claude_batch.lifecycle.live_driver import judge
from claude_batch.lifecycle.packer import goes_live
from claude_batch.providers.status import status_of
from claude_batch.wire.live_client import LiveAnswer

use_step_matcher("parse")

# --- the bill -------------------------------------------------------------------------------------


def _paid(context: Context) -> dict[str, int]:
    """How many requests were paid for, in batches and live."""
    bill = context.api.billing()
    return {
        route: sum(each["route"] == route and each["outcome"] == "succeeded" for each in bill)
        for route in ("batch", "live")
    }


def _never_twice(context: Context) -> None:
    summary = context.api.billing_summary()
    assert summary["paid_more_than_once"] == 0, summary


def _via(results: list[Any]) -> dict[str, int]:
    found = {"batch": 0, "live": 0}
    for result in results:
        if result.ok:
            found[result.response.via] += 1
    return found


@then(
    "some of the {count:d} answers came from batches and the others live, each paid once at its "
    "price"
)
def _(context: Context, count: int) -> None:
    paid, via = _paid(context), _via(context.results)
    assert via == paid, (via, paid)
    assert sum(paid.values()) == count and min(paid.values()) > 0, paid
    _never_twice(context)
    for result in context.results:
        tokens = result.response.usage
        live = tokens.input_tokens * 1000 + tokens.output_tokens * 5000
        wanted = live if result.response.via == "live" else live // 2
        assert result.response.cost == wanted, (result.response.cost, wanted)


@then("some of the {count:d} answers came from batches, and the others are expired at no cost")
def _(context: Context, count: int) -> None:
    paid, via = _paid(context), _via(context.results)
    assert via == paid and paid["live"] == 0 and 0 < paid["batch"] < count, (via, paid)
    failed = [result.error for result in context.results if not result.ok]
    assert len(failed) == count - paid["batch"]
    for error in failed:
        assert isinstance(error, cb.BatchRequestError) and error.outcome == "expired", error
        assert "did not run before its run's deadline" in str(error), error


@then("{batch:d} answers came from batches and {live:d} live, each paid once")
def _(context: Context, batch: int, live: int) -> None:
    wanted = {"batch": batch, "live": live}
    assert _via(context.results) == wanted, context.results
    assert _paid(context) == wanted, _paid(context)
    _never_twice(context)


@then("{count:d} calls were paid for live, none twice")
def _(context: Context, count: int) -> None:
    assert _paid(context)["live"] == count, _paid(context)
    _never_twice(context)


@then("the API got {calls:d} live calls, and was paid {paid:d} times")
def _(context: Context, calls: int, paid: int) -> None:
    seen = [each for each in context.api.log() if each["route"] == "messages"]
    assert len(seen) == calls, seen
    until(lambda: _paid(context)["live"] == paid)


@then("every answer was paid for once, and the others are canceled at no cost")
def _(context: Context) -> None:
    good = [result for result in context.results if result.ok]
    assert 0 < len(good) < len(context.results), context.results
    assert _paid(context)["live"] == len(good)
    for result in context.results:
        assert result.ok or result.error.outcome == "canceled", result.error


@then("no request was paid for twice, and {lost} of {count:d} are lost")
def _(context: Context, lost: str, count: int) -> None:
    _never_twice(context)
    assert len(context.results) == count
    good = [result for result in context.results if result.ok]
    bad = [result for result in context.results if not result.ok]
    assert all(isinstance(result.error, cb.SubmissionUnknownError) for result in bad), bad
    assert bad or "none" in lost, context.results
    # Whatever was not lost is answered, and was paid for.
    assert _paid(context)["live"] >= len(good)


# --- asking ---------------------------------------------------------------------------------------


@given("the API answers live calls with each {fault}")
def _(context: Context, fault: str) -> None:
    _live_fault(context, fault)


@given("the API answers live calls with the first {fault}")
@given("the API answers the live call number {nth:d} with {fault}")
def _(context: Context, fault: str, nth: int = 1) -> None:
    _live_fault(context, fault, nth=nth)


def _live_fault(context: Context, fault: str, **selector: Any) -> None:
    rule = {"route": "messages", "action": json.loads(fault), **selector}
    context.api.set_faults({"rules": [rule]})


def _store(context: Context, count: int, provider: cb.ClaudeBatchProvider) -> cb.Run:
    context.prompts = [f"prompt {n}" for n in range(count)]
    return provider.store(context.actor.configuration, context.prompts)


@when("a run of {count:d} prompts is stored at once")
def _(context: Context, count: int) -> None:
    context.run = _store(context, count, context.provider)


@when("a run of {count:d} prompts is stored at once, and the answers cannot be stored at first")
def _(context: Context, count: int) -> None:
    before, failures = live_ledger.finish, []

    def finish(*arguments: Any) -> None:
        if len(failures) < 2:
            failures.append(None)
            raise LedgerError("the disk is full", fault="full")
        before(*arguments)

    live_ledger.finish = finish
    context.add_cleanup(lambda: setattr(live_ledger, "finish", before))
    context.run = _store(context, count, context.provider)
    until(lambda: len(failures) == 2)


@when(
    "a run of {count:d} prompts without a deadline and one of {other:d} with a deadline of "
    '"{deadline}" and a margin of "{margin}" are stored at once'
)
def _(context: Context, count: int, other: int, deadline: str, margin: str) -> None:
    asked = context.actor.configuration
    hurried = cb.ClaudeBatchProvider(deadline=deadline, deadline_margin=margin, poll_interval=0.05)
    context.add_cleanup(hurried.close)
    context.hurried = hurried.store(asked, [f"hurried {n}" for n in range(other)])
    context.run = _store(context, count, context.provider)


@then("the run without a deadline is answered from one batch, and the other live or from another")
def _(context: Context) -> None:
    async def read(run: Any) -> list[Any]:
        return [result async for result in run.results()]

    calm, hurried = asyncio.run(read(context.run)), asyncio.run(read(context.hurried))
    assert all(result.response.via == "batch" for result in calm), calm
    shared = {result.response.batch_id for result in calm}
    assert len(shared) == 1, calm
    assert any(result.response.via == "live" for result in hurried), hurried
    assert not shared & {result.response.batch_id for result in hurried}, hurried
    _never_twice(context)
    assert context.api.billing_summary()["paid"] == len(calm) + len(hurried)


@when("some of it is answered, and the run is cancelled")
def _(context: Context) -> None:
    until(lambda: context.run.status().counts.get(cb.RequestState.SUCCEEDED))
    context.run.cancel_sync()


@when("the run's lost requests are asked again")
def _(context: Context) -> None:
    assert context.run.resubmit_unknown_sync() == 1


@when("sending need not wait any more, and the run's failures are tried again")
def _(context: Context) -> None:
    # On a busy machine the deadline may have passed before the API was asked at all.
    context.api.clear_faults()
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        tx.execute(update(workspaces).values(wait_until=None))
    ledger.close()
    assert context.run.retry_failed_sync() == len(context.prompts)


@when("the run's deadline passes")
def _(context: Context) -> None:
    [deadline] = ledger_values(select(runs.c.deadline))
    until(lambda: time.time() > deadline)


@when("a process of its own asks a run of {count:d} prompts live, and dies {point}")
def _(context: Context, count: int, point: str) -> None:
    prompts = [f"prompt {n}" for n in range(count)]
    context.run_id = run_of_a_process_that_dies(point, prompts, **LIVE)
    make_provider(context)


@then('the status of that run says "{words}", and nothing of live calls')
def _(context: Context, words: str) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    said = status_of(ledger, context.run_id).waiting_for
    ledger.close()
    assert words in said and "live calls" not in said, said


@then(
    '"claude-batch unknown" tells of {count:d} calls that were under way, and asks them again on '
    "order"
)
def _(context: Context, count: int) -> None:
    said = unknown_command(context.run_id)
    words = f"{count} requests: its process ended during live calls"
    assert words in said, said
    assert f"{count} requests of {context.run_id} queued again" in unknown_command(
        context.run_id, "--resubmit"
    )
    assert "no requests are unknown" in unknown_command(context.run_id)


@then("all {count:d} are answered, and no request was paid for twice")
def _(context: Context, count: int) -> None:
    _never_twice(context)
    assert [result.ok for result in context.results] == [True] * count, context.results


@then("the call is answered live")
def _(context: Context) -> None:
    [outcome] = context.outcomes
    assert isinstance(outcome, cb.ActorResponse) and outcome.via == "live", outcome


@then("the call may have been paid for")
def _(context: Context) -> None:
    [outcome] = context.outcomes
    assert isinstance(outcome, cb.SubmissionUnknownError), repr(outcome)
    assert "its live call ended without an answer" in str(outcome), outcome


@then(
    "a live call that never left is refused, one without a key is the account's, and one without "
    "an answer is lost"
)
def _(context: Context) -> None:
    no_key = LiveAnswer(reason="no key", never_left=True, no_credential=True)
    never_left = LiveAnswer(reason="no route", never_left=True)
    assert judge(never_left) == (Outcome.NOT_SENT, Disposition.RETRY)
    assert judge(no_key) == (Outcome.NOT_SENT, Disposition.ACCOUNT)
    assert judge(LiveAnswer(reason="ReadTimeout")) == (Outcome.MISSING, Disposition.FINAL)


@when(
    "another copy of the ledger has sent as much, and a run of {count:d} prompts is stored at once"
)
def _(context: Context, count: int) -> None:
    before = HighWater.raise_to
    HighWater.raise_to = lambda self, posts, *, sending=False: not sending
    context.add_cleanup(lambda: setattr(HighWater, "raise_to", before))
    context.run = _store(context, count, context.provider)


@when("the run is finished at last")
def _(context: Context) -> None:
    until(lambda: context.run.status().finished)


# --- deadlines ------------------------------------------------------------------------------------


@then("the run's deadline was {outcome}")
def _(context: Context, outcome: str) -> None:
    found = until(lambda: ledger_values(select(runs.c.deadline_outcome))[0])
    assert found.startswith(outcome), found


@then(
    "the status has a deadline with the margin {margin:g}, the fallback {fallback} and no outcome"
)
def _(context: Context, margin: float, fallback: str) -> None:
    deadline = context.run.status().deadline
    assert deadline is not None
    assert (deadline.margin, deadline.fallback, deadline.outcome) == (margin, fallback, None)
    assert deadline.withdrawn is None and deadline.at > time.time()


@then("the ledger has learned how long a cancelled batch and a live call take")
def _(context: Context) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.read() as tx:
        seen = run_deadlines.experience(tx, 1)
    ledger.close()
    assert seen.cancel_seconds is not None and 0 < seen.cancel_seconds < 20, seen
    assert seen.live_seconds is not None and 0 < seen.live_seconds < 5, seen


# --- the rule of auto -----------------------------------------------------------------------------


@then(
    "its deadline is looked at {seconds:d} seconds later, and once more when the clock has jumped "
    "back"
)
def _(context: Context, seconds: int) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        workspace_id: int = tx.execute(select(runs.c.workspace_id)).scalar_one()
        seat = Seat(workspace_id, submissions.take_seat(tx, workspace_id))
    watched = Deadlines(ledger)
    changed, rest = watched.look(seat, time.time() + seconds)
    assert changed, "it was not withdrawn"
    time.sleep(rest)
    changed, _rest = watched.look(seat, time.time())
    ledger.close()
    assert changed, "it was not looked at again"


@rule("the margin of a run is")
def _(
    time: str, unfinished: int, set_to: str, a_cancelled_batch_took: Any, a_call_took: Any
) -> float:
    run: Any = SimpleNamespace(
        created=1000.0,
        deadline=1000.0 + parse_duration(time),
        deadline_margin=parse_duration(set_to) if set_to else None,
        live_concurrency=8,
    )
    return round(margin_of(run, unfinished, Experience(a_cancelled_batch_took, a_call_took)), 2)


@rule("a run has missed its deadline because of its requests")
def _(count: int, state: str, batch: str) -> str:
    standing = {(state, "" if batch == "none" else batch): count}
    words = missed_because(standing, None)
    assert missed_because(standing, "no credit") == f"sending is halted (no credit); {words}"
    return words


@rule("waiting requests go live")
def _(waiting: int, runs: str) -> dict[str, bool]:
    choices: list[Any] = []
    for each in [] if runs == "no run" else runs.split(", "):
        kind, mode, threshold, *rest = each.split()
        choices.append(
            SimpleNamespace(
                kind=kind,
                mode=mode,
                auto_threshold=int(threshold),
                request_count=int(rest[1]) if rest else 1000,
            )
        )
    return {"live": goes_live(waiting, choices)}
