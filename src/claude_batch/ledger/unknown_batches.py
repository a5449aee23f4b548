"""Transactions of unknown sendings, and late answers to requests that left one undecided.

An *unknown* batch keeps its requests until its outcome is decided. Its POST may still be answered
after a request left it, because the user had the request sent again or given up. `former_members`
records which request left which batch, so that a late line finds its request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from claude_batch.core.states import BatchState, CandidateState, RequestState
from claude_batch.ledger import charges, run_deadlines, transitions
from claude_batch.ledger.batch_contents import batch, recount, withdraw_cancelled
from claude_batch.ledger.conversations import continuing_counts
from claude_batch.ledger.held_requests import answer_lost_doubles
from claude_batch.ledger.portable_sql import among, count_rows, update_row, upsert
from claude_batch.ledger.queries import unfinished
from claude_batch.ledger.schema import (
    batches,
    candidates,
    former_members,
    lanes,
    requests,
    results,
    runs,
    workspaces,
)
from claude_batch.ledger.store import Record
from claude_batch.ledger.transitions import any_former

# Late answers -------------------------------------------------------------------------------------


def remember_former(tx: Connection, left: Select[Any, Any, Any]) -> None:
    """Record requests that leave a batch undecided; ``left`` selects batch, row number, sending."""
    tx.execute(
        upsert(former_members)
        .from_select(["batch_id", "request_seq", "sending"], left)
        .on_conflict_do_nothing()
    )


def give_answers(tx: Connection, batch_id: int, *, contradicted: bool) -> None:
    """End requests that left a batch with its late lines, as `transitions.ends_late` allows."""
    fill(tx, batch_id, transitions.former_of(batch_id), contradicted=contradicted)


def fill(tx: Connection, batch_id: int, *which: ColumnElement[bool], contradicted: bool) -> None:
    """End requests with late lines of a collected batch, as `transitions.ends_late` allows.

    For the others, the line is kept and its cost counted. Lost doubles of them end too.
    """
    line = and_(results.c.request_seq == requests.c.seq, results.c.batch_id == batch_id)
    answered = and_(line, *which, transitions.ends_late(contradicted=contradicted))
    concerned = list(tx.scalars(select(requests.c.run_id).distinct().where(answered)))
    if not concerned:
        return
    ended = [run_id for run_id in concerned if not unfinished(tx, run_id)]
    # Only a queued request has not counted this attempt yet.
    counted = case((requests.c.state == RequestState.QUEUED, 1), else_=0)
    transitions.conclude(tx, answered, may_retry=False, reopens=True, attempts=counted)
    answer_lost_doubles(tx, batch_id)
    # The delivered output shows "lost"; the new answers require another delivery.
    tx.execute(update(runs).where(runs.c.id.in_(concerned)).values(delivered=None))
    for run_id in ended:
        if continuing_counts(tx, run_id).all:
            run_deadlines.forget(tx, run_id)


def give_known_answers(tx: Connection, ended: Any) -> int:
    """Apply known answers of other sendings to requests that failed, or were lost.

    These requests are then not sent and billed again.
    """
    stored = results.alias()
    first = (
        select(func.min(stored.c.sending))
        .where(
            stored.c.request_seq == requests.c.seq,
            transitions.can_answer(stored),
        )
        .correlate(requests)
        .scalar_subquery()
    )
    answer = results.alias()
    which = and_(ended, answer.c.request_seq == requests.c.seq, answer.c.sending == first)
    transitions.forget_cancellation(tx, which)  # a conversation goes on from its answer
    return transitions.conclude(tx, which, answer=answer, may_retry=False, reopens=True).total()


def _lost_in_batch() -> ColumnElement[bool]:
    collected = batches.c.state == BatchState.COLLECTED
    in_it = exists().where(batches.c.id == requests.c.batch_id, collected)
    return and_(requests.c.state == RequestState.LOST, in_it)


def fetchable_lost(tx: Connection, run_id: str) -> int:
    """Return how many lost requests of a run have a batch whose results can be fetched again."""
    return count_rows(tx, requests, requests.c.run_id == run_id, _lost_in_batch())


def lacks_result() -> ColumnElement[bool]:
    """Return the condition for requests whose batch has ended without a stored result of theirs."""
    lost = _lost_in_batch()
    waiting = and_(
        requests.c.state == RequestState.PACKED,
        exists().where(
            batches.c.id == requests.c.batch_id,
            batches.c.state == BatchState.ENDED,
            batches.c.missing.is_not(None),
        ),
        transitions.has_no_result(requests.c.batch_id),
    )
    return or_(lost, waiting)


_FORMER_LACKS = transitions.has_no_result(former_members.c.batch_id)


def missing_requests(tx: Connection, run_id: str) -> int:
    """Return how many requests of a run are lost in a collected batch, or still lack its result."""
    return count_rows(tx, requests, requests.c.run_id == run_id, lacks_result())


def _lacking(run_id: str) -> Subquery:
    """Return the sendings of a run whose results are missing: the request and the batch of each.

    Includes sendings of requests that left their batch. A late result of these is kept as well.
    """
    mine = requests.c.run_id == run_id
    here = select(requests.c.seq, requests.c.batch_id).where(mine, lacks_result())
    former = former_members.join(requests, requests.c.seq == former_members.c.request_seq)
    former = former.join(batches, batches.c.id == former_members.c.batch_id)
    ended = or_(
        batches.c.state == BatchState.COLLECTED,
        and_(batches.c.state == BatchState.ENDED, batches.c.missing.is_not(None)),
    )
    left = select(requests.c.seq, batches.c.id).select_from(former)
    return here.union(left.where(mine, ended, _FORMER_LACKS)).subquery()


def missing_sendings(tx: Connection, run_id: str) -> int:
    """Return how many sendings of a run's requests are in an ended batch without their result."""
    return count_rows(tx, _lacking(run_id))


