"""Steps for deadlines, modes and live calls of the ledger, against the sandbox over real HTTP."""

from __future__ import annotations

from typing import Any

from behave import then
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values, until

from claude_batch.ledger.schema import runs


def _paid(context: Context) -> dict[str, int]:
    """How many requests were paid for, in batches and live."""
    bill = context.api.billing()
    return {
        route: sum(each["route"] == route and each["outcome"] == "succeeded" for each in bill)
        for route in ("batch", "live")
    }


def _via(results: list[Any]) -> dict[str, int]:
    found = {"batch": 0, "live": 0}
    for result in results:
        if result.ok:
            found[result.response.via] += 1
    return found


@then(
    "some of the {count:d} answers came from batches and the others live, each paid once at its "
    "price"
)
def _(context: Context, count: int) -> None:
    paid, via = _paid(context), _via(context.results)
    assert via == paid, (via, paid)
    assert sum(paid.values()) == count and min(paid.values()) > 0, paid
    assert context.api.billing_summary()["paid_more_than_once"] == 0
    for result in context.results:
        tokens = result.response.usage
        live = tokens.input_tokens * 1000 + tokens.output_tokens * 5000
        wanted = live if result.response.via == "live" else live // 2
        assert result.response.cost == wanted, (result.response.cost, wanted)


@then("the run's deadline was {outcome}")
def _(context: Context, outcome: str) -> None:
    def concluded() -> Any:
        return ledger_values(select(runs.c.deadline_outcome))[0]

    found = until(concluded)
    assert found.startswith(outcome), found
