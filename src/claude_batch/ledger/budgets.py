"""Budgets: amounts, spent costs, and reservations for requests under way.

Money is counted per batch and run, in one row of `batch_runs`. ``reserved`` is the most that the
run's requests in the batch can still cost. Packing sets it, and it stays until the outcome of the
POST is known. Collecting a batch sets ``spent`` to the cost of the run's results. ``reserved`` then
keeps what may have been billed without proof: a lost line, or an answer without a price.

Requests that are packed again reserve again, in their new batch.

What a budget has left is its amount less two sums over a few rows. The transaction that packs also
reads these sums. Both columns are None until a budget asks for them.

The live calls of a run and a day share one such row, of a batch in state ``live``. It changes with
each call. A call reserves its live price when it is sent; when it ends, the cost of its answer
replaces the reservation. ``kept`` is what lost calls may have cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    null,
    or_,
    select,
    union,
    update,
)

from claude_batch.core.errors import BudgetScope
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    budgets,
    former_members,
    removed_costs,
    requests,
    results,
    runs,
)
from claude_batch.ledger.store import Record

DAY = 86400.0
"""Seconds in a day. A request's cost belongs to the day on which its batch was packed."""

UNBOUNDED = 10**12
"""Nano-dollars reserved for a request that was packed before a budget and has no known bound."""

_UNDER_WAY = (
    BatchState.PACKED,
    BatchState.SUBMITTING,
    BatchState.IN_PROGRESS,
    BatchState.CANCELING,
    BatchState.ENDED,
    BatchState.UNKNOWN,
)
_OPEN = (*_UNDER_WAY, BatchState.UNRESOLVED)
_SETTLED = (BatchState.COLLECTED, BatchState.UNRESOLVED)

_ORDER = {"run": 0, "actor": 1, "day": 2}


class Budget(NamedTuple):
    """A budget with its current sums, in nano-dollars."""

    scope: BudgetScope
    name: str
    """The run's id, the actor's name, or "" for the budget of the day."""
    amount: int
    spent: int
    """Cost of the answers whose price is known."""
    kept: int
    """Amount that may have been billed without proof. It is released only if that is disproved."""
    reserved: int
    """The most that requests under way can cost."""
    warned: int = 0

    @property
    def left(self) -> int:
        """Amount that can be reserved now; negative if the budget was lowered."""
        return self.amount - self.spent - self.kept - self.reserved


def any_budget(tx: Connection) -> bool:
    """Return whether the ledger has any budget. Most have none, and then nothing is counted."""
    return tx.scalar(select(budgets.c.scope).limit(1)) is not None


