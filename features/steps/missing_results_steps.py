"""Steps about results that are missing from what the API sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from behave import then, when
from behave.runner import Context
from cli_steps import command
from sqlalchemy import select
from staging import ledger_values, until
from tables import rule

import claude_batch as cb
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.ledger.collected_batches import Gap
from claude_batch.ledger.schema import batches
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import recovery
from claude_batch.lifecycle.collection import fetch_wait
from claude_batch.lifecycle.polling import gap_since
from claude_batch.providers.status import newest_statuses

DAY = 86400.0


def gap(context: Context) -> cb.BatchStatus:
    return until(
        lambda: next((each for each in context.run.status().batches if each.missing), None)
    )


@then("a day lies between the beginning and the end of the gap")
def _(context: Context) -> None:
    found = gap(context)
    assert found.missing == 2 and found.missing_since and found.missing_until, found
    assert found.missing_until - found.missing_since == DAY, found
    # The API's clock is ours here.
    assert abs(found.missing_since - time.time()) < 60, found
    assert found.next_check is not None and found.next_check < time.time() + 300, found


@when("the provider is closed while results are missing")
def _(context: Context) -> None:
    context.since = gap(context).missing_since
    context.provider.close()


@then("the gap began when it was first seen")
def _(context: Context) -> None:
    assert ledger_values(select(batches.c.missing_since)) == [context.since]


@then("the run's results are fetched again, and {count:d} are there")
def _(context: Context, count: int) -> None:
    assert context.run.refetch_sync() == count


@when("commands advance the run until results are {state}")
def _(context: Context, state: str) -> None:
    def once() -> bool:
        command(context, "advance")
        with open_ledger() as ledger:
            [status] = ledger.query(lambda tx: newest_statuses(ledger, tx))
        if state == "lost":
            return status.finished
        return any(batch.missing for batch in status.batches)

    run_id = context.run_id
    until(once)
    context.run_id = run_id


@contextlib.contextmanager
def open_ledger() -> Generator[Ledger]:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        yield ledger
    finally:
        ledger.close()


@when("a fetch on order dies between storing and filling")
def _(context: Context) -> None:
    class Death(Exception):
        """The process is gone."""

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.DURING_COLLECT_CHUNK:
            raise Death

    context.add_cleanup(setattr, crash_points, "on_reach", None)
    crash_points.on_reach = die
    try:
        with patch.object(recovery, "_fill"):  # which the dead does not reach
            context.run.refetch_sync()
    except Death:
        crash_points.on_reach = None
        return
    raise AssertionError("it did not die")


@rule("of the run's requests a retry sends")
def _(context: Context, only: str | None) -> int:
    return asyncio.run(context.run.retry_failed(*([only] if only else [])))


@rule("a gap in the results counts")
def _(why: str, since: Any, last_seen: Any, now: float) -> float:
    return gap_since(since, last_seen, now=now, after=DAY, interval=300.0)


@rule("a fetch that lacks results is repeated")
def _(fetch: int, age_of_the_gap: float) -> dict[str, float]:
    row = SimpleNamespace(fetches=fetch - 1, poll_interval=30.0, max_poll_interval=300.0)
    gap = Gap(missing=1, since=0.0, seen=age_of_the_gap, until=DAY)
    return {"wait": fetch_wait(row, gap)}
