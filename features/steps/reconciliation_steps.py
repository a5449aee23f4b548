"""Steps of reconciliation: unknown sendings, candidates, and somebody else in the workspace."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import anthropic
from behave import given, then, when
from behave.runner import Context
from sqlalchemy import select, update
from staging import KEY, ledger_values, start_api, unknown_command, until, writing
from tables import rule

from claude_batch.core.ids import new_request_ids
from claude_batch.core.quantities import parse_duration
from claude_batch.core.states import CandidateState
from claude_batch.ledger import schema, submissions, workspaces
from claude_batch.ledger.store import Leader, Ledger
from claude_batch.lifecycle.packer import pack_due
from claude_batch.lifecycle.polling import walk
from claude_batch.lifecycle.reconciliation import decide, may_be_ours
from claude_batch.wire.batches_client import BatchPage, RemoteBatch, RequestCounts, Unreachable


@given("an API whose batches count nothing for {blind:g} seconds and take {latency:g}")
def _(context: Context, blind: float, latency: float) -> None:
    start_api(context, counts_after=blind, latency=latency)


def _others_batch(context: Context, count: int) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=context.api.url, max_retries=0) as client:
        made = client.messages.batches.create(
            requests=[
                {
                    "custom_id": f"theirs-{len(context.others)}-{n}",
                    "params": {
                        "model": "claude-haiku-4-5",
                        "max_tokens": 9,
                        "messages": [{"role": "user", "content": f"theirs {n}"}],
                    },
                }
                for n in range(count)
            ]
        )
    context.others.append(made.id)
    context.sandbox_batches.append(made.id)


@when("somebody else makes {batches:d} batches of {count:d} requests")
def _(context: Context, batches: int, count: int) -> None:
    context.others = []
    for _n in range(batches):
        _others_batch(context, count)


@when("a run of {count:d} prompts is submitted and somebody else makes a batch as large")
def _(context: Context, count: int) -> None:
    context.others = []
    context.prompts = [f"prompt {n}" for n in range(count)]
    context.run = context.actor.submit_sync(context.prompts)
    _others_batch(context, count)


@when("a sending of {count:d} prompts has become unknown")
def _(context: Context, count: int) -> None:
    context.prompts = [f"prompt {n}" for n in range(count)]
    assert context.provider.advance_sync()  # which learns the workspace
    context.run = context.provider.store(context.actor.configuration, context.prompts)
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        workspace_id: int = tx.execute(select(schema.runs.c.workspace_id)).scalar_one()
        leader = Leader(workspace_id, submissions.begin_epoch(tx, workspace_id))
    [batch_id], _later = pack_due(ledger, leader, time.time())
    with ledger.write(leader) as tx:
        posts = submissions.intend(
            tx, batch_id, snapshot=[], server_time=time.time(), now=time.time()
        )
        submissions.mark_armed(tx, batch_id, posts, time.time())
    ledger.close()


@when("the ledger is advanced a few times")
def _(context: Context) -> None:
    for _n in range(4):
        context.provider.advance_sync()
        time.sleep(0.1)


@then('"claude-batch unknown" says "{words}"')
def _(context: Context, words: str) -> None:
    said = unknown_command(context.run.id)
    assert words in said, said


@then('"claude-batch unknown {flags}" exits with {code:d} and says "{words}"')
def _(context: Context, flags: str, code: int, words: str) -> None:
    run_id = context.run.id if "run" in context else ledger_values(select(schema.runs.c.id))[0]
    flags, words = (text.replace("<its id>", run_id) for text in (flags, words))
    said = unknown_command(*flags.split(), code=code)
    assert words in said, said


@when('"claude-batch unknown" is told {flag}')
def _(context: Context, flag: str) -> None:
    said = unknown_command(context.run.id, flag)
    assert f"{len(context.prompts)} requests of {context.run.id}" in said, said


@when('"claude-batch unknown" gives that run up')
def _(context: Context) -> None:
    words = f"{len(context.prompts)} requests of {context.run_id}"
    # On a server, a process that died is taken for alive for as long as its lease.
    until(lambda: words in unknown_command(context.run_id, "--give-up"))


@then("between the first create and the second the API's clock went on by 1 second at least")
def _(context: Context) -> None:
    creates = [
        entry
        for entry in context.api.log()
        if entry["method"] == "POST" and entry["path"] == "/v1/messages/batches"
    ]
    first, second = (entry["at"] for entry in creates[:2])
    assert second - first >= 1.0, (first, second)


@then("the run's requests were processed {times:w} each")
def _(context: Context, times: str) -> None:
    own = Counter(
        entry["custom_id"][:32]
        for entry in context.api.billing()
        if not entry["custom_id"].startswith("theirs")
    )
    assert len(own) == len(context.prompts), own
    assert set(own.values()) == {{"once": 1, "twice": 2}[times]}, own


@then("nothing of somebody else's is in the ledger")
def _(context: Context) -> None:
    known = set(ledger_values(select(schema.batches.c.remote_id)))
    assert not known & set(context.others), known
    assert not ledger_values(select(schema.strange_lines.c.id))


@then("the run's batch is still unknown")
def _(context: Context) -> None:
    assert [str(batch.state) for batch in context.run.status().batches] == ["unknown"]


@then("the API's batches have {first:d} and {second:d} requests")
def _(context: Context, first: int, second: int) -> None:
    sizes = Counter(entry["batch_id"] for entry in context.api.billing())
    assert list(sizes.values()) == [first, second], sizes


@rule("a halt at second 1000 stands")
def _(interval: str, refusals: int, second: float) -> dict[str, object]:
    with writing() as tx:
        workspace_id = workspaces.ensure_workspace(tx, "http://somewhere/", new_request_ids(1)[0])
        halt = {"reason": "billing", "error_type": None, "message": "no credit", "now": 1000.0}
        for _n in range(refusals):
            workspaces.halt(tx, workspace_id, interval=parse_duration(interval), **halt)
        row = workspaces.workspace_row(tx, workspace_id)
    assert row.halted == 1000.0
    stands = workspaces.halt_stands(row, second)
    return {"minutes": (row.next_probe - 1000.0) / 60, "stands": stands}


@when("the ledger is advanced until a batch is at the API")
def _(context: Context) -> None:
    until(lambda: context.provider.advance_sync() and context.run.status().batches)
    until(lambda: context.run.status().batches[0].batch_id)


@when("{days:d} days pass")
@when("{days:d} days pass on {whose} clock alone")
def _(context: Context, days: int, whose: str = "") -> None:
    if not whose:
        context.api.advance_clock(days * 86400)
    # On our clock they pass in that the batch was submitted earlier.
    with writing() as tx:
        earlier = schema.batches.c.submitted - days * 86400
        tx.execute(update(schema.batches).values(submitted=earlier, next_check=0))


# Decisions


@rule("decisions about the run's unknown requests change")
def _(context: Context, decision: str, how: str) -> dict[str, int]:
    way = {"give up": "give_up_unknown", "send again": "resubmit_unknown"}[decision]
    run = context.run
    if how == "synchronously":
        return {"requests": getattr(run, f"{way}_sync")()}
    return {"requests": asyncio.run(getattr(run, way)())}


@rule("a batch at the API may be ours")
def _(what: str, batch: dict[str, Any]) -> bool:
    """Of a sending of 4 requests, begun at second 0 and settled by second 1900."""
    begun = datetime(2026, 11, 21, 10, tzinfo=UTC)
    made = begun + timedelta(seconds=batch["created"]) if "created" in batch else None
    remote = RemoteBatch(
        id=batch.get("id", "new"),
        processing_status="in_progress",
        request_counts=RequestCounts(processing=batch["count"]),
        created_at=None if made is None else made.isoformat(),
    )
    return may_be_ours(
        remote,
        snapshot={"seen"},
        known={"known"},
        request_count=4,
        not_before=begun.timestamp() + 400,
        not_after=begun.timestamp() + 1900,
    )


@rule("candidates decide")
def _(states: str, settled: bool) -> object:
    found = [CandidateState(word.strip()) for word in states.split(",") if word.strip()]
    return decide(found, settled=settled)


@rule("a list of batches is read back to a time")
def _(
    order: str, pages: list[list[float]], more: bool, since: float, until: list[list[float]]
) -> int | str:
    """Return how many pages are read, back to ``since``, and to one of each of ``until``.

    ``more`` is whether pages say if more follow.
    """
    begun = datetime(2026, 11, 21, 10, tzinfo=UTC)
    answers = [
        BatchPage(
            [
                RemoteBatch(
                    id=f"msgbatch_{created}",
                    processing_status="ended",
                    created_at=(begun + timedelta(seconds=created)).isoformat(),
                )
                for created in page
            ],
            has_more=number < len(pages) - 1 if more else None,
            last_id=str(number),
        )
        for number, page in enumerate(pages)
    ]
    client = mock.Mock(workspace=None)
    client.list_page = mock.AsyncMock(side_effect=answers)
    wanted = [[f"msgbatch_{created}" for created in each] for each in until]
    try:
        asyncio.run(walk(client, since=begun.timestamp() + since, until=wanted))
    except Unreachable:
        return "in vain"
    return client.list_page.await_count
