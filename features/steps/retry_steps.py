"""Steps about retrying what failed in a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import ledgers_on_postgres
import programs
from behave import then, when
from behave.runner import Context
from cli_steps import command, creates, spawn
from staging import make_provider, until

import claude_batch as cb

DIES = """
import os, sys
import claude_batch as cb
run = cb.ClaudeBatchProvider(drive=False).open_run(sys.argv[1])
assert run.retry_failed_sync() == 3
os._exit(9)
"""


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


@then("the API was asked {count:d} times for 1 request")
def _(context: Context, count: int) -> None:
    assert batch_sizes(context) == [1] * count, batch_sizes(context)


@when("a process queues the failed requests of the run again, and dies at once")
def _(context: Context) -> None:
    done = programs.run(DIES, context.run_id)
    assert done.returncode == 9, done.stderr


@when("a process that retries the run is killed once it has created a batch")
def _(context: Context) -> None:
    before = len(creates(context))
    process = spawn(context, f"retry {context.run_id}")
    until(lambda: len(creates(context)) > before)
    process.send_signal(signal.SIGKILL)
    process.wait(20)


@when("the API's clock goes on by an hour")
def _(context: Context) -> None:
    context.api.advance_clock(3600.0)


@when("the run's canceled requests are retried while the API's clock goes on")
def _(context: Context) -> None:
    before = len(creates(context))

    def wind() -> None:
        until(lambda: len(creates(context)) > before)
        context.api.advance_clock(3600.0)

    winding = threading.Thread(target=wind)
    winding.start()
    command(context, "retry RUN --only canceled")
    winding.join()


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

    async def ask() -> list[list[cb.ActorResult]]:
        run = await context.actor.submit(prompts)
        seen = [[result async for result in run.results()]]
        run.mark_delivered()
        assert await run.retry_failed() == 3
        assert run.status().delivered is None
        begun = time.monotonic()
        seen.append([result async for result in run.results()])
        assert time.monotonic() > begun and await run.retry_failed() == 0
        return seen

    context.seen = asyncio.run(ask())


@then("there were {good:d} answers of {count:d} at first, and {count_:d} in order after that")
def _(context: Context, good: int, count: int, count_: int) -> None:
    first, second = context.seen
    assert len(first) == len(second) == count == count_
    assert sum(result.ok for result in first) == good
    for number, result in enumerate(second):
        assert result.position == number and f"prompt {number + 1}" in result.unwrap().text


@when("a single call fails, and its run is retried")
def _(context: Context) -> None:
    make_provider(context)
    try:
        context.actor.respond_sync("[[sandbox:errored:invalid_request_error]] no")
    except cb.BatchRequestError:
        pass
    from claude_batch.ledger import queries

    with context.provider._engine.ledger.read() as tx:
        (row,) = queries.recent_runs(tx)
    try:
        context.provider.open_run(row.id).retry_failed_sync()
    except cb.InvalidRequestError as error:
        context.refusal = str(error)


@then("the retry is refused: {words}")
def _(context: Context, words: str) -> None:
    assert words in context.refusal, context.refusal
