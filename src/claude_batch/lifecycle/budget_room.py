"""Budgets: what a request must set aside, and which of those that wait fit into what is left.

Nothing here decides on its own: the sums are read, and the requests bound to their batch, in one
transaction of the driver's (`pack_due`). So whoever dies when, what was reserved stays reserved.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from claude_batch.core.dollars import nano_dollars, usd, write_usd
from claude_batch.core.errors import BudgetExceededError, BudgetScope, InvalidRequestError
from claude_batch.core.settings import BatchProcessingMode, LedgerSettings
from claude_batch.core.states import BatchState
from claude_batch.ledger import budgets, queries, reservations
from claude_batch.ledger.budgets import Budget
from claude_batch.ledger.call_budgets import count_calls
from claude_batch.ledger.reservations import Waiting
from claude_batch.ledger.store import Ledger, Seat, Transaction
from claude_batch.ledger.uploaded_files import file_tokens
from claude_batch.money.prices import Prices
from claude_batch.wire.bounds import FileTokens, TokenBound, Unbounded, token_bound

__all__ = [
    "CallRoom",
    "Fitting",
    "Held",
    "NoRoom",
    "bound_cost",
    "count_for_calls",
    "count_under_way",
    "declare_daily",
    "held_error",
    "held_of",
    "limits_of",
    "most_cost",
    "reserve_call",
    "reserve_held_calls",
    "reserve_what_waits",
    "today",
    "tokens_of_files",
    "unbounded_error",
    "warn_after",
]

NO_BOUND = -1
"""In the place of a reservation, where nothing tells what a request can cost."""


WARN_AT = (100, 80)
"""Percentages of a budget at which is warned, once each."""


def today(now: float) -> int:
    """The day (UTC, counted since the epoch) whose budget pays for what is packed now."""
    return int(now // budgets.DAY)


def declare_daily(ledger: Ledger, settings: LedgerSettings) -> None:
    """Whoever opens the ledger with a daily budget gives it to all who drive it."""
    if settings.daily_budget_usd is not None:
        with ledger.write() as tx:
            budgets.declare(tx, "day", "", nano_dollars(settings.daily_budget_usd))


def tokens_of_files(ledger: Ledger) -> FileTokens:
    """What the ledger knows of uploaded files, each read once: many requests name the same few."""

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
    """The most that encoded params can cost, in nano-dollars; live where not ``batch``.

    ``files`` knows what uploaded files can come to; one that it does not know reserves a whole
    context window. Raises `Unbounded` where no bound is known: no price, or a tool without a limit.
    """
    return bound_cost(prices, token_bound(params, files), now, batch=batch)


def bound_cost(prices: Prices, bound: TokenBound, now: float, *, batch: bool = True) -> int:
    """What a bound costs, as `most_cost`. Raises `Unbounded` for a model without a price."""
    tariff = prices.tariff(bound.model, at=now)
    if tariff is None:
        raise Unbounded(
            f"the price of the model {bound.model} is not known; name it in a file of prices"
        )
    return tariff.ceiling(
        input=bound.input,
        output=bound.output,
        cache=bound.cache,
        searches=bound.searches,
        us_only=bound.us_only,
        batch=batch,
    )


def _most_cost_or_none(
    prices: Prices, params: bytes, now: float, files: FileTokens, *, batch: bool = True
) -> int:
    try:
        return most_cost(prices, params, now, batch=batch, files=files)
    except Unbounded:
        return NO_BOUND


def reserve_what_waits(
    ledger: Ledger,
    seat: Seat,
    prices: Prices,
    lane_id: int,
    runs: Mapping[str, Any],
    now: float,
    alone: str = "",
) -> None:
    """Learn what those reserve that no budget has asked before, under way or queued in a lane.

    ``runs`` are those with queued requests in it. Mostly there is nothing to learn.
    """
    with ledger.read() as tx:
        if not budgets.any_budget(tx):
            return
        concerned: set[tuple[BudgetScope, str]] = {
            (budget.scope, budget.name)
            for run in runs.values()
            for budget in budgets.budgets_of(tx, run.id, run.actor, today(now))
        }
        waiting = reservations.lane_totals(tx, lane_id, alone)
    if not concerned:
        return
    count_under_way(ledger, seat, prices, list(concerned), now)
    if any(each.unknown for each in waiting.values()):
        _reserve_all(ledger, seat, prices, "lane", lane_id, now)


def count_under_way(
    ledger: Ledger,
    seat: Seat | None,
    prices: Prices,
    of: Sequence[tuple[BudgetScope, str]],
    now: float,
) -> None:
    """Count what these budgets (scope, name) have to pay for and was sent before they were there.

    Without a seat too: what is counted is what is written, whoever writes it.
    """
    with ledger.read() as tx:
        uncounted = budgets.uncounted(tx, of, today(now))
    for batch_id, state in uncounted:
        if state == BatchState.LIVE:
            _reserve_all(ledger, seat, prices, "calls", batch_id, now)
        elif state == BatchState.COLLECTED:
            for source in ("lost", "former"):
                _reserve_all(ledger, seat, prices, source, batch_id, now)
        else:
            for source in ("batch", "former"):
                _reserve_all(ledger, seat, prices, source, batch_id, now)
        with ledger.write(seat) as tx:
            if state == BatchState.LIVE:
                count_calls(tx, batch_id)
            elif state == BatchState.COLLECTED:
                budgets.count_collected(tx, batch_id)
            else:
                budgets.recount(tx, batch_id)


def _reserve_all(
    ledger: Ledger,
    seat: Seat | None,
    prices: Prices,
    source: reservations.Source,
    identifier: int,
    now: float,
) -> None:
    after, known = 0, tokens_of_files(ledger)
    while True:
        with ledger.read() as tx:
            page = reservations.unreserved(tx, source, identifier, after)
        if not page:
            return
        batch = source != "calls"
        reserves = [
            (seq, _most_cost_or_none(prices, body, now, known, batch=batch)) for seq, body in page
        ]
        with ledger.write(seat) as tx:
            reservations.put_reserves(tx, reserves)
        after = page[-1][0]


@dataclass(slots=True)
class Fitting:
    """Which queued requests of a lane fit into the budgets of their runs."""

    of_run: dict[str, list[Budget]]
    """The budgets of each run that has some."""
    waiting: dict[str, Waiting]
    alone: str = ""
    """The run with a deadline that they are of; "" for those without one."""
    _left: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    taken: list[int] = field(default_factory=list[int])
    """Row numbers of the requests that `fitting` gave, in order."""

    @classmethod
    def of(
        cls, tx: Transaction, lane_id: int, runs: Mapping[str, Any], now: float, alone: str = ""
    ) -> Fitting | None:
        """For the runs with queued requests in a lane; None where no budget concerns them."""
        if not budgets.any_budget(tx):
            return None
        found = {
            run.id: budgets.budgets_of(tx, run.id, run.actor, today(now)) for run in runs.values()
        }
        of_run = {run_id: each for run_id, each in found.items() if each}
        if not of_run:
            return None
        fitting = cls(of_run, reservations.lane_totals(tx, lane_id, alone), alone)
        for each in of_run.values():
            for budget in each:
                fitting._left[budget.scope, budget.name] = budget.left
        return fitting

    @property
    def all_fit(self) -> bool:
        """Whether everything that waits in the lane fits at once."""
        needed: dict[tuple[str, str], int] = {}
        for run_id, each in self.of_run.items():
            waits = self.waiting[run_id]
            if waits.unknown or waits.unbounded:
                return False
            for budget in each:
                key = (budget.scope, budget.name)
                needed[key] = needed.get(key, 0) + waits.total
        return all(total <= self._left[key] for key, total in needed.items())

    def _room(self, run_id: str) -> int:
        return min(self._left[budget.scope, budget.name] for budget in self.of_run[run_id])

    def fitting(
        self, tx: Transaction, lane_id: int, among: Collection[int] | None = None
    ) -> Iterator[tuple[int, int, str]]:
        """The queued requests that fit, in order, each with those before it taken: row number,
        size and run. ``among``: of these row numbers only."""
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
        rows = reservations.reserved_of_lane(tx, lane_id, self.alone, list(rooms), most, free)
        for seq, size, run_id, reserve in rows:
            if among is not None and seq not in among:
                continue
            each = self.of_run.get(run_id)
            if each is not None:
                if reserve > self._room(run_id):
                    continue
                for budget in each:
                    self._left[budget.scope, budget.name] -= reserve
            self.taken.append(seq)
            yield seq, size, run_id


class CallRoom:
    """What budgets leave for live calls, as one transaction sees it. Costs a query where there is
    no budget."""

    def __init__(self, tx: Transaction, prices: Prices, now: float) -> None:
        self._tx = tx
        self._prices = prices
        self._now = now
        self.bounded: bool = budgets.any_budget(tx)
        self._budgets: dict[str, list[Budget]] = {}
        self._left: dict[tuple[str, str], int] = {}

    def _file_tokens(self, file_id: str) -> int | None:
        return file_tokens(self._tx, file_id)

    def reserve(self, run_id: str, actor: str, params: bytes) -> int | None:
        """What a call sets aside of the room; None where no budget of the ledger asks.

        Nano-dollars at the live price; `NO_BOUND` where nothing tells. Raises `NoRoom` where it
        does not fit into what its run's budgets leave.
        """
        if not self.bounded:
            return None
        reserve = _most_cost_or_none(
            self._prices, params, self._now, self._file_tokens, batch=False
        )
        each = self._budgets.get(run_id)
        if each is None:
            each = budgets.budgets_of(self._tx, run_id, actor, today(self._now))
            self._budgets[run_id] = each
            for budget in each:
                self._left.setdefault((budget.scope, budget.name), budget.left)
        keys = [(budget.scope, budget.name) for budget in each]
        left = min((self._left[key] for key in keys), default=reserve)
        if keys and (reserve == NO_BOUND or reserve > left):
            raise NoRoom(run_id, left)
        for key in keys:
            self._left[key] -= reserve
        return reserve


class NoRoom(Exception):
    """The call of a run does not fit into what its budgets leave."""

    def __init__(self, run_id: str, left: int) -> None:
        super().__init__(run_id)
        self.run_id = run_id
        self.left = left
        """What they leave, in nano-dollars: a smaller call of the same run may fit."""


def count_for_calls(
    ledger: Ledger, seat: Seat, prices: Prices, runs: Collection[tuple[str, str]], now: float
) -> None:
    """Before live calls of runs (id, actor): count what their budgets have not counted yet."""
    with ledger.read() as tx:
        if not budgets.any_budget(tx):
            return
        concerned: set[tuple[BudgetScope, str]] = {
            (budget.scope, budget.name)
            for run_id, actor in runs
            for budget in budgets.budgets_of(tx, run_id, actor, today(now))
        }
    if concerned:
        count_under_way(ledger, seat, prices, list(concerned), now)


def reserve_held_calls(
    ledger: Ledger, seat: Seat, prices: Prices, run_id: str, now: float, *, anew: bool
) -> bool:
    """Learn what each request of a held run reserves that waits for a live call.

    So that its status can tell what it is held by. ``anew``: what was reserved for a batch too.
    False where there was nothing to learn.
    """
    after, known = 0, tokens_of_files(ledger)
    while True:
        with ledger.read() as tx:
            page = reservations.waiting_calls(tx, run_id, after, anew=anew)
        if not page:
            return after > 0
        found = [
            (seq, _most_cost_or_none(prices, body, now, known, batch=False)) for seq, body in page
        ]
        with ledger.write(seat) as tx:
            reservations.put_call_reserves(tx, found)
        after = page[-1][0]


def _whose(scope: BudgetScope, name: str) -> str:
    return {
        "run": "the run's budget",
        "actor": f"the budget of the actor {name}",
        "day": "the budget of this day (UTC)",
    }[scope]


def warn_after(tx: Transaction, batch_id: int, now: float) -> list[str]:
    """What is to be said of budgets, once each, now that a batch is collected."""
    if not budgets.any_budget(tx):
        return []
    words: list[str] = []
    told: set[tuple[str, str]] = set()
    for run_id, actor in budgets.members_of(tx, batch_id):
        for budget in budgets.budgets_of(tx, run_id, actor, today(now)):
            gone = budget.spent + budget.kept
            percent = next((p for p in WARN_AT if gone * 100 >= budget.amount * p), 0)
            if percent <= budget.warned or (budget.scope, budget.name) in told:
                continue
            told.add((budget.scope, budget.name))
            budgets.note_warned(tx, budget, percent)
            run = f" (run {run_id})" if budget.scope == "run" else ""
            words.append(
                f"{percent} % of {_whose(budget.scope, budget.name)}{run} is spent: "
                f"{write_usd(gone)} of {write_usd(budget.amount)}"
            )
    return words


class Held(NamedTuple):
    """Why requests of a run wait for a budget. Money is nano-dollars."""

    requests: int
    """Queued requests of the run, of which none fits now."""
    scope: BudgetScope
    name: str
    amount: int
    spent: int
    """What was paid, and what may have been paid without being known."""
    reserved: int
    """The most that what is under way can cost; it comes back as far as it is not needed."""
    needed: int | None
    """What the smallest of them needs; None where no bound is known of any of them."""
    for_good: bool
    """Whether only another budget changes it: nothing is under way that would make room."""

    def describe(self, run_id: str) -> str:
        """What holds them and what would change it, in words."""
        spent, reserved = write_usd(self.spent), write_usd(self.reserved)
        words = (
            f"{self.requests:,} requests are held: {_whose(self.scope, self.name)} is "
            f"{write_usd(self.amount)}, {spent} of it spent, {reserved} reserved; "
        )
        if self.needed is None:
            return (
                f"{words}what they can cost at most is not known, so none can be reserved; "
                "give a price (--prices) or a limit, or remove the budget"
            )
        change = {
            "run": f"`claude-batch budget {run_id} USD`",
            "actor": f"`claude-batch budget --actor {self.name} USD`",
            "day": "the next day, or `claude-batch budget --daily USD`,",
        }[self.scope]
        return f"{words}the smallest may cost {write_usd(self.needed)}; {change} goes on"


def held_of(tx: Transaction, run_id: str, now: float) -> Held | None:
    """What holds a run's queued requests; None where nothing does, or nothing is queued."""
    if not budgets.any_budget(tx):
        return None
    run = queries.run_row(tx, run_id)
    each = budgets.budgets_of(tx, run_id, run.actor, today(now))
    if not each or run.stored is None:
        return None
    waits = reservations.waiting_of(tx, run_id)
    if not waits.requests or waits.unknown:
        return None
    return _held(each, waits)


