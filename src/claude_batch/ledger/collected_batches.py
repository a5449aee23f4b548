"""Transactions of polling and collection: from a batch in progress to final requests."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from claude_batch.core.outcome import Disposition, Next, Reason
from claude_batch.core.states import BatchState, RequestState
from claude_batch.core.usage import Usage
from claude_batch.ledger import transitions
from claude_batch.ledger.budgets import settle
from claude_batch.ledger.schema import (
    batch_runs,
    batches,
    lanes,
    requests,
    results,
    runs,
    strange_lines,
)
from claude_batch.ledger.store import Record, insert_many, next_stamp, plain_rows
from claude_batch.ledger.transitions import REUSED

__all__ = [
    "Gap",
    "NewResult",
    "Stored",
    "add_results",
    "add_strange_lines",
    "at_the_api",
    "cancel_request",
    "cancel_run",
    "checked",
    "fetch_soon",
    "finish_collection",
    "give_successes",
    "gone_on",
    "has_no_result",
    "mark_ended",
    "members",
    "next_check_of",
    "note_fetch",
    "request_cancels",
    "settle_again",
    "stored_counts",
    "to_cancel",
    "without_result",
]

_NO_USAGE = Usage()
_OPEN_AT_API = (BatchState.IN_PROGRESS, BatchState.CANCELING)


class NewResult(NamedTuple):
    """A result line as it is stored."""

    request_seq: int
    sending: int
    outcome: str
    disposition: str
    error_type: str | None
    raw: bytes
    usage: Usage | None
    model: str | None
    cost: int | None
    """Nano-dollars; None where the price is not known. Likewise the two below."""
    live_cost: int | None
    uncached_cost: int | None


class Gap(NamedTuple):
    """Results of an ended batch that a complete fetch did not bring. Times are the server's."""

    missing: int
    """How many; where every request has a line, how many successes the lines hide."""
    since: float
    """The first complete fetch that lacked some."""
    seen: float
    """The last one."""
    until: float
    """From when on they are lost if they are still missing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What of a batch's results is in the ledger."""

    total: int
    succeeded: int
    dispositions: frozenset[str] = frozenset()
    """What is to be done about them, as far as any of them asks for it."""


def _of_workspace(workspace_id: int) -> Any:
    return and_(lanes.c.id == batches.c.lane_id, lanes.c.workspace_id == workspace_id)


def at_the_api(tx: Connection, workspace_id: int) -> list[Record]:
    """Batches that the API has and has not ended, as far as is known."""
    return list(
        tx.execute(
            select(batches)
            .join(lanes, _of_workspace(workspace_id))
            .where(batches.c.state.in_(_OPEN_AT_API))
            .order_by(batches.c.id)
        )
    )


def ended_batches(tx: Connection, workspace_id: int, now: float) -> list[int]:
    """Batches whose results wait to be collected, and may be fetched by now."""
    return list(
        tx.scalars(
            select(batches.c.id)
            .join(lanes, _of_workspace(workspace_id))
            .where(
                batches.c.state == BatchState.ENDED,
                or_(
                    batches.c.next_check.is_(None),
                    batches.c.next_check <= now,
                    # Planned before the clock jumped back.
                    batches.c.next_check > now + batches.c.max_poll_interval + 1,
                ),
            )
            .order_by(batches.c.id)
        )
    )


def next_check_of(tx: Connection, workspace_id: int) -> float | None:
    """When the next batch of a workspace is to be checked or fetched; None where none is."""
    return tx.scalar(
        select(func.min(func.coalesce(batches.c.next_check, 0.0)))
        .join(lanes, _of_workspace(workspace_id))
        .where(batches.c.state.in_((*_OPEN_AT_API, BatchState.ENDED, BatchState.UNKNOWN)))
    )


def checked(
    tx: Connection,
    batch_id: int,
    *,
    state: BatchState,
    next_check: float,
    not_found_since: float | None = None,
    note: str | None = None,
) -> None:
    """Note what a check has seen, and when to check again."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(state=state, next_check=next_check, not_found_since=not_found_since, note=note)
    )


def mark_ended(tx: Connection, batch_id: int, *, counts: str, ended: float) -> None:
    """The API has finished with a batch; ``counts`` is its request_counts as JSON."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(
            state=BatchState.ENDED,
            counts=counts,
            ended=ended,
            next_check=None,
            note=None,
            not_found_since=None,
        )
    )


