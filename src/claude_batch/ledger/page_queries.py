"""Queries of pages that people look at: bounded, paged by key, never a walk of the whole ledger.

Sums over results need a walk. They are read one batch at a time, so that a reader can keep them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Integer, and_, case, cast, func, or_, select

from claude_batch.core.states import UNDER_WAY, UNSUCCESSFUL, BatchState, RequestState
from claude_batch.ledger import queries
from claude_batch.ledger.charges import DAY
from claude_batch.ledger.deliveries import PRUNED
from claude_batch.ledger.portable_sql import count_if, count_rows, meta_value, total
from claude_batch.ledger.schema import (
    OF_ANSWER,
    batch_runs,
    batches,
    conversations,
    credentials,
    lanes,
    params,
    requests,
    results,
    runs,
    tool_calls,
    workspaces,
)
from claude_batch.ledger.store import Record
from claude_batch.ledger.transitions import REOPENED, REUSED

# Runs ---------------------------------------------------------------------------------------------


class RunMark(NamedTuple):
    """Values that stay the same for as long as a finished run does."""

    requests: int
    """Number of requests that it has."""
    last: int
    """Stamp of the last one that became final."""
    delivered: float | None
    reopened: str | None
    """Stamp of the last transaction in which a final request of any run became open again."""


def run_marks(tx: Connection, run_ids: Collection[str]) -> dict[str, RunMark]:
    """Return the marks of runs. Of each, one entry of an index is read, however large it is."""
    reopened = meta_value(tx, REOPENED)
    query = select(runs.c.id, runs.c.request_count, queries.LAST_ENDING, runs.c.delivered)
    found = tx.execute(query.where(runs.c.id.in_(run_ids)))
    return {row[0]: RunMark(row[1], row[2], row[3], reopened) for row in found}


class ActorRuns(NamedTuple):
    """The runs of an actor."""

    actor: str
    runs: int
    requests: int
    last: float
    """When the newest one was created."""


def actors(tx: Connection, after: str, limit: int) -> list[ActorRuns]:
    """Return the actors whose names come after one, in order."""
    rows = tx.execute(
        select(
            runs.c.actor,
            func.count(),
            func.sum(runs.c.request_count),
            func.max(runs.c.created),
        )
        .where(runs.c.actor > after, runs.c.request_count > 0)
        .group_by(runs.c.actor)
        .order_by(runs.c.actor)
        .limit(limit)
    )
    return [ActorRuns(*row) for row in rows]


def halted_workspaces(tx: Connection) -> list[Record]:
    """Return the workspaces in which sending has stopped."""
    return list(tx.execute(select(workspaces).where(workspaces.c.halted.is_not(None))))


def last_pruning(tx: Connection) -> str | None:
    """Return what differs after each removal of a run; None before the first."""
    return meta_value(tx, PRUNED)


def kept_runs(tx: Connection) -> set[str]:
    """Return the runs that are stored, and not being removed."""
    return set(tx.scalars(select(runs.c.id).where(runs.c.stored.is_not(None))))


class LedgerCounts(NamedTuple):
    """How much a ledger holds."""

    runs: int
    requests: int
    batches: dict[str, int]
    """Number of batches by state."""


def ledger_counts(tx: Connection) -> LedgerCounts:
    """Return how much a ledger holds, without reading its requests."""
    number, in_all = tx.execute(
        select(func.count(), total(runs.c.request_count)).where(runs.c.request_count > 0)
    ).one()
    return LedgerCounts(number, in_all, queries.count_by_state(tx, batches))


def workspace_rows(tx: Connection) -> list[Record]:
    """Return the workspaces, oldest first.

    A key that turned out to belong to another workspace leaves an empty row, which is left out.
    """
    lane = select(lanes.c.id).where(lanes.c.workspace_id == workspaces.c.id)
    key = select(credentials.c.fingerprint).where(credentials.c.workspace_id == workspaces.c.id)
    used = or_(workspaces.c.name.is_not(None), lane.exists(), key.exists())
    return list(tx.execute(select(workspaces).where(used).order_by(workspaces.c.id)))


# Batches ------------------------------------------------------------------------------------------


def batch_count(tx: Connection, run_id: str) -> int:
    """Return the number of batches that carried requests of a run."""
    carried = batch_runs.join(batches, batches.c.id == batch_runs.c.batch_id)
    is_kept = batches.c.state != BatchState.REJECTED
    return count_rows(tx, carried, batch_runs.c.run_id == run_id, is_kept)


def open_batches(tx: Connection) -> list[Record]:
    """Return the batches that wait for their outcome, oldest first.

    Each row has its id, workspace, state, number of requests and times.
    """
    return list(
        tx.execute(
            select(
                batches.c.id,
                batches.c.state,
                batches.c.remote_id,
                batches.c.request_count,
                batches.c.created,
                batches.c.submitted,
                lanes.c.workspace_id,
            )
            .join(lanes, lanes.c.id == batches.c.lane_id)
            .where(batches.c.state.in_(UNDER_WAY))
            .order_by(batches.c.id)
        )
    )


# Sums of a batch ----------------------------------------------------------------------------------

TOKEN_STEPS: Final = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Lower ends of the groups in which answers are counted by their output tokens."""

