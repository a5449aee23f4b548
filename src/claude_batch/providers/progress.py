"""Progress of a run in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from statistics import median
from typing import Any

from claude_batch.core.quantities import usd
from claude_batch.core.states import IN_FLIGHT, OPEN_AT_API, BatchState, RequestState, RunState
from claude_batch.ledger import budgets, cost_sums, queries, workspaces
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.money.prices import Prices
from claude_batch.providers.status import RunStatus, is_undecided

PAST_BATCHES = 50
"""Number of a workspace's newest batches that predict how long one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run at one moment."""

    done: float
    """Share of the requests that have their final state, from 0 to 1."""
    completed: int = 0
    """Number of requests that have their final state."""
    total: int | None = None
    """Number of requests; None if a live call's requests are still being read."""
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    """Number of requests by their final state: ``succeeded``, ``errored``, ``expired``, …"""
    cost: int
    """Nano-dollars (10⁻⁹ USD) of the collected batches, as far as prices are known."""
    unpriced: int
    """Number of answers that `cost` leaves out, because their model has no known price."""
    budget: int | None
    """The run's budget in nano-dollars; None for a run without its own budget."""
    expected_cost: int | None = None
    """Estimated cost of the whole run in nano-dollars: `cost`, and an estimate of the rest.

    None if a model has no known price, and for live calls without a ledger.
    """
    failures: dict[str, int]
    """Failed requests by the API's error type, else by state; the most frequent first."""
    expected_end: float | None
    """Expected end from the durations of recent batches (seconds since the epoch).

    None if no prediction is possible: no batch has ended yet, no process drives the ledger, or
    something blocks the run.
    """
    read: float | None = field(default=None, compare=False)
    """The ledger's time at which this was read; None without a ledger. `to_dict` leaves it out."""

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = asdict(self)
        del values["read"]
        for name in ("cost", "budget", "expected_cost"):
            values[f"{name}_usd"] = None if values[name] is None else values[name] / 1e9
        return values


class ProgressReader:
    """Reads a run's progress repeatedly; a collected batch's cost is added up only once."""

    def __init__(self, ledger: Ledger, run_id: str, prices: Prices | None = None) -> None:
        """``prices`` are for `Progress.expected_cost`, which is None without them."""
        self._ledger = ledger
        self._run_id = run_id
        self._prices = prices
        self._costs: dict[int, tuple[int, int]] = {}
        self._lost = 0
        self._failed = 0
        self._failures: dict[str, int] = {}
        self._estimate: int | None = None
        self._is_estimated = False

    def read(self, status: RunStatus) -> Progress:
        """Return the progress of a run, given its current status."""
        found = self._ledger.query(lambda tx: self.read_in(tx, status))
        if found.unpriced:
            return found
        return replace(
            found, expected_cost=self._expected_cost(status, found.cost, found.completed)
        )

    def read_in(self, tx: Transaction, status: RunStatus) -> Progress:
        """Return the same in a transaction of the caller, without the expected cost of a rest."""
        lost = status.counts.get(RequestState.LOST, 0)
        if lost != self._lost:
            # Results were found since, in batches that were collected before.
            self._costs.clear()
            self._lost = lost
        new = [
            batch_id
            for batch_id, is_complete in cost_sums.batches_with_results(tx, self._run_id)
            if batch_id not in self._costs or not is_complete
        ]
        self._costs |= cost_sums.costs_in_batches(tx, self._run_id, new)
        if status.failed != self._failed:
            self._failed = status.failed
            self._failures = cost_sums.failures(tx, self._run_id)
        budget = budgets.amounts(tx, self._run_id, status.actor).get("run")
        now = self._ledger.now()
        outcomes = {str(state): n for state, n in status.counts.items() if state.is_final}
        completed = sum(outcomes.values())
        cost = sum(cost for cost, _ in self._costs.values())
        unpriced = sum(unpriced for _, unpriced in self._costs.values())
        return Progress(
            done=completed / status.total if status.total else 0.0,
            completed=completed,
            total=status.total,
            outcomes=outcomes,
            cost=cost,
            unpriced=unpriced,
            budget=budget,
            expected_cost=cost if completed == status.total and not unpriced else None,
            failures=self._failures,
            expected_end=run_end(tx, status, now=now),
            read=now,
        )

    def _expected_cost(self, status: RunStatus, cost: int, completed: int) -> int | None:
        left = status.total - completed
        if not left:
            return cost
        if self._prices is None:
            return None
        if not self._is_estimated:
            from claude_batch.providers.estimation import expected_cost

            # Once, because it reads requests and the usage of earlier answers.
            self._is_estimated = True
            self._estimate = expected_cost(
                self._ledger,
                self._run_id,
                status.total,
                actor=status.actor,
                mode=status.mode,
                prices=self._prices,
            )
        if self._estimate is None:
            return None
        return cost + self._estimate * left // status.total


def run_end(tx: Transaction, status: RunStatus, *, now: float) -> float | None:
    """Return when a run may end, from the seconds that past batches took, or None.

    If ``parallel_batches`` limits the run, its further batches are expected one after another.
    ``now``: the ledger's time.
    """
    if status.state is not RunState.RUNNING:
        return None
    row = queries.run_row(tx, status.run_id)
    took = workspaces.past_durations(tx, row.workspace_id, PAST_BATCHES)
    paused_until = workspaces.workspace_row(tx, row.workspace_id).wait_until
    parallel_batches = row.parallel_batches
    states = [batch.state for batch in status.batches]
    goes_live = status.mode == "live" or any(map(groups_live_calls, states))
    if goes_live or any(map(is_undecided, status.batches)):
        # Past batches do not predict how long live calls take.
        return None
    at_api = [
        batch.submitted
        for batch in status.batches
        if batch.state in OPEN_AT_API and batch.submitted is not None
    ]
    queued = status.counts.get(RequestState.QUEUED, 0)
    rounds, has_room = 0, True
    if queued and parallel_batches is not None and status.batches:
        size = max(1, *(batch.requests for batch in status.batches))
        under_way = sum(state in IN_FLIGHT or state is BatchState.PACKED for state in states)
        room = max(0, parallel_batches - under_way)
        rounds = math.ceil(max(0, math.ceil(queued / size) - room) / parallel_batches)
        has_room = room > 0
    waits = BatchState.PACKED in states or (queued > 0 and has_room)
    pause = max(0.0, (paused_until or 0.0) - now)
    return expected_end(at_api, waits=waits, took=took, now=now, rounds=rounds, pause=pause)


def expected_end(
    submitted: Iterable[float],
    *,
    waits: bool,
    took: Sequence[float],
    now: float,
    rounds: int = 0,
    pause: float = 0.0,
) -> float | None:
    """Return when the last batch may end, from the seconds that past ones took, or None.

    A batch is expected to take the median of those that took longer than its present age.
    ``waits``: whether more is still to be sent, for which a batch is expected that begins after a
    ``pause`` of so many seconds.
    ``rounds``: how many more batches follow one after another, once these have ended.
    """
    ends: list[float] = [now]
    starts = list(submitted) + ([now + pause] if waits else [])
    for start in starts:
        longer = [seconds for seconds in took if seconds > now - start]
        if not longer:
            return None
        ends.append(start + median(longer))
    if not rounds:
        return max(ends)
    return max(ends) + rounds * median(took) if took else None
