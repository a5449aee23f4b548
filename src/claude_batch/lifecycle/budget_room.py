"""Budgets: the amount that a request reserves, and which waiting requests fit into what is left.

Nothing here decides alone. One transaction of the driver (`pack_due`) reads the sums and binds the
requests to their batch. So a reservation survives a crash at any point.

A PDF may take 10 seconds to be bounded. So an event loop calls `bound_of` and the methods of
`Reservations` on a thread, and no transaction is open meanwhile.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from claude_batch.core.errors import (
    BudgetExceededError,
    BudgetScope,
    InvalidRequestError,
    LedgerError,
)
from claude_batch.core.quantities import nano_dollars, usd, write_usd
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState
from claude_batch.ledger import batch_contents, budgets, charges, queries, workspaces
from claude_batch.ledger.batch_contents import LaneQueue
from claude_batch.ledger.budgets import BudgetKey, Waiting
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.store import Leader, Ledger, Transaction
from claude_batch.ledger.uploaded_files import file_tokens
from claude_batch.money.prices import Prices, prices_of
from claude_batch.wire.bounds import FileTokens, TokenBound, Unbounded, token_bound

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

NO_BOUND = -1
"""Stored instead of a reservation if no bound on a request's cost is known."""

MOST_RESERVED = 10**14
"""Nano-dollars; a higher bound counts as none. Sums of 90,000 such bounds fit into 64 bits, which
is all that a database stores.
"""

COUNTINGS = 5
"""Most counts of the work sent before a budget, if more is sent uncounted meanwhile."""

WARN_AT = (100, 80)
"""Percentages of a budget that cause a warning, once each."""


