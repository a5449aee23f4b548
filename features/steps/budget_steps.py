"""Steps about budgets: what the API bills is compared with what was allowed."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from money_steps import bill
from papers import pdf
from sqlalchemy import select, update
from staging import ledger_values, opened_ledger, until, writing

import claude_batch as cb
from claude_batch.core.quantities import nano_dollars
from claude_batch.core.states import BatchState
from claude_batch.ledger import (
    budgets,
    collected_batches,
    conversations,
    cost_sums,
    deliveries,
    enqueue,
    live_calls,
    retries,
    stored_results,
    unknown_batches,
    workspaces,
)
from claude_batch.ledger import charges as charge_rows
from claude_batch.ledger.charges import DAY, UNBOUNDED
from claude_batch.ledger.collected_batches import Complete
from claude_batch.ledger.conversations import NextTurn
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.portable_sql import meta_number, put_meta
from claude_batch.ledger.schema import batches, charges, meta, params, requests, results
from claude_batch.ledger.store import Leader, Ledger, Transaction
from claude_batch.ledger.stored_results import NewResult
from claude_batch.lifecycle.budget_room import bound_cost
from claude_batch.lifecycle.packer import pack_due
from claude_batch.money.prices import prices_of
from claude_batch.providers import result_cursor
from claude_batch.providers.cost_report import set_budget
from claude_batch.wire import bounds
from claude_batch.wire.bounds import token_bound


@given('a command\'s file "{name}" of {count:d} requests that use {usage}')
def _(context: Context, name: str, count: int, usage: str) -> None:
    used = json.loads(usage)
    lines: list[str] = []
    for number in range(1, count + 1):
        prompt = json.dumps({**used, "note": number})
        lines.append(json.dumps({"id": f"ask-{number}", "prompt": prompt}) + "\n")
    Path(name).write_text("".join(lines))


@given('a command\'s {count:d} invoices of one page, asked about in "{name}"')
def _(context: Context, count: int, name: str) -> None:
    lines: list[str] = []
    Path("inv").mkdir()
    for number in range(1, count + 1):
        path = Path(f"inv/{number:03}.pdf")
        words = f"Invoice {number}, due in May 2026: EUR {number}.20"
        path.write_bytes(pdf(words, packed=number % 2 == 0))
        request = {"id": path.stem, "prompt": "What is due?", "documents": [str(path)]}
        lines.append(json.dumps(request) + "\n")
    Path(name).write_text("".join(lines))


@given('a document "{name}" of {pages:d} page and {size:d} bytes')
@given('a document "{name}" of {pages:d} pages and {size:d} bytes')
def _(context: Context, name: str, pages: int, size: int) -> None:
    (context.tmp / name).write_bytes(pdf("The harbour.", pages=pages, ballast=size))


@given("budgets that count no batch")
def _(context: Context) -> None:
    context.counting = mock.patch.object(charge_rows, "reserve")
    context.counting.start()
    context.add_cleanup(mock.patch.stopall)


@then('the run waits because of "{words}"')
def _(context: Context, words: str) -> None:
    # Between two attempts; an attempt itself has no reason to wait.
    until(lambda: words in context.run.status().waiting_for)


@when("budgets count all batches again")
def _(context: Context) -> None:
    context.counting.stop()


@given("PDFs that take {seconds:g} second to be bounded")
def _(context: Context, seconds: float) -> None:
    beats = context.beats = Counter[str]()
    context.blocked = []

    def slowly(_: bytes) -> int:
        before = dict(beats)
        time.sleep(seconds)
        # A busy machine may have let no loop go on meanwhile; one that waits for this never does.
        end = time.monotonic() + 30
        while blocked := [name for name, count in before.items() if beats[name] == count]:
            if time.monotonic() > end:
                context.blocked += blocked
                break
            time.sleep(0.01)
        return 9_500

    slow = mock.patch.object(bounds, "pdf_tokens", slowly)
    forgetful = mock.patch.object(bounds, "_bounds", OrderedDict[bytes, int | None]())
    for patch in (slow, forgetful):
        patch.start()
        context.add_cleanup(patch.stop)


def _about_a_pdf(number: int) -> cb.ActorRequest:
    data = base64.b64encode(pdf(f"Page {number}")).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    document = {"type": "document", "source": source}
    question = {"type": "text", "text": f"What is on page {number}?"}
    return cb.ActorRequest(messages=[{"role": "user", "content": [document, question]}])


@when("{count:d} PDFs are asked about by {how}, while the event loops are watched")
def _(context: Context, count: int, how: str) -> None:
    asked = [_about_a_pdf(number) for number in range(count)]

    async def beat(name: str, until_done: Callable[[], bool]) -> None:
        while not until_done():
            context.beats[name] += 1
            await asyncio.sleep(0.01)

    async def by_run() -> list[cb.ActorResult]:
        run: cb.Run
        if how == "a run":
            run = await context.actor.submit(asked)
        else:
            store = context.provider.store
            run = await asyncio.to_thread(store, context.actor.configuration, asked)
            await run.set_budget(1)
            while not (await asyncio.to_thread(run.status)).finished:
                await asyncio.to_thread(context.provider.advance_sync)
        return [result async for result in run.results()]

    async def ask() -> list[Any]:
        if how == "calls":
            return await asyncio.gather(*map(context.actor.respond, asked))
        return [result.unwrap() for result in await by_run()]

    async def watch() -> list[Any]:
        context.beats.update(("the caller's", "the engine's"))
        asking = asyncio.ensure_future(ask())
        own = asyncio.ensure_future(beat("the caller's", asking.done))
        engine = asyncio.wrap_future(
            context.provider.engine().do(beat("the engine's", asking.done))
        )
        outcomes = await asking
        await asyncio.gather(own, engine)
        return outcomes

    context.outcomes = asyncio.run(watch())


@then("no event loop was blocked meanwhile")
def _(context: Context) -> None:
    assert min(context.beats.values()) > 1 and not context.blocked, (context.beats, context.blocked)


@when("a PDF is asked about, and the provider is closed before it is bounded")
def _(context: Context) -> None:
    async def ask() -> Any:
        asking = asyncio.ensure_future(context.actor.respond(_about_a_pdf(1)))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(context.provider.close)
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        return outcome

    context.error = asyncio.run(ask())


@then("the API's bill is within ${limit}, and has answers")
@then("the API's bill is within ${limit}, and has {count:d} answers")
def _(context: Context, limit: str, count: int | None = None) -> None:
    cost, answers = bill(context)
    assert 0 < cost <= nano_dollars(limit) and count in (None, answers), (cost, answers)


@then("the budgets account for the API's bill")
def _(context: Context) -> None:
    """What is reserved and spent is what the bill says, and no less where that is in doubt."""
    rows = ledger_values(select(charges.c.reserved + charges.c.spent + charges.c.doubt))
    counted = ledger_values(select(results.c.cost).where(results.c.cost.is_not(None)))
    spent = ledger_values(select(charges.c.spent))
    assert sum(spent) == sum(counted), (spent, counted)
    cost, _ = bill(context)
    assert cost <= sum(rows), (cost, rows)
    if not any(ledger_values(select(charges.c.reserved + charges.c.doubt))):
        assert cost == sum(rows), (cost, rows)


@then("what is reserved of each request is what its last turn can cost")
def _(context: Context) -> None:
    reserved = ledger_values(select(requests.c.reserve).order_by(requests.c.seq))
    bodies = ledger_values(select(params.c.body).order_by(params.c.request_seq))
    now = time.time()
    costs = [bound_cost(prices_of(), token_bound(body), now) for body in bodies]
    assert reserved == costs, reserved


@when("the ledger's batches are moved to the day before")
def _(context: Context) -> None:
    with writing() as tx:
        tx.execute(update(batches).values(created=batches.c.created - DAY, day=batches.c.day - 1))
        tx.execute(update(charges).values(day=charges.c.day - 1))
        if warned_on := meta_number(tx, "daily_budget_warned"):
            put_meta(tx, "daily_budget_warned", warned_on - 1)


@then('the file "{name}" has {count:d} answers')
def _(context: Context, name: str, count: int) -> None:
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"ask-{n}" for n in range(1, count + 1)], lines
    assert all(line.get("response") or line.get("text") for line in lines), lines[0]


@when("somebody asks {usage} with {tokens:d} tokens at most")
def _(context: Context, usage: str, tokens: int) -> None:
    messages = [{"role": "user", "content": usage}]
    params = {"model": "claude-haiku-4-5", "max_tokens": tokens, "messages": messages}
    asked = cb.ActorRequest(params=params)
    try:
        context.answer, context.error = context.actor.respond_sync(asked), None
    except cb.ActorError as error:
        context.answer, context.error = None, error


@then("the call is refused with {kind}: {words}")
def _(context: Context, kind: str, words: str) -> None:
    assert type(context.error).__name__ == kind, repr(context.error)
    assert words in str(context.error), context.error


@then("the call has its answer")
def _(context: Context) -> None:
    assert context.error is None, context.error
    assert context.answer.text == "done"


@then("there is no ledger yet")
def _(context: Context) -> None:
    assert not Path(os.environ["CLAUDE_BATCH_LEDGER"]).exists()


@given(
    "a batch of {count:d} requests that was sent under a budget, "
    "each with a reservation of {reserve:d}"
)
@given("a batch of {count:d} requests that was sent under no budget")
@given("a batch of {count:d} and {more:d} requests of two runs that was sent under no budget")
@given(
    "a batch of {count:d} and {more:d} requests of two runs that was sent under budgets, "
    "each with a reservation of {reserve:d}"
)
def _(context: Context, count: int, more: int | None = None, reserve: int | None = None) -> None:
    mode = cb.BatchProcessingMode(budget_usd=None if reserve is None else Decimal(1))
    context.store = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(context.store.close)
    context.run_ids = []
    ids = itertools.count()
    with context.store.write() as tx:
        budgets.price_by(tx, prices_of().digest)
        workspace = workspaces.ensure_workspace(tx, "http://nowhere", "a key")
        lane = enqueue.ensure_lane(tx, workspace, "2023-06-01", "", "")
        for number, size in enumerate([count] if more is None else [count, more]):
            asked = NewRun(
                kind="run",
                actor="a/b",
                workspace_id=workspace,
                mode=mode,
                created=0.0,
                converses=True,
            )
            run = enqueue.begin_run(tx, asked)
            new = [
                NewRequest(f"{next(ids):032x}", n, None, lane, b"{}", reserve=reserve)
                for n in range(size)
            ]
            enqueue.add_requests(tx, run, new, created=0.0, due=0.0)
            enqueue.finish_storing(tx, run, digest=f"d{number}", stored=0.0)
            context.run_ids.append(run)
    [context.batch], _ = pack_due(context.store, Leader(workspace, 0), 1.0)


@then("among the budgets of {count:d} runs, its own is found uncounted, and no live call waits")
def _(context: Context, count: int) -> None:
    names = [*context.run_ids, *(f"run-{number}" for number in range(1, count))]
    with context.store.read() as tx:
        found = budgets.uncounted(tx, [("run", name) for name in names], 0)
        room = {name: number for number, name in enumerate(names)}
        assert live_calls.waiting(tx, 1, 100, room=room) == []
    assert found == [(context.batch, BatchState.PACKED)], found


@when("it is collected with a success that cost 7, a failure and a missing line, {how}")
def _(context: Context, how: str) -> None:
    priced = None if "price" in how else 7
    asks = "paused" if "turn" in how else "final"
    batch, no_tokens = context.batch, [0] * 6
    lines = [
        NewResult(1, 1, batch, "succeeded", asks, None, b"", *no_tokens, None, *[priced] * 3),
        NewResult(2, 1, batch, "errored", "retry", "api_error", b"", *no_tokens, None, 0, 0, 0),
    ]
    may_be_billed = any(words in how for words in ("may be", "hides", "is a success"))

    def go_on(tx: Transaction) -> None:
        turn = NextTurn(1, 1, b"{}", rejected=False)
        assert conversations.next_turns(tx, [turn], due=3.0) == 1
        budgets.put_reserves(tx, [budgets.Reserve(1, 2, 150)])

    with context.store.write() as tx:
        if "hides" in how or "is a success" in how:
            counts = json.dumps({"succeeded": 3 if "hides" in how else 2})
            collected_batches.mark_ended(tx, [(batch, counts, 1.5)])
            tx.execute(update(batches).values(remote_id="msgbatch_1"))
        stored_results.add_results(tx, lines)
        stored = stored_results.stored_counts(tx, context.batch)
        if "anew" in how:
            tx.execute(update(requests).where(requests.c.seq == 3).values(reserve=None))
        for _ in range(2 if "break off" in how else 0):
            charge_rows.settle_stored(tx, batch)
        if "turn first" in how:
            tx.execute(update(batches).values(next_check=2.0))
            assert collected_batches.give_successes(tx, batch) == 1
            go_on(tx)
        if "waits elsewhere" in how:
            tx.execute(update(requests).where(requests.c.seq == 1).values(batch_id=None))
            assert collected_batches.give_successes(tx, batch) == 0
            return
        complete = Complete(context.batch, stored, may_be_billed, "hides" in how)
        collected_batches.finish_collections(tx, [complete], now=2.0)
        if "after the next turn" in how:
            go_on(tx)
        for _ in range(how.count("comes") * (2 if "twice" in how else 1)):
            cost_sums.put_costs(tx, [(1, 1, "m", 7, 7, 7)])
        if "sent again" in how:
            assert retries.send_missing(tx, context.run_ids[0], [batch], now=3.0) == 2


@then("a budget with room for {count:d} more of them packs these, and reads one other")
def _(context: Context, count: int) -> None:
    read = 0
    reserved_of_lane = budgets.reserved_of_lane

    def counted(*args: Any) -> Iterator[tuple[int, int, str, int]]:
        nonlocal read
        for row in reserved_of_lane(*args):
            read += 1
            yield row

    with context.store.write() as tx:
        [budget] = budgets.all_budgets(tx, 0)
        each = budget.reserved // tx.scalar(select(batches.c.request_count))
        more = budget.amount - budget.left + count * each
        budgets.set_amount(tx, "run", budget.name, more)
    with mock.patch.object(budgets, "reserved_of_lane", counted):
        [batch], _ = pack_due(context.store, Leader(1, 0), 2.0)
    packed = ledger_values(select(batches.c.request_count).where(batches.c.id == batch))
    assert (packed, read) == ([count], count + 1), (packed, read)


@when("the first run is removed")
def _(context: Context) -> None:
    with context.store.write() as tx:
        kept = deliveries.begin_pruning(tx, context.run_ids[0], "a process")
        assert kept is None, kept
        assert not deliveries.remove_some(tx, context.run_ids[0]).more


@when("the missing line comes after all, and has cost {cost:d}")
def _(context: Context, cost: int) -> None:
    line = (3, 1, context.batch, "succeeded", "final", None, b"", *[0] * 6, None, *[cost] * 3)
    with context.store.write() as tx:
        stored_results.add_results(tx, [NewResult(*line)])
        unknown_batches.fill(tx, context.batch, contradicted=False)
        charge_rows.settle(tx, context.batch, lost=False, contradicted=False, left=True)


@then("a budget that comes now has {spent:d} spent and the most of {count:d} requests in doubt")
@then("the budget now has {spent:d} spent and the most of {count:d} requests in doubt")
def _(context: Context, spent: int, count: int) -> None:
    set_amount, seen = budgets.set_amount, []

    def set_and_look(tx: Transaction, *budget: Any) -> None:
        set_amount(tx, *budget)
        seen.extend(budgets.all_budgets(tx, 0))

    # It must count everything from its first transaction on: a call may be sent after it at once.
    with mock.patch.object(budgets, "set_amount", set_and_look):
        set_budget(context.store, "actor", "a/b", 1, prices_of())
    with context.store.read() as tx:
        [found] = budgets.all_budgets(tx, 0)
    assert (found.spent, found.doubt) == (spent, count * UNBOUNDED), found
    assert seen == [found], seen


# Results beside held requests ----------------------------------------------------------------


def _small_and_held(held_first: bool) -> list[cb.ActorRequest]:
    """Two requests that a budget of a cent has room for, and three that it has not."""

    def asked(number: int, tokens: int) -> cb.ActorRequest:
        usage = json.dumps({"input_tokens": 10 + number, "output_tokens": 20})
        messages = [{"role": "user", "content": usage}]
        params = {"model": "claude-haiku-4-5", "max_tokens": tokens, "messages": messages}
        return cb.ActorRequest(params=params)

    sizes = [10_000] * 3 + [100] * 2
    return [asked(n, size) for n, size in enumerate(sizes if held_first else sizes[::-1])]


def _read(context: Context, how: str) -> list[cb.ActorResult]:
    async def by_respond_all(ordered: bool) -> list[cb.ActorResult]:
        answers = context.actor.respond_all(context.asked, ordered=ordered)
        return [result async for result in answers]

    if how.endswith("by respond_all"):
        return asyncio.run(by_respond_all(ordered=not how.startswith("as they come")))
    run = context.actor.submit_sync(context.asked)
    if how.endswith("synchronously"):
        return list(run.results_sync())

    async def read() -> list[cb.ActorResult]:
        return [result async for result in run.results(ordered=how == "in order")]

    return asyncio.run(read())


@when(
    "a run of 2 small requests and 3 that its budget holds is read {how}, "
    "the held ones first: {first}"
)
def _(context: Context, how: str, first: str) -> None:
    context.asked = _small_and_held(first == "yes")
    context.results = _read(context, how)
    positions = [result.position for result in context.results]
    if not how.startswith("as they come"):
        assert positions == list(range(5)), positions
    context.run = context.provider.open_run(ledger_values(select(requests.c.run_id))[0])


@then("the results {held} are held, and the others are answers")
def _(context: Context, held: str) -> None:
    found = [result for result in context.results if not result.ok]
    numbers = sorted(result.position + 1 for result in found)
    assert numbers == [int(word) for word in held.split(",")], context.results
    for result in found:
        error = result.error
        assert isinstance(error, cb.BudgetExceededError), error
        assert f"request at position {result.position} was not sent" in str(error), error
        assert "3 requests are held: the run's budget is $0.01" in str(error), error
        assert error.run_id == context.run.id and error.scope == "run", error
        assert not result.reused and result.answered is None, result


@when("the budget of a run that holds 3 of 5 requests is raised after the first held result")
def _(context: Context) -> None:
    run = context.actor.submit_sync(_small_and_held(held_first=True))
    context.results = []
    with mock.patch.object(result_cursor, "PAGE", 2):
        for result in run.results_sync(ordered=False):
            context.results.append(result)
            if result.error is not None and run.status().held is not None:
                run.set_budget_sync("1")
                assert run.wait_sync().finished
    context.results.sort(key=lambda result: result.position)


@given('the line {number:d} of "{name}" is that of a request for {tokens:d} tokens of {model}')
def _(context: Context, number: int, name: str, tokens: int, model: str) -> None:
    lines = Path(name).read_text().splitlines()
    prompt = json.dumps({"input_tokens": 1, "output_tokens": 1})
    message = {"role": "user", "content": prompt}
    lines[number - 1] = json.dumps(
        {"params": {"model": model, "max_tokens": tokens, "messages": [message]}}
    )
    Path(name).write_text("\n".join(lines))


@then("the ledger remembers {count:d} removed budgets")
def _(context: Context, count: int) -> None:
    removed = meta.c.name.startswith("removed budget of")
    found = ledger_values(select(meta.c.name).where(removed))
    assert len(found) == count, found


@given('a command\'s file "{name}" of {count:d} prompts of {size:d} bytes, and one of {large:d}')
def _(context: Context, name: str, count: int, size: int, large: int) -> None:
    sizes = [size] * count + [large]
    lines = [json.dumps({"prompt": f"{at:08}" + "x" * (size - 8)}) for at, size in enumerate(sizes)]
    Path(name).write_text("\n".join(lines))


@then("{count:d} requests {what} are read for a budget, {most:d} MB at once, or a single one")
def _(context: Context, count: int, what: str, most: int) -> None:
    [run_id] = ledger_values(select(requests.c.run_id).distinct())
    batch_ids = ledger_values(select(batches.c.id))

    def page(after: int) -> list[tuple[int, bytes]]:
        with ledger.read() as tx:
            if what == "in a batch":
                return budgets.page_of(tx, "batch", batch_ids[0], after)
            return budgets.page_of(tx, "live", run_id, after)

    seen: list[int] = []
    with opened_ledger() as ledger:
        while found := page(seen[-1] if seen else 0):
            assert len(found) == 1 or sum(len(body) for _, body in found) <= most << 20
            seen += [seq for seq, _ in found]
    assert seen == ledger_values(select(requests.c.seq).order_by(requests.c.seq)), seen
    assert len(seen) == count
