"""SQLite's plans of the statements that a ledger has run."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import event
from sqlalchemy.pool import Pool
from staging import opened_ledger

from claude_batch.ledger import conversations, queries

_VALUES = re.compile(r"x?'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b", re.IGNORECASE)


@given("the ledger's statements are recorded")
def _(context: Context) -> None:
    # By their form: SQLite reports each statement with its values.
    recorded: dict[str, str] = {}
    counts = Counter[str]()

    def record(statement: str) -> None:
        if statement.lstrip().lower().startswith(("select", "update", "delete", "insert")):
            recorded.setdefault(_VALUES.sub("?", statement), statement)
            counts[_VALUES.sub("?", statement)] += 1

    def connected(connection: Any, _: object) -> None:
        connection.set_trace_callback(record)

    event.listen(Pool, "connect", connected)
    context.add_cleanup(event.remove, Pool, "connect", connected)
    context.statements, context.statement_counts = recorded, counts


@when("a queue of jobs asks what there is to do")
def _(_context: Context) -> None:
    with opened_ledger() as ledger, ledger.read() as tx:
        assert not queries.workspaces_at_work(tx, ledger.now())
        assert not conversations.tool_callers(tx)


def _plans(context: Context) -> list[tuple[str, list[str]]]:
    assert len(context.statements) > 30, "hardly any statement was recorded"
    with closing(sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"])) as connection:
        return [
            (words, [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {words}")])
            for words in list(context.statements.values())  # a thread may still record
        ]


@then("no recorded statement scans {tables}")
def _(context: Context, tables: str) -> None:
    named = "|".join(re.split(", | or ", tables))
    # An index of the few requests in a rare state may be read whole.
    rare = "(?!.* INDEX ix_requests_(continuing|held|lost))"
    scan = re.compile(rf"SCAN ({named})\b{rare}")
    found = [
        f"{line}: {words}" for words, plan in _plans(context) for line in plan if scan.search(line)
    ]
    assert not found, "\n".join(found)


@then('the recorded statements with "{words}" read {table} by {index}')
def _(context: Context, words: str, table: str, index: str) -> None:
    parts = words.split('" and "')
    plans = [
        line
        for statement, plan in _plans(context)
        if all(part in statement for part in parts)
        for line in plan
        if f" {table} " in f"{line} "
    ]
    assert plans, f"no recorded statement has {words!r}"
    ways = [
        f"COVERING INDEX {way.removeprefix('the covering ')} "
        if way.startswith("the covering ")
        else f"INDEX {way} "
        for way in index.split(" or ")
    ]
    assert all(any(way in f"{line} " for way in ways) for line in plans), plans


@then('the recorded statements with "{words}" ran at most {most:d} times')
def _(context: Context, words: str, most: int) -> None:
    ran = sum(count for form, count in context.statement_counts.items() if words in form)
    assert 0 < ran <= most, ran
