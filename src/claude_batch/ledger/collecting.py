"""Transactions of polling and collection: from a batch in progress to final requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from claude_batch.core.states import BatchState, RequestState
from claude_batch.core.usage import Usage
from claude_batch.ledger.budgets import settle
from claude_batch.ledger.conversing import take_turns
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

__all__ = [
    "NewResult",
    "Stored",
    "add_results",
    "add_strange_line",
    "at_the_api",
    "cancel_request",
    "cancel_run",
    "checked",
    "finish_collection",
    "mark_ended",
    "members",
    "next_check_of",
    "note_fetch",
    "request_cancels",
    "stored_counts",
    "to_cancel",
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
    complete: bool,
    next_check: float,
    note: str,
    not_found_since: float | None,
) -> None:
    """A fetch of results did not bring everything: try again later."""
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(
            fetches=batches.c.fetches + (1 if complete else 0),
            next_check=next_check,
            note=note,
            not_found_since=not_found_since,
        )
    )


_MEMBERS = select(requests.c.id, requests.c.seq).where(requests.c.batch_id == bindparam("batch"))


def members(tx: Connection, batch_id: int) -> dict[str, int]:
    """The row number of each request of a batch, by the request's id."""
    # All at once: a batch has at most 100,000 (15 MB), and to walk it costs a quarter of what
    # it costs to look each of its lines up in the index of ids.
    return dict(plain_rows(tx, _MEMBERS, {"batch": batch_id}))