def set_amount(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> None:
    """Set, raise or lower a budget in nano-dollars; None removes it."""
    mine = and_(budgets.c.scope == scope, budgets.c.name == name)
    if amount is None:
        tx.execute(delete(budgets).where(mine))
    elif not tx.execute(update(budgets).where(mine).values(amount=amount, warned=0)).rowcount:
        tx.execute(insert(budgets).values(scope=scope, name=name, amount=amount, warned=0))


def declare(tx: Connection, scope: BudgetScope, name: str, amount: int | None) -> None:
    """Declare a budget from a flag, a keyword or an actor's YAML; None declares nothing.

    Declaring the same amount as last time changes nothing, because the budget may have been raised
    since.
    """
    mine = and_(budgets.c.scope == scope, budgets.c.name == name)
    if amount is None or tx.scalar(select(budgets.c.declared).where(mine)) == amount:
        return
    set_amount(tx, scope, name, amount)
    tx.execute(update(budgets).where(mine).values(declared=amount))


# Sums ------------------------------------------------------------------------------------------


def _sums(*of: Any) -> Any:
    reserved, spent = func.coalesce(batch_runs.c.reserved, 0), func.coalesce(batch_runs.c.spent, 0)
    return (
        select(
            # Before a batch is collected, `spent` holds only the known results of an incomplete
            # batch.
            func.coalesce(func.sum(spent), 0),
            func.coalesce(
                func.sum(
                    case(
                        (batches.c.state.in_(_SETTLED), reserved),
                        else_=func.coalesce(batch_runs.c.kept, 0),
                    )
                ),
                0,
            ),
            func.coalesce(
                func.sum(
                    case((batches.c.state.in_((*_UNDER_WAY, BatchState.LIVE)), reserved), else_=0)
                ),
                0,
            ),
        )
        .select_from(batch_runs)
        .join(batches, batches.c.id == batch_runs.c.batch_id)
        .where(*of)
    )


def _concerned(scope: str, name: str, day: int) -> Any:
    """Return the condition for the rows that a budget covers.

    The rows are those of `batch_runs`, joined to their batches.
    """
    if scope == "run":
        return batch_runs.c.run_id == name
    if scope == "actor":
        return batch_runs.c.run_id.in_(select(runs.c.id).where(runs.c.actor == name))
    return batches.c.day == day


def _rows(tx: Connection, run_id: str | None, actor: str) -> Sequence[Record]:
    return tx.execute(
        select(budgets).where(
            or_(
                and_(budgets.c.scope == "run", budgets.c.name == run_id),
                and_(budgets.c.scope == "actor", budgets.c.name == actor),
                budgets.c.scope == "day",
            )
        )
    ).all()


def amounts(tx: Connection, run_id: str | None, actor: str) -> dict[BudgetScope, int]:
    """Return the budget amounts of a run, its actor and the day, by scope.

    Scopes without a budget are left out.
    """
    return {row.scope: row.amount for row in _rows(tx, run_id, actor)}


def _removed(tx: Connection, scope: str, name: str, day: int) -> int:
    """Return the cost of runs that were removed from the ledger."""
    if scope == "run":
        return 0
    mine = removed_costs.c.actor == name if scope == "actor" else removed_costs.c.day == day
    return int(
        tx.scalar(select(func.coalesce(func.sum(removed_costs.c.spent), 0)).where(mine)) or 0
    )


def remember_run(tx: Connection, run_id: str) -> None:
    """Keep the cost of a run that is about to be removed in the other budgets.

    These are the budgets of its actor and of the day.
    """
    set_amount(tx, "run", run_id, None)
    actor: str = tx.execute(select(runs.c.actor).where(runs.c.id == run_id)).scalar_one()
    day = func.coalesce(batches.c.day, cast(batches.c.created / DAY, Integer))
    paid = (
        select(day, func.coalesce(func.sum(results.c.cost), 0))
        .join(requests, requests.c.seq == results.c.request_seq)
        .join(batches, batches.c.id == results.c.batch_id)
        .where(requests.c.run_id == run_id)
        .group_by(day)
    )
    of_run = batch_runs.c.run_id == run_id
    kept = (
        select(
            day,
            func.coalesce(func.sum(batch_runs.c.reserved), 0)
            + func.coalesce(func.sum(batch_runs.c.kept), 0),
        )
        .join(batches, batches.c.id == batch_runs.c.batch_id)
        .where(of_run, batches.c.state.in_((*_SETTLED, BatchState.LIVE)))
        .group_by(day)
    )
    for found in (*tx.execute(paid).all(), *tx.execute(kept).all()):
        mine = and_(removed_costs.c.actor == actor, removed_costs.c.day == found[0])
        more = {"spent": removed_costs.c.spent + found[1]}
        if not tx.execute(update(removed_costs).where(mine).values(**more)).rowcount:
            row = {"actor": actor, "day": found[0], "spent": found[1]}
            tx.execute(insert(removed_costs).values(**row))
    nothing_kept = case((batch_runs.c.kept.is_not(None), 0))
    tx.execute(update(batch_runs).where(of_run).values(reserved=0, spent=0, kept=nothing_kept))


def _stand(tx: Connection, row: Record, day: int) -> Budget:
    sums: Record = tx.execute(_sums(_concerned(row.scope, row.name, day))).one()
    spent: int = sums[0] + _removed(tx, row.scope, row.name, day)
    return Budget(row.scope, row.name, row.amount, spent, sums[1], sums[2], row.warned)


def budgets_of(tx: Connection, run_id: str, actor: str, day: int) -> list[Budget]:
    """Return the budgets that apply to a run's requests; usually none."""
    rows = _rows(tx, run_id, actor)
    return [_stand(tx, row, day) for row in sorted(rows, key=lambda row: _ORDER[row.scope])]


def all_budgets(tx: Connection, day: int) -> list[Budget]:
    """Return every budget of the ledger."""
    rows = tx.execute(select(budgets).order_by(budgets.c.scope, budgets.c.name)).all()
    return [_stand(tx, row, day) for row in rows]


# Reservations ----------------------------------------------------------------------------------


def reserved_sum(reserve: Any, counts: Any) -> Any:
    """Return the SQL sum of reservations over rows that match ``counts``.

    The sum is None if one of the reservations is unknown.
    """
    unknown = func.sum(case((and_(counts, reserve.is_(None)), 1), else_=0))
    total = func.sum(case((and_(counts, reserve < 0), UNBOUNDED), (counts, reserve), else_=0))
    return case((unknown > 0, None), else_=total)


def _members(batch_id: int) -> Any:
    """Select seq, run and reserve of a batch's requests, including those that left it undecided."""
    columns = (requests.c.seq, requests.c.run_id, requests.c.reserve)
    return union(
        select(*columns).where(requests.c.batch_id == batch_id),
        select(*columns)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .where(former_members.c.batch_id == batch_id),
    ).subquery()


def _everybody(batch_id: int) -> Any:
    """Select the requests of `_members`, and those that left the batch with a result of it.

    The reservation of the latter is unknown: the column may already hold that of another turn.
    """
    former = exists().where(
        former_members.c.batch_id == batch_id, former_members.c.request_seq == requests.c.seq
    )
    left = (
        select(requests.c.seq, requests.c.run_id, null())
        .join(results, results.c.request_seq == requests.c.seq)
        .where(
            results.c.batch_id == batch_id,
            _OWN_RESULT,
            requests.c.batch_id.is_distinct_from(batch_id),
            ~former,
        )
    )
    return union(select(_members(batch_id)), left).subquery()


_OWN_RESULT = results.c.sending > 0
"""Excludes the copy of another request's answer that a double holds."""


def _answered(batch_id: int) -> Any:
    """Select the requests that have a result of a batch, wherever they are now.

    The columns are those of `_members`.
    """
    return (
        select(requests.c.seq, requests.c.run_id, requests.c.reserve)
        .join(results, results.c.request_seq == requests.c.seq)
        .where(results.c.batch_id == batch_id, _OWN_RESULT)
        .distinct()
        .subquery()
    )


def settle(
    tx: Connection, batch_id: int, *, lost: bool, contradicted: bool, left: bool = False
) -> None:
    """Settle a batch: its results' cost becomes spent, and doubtful amounts are kept.

    ``lost``: a request without a result line may have been billed. ``contradicted``: a request
    whose line reports a failure may have been billed too.

    Call this before the requests leave the batch, or pass ``left`` to include requests that left it
    with a result. Does nothing if no budget has asked for the batch's reservations.
    """
    mine = _everybody(batch_id) if left else _members(batch_id)
    _settle(tx, batch_id, mine, lost=lost, contradicted=contradicted)


def _settle(tx: Connection, batch_id: int, mine: Any, *, lost: bool, contradicted: bool) -> None:
    asked = batch_runs.c.batch_id == batch_id, batch_runs.c.reserved.is_not(None)
    if tx.scalar(select(batch_runs.c.run_id).where(*asked).limit(1)) is None:
        return
    reserve = case((mine.c.reserve < 0, UNBOUNDED), else_=func.coalesce(mine.c.reserve, 0))
    succeeded = results.c.outcome == RequestState.SUCCEEDED
    doubts = [and_(succeeded, results.c.cost.is_(None))]
    if lost:
        doubts.append(results.c.request_seq.is_(None))
    if contradicted:
        doubts.append(and_(results.c.request_seq.is_not(None), ~succeeded))
    anew = and_(or_(*doubts), mine.c.reserve.is_(None))
    rows = tx.execute(
        select(
            mine.c.run_id,
            func.coalesce(func.sum(results.c.cost), 0).label("cost"),
            func.coalesce(func.sum(case((or_(*doubts), reserve), else_=0)), 0).label("kept"),
            func.max(case((anew, 1), else_=0)).label("anew"),
        )
        .outerjoin(
            results, and_(results.c.request_seq == mine.c.seq, results.c.batch_id == batch_id)
        )
        .group_by(mine.c.run_id)
    ).all()
    before = dict(
        tx.execute(select(batch_runs.c.run_id, batch_runs.c.reserved).where(*asked)).all()
    )
    tx.execute(update(batch_runs).where(*asked).values(reserved=0, spent=0))
    for row in rows:
        # A conversation that went on is about to reserve again, and its old reservation is gone.
        # The run's whole reservation is kept instead.
        kept = max(row.kept, before.get(row.run_id, 0)) if row.anew else row.kept
        tx.execute(
            update(batch_runs)
            .where(*asked, batch_runs.c.run_id == row.run_id)
            .values(spent=row.cost, reserved=kept)
        )


def price_later(tx: Connection, priced: Sequence[tuple[int, int, int]]) -> None:
    """Price answers that were collected without a price: request, sending, nano-dollars.

    The amount kept for them becomes spent. Call this before the price is written to their rows.
    """
    if tx.scalar(select(batch_runs.c.run_id).where(batch_runs.c.spent.is_not(None)).limit(1)):
        tx.execute(
            _PRICE_LATER,
            [{"of_seq": seq, "of_sending": sent, "of_cost": cost} for seq, sent, cost in priced],
        )


_ANSWER = (
    results.c.request_seq == bindparam("of_seq"),
    results.c.sending == bindparam("of_sending"),
    results.c.cost.is_(None),
)
_OF_SEQ = requests.c.seq == bindparam("of_seq")
_WAS_KEPT = (
    select(
        case(
            # A conversation that went on has reserved again, so what was kept stays kept.
            (requests.c.answered_by.is_distinct_from(bindparam("of_sending")), 0),
            (requests.c.reserve < 0, UNBOUNDED),
            else_=func.coalesce(requests.c.reserve, 0),
        )
    )
    .where(_OF_SEQ)
    .scalar_subquery()
)
_PRICE_LATER = (
    update(batch_runs)
    .where(
        batch_runs.c.batch_id == select(results.c.batch_id).where(*_ANSWER).scalar_subquery(),
        batch_runs.c.run_id == select(requests.c.run_id).where(_OF_SEQ).scalar_subquery(),
        batch_runs.c.spent.is_not(None),
    )
    .values(
        spent=batch_runs.c.spent + bindparam("of_cost"),
        reserved=batch_runs.c.reserved - case((batch_runs.c.kept.is_(None), _WAS_KEPT), else_=0),
        kept=batch_runs.c.kept - _WAS_KEPT,
    )
)


def members_of(tx: Connection, batch_id: int) -> list[tuple[str, str]]:
    """Return the runs, each with its actor, whose reservations are counted for a batch."""
    rows = tx.execute(
        select(runs.c.id, runs.c.actor)
        .join(batch_runs, batch_runs.c.run_id == runs.c.id)
        .where(batch_runs.c.batch_id == batch_id, batch_runs.c.reserved.is_not(None))
    )
    return [(row[0], row[1]) for row in rows]


def note_warned(tx: Connection, budget: Budget, percent: int) -> None:
    """Record the percentage of a budget that the last warning reported."""
    mine = and_(budgets.c.scope == budget.scope, budgets.c.name == budget.name)
    tx.execute(update(budgets).where(mine).values(warned=percent))


def recount(tx: Connection, batch_id: int) -> None:
    """Sum the reservations of a batch that is not collected. Requests that left it are included."""
    of = select(batches.c.state, batches.c.missing_since).where(batches.c.id == batch_id)
    row = tx.execute(of).first()
    if row is None or row.state not in _OPEN:
        return  # collected or split by another process meanwhile
    incomplete = row.missing_since is not None
    former = and_(
        former_members.c.request_seq == requests.c.seq, former_members.c.batch_id == batch_id
    )
    mine = _everybody(batch_id) if incomplete else _members(batch_id)
    rows = tx.execute(
        select(
            requests.c.run_id,
            reserved_sum(
                requests.c.reserve,
                or_(
                    and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED),
                    former_members.c.request_seq.is_not(None),
                ),
            ).label("reserved"),
        )
        .join(mine, mine.c.seq == requests.c.seq)
        .outerjoin(former_members, former)
        .group_by(requests.c.run_id)
    ).all()
    tx.execute(delete(batch_runs).where(batch_runs.c.batch_id == batch_id))
    if rows:
        tx.execute(
            insert(batch_runs),
            [{"batch_id": batch_id, "run_id": each.run_id, "reserved": each[1]} for each in rows],
        )
    if incomplete:
        # Its successes are already final, and their cost is known.
        settle(tx, batch_id, lost=True, contradicted=True, left=True)


