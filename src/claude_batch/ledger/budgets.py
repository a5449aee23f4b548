"""Budgets: limits in dollars for a run, an actor or a day, and the parts that are used or reserved.

The rest of a budget is its amount less three sums over `claude_batch.ledger.charges`. The
transaction that packs requests also reads these sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from claude_batch.core.errors import BudgetScope
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import charges, transitions
from claude_batch.ledger.batch_contents import ELIGIBLE, OF_QUEUE, PACKABLE_NOW
from claude_batch.ledger.portable_sql import (
    count_if,
    drop_meta,
    in_chunks,
    meta_number,
    meta_value,
    put_meta,
    total,
)
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    budgets,
    former_members,
    params,
    requests,
    results,
    runs,
    token_counts,
)
from claude_batch.ledger.schema import charges as charges_table
from claude_batch.ledger.store import Record, plain_rows

_ORDER = {"run": 0, "actor": 1, "day": 2}


BudgetKey: TypeAlias = tuple[BudgetScope, str]
"""Scope and name of a budget: the run's id, the actor's name, or "" for the budget of the day."""


class Budget(NamedTuple):
    """A budget with its current sums, in nano-dollars."""

    scope: BudgetScope
    name: str
    amount: int
    spent: int
    """Cost of the answers whose price is known."""
    doubt: int
    """Amount that may have been billed without proof. It is released only if that is disproved."""
    reserved: int
    """The most that requests under way can cost."""
    warned: int = 0

    @property
    def key(self) -> BudgetKey:
        """What identifies it."""
        return self.scope, self.name

    @property
    def gone(self) -> int:
        """Amount that was paid, or may have been paid for calls without a known end."""
        return self.spent + self.doubt

    @property
    def left(self) -> int:
        """Amount that can be reserved now; negative if the budget was lowered."""
        return self.amount - self.gone - self.reserved


def _named(scope: BudgetScope, name: str | ColumnElement[str] | None) -> ColumnElement[bool]:
    return and_(budgets.c.scope == scope, budgets.c.name == name)


def set_amount(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> bool:
    """Set, raise or lower a budget in nano-dollars; None removes it.

    Returns whether there was one before.
    """
    mine, removed = _named(scope, name), _removed(scope, name)
    before = tx.execute(select(budgets.c.declared).where(mine)).first()
    if before is None and amount is not None:
        # Declaring the amount that was removed does not undo a manual change made since.
        declared = meta_value(tx, removed)
        values = {"amount": amount, "declared": None if declared is None else int(declared)}
        tx.execute(insert(budgets).values(scope=scope, name=name, warned=0, **values))
        drop_meta(tx, removed)
    elif before is not None and amount is None:
        tx.execute(delete(budgets).where(mine))
        if before.declared is not None:
            put_meta(tx, removed, before.declared)
    elif before is not None:
        tx.execute(update(budgets).where(mine).values(amount=amount, warned=0))
    return before is not None


def forget_run(tx: Connection, run_id: str) -> None:
    """Remove the budget of a run that leaves the ledger, and what `set_amount` recorded of it."""
    tx.execute(delete(budgets).where(_named("run", run_id)))
    drop_meta(tx, _removed("run", run_id))


def _removed(scope: BudgetScope, name: str) -> str:
    """Return the name of the meta row with the amount that was declared of a removed budget."""
    return f"removed budget of {scope} {name}"


def is_set_by(tx: Connection, scope: BudgetScope, name: str, amount: int) -> bool:
    """Return whether declaring this amount sets the budget.

    Declaring the same amount as last time changes nothing, because the budget may have been raised
    or removed since.
    """
    if tx.scalar(select(budgets.c.declared).where(_named(scope, name))) == amount:
        return False
    return meta_value(tx, _removed(scope, name)) != str(amount)


def declare(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> None:
    """Declare a budget from a flag, a keyword or an actor's YAML, if `is_set_by` returns true.

    None declares nothing.
    """
    if amount is None or not is_set_by(tx, scope, name, amount):
        return
    set_amount(tx, scope, name, amount)
    tx.execute(update(budgets).where(_named(scope, name)).values(declared=amount))


def _rows(tx: Connection, run_id: str | None, actor: str) -> Sequence[Record]:
    concerned = or_(_named("run", run_id), _named("actor", actor), budgets.c.scope == "day")
    return tx.execute(select(budgets).where(concerned)).all()


def amounts(tx: Connection, run_id: str | None, actor: str) -> dict[BudgetScope, int]:
    """Return the budget amounts of a run, its actor and the day, by scope.

    Scopes without a budget are left out.
    """
    return {row.scope: row.amount for row in _rows(tx, run_id, actor)}


# Sums ---------------------------------------------------------------------------------------------


_SUMS = (
    total(charges_table.c.spent),
    total(charges_table.c.doubt),
    total(charges_table.c.reserved),
)


def _stand(tx: Connection, row: Record, day: int, sums: Sequence[int] | None = None) -> Budget:
    """Return a budget, given by its row, with its sums; ``sums``: those that are known."""
    if sums is None:
        concerned = {
            "run": charges_table.c.run_id == row.name,
            "actor": charges_table.c.actor == row.name,
            "day": charges_table.c.day == day,
        }[row.scope]
        sums = tx.execute(select(*_SUMS).where(concerned)).one()
    spent, doubt, reserved = sums
    is_past = row.scope == "day" and meta_number(tx, _WARNED_ON) != day
    warned = 0 if is_past else row.warned
    return Budget(row.scope, row.name, row.amount, spent, doubt, reserved, warned)


def budgets_of(tx: Connection, run_id: str, actor: str, day: int) -> list[Budget]:
    """Return the budgets that apply to a run's requests; usually none."""
    rows = _rows(tx, run_id, actor)
    return [_stand(tx, row, day) for row in sorted(rows, key=lambda row: _ORDER[row.scope])]


