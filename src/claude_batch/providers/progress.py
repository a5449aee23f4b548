"""Progress of a run: completed share, cost so far, failures, and expected end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from statistics import median
from typing import Any

from claude_batch.core.dollars import usd
from claude_batch.core.states import BatchState, RunState
from claude_batch.ledger import budgets, cost_sums, queries
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.store import Ledger
from claude_batch.providers.status import RunStatus

PAST_BATCHES = 50
"""Number of a workspace's newest batches that predict how long one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run at one moment."""

    done: float
    """Share of the requests that have their final state, from 0 to 1."""
    cost: int
    """Nano-dollars (10⁻⁹ USD) of the collected batches, as far as prices are known."""
    unpriced: int
    """Number of answers that `cost` leaves out, because their model has no known price."""
    budget: int | None
    """The run's budget in nano-dollars; None for a run without its own budget."""
    failures: dict[str, int]
    """Failed requests by the API's error type, else by state; the most frequent first."""
    expected_end: float | None
    """Expected end from the durations of recent batches (seconds since the epoch).

    None if no prediction is possible: no batch has ended yet, no process drives the ledger, or
    something blocks the run.
    """

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        budget = None if self.budget is None else self.budget / 1e9
        return {**asdict(self), "cost_usd": self.cost / 1e9, "budget_usd": budget}


class ProgressReader:
    """Reads a run's progress repeatedly; a collected batch's cost is added up only once."""

    def __init__(self, ledger: Ledger, run_id: str) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._costs: dict[int, tuple[int, int]] = {}
        self._failed = 0
        self._failures: dict[str, int] = {}

    def read(self, status: RunStatus) -> Progress:
        """Return the progress of a run, given its current status."""
        with self._ledger.read() as tx:
            live = cost_sums.live_holders(tx, self._run_id)
            for batch_id in (*cost_sums.collected_batches(tx, self._run_id), *live):
                if batch_id not in self._costs or batch_id in live:
                    self._costs[batch_id] = cost_sums.cost_in_batch(tx, self._run_id, batch_id)
            if status.failed != self._failed:
                self._failed = status.failed
                self._failures = cost_sums.failures(tx, self._run_id)
            budget = budgets.amounts(tx, self._run_id, status.actor).get("run")
            took: list[float] = []
            if status.state is RunState.RUNNING:
                row = queries.run_row(tx, self._run_id)
                took = queries.past_durations(tx, row.workspace_id, PAST_BATCHES)
        final = sum(count for state, count in status.counts.items() if state.is_final)
        return Progress(
            done=final / status.total if status.total else 0.0,
            cost=sum(cost for cost, _ in self._costs.values()),
            unpriced=sum(unpriced for _, unpriced in self._costs.values()),
            budget=budget,
            failures=self._failures,
            expected_end=_end_of(status, took),
        )


def _end_of(status: RunStatus, took: Sequence[float]) -> float | None:
    if status.state is not RunState.RUNNING:
        return None
    states = [batch.state for batch in status.batches]
    goes_live = status.mode == "live" or any(map(groups_live_calls, states))
    if goes_live or BatchState.UNKNOWN in states:
        # Past batches do not predict how long live calls take.
        return None
    at_api = [
        batch.submitted
        for batch in status.batches
        if batch.state in (BatchState.IN_PROGRESS, BatchState.CANCELING)
        and batch.submitted is not None
    ]
    waits = "queued" in status.counts or BatchState.PACKED in states
    return expected_end(at_api, waits=waits, took=took, now=time.time())


def expected_end(
    submitted: Iterable[float], *, waits: bool, took: Sequence[float], now: float
) -> float | None:
    """Return when the last batch may end, from the seconds that past ones took, or None.

    A batch is expected to take the median of those that took longer than its present age.
    ``waits``: whether more is still to be sent, for which a batch from now on is expected.
    """
    ends: list[float] = [now]
    starts = list(submitted) + ([now] if waits else [])
    for start in starts:
        longer = [seconds for seconds in took if seconds > now - start]
        if not longer:
            return None
        ends.append(start + median(longer))
    return max(ends)