def uncounted(tx: Connection, of: Sequence[tuple[str, str]], day: int) -> list[tuple[int, str]]:
    """Return the batches that these budgets (scope, name) cover but have not counted yet.

    Each batch comes with its state.
    """
    concerned = or_(*(_concerned(scope, name, day) for scope, name in of))
    rows = tx.execute(
        select(batches.c.id, batches.c.state)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(
            concerned,
            or_(
                and_(batches.c.state == BatchState.COLLECTED, batch_runs.c.spent.is_(None)),
                and_(
                    batches.c.state.in_((*_OPEN, BatchState.LIVE)),
                    batch_runs.c.reserved.is_(None),
                ),
            ),
        )
        .distinct()
    )
    return [(row.id, row.state) for row in rows]


def count_collected(tx: Connection, batch_id: int) -> None:
    """Sum the cost of a batch that was collected before a budget asked."""
    tx.execute(
        update(batch_runs)
        .where(batch_runs.c.batch_id == batch_id, batch_runs.c.reserved.is_(None))
        .values(reserved=0)
    )
    # A conversation leaves the batch that answered one of its turns.
    _settle(tx, batch_id, _answered(batch_id), lost=False, contradicted=False)
    # Lost requests may have been billed, even if the user ordered them to be sent again.
    reserve = case((requests.c.reserve < 0, UNBOUNDED), else_=func.coalesce(requests.c.reserve, 0))
    former = requests.c.seq.in_(
        select(former_members.c.request_seq).where(former_members.c.batch_id == batch_id)
    )
    answered = exists().where(
        results.c.batch_id == batch_id, results.c.request_seq == requests.c.seq
    )
    lost = (
        select(requests.c.run_id, func.sum(reserve))
        .where(
            or_(
                and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.LOST),
                and_(former, ~answered),
            )
        )
        .group_by(requests.c.run_id)
    )
    for run_id, kept in tx.execute(lost).all():
        mine = and_(batch_runs.c.batch_id == batch_id, batch_runs.c.run_id == run_id)
        tx.execute(update(batch_runs).where(mine).values(reserved=batch_runs.c.reserved + kept))
