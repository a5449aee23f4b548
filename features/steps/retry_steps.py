"""Steps about retrying what failed in a run."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import ledgers_on_postgres
from behave import then, when
from behave.runner import Context
from cli_steps import creates
from staging import make_provider

import claude_batch as cb


def output(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


@then('the output "{name}" has the states {states}')
def _(context: Context, name: str, states: str) -> None:
    found = [line["error"]["type"] if not line["ok"] else "succeeded" for line in output(name)]
    assert found == states.split(", "), found
    assert [line["id"] for line in output(name)] == [str(n + 1) for n in range(len(found))]


@then('the output "{name}" has the attempts {attempts}')
def _(context: Context, name: str, attempts: str) -> None:
    found = [line["attempt"] for line in output(name)]
    assert found == [int(word) for word in attempts.split(", ")], found


def batch_sizes(context: Context) -> list[int]:
    sizes: dict[str, int] = {}
    for record in context.api.billing():
        sizes[record["batch_id"]] = sizes.get(record["batch_id"], 0) + 1
    return list(sizes.values())


@then("the API was asked for {sizes} requests, and paid once for each of {paid:d}")
def _(context: Context, sizes: str, paid: int) -> None:
    assert batch_sizes(context) == [int(size) for size in sizes.split(" and then ")]
    summary = context.api.billing_summary()
    assert (summary["paid"], summary["paid_more_than_once"]) == (paid, 0), summary
    assert len(creates(context)) == len(sizes.split(" and then "))


def change(*statements: str) -> None:
    for statement in statements:
        changed = ledgers_on_postgres.execute(os.environ["CLAUDE_BATCH_LEDGER"], statement)
        assert changed == 1, statement


@when("the run's first request is lost")
def _(context: Context) -> None:
    change("UPDATE requests SET state = 'lost', answered_by = NULL WHERE position = 0")


@when("an answer of another sending of the run's second request has come late")
def _(context: Context) -> None:
    change(
        "INSERT INTO results (request_seq, sending, batch_id, outcome, disposition, raw, "
        "input_tokens, output_tokens, cache_read_tokens, cache_5m_tokens, cache_1h_tokens, "
        "web_searches) "
        "SELECT two.seq, 7, batch_id, outcome, disposition, raw, 1, 1, 0, 0, 0, 0 FROM results "
        "CROSS JOIN (SELECT seq FROM requests WHERE position = 1) two "
        "WHERE request_seq = (SELECT seq FROM requests WHERE position = 0)"
    )


@when("the run is asked from Python, and its failures are retried")
def _(context: Context) -> None:
    make_provider(context)
    prompts = [json.loads(line) for line in Path("asks.jsonl").read_text().splitlines()]

    async def ask() -> list[cb.ActorResult]:
        run = await context.actor.submit(prompts)
        first = [result.ok async for result in run.results()]
        assert first.count(True) == 2, first
        run.mark_delivered()
        assert await run.retry_failed([]) == 0
        assert run.status().delivered is not None
        assert await run.retry_failed() == 3
        assert run.status().delivered is None
        begun = time.monotonic()
        results = [result async for result in run.results()]
        assert time.monotonic() > begun and await run.retry_failed() == 0
        return results

    context.results = asyncio.run(ask())
