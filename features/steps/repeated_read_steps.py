"""Steps that count what a process reads of a ledger on PostgreSQL, by the server's own plans."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Literal
from unittest import mock

import psycopg
from behave import then, when
from behave.runner import Context
from sqlalchemy import Engine, event, true
from staging import until

from claude_batch import ClaudeBatchProvider, make_actor
from claude_batch.cli.status_report import StatusReader
from claude_batch.core.states import RequestState
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.ledger import live_calls, transitions
from claude_batch.ledger.backends.postgres import PostgresBackend, compiled
from claude_batch.ledger.store import Leader, Ledger, Transaction
from claude_batch.ledger.submissions import begin_epoch
from claude_batch.lifecycle.packer import pack_due

LARGE = {"runs", "requests", "params", "results"}


class Undone(Exception):
    """Rolls back what a statement that was explained has done."""


RUNS = """INSERT INTO runs SELECT (jsonb_populate_record(runs, jsonb_build_object(
    'id', 'run-' || number, 'digest', number::text, 'created', created - number,
    'output', null))).* FROM runs, generate_series(1, %s) number"""
REQUESTS = """INSERT INTO requests SELECT (jsonb_populate_record(requests, jsonb_build_object(
    'seq', seq + 20 * number, 'id', number || '-' || position,
    'run_id', 'run-' || number))).* FROM requests, generate_series(1, %s) number"""


@when("the ledger has {count:d} older runs like that one")
@when("the ledger has {count:d} older runs like that one, of 20 {requests:w}")
def _(context: Context, count: int, requests: str = "") -> None:
    with psycopg.connect(context.url) as connection:
        connection.execute("SET search_path TO claude_batch")
        for words in (RUNS, REQUESTS) if requests else (RUNS,):
            connection.execute(words, [count])


@when("{reader} has read the ledger, and reads it after each of {count:d} commits")
def _(context: Context, reader: str, count: int) -> None:
    context.read = Counter[str]()

    def record(connection: Any, _: Any, words: str, values: Any, __: Any, many: bool) -> None:
        reads = words.lstrip().startswith(("SELECT", "UPDATE")) and "set_config" not in words
        if reads and not many:
            explain(connection.connection.dbapi_connection, words, values)

    def explain(connection: Any, words: str, values: Any) -> None:
        with suppress(Undone), connection.transaction():
            explained = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {words}", values)
            context.read[words] += sum(_rows_of(explained.fetchone()[0][0]["Plan"]))
            raise Undone

    pages = PostgresBackend.row_pages

    def record_pages(self: PostgresBackend, tx: Any, statement: Any, values: Any) -> Any:
        words, constants = compiled(tx, statement)
        cursor = f"DECLARE explained CURSOR FOR {words}"
        explain(tx.connection.dbapi_connection, cursor, {**constants, **values})
        return pages(self, tx, statement, values)

    writer = Ledger(context.url)
    context.add_cleanup(writer.close)
    with ExitStack() as opened:
        read = _reader(reader, opened)
        read()
        event.listen(Engine, "before_cursor_execute", record)
        opened.enter_context(mock.patch.object(PostgresBackend, "row_pages", record_pages))
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
    if reader.startswith("a process that packs") or "live calls" in reader:
        mode: Literal["live", "batch"] = "live" if "live" in reader else "batch"
        provider = ClaudeBatchProvider(drive=False, max_requests=1000, mode=mode)
        opened.callback(provider.close)
        statistics = opened.enter_context(psycopg.connect(url, autocommit=True))
        statistics.execute("ANALYZE")
        configuration = make_actor("claude-haiku-4-5").configuration
        provider.store(configuration, [f"prompt {number}" for number in range(12000)])
        if "of late" not in reader:
            statistics.execute("ANALYZE")
        ledger = provider.opening().result()[0].ledger
        if mode == "live":
            return lambda: ledger.query(_waiting_calls)
        with ledger.write() as tx:
            leader = Leader(1, begin_epoch(tx, 1))
        return lambda: pack_due(ledger, leader, ledger.now())
    assert reader == "a process that drives", reader
    provider = opened.enter_context(ClaudeBatchProvider())
    engine, _ = provider.opening().result()
    until(lambda: any(worker.drives for worker in engine.ledger.workers()))
    return lambda: time.sleep(1.5)  # it wakes by the commit's notice


def _waiting_calls(tx: Transaction) -> list[object]:
    return [live_calls.request(tx, seq) for seq, _ in live_calls.waiting(tx, 1, 10, room={})]


@then("its statements read fewer than {count:d} runs, requests, params and results")
def _(context: Context, count: int) -> None:
    assert context.read
    assert sum(context.read.values()) < count, context.read.most_common(5)


def _rows_of(plan: dict[str, Any]) -> Iterator[float]:
    """Yield how many rows of a large table each node of a plan has read, or compared in vain."""
    if plan.get("Relation Name") in LARGE:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield rows * plan["Actual Loops"]
    yield plan.get("Rows Removed by Join Filter", 0) * plan["Actual Loops"]
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