def note_fetch(
    tx: Connection,
    batch_id: int,
    *,
    gap: Gap | None,
    next_check: float,
    note: str,
    not_found_since: float | None,
) -> None:
    """Note that a fetch of results did not bring everything; it is repeated at ``next_check``.

    ``gap`` is what was missing, or None where the fetch broke and shows nothing.
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
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(next_check=next_check, note=note, not_found_since=not_found_since, **seen)
    )


def give_successes(tx: Connection, batch_id: int) -> int:
    """End the requests of an ended batch whose success is stored; returns how many.

    The batch still lacks results, so its failures are not judged: a missing line may contradict
    them. Nothing contradicts a success.
    """
    posts = select(batches.c.posts).where(batches.c.id == batch_id).scalar_subquery()
    given = transitions.conclude(
        tx,
        and_(_with_result(batch_id), results.c.outcome == RequestState.SUCCEEDED),
        sendings=requests.c.sendings + posts,
    ).total()
    if given:
        settle(tx, batch_id, lost=True, contradicted=True, left=True)
    return given


def settle_again(tx: Connection, batch_id: int, *, lost: bool, contradicted: bool) -> None:
    """Count anew what a collected batch has cost, now that more of its results are stored."""
    settle(tx, batch_id, lost=lost, contradicted=contradicted, left=True)


def fetch_soon(tx: Connection, batch_id: int, now: float) -> None:
    """Have the driver fetch an ended batch without waiting for its turn."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == BatchState.ENDED)
        .values(next_check=now)
    )


def without_result(tx: Connection, batch_id: int) -> int:
    """How many requests wait in an ended batch without a stored result of it."""
    return (
        tx.scalar(
            select(func.count())
            .select_from(requests)
            .where(
                requests.c.batch_id == batch_id,
                requests.c.state == RequestState.PACKED,
                has_no_result(batch_id),
            )
        )
        or 0
    )


def has_no_result(batch_id: int) -> Any:
    """Of a request: whether no result of a batch is stored for it."""
    return ~exists().where(results.c.request_seq == requests.c.seq, results.c.batch_id == batch_id)


_MEMBERS = select(requests.c.id, requests.c.seq).where(requests.c.batch_id == bindparam("batch"))


def members(tx: Connection, batch_id: int) -> dict[str, int]:
    """The row number of each request of a batch, by the request's id."""
    # All at once: a batch has at most 100,000 (15 MB), and to walk it costs a quarter of what
    # it costs to look each of its lines up in the index of ids.
    return dict(plain_rows(tx, _MEMBERS, {"batch": batch_id}))


def gone_on(tx: Connection, batch_id: int) -> dict[str, int]:
    """The requests that have a result of a batch and have left it since: row numbers by id.

    Those are conversations in a later turn, and requests that were tried again.
    """
    rows = tx.execute(
        select(requests.c.id, requests.c.seq)
        .join(results, results.c.request_seq == requests.c.seq)
        .where(
            results.c.batch_id == batch_id,
            results.c.sending > REUSED,
            requests.c.batch_id.is_distinct_from(batch_id),
        )
    )
    return {row.id: row.seq for row in rows}


@lru_cache
def _upsert_results() -> Any:
    # A batch's lines were answered when it ended; only live calls have a time of their own.
    statement = insert(results).values(answered=null())
    replaced = {
        name: statement.excluded[name]
        for name in results.c.keys()  # noqa: SIM118 - a ColumnCollection, no dict
        if name not in ("request_seq", "sending", "answered")
    }
    return statement.on_conflict_do_update(
        index_elements=["request_seq", "sending"],
        set_=replaced,
        where=and_(
            # Written out, since `insert_many` gives values for columns only.
            statement.excluded.outcome == literal_column("'succeeded'"),
            results.c.outcome != literal_column("'succeeded'"),
        ),
    )