def incomplete_batches(tx: Connection, run_id: str) -> list[Record]:
    """Return the ended batches that lack results of a run, oldest first.

    Includes batches whose missing results belong to requests that were sent again on order since.
    """
    found = select(batches).where(batches.c.id.in_(select(_lacking(run_id).c.batch_id)))
    return list(tx.execute(found.order_by(batches.c.id)))


def _answered_earlier(tx: Connection, batch_id: int) -> ColumnElement[bool] | None:
    """Return the condition for a batch's requests of which an earlier sending has succeeded.

    Only requests that left another batch undecided can have been sent before. None if there are
    none.
    """
    if not any_former(tx):
        return None
    sent_before = (
        select(former_members.c.request_seq)
        .join(requests, requests.c.seq == former_members.c.request_seq)
        .where(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    )
    return and_(
        requests.c.seq.in_(sent_before),
        results.c.request_seq == requests.c.seq,
        results.c.batch_id != batch_id,
        transitions.can_answer(),
    )


def has_earlier_answers(tx: Connection, batch_id: int) -> bool:
    """Return whether an earlier sending of any of a batch's requests has succeeded."""
    answered = _answered_earlier(tx, batch_id)
    return answered is not None and tx.scalar(select(requests.c.seq).where(answered)) is not None


def take_earlier_answers(tx: Connection, batch_id: int) -> int:
    """End a batch's requests of which an earlier sending has succeeded; return their number."""
    answered = _answered_earlier(tx, batch_id)
    if answered is None:
        return 0
    # A conversation goes on from it, under a number that no POST of this batch had.
    sent = transitions.sent_with(batch_id)
    ended = transitions.conclude(tx, answered, may_retry=False, reopens=True, sendings=sent).total()
    if ended and batch(tx, batch_id).state == BatchState.PACKED:
        out = and_(requests.c.batch_id == batch_id, requests.c.state != RequestState.PACKED)
        transitions.leave_batch(tx, out)
        recount(tx, batch_id)
    return ended


# Unknown batches ----------------------------------------------------------------------------------


_UNKNOWN = (
    select(batches)
    .join(lanes, lanes.c.id == batches.c.lane_id)
    .where(batches.c.state == BatchState.UNKNOWN, lanes.c.workspace_id == bindparam("workspace"))
    .order_by(batches.c.id)
)


def unknown_batches(tx: Connection, workspace_id: int) -> list[Record]:
    """Return the unknown batches of a workspace, oldest first."""
    return list(tx.execute(_UNKNOWN, {"workspace": workspace_id}))


def is_unknown(tx: Connection, batch_id: int) -> bool:
    """Return True if the batch has not been decided meanwhile."""
    return batch(tx, batch_id).state == BatchState.UNKNOWN


def may_be_answered(tx: Connection, batch_id: int, posts: int) -> bool:
    """Return whether a batch exists whose latest sending is this one, and is not decided yet."""
    undecided = batches.c.state.in_((BatchState.SUBMITTING, BatchState.UNKNOWN))
    this = (batches.c.id == batch_id) & (batches.c.posts == posts)
    return tx.scalar(select(batches.c.id).where(this, undecided)) is not None


def snapshot_of(row: Record) -> frozenset[str]:
    """Return the ids that the API's list held before the POST."""
    return frozenset(json.loads(row.snapshot or "[]"))


def known_remote_ids(
    tx: Connection, workspace_id: int, ids: Collection[str], *, before: float = math.inf
) -> set[str]:
    """Return those of these API batch ids that the ledger has accounted for.

    Only those that were submitted before a time, if one is given.
    """
    known = (
        select(batches.c.remote_id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(lanes.c.workspace_id == workspace_id)
    )
    if before < math.inf:
        known = known.where(batches.c.submitted < before)
    return {row.remote_id for row in among(tx, known, batches.c.remote_id, ids)}


class OwnBatches(msgspec.Struct, frozen=True):
    """Which batches at the API are the ledger's."""

    known: frozenset[str]
    """Ids of those that are."""
    possible: frozenset[str]
    """Ids of those that a sending with an unknown outcome may have become."""
    open_since: float | None
    """The API's time since which a new batch may be a sending's; None if all have an outcome."""


_OPEN_SINCE = select(func.min(func.coalesce(batches.c.server_time, batches.c.intended))).where(
    or_(
        batches.c.state == BatchState.UNKNOWN,
        and_(batches.c.state == BatchState.SUBMITTING, batches.c.armed.is_not(None)),
    )
)


def own_batches(tx: Connection, ids: Collection[str]) -> OwnBatches:
    """Return which of these ids of the API are batches of the ledger, in whatever workspace."""
    undecided = select(candidates.c.remote_id).where(candidates.c.state != CandidateState.FOREIGN)
    known, possible = (
        frozenset(row.remote_id for row in among(tx, query, query.selected_columns[0], ids))
        for query in (select(batches.c.remote_id), undecided)
    )
    return OwnBatches(known, possible - known, tx.scalar(_OPEN_SINCE))


def candidates_of(tx: Connection, batch_id: int) -> list[Record]:
    """Return every candidate of an unknown batch, including decided ones."""
    return list(
        tx.execute(
            select(candidates)
            .where(candidates.c.batch_id == batch_id)
            .order_by(candidates.c.seen, candidates.c.remote_id)
        )
    )


def rivals(tx: Connection, batch_id: int) -> int:
    """Return how many other POSTs of equally many requests have no response, or none yet."""
    return count_rows(
        tx,
        batches,
        batches.c.id != batch_id,
        batches.c.request_count == batch(tx, batch_id).request_count,
        batches.c.state.in_((BatchState.SUBMITTING, BatchState.UNKNOWN)),
    )


def add_candidate(tx: Connection, batch_id: int, remote_id: str, now: float) -> None:
    """Store a batch at the API that may be the result of a POST with an unknown outcome."""
    tx.execute(
        upsert(candidates).values(
            batch_id=batch_id, remote_id=remote_id, state=CandidateState.OPEN, seen=now
        )
    )


def note_candidate(
    tx: Connection,
    batch_id: int,
    remote_id: str,
    *,
    state: CandidateState,
    note: str | None = None,
    not_found_since: float | None = None,
    unread: tuple[float, float] | None = None,
) -> None:
    """Store what was learned about a candidate.

    ``unread``: its results were fetched completely and hold none of our ids; since when that is so,
    and when it was last seen, by the server's clock.
    """
    gap: dict[str, Any] = {}
    if unread is not None:
        since, seen = unread
        gap = {
            "fetches": candidates.c.fetches + 1,
            "missing_since": since,
            "missing_seen": seen,
        }
    tx.execute(
        update(candidates)
        .where(candidates.c.batch_id == batch_id, candidates.c.remote_id == remote_id)
        .values(
            state=state,
            note=note,
            not_found_since=not_found_since,
            **gap,
        )
    )


def note_look(
    tx: Connection,
    batch_id: int,
    *,
    next_check: float,
    settling_from: float | None = None,
    settled: float | None = None,
    note: str | None = None,
) -> None:
    """Record a walk of the API's list for an unknown batch. What is None stays unchanged."""
    seen = {"settling_from": settling_from, "settled": settled, "note": note}
    changed = {name: value for name, value in seen.items() if value is not None}
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.UNKNOWN)
        .values(next_check=next_check, **changed)
    )


