"""Transactions of polling and collection: from a batch in progress to final requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    update,
)

from claude_batch.core.outcome import Disposition, Next, Reason
from claude_batch.core.states import AT_API, OPEN_AT_API, BatchState, RequestState
from claude_batch.ledger import transitions
from claude_batch.ledger.charges import charged_batches, settle, settle_stored
from claude_batch.ledger.portable_sql import count_rows, update_row
from claude_batch.ledger.schema import (
    batches,
    lanes,
    requests,
    results,
)
from claude_batch.ledger.store import (
    Record,
    joining_many,
    next_stamp,
)
from claude_batch.ledger.stored_results import Stored, stored_counts
from claude_batch.ledger.transitions import REUSED


class Gap(NamedTuple):
    """Results of an ended batch that a complete fetch lacked. Times are server times."""

    missing: int
    """Number of missing lines. If every request has a line: the number of successes the lines
    hide.
    """
    since: float
    """Time of the first complete fetch that lacked results."""
    seen: float
    """Time of the last complete fetch that lacked results."""
    until: float
    """Time after which results that are still missing count as lost."""


# What follows is asked in every pass of a driver, so the statements are built once.
_IN_LANE = and_(lanes.c.id == batches.c.lane_id, lanes.c.workspace_id == bindparam("workspace"))
_NOW: ColumnElement[float] = bindparam("now", type_=Float)
_IS_DUE = or_(
    batches.c.next_check.is_(None),
    batches.c.next_check <= _NOW,
    # Planned before the clock jumped back.
    batches.c.next_check > _NOW + batches.c.max_poll_interval + 1,
)
"""The next check, fetch or cancellation of a batch is due."""

_AT_THE_API = (
    select(batches)
    .join(lanes, _IN_LANE)
    .where(batches.c.state.in_(OPEN_AT_API))
    .order_by(batches.c.id)
)
_ANY_CHECK_DUE = (
    select(batches.c.id)
    .join(lanes, _IN_LANE)
    .where(batches.c.state.in_(OPEN_AT_API), _IS_DUE)
    .limit(1)
)
_ENDED = (
    select(batches.c.id)
    .join(lanes, _IN_LANE)
    .where(batches.c.state == BatchState.ENDED, _IS_DUE)
    .order_by(batches.c.id)
)
_NEXT_CHECK = (
    select(func.min(case((_IS_DUE, 0.0), else_=batches.c.next_check)))
    .join(lanes, _IN_LANE)
    .where(batches.c.state.in_((*AT_API, BatchState.UNKNOWN)))
)
_TO_CANCEL = (
    select(batches)
    .join(lanes, _IN_LANE)
    .where(
        batches.c.state == BatchState.IN_PROGRESS,
        batches.c.cancel_requested.is_not(None),
        # A batch adopted without proof may belong to another client.
        func.coalesce(batches.c.adopted, "") != "assumed",
        _IS_DUE,
    )
)


def at_the_api(tx: Connection, workspace_id: int) -> list[Record]:
    """Return the batches that the API has accepted and, as far as known, not yet ended."""
    return list(tx.execute(_AT_THE_API, {"workspace": workspace_id}))


def any_check_due(tx: Connection, workspace_id: int, now: float) -> bool:
    """Return whether a batch of `at_the_api` is due for a check, without reading them all."""
    return tx.scalar(_ANY_CHECK_DUE, {"workspace": workspace_id, "now": now}) is not None


def ended_batches(tx: Connection, workspace_id: int, now: float) -> list[int]:
    """Return the ended batches whose results are due to be fetched."""
    return list(tx.scalars(_ENDED, {"workspace": workspace_id, "now": now}))


def next_check_of(tx: Connection, workspace_id: int, now: float) -> float | None:
    """Return when a batch of a workspace next needs a check, a fetch or a cancellation.

    None if no batch does. A time that is over is at most ``now``.
    """
    return tx.scalar(_NEXT_CHECK, {"workspace": workspace_id, "now": now})


def to_cancel(tx: Connection, workspace_id: int, now: float) -> list[Record]:
    """Return the batches in progress whose cancellation is due."""
    return list(tx.execute(_TO_CANCEL, {"workspace": workspace_id, "now": now}))


class Check(NamedTuple):
    """The result of a check of a batch that has not ended, as its row has it."""

    batch_id: int
    state: BatchState
    next_check: float
    not_found_since: float | None = None
    note: str | None = None


_OF_EACH = update(batches).where(batches.c.id == bindparam("batch_id"))
"""Each execution adds the columns that its values name."""


def note_checks(tx: Connection, checks: Sequence[Check]) -> None:
    """Record the results of checks, and the times of the next ones."""
    if checks:
        tx.execute(_OF_EACH, [check._asdict() for check in checks])


_MARK_ENDED = _OF_EACH.values(
    state=BatchState.ENDED, next_check=None, note=None, not_found_since=None
)


def mark_ended(tx: Connection, ends: Sequence[tuple[int, str | None, float]]) -> None:
    """Mark batches as ended by the API: each one's id, request_counts as JSON, and time.

    The counts are None if the API gave none that can be read.
    """
    if ends:
        names = ("batch_id", "counts", "ended")
        tx.execute(_MARK_ENDED, [dict(zip(names, end, strict=True)) for end in ends])


def note_counts(tx: Connection, batch_id: int, counts: str) -> None:
    """Record the API's request_counts of an ended batch, as JSON."""
    update_row(tx, batches, batch_id, counts=counts)