def named_budgets(tx: Connection, of: Sequence[BudgetKey], day: int) -> list[Budget]:
    """Return those of these budgets that are set."""
    found = (tx.execute(select(budgets).where(_named(*key))).first() for key in of)
    return [_stand(tx, row, day) for row in found if row is not None]


def all_budgets(tx: Connection, day: int) -> list[Budget]:
    """Return every budget of the ledger."""
    rows = tx.execute(select(budgets).order_by(budgets.c.scope, budgets.c.name)).all()
    # Together, because thousands of runs may have a budget each.
    mine = charges_table.c.run_id
    of_runs = select(mine, *_SUMS).join(budgets, _named("run", mine)).group_by(mine)
    sums = {str(run_id): rest for run_id, *rest in tx.execute(of_runs)}
    return [
        _stand(tx, row, day, sums.get(row.name, (0, 0, 0)) if row.scope == "run" else None)
        for row in rows
    ]


def uncounted(tx: Connection, of: Sequence[BudgetKey], day: int) -> list[tuple[int, str]]:
    """Return the batches that these budgets cover but that are not charged yet.

    Each batch comes with its state.
    """

    def named(scope: str) -> Iterator[list[str]]:
        return in_chunks(name for of_scope, name in of if of_scope == scope)

    # No term for each budget: SQLite refuses an expression of a thousand.
    concerned: list[ColumnElement[bool]] = []
    concerned += [batch_runs.c.run_id.in_(some) for some in named("run")]
    concerned += [runs.c.actor.in_(some) for some in named("actor")]
    if any(scope == "day" for scope, _ in of):
        concerned.append(charges.of_day(day))
    found: set[tuple[int, str]] = set()
    for each in concerned:
        found.update(charges.uncounted(tx, each))
    return sorted(found)


def charged_runs(tx: Connection, batch_id: int) -> list[tuple[str, str]]:
    """Return the runs, each with its actor, that a batch is charged to."""
    query = select(charges_table.c.run_id, charges_table.c.actor)
    return [(row[0], row[1]) for row in tx.execute(query.where(charges.of_batch(batch_id)))]


_WARNED_ON = "daily_budget_warned"
"""Metadata: the day of the last warning about the budget of the day. Each day has warnings anew."""