def owner_of(tx: Connection, request_id: str, sending: int) -> int | None:
    """Return the batch whose POST carried a request under this number; None if it is unknown."""
    row = tx.execute(
        select(requests.c.seq, requests.c.batch_id, requests.c.sendings).where(
            requests.c.id == request_id
        )
    ).first()
    if row is None:
        return None
    former_batch: int | None = tx.scalar(
        select(former_members.c.batch_id).where(
            former_members.c.request_seq == row.seq, former_members.c.sending == sending
        )
    )
    if former_batch is not None:
        return former_batch
    return row.batch_id if sending > row.sendings else None


def adopt(
    tx: Connection, batch_id: int, remote_id: str, *, how: str, submitted: float, now: float
) -> None:
    """Adopt a batch at the API as the result of the POST: ``proved``, or ``assumed``."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.UNKNOWN)
        .values(
            state=BatchState.IN_PROGRESS,
            remote_id=remote_id,
            adopted=how,
            submitted=submitted,
            next_check=now,
            silent=0,
            note=None,
            not_found_since=None,
        )
    )
    note_candidate(tx, batch_id, remote_id, state=CandidateState.OURS)


def confirm(tx: Connection, batch_id: int) -> None:
    """Mark an assumed batch as proved by its results."""
    update_row(tx, batches, batch_id, adopted="proved")


def disown(
    tx: Connection, batch_id: int, remote_id: str, *, note: str, next_check: float, seen: float
) -> bool:
    """Release a batch adopted without proof whose results are not ours; the POST is unknown again.

    ``seen``: the time by the server's clock. Returns whether the batch is another client's: one
    fetch may be a wrong entry of a cache.
    """
    mine = and_(candidates.c.batch_id == batch_id, candidates.c.remote_id == remote_id)
    is_foreign = bool(tx.scalar(select(candidates.c.fetches).where(mine)))
    update_row(
        tx,
        batches,
        batch_id,
        state=BatchState.UNKNOWN,
        remote_id=None,
        adopted=None,
        submitted=None,
        ended=None,
        counts=None,
        # The missing results, and their time, concern the other client's batch.
        fetches=0,
        missing=None,
        missing_since=None,
        missing_seen=None,
        missing_until=None,
        not_found_since=None,
        next_check=next_check,
        note=note,
    )
    state = CandidateState.FOREIGN if is_foreign else CandidateState.OPEN
    note_candidate(tx, batch_id, remote_id, state=state, note=note, unread=(seen, seen))
    return is_foreign


def disprove(tx: Connection, batch_id: int, *, note: str) -> int:
    """Record that the POST was not accepted; requests that are still wanted wait to be sent again.

    Returns how many POSTs of the batch in a row ended this way.
    """
    silent: int = tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.UNKNOWN)
        .values(
            state=BatchState.PACKED,
            armed=None,
            note=note,
            silent=batches.c.silent + 1,
            unknown_since=None,
            next_check=None,
        )
        .returning(batches.c.silent)
    ).scalar_one()
    # Nothing of it is at the API, so no late line can arrive for requests that left it.
    tx.execute(delete(former_members).where(former_members.c.batch_id == batch_id))
    given_up = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.LOST)
    transitions.leave_batch(tx, given_up)
    withdraw_cancelled(tx, batch_id)
    transitions.reserve_anew(tx, batch_id)
    recount(tx, batch_id)
    return silent


def unresolve(tx: Connection, batch_id: int, *, note: str) -> None:
    """Mark the outcome of the POST as permanently unknown; its requests are lost."""
    give_up(tx, batch_id)
    update_row(tx, batches, batch_id, state=BatchState.UNRESOLVED, note=note, next_check=None)
    charges.leave_in_doubt(tx, batch_id)


def resubmit(tx: Connection, batch_id: int, *, now: float, run_id: str | None = None) -> int:
    """Queue an unknown batch's requests again, at the risk of paying twice; return their number.

    ``run_id``: only the requests of this run.
    """
    # Requests that are cancelled, or that their deadline would end unsent, are not sent again. They
    # stay in the batch and end with its outcome.
    ends = or_(runs.c.cancelled.is_not(None), run_deadlines.sends_nothing(now))
    stays = exists().where(runs.c.id == requests.c.run_id, ends)
    mine, sendings = _undecided(tx, batch_id, run_id)
    mine = and_(mine, ~or_(requests.c.cancelled, stays))
    remember_former(tx, select(requests.c.batch_id, requests.c.seq, sendings).where(mine))
    return transitions.unpack(tx, mine, sendings=sendings, due=now)


def give_up(tx: Connection, batch_id: int, *, run_id: str | None = None) -> int:
    """End an unknown batch's requests as lost; return their number."""
    mine, sendings = _undecided(tx, batch_id, run_id)
    remember_former(tx, select(requests.c.batch_id, requests.c.seq, sendings).where(mine))
    return transitions.lose(tx, mine, sendings=sendings)


