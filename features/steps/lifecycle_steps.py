"""Steps about single decisions of the lifecycle, and about faults that need staging."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
from behave import given, then, when
from behave.runner import Context
from staging import KEY, opened_ledger, until
from tables import rule

from claude_batch.ledger import submissions
from claude_batch.ledger.store import Leader
from claude_batch.ledger.stored_results import Stored
from claude_batch.lifecycle import packer
from claude_batch.lifecycle.collection import missing_may_be_billed, split_lines
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


@when("the provider resumes")
def _(context: Context) -> None:
    context.provider.resume()


@then("every result is an answer")
def _(context: Context) -> None:
    failed = [result.error for result in context.results if not result.ok]
    assert context.results and not failed, failed[:3]


@then("the API has paid for each once")
def _(context: Context) -> None:
    summary = context.api.billing_summary()
    assert summary["paid"] == len(context.results), summary
    assert summary["processed_more_than_once"] == 0, summary


def ledger_run(tx: Any, run_id: str) -> Any:
    from claude_batch.ledger import queries

    return queries.run_row(tx, run_id)


# Polling


# Packing


@dataclass
class Terms:
    max_requests: int = 100_000
    poll_interval: float = 30.0
    max_poll_interval: float = 300.0


@rule("of queued requests a cut takes as many")
def _(requests: int, bytes_of_each: int, most_requests: int, most_bytes: int) -> int | None:
    queued = [(seq, bytes_of_each, "run") for seq in range(1, requests + 1)]
    with mock.patch.multiple(packer, MAX_REQUESTS=most_requests, MAX_BODY_BYTES=most_bytes):
        cut = plan_cut(queued, {"run": Terms()})
    if cut is None:
        return None
    assert cut.last_seq == cut.count and cut.params_bytes == cut.count * bytes_of_each, cut
    return cut.count


@rule("of runs with these settings, one request each, a cut is")
def _(runs: list[dict[str, Any]], bytes_of_each: int) -> dict[str, Any]:
    queued = [(number, bytes_of_each, str(number)) for number in range(1, len(runs) + 1)]
    terms = {str(n): Terms(**run) for n, run in enumerate(runs, 1)}
    cut = plan_cut(queued, terms)
    # What a lane that fits into one batch becomes without looking at its requests one by one.
    whole = whole_cut(len(runs), len(runs) * bytes_of_each, len(runs), terms)
    assert whole in (None, cut), (whole, cut)
    return {**(msgspec.structs.asdict(cut) if cut else {"count": 0}), "of_all": whole is not None}


@rule("bodies of params with these sizes are sent")
def _(sizes: list[int]) -> dict[str, int]:
    pairs = [(custom_id(f"{n:032x}", "0" * 8, 1), b" " * size) for n, size in enumerate(sizes)]
    body = BODY_START + b"".join(body_items(pairs, first=True)) + BODY_END
    return {"bytes": len(body), "calculated": body_length(len(sizes), sum(sizes))}


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


# Collection


@rule("lines in chunks of any size are split")
def _(text: str) -> list[str]:
    whole = json.loads(f'"{text}"').encode()
    splits = [
        asyncio.run(collect([whole[n : n + size] for n in range(0, len(whole), size)]))
        for size in range(1, len(whole) + 1)
    ]
    assert all(split == splits[0] for split in splits), splits
    return [line.decode() for line in splits[0]]


async def collect(pieces: list[bytes]) -> list[bytes]:
    async def chunks() -> Any:
        for piece in pieces:
            yield piece

    return [line async for lines in split_lines(chunks()) for line in lines]


@rule("a request without a line may have been billed")
def _(stored: int, counts: dict[str, int] | None) -> dict[str, bool]:
    """Of a batch of 5 requests."""
    counted = RequestCounts(**counts or {})
    return {"billed": missing_may_be_billed(Stored(stored, stored), counted, 5)}


@when("two runs are packed together, and one is cancelled {when} the batch is sent")
def _(context: Context, when: str) -> None:
    provider, configuration = context.provider, context.actor.configuration
    gone = provider.store(configuration, ["gone"])
    context.run = provider.store(configuration, ["stays"])
    if when == "before":
        packed(context)
    else:
        until(lambda: provider.advance_sync() and gone.status().batches[0].batch_id)
        assert gone.status().batches == context.run.status().batches
    gone.cancel_sync()


def packed(context: Context) -> Any:
    """Pack what is queued, as the driver of a process that ends right after it would."""
    with opened_ledger() as ledger:
        with ledger.write() as tx:
            row = ledger_run(tx, context.run.id)
            leader = Leader(row.workspace_id, submissions.begin_epoch(tx, row.workspace_id))
        [batch_id], _later = pack_due(ledger, leader, time.time())
        return batch_id


@when("it is packed, and cancelled before it is sent")
def _(context: Context) -> None:
    packed(context)
    context.run.cancel_sync()


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