def add_results(tx: Connection, batch_id: int, new: Sequence[NewResult]) -> None:
    """Store result lines. A line stored before stays, unless a succeeded one contradicts it."""
    if not new:
        return
    rows: list[tuple[Any, ...]] = []
    for line in new:
        usage = line.usage or _NO_USAGE
        rows.append(
            (
                line.request_seq,
                line.sending,
                batch_id,
                line.outcome,
                line.disposition,
                line.error_type,
                line.raw,
                usage.input_tokens,
                usage.output_tokens,
                usage.cache_read_input_tokens,
                usage.cache_creation_5m_input_tokens,
                usage.cache_creation_1h_input_tokens,
                usage.web_search_requests,
                line.model,
                line.cost,
                line.live_cost,
                line.uncached_cost,
            )
        )
    insert_many(tx, _upsert_results(), rows)


MOST_STRANGE_LINES = 1000
"""Lines of a batch that are kept although they are no results of it."""
MOST_STRANGE_BYTES = 1 << 20
"""Bytes that are kept of each of them."""


def add_strange_lines(tx: Connection, batch_id: int, lines: Iterable[tuple[bytes, str]]) -> None:
    """Keep lines that are no results of this batch, each once, with the reason.

    What is beyond `MOST_STRANGE_LINES` or `MOST_STRANGE_BYTES` is dropped: a server could fill the
    disk with it.
    """
    mine = strange_lines.c.batch_id == batch_id
    count = tx.scalar(select(func.count()).select_from(strange_lines).where(mine)) or 0
    for raw, reason in lines:
        if count >= MOST_STRANGE_LINES:
            return
        digest = hashlib.sha256(raw).hexdigest()
        count += tx.execute(
            insert(strange_lines)
            .values(batch_id=batch_id, digest=digest, reason=reason, raw=raw[:MOST_STRANGE_BYTES])
            .on_conflict_do_nothing(index_elements=["batch_id", "digest"])
        ).rowcount


def stored_counts(tx: Connection, batch_id: int) -> Stored:
    """How many requests of a batch have a stored result, and how many a succeeded one."""
    counts = tx.execute(
        select(results.c.outcome, results.c.disposition, func.count())
        # A double's copy of an answer is no result of the batch.
        .where(results.c.batch_id == batch_id, results.c.sending > REUSED)
        .group_by(results.c.outcome, results.c.disposition)
    ).all()
    return Stored(
        total=sum(count for _, _, count in counts),
        succeeded=sum(count for outcome, _, count in counts if outcome == RequestState.SUCCEEDED),
        dispositions=frozenset(disposition for _, disposition, _ in counts),
    )


@dataclass(frozen=True, slots=True)
class Collected:
    """What happened to a batch's requests when it was collected."""

    given: int
    """Requests that had their answers before."""
    steps: Counter[Next]
    """The others, by what followed."""
    account_line: bytes | None
    """One raw line with an error of the account, if there is any."""

    @property
    def final(self) -> int:
        """Requests with a result that are final."""
        ended = (count for step, count in self.steps.items() if step.state.is_final)
        return self.given + sum(ended) - self.lost

    @property
    def lost(self) -> int:
        """Requests that are lost."""
        return sum(count for step, count in self.steps.items() if step.state is RequestState.LOST)

    @property
    def retried(self) -> Counter[Reason]:
        """Requests that are queued again, by the reason."""
        reasons: Counter[Reason] = Counter()
        for step, count in self.steps.items():
            if step.retried is not None:
                reasons[step.retried] += count
        return reasons


def finish_collection(
    tx: Connection,
    batch_id: int,
    stored: Stored,
    *,
    missing: RequestState,
    now: float,
    contradicted: bool = False,
    left: bool = False,
) -> Collected:
    """Give every request of a batch its final state, or queue it again.

    ``stored`` is what `stored_counts` says of the batch. ``missing`` says what becomes of requests
    without a line: ``lost``, or ``queued`` again. ``contradicted``: some line hides a success, so
    a failure that would be tried again may be one that was paid for, and is ``lost``. ``left``:
    successes of it were given before, so some of its requests may have left it.
    """
    may_be_paid = missing is RequestState.LOST
    settle(tx, batch_id, lost=may_be_paid, contradicted=contradicted, left=left)
    posts: int = tx.execute(select(batches.c.posts).where(batches.c.id == batch_id)).scalar_one()
    sendings = requests.c.sendings + posts
    given = _given_before(tx, batch_id) if left else 0
    account_line: bytes | None = None
    if Disposition.ACCOUNT in stored.dispositions and not contradicted:
        account_line = tx.scalar(
            select(results.c.raw)
            .where(results.c.batch_id == batch_id, results.c.disposition == Disposition.ACCOUNT)
            .limit(1)
        )
    # One stamp: results in the order of completion have the requests of a batch in input order.
    stamp = next_stamp(tx)
    answered = transitions.conclude(
        tx,
        _with_result(batch_id),
        contradicted=contradicted,
        sendings=sendings,
        due=now,
        stamp=stamp,
    )
    missed = transitions.conclude(
        tx,
        _waiting(batch_id),
        answer=None,
        may_be_paid=may_be_paid,
        sendings=sendings,
        due=now,
        stamp=stamp,
    )
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(state=BatchState.COLLECTED, collected=now, next_check=None)
    )
    return Collected(given, answered + missed, account_line)


