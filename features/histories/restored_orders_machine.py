"""Random histories of runs that are asked again, in a ledger that is restored from copies."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import BudgetScope
from histories.machine import PICK
from histories.orders_machine import OrdersMachine, OrdersVerdict
from histories.restore_machine import RestoreMachine, RestoreVerdict

__all__ = ["RestoredOrdersMachine"]


class RestoredOrdersVerdict(RestoreVerdict, OrdersVerdict):
    """The judge of orders in a ledger that forgets."""

    def recovering(self) -> None:
        super().recovering()
        rows = self.rows(
            "SELECT r.id FROM requests r JOIN runs u ON u.id = r.run_id WHERE r.finished IS NULL "
            "AND (u.mode != 'batch' OR u.deadline IS NOT NULL AND u.fallback = 'live')"
        )
        self.interrupted.update(row["id"] for row in rows)


class RestoredOrdersMachine(RestoreMachine, OrdersMachine):
    """A history of runs with deadlines that are asked again, in copies. It has no budgets."""

    judge = RestoredOrdersVerdict

    set_a_budget = None  # type: ignore[assignment]

    def _limit(self, scope: BudgetScope, name: str, amount: int | None) -> None: ...

    def _ask_anyhow(self, inputs: Any, mode: tuple[bool, BatchProcessingMode]) -> None:
        absolute, settings = mode
        unbounded = {"budget_usd": None, "actor_budget_usd": None}
        super()._ask_anyhow(inputs, (absolute, settings.model_copy(update=unbounded)))

    def forget_orders(
        self,
        copies: bool,
        orders: list[dict[str, Any]],
        outcomes: list[str],
        pick: int,
        mark: str,
        recovering: dict[str, Any],
        data: st.DataObject,
    ) -> None:
        """Runs are asked again and sent after a copy was made, and that is forgotten."""
        if copies:
            self.back_up()
        for order in orders:
            self.ask_again(**order)
            self.send(data)
            for remote in self._there("in_progress", "canceling"):
                self.api.end(remote, outcomes)
            self.go_round(31.0)
        self._restore(-1 if copies else pick, mark)
        self.recover(**recovering)

    FORGETTING: ClassVar = {
        "copies": st.booleans(),
        "orders": st.lists(st.fixed_dictionaries(OrdersMachine.AGAIN), min_size=1, max_size=2),
        "outcomes": st.lists(
            st.sampled_from(["succeeded", "overloaded", "expired", "invalid"]),
            min_size=1,
            max_size=3,
        ),
        "pick": PICK,
        "mark": RestoreMachine.MARKS,
        "recovering": st.fixed_dictionaries(RestoreMachine.RECOVERING),
        "data": st.data(),
    }
    _if_asked = precondition(lambda self: self.inputs)
    forget_orders_once = _if_asked(rule(**FORGETTING)(forget_orders))
    forget_orders_again = _if_asked(rule(**FORGETTING)(forget_orders))
