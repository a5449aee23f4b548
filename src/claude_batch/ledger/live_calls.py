"""Transactions of live calls: which requests go to the live API, and the outcome of each call.

A call is on disk before it is sent: its request is ``packed`` in a batch of state ``live``. That
row groups the calls of a run and a day, as long as none of its pauses is longer than `PAUSE`; it is
not an API batch. If a new driver finds a request there, the call may have been answered and billed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)

from claude_batch.core.outcome import Next
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import charges, transitions
from claude_batch.ledger.batch_contents import may_be_live, recount
from claude_batch.ledger.charges import DAY, any_budget
from claude_batch.ledger.cost_sums import BEGINNING
from claude_batch.ledger.held_requests import is_held
from claude_batch.ledger.portable_sql import among, contains, insert_one, of_workspace, update_row
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    former_members,
    lanes,
    params,
    requests,
    results,
    runs,
)
from claude_batch.ledger.store import Record
from claude_batch.ledger.stored_results import NewResult, add_results
from claude_batch.ledger.transitions import is_double
from claude_batch.ledger.unknown_batches import remember_former

# Literals, so that SQLite can use the index of queued requests.
_QUEUED = literal_column("requests.state") == literal_column("'queued'")

# Without an index: by that of its batch, PostgreSQL would read all calls of the day for each call.
_batch: ColumnElement[int] = literal_column("+requests.batch_id")


PAUSE = 600.0
"""Seconds after the last end of a call from which further calls are grouped by another row.

The time of the calls of a row is measured from its first to its last.
"""


class Waiting(NamedTuple):
    """A request that waits for a live call."""

    seq: int
    id: str
    run_id: str
    lane_id: int
    api_version: str
    betas: str
    user_profile: str
    attempts: int
    """Outcomes that count against ``max_attempts``."""
    max_attempts: int
    concurrency: int
    retry: str
    """The run's ``live_retry``: ``safe`` or ``always``."""
    retry_on: str | None
    """The run's ``retry_on``."""
    body: bytes
    kind: str
    """Kind of its run: ``run`` or ``calls``."""
    actor: str
    key: str | None
    position: int
    asked: float
    trace: str | None


def groups_live_calls(state: str) -> bool:
    """Return whether a row of `batches` in this state groups live calls, and is no API batch."""
    return state == BatchState.LIVE


def choose(tx: Connection, lane_id: int, run_ids: Collection[str]) -> int:
    """Send the queued requests of these runs in a lane to the live API; return their number."""
    queued = and_(
        requests.c.lane_id == lane_id,
        requests.c.state == RequestState.QUEUED,
        requests.c.run_id.in_(run_ids),
    )
    return transitions.choose_live(tx, queued)


_LIVE_RUNS = select(runs.c.id).where(
    runs.c.live.is_not(None), runs.c.stored.is_not(None), runs.c.cancelled.is_(None)
)
_ANY_RUN = _LIVE_RUNS.limit(1)
_WAITING = (
    select(requests.c.seq, requests.c.run_id, requests.c.reserve)
    .where(_QUEUED, of_workspace(requests.c.lane_id, bindparam("workspace")))
    .limit(bindparam("most"))
)
_ALONE = requests.c.live == 1
_OF_RUN = or_(_ALONE, requests.c.run_id.in_(_LIVE_RUNS))
# Built once, because a driver asks for them in every pass.
_ON_SQLITE = tuple(_WAITING.where(which).order_by(requests.c.seq) for which in (_ALONE, _OF_RUN))
# Not by the row numbers: PostgreSQL would go through all requests that have ended.
_ON_SERVER = tuple(
    _WAITING.where(which).order_by(literal_column("+requests.seq")) for which in (_ALONE, _OF_RUN)
)
_LATER = requests.c.seq > bindparam("after")

_MOST_NAMED = 1000
"""Most runs that a statement names; requests of further ones are left out after they are read."""

_FITS = or_(
    requests.c.run_id.not_in(bindparam("held", expanding=True)),
    requests.c.reserve.between(0, bindparam("left", type_=BigInteger)),
)
_OF_OTHERS = requests.c.run_id.not_in(bindparam("without", expanding=True))


