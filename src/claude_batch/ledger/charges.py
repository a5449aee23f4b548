"""Charges: what each run costs in each batch, for the budgets. Nothing else writes these rows.

A row of `charges` holds three sums in nano-dollars, which always mean the same:

- ``reserved``: the most that requests under way can still cost;
- ``spent``: the cost of answers, as far as their price is known;
- ``doubt``: the most that may have been billed without proof: by a lost request, or by an answer
  without a price.

Money only moves between them: `reserve` sets what is under way, `settle` turns it into what was
spent or is in doubt, and the rest is released. A live call does the same alone, in the row of its
run and day: `reserve_call`, then `settle_calls`.

A cost that an answer proves never leaves these rows. These lower a sum or delete a row:

- `reserve` deletes the rows of a batch that is sent while there is no budget. A later budget counts
  the batch anew. It also deletes those of a rejected batch, which the API did not accept: a batch
  of which a line is stored is never rejected.
- `reserve` and `settle` write the rows of a batch anew, from its requests and all of its results.
  The row of a run that was removed cannot be written anew, and stays.
- `forget_unsent` deletes the rows of batches that are not sent, if prices have changed.
- `settle_calls` releases what a live call reserved once it has ended, and adds what it has cost or
  may have cost.
- `leave_in_doubt` moves what a batch has reserved to doubt, if its outcome will never be known.
- `price` takes a request out of doubt once the cost of its answer is known, and adds that cost.

Most ledgers have no budget, and then no row is written. A budget that comes later counts the
batches that have no row yet (`uncounted`): what each request reserves is computed outside, then
`count` sums it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    union,
    update,
)

from claude_batch.core.states import UNDER_WAY, BatchState, RequestState
from claude_batch.ledger.portable_sql import count_if, total, upsert
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    budgets,
    charges,
    former_members,
    requests,
    results,
    runs,
)
from claude_batch.ledger.stored_results import stored_counts
from claude_batch.ledger.transitions import former_of, has_no_result

DAY = 86400.0
"""Seconds in a day (UTC). A request's cost belongs to the day on which its batch was last sent, or
packed if it was not sent yet.
"""

UNBOUNDED = 10**12
"""Nano-dollars reserved for a request that was packed before a budget and has no known bound."""

_OPEN = (*UNDER_WAY, BatchState.UNRESOLVED)


def _reserve_in(table: Any) -> Any:
    """Return the most that a request can cost, from its row in a table or subquery."""
    return case((table.c.reserve < 0, UNBOUNDED), else_=func.coalesce(table.c.reserve, 0))


_RESERVE = _reserve_in(requests)
_ZERO: ColumnElement[int] = literal_column("0", Integer)
_OWN_RESULT = results.c.sending > 0
"""Excludes the copy of another request's answer that a double holds."""
_DAY_OF_BATCH = func.coalesce(batches.c.day, cast(batches.c.created / DAY, Integer))


_ANY_BUDGET = select(budgets.c.scope).limit(1)


def any_budget(tx: Connection) -> bool:
    """Return whether the ledger has any budget. Most have none, and then nothing is charged."""
    return tx.scalar(_ANY_BUDGET) is not None


def any_charge(tx: Connection) -> bool:
    """Return whether anything is charged: there is, or was, a budget, or a run was removed."""
    return tx.scalar(select(charges.c.run_id).limit(1)) is not None


def charged_batches(tx: Connection, batch_ids: Sequence[int]) -> set[int]:
    """Return those of these batches that have rows."""
    mine = select(charges.c.batch_id).distinct().where(charges.c.batch_id.in_(batch_ids))
    return set(tx.scalars(mine))


def of_batch(batch_id: int) -> ColumnElement[bool]:
    """Return the condition for a batch's rows."""
    return charges.c.batch_id == batch_id


def _recomputable(batch_id: int) -> ColumnElement[bool]:
    """Return the condition for the rows of a batch that can be computed again.

    The requests of a run that is removed, or is being removed, are gone. Its row is all that is
    known of its cost.
    """
    is_whole = exists().where(runs.c.id == charges.c.run_id, runs.c.stored.is_not(None))
    return and_(of_batch(batch_id), is_whole)