TIME_STEPS: Final = (0, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200)
"""The same for the seconds from a request to its answer."""


class BatchMark(NamedTuple):
    """A batch that has results, and which of them it has by now."""

    id: int
    requests: int
    """Number of its requests; of live calls, those that have a result by now."""
    is_live: bool
    """Whether it groups live calls, of which there may be more."""
    stamp: float
    """Another number once it has other results; never 0."""


def summable_batches(tx: Connection, after: int, limit: int) -> list[BatchMark]:
    """Return batches whose results are in the ledger, by id; also those that are live."""
    number = select(func.count()).where(results.c.batch_id == batches.c.id).scalar_subquery()
    is_live = batches.c.state == BatchState.LIVE
    rows = tx.execute(
        select(
            batches.c.id,
            case((is_live, number), else_=batches.c.request_count),
            is_live,
            batches.c.collected,
        )
        .where(
            batches.c.id > after,
            batches.c.state.in_((BatchState.COLLECTED, BatchState.LIVE)),
        )
        .order_by(batches.c.id)
        .limit(limit)
    )
    return [
        BatchMark(batch_id, count, live, -1.0 - count if live else collected or -1.0)
        for batch_id, count, live, collected in rows
    ]


class Total(NamedTuple):
    """Sums over results. Costs are in nano-dollars."""

    results: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    unpriced: int = 0
    """Number of answers whose cost is unknown; the sums leave them out."""
    cost: int = 0
    live_cost: int = 0
    uncached_cost: int = 0

    @property
    def saved_by_batch(self) -> int:
        """What the same answers would have cost more without batches."""
        return self.live_cost - self.cost

    @property
    def saved_by_cache(self) -> int:
        """What they would have cost more without a prompt cache; negative if it did not pay."""
        return self.uncached_cost - self.cost


class ResultSums(NamedTuple):
    """Sums over the results of one run that share their day and model."""

    run_id: str
    actor: str
    day: int | None
    """The day (UTC, counted since the epoch) of the answers."""
    model: str | None
    total: Total
    by_tokens: tuple[int, ...]
    """Number of succeeded results in each group of `TOKEN_STEPS`."""
    by_time: tuple[int, ...]
    """Number of succeeded results in each group of `TIME_STEPS`."""


_ANSWERED = func.coalesce(results.c.answered, batches.c.ended)
_SUCCEEDED = results.c.outcome == RequestState.SUCCEEDED


def _grouped(value: Any, steps: Sequence[int]) -> list[Any]:
    """Return columns that count the succeeded results in each group."""
    above = [and_(_SUCCEEDED, value >= low) for low in steps]
    inside = [and_(each, value < end) for each, end in zip(above, steps[1:], strict=False)]
    return [count_if(each) for each in (*inside, above[-1])]


