"""Steps of reconciliation: unknown sendings, candidates, and somebody else in the workspace."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
from behave import given, then, when
from behave.runner import Context
from sqlalchemy import select, update
from staging import KEY, ledger_values, start_api, unknown_command, until
from tables import rule

from claude_batch.actor.request import ActorRequest
from claude_batch.core.states import CandidateState
from claude_batch.ledger import enqueue, halts, schema, submissions
from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.packer import pack_due
from claude_batch.lifecycle.reconciliation import decide, may_be_ours
from claude_batch.wire.batches_client import RemoteBatch, RequestCounts


@given("an API whose batches count nothing for {blind:g} seconds and take {latency:g}")
def _(context: Context, blind: float, latency: float) -> None:
    start_api(context, counts_after=blind, latency=latency)


def _others_batch(context: Context, count: int) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=context.api.url, max_retries=0) as client:
        context.others.append(
            client.messages.batches.create(
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
            ).id
        )


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
        seat = Seat(workspace_id, submissions.take_seat(tx, workspace_id))
    [batch_id], _later = pack_due(ledger, seat, time.time())
    with ledger.write(seat) as tx:
        submissions.intend(tx, batch_id, snapshot=[], server_time=time.time(), now=time.time())
        submissions.mark_armed(tx, batch_id, time.time())
    ledger.close()


@when("the key of the provider now belongs to another workspace")
def _(context: Context) -> None:
    # The ledger remembers the workspace that it sent to; the API now answers for another one.
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        tx.execute(update(schema.workspaces).values(name="wrkspc_before"))
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


@when('"claude-batch unknown" is told {flag}')
def _(context: Context, flag: str) -> None:
    said = unknown_command(context.run.id, flag)
    assert f"{len(context.prompts)} requests of {context.run.id}" in said, said


@then("between the first create and the second the API's clock went on by 1 second at least")
def _(context: Context) -> None:
    creates = [
        entry
        for entry in context.api.log()
        if entry["method"] == "POST" and entry["path"] == "/v1/messages/batches"
    ]
    first, second = (entry["at"] for entry in creates[:2])
    assert second - first >= 1.0, (first, second)


def _own_custom_ids(context: Context) -> list[str]:
    return [
        entry["custom_id"][:32]
        for entry in context.api.billing()
        if not entry["custom_id"].startswith("theirs")
    ]


@then("the run's requests were processed once each")
def _(context: Context) -> None:
    own = Counter(_own_custom_ids(context))
    assert len(own) == len(context.prompts), own
    assert set(own.values()) == {1}, own


@then("each of the run's requests was processed twice")
def _(context: Context) -> None:
    own = Counter(_own_custom_ids(context))
    assert len(own) == len(context.prompts) and set(own.values()) == {2}, own


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


@then("the API comes to have processed {count:d} requests, none twice")
def _(context: Context, count: int) -> None:
    until(lambda: len(context.api.billing()) == count)
    assert context.api.billing_summary()["processed_more_than_once"] == 0


@then("a halt that is refused again and again is probed after 5, 10, 20, 40 and then 60 minutes")
def _(context: Context) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        workspace_id = enqueue.ensure_workspace(tx, "http://somewhere/", "fingerprint")
    waits: list[float] = []
    for _n in range(6):
        with ledger.write() as tx:
            halts.halt(
                tx,
                workspace_id,
                reason="billing",
                error_type=None,
                message="no credit",
                now=1000.0,
                interval=300.0,
            )
            row = halts.halt_of(tx, workspace_id)
        assert row.halted == 1000.0
        waits.append((row.next_probe - 1000.0) / 60)
    ledger.close()
    assert waits == [5, 10, 20, 40, 60, 60], waits
    assert halts.halt_stands(row, 1000.0)
    assert not halts.halt_stands(row, 1000.0 + 3600)
    # The clock jumped back: a probe planned for tomorrow is due.
    assert not halts.halt_stands(row, 1000.0 - 2 * 86400)


@when("the ledger is advanced until a batch is at the API")
def _(context: Context) -> None:
    until(lambda: context.provider.advance_sync() and context.run.status().batches)
    until(lambda: context.run.status().batches[0].batch_id)


@when("an hour passes at the API, and then another")
def _(context: Context) -> None:
    # The first ends the stranger's batch; what is sent again because of it ends with the second.
    context.api.advance_clock(3601)
    until(lambda: context.run.status().batches[0].batch_id, 60)
    context.api.advance_clock(3601)


@when("{days:d} days pass")
def _(context: Context, days: int) -> None:
    # On the API's clock they pass, on ours the batch was submitted earlier.
    context.api.advance_clock(days * 86400)
    _submitted_earlier(days)


@when("our clock jumps {days:d} days ahead")
def _(context: Context, days: int) -> None:
    _submitted_earlier(days)


def _submitted_earlier(days: int) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        earlier = schema.batches.c.submitted - days * 86400
        tx.execute(update(schema.batches).values(submitted=earlier, next_check=0))
    ledger.close()


# Decisions


@when("somebody else's batches are deleted")
def _(context: Context) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=context.api.url, max_retries=0) as client:
        for batch_id in context.others:
            client.messages.batches.delete(batch_id)


@when("a prompt is asked besides")
def _(context: Context) -> None:
    future = context.provider.call(
        context.provider._encoders.of(context.actor.configuration).encode(
            ActorRequest.of("besides")
        ),
        actor="tests/asker",
    )
    context.add_cleanup(future.cancel)


@then("giving up what is unknown ends {ended:d} requests, and resubmitting them sends {sent:d}")
def _(context: Context, ended: int, sent: int) -> None:
    assert context.run.give_up_unknown_sync() == ended
    assert asyncio.run(context.run.give_up_unknown()) == 0
    assert context.run.resubmit_unknown_sync() == sent


@then("resubmitting again sends none")
def _(context: Context) -> None:
    assert asyncio.run(context.run.resubmit_unknown()) == 0


@then('"claude-batch unknown --json" tells of {count:d} requests of the run')
def _(context: Context, count: int) -> None:
    [sending] = json.loads(unknown_command("--json"))
    assert (sending["run_id"], sending["requests"]) == (context.run.id, count), sending


@then('"claude-batch unknown --give-up" without a run is refused')
def _(context: Context) -> None:
    said = unknown_command("--give-up", code=2)
    assert "--give-up needs a RUN" in said, said


@then('"claude-batch unknown --give-up" finds nothing more to give up')
def _(context: Context) -> None:
    # What was given up is still shown, since it may be sent again on order.
    said = unknown_command(context.run.id, "--give-up")
    assert "nothing was changed" in said, said


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