def note_fetch(
    tx: Connection,
    batch_id: int,
    *,
    gap: Gap | None,
    next_check: float,
    note: str,
    not_found_since: float | None,
) -> None:
    """Record an incomplete fetch of results, which is repeated at ``next_check``.

    ``gap`` describes the missing results. It is None if the fetch broke off, because then nothing
    is proved missing.
    """
    seen: dict[str, Any] = {}
    if gap is not None:
        seen = {
            "fetches": batches.c.fetches + 1,
            "missing": gap.missing,
            "missing_since": gap.since,
            "missing_seen": gap.seen,
            "missing_until": gap.until,
        }
    found = {"next_check": next_check, "note": note, "not_found_since": not_found_since}
    update_row(tx, batches, batch_id, **found, **seen)


def give_successes(tx: Connection, batch_id: int) -> int:
    """Finish the requests of an ended batch whose success is stored; return their number.

    The batch still lacks results. What the stored ones have cost is settled. Its failures are not
    judged yet, because a missing line may contradict them. Nothing contradicts a success.
    """
    given = _give(tx, _with_success(batch_id), batch_id)
    settle_stored(tx, batch_id)
    return given


SLICE = 10_000
"""Results of a large batch that one transaction gives to their requests."""


def give_slice(tx: Connection, batch_id: int, after: int, now: float) -> int | None:
    """Finish the requests with stored successes in one slice of a complete batch.

    A slice has `SLICE` results, in the order of the requests' row numbers, of which ``after`` is
    the last of the slice before, or 0. Returns the last of this one; None, and does nothing, if at
    most a slice is left. Call it in transactions of their own until then, so that other writers
    need not wait for a whole batch, and finish the batch with `finish_collections`.
    """
    mine = and_(results.c.batch_id == batch_id, results.c.request_seq > after)
    end = select(results.c.request_seq).where(mine, results.c.sending > REUSED)
    last = tx.scalar(end.order_by(results.c.request_seq).offset(SLICE - 1).limit(1))
    if last is None:
        return None
    if not after:
        # It marks the batch as partly given, see `_is_partly_given`.
        fetch_soon(tx, batch_id, now)
        settle_stored(tx, batch_id)
    # Both columns, because each database begins with another table.
    within = (column.between(after + 1, last) for column in (requests.c.seq, results.c.request_seq))
    _give(tx, and_(_with_success(batch_id), *within), batch_id)
    return last


def _with_success(batch_id: int) -> Any:
    return and_(_with_result([batch_id]), results.c.outcome == RequestState.SUCCEEDED)


def _give(tx: Connection, which: Any, batch_id: int) -> int:
    sendings = transitions.sent_with(batch_id)
    with joining_many(tx):
        return transitions.conclude(tx, which, sendings=sendings).total()


def fetch_soon(tx: Connection, batch_id: int, now: float) -> None:
    """Make an ended batch due for a fetch now."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.ENDED)
        .values(next_check=now)
    )


def without_result(tx: Connection, batch_id: int) -> int:
    """Return how many requests of an ended batch would take a result of it that is not stored.

    Those that the user gave up are among them: a late success still ends them. So are those that
    have left the batch to be sent again, until they are answered: a late success may come first, or
    save a further sending. A cancellation, or a deadline, may have ended them as lost meanwhile.
    """
    own = and_(
        requests.c.batch_id == batch_id,
        requests.c.state.in_((RequestState.PACKED, RequestState.LOST)),
    )
    unanswered = requests.c.state.in_(
        (RequestState.QUEUED, RequestState.HELD, RequestState.PACKED, RequestState.LOST)
    )
    left = and_(transitions.former_of(batch_id), unanswered)
    lacking = transitions.has_no_result(batch_id)
    # Two counts, because each has an index of its own.
    return sum(count_rows(tx, requests, which, lacking) for which in (own, left))


class Collected(msgspec.Struct, frozen=True):
    """The outcomes of a batch's requests when it was collected."""

    given: int
    """Requests that were final before the batch was complete."""
    steps: Counter[Next]
    """The other requests, counted by the next step."""
    account_line: bytes | None
    """One raw line with an account error; None if there is none."""

    @property
    def final(self) -> int:
        """Number of requests with a result that are final."""
        ended = (count for step, count in self.steps.items() if step.state.is_final)
        return self.given + sum(ended) - self.lost

    @property
    def lost(self) -> int:
        """Number of lost requests."""
        return sum(count for step, count in self.steps.items() if step.state is RequestState.LOST)

    @property
    def retried(self) -> Counter[Reason]:
        """Requests that were queued again, counted by reason."""
        reasons: Counter[Reason] = Counter()
        for step, count in self.steps.items():
            if step.retried is not None:
                reasons[step.retried] += count
        return reasons


