"""Steps of progress: how far a run is, when it may end, and what it waits for."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from retry_steps import change
from rich.console import Console
from sqlalchemy import select, update
from staging import make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core.quantities import nano_dollars, roughly
from claude_batch.core.settings import BatchProcessingMode
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger import enqueue
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import batches
from claude_batch.providers import progress as progress_module
from claude_batch.providers.progress import Progress, expected_end
from claude_batch.providers.status import RunStatus, status_of


def _submit(context: Context, prompts: list[str]) -> None:
    context.run = context.actor.submit_sync(prompts)


@when("the API takes {seconds:d} seconds for a batch from now on")
def _(context: Context, seconds: int) -> None:
    # The settings are frozen for who serves; a scenario's API may change its mind.
    object.__setattr__(context.api.settings, "latency", float(seconds))


@when("{count:d} more prompts are submitted")
def _(context: Context, count: int) -> None:
    _submit(context, [f"more {n}" for n in range(count)])


@when("so much time passes that no batch has taken longer")
def _(context: Context) -> None:
    with context.provider._engine.ledger.write() as tx:
        tx.execute(
            update(batches)
            .where(batches.c.state == "in_progress")
            .values(submitted=batches.c.submitted - 7200)
        )


@then("the progress is {done:g} with the failures {failures}")
def _(context: Context, done: float, failures: str) -> None:
    context.progress = context.run.progress()
    assert context.progress.done == done, context.progress
    assert context.progress.failures == json.loads(failures), context.progress
    # Asked again it says the same, and is told as plain values.
    assert json.loads(json.dumps(context.run.progress().to_dict()))["done"] == done


@then("the progress's cost is that of the run's report, and nothing is expected")
def _(context: Context) -> None:
    report = context.run.cost().total
    assert context.progress.cost == report.cost > 0
    assert context.progress.cost_usd == report.cost_usd
    assert context.progress.unpriced == 0
    assert context.progress.expected_end is None


@then("the end is expected about as late as the last batch took")
def _(context: Context) -> None:
    [took] = _values(context, select(batches.c.ended - batches.c.submitted), "collected")
    [submitted] = _values(context, select(batches.c.submitted), "in_progress")
    expected = context.run.progress().expected_end
    if expected is None:  # a busy machine: it has taken longer by now
        assert time.time() - submitted >= took
    else:
        assert abs(expected - submitted - took) < 0.01, (expected, submitted, took)


def _values(context: Context, query: Any, state: str) -> list[float]:
    with context.provider._engine.ledger.read() as tx:
        return list(tx.scalars(query.where(batches.c.state == state)))


@then("no end is expected")
def _(context: Context) -> None:
    assert context.run.progress().expected_end is None


@then("the progress is soon {done:g}, with the cost of what is collected")
def _(context: Context, done: float) -> None:
    until(lambda: context.run.progress().done == done)
    assert context.run.progress().cost == context.run.cost().total.cost > 0


# What is waited for


@given("a run that is {state}")
def _(context: Context, state: str) -> None:
    context.driven = state != "parked"
    make_provider(context, drive=state not in ("storing", "queued", "parked"), settling=3600)
    if state.startswith("unknown"):
        lost = {"route": "create", "nth": [1], "action": {"type": "drop_after"}}
        context.api.set_faults({"rules": [lost]})
    if state == "cancelling":
        refused = {"route": "cancel", "action": {"type": "error", "status": 500}}
        context.api.set_faults({"rules": [refused]})
    if state == "halted":
        context.api.set_faults(
            {"rules": [{"route": "create", "action": {"type": "error", "status": 402}}]}
        )
    engine = context.provider._engine
    if state in ("storing", "queued"):
        with engine.ledger.write() as tx:
            workspace = enqueue.ensure_workspace(tx, "http://nowhere", "a fingerprint")
            lane = enqueue.ensure_lane(tx, workspace, "2026-10-21", "", "")
            kind = "run" if state == "storing" else "calls"
            run = NewRun(
                kind=kind,
                actor="tests/asker",
                workspace_id=workspace,
                mode=BatchProcessingMode(),
                created=time.time() - 5,
                process=engine.process,
            )
            context.run_id = enqueue.begin_run(tx, run)
            request = NewRequest("0" * 32, 0, None, lane, b"{}")
            enqueue.add_requests(
                tx, context.run_id, [request], created=time.time(), due=time.time() + 60
            )
        return
    try:
        context.run_id = context.provider.store(context.actor.configuration, ["one"]).id
        if state != "parked":
            context.provider.open_run(context.run_id).wait_until_sent_sync()
    except cb.AccountHaltedError:
        pass
    run = context.provider.open_run(context.run_id)
    if state.startswith("unknown"):
        until(lambda: run.status().batches[0].state is cb.BatchState.UNKNOWN)
    if state in ("cancelling", "unknown and cancelled"):
        run.cancel_sync()


@when("nobody drives it any more")
def _(context: Context) -> None:
    context.provider.close()
    make_provider(context, drive=False)
    context.driven = None


@when("sending is halted for its workspace")
def _(context: Context) -> None:
    change(
        "UPDATE workspaces SET halted = 1.0, halt_reason = 'billing', halt_message = 'no credit' "
        "WHERE id = (SELECT workspace_id FROM runs)"
    )


@when("it is cancelled")
def _(context: Context) -> None:
    context.provider.open_run(context.run_id).cancel_sync()


@then('its status says it is "{state}" and waits since a time that is past')
def _(context: Context, state: str) -> None:
    ledger = context.provider._engine.ledger
    status = status_of(ledger, context.run_id, driven=context.driven)
    context.words = status.waiting_for
    shown = {"queued": "running", "unknown and cancelled": "cancelling"}
    expected = shown.get(state, state)
    assert status.state == expected, status
    assert status.waiting_since is not None and status.waiting_since <= time.time()


@then("its status's words have")
def _(context: Context) -> None:
    assert context.text.strip() in context.words, context.words


# The display


def _status() -> RunStatus:
    return RunStatus(
        run_id="run-abcdefghij",
        state=RunState.RUNNING,
        actor="tests/asker",
        label=None,
        kind="run",
        created=time.time() - 3600,
        delivered=None,
        output=None,
        total=1000,
        counts={RequestState.SUCCEEDED: 990, RequestState.PACKED: 10},
        batches=(),
        halt=None,
        waiting_for="1 batch",
        strange_lines=0,
    )


def _progress(**fields: Any) -> Progress:
    progress = Progress(
        done=0.99999,
        completed=990,
        total=1000,
        cost=12_300_000,
        unpriced=1,
        budget=None,
        failures={"expired": 3, "api_error": 1},
        expected_end=time.time() + 12 * 60 + 5,
    )
    return replace(progress, **fields)


@then("the display's plain lines with progress are")
def _(context: Context) -> None:
    errors = io.StringIO()
    clock = iter([0.0, 10.0, 20.0])
    ticking = mock.patch("time.monotonic", lambda: next(clock))
    with redirect_stderr(errors), ticking, progress_module.display() as shown:
        shown.show(_status(), "", _progress())
        shown.show(_status(), "", _progress(expected_end=time.time() + 300))
        shown.show(_status(), "", _progress(cost=0, unpriced=0, expected_end=None))
    lines = [line.strip() for line in context.text.splitlines()]
    assert errors.getvalue().splitlines() == lines, errors.getvalue()


@then('the display says of a run with a budget of ${sum} "{words}"')
def _(context: Context, sum: str, words: str) -> None:
    told = progress_module.progress_words(_progress(budget=nano_dollars(sum)))
    assert words in told, told


@then('the display\'s table has the words "{words}"')
def _(context: Context, words: str) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    live = mock.Mock(update=console.print)
    progress_module._Table(live).show(_status(), "", _progress())
    assert words in console.export_text()


def _drawn(context: Context) -> str:
    """What the terminal was given, without its movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", context.shown)


@then("the terminal has drawn right above a table")
def _(context: Context) -> None:
    for row in context.table:
        assert re.search(rf"{row['line']}[^\n]*\n┏", _drawn(context)), (row["line"], context.shown)


@then('the terminal says "{first}", "{second}"')
def _(context: Context, first: str, second: str) -> None:
    drawn = _drawn(context)
    assert first in drawn and second in drawn, drawn


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",") if each.strip()]


@rule("the end of a run is expected")
def _(what: str, batches_submitted_ago: str, more_to_send: bool, past_batches_took: str) -> object:
    now = 1_000_000.0
    submitted = [now - ago for ago in _numbers(batches_submitted_ago)]
    end = expected_end(submitted, waits=more_to_send, took=_numbers(past_batches_took), now=now)
    return {"ends_in": "never" if end is None else end - now}


@rule("seconds are said")
def _(seconds: float) -> dict[str, str]:
    return {"words": roughly(seconds)}