def note_warned(tx: Connection, budget: Budget, percent: int, day: int) -> None:
    """Record the percentage of a budget that the last warning, on this day, reported."""
    tx.execute(update(budgets).where(_named(budget.scope, budget.name)).values(warned=percent))
    if budget.scope == "day":
        put_meta(tx, _WARNED_ON, day)


# Token counts -------------------------------------------------------------------------------------

_NEWEST = 200
"""Number of recent counts that an estimate uses, because prompts change over the years."""


class TokenCount(NamedTuple):
    """The API's token count of one request."""

    model: str
    size: int
    """Bytes of the counted params."""
    tokens: int
    shape: bytes
    """Digest of what the request shares with others, which the API has accepted with it."""


def add_token_counts(
    tx: Connection, workspace_id: int, counts: Sequence[TokenCount], now: float
) -> None:
    """Store at least one token count; ``now`` is seconds since the epoch."""
    common = {"workspace_id": workspace_id, "counted": now}
    tx.execute(insert(token_counts), [{**each._asdict(), **common} for each in counts])


def counted_shapes(tx: Connection, workspace_id: int, shapes: Collection[bytes]) -> set[bytes]:
    """Return those of the shapes that the API has accepted in this workspace."""
    return set(
        tx.scalars(
            select(token_counts.c.shape)
            .where(token_counts.c.shape.in_(shapes), token_counts.c.workspace_id == workspace_id)
            .distinct()
        )
    )


def tokens_per_byte(tx: Connection, model: str) -> float | None:
    """Return a model's input tokens per byte of params by its newest counts; None without any."""
    newest = (
        select(token_counts.c.size, token_counts.c.tokens)
        .where(token_counts.c.model == model)
        .order_by(token_counts.c.id.desc())
        .limit(_NEWEST)
        .subquery()
    )
    size, tokens = tx.execute(select(func.sum(newest.c.size), func.sum(newest.c.tokens))).one()
    return float(tokens) / float(size) if size else None


# Reservations -------------------------------------------------------------------------------------

PAGE = 1000
"""Most requests whose params are read at once."""

PAGE_BYTES = 8 << 20
"""Most bytes of their params, apart from a single larger request."""

Source = Literal[
    "batch", "former", "lost", "failed", "unpriced", "calls", "lane", "queued", "live", "live anew"
]
"""Requests whose params are read; all but those of ``queued`` and ``live anew`` only as long as
their reservation is not computed.

Of a batch: all requests (``batch``), those that left it or whose live call may have been billed
(``former``), those lost in it, those with a failure as its result, or with an answer without a
price, and live calls under way or lost (``calls``). The requests queued in a lane (``lane``), or
those of them that are packed with a run ``alone`` (``queued``). A run's requests that wait for a
live call (``live``, ``live anew``).
"""

_OF: ColumnElement[Any] = bindparam("of")
_BODIES = (
    select(requests.c.seq, params.c.body)
    .join(params, params.c.request_seq == requests.c.seq)
    .where(requests.c.seq > bindparam("after"))
    .order_by(requests.c.seq)
    .limit(bindparam("most"))
)
_UNKNOWN = _BODIES.where(requests.c.reserve.is_(None))
_OF_BATCH = _UNKNOWN.where(requests.c.batch_id == _OF)
_WITH_RESULT = _UNKNOWN.join(results, results.c.request_seq == requests.c.seq).where(
    results.c.batch_id == _OF
)
_SUCCEEDED = results.c.outcome == RequestState.SUCCEEDED
_LOST = requests.c.state == RequestState.LOST
_OF_RUN = runs.c.id == requests.c.run_id
_IN_LANE = and_(requests.c.lane_id == _OF, *ELIGIBLE)
_GOES_LIVE = and_(
    requests.c.run_id == _OF,
    requests.c.state == RequestState.QUEUED,
    or_(requests.c.live.is_not(None), runs.c.live.is_not(None)),
)
_SOURCES: dict[Source, Any] = {
    "batch": _OF_BATCH,
    "former": _UNKNOWN.join(former_members, former_members.c.request_seq == requests.c.seq).where(
        former_members.c.batch_id == _OF
    ),
    "lost": _OF_BATCH.where(_LOST),
    "failed": _WITH_RESULT.where(~_SUCCEEDED),
    "unpriced": _WITH_RESULT.where(_SUCCEEDED, results.c.cost.is_(None)),
    "calls": _OF_BATCH.where(or_(requests.c.state == RequestState.PACKED, _LOST)),
    "lane": _UNKNOWN.where(_IN_LANE),
    "queued": _BODIES.where(_IN_LANE, OF_QUEUE),
    "live": _UNKNOWN.join(runs, _OF_RUN).where(_GOES_LIVE),
    "live anew": _BODIES.join(runs, _OF_RUN).where(_GOES_LIVE),
}
_SIZES = {source: bodies.with_only_columns(requests.c.size) for source, bodies in _SOURCES.items()}