_ALIKE = (requests.c.run_id, cast(_ANSWERED / DAY, Integer), results.c.model)
_TOTAL = (
    func.count(),
    count_if(~_SUCCEEDED),
    func.sum(results.c.input_tokens),
    func.sum(results.c.output_tokens),
    func.sum(results.c.cache_read_tokens),
    func.sum(results.c.cache_5m_tokens + results.c.cache_1h_tokens),
    count_if(and_(_SUCCEEDED, results.c.cost.is_(None))),
    total(results.c.cost),
    total(results.c.live_cost),
    total(results.c.uncached_cost),
)
_BY_TOKENS = _grouped(results.c.output_tokens, TOKEN_STEPS)
_BY_TIME = _grouped(_ANSWERED - requests.c.created, TIME_STEPS)


def sums_of_results(tx: Connection, batch_ids: Sequence[int]) -> dict[int, list[ResultSums]]:
    """Return the sums over the results of batches by the batches' row ids."""
    query = (
        select(results.c.batch_id, *_ALIKE, *_TOTAL, *_BY_TOKENS, *_BY_TIME)
        .select_from(results)
        .join(requests, requests.c.seq == results.c.request_seq)
        .join(batches, batches.c.id == results.c.batch_id)
        .where(results.c.batch_id.in_(batch_ids), results.c.sending > REUSED)
        .group_by(results.c.batch_id, *_ALIKE)
    )
    rows: list[Any] = list(tx.execute(query))
    actors_of = queries.actors_of_runs(tx, {row.run_id for row in rows})
    found: dict[int, list[ResultSums]] = {each: [] for each in batch_ids}
    for batch_id, run_id, day, model, *numbers in rows:
        sums, groups = Total(*numbers[: len(_TOTAL)]), tuple(numbers[len(_TOTAL) :])
        by_tokens, by_time = groups[: len(_BY_TOKENS)], groups[len(_BY_TOKENS) :]
        actor = actors_of.get(run_id, "")
        found[batch_id].append(ResultSums(run_id, actor, day, model, sums, by_tokens, by_time))
    return found


# Requests -----------------------------------------------------------------------------------------

SEARCHED: Final = 200_000
"""Positions of a run that one page of requests looks at."""


class RequestRow(NamedTuple):
    """A request in a list."""

    position: int
    key: str | None
    state: RequestState
    attempts: int
    size: int
    outcome: str | None
    error_type: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost: int | None
    answered: float | None


def requests_after(
    tx: Connection,
    run_id: str,
    after: int,
    limit: int,
    *,
    state: RequestState | None = None,
    key: str = "",
) -> list[RequestRow]:
    """Return a run's requests after a position, in order.

    With a ``state`` or a part of a ``key``, only `SEARCHED` positions are looked at.
    """
    query = (
        select(
            requests.c.position,
            requests.c.key,
            requests.c.state,
            requests.c.attempts,
            requests.c.size,
            results.c.outcome,
            results.c.error_type,
            results.c.model,
            results.c.input_tokens + results.c.cache_read_tokens,
            results.c.output_tokens,
            queries.COST,
            func.coalesce(results.c.answered, batches.c.ended),
        )
        .outerjoin(results, OF_ANSWER)
        .outerjoin(batches, batches.c.id == results.c.batch_id)
        .where(requests.c.run_id == run_id, requests.c.position > after)
        .order_by(requests.c.position)
        .limit(limit)
    )
    if state is not None or key:
        query = query.where(requests.c.position <= after + SEARCHED)
    if state is not None:
        query = query.where(requests.c.state == state.value)
    if key:
        # SQLite changes the case of ASCII letters alone, so a key with others is searched as given.
        lowered = func.lower(requests.c.key).contains(key.lower(), autoescape=True)
        query = query.where(or_(lowered, requests.c.key.contains(key, autoescape=True)))
    rows = tx.execute(query)
    return [RequestRow(row[0], row[1], RequestState(row[2]), *row[3:]) for row in rows]


def keys_of(tx: Connection, run_id: str, prefix: str, limit: int) -> list[str]:
    """Return the keys of a run that begin with a text, in order of the requests."""
    query = select(requests.c.key).where(
        requests.c.run_id == run_id, requests.c.key.startswith(prefix, autoescape=True)
    )
    return list(tx.scalars(query.order_by(requests.c.position).limit(limit)))