def today(now: float) -> int:
    """Return the day (UTC, counted since the epoch) whose budget pays for requests packed now."""
    return int(now // charges.DAY)


def declare_limits(ledger: Ledger, settings: LedgerSettings) -> None:
    """Store the limits of the settings, if any, for all processes that drive the ledger."""
    limits = {name: getattr(settings, name) for name in workspaces.Limits._fields}
    if any(limit is not None for limit in limits.values()):
        with ledger.write() as tx:
            workspaces.declare_limits(tx, limits)
    if settings.daily_budget_usd is not None:
        daily, prices = nano_dollars(settings.daily_budget_usd), prices_of(settings.prices)
        limit(ledger, prices, "day", "", lambda tx: budgets.declare(tx, "day", "", daily))


def tokens_of_files(ledger: Ledger) -> FileTokens:
    """Return a lookup of the tokens of uploaded files.

    It reads each file once, because many requests name the same few files.
    """

    @functools.lru_cache(maxsize=1024)
    def tokens(file_id: str) -> int | None:
        with ledger.read() as tx:
            return file_tokens(tx, file_id)

    return tokens


def bound_cost(
    prices: Prices, bound: TokenBound | Unbounded, now: float, *, batch: bool = True
) -> int:
    """Return the highest possible cost of params with this bound, in nano-dollars.

    The price is the live price if ``batch`` is false. Raises `Unbounded` if there is no bound, if
    the model has no price, or if the cost exceeds `MOST_RESERVED`.
    """
    if isinstance(bound, Unbounded):
        raise bound
    tariffs = prices.possible(bound.model, at=now)
    if not tariffs:
        raise Unbounded(
            f"the price of the model {bound.model} is not known; correct the model's name, or name "
            "its price in a file of prices (--prices)",
            model=bound.model,
        )
    most = max(
        tariff.ceiling(
            input=bound.input,
            output=bound.output,
            cache=bound.cache,
            searches=bound.searches,
            us_only=bound.us_only,
            batch=batch,
        )
        for tariff in tariffs
    )
    if most > MOST_RESERVED:
        raise Unbounded(
            f"one request may cost more than {write_usd(MOST_RESERVED)}; lower its `max_tokens`, "
            "or the `max_uses` of its tools"
        )
    return most


def bound_of(params: bytes, files: FileTokens) -> TokenBound | Unbounded:
    """Return the bound of encoded params, or the reason why there is none."""
    try:
        return token_bound(params, files)
    except Unbounded as error:
        return error


def _cost_or_none(prices: Prices, bound: TokenBound | Unbounded, now: float, *, batch: bool) -> int:
    try:
        return bound_cost(prices, bound, now, batch=batch)
    except Unbounded:
        return NO_BOUND


class Reservations(NamedTuple):
    """Bounds what stored requests can cost, and stores what they reserve.

    Works without the leader lock too, because every process would store the same values.
    """

    ledger: Ledger
    prices: Prices
    now: float
    leader: Leader | None = None

    def price_anew(self) -> None:
        """Discard the reservations of waiting requests that were computed at other prices."""
        digest = self.prices.digest
        with self.ledger.read() as tx:
            if not charges.any_budget(tx) or budgets.are_priced_by(tx, digest):
                return
        with self.ledger.write(self.leader) as tx:
            budgets.price_by(tx, digest)

    def count_for_runs(self, runs: Collection[tuple[str, str]]) -> Collection[BudgetKey]:
        """Before something of runs (id, actor) is sent, count what their budgets have not counted.

        Returns these budgets. Each of them counts from then on what is sent.
        """
        with self.ledger.read() as tx:
            if not charges.any_budget(tx):
                return ()
            concerned: set[BudgetKey] = {
                budget.key
                for run_id, actor in runs
                for budget in budgets.budgets_of(tx, run_id, actor, today(self.now))
            }
        if concerned:
            self.price_anew()
            self.count_under_way(list(concerned))
        return concerned

    def count_under_way(self, of: Sequence[BudgetKey]) -> None:
        """Count what was sent before these budgets existed and what they must pay for."""
        with self.ledger.read() as tx:
            uncounted = budgets.uncounted(tx, of, today(self.now))
        for batch_id, state in uncounted:
            is_live = groups_live_calls(state)
            sources: list[budgets.Source] = ["batch", "former"]
            if is_live:
                sources = ["calls", "former", "unpriced"]
            elif state == BatchState.COLLECTED:
                sources = ["lost", "former", "unpriced"]
                with self.ledger.read() as tx:
                    if charges.is_contradicted(tx, batch_id):
                        sources.append("failed")
            for source in sources:
                self._reserve_all(source, batch_id, batch=not is_live)
            with self.ledger.write(self.leader) as tx:
                charges.count(tx, batch_id, state)

    def reserve_what_waits(self, lane_id: int, queue: LaneQueue, alone: str) -> bool:
        """Store the missing reservations of requests in progress or queued in a lane.

        ``queue`` is what waits in the lane. Usually nothing is missing. Returns whether any of its
        runs has a budget.
        """
        if not self.count_for_runs([(run.id, run.actor) for run in queue.runs]):
            return False
        with self.ledger.read() as tx:
            waiting = budgets.lane_totals(tx, lane_id, alone, queue.last_seq)
        if any(each.unknown for each in waiting.values()):
            self._reserve_all("lane", lane_id)
        return True

    def live_costs(self, lane_id: int, alone: str) -> dict[int, int]:
        """Return what each queued request of a lane can cost as a live call, by row number."""
        found: dict[int, int] = {}
        for costs in self._pages("queued", lane_id, batch=False, alone=alone):
            found.update((each.seq, each.amount) for each in costs)
        return found

    def reserve_held_calls(self, run_id: str, *, anew: bool) -> bool:
        """Store what each request of a held run reserves while it waits for a live call.

        The run's status uses it to report which budget holds the run. ``anew`` also replaces what
        was reserved for a batch. Returns False if there was nothing to store.
        """
        is_stored = False
        for reserves in self._pages("live anew" if anew else "live", run_id, batch=False):
            with self.ledger.write(self.leader) as tx:
                budgets.put_call_reserves(tx, reserves)
            is_stored = True
        return is_stored

    def _reserve_all(self, source: budgets.Source, of: int, *, batch: bool = True) -> None:
        for reserves in self._pages(source, of, batch=batch):
            with self.ledger.write(self.leader) as tx:
                budgets.put_reserves(tx, reserves)

    def _pages(
        self, source: budgets.Source, of: int | str, *, batch: bool, alone: str | None = None
    ) -> Iterator[list[budgets.Reserve]]:
        """Yield pages with the highest cost of each request of a source; see `budgets.page_of`.

        Raises `LedgerError` if the ledger is closed meanwhile.
        """
        known = tokens_of_files(self.ledger)
        after = 0
        while True:
            with self.ledger.read() as tx:
                page = budgets.page_of(tx, source, of, after, alone=alone)
            if not page:
                return
            found: list[budgets.Reserve] = []
            for seq, body in page:
                if self.ledger.closed:
                    raise LedgerError(f"the ledger {self.ledger.location} was closed")
                most = _cost_or_none(self.prices, bound_of(body, known), self.now, batch=batch)
                found.append(budgets.Reserve(seq, len(body), most))
            yield found
            after = page[-1][0]


def limit(
    ledger: Ledger,
    prices: Prices,
    scope: BudgetScope,
    name: str,
    write: Callable[[Transaction], object],
) -> None:
    """Write a budget in a transaction in which all that it must pay for is counted.

    Nothing can then be sent by a budget that seems to be unspent. What is counted once for any
    budget stays counted, and live calls after it are, too; so one counting usually suffices.
    """
    of: list[BudgetKey] = [(scope, name)]
    for _ in range(COUNTINGS):
        Reservations(ledger, prices, ledger.now()).count_under_way(of)
        with ledger.write() as tx:
            if not budgets.uncounted(tx, of, today(ledger.now())):
                write(tx)
                return
    with ledger.write() as tx:
        write(tx)
    Reservations(ledger, prices, ledger.now()).count_under_way(of)


class _Room:
    """What budgets leave for the requests of their runs, as seen by one transaction.

    A request takes what it may cost from each budget of its run. A run with tools also keeps as
    much for the next turns of its conversations, which its own requests therefore cannot take.
    """

    def __init__(self, tx: Transaction, now: float) -> None:
        self._tx = tx
        self._now = now
        self._of_run: dict[str, list[BudgetKey]] = {}
        self._left: dict[BudgetKey, int] = {}
        self.kept: dict[str, int] = {}
        """What runs with tools keep for next turns, by run."""

    def budgets_of(self, run_id: str, actor: str) -> list[BudgetKey]:
        """Return the budgets of a run; they are read once."""
        known = self._of_run.get(run_id)
        if known is None:
            found = budgets.budgets_of(self._tx, run_id, actor, today(self._now))
            for budget in found:
                self._left.setdefault(budget.key, budget.left)
            if found and (kept := budgets.kept_for_turns(self._tx, run_id)) is not None:
                self.kept[run_id] = kept
            known = self._of_run[run_id] = [budget.key for budget in found]
        return known

    def left_for(self, run_id: str) -> int:
        """Return what a request of a run that has a budget may cost."""
        least = min(self._left[key] for key in self._of_run[run_id])
        return least - self.kept.get(run_id, 0)

    def take(self, run_id: str, amount: int) -> None:
        """Take room for a request."""
        for key in self._of_run[run_id]:
            self._left[key] -= amount
        if run_id in self.kept:
            self.kept[run_id] += amount

    def have_room(self, needed: Iterable[tuple[str, int]]) -> bool:
        """Return whether all of these amounts, each with its run, fit at once."""
        totals: Counter[BudgetKey] = Counter()
        for run_id, amount in needed:
            for key in self._of_run[run_id]:
                totals[key] += amount
        return all(total <= self._left[key] for key, total in totals.items())


class Fitting(_Room):
    """Selection of the queued requests of a lane that fit into the budgets of their runs."""

    def __init__(
        self, tx: Transaction, lane_id: int, alone: str, queue: LaneQueue, now: float
    ) -> None:
        """``queue`` is what waits in the lane; ``alone`` as in `lane_totals`."""
        super().__init__(tx, now)
        self.queue: LaneQueue = queue
        self._lane_id = lane_id
        self._alone = alone
        self._bounded: list[str] = []
        """Runs with a budget; usually none."""
        self._waiting: dict[str, Waiting] = {}
        self.taken: list[int] = []
        """Row numbers of the requests that `fitting` yielded, in order."""
        if charges.any_budget(tx):
            self._bounded = [run.id for run in queue.runs if self.budgets_of(run.id, run.actor)]
        if self._bounded:
            self._waiting = budgets.lane_totals(tx, lane_id, alone, queue.last_seq)

    @property
    def all_fit(self) -> bool:
        """Whether all requests of the queue fit at once."""
        needed: list[tuple[str, int]] = []
        for run_id in self._bounded:
            waits = self._waiting[run_id]
            if waits.unknown or waits.unbounded:
                return False
            needed.append((run_id, waits.total))
            if run_id in self.kept:
                needed.append((run_id, waits.total + self.kept[run_id]))
        return self.have_room(needed)

    def all_fit_live(self, costs: Mapping[int, int]) -> bool | None:
        """Return whether all waiting requests of the lane fit at once as live calls.

        ``costs`` are their `Reservations.live_costs`. None: one of them is not there.
        """
        if not self._bounded:
            return True
        needed: list[tuple[str, int]] = []
        for seq, run_id in budgets.queued_runs(self._tx, self._lane_id, self._alone):
            if not self._of_run.get(run_id):
                continue
            if seq not in costs:
                return None
            if costs[seq] == NO_BOUND:
                return False
            needed.append((run_id, costs[seq]))
        return self.have_room(needed)

    def fitting(self, among: Collection[int] | None = None) -> Iterator[tuple[int, int, str]]:
        """Yield the queued requests that fit, in order, each on top of those before it.

        Each item is row number, size and run. ``among`` restricts them to these row numbers.
        """
        rooms = {run_id: self.left_for(run_id) for run_id in self._bounded if self._fits(run_id)}
        free = [run_id for run_id in self._waiting if not self._of_run.get(run_id)]
        if not rooms and not free:
            return
        most = max(rooms.values(), default=0)
        rows = budgets.reserved_of_lane(
            self._tx, self._lane_id, self._alone, list(rooms), most, free
        )
        for seq, size, run_id, reserve in rows:
            if among is not None and seq not in among:
                continue
            if run_id in rooms:
                if reserve > self.left_for(run_id):
                    if not free and not any(map(self._fits, rooms)):
                        return  # the rest of the queue may be long
                    continue
                self.take(run_id, reserve)
            self.taken.append(seq)
            yield seq, size, run_id

    def _fits(self, run_id: str) -> bool:
        """Return whether the smallest waiting request of a run that has a budget still fits."""
        smallest = self._waiting[run_id].smallest
        return smallest is not None and smallest <= self.left_for(run_id)


class CallRoom(_Room):
    """Room that budgets leave for live calls.

    Costs two queries if nothing was ever charged. ``counted`` are the budgets that have
    counted what was sent before them.
    """

    def __init__(
        self,
        tx: Transaction,
        prices: Prices,
        now: float,
        counted: Collection[BudgetKey],
    ) -> None:
        super().__init__(tx, now)
        self._prices = prices
        self._counted = counted
        # What was charged for a former budget stays true, because a later one counts it.
        self.bounded: bool = charges.any_budget(tx) or charges.any_charge(tx)

    def reserve(
        self, run_id: str, actor: str, params: bytes, bound: TokenBound | Unbounded | None = None
    ) -> int | None:
        """Reserve room for a call; return the amount, or None if nothing is charged.

        The amount is nano-dollars at the live price, or `NO_BOUND` if no bound is known. ``bound``
        is `bound_of` the params, if it is known. Raises `NoRoom` if the call does not fit into what
        the run's budgets leave, and `NotCounted` if that is not known.
        """
        if not self.bounded:
            return None
        if bound is None:
            bound = bound_of(params, functools.partial(file_tokens, self._tx))
        reserve = _cost_or_none(self._prices, bound, self._now, batch=False)
        own = self.budgets_of(run_id, actor)
        if not own:
            return reserve
        if any(key not in self._counted for key in own):
            raise NotCounted(run_id)
        left = self.left_for(run_id)
        if reserve == NO_BOUND or reserve > left:
            raise NoRoom(run_id, left)
        self.take(run_id, reserve)
        return reserve


class NoRoom(Exception):
    """A call does not fit into what the budgets of its run leave."""

    def __init__(self, run_id: str, left: int) -> None:
        super().__init__(run_id)
        self.run_id = run_id
        self.left = left
        """What the budgets leave for it, in nano-dollars; a smaller call of the run may fit."""


class NotCounted(Exception):
    """A budget of a call's run has just appeared, and has not counted what was sent before it."""


def withdraw_over_budget(tx: Transaction, batch_id: int, now: float) -> bool:
    """Queue the requests of an unsent batch again whose budgets have changed since it was packed.

    A budget may have been set or lowered, or its day may have come. Returns False if the batch must
    not be sent now: nothing of it is left, or a budget that is not counted yet has just appeared.
    """
    charges.move_to_day(tx, batch_id, today(now))
    if not charges.any_budget(tx):
        return True
    counted = {run_id for run_id, _ in budgets.charged_runs(tx, batch_id)}
    too_dear: list[str] = []
    for run in queries.runs_of_batch(tx, batch_id):
        each = budgets.budgets_of(tx, run.id, run.actor, today(now))
        if each and run.id not in counted:
            return False
        if any(budget.left < 0 for budget in each):
            too_dear.append(run.id)
    # All of a run, because the queue selects what fits.
    return not too_dear or batch_contents.withdraw_runs(tx, batch_id, too_dear)


def whose(scope: BudgetScope, name: str) -> str:
    """Return a budget in words."""
    return {
        "run": "the run's budget",
        "actor": f"the budget of the actor {name}",
        "day": "the budget of this day (UTC)",
    }[scope]


def warn_after(tx: Transaction, batch_ids: Iterable[int], now: float) -> list[str]:
    """Return the budget warnings that are due after batches were settled, each once."""
    if not charges.any_budget(tx):
        return []
    words: list[str] = []
    warned: set[BudgetKey] = set()
    charged = (run for batch_id in batch_ids for run in budgets.charged_runs(tx, batch_id))
    for run_id, actor in charged:
        for budget in budgets.budgets_of(tx, run_id, actor, today(now)):
            gone = budget.gone
            percent = next((p for p in WARN_AT if gone * 100 >= budget.amount * p), 0)
            if percent <= budget.warned or budget.key in warned:
                continue
            warned.add(budget.key)
            budgets.note_warned(tx, budget, percent, today(now))
            run = f" ({run_id})" if budget.scope == "run" else ""
            words.append(
                f"{percent} % of {whose(budget.scope, budget.name)}{run} is spent: "
                f"{write_usd(gone)} of {write_usd(budget.amount)}"
            )
    return words


def limits_of(
    tx: Transaction, run_id: str | None, actor: str, mode: BatchProcessingMode
) -> list[tuple[BudgetScope, int]]:
    """Return the budgets that single calls of an actor must fit into, in nano-dollars; often none.

    ``run_id`` is the run that they join, if it exists; otherwise the mode sets the budgets of a new
    run and its actor.
    """
    amounts = budgets.amounts(tx, run_id, actor)
    if run_id is None:
        if mode.budget is not None:
            amounts["run"] = mode.budget
        if mode.actor_budget is not None and budgets.is_set_by(
            tx, "actor", actor, mode.actor_budget
        ):
            amounts["actor"] = mode.actor_budget
    return list(amounts.items())


def reserve_call(
    prices: Prices,
    bound: TokenBound | Unbounded,
    limits: Sequence[tuple[BudgetScope, int]],
    now: float,
    *,
    batch: bool = True,
) -> int:
    """Return what a single call reserves, in nano-dollars; at the live price if not ``batch``.

    Raises `InvalidRequestError` if no bound is known, and `BudgetExceededError` if the call alone
    costs more than a whole budget.
    """
    try:
        reserve = bound_cost(prices, bound, now, batch=batch)
    except Unbounded as error:
        raise unbounded_error(error) from None
    for scope, amount in limits:
        if reserve > amount:
            raise BudgetExceededError(
                f"the call can cost up to {write_usd(reserve)}, more than the whole budget of the "
                f"{scope}, {write_usd(amount)}; nothing was stored or sent. Lower `max_tokens`, "
                "shorten the prompt, or raise the budget",
                scope=scope,
                budget_usd=usd(amount),
                needed_usd=usd(reserve),
            )
    return reserve


def unbounded_error(
    error: Unbounded,
    key: str | None = None,
    budget: BudgetKey | None = None,
) -> InvalidRequestError:
    """Return the error of a request whose cost has no bound, so that no budget can reserve it.

    ``budget`` is the budget that asks, if it is known.
    """
    asks = "a budget" if budget is None else whose(*budget)
    found = InvalidRequestError(f"{asks} needs an upper bound of the cost: {error}", key=key)
    found.unpriced_model = error.model
    return found
