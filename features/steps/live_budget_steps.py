"""Steps about the budgets of live calls, judged by the API's bill and the ledger's sums."""

from __future__ import annotations

import time
from typing import Any

from behave import then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import (
    QUICK,
    ledger_values,
    make_provider,
    until,
)

import claude_batch as cb
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger.schema import charges, params, requests
from claude_batch.lifecycle.budget_room import most_cost
from claude_batch.money.prices import prices_of

use_step_matcher("parse")


def _sums() -> tuple[int, int]:
    """What is kept and what is reserved, in nano-dollars."""
    kept = ledger_values(select(charges.c.doubt))
    reserved = ledger_values(select(charges.c.reserved))
    return sum(kept), sum(reserved)


def _most_of(state: str | None = None) -> int:
    """What the ledger's requests of a state, or all, can cost live."""
    query = select(params.c.body).join(requests, requests.c.seq == params.c.request_seq)
    if state is not None:
        query = query.where(requests.c.state == state)
    now = time.time()
    return sum(most_cost(prices_of(), body, now, batch=False) for body in ledger_values(query))


@then("what one call can cost live is kept, and nothing is reserved")
def _(context: Context) -> None:
    assert _sums() == (_most_of(), 0), (_sums(), _most_of())


@then("what each lost call can cost live is kept, and nothing is reserved")
def _(context: Context) -> None:
    lost = _most_of(RequestState.LOST)
    assert lost > 0 and _sums() == (lost, 0), (_sums(), lost)


@when("a budget of $1 is set for the actor, and another run of {count:d} prompts is asked live")
def _(context: Context, count: int) -> None:
    context.provider.close()
    make_provider(context, mode="live", actor_budget_usd="1")
    prompts = [f"another {n}" for n in range(count)]
    results = list(context.actor.respond_all_sync(prompts))
    assert all(result.ok for result in results), results


def _request(tokens: int, prompt: str) -> cb.ActorRequest:
    messages = [{"role": "user", "content": prompt}]
    return cb.ActorRequest(
        params={"model": "claude-haiku-4-5", "max_tokens": tokens, "messages": messages}
    )


@when("a run is stored of requests with at most {sizes} tokens")
def _(context: Context, sizes: str) -> None:
    tokens: list[int] = []
    for size in sizes.split(", "):
        times, _, most = size.rpartition(" times ")
        tokens += [int(most)] * int(times or 1)
    context.prompts = [f"hello {number}" for number in range(len(tokens))]
    asked = [_request(*each) for each in zip(tokens, context.prompts, strict=True)]
    context.run = context.provider.store(context.actor.configuration, asked)


@when("the run's budget is raised to ${amount}")
def _(context: Context, amount: str) -> None:
    context.run.set_budget_sync(amount)


@when("a live run is held by the actor's budget, and a run in batches of the same actor is not")
def _(context: Context) -> None:
    settings: dict[str, Any] = {**QUICK, "actor_budget_usd": "0.004"}
    provider = cb.ClaudeBatchProvider(**settings, mode="live")
    context.add_cleanup(provider.close)
    asked = context.actor.configuration
    context.live = provider.store(asked, [_request(1500, "held")])
    until(lambda: context.live.status().state is RunState.HELD)
    batches = cb.ClaudeBatchProvider(**settings)
    context.add_cleanup(batches.close)
    context.in_batch = batches.store(asked, [_request(1000, "small")])


@then("the run in batches is answered from a batch, and the live one waits for its call")
def _(context: Context) -> None:
    [result] = context.in_batch.results_sync()
    assert result.unwrap().via == "batch", result
    status = context.live.status()
    assert status.state is RunState.HELD and status.held is not None, status
    assert "1 request is held: the budget of the actor tests/asker" in status.waiting_for
    bill = context.api.billing()
    assert [each["route"] for each in bill] == ["batch"], bill


@when("what is due is advanced and held, and the run's budget is raised to ${amount}")
def _(context: Context, amount: str) -> None:
    assert context.provider.advance_sync()
    assert context.run.status().state == "held", context.run.status()
    context.run.set_budget_sync(amount)


@when("it is {driven} until it is {state}")
def _(context: Context, driven: str, state: str) -> None:
    def there() -> bool:
        if driven == "advanced":
            context.provider.advance_sync()
        return context.run.status().state == state

    until(there, 30.0)


@then("{count:d} requests wait for the run's budget")
def _(context: Context, count: int) -> None:
    held = context.run.status().held
    assert held is not None and held.requests == count, held


@then("the last request is answered, and {count:d} wait for the budget")
def _(context: Context, count: int) -> None:
    states = ledger_values(select(requests.c.state).order_by(requests.c.position))
    assert states == ["queued"] * count + ["succeeded"], states[-3:]


@then("all {count:d} are answered live, each paid once")
def _(context: Context, count: int) -> None:
    results = list(context.run.results_sync())
    assert [result.unwrap().via for result in results] == ["live"] * count
    bill = context.api.billing_summary()
    assert (bill["paid"], bill["paid_more_than_once"]) == (count, 0), bill