def _insert(tx: Connection, sums: Any) -> None:
    """Insert rows for a subquery of ``batch_id``, ``run_id``, ``reserved``, ``spent``, ``doubt``.

    A row that exists stays.
    """
    tx.execute(
        upsert(charges)
        .from_select(
            ["batch_id", "run_id", "actor", "day", "reserved", "spent", "doubt"],
            select(
                sums.c.batch_id,
                sums.c.run_id,
                runs.c.actor,
                _DAY_OF_BATCH,
                sums.c.reserved,
                sums.c.spent,
                sums.c.doubt,
            )
            .join(runs, runs.c.id == sums.c.run_id)
            .join(batches, batches.c.id == sums.c.batch_id),
        )
        .on_conflict_do_nothing(index_elements=["batch_id", "run_id"])
    )


# Batches ------------------------------------------------------------------------------------------


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


def _answered(batch_id: int) -> Any:
    """Select the requests that have a result of a batch, wherever they are now, as `_members`."""
    return (
        select(requests.c.seq, requests.c.run_id, requests.c.reserve)
        .join(results, results.c.request_seq == requests.c.seq)
        .where(results.c.batch_id == batch_id, _OWN_RESULT)
        .distinct()
        .subquery()
    )


def move_to_day(tx: Connection, batch_id: int, day: int) -> None:
    """Let a batch that is about to be sent cost what it costs on this day."""
    other = batches.c.day.is_distinct_from(day)
    moved = update(batches).where(batches.c.id == batch_id, other).values(day=day)
    if tx.execute(moved).rowcount:
        tx.execute(update(charges).where(of_batch(batch_id)).values(day=day))


def forget_unsent(tx: Connection) -> None:
    """Delete the rows of batches that wait to be sent; they are counted again before that."""
    unsent = select(batches.c.id).where(batches.c.state == BatchState.PACKED)
    tx.execute(delete(charges).where(charges.c.batch_id.in_(unsent)))


def reserve(tx: Connection, batch_id: int) -> None:
    """Reserve what the requests of a batch can cost that is not collected, anew.

    A run of which one request's reservation is unknown gets no row; see `uncounted`. A batch that
    was dissolved releases everything. Without a budget, what a former one counted is out of date.
    """
    state = tx.scalar(select(batches.c.state).where(batches.c.id == batch_id))
    if state not in (*_OPEN, BatchState.REJECTED):
        return  # collected by another process meanwhile
    tx.execute(delete(charges).where(_recomputable(batch_id)))
    if state == BatchState.REJECTED or not any_budget(tx):
        return
    has_ended = state == BatchState.ENDED
    former = and_(
        former_members.c.request_seq == requests.c.seq, former_members.c.batch_id == batch_id
    )
    counts = or_(
        and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED),
        former_members.c.request_seq.is_not(None),
    )
    mine = _everybody(batch_id) if has_ended else _members(batch_id)
    unknown = count_if(and_(counts, requests.c.reserve.is_(None)))
    most = total(case((counts, _RESERVE)))
    doubtful = state == BatchState.UNRESOLVED
    sums = (
        select(
            literal(batch_id).label("batch_id"),
            requests.c.run_id,
            (_ZERO if doubtful else most).label("reserved"),
            _ZERO.label("spent"),
            (most if doubtful else _ZERO).label("doubt"),
        )
        .join(mine, mine.c.seq == requests.c.seq)
        .outerjoin(former_members, former)
        .group_by(requests.c.run_id)
        .having(unknown == 0)
    )
    _insert(tx, sums.subquery())
    if has_ended:
        # Results may be stored, even by a fetch that broke off. The cost of these is known.
        settle_stored(tx, batch_id)


