"""Steps about the budgets of live calls, judged by the API's bill and the ledger's sums."""

from __future__ import annotations

import time

from behave import then, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import (
    ledger_values,
    until,
)

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.ledger.schema import charges, params, requests
from claude_batch.lifecycle.budget_room import bound_cost
from claude_batch.money.prices import prices_of
from claude_batch.wire.bounds import token_bound

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
    bounds = [token_bound(body) for body in ledger_values(query)]
    return sum(bound_cost(prices_of(), bound, now, batch=False) for bound in bounds)


@then("what {count:d} call can cost live is kept, and nothing is reserved")
@then("what {count:d} calls can cost live is kept, and nothing is reserved")
def _(context: Context, count: int) -> None:
    assert _sums() == (count * _most_of(), 0), (_sums(), _most_of())


@then("what each lost call can cost live is kept, and nothing is reserved")
def _(context: Context) -> None:
    lost = _most_of(RequestState.LOST)
    assert lost > 0 and _sums() == (lost, 0), (_sums(), lost)


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


@when("it is {driven} until it is {state}")
def _(context: Context, driven: str, state: str) -> None:
    def there() -> bool:
        if driven == "advanced":
            context.provider.advance_sync()
        return context.run.status().state == state

    until(there, 30.0)