def _with_result(batch_id: int) -> Any:
    """Join the requests that wait in a batch to their results of it."""
    return and_(
        _waiting(batch_id),
        results.c.request_seq == requests.c.seq,
        results.c.batch_id == batch_id,
    )


def _waiting(batch_id: int) -> Any:
    return and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)


def _given_before(tx: Connection, batch_id: int) -> int:
    """How many requests of a batch had their answers before it was complete."""
    had = and_(
        requests.c.batch_id == batch_id,
        requests.c.finished.is_not(None),
        requests.c.answered_by.is_not(None),
    )
    return tx.scalar(select(func.count()).select_from(requests).where(had)) or 0


def cancel_run(tx: Connection, run_id: str, now: float) -> None:
    """Cancel a run: what was not sent ends ``canceled`` at once, the rest when its batch ends."""
    tx.execute(
        update(runs).where(runs.c.id == run_id, runs.c.cancelled.is_(None)).values(cancelled=now)
    )
    unsent = requests.c.state.in_((RequestState.QUEUED, RequestState.HELD))
    transitions.cancel(tx, and_(requests.c.run_id == run_id, unsent))
    request_cancels(tx, select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id), now)


def cancel_request(tx: Connection, seq: int, now: float) -> None:
    """Cancel a single call, like `cancel_run`."""
    mine = requests.c.seq == seq
    transitions.mark_cancelled(tx, mine)
    transitions.cancel(tx, and_(mine, requests.c.state == RequestState.QUEUED))
    request_cancels(tx, select(requests.c.batch_id).where(requests.c.seq == seq), now)


def request_cancels(tx: Connection, of: Any, now: float) -> None:
    """Have batches cancelled at the API in which nobody waits any more; ``of`` selects ids."""
    others = exists().where(
        requests.c.batch_id == batches.c.id,
        requests.c.state == RequestState.PACKED,
        ~requests.c.cancelled,
        runs.c.id == requests.c.run_id,
        runs.c.cancelled.is_(None),
        runs.c.past_margin.is_(None),
    )
    tx.execute(
        update(batches)
        .where(
            batches.c.id.in_(of),
            batches.c.state.in_(
                (
                    BatchState.PACKED,
                    BatchState.SUBMITTING,
                    BatchState.IN_PROGRESS,
                    BatchState.UNKNOWN,
                )
            ),
            batches.c.cancel_requested.is_(None),
            ~others,
        )
        .values(cancel_requested=now)
    )


def to_cancel(tx: Connection, workspace_id: int) -> list[Record]:
    """Batches in progress whose cancellation was asked for: ``id`` and ``remote_id``."""
    return list(
        tx.execute(
            select(batches.c.id, batches.c.remote_id)
            .join(lanes, _of_workspace(workspace_id))
            .where(
                batches.c.state == BatchState.IN_PROGRESS,
                batches.c.cancel_requested.is_not(None),
                # One that was adopted without proof may be somebody else's.
                func.coalesce(batches.c.adopted, "") != "assumed",
            )
        )
    )


def mark_lost(tx: Connection, batch_id: int, *, note: str, now: float) -> Collected:
    """A batch is gone from the API: what it held may have been paid for, and has no answer."""
    stored = stored_counts(tx, batch_id)
    collected = finish_collection(tx, batch_id, stored, missing=RequestState.LOST, now=now)
    tx.execute(update(batches).where(batches.c.id == batch_id).values(note=note))
    return collected