class FailedRequest(NamedTuple):
    """A request that has ended and did not succeed."""

    position: int
    key: str | None
    state: RequestState
    error_type: str | None
    raw: bytes
    """The result line; empty if there is none."""


def failed_requests(tx: Connection, run_id: str, limit: int, *, failed: int) -> list[FailedRequest]:
    """Return failed requests of a run, first those with an error's result line.

    ``failed``: the number of the run's requests in a state of `UNSUCCESSFUL`. The results of the
    run's batches are found in their index alone, so that a run with few failures reads few rows.
    """
    found = tx.execute(
        select(
            requests.c.position,
            requests.c.key,
            requests.c.state,
            results.c.error_type,
            results.c.raw,
        )
        .select_from(batch_runs)
        .join(results, results.c.batch_id == batch_runs.c.batch_id)
        .join(requests, requests.c.seq == results.c.request_seq)
        .where(
            batch_runs.c.run_id == run_id,
            results.c.outcome != RequestState.SUCCEEDED,
            # No index fits this form: the index of the run's requests would read every one of them.
            func.coalesce(requests.c.run_id, "") == run_id,
            requests.c.answered_by == results.c.sending,
            requests.c.finished.is_not(None),
        )
        .limit(limit)
    )
    rows = list(found)
    if len(rows) < min(failed, limit):
        # Requests without a line, such as lost ones, and answers that are no success.
        others = (
            select(
                requests.c.position,
                requests.c.key,
                requests.c.state,
                results.c.error_type,
                func.coalesce(results.c.raw, b""),
            )
            .select_from(requests)
            .outerjoin(results, OF_ANSWER)
            .where(
                requests.c.run_id == run_id,
                requests.c.state.in_(UNSUCCESSFUL),
                func.coalesce(results.c.outcome, RequestState.SUCCEEDED) == RequestState.SUCCEEDED,
            )
            .order_by(requests.c.position)
            .limit(limit - len(rows))
        )
        rows += tx.execute(others)
    return [FailedRequest(row[0], row[1], RequestState(row[2]), *row[3:]) for row in rows]


# One request --------------------------------------------------------------------------------------


_REQUEST = select(
    requests,
    conversations.c.turns,
    conversations.c.rejected,
    conversations.c.stopped,
    conversations.c.note,
).outerjoin(conversations, conversations.c.request_seq == requests.c.seq)


def request_at(tx: Connection, run_id: str, position: int) -> Record | None:
    """Return a request by its 0-based position, with its conversation's columns, or None."""
    query = _REQUEST.where(requests.c.run_id == run_id, requests.c.position == position)
    return tx.execute(query).first()


def request_of_key(tx: Connection, run_id: str, key: str) -> Record | None:
    """Return the first request of a run with this key, as `request_at` does, or None."""
    query = _REQUEST.where(requests.c.run_id == run_id, requests.c.key == key)
    return tx.execute(query.order_by(requests.c.position).limit(1)).first()


def params_of(tx: Connection, seq: int) -> bytes:
    """Return the params of a request: those of its present turn."""
    return tx.execute(select(params.c.body).where(params.c.request_seq == seq)).scalar_one()


def results_of_request(tx: Connection, seq: int) -> list[Record]:
    """Return every result of a request, oldest first, each with its batch's id and times."""
    return list(
        tx.execute(
            select(
                results,
                batches.c.remote_id,
                batches.c.submitted,
                batches.c.ended,
            )
            .join(batches, batches.c.id == results.c.batch_id)
            .where(results.c.request_seq == seq)
            .order_by(results.c.sending)
        )
    )


def tool_calls_of(tx: Connection, seq: int) -> list[Record]:
    """Return the tool calls of a request, in order."""
    return list(
        tx.execute(
            select(tool_calls)
            .where(tool_calls.c.request_seq == seq)
            .order_by(tool_calls.c.sending, tool_calls.c.started)
        )
    )