def settle(
    tx: Connection, batch_id: int, *, lost: bool, contradicted: bool, left: bool = False
) -> None:
    """Settle a batch: its answers' cost becomes spent, and what may have been billed is in doubt.

    ``lost``: a request without a result line may have been billed. ``contradicted``: a request
    whose line reports a failure may have been billed too.

    Call this before the requests leave the batch, or pass ``left`` to include requests that left it
    with a result. Runs without a row are left out.
    """
    mine = _everybody(batch_id) if left else _members(batch_id)
    _settle(tx, batch_id, mine, lost=lost, contradicted=contradicted)


def settle_stored(tx: Connection, batch_id: int) -> None:
    """Settle what the stored results of a batch have cost, of which more may come.

    What may have been billed stays reserved.
    """
    mine = _everybody(batch_id)
    _settle(tx, batch_id, mine, lost=True, contradicted=True, unfinished=True)


def _settle(
    tx: Connection,
    batch_id: int,
    mine: Any,
    *,
    lost: bool,
    contradicted: bool,
    unfinished: bool = False,
) -> None:
    charged = select(charges.c.run_id, charges.c.reserved, charges.c.doubt)
    before = {row.run_id: row for row in tx.execute(charged.where(_recomputable(batch_id)))}
    if not before:
        return
    most = _reserve_in(mine)
    succeeded = results.c.outcome == RequestState.SUCCEEDED
    unpriced = and_(succeeded, results.c.cost.is_(None))
    doubts: list[ColumnElement[bool]] = []
    if lost:
        doubts.append(results.c.request_seq.is_(None))
    if contradicted:
        doubts.append(and_(results.c.request_seq.is_not(None), ~succeeded))
    undecided = or_(false(), *doubts)
    unknown = and_(or_(unpriced, undecided), mine.c.reserve.is_(None))
    rows = tx.execute(
        select(
            mine.c.run_id,
            total(results.c.cost).label("cost"),
            total(case((unpriced, most))).label("unpriced"),
            total(case((undecided, most))).label("undecided"),
            func.max(case((unknown, 1), else_=0)).label("unknown"),
        )
        .outerjoin(
            results, and_(results.c.request_seq == mine.c.seq, results.c.batch_id == batch_id)
        )
        .group_by(mine.c.run_id)
    ).all()
    tx.execute(update(charges).where(_recomputable(batch_id)).values(reserved=0, spent=0, doubt=0))
    for row in rows:
        old = before.get(row.run_id)
        if old is None:
            continue
        reserved, doubt = (
            (row.undecided, row.unpriced) if unfinished else (0, row.unpriced + row.undecided)
        )
        if row.unknown:
            # A conversation that went on is about to reserve again, and its old reservation is
            # gone. The run's whole reservation stays in doubt instead.
            doubt = max(doubt, old.reserved + old.doubt - reserved)
        tx.execute(
            update(charges)
            .where(of_batch(batch_id), charges.c.run_id == row.run_id)
            .values(spent=row.cost, reserved=reserved, doubt=doubt)
        )


def leave_in_doubt(tx: Connection, batch_id: int) -> None:
    """Put in doubt what a batch reserves whose outcome will never be known."""
    tx.execute(
        update(charges)
        .where(of_batch(batch_id))
        .values(doubt=charges.c.doubt + charges.c.reserved, reserved=0)
    )


# Answers that are priced later --------------------------------------------------------------------

_ANSWER = (
    results.c.request_seq == bindparam("of_seq"),
    results.c.sending == bindparam("of_sending"),
    results.c.cost.is_(None),
)
_OF_SEQ = requests.c.seq == bindparam("of_seq")
# A conversation that went on has reserved again, so what was in doubt stays so.
_STANDS = requests.c.answered_by == bindparam("of_sending")
_WAS_IN_DOUBT = func.coalesce(select(_RESERVE).where(_OF_SEQ, _STANDS).scalar_subquery(), 0)
_PRICE = (
    update(charges)
    .where(
        charges.c.batch_id == select(results.c.batch_id).where(*_ANSWER).scalar_subquery(),
        charges.c.run_id == select(requests.c.run_id).where(_OF_SEQ).scalar_subquery(),
    )
    .values(
        spent=charges.c.spent + bindparam("of_cost"),
        doubt=func.max(charges.c.doubt - _WAS_IN_DOUBT, 0),
    )
)


