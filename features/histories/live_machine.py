"""Random histories in which runs are asked live, beside those that are asked in batches."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.settings import LedgerSettings
from histories.api import SimulatedApi
from histories.ledger_rows import Row
from histories.live_api import DOWNLOAD, LIVE_COST, LivePlan
from histories.machine import LifecycleMachine
from histories.verdict import OF_THIS_TURN, Verdict

__all__ = ["LiveMachine"]

LIVE = BatchProcessingMode(mode="live", linger=0.0)
PLANS = st.lists(
    st.builds(
        LivePlan,
        kind=st.sampled_from(["answer", "lose", "error", "error", "error", "connect"]),
        processed=st.booleans(),
        status=st.sampled_from(
            [307, 400, 401, 402, 403, 404, 405, 408, 409, 413, 429, 500, 502, 503, 504, 529]
        ),
        from_api=st.sampled_from([True, True, True, False]),
        message=st.sampled_from(["no", DOWNLOAD, "Your credit balance is too low"]),
    ),
    min_size=1,
    max_size=4,
)


class LiveVerdict(Verdict):
    """The judge of a history with live calls."""

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self.calls: dict[str, list[LivePlan]] = defaultdict(list)
        """By request id: what the API got live, since it was last ordered to be asked again."""
        self.bills: dict[str, int] = defaultdict(int)
        """By request id: what the API has billed live, in nano-dollars."""
        self._answers: set[str] = set()
        self._failures: set[str] = set()
        self.interrupted: set[str] = set()
        """Requests whose call was under way when its process ended."""
        api.on_live = self._live

    def _live(self, params: bytes, plan: LivePlan) -> None:
        row = self.rows(
            "SELECT r.id, r.state, b.state AS carrier, EXISTS (SELECT 1 FROM results s WHERE "
            f"s.request_seq = r.seq AND s.outcome = 'succeeded' AND {OF_THIS_TURN}) AS answered "
            "FROM requests r "
            "JOIN params p ON p.request_seq = r.seq LEFT JOIN batches b ON b.id = r.batch_id "
            # Whoever died while storing has left a part of the same run.
            "JOIN runs u ON u.id = r.run_id WHERE p.body = ? AND u.stored IS NOT NULL "
            "ORDER BY r.state != 'packed'",
            params,
        )[0]
        request = row["id"]
        if (row["state"], row["carrier"]) != ("packed", "live"):
            self._say(f"{request} was asked live while it was {row['state']}, {row['carrier']}")
        if row["answered"]:
            self._say(f"{request} was asked live although a success of it is stored")
        for earlier in self.calls[request]:
            if earlier.is_billed:
                self._say(f"{request} was asked live again, and had been billed: {earlier}")
            elif earlier.may_hide:
                self._say(f"{request} was asked live again, and may have been billed: {earlier}")
        self.calls[request].append(plan)
        self.bills[request] += LIVE_COST * plan.is_billed
        if plan.kind == "answer":
            self._answers.add(request)
        elif plan.kind == "error":
            self._failures.add(request)

    def interrupt(self) -> None:
        """The process that drives ends: its calls under way go with it."""
        rows = self.rows(
            "SELECT r.id FROM requests r JOIN batches b ON b.id = r.batch_id "
            "WHERE r.state = 'packed' AND b.state = 'live'"
        )
        self.interrupted.update(row["id"] for row in rows)

    def order_again(self, run_id: str) -> None:
        super().order_again(run_id)
        for request in self.undecided(run_id):
            self.calls.pop(request, None)

    def _may_be_lost(self, row: Row) -> bool:
        request = row["id"]
        doubted = any(plan.may_hide for plan in self.calls[request])
        return doubted or request in self.interrupted or super()._may_be_lost(row)

    def _billed(self) -> int:
        return super()._billed() + sum(self.bills.values())

    def _truths(self, request: str) -> set[str]:
        answered = {"succeeded"} if request in self._answers else set[str]()
        failed = {"invalid"} if request in self._failures else set[str]()
        return super()._truths(request) | answered | failed


class LiveMachine(LifecycleMachine):
    """A history with live calls."""

    judge = LiveVerdict

    def _bury(self) -> None:
        self.verdict.interrupt()
        super()._bury()

    def _retire(self) -> None:
        self.verdict.interrupt()
        super()._retire()

    def go_round(self, seconds: float) -> None:
        super().go_round(seconds)
        self._act(self.process.call)

    def ask_live(self, count: int, plans: list[LivePlan], seconds: float) -> None:
        """A run is asked live, and the first calls end in one way or another."""
        self._store_run(count, LIVE)
        self.call_on(plans, seconds)

    def call_on(self, plans: list[LivePlan], seconds: float) -> None:
        """What waits for the live API is asked."""
        self.api.live_plans.clear()
        self.api.live_plans.extend(plans)
        self.clock.advance(seconds)
        self._act(self.process.send)
        self._act(self.process.call)

    ask = rule(count=st.integers(1, 4), plans=PLANS, seconds=st.sampled_from([3.0, 61.0]))(ask_live)
    ask_on = rule(plans=PLANS, seconds=st.sampled_from([3.0, 61.0, 400.0]))(call_on)

    def _finish(self) -> None:
        self.api.live_plans.clear()
        super()._finish()
