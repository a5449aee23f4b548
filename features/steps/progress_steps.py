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
from sqlalchemy import select
from staging import make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.quantities import roughly
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger import enqueue, workspaces
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import batches
from claude_batch.providers import progress_reports
from claude_batch.providers.progress import Progress, expected_end
from claude_batch.providers.status import RunStatus, status_of


def _submit(context: Context, prompts: list[str]) -> None:
    context.run = context.actor.submit_sync(prompts)


@when("{count:d} more prompts are submitted")
def _(context: Context, count: int) -> None:
    _submit(context, [f"more {n}" for n in range(count)])


@then("the progress is {done:g} with the failures {failures}")
def _(context: Context, done: float, failures: str) -> None:
    context.progress = context.run.progress()
    assert context.progress.done == done, context.progress
    assert context.progress.failures == json.loads(failures), context.progress
    # Asked again it says the same, and is told as plain values.
    assert json.loads(json.dumps(context.run.progress().to_dict()))["done"] == done


@then("the progress's cost is that of the run's report")
def _(context: Context) -> None:
    progress, report = context.run.progress(), context.run.cost().total
    assert progress.cost == report.cost > 0
    assert progress.cost_usd == report.cost_usd
    assert progress.unpriced == 0


@then("the end is expected about as late as the last batch took")
def _(context: Context) -> None:
    with context.provider.engine().ledger.read() as tx:
        [took] = workspaces.past_durations(tx, 1, 1)
    [submitted] = _values(context, select(batches.c.submitted), "in_progress")
    expected = context.run.progress().expected_end
    if expected is None:  # a busy machine: it has taken longer by now
        assert time.time() - submitted >= took
    else:
        assert abs(expected - submitted - took) < 0.01, (expected, submitted, took)


def _values(context: Context, query: Any, state: str) -> list[float]:
    with context.provider.engine().ledger.read() as tx:
        return list(tx.scalars(query.where(batches.c.state == state)))


# What is waited for


@given("a run that is {state}")
def _(context: Context, state: str) -> None:
    make_provider(context, drive=state not in ("storing", "queued", "parked"), settling=3600)
    context.driver = context.provider if state != "parked" else None
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
    engine = context.provider.engine()
    if state in ("storing", "queued"):
        with engine.ledger.write() as tx:
            workspace = workspaces.ensure_workspace(tx, "http://nowhere", "a fingerprint")
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
    run = context.run = context.provider.open_run(context.run_id)
    if state.startswith("unknown"):
        until(lambda: run.status().batches[0].state is cb.BatchState.UNKNOWN)
    if state in ("cancelling", "unknown and cancelled"):
        run.cancel_sync()


@then('its status says it is "{state}" and waits since a time that is past')
def _(context: Context, state: str) -> None:
    ledger = context.provider.engine().ledger
    # A run that was written into the ledger is as if the provider that wrote it drove it.
    driven = True if context.provider is context.driver else None
    status = status_of(ledger, context.run_id, driven=driven)
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
    with redirect_stderr(errors), ticking, progress_reports.display() as show:
        show(_status(), _progress())
        show(_status(), _progress(expected_end=time.time() + 300))
        show(_status(), _progress(cost=0, unpriced=0, expected_end=None))
    lines = [line.strip() for line in context.text.splitlines()]
    assert errors.getvalue().splitlines() == lines, errors.getvalue()


@rule("a change is printed by progress=True")
def _(seconds_after_the_first_line: float) -> dict[str, float]:
    errors, now = io.StringIO(), 0.0
    with redirect_stderr(errors), mock.patch("time.monotonic", lambda: now):
        reports = progress_reports.Reports(True)
        while True:
            version = int(now >= seconds_after_the_first_line)
            if reports.is_due(version):
                reports.report(_progress(completed=version), replace(_status(), total=version))
                reports.rest(0.0)
            if errors.getvalue().count("\n") == 2:
                return {"at": now}
            now = round(now + 0.1, 1)


@rule("progress is put into words")
def _(fields: dict[str, Any]) -> dict[str, list[str]]:
    return {"words": progress_reports.progress_words(_progress(**fields))}


@then("the terminal has drawn right above a table")
def _(context: Context) -> None:
    # Without its movements of the cursor.
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", context.shown)
    for row in context.table:
        assert re.search(rf"{row['line']}[^\n]*\n┏", drawn), (row["line"], context.shown)


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",") if each.strip()]


@rule("the end of a run is expected")
def _(
    what: str,
    batches_submitted_ago: str,
    more_to_send: bool,
    one_after_another: int,
    past_batches_took: str,
    pause: float,
) -> object:
    now = 1_000_000.0
    submitted = [now - ago for ago in _numbers(batches_submitted_ago)]
    took = _numbers(past_batches_took)
    end = expected_end(
        submitted, waits=more_to_send, took=took, now=now, rounds=one_after_another, pause=pause
    )
    return {"ends_in": "never" if end is None else end - now}


@rule("seconds are said")
def _(seconds: float) -> dict[str, str]:
    return {"words": roughly(seconds)}