def price(tx: Connection, priced: Sequence[tuple[int, int, int]]) -> None:
    """Price answers that were stored without a price: request, sending, nano-dollars.

    Call this before the price is written to their rows.
    """
    if any_charge(tx):
        tx.execute(
            _PRICE,
            [{"of_seq": seq, "of_sending": sent, "of_cost": cost} for seq, sent, cost in priced],
        )


# Live calls ---------------------------------------------------------------------------------------


def _reserve_of(seq: int) -> Any:
    return select(_RESERVE).where(requests.c.seq == seq).scalar_subquery()


def _row_of_call(batch_id: int, seq: int) -> ColumnElement[bool]:
    run_id = select(requests.c.run_id).where(requests.c.seq == seq).scalar_subquery()
    return and_(of_batch(batch_id), charges.c.run_id == run_id)


def reserve_call(tx: Connection, batch_id: int, seq: int) -> None:
    """Reserve the amount of a live call that is about to be made; it is in its ``reserve``."""
    tx.execute(
        update(charges)
        .where(_row_of_call(batch_id, seq))
        .values(reserved=charges.c.reserved + _reserve_of(seq))
    )


def settle_calls(tx: Connection, ended: Sequence[tuple[int, int, int | None]]) -> None:
    """Settle live calls that have ended: batch, request and cost of each, in nano-dollars.

    What they reserved is released, and their cost is spent. A call whose cost is None may have cost
    as much as it reserved, so that is in doubt.
    """
    if not any_charge(tx):
        return
    for batch_id, seq, cost in ended:
        most = _reserve_of(seq)
        values = {"reserved": charges.c.reserved - most}
        if cost is None:
            values["doubt"] = charges.c.doubt + most
        else:
            values["spent"] = charges.c.spent + cost
        tx.execute(update(charges).where(_row_of_call(batch_id, seq)).values(**values))


# What was sent before its budget ------------------------------------------------------------------


def of_day(day: int) -> ColumnElement[bool]:
    """Return the condition for the batches whose costs count on a day, as `_DAY_OF_BATCH` has it.

    Both halves are found by the index of days.
    """
    begin = day * DAY
    created = and_(batches.c.created >= begin, batches.c.created < begin + DAY)
    return or_(batches.c.day == day, and_(batches.c.day.is_(None), created))


def uncounted(tx: Connection, of: ColumnElement[bool]) -> list[tuple[int, str]]:
    """Return the batches without charges of some of their runs, each with its state.

    ``of`` restricts the rows of `batch_runs`, joined to their batches and runs.
    """
    rows = tx.execute(
        select(batches.c.id, batches.c.state)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .join(runs, runs.c.id == batch_runs.c.run_id)
        .outerjoin(
            charges,
            and_(charges.c.batch_id == batches.c.id, charges.c.run_id == batch_runs.c.run_id),
        )
        .where(
            of,
            charges.c.run_id.is_(None),
            # Not by the index of states: SQLite would begin with all collected batches.
            func.coalesce(batches.c.state, "").in_((*_OPEN, BatchState.COLLECTED, BatchState.LIVE)),
        )
        .distinct()
    )
    return [(row.id, row.state) for row in rows]


def count(tx: Connection, batch_id: int, state: str) -> None:
    """Charge a batch that was sent before its budget. Its requests' ``reserve`` must be known.

    ``state`` is the batch's, as `uncounted` returned it.
    """
    if state == BatchState.LIVE:
        _count_calls(tx, batch_id)
    elif state == BatchState.COLLECTED:
        _count_collected(tx, batch_id)
    else:
        reserve(tx, batch_id)


def open_rows(
    tx: Connection,
    which: ColumnElement[bool],
    *,
    reserved: Any = _ZERO,
    spent: Any = _ZERO,
    doubt: Any = _ZERO,
) -> None:
    """Insert a row with these sums for each row of `batch_runs` that ``which`` selects."""
    _insert(
        tx,
        select(
            batch_runs.c.batch_id,
            batch_runs.c.run_id,
            reserved.label("reserved"),
            spent.label("spent"),
            doubt.label("doubt"),
        )
        .where(which)
        .subquery(),
    )