def page_of(
    tx: Connection, source: Source, of: int | str, after: int, *, alone: str | None = None
) -> list[tuple[int, bytes]]:
    """Return as many requests of a source as may be read at once: row numbers and params.

    ``of`` is the row number of the source's batch or lane, or its run. ``alone``, for ``queued``
    only, is as in `queued_of_lane`. The row numbers are above ``after``. The page is empty at the
    end.
    """
    values: dict[str, Any] = {"of": of, "after": after}
    if alone is not None:
        values["alone"] = alone
    count = read = 0
    for (size,) in plain_rows(tx, _SIZES[source], {**values, "most": PAGE}):
        read += size
        if count and read > PAGE_BYTES:
            break
        count += 1
    if not count:
        return []
    return [
        (seq, body) for seq, body in plain_rows(tx, _SOURCES[source], {**values, "most": count})
    ]


class Reserve(NamedTuple):
    """What one request can cost at most."""

    seq: int
    size: int
    """Bytes of the params that it was computed from. A later turn of a conversation has more."""
    amount: int
    """In nano-dollars; -1 if there is no bound."""


_OF_PARAMS = and_(
    requests.c.seq == bindparam("of_seq"),
    # A driver may have queued the next turn while this one was bounded.
    requests.c.size == bindparam("of_size"),
)


def put_reserves(tx: Connection, reserves: Sequence[Reserve]) -> None:
    """Store the reservations of requests that have none yet and whose params are the same."""
    _put(tx, requests.c.reserve.is_(None), reserves)


def _put(tx: Connection, which: ColumnElement[bool], reserves: Sequence[Reserve]) -> None:
    if reserves:
        tx.execute(
            update(requests).where(_OF_PARAMS, which),
            [
                {"of_seq": each.seq, "of_size": each.size, "reserve": each.amount}
                for each in reserves
            ],
        )


def put_call_reserves(tx: Connection, reserves: Sequence[Reserve]) -> None:
    """Store reservations of waiting calls, replacing what they reserved for a batch."""
    _put(tx, transitions.has_state(RequestState.QUEUED), reserves)


# The prices of reservations -----------------------------------------------------------------------

_PRICES = "reserved_at"
"""The meta row with the digest of the prices at which requests reserve."""


def are_priced_by(tx: Connection, digest: str) -> bool:
    """Return whether all reservations of unsent requests were computed at these prices."""
    return meta_value(tx, _PRICES) == digest


def price_by(tx: Connection, digest: str) -> None:
    """Forget the reservations of unsent requests, unless they were computed at these prices.

    The driver computes them again before it sends anything. Those of requests in batches at the
    API, and of final ones, are forgotten when such a request waits again
    (`claude_batch.ledger.transitions`). Call this first in each transaction that stores
    reservations.
    """
    if are_priced_by(tx, digest):
        return
    unsent = select(batches.c.id).where(batches.c.state == BatchState.PACKED)
    waits = or_(
        requests.c.state.in_((RequestState.QUEUED, RequestState.HELD)),
        and_(requests.c.state == RequestState.PACKED, requests.c.batch_id.in_(unsent)),
    )
    tx.execute(update(requests).where(waits, requests.c.reserve.is_not(None)).values(reserve=None))
    charges.forget_unsent(tx)
    put_meta(tx, transitions.REPRICED, tx.scalar(select(func.max(batches.c.id))) or 0)
    put_meta(tx, _PRICES, digest)