def _undecided(
    tx: Connection, batch_id: int, run_id: str | None
) -> tuple[ColumnElement[bool], ColumnElement[int]]:
    """Return the condition for the requests that wait in a batch, and their sendings.

    The sendings include those of the batch.
    """
    mine = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    if run_id is not None:
        mine = and_(mine, requests.c.run_id == run_id)
    return mine, requests.c.sendings + batch(tx, batch_id).posts


def resubmit_lost(tx: Connection, run_id: str, now: float) -> int:
    """Queue a run's lost requests again, at the risk of paying twice; return their number.

    A cancelled run, which has ended, is open again then, and so is a cancelled call.
    """
    lost = and_(requests.c.run_id == run_id, requests.c.state == RequestState.LOST)
    # A collected batch may still bring the line of the earlier sending. A live call brings nothing
    # more, but a budget that is set later counts what it may have cost.
    remember_former(
        tx,
        select(requests.c.batch_id, requests.c.seq, requests.c.sendings)
        .join(batches, batches.c.id == requests.c.batch_id)
        .where(lost, batches.c.state.in_((BatchState.COLLECTED, BatchState.LIVE))),
    )
    had_ended = not unfinished(tx, run_id)
    # A live conversation is lost between two turns if its ledger was restored. Its next turn is
    # sent, because the answer before it is stored.
    count = give_known_answers(tx, lost)
    transitions.forget_cancellation(tx, lost)
    count += transitions.ask_again(tx, lost, due=now, forgive=False)
    if count:
        run_deadlines.reopen_run(tx, run_id, now, had_ended=had_ended)
    return count