def _count_collected(tx: Connection, batch_id: int) -> None:
    open_rows(tx, batch_runs.c.batch_id == batch_id)
    contradicted = is_contradicted(tx, batch_id)
    # A conversation leaves the batch that answered one of its turns.
    answers = _answered(batch_id)
    _settle(tx, batch_id, answers, lost=False, contradicted=contradicted)
    # Lost requests may have been billed, even if the user ordered them to be sent again. Those with
    # a result are settled above.
    here = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.LOST)
    is_lost = and_(or_(here, former_of(batch_id)), has_no_result(batch_id))
    lost = select(requests.c.run_id, func.sum(_RESERVE)).where(is_lost).group_by(requests.c.run_id)
    for run_id, amount in tx.execute(lost).all():
        mine = and_(_recomputable(batch_id), charges.c.run_id == run_id)
        tx.execute(update(charges).where(mine).values(doubt=charges.c.doubt + amount))


def is_contradicted(tx: Connection, batch_id: int) -> bool:
    """Return whether a stored failure of a collected batch hides a success that the API counts."""
    query = select(batches.c.counts, batches.c.request_count).where(batches.c.id == batch_id)
    row = tx.execute(query).one()
    counted = json.loads(row.counts or "{}").get("succeeded") or 0
    return stored_counts(tx, batch_id).hides_success(counted, row.request_count)


def _count_calls(tx: Connection, batch_id: int) -> None:
    def reserves(*which: ColumnElement[bool]) -> Any:
        of_run = requests.c.run_id == batch_runs.c.run_id
        most = select(total(_RESERVE)).where(of_run, *which)
        return most.correlate(batch_runs).scalar_subquery()

    here = requests.c.batch_id == batch_runs.c.batch_id
    # Calls that may have been billed, of requests that were tried again or have failed since.
    former = former_of(batch_id)
    lost = and_(here, requests.c.state == RequestState.LOST)
    unpriced = requests.c.seq.in_(
        select(results.c.request_seq).where(
            results.c.batch_id == batch_id,
            results.c.outcome == RequestState.SUCCEEDED,
            results.c.cost.is_(None),
        )
    )

    open_rows(
        tx,
        batch_runs.c.batch_id == batch_id,
        reserved=reserves(here, requests.c.state == RequestState.PACKED),
        spent=_paid(),
        doubt=reserves(or_(lost, former, unpriced)),
    )


def _paid() -> Any:
    """Select the cost of a run's answers in a batch, for a row of `batch_runs`."""
    return (
        select(total(results.c.cost))
        .join(requests, requests.c.seq == results.c.request_seq)
        .where(
            results.c.batch_id == batch_runs.c.batch_id, requests.c.run_id == batch_runs.c.run_id
        )
        .correlate(batch_runs)
        .scalar_subquery()
    )


def keep_run(tx: Connection, run_id: str) -> None:
    """Charge all that a finished run has cost, before it is removed from the ledger.

    Its charges stay, for the budgets of its actor and of the day. Batches that `count` has charged
    are left as they are, because these charges also hold what is in doubt.
    """
    open_rows(tx, batch_runs.c.run_id == run_id, spent=_paid())


def keep_strange(tx: Connection, batch_id: int, costs: Sequence[int | None]) -> None:
    """Charge a batch for answers to requests that the ledger does not have; None: without a price.

    Their run and actor are not known, so only the budget of a day counts them.
    """
    if not costs:
        return
    unknown = sum(cost is None for cost in costs)
    tx.execute(
        insert(charges).values(
            batch_id=batch_id,
            run_id="",
            actor="",
            day=select(_DAY_OF_BATCH).where(batches.c.id == batch_id).scalar_subquery(),
            reserved=0,
            spent=sum(cost or 0 for cost in costs),
            doubt=unknown * UNBOUNDED,
        )
    )