def _held(each: Sequence[Budget], waits: Waiting) -> Held | None:
    tightest = min(each, key=lambda budget: budget.left)
    if waits.smallest is not None and waits.smallest <= tightest.left:
        return None
    gone = tightest.spent + tightest.kept
    hopeless = waits.smallest is None or gone + waits.smallest > tightest.amount
    return Held(
        requests=waits.requests,
        scope=tightest.scope,
        name=tightest.name,
        amount=tightest.amount,
        spent=gone,
        reserved=tightest.reserved,
        needed=waits.smallest,
        for_good=tightest.scope != "day" and (hopeless or not tightest.reserved),
    )


def held_error(run_id: str, held: Held) -> BudgetExceededError:
    """The error of a run that nothing moves but another budget."""
    return BudgetExceededError(
        f"run {run_id} is held. {held.describe(run_id)}. Nothing was marked failed",
        scope=held.scope,
        budget_usd=usd(held.amount),
        needed_usd=usd(held.needed or 0),
        run_id=run_id,
    )


def limits_of(
    tx: Transaction, run_id: str | None, actor: str, mode: BatchProcessingMode
) -> list[tuple[BudgetScope, int]]:
    """What single calls of an actor have to fit into, in nano-dollars; mostly nothing.

    ``run_id`` is the run that they join, where it is there; else their mode says what it may cost.
    """
    amounts = budgets.amounts(tx, run_id, actor)
    if run_id is None and mode.budget is not None:
        amounts["run"] = mode.budget
    if mode.actor_budget is not None:
        amounts.setdefault("actor", mode.actor_budget)
    return list(amounts.items())


def reserve_call(
    prices: Prices,
    params: bytes,
    limits: Sequence[tuple[BudgetScope, int]],
    now: float,
    *,
    batch: bool = True,
    files: FileTokens | None = None,
) -> int:
    """What a single call reserves, in nano-dollars; at the live price where not ``batch``.

    Raises `InvalidRequestError` where that is not known, and `BudgetExceededError` where it alone
    is more than a whole budget.
    """
    try:
        reserve = most_cost(prices, params, now, batch=batch, files=files)
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


def unbounded_error(error: Unbounded, key: str | None = None) -> InvalidRequestError:
    """The error of a request that no budget can reserve for."""
    return InvalidRequestError(
        f"under a budget it must be known what it can cost at most: {error}", key=key
    )
