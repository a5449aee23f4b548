"""Steps about single decisions of the lifecycle, and about faults that need staging."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import select, update
from staging import KEY, ledger_values, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.ledger import submissions
from claude_batch.ledger.collected_batches import Stored
from claude_batch.ledger.schema import batches, requests
from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.collection import missing_state, split_lines
from claude_batch.lifecycle.packer import due_of, pack_due, plan_cut, whole_cut
from claude_batch.lifecycle.polling import age_of, is_due, missing_since
from claude_batch.wire.batches_client import RemoteBatch, RequestCounts
from claude_batch.wire.encoding import BODY_END, BODY_START, body_items, body_length, custom_id
from claude_batch.wire.retry_policy import next_check


@given("a server that nobody runs")
def _(context: Context) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["ANTHROPIC_API_KEY"] = KEY
    os.environ["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{port}"


@given("the API loses the lines of failed requests once")
def _(context: Context) -> None:
    # All three expire the first time; then the stream of that batch has one line less.
    context.api.set_faults(
        {
            "rules": [
                {
                    "route": "results",
                    "nth": [1, 2, 3],
                    "action": {"type": "missing_lines", "count": 1},
                }
            ],
            "requests": [{"contains": "prompt", "outcome": "expired", "once": True}],
        }
    )


@when("a run of large prompts of {size:d} MB is submitted")
def _(context: Context, size: int) -> None:
    text = "x" * 1_000_000
    context.run = context.actor.submit_sync(f"{n} {text}" for n in range(size))


@when("the provider resumes")
def _(context: Context) -> None:
    context.provider.resume()


@then("every result is an answer")
def _(context: Context) -> None:
    assert context.results and all(result.ok for result in context.results)


@then("the API has paid for each once")
def _(context: Context) -> None:
    summary = context.api.billing_summary()
    assert summary["paid"] == len(context.results), summary
    assert summary["processed_more_than_once"] == 0, summary


@when("the process died while it sent them, the second one armed")
def _(context: Context) -> None:
    # What a killed process leaves: intents on disk, and for one of them that its tail may have
    # left. Written by the very transactions that submission makes.
    run_id = context.run.id
    context.provider.close()
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        row = ledger_run(tx, run_id)
        seat = Seat(row.workspace_id, submissions.take_seat(tx, row.workspace_id))
    for armed in (False, True):
        [batch_id], _later = pack_due(ledger, seat, time.time())
        with ledger.write(seat) as tx:
            submissions.intend(tx, batch_id, snapshot=[], server_time=0.0, now=time.time())
            if armed:
                submissions.mark_armed(tx, batch_id, time.time())
    ledger.close()


def ledger_run(tx: Any, run_id: str) -> Any:
    from claude_batch.ledger import queries

    return queries.run_row(tx, run_id)


@when("requests with different headers are asked")
def _(context: Context) -> None:
    asked = [
        {"max_tokens": 10, "messages": [{"role": "user", "content": "plain"}]},
        {"max_tokens": 10, "messages": [{"role": "user", "content": "plain too"}]},
        {"max_tokens": 10, "temperature": 0.5, "messages": [{"role": "user", "content": "warm"}]},
        {
            "max_tokens": 10,
            "betas": ["files-api-2025-04-14"],
            "messages": [{"role": "user", "content": "beta"}],
        },
    ]

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(context.actor.respond(cb.ActorRequest(params=params)) for params in asked),
            return_exceptions=True,
        )

    context.outcomes = asyncio.run(ask())


@then("the creates had the versions {versions}")
def _(context: Context, versions: str) -> None:
    creates = [
        call
        for call in context.api.log()
        if (call["method"], call["path"]) == ("POST", "/v1/messages/batches")
    ]
    seen = sorted(call["headers"]["anthropic-version"] for call in creates)
    assert seen == versions.split(), seen
    betas = [call["headers"].get("anthropic-beta") for call in creates]
    assert betas.count("files-api-2025-04-14") == 1, betas


# Polling


@then("the list was used to check several batches")
def _(context: Context) -> None:
    calls = [(call["method"], call["path"]) for call in context.api.log()]
    creates = [n for n, call in enumerate(calls) if call == ("POST", "/v1/messages/batches")]
    after = calls[creates[-1] + 1 :]
    assert ("GET", "/v1/messages/batches") in after, after


@when("two runs share a batch and one is cancelled")
def _(context: Context) -> None:
    provider, configuration = context.provider, context.actor.configuration
    one = provider.store(configuration, ["one"])
    other = provider.store(configuration, ["other"])
    assert provider.advance_sync()
    until(lambda: one.status().batches and one.status().batches[0].batch_id)
    assert one.status().batches == other.status().batches
    one.cancel_sync()
    provider.close()
    make_provider(context)
    context.run = context.provider.open_run(other.id)


# Packing


@dataclass
class Terms:
    max_requests: int = 100_000
    poll_interval: float = 30.0
    max_poll_interval: float = 300.0


@rule("of queued requests a cut takes as many")
def _(requests: int, bytes_of_each: int, most_requests: int, most_bytes: int) -> int | None:
    queued = [(seq, bytes_of_each, "run") for seq in range(1, requests + 1)]
    cut = plan_cut(queued, {"run": Terms()}, max_requests=most_requests, max_body=most_bytes)
    if cut is None:
        return None
    assert cut.last_seq == cut.count and cut.params_bytes == cut.count * bytes_of_each, cut
    return cut.count


@rule("of runs with these settings, one request each, a cut is")
def _(runs: list[dict[str, float]]) -> Any:
    queued = [(number, 1, str(number)) for number in range(1, len(runs) + 1)]
    return plan_cut(queued, {str(n): Terms(**run) for n, run in enumerate(runs, 1)})


@dataclass
class Waits:
    """What waits in a lane for one run; single calls by the times at which they arrived."""

    kind: str = "calls"
    calls: Sequence[float] = ()
    queued: Sequence[float] = ()
    params_bytes: int = 10
    linger: float = 2.0
    max_linger: float = 30.0
    max_requests: int = 100_000
    max_wait: float = 93_600.0
    created: float = 0.0
    deadline: float | None = None
    deadline_margin: float | None = None

    @property
    def times(self) -> list[float]:
        return [*(time + self.linger for time in self.calls), *self.queued]

    @property
    def waiting(self) -> int:
        return len(self.times)

    @property
    def first_due(self) -> float:
        return min(self.times)

    @property
    def last_due(self) -> float:
        return max(self.times)


@rule("the requests that wait in a lane are packed")
def _(runs: list[dict[str, Any]], now: float, why: str) -> float:
    assert why
    return due_of([Waits(**run) for run in runs], now)


@then("a lane is cut as a whole exactly where a cut takes all of it")
def _(context: Context) -> None:
    rng = random.Random(7)
    wholes = 0
    for _attempt in range(300):
        terms = {name: Terms(rng.randint(1, 6), rng.random(), rng.random()) for name in "abc"}
        runs = rng.choices("abc", k=rng.randint(1, 6))
        queued = [(seq, rng.choice((1, 90_000_000)), run) for seq, run in enumerate(runs, 1)]
        policies = {run: terms[run] for run in runs}
        cut = plan_cut(queued, policies)
        whole = whole_cut(len(queued), sum(size for _, size, _ in queued), len(queued), policies)
        assert cut is not None
        assert whole == (cut if cut.count == len(queued) else None), (queued, policies, whole)
        wholes += whole is not None
    assert 0 < wholes < 300, wholes
    assert whole_cut(0, 0, 0, {}) is None


@then("the length of a body of 0 to 5 requests equals the bytes that are sent")
def _(context: Context) -> None:
    for count in range(6):
        pairs = [(custom_id(f"{n:032x}", "0" * 8, 1), b"{}" + b" " * n) for n in range(count)]
        body = BODY_START + b"".join(body_items(pairs, first=True)) + BODY_END
        size = sum(len(params) for _, params in pairs)
        assert body_length(count, size) == len(body), (count, len(body))


# Collection


@when("a run of {count:d} prompts is submitted, not found once, and left alone for a day")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    context.provider.close()
    make_provider(context, poll_interval=3600)
    context.run = context.actor.submit_sync(context.prompts)
    until(lambda: ledger_values(select(batches.c.id).where(batches.c.state == "in_progress")))
    context.provider.close()
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        then = time.time() - 90000
        # A batch keeps the intervals with which it was packed.
        soon = {"poll_interval": 0.05, "max_poll_interval": 0.1}
        tx.execute(update(batches).values(not_found_since=then, next_check=then + 60, **soon))
    ledger.close()


@when("the run is taken up again")
def _(context: Context) -> None:
    make_provider(context)
    context.run = context.provider.open_run(context.run.id)


@when("results of 3 lines come in chunks of every size")
def _(context: Context) -> None:
    text = b'{"a": 1}\n\n{"b": "longer line"}\n{"c": 3}'
    context.splits = []
    for size in range(1, len(text) + 1):
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        context.splits.append(asyncio.run(collect(pieces)))


async def collect(pieces: list[bytes]) -> list[bytes]:
    async def chunks() -> Any:
        for piece in pieces:
            yield piece

    return [line async for lines in split_lines(chunks()) for line in lines]


@then("the lines are the same each time")
def _(context: Context) -> None:
    expected = [b'{"a": 1}', b'{"b": "longer line"}', b'{"c": 3}']
    assert all(split == expected for split in context.splits), context.splits


@then("a missing line is {fate} when {stored:d} of {counted:d} successes are stored")
def _(context: Context, fate: str, stored: int, counted: int) -> None:
    expected = RequestState.QUEUED if fate == "queued again" else RequestState.LOST
    assert missing_state(Stored(stored, stored), counted) is expected


def packed(context: Context) -> Any:
    """Pack what is queued, as the driver of a process that ends right after it would."""
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        with ledger.write() as tx:
            row = ledger_run(tx, context.run.id)
            seat = Seat(row.workspace_id, submissions.take_seat(tx, row.workspace_id))
        [batch_id], _later = pack_due(ledger, seat, time.time())
        return batch_id
    finally:
        ledger.close()


@when("it is packed, and cancelled before it is sent")
def _(context: Context) -> None:
    packed(context)
    context.run.cancel_sync()


@when("two runs are packed together, and one is cancelled before the batch is sent")
def _(context: Context) -> None:
    configuration = context.actor.configuration
    gone = context.provider.store(configuration, ["gone"])
    context.run = context.provider.store(configuration, ["stays"])
    packed(context)
    gone.cancel_sync()


@when("its request was posted 9999 times before")
def _(context: Context) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        tx.execute(update(requests).values(sendings=9999))
    ledger.close()


@rule("batches are checked again")
def _(age: float) -> dict[str, float]:
    return {"wait": next_check(age, 30.0, 300.0)}


@rule("planned checks are due")
def _(planned_for: float, longest_interval: float, now: float) -> bool:
    return is_due(planned_for, longest_interval, now)


@rule("the age of a batch is counted")
def _(submitted: Any, now: float) -> float:
    return age_of(submitted, now)


@rule("a batch that is not found counts as missing")
def _(since: Any, planned: Any, now: float, server_clock: float) -> float:
    return missing_since(since, planned, now=now, server_now=server_clock, after=86400.0)


@rule("the times of a batch at the API are read")
def _(batch: dict[str, Any]) -> dict[str, object]:
    found = RemoteBatch(**batch)
    return {"created": found.created or "unknown", "ended": found.ended or "unknown"}


@rule("the counts of a batch at the API are read")
def _(counts: dict[str, int]) -> RequestCounts:
    return RequestCounts(**counts)
