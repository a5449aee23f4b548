"""Steps about what happens between two steps of the driver, staged at its crash points."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import anthropic
from behave import when
from behave.runner import Context
from lifecycle_steps import packed
from sqlalchemy import select, update
from staging import KEY, until

import claude_batch as cb
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.ids import new_request_ids
from claude_batch.ledger import cancellations, stored_results, submissions, workspaces
from claude_batch.ledger.high_water import HighWater, note_behind, posts_of
from claude_batch.ledger.schema import batches, former_members, requests, runs
from claude_batch.ledger.schema import workspaces as workspaces_table
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.collection import result_row_of
from claude_batch.lifecycle.ended_processes import note_interrupted
from claude_batch.money.prices import prices_of
from claude_batch.wire.encoding import custom_id, parse_custom_id
from claude_batch.wire.messages import decode_line


@contextlib.contextmanager
def _ledger():
    """The scenario's ledger, as another process opens it."""
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        yield ledger
    finally:
        ledger.close()


def _halt(context: Context) -> None:
    with _ledger() as ledger, ledger.write() as tx:
        workspaces.halt(
            tx,
            tx.scalar(select(workspaces_table.c.id)) or 0,
            reason="billing",
            error_type=None,
            message="no credit",
            now=time.time(),
            interval=300.0,
        )


def _copy_sends(context: Context) -> None:
    with _ledger() as ledger:
        with ledger.read() as tx:
            posts = posts_of(tx)
        HighWater(ledger).renew(posts)


def _fall_behind(context: Context) -> None:
    with _ledger() as ledger, ledger.write() as tx:
        note_behind(tx, time.time())


def _stop(context: Context) -> None:
    context.provider._session().driver.stop()


def at_the_point(context: Context, point: str, what: Callable[[], object]) -> None:
    """Do something once, when the driver stands at a point, to which it must come."""
    where, done = CrashPoint(point), []

    def come(reached: CrashPoint) -> None:
        if reached is where and not done:
            done.append(True)
            what()

    def end() -> None:
        crash_points.on_reach = None
        assert done, f"{point} was not reached"

    context.add_cleanup(end)
    crash_points.on_reach = come


def _step(context: Context, text: str) -> Callable[[], object]:
    """The step "When TEXT", to be taken later, with no event loop around it."""
    match = context._runner.step_registry.find_match(SimpleNamespace(step_type="when", name=text))
    assert match, text

    def take() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(match.run, context).result()

    return take


def _collect_first(context: Context) -> None:
    """Store what the API's only batch has answered, as the collector does."""
    with anthropic.Anthropic(api_key=KEY, base_url=context.api.url, max_retries=0) as client:
        [remote] = client.messages.batches.list()
        until(lambda: client.messages.batches.retrieve(remote.id).processing_status == "ended")
        raw = client.messages.batches.with_raw_response.results(remote.id).http_response.read()
    with _ledger() as ledger, ledger.write() as tx:
        seqs = {row.id: row.seq for row in tx.execute(select(requests.c.id, requests.c.seq))}
        [first] = tx.scalars(select(former_members.c.batch_id).distinct())
        for line in raw.splitlines():
            decoded = decode_line(line)
            request, _, sent = parse_custom_id(decoded.custom_id) or ("", "", 0)
            found = result_row_of(
                decoded, line, seqs[request], sent, first, prices_of(), batch=True, at=time.time()
            )
            stored_results.add_results(tx, [found])


def _cancel(context: Context) -> None:
    with _ledger() as ledger, ledger.write() as tx:
        for run_id in tx.scalars(select(runs.c.id)).all():
            cancellations.cancel_run(tx, run_id, ledger.now())


def _deliver_and_prune(_: Context) -> None:
    with cb.ClaudeBatchProvider() as provider:
        [left] = provider.outstanding()
        assert provider.open_run(left.id).mark_delivered()
        assert provider.prune(older_than=0).runs == [left.id]


def _retry(context: Context) -> None:
    context.run.retry_failed_sync()


def _take_over(_: Context) -> None:
    """Drive as another process does that takes this one for dead; take longer than it may."""
    with _ledger() as ledger, ledger.write() as tx:
        for workspace_id in tx.scalars(select(workspaces_table.c.id)).all():
            submissions.begin_epoch(tx, workspace_id)
            note_interrupted(tx, workspace_id)
    time.sleep(0.3)


EVENTS: dict[str, Callable[[Context], None]] = {
    "sending is halted": _halt,
    "a copy of the ledger has sent as many batches": _copy_sends,
    "the ledger falls behind its mark": _fall_behind,
    "the driver is stopped": _stop,
    "another process takes over": _take_over,
    "the first sending's answers are collected": _collect_first,
    "the failures of the last run are queued again": _retry,
    "another process cancels the run": _cancel,
    "another process delivers the run, and prunes it": _deliver_and_prune,
    "the disk has taken 0.3 seconds": lambda _: time.sleep(0.3),
}


@when("at the point {point} {event}")
def _(context: Context, point: str, event: str) -> None:
    """An event, or what another step says."""
    known = EVENTS.get(event)
    what = partial(known, context) if known else _step(context, event)
    at_the_point(context, point, what)


@when("a run of {count:d} prompts is stored without driving")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    context.run = context.provider.store(context.actor.configuration, context.prompts)


@when("a run of large prompts of {size:d} MB is stored without driving")
def _(context: Context, size: int) -> None:
    text = "x" * 500_000  # a megabyte would not fit into the model's context
    prompts = (f"{n} {text}" for n in range(2 * size))
    context.run = context.provider.store(context.actor.configuration, prompts)


@when("the ledger is advanced in vain")
def _(context: Context) -> None:
    try:
        context.provider.advance_sync()
    except Exception as error:
        context.error = error
    else:
        raise AssertionError("the ledger was advanced")


@when("it is packed, and its upload has broken twice")
def _(context: Context) -> None:
    packed(context)
    with _ledger() as ledger, ledger.write() as tx:
        tx.execute(update(batches).values(broken_uploads=2))


@when("a batch of {count:d} requests is made that the ledger has sent and forgotten")
def _(context: Context, count: int) -> None:
    with _ledger() as ledger:
        incarnation = ledger.incarnation
    params = {"model": "claude-haiku-4-5", "max_tokens": 9}
    with anthropic.Anthropic(api_key=KEY, base_url=context.api.url, max_retries=0) as client:
        client.messages.batches.create(
            requests=[
                {
                    "custom_id": custom_id(new_request_ids(1)[0], incarnation, 1),
                    "params": {**params, "messages": [{"role": "user", "content": f"was {n}"}]},
                }
                for n in range(count)
            ]
        )


def _rules(context: Context) -> list[dict[str, int]]:
    with urllib.request.urlopen(f"{context.api.url}/sandbox/faults/counters") as answer:
        return json.load(answer)["rules"]


@when("advancing is cancelled while the API is slow")
def _(context: Context) -> None:
    future = context.provider._engine.advance(context.provider._session())
    until(lambda: _rules(context)[0]["fired"])
    assert future.cancel()
    context.api.clear_faults()
