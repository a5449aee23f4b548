"""Random histories of runs with deadlines and budgets that people ask for, cancel and ask again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.errors import BudgetScope, InvalidRequestError
from claude_batch.core.quantities import usd
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import cancellations
from claude_batch.ledger.charges import DAY
from claude_batch.lifecycle.recovery import Refetched
from claude_batch.money.prices import prices_of
from claude_batch.providers.cost_report import set_budget
from claude_batch.providers.reruns import parse_only, retry_run
from claude_batch.wire.encoding import parse_custom_id
from histories.api import COST, Remote, SimulatedApi
from histories.live_api import LIVE_COST, LivePlan
from histories.live_machine import LiveMachine, LiveVerdict
from histories.machine import ALL_MONEY, PICK, RESERVED, STEPS
from histories.verdict import Row, Violation

__all__ = ["OrdersMachine"]

_FAILED = ("errored", "expired", "canceled")
_ROOM = st.sampled_from([1, 2, 4, 8])
"""Of requests that a budget has room for, in a batch."""
_AMOUNTS = _ROOM.map(lambda requests: usd(requests * RESERVED))

MODES = st.tuples(
    st.booleans(),
    st.builds(
        BatchProcessingMode,
        deadline=st.sampled_from([None, None, 120.0, 700.0, 5000.0, 100000.0]),
        deadline_margin=st.sampled_from([None, None, 60.0, 600.0]),
        fallback=st.sampled_from(["live", "none"]),
        budget_usd=st.one_of(st.none(), st.none(), _AMOUNTS),
        actor_budget_usd=st.one_of(*[st.none()] * 5, _AMOUNTS),
        linger=st.just(0.0),
        mode=st.sampled_from(["batch", "batch", "batch", "batch", "live", "auto"]),
        auto_threshold=st.just(2),
        max_requests=st.integers(1, 4),
        max_attempts=st.integers(1, 3),
        parallel_batches=st.sampled_from([None, None, None, 1, 2]),
    ),
)
"""Whether the deadline is to be a time, and the settings of a run."""

ONLY = st.sampled_from(
    [None, None, ["errored"], ["expired", "canceled"], ["type=overloaded_error"]]
)


@dataclass(slots=True)
class _Limit:
    """A budget. Each day is a part of its own of the budget of the day."""

    amount: int
    uncounted: set[int]
    """The parts that have not counted yet what was sent before it was set."""
    most: dict[int, int] = field(default_factory=dict[int, int])
    """What may be accounted for if it is more than the amount: so much was sent when it was set."""
    lowered: set[int] = field(default_factory=set[int])
    """The parts of which more may be packed than the amount, because it was lowered since."""

    def begin(self, part: int, total: int, sent: int) -> None:
        self.most[part] = max(sent, self.amount)
        if total > self.amount:
            self.lowered.add(part)


class OrdersVerdict(LiveVerdict):
    """The judge of deadlines, budgets and runs that are asked again."""

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self.limits: dict[tuple[BudgetScope, str], _Limit] = {}
        self._whose: dict[tuple[str, int], tuple[str, str, int]] = {}
        """The run, the actor and the day of each sending that was accepted."""
        self._live_bills: list[tuple[str, str, int]] = []
        self._again: set[tuple[str, int]] = set()
        """Sendings after which the user ordered to send again what had failed."""
        self._late: set[str] = set()
        """Requests that may have expired unsent, by the deadline that their run had."""

    # Orders --------------------------------------------------------------------------------

    def order_failed(self, run_id: str) -> None:
        """The failed requests of a run may be queued again."""
        failed = f"r.state IN {_FAILED}"
        for row in self.rows(f"SELECT r.id FROM requests r WHERE run_id = ? AND {failed}", run_id):
            self.reopened.add(row["id"])
            self._again.update((row["id"], number) for number in self.sendings[row["id"]])

    def ordered_failed(self) -> None:
        """They were queued, or never are by this order."""
        self.check()
        self.reopened.clear()

    def limit(self, scope: BudgetScope, name: str, amount: int | None) -> None:
        """A budget was set just now."""
        self.limits.pop((scope, name), None)
        if amount is not None:
            limit = self.limits[scope, name] = _Limit(amount, self._uncounted(scope, name))
            for part, total, sent in self._sums(scope, name):
                limit.begin(part, total, sent)

    def declare(self, scope: BudgetScope, name: str, amount: int | None) -> None:
        """A budget was declared, which counts only if it is not the one that was declared last."""
        found = self.rows("SELECT amount FROM budgets WHERE scope = ? AND name = ?", scope, name)
        now = found[0]["amount"] if found else None
        limit = self.limits.get((scope, name))
        before = None if limit is None else limit.amount
        if now not in (before, amount) or (now is None and before is not None):
            self._say(f"{amount} was declared for the {scope} {name}, and it has {now}")
        if now != before:
            self.limit(scope, name, now)

    # At the API ----------------------------------------------------------------------------

    def intended(self) -> None:
        super().intended()
        for row in self.rows(
            "SELECT b.id AS batch, b.day, b.intended, u.id, u.actor, u.deadline, u.past_margin, "
            "u.deadline_closed FROM batches b JOIN batch_runs m ON m.batch_id = b.id JOIN runs u "
            "ON u.id = m.run_id WHERE b.state = 'submitting' AND b.armed IS NULL"
        ):
            # Another process may have died after its intent, long ago.
            now = row["intended"]
            is_due = row["deadline"] is not None and row["deadline_closed"] is None
            if row["past_margin"] is not None or (is_due and now > row["deadline"]):
                self._say(f"{row['id']} goes into a batch {now - row['deadline']} s after its time")
            if row["day"] != now // DAY:
                self._say(f"batch {row['batch']} is sent, and counts on the day {row['day']}")
            self._judge_counted(row["id"], row["actor"], row["day"])

    def claimed(self) -> None:
        """Live calls are about to leave."""
        for row in self.rows(
            "SELECT DISTINCT u.id, u.actor, b.day FROM runs u JOIN requests r ON r.run_id = u.id "
            "JOIN batches b ON b.id = r.batch_id WHERE r.state = 'packed' AND b.state = 'live'"
        ):
            self._judge_counted(row["id"], row["actor"], row["day"])

    def _judge_counted(self, run_id: str, actor: str, day: int) -> None:
        for scope, name in self.limits:
            part = day if scope == "day" else 0
            if name in (run_id, actor, "") and part in self._uncounted(scope, name):
                self._say(f"{run_id} is sent by a budget of the {scope} that counts not all")

    def _accept(self, remote: Remote) -> None:
        super()._accept(remote)
        for identifier in remote.ids:
            if (parts := parse_custom_id(identifier)) is None:
                continue
            request, _, sending = parts
            [whose] = self.rows(
                "SELECT u.id, u.actor, b.day FROM requests r JOIN runs u ON u.id = r.run_id "
                "JOIN batches b ON b.id = r.batch_id WHERE r.id = ?",
                request,
            )
            self._whose[request, sending] = tuple(whose)
            for call in self.calls[request]:
                if call.is_billed or call.may_hide:
                    self._say(f"{identifier} was sent, and may have been billed live: {call}")

    def _live(self, params: bytes, plan: LivePlan) -> None:
        super()._live(params, plan)
        whose = self.rows(
            "SELECT r.id, u.id, u.actor, b.day FROM requests r JOIN runs u ON u.id = r.run_id "
            "JOIN params p ON p.request_seq = r.seq JOIN batches b ON b.id = r.batch_id "
            "WHERE p.body = ? AND u.stored IS NOT NULL ORDER BY r.state != 'packed'",
            params,
        )[0]
        request, *of = tuple(whose)
        if plan.is_billed:
            self._live_bills.append(tuple(of))
        for number, earlier in self.sendings[request].items():
            if not self._is_accounted(request, number, earlier):
                self._say(
                    f"{request} was asked live, while sending {number} in {earlier.id} was "
                    f"{self._fate(request, earlier)}"
                )

    def _is_accounted(self, request: str, sending: int, remote: Remote) -> bool:
        if super()._is_accounted(request, sending, remote):
            return True
        [identifier] = [i for i in remote.ids if i.startswith(request)]
        outcome = remote.outcomes.get(identifier, "succeeded")
        found = self.rows(
            "SELECT u.past_margin FROM results s JOIN requests r ON r.seq = s.request_seq "
            "JOIN runs u ON u.id = r.run_id WHERE r.id = ? AND s.sending = ?",
            request,
            sending,
        )
        if not found or outcome == "succeeded":
            return False
        withdrawn = found[0]["past_margin"] is not None and outcome == "canceled"
        return withdrawn or (request, sending) in self._again

    # After each step -----------------------------------------------------------------------

    def check(self) -> None:
        doubled = self.rows(
            "SELECT digest, count(*) AS runs FROM runs WHERE digest IS NOT NULL "
            "AND stored IS NOT NULL GROUP BY digest HAVING count(*) > 1"
        )
        for row in doubled:
            self._say(f"{row['runs']} runs have the same requests")
        super().check()

    def _check_budget(self) -> None:
        for (scope, name), limit in self.limits.items():
            bills, uncounted = self._bills(scope, name), self._uncounted(scope, name)
            for part, total, sent in self._sums(scope, name):
                billed = bills.pop(part, 0)
                if part in uncounted:
                    continue  # nothing is sent meanwhile, see `intended`
                if part in limit.uncounted:
                    limit.uncounted.discard(part)
                    limit.begin(part, total, sent)
                words = f"of the {scope} {name or part}"
                most = limit.most.get(part, limit.amount)
                if sent > most:
                    self._say(f"{sent} are sent or spent {words}, of {most} allowed")
                if sent < most:
                    limit.most[part] = max(sent, limit.amount)
                if total <= limit.amount:
                    limit.lowered.discard(part)
                elif scope != "day" and part not in limit.lowered and total > most:
                    # What was packed a day before is of the day on which it is looked at again, and
                    # what does not fit then leaves its batch, which is not sent before.
                    self._say(f"{total} are packed or spent {words}, of {limit.amount} allowed")
                if billed > sent:
                    self._say(f"the API billed {billed} {words}, {sent} are accounted for")
            if any(billed for part, billed in bills.items() if part not in uncounted):
                self._say(f"the API billed {bills} of the {scope} {name}, which is not accounted")

    def _bills(self, scope: BudgetScope, name: str) -> dict[int, int]:
        """What the API has billed that a budget pays for, by its parts."""
        found: dict[int, int] = {}

        def bill(of: tuple[str, str, int], cost: int) -> None:
            run_id, actor, day = of
            if name in {"run": (run_id,), "actor": (actor,), "day": ("",)}[scope]:
                part = day if scope == "day" else 0
                found[part] = found.get(part, 0) + cost

        for request, sent in self.sendings.items():
            for number, remote in sent.items():
                for identifier, outcome in remote.outcomes.items():
                    if outcome == "succeeded" and identifier.startswith(request):
                        bill(self._whose[request, number], COST)
        for of in self._live_bills:
            bill(of, LIVE_COST)
        return found

    def _sums(self, scope: BudgetScope, name: str) -> list[tuple[int, int, int]]:
        """The parts of a budget: what is reserved, spent or in doubt, and what of it is sent."""
        part, concerned = {
            "run": ("0", "c.run_id = ?"),
            "actor": ("0", "c.actor = ?"),
            "day": ("c.day", "'' = ?"),
        }[scope]
        rows = self.rows(
            f"SELECT {part} AS part, sum(c.reserved + c.spent + c.doubt) AS total, "
            "sum(CASE b.state WHEN 'packed' THEN 0 ELSE c.reserved + c.spent + c.doubt END) AS "
            f"sent FROM charges c JOIN batches b ON b.id = c.batch_id WHERE {concerned} GROUP BY 1",
            name,
        )
        return [(int(row["part"]), int(row["total"]), int(row["sent"])) for row in rows]

    def _uncounted(self, scope: BudgetScope, name: str) -> set[int]:
        """The parts of a budget that have not counted yet what was sent before it."""
        part, concerned = {
            "run": ("0", "u.id = ?"),
            "actor": ("0", "u.actor = ?"),
            "day": ("b.day", "'' = ?"),
        }[scope]
        found = self.rows(
            f"SELECT DISTINCT {part} AS part FROM batch_runs m JOIN batches b ON b.id = m.batch_id "
            "JOIN runs u ON u.id = m.run_id WHERE b.state != 'rejected' AND (m.batch_id, m.run_id) "
            f"NOT IN (SELECT batch_id, run_id FROM charges) AND {concerned}",
            name,
        )
        return {row["part"] for row in found}

    # In the end ----------------------------------------------------------------------------

    def conclude(self) -> None:
        for row in self.rows(
            "SELECT r.id, r.run_id FROM requests r JOIN runs u ON u.id = r.run_id "
            "WHERE r.state = 'canceled' AND NOT r.cancelled AND u.cancelled IS NULL"
        ):
            if row["id"] not in self.withdrawn and row["run_id"] not in self.cancelled_runs:
                self._say(f"{row['id']} was withdrawn by its deadline, and ended canceled")
        super().conclude()

    def may_expire(self, request: str) -> bool:
        late = self.rows(
            "SELECT 1 FROM requests r JOIN runs u ON u.id = r.run_id WHERE r.id = ? "
            "AND u.past_margin IS NOT NULL AND u.fallback = 'none'",
            request,
        )
        if late:
            self._late.add(request)
        # A retry of other requests takes the deadline from their run, and this one stays expired.
        return request in self._late

    def _may_be_lost(self, row: Row) -> bool:
        if super()._may_be_lost(row):
            return True
        # It would have expired, but an earlier sending of it may have been accepted.
        undecided = self.rows(
            "SELECT 1 FROM former_members f JOIN requests r ON r.seq = f.request_seq "
            "LEFT JOIN results s ON s.request_seq = f.request_seq AND s.sending = f.sending "
            "WHERE r.id = ? AND s.raw IS NULL",
            row["id"],
        )
        return bool(undecided) and self.may_expire(row["id"])


class OrdersMachine(LiveMachine):
    """A history of runs with deadlines and budgets, which are asked for again."""

    judge = OrdersVerdict
    verdict: OrdersVerdict

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Sequence[str]] = []

    def _reach(self, point: CrashPoint) -> None:
        # Between two transactions all must hold, too.
        if hasattr(self, "verdict"):
            self.verdict._check_budget()
            if point is CrashPoint.AFTER_LIVE_CLAIM:
                self.verdict.claimed()
        super()._reach(point)

    # Runs ----------------------------------------------------------------------------------

    def _ask_for(self, inputs: Sequence[str], mode: BatchProcessingMode) -> None:
        if inputs not in self.inputs:
            self.inputs.append(inputs)
        super()._ask_for(inputs, mode)
        run_id = self._known_of(inputs)
        if run_id is not None:
            self.verdict.declare("run", run_id, mode.budget)
        # Also of a run that was never whole: its first transaction declares it.
        self.verdict.declare("actor", self._actor_of(inputs), mode.actor_budget)
        stored = {row["id"] for row in self.verdict.rows("SELECT id FROM runs")}
        self.runs = [run_id for run_id in self.runs if run_id in stored]

    def _timed(self, mode: BatchProcessingMode) -> BatchProcessingMode:
        assert isinstance(mode.deadline, float)
        due = datetime.fromtimestamp(self.clock.time() + mode.deadline, UTC)
        return mode.model_copy(update={"deadline": due})

    def _actor_of(self, inputs: Sequence[str]) -> str:
        return ("model", "other")[self.inputs.index(inputs) % 2]

    def ask_new(self, count: int, mode: tuple[bool, BatchProcessingMode], calls: bool) -> None:
        if calls:
            unbounded = {"budget_usd": None, "actor_budget_usd": None}
            self._store_calls(mode[1].model_copy(update=unbounded), min(count, 2))
        else:
            self._ask_anyhow(self._new_inputs(count), mode)

    ASKING: ClassVar = {
        "count": st.integers(1, 5),
        "mode": MODES,
        "calls": st.sampled_from([False, False, False, True]),
    }
    ask_one = rule(**ASKING)(ask_new)
    ask_another = rule(**ASKING)(ask_new)

    def _ask_anyhow(self, inputs: Sequence[str], mode: tuple[bool, BatchProcessingMode]) -> None:
        absolute, settings = mode
        if absolute and settings.deadline is not None:
            settings = self._timed(settings)
        self._ask_for(inputs, settings)

    def ask_again(
        self, pick: int, mode: tuple[bool, BatchProcessingMode], cancel: bool, seconds: float
    ) -> None:
        """The same input again, with other settings; perhaps its run is cancelled before."""
        inputs = self.inputs[pick % len(self.inputs)]
        before = self._known_of(inputs)
        if cancel and before is not None:
            self.verdict.cancelled_runs.add(before)
            with self.process.ledger.write() as tx:
                cancellations.cancel_run(tx, before, self.clock.time())
            if seconds:
                self.go_round(seconds)
        if before is not None:
            self.verdict.order_failed(before)
        self._ask_anyhow(inputs, mode)
        if before is not None and self._known_of(inputs) != before:
            raise Violation(f"{before} was asked for again, and is {self._known_of(inputs)} now")
        self.verdict.ordered_failed()

    AGAIN: ClassVar = {
        "pick": PICK,
        "mode": MODES,
        "cancel": st.sampled_from([False, False, True]),
        "seconds": st.sampled_from([0.0, *STEPS]),
    }
    _if_any = precondition(lambda self: self.inputs)
    ask_the_same = _if_any(rule(**AGAIN)(ask_again))
    ask_the_same_again = _if_any(rule(**AGAIN)(ask_again))

    def _known_of(self, inputs: Sequence[str]) -> str | None:
        """The run of these requests, if it is stored."""
        found = self.verdict.rows(
            "SELECT u.id FROM runs u JOIN requests r ON r.run_id = u.id JOIN params p "
            "ON p.request_seq = r.seq WHERE p.body = ? AND u.stored IS NOT NULL",
            inputs[0].encode(),
        )
        return found[0]["id"] if found else None

    @_if_any
    @rule(pick=PICK, only=ONLY)
    def retry(self, pick: int, only: list[str] | None) -> None:
        run_id = self._known_of(self.inputs[pick % len(self.inputs)])
        if run_id is None:
            return
        self.verdict.order_failed(run_id)
        try:
            retry_run(self.process.ledger, run_id, parse_only(only), Refetched)
        except InvalidRequestError:
            pass  # its cancellation has not ended
        self.verdict.ordered_failed()

    # Budgets -------------------------------------------------------------------------------

    # Those of the actor alone.
    raise_budget = lower_budget = begin_a_budget = end_the_budget = None  # type: ignore[assignment]

    @rule(
        scope=st.sampled_from(["run", "actor", "day"]),
        pick=PICK,
        requests=st.one_of(st.none(), st.just(0), _ROOM),
    )
    def set_a_budget(self, scope: BudgetScope, pick: int, requests: int | None) -> None:
        """A budget of some requests, or none any more; 0: nothing more is sent by it."""
        actor = ("model", "other")[pick % 2]
        name = {"run": self.runs[pick % len(self.runs)], "actor": actor, "day": ""}[scope]
        amount = None if requests is None else requests * RESERVED
        if requests == 0:
            amount = max((sent for _, _, sent in self.verdict._sums(scope, name)), default=0)
        self._limit(scope, name, amount)

    def _limit(self, scope: BudgetScope, name: str, amount: int | None) -> None:
        set_budget(self.process.ledger, scope, name, amount, prices_of())
        self.verdict.limit(scope, name, amount)

    def _set_budget(self, amount: int) -> None:
        self._limit("actor", "model", amount)

    def _finish(self) -> None:
        for scope, name in list(self.verdict.limits):
            self._limit(scope, name, ALL_MONEY)
        super()._finish()