def waiting(
    tx: Connection,
    workspace_id: int,
    limit: int,
    *,
    room: Mapping[str, int],
    without: Collection[str] = (),
) -> list[tuple[int, str]]:
    """Return the row numbers and runs of requests that wait for a live call, oldest first.

    ``room`` maps runs with a budget to their remaining amount, in nano-dollars. Of those runs, only
    requests that are known to fit are returned. None is returned of the runs in ``without``.
    """
    alone, of_run = _ON_SQLITE if tx.dialect.name == "sqlite" else _ON_SERVER
    chosen = alone if tx.scalar(_ANY_RUN) is None else of_run
    values: dict[str, Any] = {"workspace": workspace_id, "most": limit}
    # The text of the statement must not grow with each run, because compiled statements are kept.
    if room:
        chosen = chosen.where(_FITS)
        values |= {"held": list(islice(room, _MOST_NAMED)), "left": max(room.values())}
    if without:
        chosen = chosen.where(_OF_OTHERS)
        values["without"] = list(islice(without, _MOST_NAMED))

    def fits(run_id: str, reserve: int | None) -> bool:
        left = room.get(run_id)
        return left is None or (reserve is not None and 0 <= reserve <= left)

    found: list[tuple[int, str]] = []
    rows = tx.execute(chosen, values).all()
    while True:
        found += [
            (seq, run_id)
            for seq, run_id, reserve in rows
            if run_id not in without and fits(run_id, reserve)
        ]
        if len(rows) < limit or len(found) >= limit:
            return found[:limit]
        rows = tx.execute(chosen.where(_LATER), {**values, "after": rows[-1][0]}).all()


def fitting(tx: Connection, seqs: Collection[int], left: int) -> set[int]:
    """Return those of the waiting requests that are known to reserve at most ``left``."""
    small = select(requests.c.seq).where(requests.c.reserve.between(0, left))
    return {row.seq for row in among(tx, small, requests.c.seq, seqs)}


def request(tx: Connection, seq: int) -> Waiting | None:
    """Return a waiting request with its params; None if it does not wait any more."""
    row = tx.execute(
        select(
            requests.c.seq,
            requests.c.id,
            requests.c.run_id,
            requests.c.lane_id,
            lanes.c.api_version,
            lanes.c.betas,
            lanes.c.user_profile,
            requests.c.attempts - requests.c.forgiven,
            runs.c.max_attempts,
            runs.c.live_concurrency,
            runs.c.live_retry,
            runs.c.retry_on,
            params.c.body,
            runs.c.kind,
            runs.c.actor,
            requests.c.key,
            requests.c.position,
            requests.c.created,
            func.coalesce(requests.c.trace, runs.c.trace),
        )
        .join(runs, runs.c.id == requests.c.run_id)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .join(params, params.c.request_seq == requests.c.seq)
        .where(
            requests.c.seq == seq,
            transitions.has_state(RequestState.QUEUED),
            ~requests.c.cancelled,
            runs.c.cancelled.is_(None),
            or_(requests.c.live.is_not(None), runs.c.live.is_not(None)),
        )
    ).first()
    return None if row is None else Waiting(*row)


def beginnings(tx: Connection, seqs: Collection[int]) -> dict[int, bytes]:
    """Return the first bytes of the params of requests, which name the model, by row number."""
    query = select(params.c.request_seq, func.substr(params.c.body, 1, BEGINNING))
    return {seq: bytes(body) for seq, body in among(tx, query, params.c.request_seq, seqs)}


