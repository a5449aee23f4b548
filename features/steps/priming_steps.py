"""Steps of requests that go ahead of others, and of others that travel together."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import Any

from behave import then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import reading, until

import claude_batch as cb
from claude_batch.ledger.schema import params as params_table
from claude_batch.ledger.schema import primers as primer_table
from claude_batch.ledger.schema import requests as request_table

use_step_matcher("parse")


def about(count: int, documents: list[str]) -> list[cb.ActorRequest]:
    return [
        cb.ActorRequest(
            f"ask {name} {number}",
            documents=[cb.Document(f"{name} says: {'long text. ' * 2200}".encode())],
        )
        for number in range(count)
        for name in documents
    ]


def rows(context: Context) -> list[Any]:
    """The requests of the scenario's ledger: seq, prefix, batch_id, state, body."""
    with reading() as tx:
        return list(
            tx.execute(
                select(request_table, params_table.c.body)
                .join(params_table, params_table.c.request_seq == request_table.c.seq)
                .order_by(request_table.c.seq)
            )
        )


def primed() -> list[int]:
    with reading() as tx:
        return list(tx.scalars(select(primer_table.c.request_seq)))


@when("{count:d} requests about each of the documents {names} are asked in a run, in turn")
@when(
    "{count:d} requests about each of the documents {names} are asked, number {long:d} a long one"
)
def _(context: Context, count: int, names: str, long: int | None = None) -> None:
    requests = about(count, names.split())
    if long is not None:
        requests[long] = replace(requests[long], prompt="word " * 120_000)
    context.run = context.actor.submit_sync(requests)
    with suppress(cb.BudgetExceededError):
        context.run.wait_sync()
    context.results = list(context.run.results_sync())


@when("{count:d} requests about each of the documents {names} are submitted as a run, in turn")
def _(context: Context, count: int, names: str) -> None:
    requests = about(count, names.split())
    context.run = context.provider.store(context.actor.configuration, requests)
    until(lambda: context.api.billing() or context.run.status().batches)


@then("the batches of the run had {counts} requests")
def _(context: Context, counts: str) -> None:
    found = [batch.requests for batch in context.run.status().batches]
    assert found == [int(count) for count in counts.split(", ")], found


@then("the first batch had one request of each prefix")
def _(context: Context) -> None:
    found = rows(context)
    first = min(row.batch_id for row in found)
    prefixes = [row.prefix for row in found if row.batch_id == first]
    assert None not in prefixes and len(set(prefixes)) == len(prefixes) == 2, prefixes
    assert {row.prefix for row in found} - {None} == set(prefixes)


@then("each primer wrote to the cache, and every other marked request read from it")
def _(context: Context) -> None:
    ahead = set(primed())
    for row, result in zip(rows(context), context.results, strict=True):
        usage = result.unwrap().usage
        writes, reads = usage.cache_creation_1h_input_tokens, usage.cache_read_input_tokens
        if row.prefix is None:
            assert writes == reads == 0, (row.seq, usage)
        else:
            assert (writes > 0, reads > 0) == (row.seq in ahead, row.seq not in ahead), usage


@then("every request of it was answered once")
def _(context: Context) -> None:
    assert all(result.ok for result in context.results), context.results
    answered = [entry for entry in context.api.billing() if entry["outcome"] == "succeeded"]
    assert len(answered) == len(context.results), len(answered)


@then("no prefix is in more than {most:d} batches, where each could have been in {all_of:d}")
def _(context: Context, most: int, all_of: int) -> None:
    batches: dict[int, set[int]] = defaultdict(set)
    for row in rows(context):
        if row.prefix is not None:
            batches[row.prefix].add(row.batch_id)
    assert len(batches) == 3 and all(len(ids) <= most for ids in batches.values()), batches
    assert len(context.run.status().batches) == all_of