def undecided(
    tx: Connection, run_id: str | None = None, *, undriven: Collection[int] = ()
) -> list[Record]:
    """Return the unknown batches that hold requests of a run, or of any run.

    ``undriven``: workspaces without a driver. Batches that were being sent there are unknown too;
    the next driver marks them so. Each row has the batch's columns, ``run_id`` and ``members``
    (number of requests of the run).
    """
    interrupted = and_(
        batches.c.state == BatchState.SUBMITTING,
        batches.c.armed.is_not(None),
        lanes.c.workspace_id.in_(undriven),
    )
    query = (
        select(batches, requests.c.run_id, func.count().label("members"))
        .join(requests, requests.c.batch_id == batches.c.id)
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(
            requests.c.state == RequestState.PACKED,
            or_(batches.c.state == BatchState.UNKNOWN, interrupted),
        )
        .group_by(batches.c.id, requests.c.run_id)
        .order_by(batches.c.id, requests.c.run_id)
    )
    return list(tx.execute(query if run_id is None else query.where(requests.c.run_id == run_id)))


def runs_with_lost(tx: Connection, run_id: str | None) -> list[Record]:
    """Return the runs that have lost requests, or only this run: ``run_id``, ``members``."""
    query = (
        select(requests.c.run_id, func.count().label("members"))
        # A literal, because the few lost requests have an index of their own.
        .where(requests.c.state == literal_column("'lost'"))
        .group_by(requests.c.run_id)
        .order_by(requests.c.run_id)
    )
    return list(tx.execute(query if run_id is None else query.where(requests.c.run_id == run_id)))


def open_candidates(tx: Connection, batch_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of open candidates of each of these batches.

    Batches without any are left out.
    """
    rows = tx.execute(
        select(candidates.c.batch_id, func.count())
        .where(
            candidates.c.batch_id.in_(batch_ids),
            candidates.c.state == CandidateState.OPEN,
        )
        .group_by(candidates.c.batch_id)
    )
    return {row[0]: row[1] for row in rows}


def ensure_explained_until(tx: Connection, workspace_id: int, newest: float) -> float:
    """Return the API's time until which the workspace's batches count as there already.

    The first call stores ``newest``, when the newest of them can have been created. Used with
    ``exclusive_workspace``.
    """
    known: float | None = tx.scalar(
        select(workspaces.c.explained_until).where(workspaces.c.id == workspace_id)
    )
    if known is None:
        update_row(tx, workspaces, workspace_id, explained_until=newest)
    return newest if known is None else known
