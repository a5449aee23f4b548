"""Counts of what a run asks of SQLite and of the API."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from behave import then, when
from behave.runner import Context
from sqlalchemy import event
from sqlalchemy.pool import Pool
from staging import make_provider

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


@when("the work of a run of {count:d} prompts is counted")
def _(context: Context, count: int) -> None:
    work: Counter[str] = Counter()

    def note(statement: str) -> None:
        # SQLite reports each row of an `executemany` as a statement of its own.
        words = statement.lstrip().upper()
        work.update(kind for begins, kind in KINDS.items() if words.startswith(begins))

    def connected(connection: Any, _: object) -> None:
        connection.set_trace_callback(note)

    async def ask() -> int:
        run = await context.actor.submit([f"prompt {n} of {count}" for n in range(count)])
        return len([result async for result in run.results() if result.ok])

    calls = len(context.api.log())
    event.listen(Pool, "connect", connected)
    try:
        make_provider(context, max_requests=10_000)
        assert asyncio.run(ask()) == count
        context.provider.close()
    finally:
        event.remove(Pool, "connect", connected)
    work["API calls"] = len(context.api.log()) - calls
    context.work = {**getattr(context, "work", {}), count: work}


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