# What waits ---------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """The queued requests of a run, by their reservations in nano-dollars."""

    requests: int
    total: int
    smallest: int | None
    """The smallest known reservation; None if none is known."""
    unknown: int
    """Number of requests whose reservation is not computed yet."""
    unbounded: int
    """Number of requests without a known upper bound of their cost."""


_KNOWN = requests.c.reserve >= 0
_KNOWN_RESERVE = case((_KNOWN, requests.c.reserve))
_TOTALS = (
    func.count(),
    total(_KNOWN_RESERVE),
    func.min(_KNOWN_RESERVE),
    count_if(requests.c.reserve.is_(None)),
    count_if(requests.c.reserve < 0),
)


def _of_lane(lane_id: int, alone: str, *columns: Any, which: Any = ELIGIBLE) -> Any:
    """Select from the queued requests of a lane; ``alone`` is as in `queued_of_lane`."""
    query = select(*columns).where(*which, requests.c.lane_id == lane_id, OF_QUEUE)
    return query.params(alone=alone)


def lane_totals(tx: Connection, lane_id: int, alone: str, last_seq: int) -> dict[str, Waiting]:
    """Return the queued requests of a lane, up to a row number, by run.

    ``alone`` is as in `queued_of_lane`.
    """
    totals = _of_lane(lane_id, alone, requests.c.run_id, *_TOTALS)
    rows = tx.execute(totals.where(requests.c.seq <= last_seq).group_by(requests.c.run_id))
    return {str(run_id): Waiting(*rest) for run_id, *rest in rows}


def waiting_of(tx: Connection, run_id: str) -> Waiting:
    """Return the queued requests of one run."""
    return Waiting(
        *tx.execute(
            select(*_TOTALS).where(
                requests.c.run_id == run_id, requests.c.state == RequestState.QUEUED
            )
        ).one()
    )


_IS_BETWEEN_TURNS = requests.c.state == literal_column("'continuing'")  # as the partial index


def kept_for_turns(tx: Connection, run_id: str) -> int | None:
    """Return what the next turns of a run's conversations in progress may cost, in nano-dollars.

    Each may cost as much as the turn before it. None: the run has no tools, or one turn at most.
    """
    tools = select(runs.c.tools).where(runs.c.id == run_id, runs.c.max_turns > 1)
    if tx.scalar(tools) is None:
        return None
    at_api = select(total(charges_table.c.reserved)).where(charges_table.c.run_id == run_id)
    between = select(total(_KNOWN_RESERVE)).where(requests.c.run_id == run_id, _IS_BETWEEN_TURNS)
    kept: int = tx.execute(at_api).scalar_one() + tx.execute(between).scalar_one()
    return kept


def queued_runs(tx: Connection, lane_id: int, alone: str) -> list[tuple[int, str]]:
    """Return the requests of ``queued`` in `page_of` without params: row number and run."""
    rows: Any = tx.execute(_of_lane(lane_id, alone, requests.c.seq, requests.c.run_id))
    return [(row[0], row[1]) for row in rows]


def reserved_of_lane(
    tx: Connection, lane_id: int, alone: str, bounded: Sequence[str], most: int, free: Sequence[str]
) -> Iterator[tuple[int, int, str, int]]:
    """Return queued requests of a lane, in order: row number, size, run and reservation.

    Includes requests of the runs ``bounded`` that reserve at most ``most``, and all of the runs
    ``free``.
    """
    reserve = func.coalesce(requests.c.reserve, 0)
    columns = (requests.c.seq, requests.c.size, requests.c.run_id, reserve)
    fits = or_(
        and_(requests.c.run_id.in_(bounded), requests.c.reserve.between(0, most)),
        requests.c.run_id.in_(free),
    )
    query = _of_lane(lane_id, alone, *columns, which=PACKABLE_NOW).where(fits)
    rows: Any = tx.execute(query.order_by(requests.c.seq).execution_options(yield_per=1000))
    for row in rows:
        yield row[0], row[1], row[2], row[3]