@lru_cache
def _upsert_results() -> Any:
    statement = insert(results)
    replaced = {
        name: statement.excluded[name]
        for name in results.c.keys()  # noqa: SIM118 - a ColumnCollection, no dict
        if name not in ("request_seq", "sending")
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


def add_strange_line(tx: Connection, batch_id: int, raw: bytes, reason: str) -> None:
    """Keep a line that is no result of this batch, once."""
    digest = hashlib.sha256(raw).hexdigest()
    tx.execute(
        insert(strange_lines)
        .values(batch_id=batch_id, digest=digest, reason=reason, raw=raw)
        .on_conflict_do_nothing(index_elements=["batch_id", "digest"])
    )


def stored_counts(tx: Connection, batch_id: int) -> Stored:
    """How many requests of a batch have a stored result, and how many a succeeded one."""
    counts = tx.execute(
        select(results.c.outcome, results.c.disposition, func.count())
        .where(results.c.batch_id == batch_id)
        .group_by(results.c.outcome, results.c.disposition)
    ).all()
    return Stored(
        total=sum(count for _, _, count in counts),
        succeeded=sum(count for outcome, _, count in counts if outcome == RequestState.SUCCEEDED),
        dispositions=frozenset(disposition for _, disposition, _ in counts),
    )


_NOT_RUN = (RequestState.CANCELED, RequestState.EXPIRED)


def _any_past_margin(tx: Connection, batch_id: int) -> bool:
    query = select(runs.c.id).join(batch_runs, batch_runs.c.run_id == runs.c.id)
    late = and_(batch_runs.c.batch_id == batch_id, runs.c.past_margin.is_not(None))
    return tx.scalar(query.where(late).limit(1)) is not None


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of a batch's requests when it was collected."""

    final: int
    retried: int
    account: int
    missing: int
    account_line: bytes | None
    """One raw line that blames the account, where there is one."""


def finish_collection(
    tx: Connection,
    batch_id: int,
    stored: Stored,
    *,
    missing: RequestState,
    now: float,
    contradicted: bool = False,
) -> Collected:
    """Give every request of a batch its final state, or queue it again.

    ``stored`` is what `stored_counts` says of the batch. ``missing`` says what becomes of requests
    without a line: ``lost``, or ``queued`` again. ``contradicted``: some line hides a success, so
    a failure that would be tried again may be one that was paid for, and is ``lost``.
    """
    settle(tx, batch_id, lost=missing is RequestState.LOST, contradicted=contradicted)
    posts: int = tx.execute(select(batches.c.posts).where(batches.c.id == batch_id)).scalar_one()
    stamp = next_stamp(tx)
    # The row that counts: the succeeded one of any sending, else the latest.
    joined = and_(
        results.c.request_seq == requests.c.seq,
        results.c.batch_id == batch_id,
        requests.c.batch_id == batch_id,
        requests.c.state == RequestState.PACKED,
    )
    sendings = requests.c.sendings + posts
    stopped = or_(
        requests.c.cancelled,
        exists().where(runs.c.id == requests.c.run_id, runs.c.cancelled.is_not(None)),
    )
    max_attempts = (
        select(runs.c.max_attempts).where(runs.c.id == requests.c.run_id).scalar_subquery()
    )
    spared = requests.c.attempts + 1 < max_attempts + requests.c.forgiven
    again = {
        "state": RequestState.QUEUED,
        "batch_id": None,
        "due": now,
        "sendings": sendings,
    }
    account_line: bytes | None = None
    account = retried = 0
    if not contradicted and _any_past_margin(tx, batch_id):
        # It did not run, and shall not wait for another batch: what becomes of it is decided where
        # deadlines are.
        past = exists().where(runs.c.id == requests.c.run_id, runs.c.past_margin.is_not(None))
        retried = tx.execute(
            update(requests)
            .where(joined, results.c.outcome.in_(_NOT_RUN), past, ~stopped)
            .values(**again)
        ).rowcount
    # What no line asks for is not looked for, line by line.
    if "account" in stored.dispositions and not contradicted:
        account_line = tx.scalar(
            select(results.c.raw)
            .where(results.c.batch_id == batch_id, results.c.disposition == "account")
            .limit(1)
        )
        account = tx.execute(
            update(requests)
            .where(joined, results.c.disposition == "account", ~stopped)
            .values(**again)
        ).rowcount
    if "retry" in stored.dispositions and not contradicted:
        retried += tx.execute(
            update(requests)
            .where(
                joined,
                results.c.disposition == "retry",
                ~stopped,
                spared,
            )
            .values(**again, attempts=requests.c.attempts + 1)
        ).rowcount
    turned = take_turns(tx, batch_id, joined, stored.dispositions, sendings=sendings, stamp=stamp)
    failed = results.c.disposition.in_(("retry", "account"))
    final = (
        turned
        + tx.execute(
            update(requests)
            .where(joined, ~failed if contradicted else true())
            .values(
                state=results.c.outcome,
                answered_by=results.c.sending,
                attempts=requests.c.attempts + 1,
                sendings=sendings,
                finished=stamp,
            )
        ).rowcount
    )
    rest = and_(requests.c.batch_id == batch_id, requests.c.state == RequestState.PACKED)
    unanswered = 0
    if missing is RequestState.QUEUED:
        retry = and_(rest, ~stopped, spared)
        unanswered = tx.execute(
            update(requests).where(retry).values(**again, attempts=requests.c.attempts + 1)
        ).rowcount
    unanswered += tx.execute(
        update(requests)
        .where(rest)
        .values(
            state=RequestState.LOST,
            attempts=requests.c.attempts + 1,
            sendings=sendings,
            finished=stamp,
        )
    ).rowcount
    tx.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(state=BatchState.COLLECTED, collected=now, next_check=None)
    )
    return Collected(final, retried, account, unanswered, account_line)


def cancel_run(tx: Connection, run_id: str, now: float) -> None:
    """Cancel a run: what was not sent ends ``canceled`` at once, the rest when its batch ends."""
    tx.execute(
        update(runs).where(runs.c.id == run_id, runs.c.cancelled.is_(None)).values(cancelled=now)
    )
    tx.execute(
        update(requests)
        .where(
            requests.c.run_id == run_id,
            requests.c.state.in_((RequestState.QUEUED, RequestState.HELD)),
        )
        .values(state=RequestState.CANCELED, finished=next_stamp(tx))
    )
    request_cancels(tx, select(batch_runs.c.batch_id).where(batch_runs.c.run_id == run_id), now)


def cancel_request(tx: Connection, seq: int, now: float) -> None:
    """Cancel a single call, like `cancel_run`."""
    tx.execute(update(requests).where(requests.c.seq == seq).values(cancelled=True))
    tx.execute(
        update(requests)
        .where(requests.c.seq == seq, requests.c.state == RequestState.QUEUED)
        .values(state=RequestState.CANCELED, finished=next_stamp(tx))
    )
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
