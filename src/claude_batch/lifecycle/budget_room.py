"""Budgets: the amount that a request reserves, and which waiting requests fit into what is left.

Nothing here decides alone. One transaction of the driver (`pack_due`) reads the sums and binds the
requests to their batch. So a reservation survives a crash at any point.

A PDF may take 10 seconds to be bounded. So an event loop calls the functions that bound stored
requests on a thread (`count_under_way`, `reserve_what_waits`, `reserve_held_calls`, `bound_of`),
and no transaction is open meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

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
from claude_batch.ledger.budgets import Budget, Waiting
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


def most_cost(
    prices: Prices,
    params: bytes,
    now: float,
    *,
    batch: bool = True,
    files: FileTokens | None = None,
) -> int:
    """Return the highest possible cost of encoded params, in nano-dollars.

    The price is the live price if ``batch`` is false. ``files`` returns the tokens of an uploaded
    file; an unknown file reserves the model's context window. Raises `Unbounded` if no bound is
    known, because a price is missing or a tool has no limit.
    """
    return bound_cost(prices, token_bound(params, files), now, batch=batch)


def bound_cost(prices: Prices, bound: TokenBound, now: float, *, batch: bool = True) -> int:
    """Return the cost of a bound, as `most_cost`.

    Raises `Unbounded` if the model has no price, or if the cost exceeds `MOST_RESERVED`.
    """
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
    if isinstance(bound, Unbounded):
        return NO_BOUND
    try:
        return bound_cost(prices, bound, now, batch=batch)
    except Unbounded:
        return NO_BOUND


def _most_costs(
    ledger: Ledger,
    prices: Prices,
    source: budgets.Source,
    of: int | str,
    now: float,
    *,
    batch: bool,
    alone: str | None = None,
) -> Iterator[list[budgets.Reserve]]:
    """Yield pages with the highest cost of each request of a source; see `budgets.page_of`.

    Raises `LedgerError` if the ledger is closed meanwhile.
    """
    known = tokens_of_files(ledger)
    after = 0
    while True:
        with ledger.read() as tx:
            page = budgets.page_of(tx, source, of, after, alone=alone)
        if not page:
            return
        found: list[budgets.Reserve] = []
        for seq, body in page:
            if ledger.closed:
                raise LedgerError(f"the ledger {ledger.location} was closed")
            most = _cost_or_none(prices, bound_of(body, known), now, batch=batch)
            found.append(budgets.Reserve(seq, len(body), most))
        yield found
        after = page[-1][0]


def price_by(ledger: Ledger, leader: Leader | None, prices: Prices) -> None:
    """Discard the reservations of waiting requests that were computed at other prices."""
    with ledger.read() as tx:
        if not charges.any_budget(tx) or budgets.are_priced_by(tx, prices.digest):
            return
    with ledger.write(leader) as tx:
        budgets.price_by(tx, prices.digest)


def reserve_what_waits(
    ledger: Ledger,
    leader: Leader,
    prices: Prices,
    lane_id: int,
    runs: Mapping[str, Any],
    now: float,
    alone: str = "",
) -> bool:
    """Store the missing reservations of requests in progress or queued in a lane.

    ``runs`` are the runs with queued requests in the lane. Usually nothing is missing. Returns
    whether any of them has a budget.
    """
    of = [(run.id, run.actor) for run in runs.values()]
    if not count_for_runs(ledger, leader, prices, of, now):
        return False
    with ledger.read() as tx:
        waiting = budgets.lane_totals(tx, lane_id, alone)
    if any(each.unknown for each in waiting.values()):
        _reserve_all(ledger, leader, prices, "lane", lane_id, now)
    return True


def live_costs(
    ledger: Ledger, prices: Prices, lane_id: int, alone: str, now: float
) -> dict[int, int]:
    """Return the highest cost of each queued request of a lane as a live call, by row number."""
    found: dict[int, int] = {}
    for costs in _most_costs(ledger, prices, "queued", lane_id, now, batch=False, alone=alone):
        found.update((each.seq, each.amount) for each in costs)
    return found


def count_under_way(
    ledger: Ledger,
    leader: Leader | None,
    prices: Prices,
    of: Sequence[tuple[BudgetScope, str]],
    now: float,
) -> None:
    """Count what was sent before these budgets (scope, name) existed and what they must pay for.

    Works without the leader lock too, because every process would write the same values.
    """
    with ledger.read() as tx:
        uncounted = budgets.uncounted(tx, of, today(now))
    for batch_id, state in uncounted:
        if groups_live_calls(state):
            for source in ("calls", "former", "unpriced"):
                _reserve_all(ledger, leader, prices, source, batch_id, now, batch=False)
        elif state == BatchState.COLLECTED:
            with ledger.read() as tx:
                contradicted = charges.is_contradicted(tx, batch_id)
            sources: list[budgets.Source] = ["lost", "former", "unpriced"]
            if contradicted:
                sources.append("failed")
            for source in sources:
                _reserve_all(ledger, leader, prices, source, batch_id, now)
        else:
            for source in ("batch", "former"):
                _reserve_all(ledger, leader, prices, source, batch_id, now)
        with ledger.write(leader) as tx:
            charges.count(tx, batch_id, state)


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
    of: list[tuple[BudgetScope, str]] = [(scope, name)]
    for _ in range(COUNTINGS):
        count_under_way(ledger, None, prices, of, ledger.now())
        with ledger.write() as tx:
            if not budgets.uncounted(tx, of, today(ledger.now())):
                write(tx)
                return
    with ledger.write() as tx:
        write(tx)
    count_under_way(ledger, None, prices, of, ledger.now())


def _reserve_all(
    ledger: Ledger,
    leader: Leader | None,
    prices: Prices,
    source: budgets.Source,
    of: int,
    now: float,
    *,
    batch: bool = True,
) -> None:
    for reserves in _most_costs(ledger, prices, source, of, now, batch=batch):
        with ledger.write(leader) as tx:
            budgets.put_reserves(tx, reserves)


class Fitting(msgspec.Struct):
    """Selection of the queued requests of a lane that fit into the budgets of their runs."""

    of_run: dict[str, list[Budget]]
    """Budgets by run, for the runs that have one."""
    waiting: dict[str, Waiting]
    alone: str = ""
    """Id of the run with a deadline whose requests these are, or "" for runs without one."""
    _left: dict[tuple[str, str], int] = msgspec.field(default_factory=dict[tuple[str, str], int])
    _kept: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """What runs with tools keep for the next turns of the requests before, by run."""
    taken: list[int] = msgspec.field(default_factory=list[int])
    """Row numbers of the requests that `fitting` yielded, in order."""

    @classmethod
    def of(
        cls, tx: Transaction, lane_id: int, runs: Mapping[str, Any], now: float, alone: str = ""
    ) -> Fitting | None:
        """Return a selection for runs with queued requests in a lane;

        `None` if no budget applies.
        """
        if not charges.any_budget(tx):
            return None
        found = {
            run.id: budgets.budgets_of(tx, run.id, run.actor, today(now)) for run in runs.values()
        }
        of_run = {run_id: each for run_id, each in found.items() if each}
        if not of_run:
            return None
        fitting = cls(of_run, budgets.lane_totals(tx, lane_id, alone), alone)
        for each in of_run.values():
            for budget in each:
                fitting._left[budget.scope, budget.name] = budget.left
        for run_id in of_run:
            if (kept := budgets.kept_for_turns(tx, run_id)) is not None:
                fitting._kept[run_id] = kept
        return fitting

    @property
    def all_fit(self) -> bool:
        """Whether all waiting requests of the lane fit at once."""
        needed: dict[tuple[str, str], int] = {}
        for run_id, each in self.of_run.items():
            waits = self.waiting[run_id]
            if waits.unknown or waits.unbounded:
                return False
            total = waits.total
            if run_id in self._kept:
                total += waits.total + self._kept[run_id]
            for budget in each:
                key = (budget.scope, budget.name)
                needed[key] = needed.get(key, 0) + total
        return all(total <= self._left[key] for key, total in needed.items())

    def all_fit_live(
        self, queued: Sequence[tuple[int, str]], costs: Mapping[int, int]
    ) -> bool | None:
        """Return whether these requests (row number, run) fit at once as live calls.

        ``costs`` are their `live_costs`. None: one of them is not there.
        """
        needed: dict[tuple[str, str], int] = {}
        for seq, run_id in queued:
            for budget in self.of_run.get(run_id, ()):
                cost = costs.get(seq)
                if cost is None:
                    return None
                if cost == NO_BOUND:
                    return False
                key = (budget.scope, budget.name)
                needed[key] = needed.get(key, 0) + cost
        return all(total <= self._left[key] for key, total in needed.items())

    def _room(self, run_id: str) -> int:
        left = min(self._left[budget.scope, budget.name] for budget in self.of_run[run_id])
        return left - self._kept.get(run_id, 0)

    def fitting(
        self, tx: Transaction, lane_id: int, among: Collection[int] | None = None
    ) -> Iterator[tuple[int, int, str]]:
        """Yield the queued requests that fit, in order, each on top of those before it.

        Each item is row number, size and run. ``among`` restricts them to these row numbers.
        """
        rooms = {
            run_id: self._room(run_id)
            for run_id in self.of_run
            if (smallest := self.waiting[run_id].smallest) is not None
            and smallest <= self._room(run_id)
        }
        free = [run_id for run_id in self.waiting if run_id not in self.of_run]
        if not rooms and not free:
            return
        most = max(rooms.values(), default=0)
        rows = budgets.reserved_of_lane(tx, lane_id, self.alone, list(rooms), most, free)
        for seq, size, run_id, reserve in rows:
            if among is not None and seq not in among:
                continue
            each = self.of_run.get(run_id)
            if each is not None:
                if reserve > self._room(run_id):
                    continue
                for budget in each:
                    self._left[budget.scope, budget.name] -= reserve
                if run_id in self._kept:
                    self._kept[run_id] += reserve
            self.taken.append(seq)
            yield seq, size, run_id


class CallRoom:
    """Room that budgets leave for live calls, as seen by one transaction.

    Costs two queries if nothing was ever charged. ``counted`` are the budgets (scope, name) that
    have counted what was sent before them.
    """

    def __init__(
        self,
        tx: Transaction,
        prices: Prices,
        now: float,
        counted: Collection[tuple[BudgetScope, str]],
    ) -> None:
        self._tx = tx
        self._prices = prices
        self._now = now
        self._counted = counted
        # What was charged for a former budget stays true, because a later one counts it.
        self.bounded: bool = charges.any_budget(tx) or charges.any_charge(tx)
        self._budgets: dict[str, list[Budget]] = {}
        self._left: dict[tuple[str, str], int] = {}
        self.kept: dict[str, int] = {}
        """What runs with tools keep for the next turns of the calls before, by run."""

    def _file_tokens(self, file_id: str) -> int | None:
        return file_tokens(self._tx, file_id)

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
            bound = bound_of(params, self._file_tokens)
        reserve = _cost_or_none(self._prices, bound, self._now, batch=False)
        each = self._budgets.get(run_id)
        if each is None:
            each = budgets.budgets_of(self._tx, run_id, actor, today(self._now))
            if any((budget.scope, budget.name) not in self._counted for budget in each):
                raise NotCounted(run_id)
            self._budgets[run_id] = each
            if each and (kept := budgets.kept_for_turns(self._tx, run_id)) is not None:
                self.kept[run_id] = kept
            for budget in each:
                self._left.setdefault((budget.scope, budget.name), budget.left)
        keys = [(budget.scope, budget.name) for budget in each]
        left = min((self._left[key] for key in keys), default=reserve) - self.kept.get(run_id, 0)
        if keys and (reserve == NO_BOUND or reserve > left):
            raise NoRoom(run_id, left)
        for key in keys:
            self._left[key] -= reserve
        if run_id in self.kept:
            self.kept[run_id] += reserve
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


def count_for_batch(
    ledger: Ledger, leader: Leader, prices: Prices, batch_id: int, now: float
) -> None:
    """Before a batch is sent, count what the budgets of its runs have not counted yet."""
    with ledger.read() as tx:
        if not charges.any_budget(tx):
            return
        runs = [(run.id, run.actor) for run in queries.runs_of_batch(tx, batch_id)]
    count_for_runs(ledger, leader, prices, runs, now)


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


def count_for_runs(
    ledger: Ledger, leader: Leader, prices: Prices, runs: Collection[tuple[str, str]], now: float
) -> Collection[tuple[BudgetScope, str]]:
    """Before something of runs (id, actor) is sent, count what their budgets have not counted.

    Returns these budgets (scope, name). Each of them counts from then on what is sent.
    """
    with ledger.read() as tx:
        if not charges.any_budget(tx):
            return ()
        concerned: set[tuple[BudgetScope, str]] = {
            (budget.scope, budget.name)
            for run_id, actor in runs
            for budget in budgets.budgets_of(tx, run_id, actor, today(now))
        }
    if concerned:
        price_by(ledger, leader, prices)
        count_under_way(ledger, leader, prices, list(concerned), now)
    return concerned


def reserve_held_calls(
    ledger: Ledger, leader: Leader, prices: Prices, run_id: str, now: float, *, anew: bool
) -> bool:
    """Store what each request of a held run reserves while it waits for a live call.

    The run's status uses it to report which budget holds the run. ``anew`` also replaces what was
    reserved for a batch. Returns False if there was nothing to store.
    """
    is_stored = False
    source = "live anew" if anew else "live"
    for reserves in _most_costs(ledger, prices, source, run_id, now, batch=False):
        with ledger.write(leader) as tx:
            budgets.put_call_reserves(tx, reserves)
        is_stored = True
    return is_stored


def whose(scope: BudgetScope, name: str) -> str:
    """Return a budget in words."""
    return {
        "run": "the run's budget",
        "actor": f"the budget of the actor {name}",
        "day": "the budget of this day (UTC)",
    }[scope]


def warn_after(tx: Transaction, batch_id: int, now: float) -> list[str]:
    """Return the budget warnings that are due after a batch was collected, each once."""
    if not charges.any_budget(tx):
        return []
    words: list[str] = []
    warned: set[tuple[str, str]] = set()
    for run_id, actor in budgets.charged_runs(tx, batch_id):
        for budget in budgets.budgets_of(tx, run_id, actor, today(now)):
            gone = budget.spent + budget.doubt
            percent = next((p for p in WARN_AT if gone * 100 >= budget.amount * p), 0)
            if percent <= budget.warned or (budget.scope, budget.name) in warned:
                continue
            warned.add((budget.scope, budget.name))
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
        if isinstance(bound, Unbounded):
            raise bound
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
    budget: tuple[BudgetScope, str] | None = None,
) -> InvalidRequestError:
    """Return the error of a request whose cost has no bound, so that no budget can reserve it.

    ``budget`` is the scope and name of the budget that asks, if it is known.
    """
    asks = "a budget" if budget is None else whose(*budget)
    found = InvalidRequestError(f"{asks} needs an upper bound of the cost: {error}", key=key)
    found.unpriced_model = error.model
    return found