class Complete(NamedTuple):
    """A batch of which nothing more is fetched, and what is known of its results."""

    batch_id: int
    stored: Stored
    """The result of `stored_counts`."""
    missing_may_be_billed: bool
    """Whether a request without a line may have been billed, so that it is not sent again."""
    contradicted: bool = False
    """Whether some line hides a success.

    A failure that would be retried may then have been billed, so it becomes ``lost``."""


def finish_collections(
    tx: Connection, complete: Sequence[Complete], now: float
) -> dict[int, Collected]:
    """Move every request of some batches to its final state, or queue it again.

    Several batches take no more statements than one, so they should be small.
    """
    ids = [each.batch_id for each in complete]
    of = select(batches.c.id, batches.c.posts, batches.c.next_check).where(batches.c.id.in_(ids))
    rows = {row.id: row for row in tx.execute(of)}
    left = {batch_id for batch_id, row in rows.items() if _is_partly_given(row)}
    charged = charged_batches(tx, ids)
    given: dict[int, int] = {}
    account_lines: dict[int, bytes | None] = {}
    alike: dict[tuple[bool, bool, int], list[int]] = {}
    for each in complete:
        batch_id = each.batch_id
        if batch_id in charged:
            settle(
                tx,
                batch_id,
                lost=each.missing_may_be_billed,
                contradicted=each.contradicted,
                left=batch_id in left,
            )
        if batch_id in left:
            given[batch_id] = _given_before(tx, batch_id)
        if each.stored.has_account_error and not each.contradicted:
            account_lines[batch_id] = _account_line(tx, batch_id)
        of_kind = each.missing_may_be_billed, each.contradicted, rows[batch_id].posts
        alike.setdefault(of_kind, []).append(batch_id)
    # One stamp: results in the order of completion have the requests of a batch in input order.
    stamp = next_stamp(tx)
    steps: dict[int, Counter[Next]] = {batch_id: Counter() for batch_id in ids}
    for (may_be_billed, contradicted, posts), members in alike.items():
        how: Any = {"contradicted": contradicted, "may_be_paid": may_be_billed}
        how |= {"sendings": requests.c.sendings + posts, "due": now, "stamp": stamp}
        # The requests that wait after the first of these have no result.
        for which, answer in ((_with_result(members), results), (_waiting(members), None)):
            if len(members) > 1:
                moved = transitions.conclude_batches(tx, which, answer=answer, **how)
            else:
                with joining_many(tx):
                    moved = {members[0]: transitions.conclude(tx, which, answer=answer, **how)}
            for batch_id, counted in moved.items():
                steps[batch_id] += counted
    tx.execute(
        update(batches)
        .where(batches.c.id.in_(ids))
        .values(state=BatchState.COLLECTED, collected=now, next_check=None)
    )
    return {
        batch_id: Collected(given.get(batch_id, 0), steps[batch_id], account_lines.get(batch_id))
        for batch_id in ids
    }


def _is_partly_given(row: Any) -> bool:
    """Return whether some results of an ended batch may have been given to their requests already.

    Conversations among those requests have left the batch. ``next_check`` is set by every
    incomplete fetch, also by one that broke off, and by the first slice (`give_slice`).
    """
    return row.next_check is not None


def _account_line(tx: Connection, batch_id: int) -> bytes | None:
    """Return a line of a batch with an error of the account."""
    is_accounts = results.c.disposition == Disposition.ACCOUNT
    mine = select(results.c.raw).where(results.c.batch_id == batch_id, is_accounts)
    return tx.scalar(mine.limit(1))


def _with_result(batch_ids: Sequence[int]) -> Any:
    """Join the requests that wait in batches to their results of them."""
    of_batch = batch_ids[0] if len(batch_ids) == 1 else requests.c.batch_id
    return and_(
        _waiting(batch_ids),
        results.c.request_seq == requests.c.seq,
        results.c.batch_id == of_batch,
    )


def _waiting(batch_ids: Sequence[int]) -> Any:
    return and_(requests.c.batch_id.in_(batch_ids), requests.c.state == RequestState.PACKED)


def _given_before(tx: Connection, batch_id: int) -> int:
    """Return how many requests of a batch were final before it was complete."""
    return count_rows(
        tx,
        requests,
        requests.c.batch_id == batch_id,
        requests.c.finished.is_not(None),
        requests.c.answered_by.is_not(None),
    )


def mark_lost(tx: Connection, batch_id: int, *, note: str, now: float) -> Collected:
    """Mark a batch as gone from the API.

    Its open requests become lost, because they may have been billed.
    """
    complete = Complete(batch_id, stored_counts(tx, batch_id), missing_may_be_billed=True)
    collected = finish_collections(tx, [complete], now)
    update_row(tx, batches, batch_id, note=note)
    return collected[batch_id]
