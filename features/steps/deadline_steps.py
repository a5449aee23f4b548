"""Steps for deadlines, modes and live calls of the ledger, against the sandbox over real HTTP."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from behave import given, then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values, reading, until
from tables import rule

import claude_batch as cb
from claude_batch.core.quantities import parse_duration
from claude_batch.ledger import queries, run_deadlines, submissions
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.run_deadlines import Experience
from claude_batch.ledger.schema import batches, runs
from claude_batch.ledger.store import Leader, Ledger
from claude_batch.lifecycle.deadline_driver import (
    LONGEST_REST,
    RESTS_PER_LOOK,
    Deadlines,
    margin_of,
    missed_because,
)
from claude_batch.lifecycle.live_answers import outcome_of
from claude_batch.lifecycle.live_driver import LiveCalls
from claude_batch.lifecycle.packer import goes_live
from claude_batch.wire.batches_client import Outage
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


@then(
    "some of the {count:d} requests are answered and paid for once, and the others are {outcome} "
    "at no cost"
)
def _(context: Context, count: int, outcome: str) -> None:
    paid, via = _paid(context), _via(context.results)
    assert via == paid and 0 < sum(paid.values()) < count == len(context.results), (via, paid)
    _never_twice(context)
    for result in context.results:
        if not result.ok:
            context.error = result.error
            assert isinstance(context.error, cb.BatchRequestError), context.error
            assert context.error.outcome == outcome, context.error


@then("the API was paid for {batch:d} requests in batches and {live:d} live, none twice")
def _(context: Context, batch: int, live: int) -> None:
    assert _paid(context) == {"batch": batch, "live": live}, _paid(context)
    _never_twice(context)


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


@then("no request was paid for twice, and {lost} of {count:d} are lost")
def _(context: Context, lost: str, count: int) -> None:
    _never_twice(context)
    assert len(context.results) == count
    good = [result for result in context.results if result.ok]
    bad = [result for result in context.results if not result.ok]
    assert all(isinstance(result.error, cb.SubmissionUnknownError) for result in bad), bad
    assert bad or "none" in lost, context.results
    # Whatever was not lost is answered, and each of its turns was paid for.
    assert all(result.response.stop_reason == "end_turn" for result in good), good
    assert _paid(context)["live"] >= sum(result.response.turns for result in good)


# --- asking ---------------------------------------------------------------------------------------


@given("the API answers live calls with each {fault}")
def _(context: Context, fault: str) -> None:
    _live_fault(context, fault)


@given("the API answers live calls with the first {fault}")
@given("the API answers the live call number {nth:d} with {fault}")
def _(context: Context, fault: str, nth: int = 1) -> None:
    _live_fault(context, fault, nth=nth)


@given("the API answers the first {times:d} live calls with {fault}")
def _(context: Context, times: int, fault: str) -> None:
    _live_fault(context, fault, times=times)


def _live_fault(context: Context, fault: str, **selector: Any) -> None:
    rule = {"route": "messages", "action": json.loads(fault), **selector}
    context.api.set_faults({"rules": [rule]})


def _store(context: Context, count: int, provider: cb.ClaudeBatchProvider) -> cb.Run:
    context.prompts = [f"prompt {n}" for n in range(count)]
    return provider.store(context.actor.configuration, context.prompts)


@when("a run of {count:d} prompts is stored at once")
def _(context: Context, count: int) -> None:
    context.run = _store(context, count, context.provider)


@when("the run's lost requests are asked again")
def _(context: Context) -> None:
    assert context.run.resubmit_unknown_sync() == 1


@then("the call is answered live")
def _(context: Context) -> None:
    [outcome] = context.outcomes
    assert isinstance(outcome, cb.ActorResponse) and outcome.via == "live", outcome


@then("the provider notes an outage: {words}")
def _(context: Context, words: str) -> None:
    _other, live = context.provider.session().client.outage._silences
    assert live.failures and words in live.reason, live


@then("the call may have been paid for")
def _(context: Context) -> None:
    [outcome] = context.outcomes
    assert isinstance(outcome, cb.SubmissionUnknownError), repr(outcome)
    assert "its live call ended without an answer" in str(outcome), outcome


@when(
    "another copy of the ledger has sent as much, and a run of {count:d} prompts is stored at once"
)
def _(context: Context, count: int) -> None:
    before = HighWater.raise_to
    HighWater.raise_to = lambda self, posts, *, sending=False, at=None: not sending
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


def experience() -> Experience:
    with reading() as tx:
        return run_deadlines.experience(tx, 1)


@then("the ledger has learned nothing of how long a live call takes")
def _(context: Context) -> None:
    assert ledger_values(select(batches.c.request_count).where(batches.c.state == "live")) == [2]
    seen = experience()
    assert seen.live_seconds is None, seen


@then("the ledger has learned how long {things}")
def _(context: Context, things: str) -> None:
    seen = experience()
    if things != "a live call takes":
        assert things == "a cancelled batch and a live call take"
        assert seen.cancel_seconds is not None and 0 < seen.cancel_seconds < 20, seen
    assert seen.live_seconds is not None and 0 < seen.live_seconds < 5, seen


@rule("a live call without an answer is judged")
def _(never_left: bool, no_credential: bool, withheld: bool) -> dict[str, object]:
    answer = LiveAnswer(
        reason="x", never_left=never_left, no_credential=no_credential, withheld=withheld
    )
    outcome, disposition = outcome_of(answer)
    outage = Outage("http://there")
    driver: Any = SimpleNamespace(_client=SimpleNamespace(outage=outage))
    LiveCalls._note_outage(driver, answer)
    return {"outcome": outcome, "disposition": disposition, "outage": outage.why() is not None}


# --- the rule of auto -----------------------------------------------------------------------------


@then("its deadline is looked at {seconds:d} seconds later, {and_then}")
def _(context: Context, seconds: int, and_then: str) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        workspace_id: int = tx.execute(select(runs.c.workspace_id)).scalar_one()
        leader = Leader(workspace_id, submissions.begin_epoch(tx, workspace_id))
    watched = Deadlines(ledger)
    now = time.time() + seconds
    if and_then == "and once more when the clock has jumped back":
        changed, rest = watched.look(leader, now)
        assert changed, "it was not withdrawn"
        time.sleep(rest)
        changed, _rest = watched.look(leader, time.time())
        assert changed, "it was not looked at again"
    elif and_then == "slowly, and once more within a minute":
        watched.look(leader, now)  # it is withdrawn
        watched._next.clear()
        standing = queries.standing

        def slow_standing(*of: Any) -> Any:
            time.sleep(1.5)
            return standing(*of)

        with mock.patch.object(queries, "standing", slow_standing):
            watched.look(leader, now)
        [planned] = watched._next.values()
        assert planned - time.monotonic() < LONGEST_REST < 1.5 * RESTS_PER_LOOK
    else:
        assert and_then == "slowly, and once more no later than its margin begins"
        experience = run_deadlines.experience

        def slowly(*of: Any) -> Experience:
            time.sleep(0.5)
            return experience(*of)

        with mock.patch.object(run_deadlines, "experience", slowly):
            _changed, rest = watched.look(leader, now)
        with ledger.read() as tx:
            [run] = run_deadlines.open_deadlines(tx, workspace_id)
        left = run.deadline - run.deadline_margin - now
        assert left < 0.5 * RESTS_PER_LOOK, "the look was not slow enough"
        assert rest <= left, (rest, left)
    ledger.close()


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
def _(count: int, state: str, batch: str, fallback: str) -> str:
    standing = {(state, "" if batch == "none" else batch): count}
    words = missed_because(standing, None, fallback)
    halted = missed_because(standing, "no credit", fallback)
    assert halted == f"sending is halted (no credit); {words}"
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
