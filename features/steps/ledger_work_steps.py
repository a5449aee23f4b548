"""Counts of what a run asks of SQLite and of the API."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from unittest import mock

from behave import then, when
from behave.runner import Context
from sqlalchemy import delete, event, func, select, update
from sqlalchemy.pool import Pool
from staging import QUICK, ledger_values, make_provider, writing

import claude_batch as cb
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import cancellations, queries
from claude_batch.ledger.schema import batches, requests, results
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle import collection
from claude_batch.lifecycle.engine import RunWatch, RunWatches
from claude_batch.lifecycle.waiters import CallFuture, Waiter, Waiting

KINDS = {
    # A read begins a deferred transaction, which writes nothing and flushes nothing.
    "BEGIN IMMEDIATE": "write transactions",
    "INSERT": "writing statements",
    "UPDATE": "writing statements",
    "DELETE": "writing statements",
    "REPLACE": "writing statements",
    "SELECT": "reading statements",
    "WITH": "reading statements",
}


@contextmanager
def counted_work() -> Iterator[Counter[str]]:
    """Count what the connections that are opened meanwhile ask of SQLite."""
    work: Counter[str] = Counter()

    def note(statement: str) -> None:
        # SQLite reports each row of an `executemany` as a statement of its own.
        words = statement.lstrip().upper()
        work.update(kind for begins, kind in KINDS.items() if words.startswith(begins))

    def connected(connection: Any, _: object) -> None:
        connection.set_trace_callback(note)

    event.listen(Pool, "connect", connected)
    try:
        yield work
    finally:
        event.remove(Pool, "connect", connected)


@when("the work of a run of {count:d} prompts is counted")
def _(context: Context, count: int) -> None:
    async def ask() -> int:
        run = await context.actor.submit([f"prompt {n} of {count}" for n in range(count)])
        return len([result async for result in run.results() if result.ok])

    calls = len(context.api.log())
    with counted_work() as work:
        make_provider(context, max_requests=10_000)
        assert asyncio.run(ask()) == count
        context.provider.close()
    work["API calls"] = len(context.api.log()) - calls
    context.work = {**getattr(context, "work", {}), count: work}


@when("the work of resuming a run of {count:d} prompts is counted, of which {missing:d} lack")
def _(context: Context, count: int, missing: int) -> None:
    make_provider(context, max_requests=500, drive=False)
    prompts = [f"prompt {n} of {count}" for n in range(count)]
    run = context.provider.store(context.actor.configuration, prompts)
    while not run.status().finished:
        assert context.provider.advance_sync()
    context.provider.close()
    _take_back_the_last_batch(missing)
    with counted_work() as work:
        make_provider(context, drive=False)
        run = context.provider.open_run(run.id)
        assert context.provider.advance_sync()
        context.work = {**getattr(context, "work", {}), count: Counter(work)}
    assert run.status().finished
    context.provider.close()


def _take_back_the_last_batch(count: int) -> None:
    """Make the ledger that of a process which died before it fetched the last batch's results."""
    with writing() as tx:
        last = tx.scalar(select(func.max(batches.c.id)))
        ended = {"state": BatchState.ENDED, "collected": None}
        tx.execute(update(batches).where(batches.c.id == last).values(ended))
        tx.execute(delete(results).where(results.c.batch_id == last))
        waits = {"state": RequestState.PACKED, "finished": None, "answered_by": None}
        found = tx.execute(update(requests).where(requests.c.batch_id == last).values(waits))
        assert found.rowcount == count, found.rowcount


@then("a thousand prompts more take at most")
def _(context: Context) -> None:
    (few, less), (many, more) = context.work.items()
    assert all(more[row["work"]] for row in context.table), more
    found = {
        row["work"]: (more[row["work"]] - less[row["work"]]) * 1000 / (many - few)
        for row in context.table
    }
    bounds = {row["work"]: int(row["times"]) for row in context.table}
    assert all(found[work] <= most for work, most in bounds.items()), (found, context.work)


# Many batches, many runs


@when("{count:d} batches wait at the API, and one pass is counted")
def _(context: Context, count: int) -> None:
    with counted_work() as work:
        # The pass would poll at its end, too, if it took longer than the interval.
        make_provider(context, max_requests=1, drive=False, poll_interval=600)
        prompts = [f"prompt {n} of {count}" for n in range(count)]
        context.run = context.provider.store(context.actor.configuration, prompts)
        assert context.provider.advance_sync()
        check_now()
        work.clear()
        calls = len(context.api.log())
        assert context.provider.advance_sync()
        work["API calls"] = len(context.api.log()) - calls
        del work["writing statements"]  # each batch has a row
        context.work = {**getattr(context, "work", {}), count: Counter(work)}
    context.run.cancel_sync()
    while not context.run.status().finished:  # else the next pass that is counted would collect it
        check_now()
        context.provider.advance_sync()
    context.provider.close()


def check_now() -> None:
    """Let the next pass look at every batch."""
    with writing() as tx:
        tx.execute(update(batches).values(next_check=0.0))


@when("{count:d} batches end at the same time, and the pass that collects them is counted")
def _(context: Context, count: int) -> None:
    # However slow this machine is, all are fetched before the first is stored.
    with counted_work() as work, mock.patch.object(collection, "TOGETHER_SECONDS", 60.0):
        make_provider(context, max_requests=1, drive=False)
        prompts = [f"prompt {n} of {count}" for n in range(count)]
        context.run = context.provider.store(context.actor.configuration, prompts)
        assert context.provider.advance_sync()
        context.api.advance_clock(3601)
        time.sleep(4 * QUICK["poll_interval"])
        calls = len(context.api.log())
        work.clear()
        assert context.provider.advance_sync()
        found = Counter(work)
    assert context.run.status().finished
    found["API calls"] = len(context.api.log()) - calls - count  # each has results of its own
    del found["writing statements"]  # and rows
    context.work = {**getattr(context, "work", {}), count: found}
    context.provider.close()


