"""Steps that count what a process reads of a ledger on PostgreSQL, by the server's own plans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
from behave import then, when
from behave.runner import Context
from sqlalchemy import Engine, event, true
from staging import until

from claude_batch import ClaudeBatchProvider
from claude_batch.cli.status_report import StatusReader
from claude_batch.core.states import RequestState
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.ledger import transitions
from claude_batch.ledger.store import Ledger

LARGE = {"runs", "requests", "params", "results"}


@when("the ledger has {count:d} older runs like that one")
def _(context: Context, count: int) -> None:
    words = """INSERT INTO runs SELECT (jsonb_populate_record(runs, jsonb_build_object(
        'id', 'run-' || number, 'digest', number::text, 'created', created - number,
        'output', null))).* FROM runs, generate_series(1, %s) number"""
    with psycopg.connect(context.url) as connection:
        connection.execute("SET search_path TO claude_batch")
        connection.execute(words, [count])


@when("{reader} has read the ledger, and reads it after each of {count:d} commits")
def _(context: Context, reader: str, count: int) -> None:
    context.statements = []

    def record(_: Any, __: Any, words: str, values: Any, *___: Any) -> None:
        if words.lstrip().startswith(("SELECT", "UPDATE")) and "set_config" not in words:
            context.statements.append((words, values))

    writer = Ledger(context.url)
    context.add_cleanup(writer.close)
    with ExitStack() as opened:
        read = _reader(reader, opened)
        read()
        event.listen(Engine, "before_cursor_execute", record)
        try:
            for _time in range(count):
                writer.prove_writable()
                read()
        finally:
            event.remove(Engine, "before_cursor_execute", record)


def _reader(reader: str, opened: ExitStack) -> Callable[[], object]:
    url = os.environ["CLAUDE_BATCH_LEDGER"]
    if reader == "`status --watch`":
        ledger = Ledger(url)
        opened.callback(ledger.close)
        return StatusReader(ledger, None).read
    if reader == "the dashboard":
        pages = LedgerReader(url)
        opened.callback(pages.close)
        pages.start(lambda: None)
        until(lambda: pages.snapshot.added_up)
        return pages.read_again
    assert reader == "a process that drives", reader
    provider = opened.enter_context(ClaudeBatchProvider())
    engine, _ = provider.opening().result()
    until(lambda: any(worker.drives for worker in engine.ledger.workers()))
    return lambda: time.sleep(1.5)  # it wakes by the commit's notice


@then("its statements read fewer than {count:d} runs, requests, params and results")
def _(context: Context, count: int) -> None:
    assert len(context.statements) > 10, context.statements
    read: dict[str, float] = {}
    with psycopg.connect(context.url) as connection:
        connection.execute("SET search_path TO claude_batch")
        for words, values in context.statements:
            explained = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {words}", values)
            row = explained.fetchone()
            assert row is not None
            rows = sum(_rows_of(row[0][0]["Plan"]))
            read[words] = read.get(words, 0) + rows
        connection.rollback()
    assert sum(read.values()) < count, {words: rows for words, rows in read.items() if rows}


def _rows_of(plan: dict[str, Any]) -> Iterator[float]:
    """Yield how many rows of a large table each node of a plan has read."""
    if plan.get("Relation Name") in LARGE:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield rows * plan["Actual Loops"]
    if plan["Node Type"] == "Bitmap Index Scan":
        yield plan["Actual Rows"] * plan["Actual Loops"]
    for each in plan.get("Plans", []):
        yield from _rows_of(each)


@when(
    "`status --watch` has read the ledger, and reads it once all requests of the run are queued "
    "again"
)
def _(context: Context) -> None:
    ledger = Ledger(context.url)
    context.add_cleanup(ledger.close)
    reader = StatusReader(ledger, None)
    (before,) = reader.read().statuses
    assert before.finished, before
    with ledger.write() as tx:
        transitions.ask_again(tx, true(), due=0.0)
    context.report = reader.read()


@then("it shows a run of {count:d} requests that are {state:w}")
def _(context: Context, count: int, state: str) -> None:
    (status,) = context.report.statuses
    assert status.counts == {RequestState(state): count}, status