def _holder(tx: Connection, lane_id: int, run_id: str, seq: int, now: float) -> int:
    """Return the batch that groups a run's live calls by lane and day, for the cost sums.

    A request of which an earlier call may have been billed is grouped by another batch, so that
    each such call is counted.
    """
    former = exists().where(
        former_members.c.batch_id == batches.c.id, former_members.c.request_seq == seq
    )
    found = tx.scalar(
        select(batches.c.id)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(
            batch_runs.c.run_id == run_id,
            batches.c.lane_id == lane_id,
            batches.c.state == BatchState.LIVE,
            charges.of_day(int(now // DAY)),
            batches.c.ended > now - PAUSE,
            ~former,
        )
        .order_by(batches.c.id)
        .limit(1)
    )
    if found is not None:
        return found
    holder = _new_holder(tx, lane_id, run_id, now)
    if any_budget(tx):
        charges.open_rows(tx, batch_runs.c.batch_id == holder)
    return holder


def _new_holder(tx: Connection, lane_id: int, run_id: str, now: float, count: int = 0) -> int:
    """Insert a batch that groups live calls. No budget has asked about it yet."""
    holder = insert_one(
        tx,
        batches,
        lane_id=lane_id,
        state=BatchState.LIVE,
        request_count=count,
        params_bytes=0,
        poll_interval=0.0,
        max_poll_interval=0.0,
        created=now,
        day=int(now // DAY),
        submitted=now,
        ended=now,
    )
    tx.execute(insert(batch_runs).values(batch_id=holder, run_id=run_id))
    return holder


def claim(tx: Connection, found: Waiting, now: float, reserve: int | None) -> tuple[int, int]:
    """Record a call that is about to be sent; return its sending and the batch that groups it.

    ``reserve`` is the amount to reserve in the budgets, in nano-dollars. -1: no bound is known.
    None: no budget applies.
    """
    seq = found.seq
    batch_id = _holder(tx, found.lane_id, found.run_id, seq, now)
    sending = transitions.call(tx, seq, batch_id, reserve=reserve)
    update_row(tx, batches, batch_id, request_count=batches.c.request_count + 1)
    if reserve is not None:
        charges.reserve_call(tx, batch_id, seq)
    return sending, batch_id


def _under_way(seq: int, batch_id: int) -> ColumnElement[bool]:
    return and_(
        requests.c.seq == seq,
        _batch == batch_id,
        requests.c.state == RequestState.PACKED,
    )


def is_under_way(tx: Connection, seq: int, batch_id: int, sending: int) -> bool:
    """Return whether a claim of a call is stored, and its outcome is not."""
    here = select(requests.c.seq).where(_under_way(seq, batch_id), requests.c.sendings == sending)
    return tx.scalar(here) is not None


def put_back(
    tx: Connection,
    seq: int,
    batch_id: int,
    step: Next,
    *,
    note: str | None,
    may_be_paid: bool = False,
) -> None:
    """Queue a request again after a call that gave no final result, or end it as canceled.

    ``may_be_paid``: budgets keep what the call may have cost.
    """
    charges.settle_calls(tx, [(batch_id, seq, None if may_be_paid else 0)])
    if may_be_paid:
        _remember_billed(tx, seq, batch_id)
    transitions.return_call(tx, _under_way(seq, batch_id), step)
    update_row(tx, batches, batch_id, request_count=batches.c.request_count - 1, note=note)


def _remember_billed(tx: Connection, seq: int, batch_id: int) -> None:
    """Record a call that may have been billed, for a budget that is set later."""
    one = select(requests.c.batch_id, requests.c.seq, requests.c.sendings)
    remember_former(tx, one.where(_under_way(seq, batch_id)))


def last_note(tx: Connection, run_id: str) -> str | None:
    """Return why the last live call of a run has no answer; None if it was answered."""
    return tx.scalar(
        select(batches.c.note)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(batch_runs.c.run_id == run_id, batches.c.state == BatchState.LIVE)
        .order_by(batches.c.id.desc())
        .limit(1)
    )


class Ended(NamedTuple):
    """The end of a call that is not retried."""

    batch_id: int
    state: RequestState
    result: NewResult | None
    """None if no answer came. A lost call has a result if the API answered with an error."""
    seq: int
    may_be_paid: bool = False
    """Whether it may be billed without an answer; budgets then keep what it may have cost."""

    @property
    def cost(self) -> int | None:
        """Nano-dollars; None if it is not known what the call has cost."""
        if self.may_be_paid or self.state is RequestState.LOST:
            return None
        return 0 if self.result is None else self.result.cost


def finish(
    tx: Connection, ended: Sequence[Ended], now: float, *, noted: Collection[int] = ()
) -> None:
    """Set the states of requests from their answers, as for the requests of a batch.

    A request whose answer asks for another turn becomes *continuing*; any other becomes final. The
    notes of their batches are out of date, apart from those of ``noted``.
    """
    if not ended:
        return
    charges.settle_calls(tx, [(end.batch_id, end.seq, end.cost) for end in ended])
    by_batch: dict[int, list[NewResult]] = {}
    for end in ended:
        if end.result is not None:
            by_batch.setdefault(end.batch_id, []).append(end.result)
        if end.may_be_paid and end.state is not RequestState.LOST:
            _remember_billed(tx, end.seq, end.batch_id)
        if end.state is RequestState.LOST:
            # An error response to a call that may be billed is kept with the request.
            sending = None if end.result is None else end.result.sending
            transitions.lose(tx, _under_way(end.seq, end.batch_id), answered_by=sending)
    for batch_id, answers in by_batch.items():
        add_results(tx, answers)
        of_these = [answer.request_seq for answer in answers]
        tx.execute(
            update(results)
            .where(results.c.request_seq.in_(of_these), results.c.batch_id == batch_id)
            .values(answered=func.coalesce(results.c.answered, now))
        )
        joined = and_(
            requests.c.seq.in_(of_these),
            _batch == batch_id,
            requests.c.state == RequestState.PACKED,
            results.c.request_seq == requests.c.seq,
            literal_column("+results.batch_id") == batch_id,
            # An earlier call may have failed and left its line here.
            results.c.sending == requests.c.sendings,
        )
        # Requests to be retried were queued again above, so these results are the last ones.
        transitions.conclude(tx, joined, may_retry=False)
    tx.execute(
        update(batches)
        .where(batches.c.id.in_({end.batch_id for end in ended}))
        .values(
            ended=now,
            collected=now,
            note=case((batches.c.id.in_(noted), batches.c.note), else_=null()),
        )
    )


def forgotten(tx: Connection, workspace_id: int, now: float) -> int:
    """End as lost the requests that a restored ledger may have sent live; return their number.

    The API keeps no list of live calls, so their outcome cannot be looked up. Each request counts
    as a lost call of today, so that budgets keep what it may have cost.
    """
    # The next turn of a conversation between two turns may have been sent.
    between = requests.c.state == RequestState.CONTINUING
    unsent = list(
        tx.scalars(
            select(batches.c.id).where(
                batches.c.state == BatchState.PACKED, of_workspace(batches.c.lane_id, workspace_id)
            )
        )
    )
    waits = or_(
        requests.c.state == RequestState.QUEUED,
        between,
        and_(is_held(), ~is_double()),
        and_(requests.c.state == RequestState.PACKED, requests.c.batch_id.in_(unsent)),
    )
    gone = and_(
        of_workspace(requests.c.lane_id, workspace_id),
        waits,
        requests.c.run_id.in_(select(runs.c.id).where(may_be_live())),
    )
    found = tx.execute(
        select(requests.c.run_id, requests.c.lane_id, func.count())
        .where(gone)
        .group_by(requests.c.run_id, requests.c.lane_id)
    ).all()
    for run_id, lane_id, members in found:
        mine = and_(gone, requests.c.run_id == run_id, requests.c.lane_id == lane_id)
        transitions.lose(
            tx,
            mine,
            counts=False,
            batch_id=_new_holder(tx, lane_id, run_id, now, members),
            answered_by=None,
            # Computed again at the live price if it can have been only one call.
            reserve=case((may_take_turns(), -1), else_=None),
        )
    for batch_id in unsent if found else ():
        recount(tx, batch_id)
    return sum(row[2] for row in found)


def may_take_turns() -> ColumnElement[bool]:
    """Return the condition for requests that may need more than one call.

    Applies while params hold those of the first call. Only tools, and answers whose format is
    checked, ask for another turn.
    """
    offers_tools = exists().where(
        params.c.request_seq == requests.c.seq, contains(params.c.body, b'"tools":')
    )
    return exists().where(
        runs.c.id == requests.c.run_id,
        runs.c.converses,
        or_(offers_tools, runs.c.validation_attempts > 1),
    )


def under_way(tx: Connection, run_id: str | None) -> list[Record]:
    """Return the live calls under way, including those of ended processes, by run.

    Of all runs, or only of this one. Each row: ``workspace_id``, ``run_id``, ``members`` (number of
    calls).
    """
    query = (
        select(lanes.c.workspace_id, requests.c.run_id, func.count().label("members"))
        .join(batches, batches.c.lane_id == lanes.c.id)
        .join(requests, requests.c.batch_id == batches.c.id)
        .where(batches.c.state == BatchState.LIVE, requests.c.state == RequestState.PACKED)
        .group_by(lanes.c.workspace_id, requests.c.run_id)
        .order_by(requests.c.run_id)
    )
    return list(tx.execute(query if run_id is None else query.where(requests.c.run_id == run_id)))


def interrupted(tx: Connection, workspace_id: int) -> int:
    """End calls that were under way when their driver ended as lost; return their number."""
    held = select(batches.c.id).where(
        batches.c.state == BatchState.LIVE, of_workspace(batches.c.lane_id, workspace_id)
    )
    left = and_(requests.c.batch_id.in_(held), requests.c.state == RequestState.PACKED)
    found = tx.execute(select(requests.c.batch_id, requests.c.seq).where(left)).all()
    if not found:
        return 0
    charges.settle_calls(tx, [(batch_id, seq, None) for batch_id, seq in found])
    return transitions.lose(tx, left)