@when("{count:d} runs are stored, sent, collected and read in one process, and counted")
def _(context: Context, count: int) -> None:
    with counted_work() as work:
        make_provider(context, drive=False)
        runs = [
            context.provider.store(
                context.actor.configuration, [f"{n} of run {number} of {count}" for n in range(3)]
            )
            for number in range(count)
        ]
        assert context.provider.advance_sync()
        context.api.advance_clock(3601)
        time.sleep(4 * QUICK["poll_interval"])
        assert context.provider.advance_sync()
        assert all(result.ok for run in runs for result in run.results_sync())
        found = work["reading statements"] + work["writing statements"]
        context.statements_of_runs = {**getattr(context, "statements_of_runs", {}), count: found}
        context.provider.close()


@then("each run takes as many statements, however many others there are")
def _(context: Context) -> None:
    (few, first), (more, second), (most, third) = context.statements_of_runs.items()
    of_each, of_each_more = (second - first) / (more - few), (third - second) / (most - more)
    # With a step that looks at every run for each run, it would be three times as many.
    assert 0 < of_each_more < 1.5 * of_each, context.statements_of_runs


@when("{count:d} runs are waited for, one of them ends, and one look is counted")
def _(context: Context, count: int) -> None:
    make_provider(context, drive=False)
    runs = [
        context.provider.store(context.actor.configuration, [f"prompt of run {n} of {count}"]).id
        for n in range(count)
    ]
    context.provider.close()
    watches = [RunWatch(run_id) for run_id in runs]

    async def look(ledger: Ledger, work: Counter[str]) -> list[str]:
        watched = RunWatches(ledger)
        for watch in watches:
            watched.wait(watch, 0, Future())
        watched.version = 1
        watched.look()
        futures: dict[str, Future[int]] = {watch.run_id: Future() for watch in watches}
        for watch in watches:
            watched.wait(watch, 1, futures[watch.run_id])
        assert not any(future.done() for future in futures.values())
        with ledger.write() as tx:
            cancellations.cancel_run(tx, runs[-1], time.time())
        work.clear()
        watched.version = 2
        watched.look()
        context.work = {**getattr(context, "work", {}), count: Counter(work)}
        return [run_id for run_id, future in futures.items() if future.done()]

    with counted_work() as work:
        ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
        woken = asyncio.run(look(ledger, work))
        ledger.close()
    # One other caller may take its turn.
    assert runs[-1] in woken, woken
    assert len(woken) <= 2, woken


@when("callers wait for calls of {count:d} runs, and one delivery is counted")
def _(context: Context, count: int) -> None:
    async def deliver(ledger: Ledger, work: Counter[str]) -> None:
        waiting = Waiting(ledger, *[lambda *_: None] * 3)
        for n in range(count):
            waiter = Waiter(CallFuture(), n, f"run-{n}", None, cb.BatchProcessingMode())
            waiting.add(waiter, seconds=60.0, since=0)
        waiting.deliver()
        work.clear()
        waiting.deliver()
        context.work = {**getattr(context, "work", {}), count: Counter(work)}

    with counted_work() as work:
        ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
        asyncio.run(deliver(ledger, work))
        ledger.close()


@then("calls that wait in a run of {count:d} answers read at most {most:d} of them")
def _(context: Context, count: int, most: int) -> None:
    """Two wait for answers that come later, one after the other."""
    make_provider(context)
    run = context.actor.submit_sync([f"prompt {n}" for n in range(count)])
    run.wait_sync()
    context.provider.close()
    of_run = requests.c.run_id == run.id
    seqs = ledger_values(select(requests.c.seq).where(of_run).order_by(requests.c.seq))
    [last] = ledger_values(select(func.max(requests.c.finished)).where(of_run))

    def change(some: list[int], state: RequestState, finished: int | None) -> None:
        with writing() as tx:
            chosen = update(requests).where(requests.c.seq.in_(some))
            tx.execute(chosen.values(state=state, finished=finished))

    change(seqs[-2:], RequestState.QUEUED, None)
    read = Counter[str]()
    answers_since = queries.answers_since

    def counted(*given: Any, **more: Any) -> Any:
        found = answers_since(*given, **more)
        read["answers"] += len(found)
        return found

    async def deliver(ledger: Ledger) -> None:
        waiting = Waiting(ledger, *[lambda *_: None] * 3)
        futures = [CallFuture(), CallFuture()]
        for seq, future in zip(seqs[-2:], futures, strict=True):
            waiter = Waiter(future, seq, run.id, None, cb.BatchProcessingMode())
            waiting.add(waiter, seconds=60.0, since=last)
        waiting.deliver()
        change(seqs[-1:], RequestState.SUCCEEDED, last + 1)
        waiting.deliver()
        assert [each.done() for each in futures] == [False, True]
        change(seqs[-2:-1], RequestState.SUCCEEDED, last + 2)
        waiting.deliver()
        assert all(each.done() for each in futures)

    with mock.patch.object(queries, "answers_since", counted):
        ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
        asyncio.run(deliver(ledger))
        ledger.close()
    assert read["answers"] <= most, read


@then("none of it grows with their number")
def _(context: Context) -> None:
    (few, less), (many, more) = context.work.items()
    assert less["reading statements"], less
    # The engine may happen to look at the ledger meanwhile, which is a few statements.
    grown = {kind: more[kind] - less[kind] for kind in more}
    assert all(count < (many - few) / 2 for count in grown.values()), context.work
