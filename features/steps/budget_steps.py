"""Steps about budgets: what the API bills is compared with what was allowed."""

from __future__ import annotations

import json
import os
import time
from decimal import Decimal
from pathlib import Path

from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from money_steps import bill
from sqlalchemy import func, select, update
from staging import ledger_values, make_provider

import claude_batch as cb
from claude_batch.core.dollars import nano_dollars
from claude_batch.core.states import RequestState
from claude_batch.ledger import collecting, conversing, costs, enqueue, reserving
from claude_batch.ledger.collecting import NewResult
from claude_batch.ledger.conversing import NextTurn
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import batch_runs, params, requests, results
from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.budgeting import most_cost
from claude_batch.lifecycle.packing import pack_due
from claude_batch.money.prices import prices_of


@given('a command\'s file "{name}" of {count:d} requests that use {usage}')
def _(context: Context, name: str, count: int, usage: str) -> None:
    used = json.loads(usage)
    lines: list[str] = []
    for number in range(1, count + 1):
        prompt = json.dumps({**used, "note": number})
        lines.append(json.dumps({"id": f"ask-{number}", "prompt": prompt}) + "\n")
    Path(name).write_text("".join(lines))


@then("the API's bill is within ${limit}, and has answers")
def _(context: Context, limit: str) -> None:
    cost, _ = bill(context)
    assert 0 < cost <= nano_dollars(limit), cost


@then("the API's bill is within ${limit}, and has {count:d} answers")
def _(context: Context, limit: str, count: int) -> None:
    cost, answers = bill(context)
    assert cost <= nano_dollars(limit) and answers == count, (cost, answers)


@then("the budgets account for the API's bill")
def _(context: Context) -> None:
    """What is reserved and spent is what the bill says, and no less where that is in doubt."""
    rows = ledger_values(
        select(func.coalesce(batch_runs.c.reserved, 0) + func.coalesce(batch_runs.c.spent, 0))
    )
    counted = ledger_values(select(results.c.cost).where(results.c.cost.is_not(None)))
    spent = ledger_values(select(batch_runs.c.spent).where(batch_runs.c.spent.is_not(None)))
    assert sum(spent) == sum(counted), (spent, counted)
    cost, _ = bill(context)
    assert cost <= sum(rows), (cost, rows)
    kept = ledger_values(select(batch_runs.c.reserved).where(batch_runs.c.reserved > 0))
    if not kept:
        assert cost == sum(rows), (cost, rows)


@then("what is reserved of each request is what its last turn can cost")
def _(context: Context) -> None:
    reserved = ledger_values(select(requests.c.reserve).order_by(requests.c.seq))
    bodies = ledger_values(select(params.c.body).order_by(params.c.request_seq))
    assert reserved == [most_cost(prices_of(), body, time.time()) for body in bodies], reserved


@then("the API has processed each of {count:d} requests once")
def _(context: Context, count: int) -> None:
    billed = [each["params_sha256"] for each in context.api.billing()]
    assert len(billed) == len(set(billed)) == count, billed


@then('the file "{name}" has {count:d} answers')
def _(context: Context, name: str, count: int) -> None:
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"ask-{n}" for n in range(1, count + 1)], lines
    assert all(line.get("response") or line.get("text") for line in lines), lines[0]


@given("a provider with the settings {settings}")
def _(context: Context, settings: str) -> None:
    make_provider(context, **{"max_wait": "5s", **json.loads(settings)})


@when("somebody asks {usage} with {tokens:d} tokens at most")
def _(context: Context, usage: str, tokens: int) -> None:
    messages = [{"role": "user", "content": usage}]
    params = {"model": "claude-haiku-4-5", "max_tokens": tokens, "messages": messages}
    asked = cb.ActorRequest(params=params)
    try:
        context.answer, context.refused = context.actor.respond_sync(asked), None
    except cb.ActorError as error:
        context.answer, context.refused = None, error


@then("the call is refused with {kind}: {words}")
def _(context: Context, kind: str, words: str) -> None:
    assert type(context.refused).__name__ == kind, repr(context.refused)
    assert words in str(context.refused), context.refused


@then("the call has its answer")
def _(context: Context) -> None:
    assert context.refused is None, context.refused
    assert context.answer.text == "done"


@then("there is no ledger yet")
def _(context: Context) -> None:
    assert not Path(os.environ["CLAUDE_BATCH_LEDGER"]).exists()


@then("the API has counted {count:d} requests")
def _(context: Context, count: int) -> None:
    counted = [call for call in context.api.log() if call["route"] == "count_tokens"]
    assert [call["status"] for call in counted] == [200] * count, counted


@given("a batch of {count:d} requests that was sent under a budget, each with a reservation of 100")
def _(context: Context, count: int) -> None:
    context.store = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(context.store.close)
    mode = cb.BatchProcessingMode(budget_usd=Decimal(1))
    with context.store.write() as tx:
        workspace = enqueue.ensure_workspace(tx, "http://nowhere", "a key")
        lane = enqueue.ensure_lane(tx, workspace, "2023-06-01", "", "")
        asked = NewRun(
            kind="run",
            actor="a/b",
            workspace_id=workspace,
            mode=mode,
            created=0.0,
            converses=True,
        )
        run = enqueue.begin_run(tx, asked)
        new = [NewRequest(f"{n:032x}", n, None, lane, b"{}", reserve=100) for n in range(count)]
        enqueue.add_requests(tx, run, new, created=0.0, due=0.0)
        enqueue.finish_storing(tx, run, digest="d", stored=0.0)
    [context.batch], _ = pack_due(context.store, Seat(workspace, 0), 1.0)


@when("it is collected with a success that cost 7, a failure and a missing line, {how}")
def _(context: Context, how: str) -> None:
    priced = None if "price" in how else 7
    asks = "paused" if "turn" in how else "final"
    lines = [
        NewResult(1, 1, "succeeded", asks, None, b"", None, None, priced, priced, priced),
        NewResult(2, 1, "errored", "retry", "api_error", b"", None, None, 0, 0, 0),
    ]
    paid = RequestState.LOST if "may be" in how or "hides" in how else RequestState.QUEUED
    with context.store.write() as tx:
        collecting.add_results(tx, context.batch, lines)
        stored = collecting.stored_counts(tx, context.batch)
        if "anew" in how:
            tx.execute(update(requests).where(requests.c.seq == 3).values(reserve=None))
        collecting.finish_collection(
            tx, context.batch, stored, missing=paid, now=2.0, contradicted="hides" in how
        )
        if "turn" in how:
            turn = NextTurn(1, 1, b"{}", rejected=False)
            assert conversing.next_turns(tx, [turn], due=3.0) == 1
            reserving.put_reserves(tx, [(1, 150)])
        if "comes" in how:
            costs.put_costs(tx, [(1, 1, "m", 7, 7, 7)])


@then("{spent:d} is spent of it, and {kept:d} is kept")
def _(context: Context, spent: int, kept: int) -> None:
    with context.store.read() as tx:
        found = tx.execute(select(batch_runs.c.spent, batch_runs.c.reserved)).all()
    assert [tuple(row) for row in found] == [(spent, kept)], found


@then("at most it costs {times:d} times as much as: {words}")
def _(context: Context, times: int, words: str) -> None:
    most = json.loads(context.ended.stdout)["cost_most"]
    command(context, words, None)
    assert most == times * json.loads(context.ended.stdout)["cost_most"], most
