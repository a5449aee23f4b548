"""The first page: what runs, what it costs, and what waits for a person."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from claude_batch.core.quantities import count_of, roughly
from claude_batch.core.states import RunState
from claude_batch.dashboard.ledger_reader import LedgerReader, Snapshot
from claude_batch.dashboard.progress_bar import bar_of
from claude_batch.lifecycle.budget_room import today
from claude_batch.providers.cost_report import BudgetStatus

_AGES = (3600.0, 6 * 3600.0, 12 * 3600.0, 24 * 3600.0)


class Attention(NamedTuple):
    """Something that waits for a person."""

    title: str
    words: str
    run_id: str | None
    command: str | None
    """The command that resolves it."""
    is_grave: bool


def overview_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the first page."""
    snapshot = reader.snapshot
    now = time.time()
    day = today(now)
    month = day - datetime.fromtimestamp(now, UTC).day + 1
    costs = snapshot.costs
    return {
        "snapshot": snapshot,
        "today": costs.total(since=day),
        "month": costs.total(since=month),
        "total": costs.total(),
        "runs": [(status, bar_of(status.counts, status.total)) for status in snapshot.statuses],
        "states": _states(snapshot),
        "attention": attention_of(snapshot),
        "costs": _costs_of_runs(snapshot),
        "budgets": [(each, *shares_of(each)) for each in snapshot.budgets],
        "changeable": [
            ("day:", "Each day (UTC)"),
            *(
                (f"{each.scope}:{each.name}", each.name)
                for each in snapshot.budgets
                if each.scope != "day"
            ),
        ],
        "ages": _ages(snapshot, now),
        "waiting": sum(
            count
            for status in snapshot.statuses
            for state, count in status.counts.items()
            if not state.is_final
        ),
    }


def _costs_of_runs(snapshot: Snapshot) -> dict[str, int]:
    costs: dict[str, int] = {}
    for cell in snapshot.costs.cells():
        run_id = cell.sums.run_id
        costs[run_id] = costs.get(run_id, 0) + cell.sums.cost
    return costs


def _states(snapshot: Snapshot) -> list[tuple[RunState, int]]:
    """Count the newest runs by state."""
    states = [status.state for status in snapshot.statuses]
    return [(state, states.count(state)) for state in RunState if state in states]


def attention_of(snapshot: Snapshot) -> list[Attention]:
    """Return what waits for a person, the gravest first."""
    found: list[Attention] = []
    for row in snapshot.halted:
        behind = row.behind is not None or row.halt_reason == "ledger_behind"
        found.append(
            Attention(
                "The ledger must be recovered" if behind else "Sending is halted",
                f"{row.base_url}: {row.halt_reason}: {row.halt_message} "
                f"(for {roughly(time.time() - row.halted)})",
                None,
                "claude-batch ledger recover" if behind else "claude-batch resume",
                True,
            )
        )
    for each in snapshot.unknown:
        what = count_of(each.requests, "request")
        found.append(
            Attention(
                f"{what} without a result" if each.lost else f"{what}, perhaps sent",
                f"{each.reason}. "
                + (
                    "They may have been paid for, and are not sent again by themselves."
                    if each.lost
                    else "The API's list of batches usually decides it. Sent again, they may be "
                    "paid for twice."
                ),
                each.run_id,
                f"claude-batch unknown {each.run_id}",
                not each.lost,
            )
        )
    for status in snapshot.statuses:
        if status.held is not None and status.state is RunState.HELD:
            found.append(
                Attention(
                    f"{status.label or status.run_id} is held by a budget",
                    status.held.describe(status.run_id),
                    status.run_id,
                    None,  # the words name it
                    False,
                )
            )
        elif status.state is RunState.PARKED:
            found.append(
                Attention(
                    f"{status.label or status.run_id} is parked",
                    "No process drives it. Its batches go on at the API; their results are "
                    "collected when a process continues it.",
                    status.run_id,
                    f"claude-batch resume {status.run_id}",
                    False,
                )
            )
    return found


def shares_of(budget: BudgetStatus) -> tuple[float, float]:
    """Return how much of a budget is spent and how much is reserved, in percent up to 100."""
    whole = max(budget.budget, 1)
    spent = min(100.0, 100 * (budget.spent + budget.in_doubt) / whole)
    return spent, min(100.0 - spent, 100 * budget.reserved / whole)


def _ages(snapshot: Snapshot, now: float) -> list[tuple[str, int, int]]:
    """Return the batches at the API by age: words, number of batches, number of requests."""
    words = ("under 1 h", "1 to 6 h", "6 to 12 h", "12 to 24 h", "over 24 h")
    batches, requests = [0] * len(words), [0] * len(words)
    for row in snapshot.open_batches:
        if row.submitted is not None:
            place = sum(now - row.submitted >= end for end in _AGES)
            batches[place] += 1
            requests[place] += row.request_count
    return list(zip(words, batches, requests, strict=True))
