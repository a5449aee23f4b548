"""What pages may change with ``--allow-actions``: the work of four commands, on the ledger alone.

Each action is the transaction of the command that has its name. The process that drives the ledger
notices the change and calls the API; the dashboard itself has no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, cast, get_args

from claude_batch.core.errors import BudgetScope, InvalidRequestError
from claude_batch.core.quantities import count_of, nano_dollars
from claude_batch.core.settings import naming_ledger
from claude_batch.ledger import cancellations
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.recovery import Refetched
from claude_batch.money.prices import Prices
from claude_batch.providers.cost_report import set_budget
from claude_batch.providers.reruns import decide_unknown, parse_only, retry_run
from claude_batch.providers.status import find_run_id, status_of


class Done(NamedTuple):
    """What an action has done."""

    words: str
    run_id: str | None
    """The run whose page shows the words; None for the overview."""


Action = Callable[[Ledger, Mapping[str, str], Prices], Done]
"""Takes the fields of its form. Raises `ActorError`; nothing has changed then."""


def cancel(ledger: Ledger, form: Mapping[str, str], prices: Prices) -> Done:
    """Cancel a run, as ``claude-batch cancel`` does."""
    run_id = find_run_id(ledger, form.get("run", ""))
    with ledger.write() as tx:
        if not cancellations.cancel_run(tx, run_id, ledger.now()):
            return Done(f"{run_id} is finished; there is nothing to cancel.", run_id)
    words = f"{run_id} is cancelled; the results so far are kept."
    if not status_of(ledger, run_id).finished:
        words += f" Its batches are not cancelled at the API yet. {_if_undriven(ledger, run_id)}"
    return Done(words, run_id)


def retry(ledger: Ledger, form: Mapping[str, str], prices: Prices) -> Done:
    """Queue the failed requests of a run again, as ``claude-batch retry`` does without flags."""
    run_id = find_run_id(ledger, form.get("run", ""))
    # Only `--only missing` fetches results, for which the dashboard has no key.
    retried = retry_run(ledger, run_id, parse_only(None), Refetched)
    parts: list[str] = []
    if retried.queued:
        queued = count_of(retried.queued, "request is queued again", "requests are queued again")
        parts.append(f"{queued}. {_if_undriven(ledger, run_id)}")
    if retried.answered:
        parts.append(f"Found answers for {count_of(retried.answered, 'request')}.")
    if retried.cancelled:
        left = count_of(retried.cancelled, "request was", "requests were")
        sends = naming_ledger(f"`claude-batch retry {run_id} --only canceled`", ledger.location)
        parts.append(f"{left} cancelled with the run and not queued; {sends} sends them.")
    return Done(" ".join(parts) or f"{run_id} has no failed request to retry.", run_id)


def change_budget(ledger: Ledger, form: Mapping[str, str], prices: Prices) -> Done:
    """Set a budget of a run, an actor or each day, as ``claude-batch budget`` does."""
    given, _, name = form.get("budget", "").partition(":")
    if given not in get_args(BudgetScope) or (given == "day") is bool(name):
        raise InvalidRequestError("the form names no budget; nothing was changed")
    scope = cast("BudgetScope", given)
    if scope == "run":
        name = find_run_id(ledger, name)
    usd = form.get("usd", "").strip()
    try:
        amount = None if usd == "none" else nano_dollars(usd)
    except ValueError as error:
        raise InvalidRequestError(f"{error}; nothing was changed") from None
    limit = set_budget(ledger, scope, name, amount, prices)
    whose = {"run": name, "actor": f"actor {name}", "day": "each day"}[scope]
    return Done(f"{whose}: {limit}.", name if scope == "run" else None)


def decide(ledger: Ledger, form: Mapping[str, str], prices: Prices) -> Done:
    """Decide requests that were perhaps sent, as ``claude-batch unknown`` does."""
    run_id = find_run_id(ledger, form.get("run", ""))
    decision = form.get("decision", "")
    if decision not in ("resubmit", "give-up"):
        raise InvalidRequestError("the form has no decision; nothing was changed")
    if decision == "resubmit" and form.get("sure") != "yes":
        raise InvalidRequestError(
            "requests that are sent again may be paid for twice; tick that you accept it. Nothing "
            "was changed"
        )
    resubmit = decision == "resubmit"
    decided = decide_unknown(ledger, run_id, resubmit=resubmit)
    count = decided.requests
    if decided.refusal:
        go_on = "Requests with an unknown outcome end with: Give up."
        if not decided.undecided:
            go_on = (
                "Its lost requests can be sent again once its open ones have ended. "
                f"{_if_undriven(ledger, run_id)}"
            )
        words = f"{run_id} {decided.refusal}. Nothing was sent again. {go_on}"
    elif not count:
        words = f"{run_id} has no unknown requests; nothing was changed."
    elif resubmit:
        requests = count_of(count, "request")
        words = f"{requests} of {run_id} queued again. {_if_undriven(ledger, run_id)}"
    else:
        words = f"{count_of(count, 'request')} of {run_id} ended without an answer."
    return Done(words, run_id)


def _if_undriven(ledger: Ledger, run_id: str) -> str:
    go_on = naming_ledger(f"`claude-batch resume {run_id}`", ledger.location)
    return f"If no process drives the ledger: {go_on}."


ACTIONS: Final[Mapping[str, Action]] = MappingProxyType(
    {"cancel": cancel, "retry": retry, "budget": change_budget, "unknown": decide}
)
"""Actions by the last part of their forms' address."""
