"""Data for observers about a collected batch: its sums, and its results one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, literal_column, select

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger.schema import batches, lanes, params, requests, results, runs
from claude_batch.ledger.store import Ledger, Record, plain_rows
from claude_batch.ledger.transitions import REUSED

PAGE = 1000
"""Results per page."""

BEGINNING = 200
"""Bytes of a request's params that are read: enough for the model, which comes first."""


class BatchSums(NamedTuple):
    """Sums over results of a batch that are alike. Costs are in nano-dollars."""

    outcome: str
    error_type: str | None
    model: str | None
    results: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    priced: int
    """Number of these results that have a price."""
    cost: int


def sums_of_batch(tx: Connection, batch_id: int) -> list[BatchSums]:
    """Return the usage of a batch's results, by outcome, error type and model."""
    alike = (results.c.outcome, results.c.error_type, results.c.model)
    rows = tx.execute(
        select(
            *alike,
            func.count(),
            func.sum(results.c.input_tokens),
            func.sum(results.c.output_tokens),
            func.sum(results.c.cache_read_tokens),
            func.sum(results.c.cache_5m_tokens + results.c.cache_1h_tokens),
            func.count(results.c.cost),
            func.coalesce(func.sum(results.c.cost), 0),
        )
        .where(results.c.batch_id == batch_id, results.c.sending > REUSED)
        .group_by(*alike)
        .order_by(*alike)
    )
    return [BatchSums(*row) for row in rows]


class AnswerRecord(NamedTuple):
    """One result of a batch or of a live call, with what identifies its request."""

    seq: int
    sending: int
    run_id: str
    actor: str
    key: str | None
    position: int
    attempt: int
    outcome: str
    error_type: str | None
    beginning: bytes
    """The first bytes of the request's params."""
    model: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int | None
    asked: float
    trace: str | None

    @property
    def tokens(self) -> tuple[int, int, int, int]:
        """Return input, output, cache read and cache write tokens."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
        )


_RESULTS = (
    select(
        results.c.request_seq,
        results.c.sending,
        requests.c.run_id,
        runs.c.actor,
        requests.c.key,
        requests.c.position,
        requests.c.attempts,
        results.c.outcome,
        results.c.error_type,
        func.substr(params.c.body, 1, BEGINNING),
        results.c.model,
        results.c.input_tokens,
        results.c.output_tokens,
        results.c.cache_read_tokens,
        results.c.cache_5m_tokens + results.c.cache_1h_tokens,
        results.c.cost,
        requests.c.created,
        func.coalesce(requests.c.trace, runs.c.trace),
    )
    .join(requests, requests.c.seq == results.c.request_seq)
    .join(runs, runs.c.id == requests.c.run_id)
    .join(params, params.c.request_seq == results.c.request_seq)
    .where(
        # Forces the order of the primary key. Through the batch's index, each page would sort all
        # rows.
        literal_column("+results.batch_id") == bindparam("batch"),
        results.c.sending > REUSED,
        results.c.request_seq > bindparam("after"),
        results.c.request_seq <= bindparam("last"),
    )
    .order_by(results.c.request_seq, results.c.sending)
    .limit(PAGE)
)


def results_of_batch(ledger: Ledger, batch_id: int) -> Iterator[list[AnswerRecord]]:
    """Yield pages of a batch's results in request order, each in a separate transaction.

    No other transaction waits while the consumer processes a page.
    """
    with ledger.read() as tx:
        first, last = tx.execute(
            select(func.min(results.c.request_seq), func.max(results.c.request_seq)).where(
                results.c.batch_id == batch_id
            )
        ).one()
    after = (first or 0) - 1
    while True:
        values = {"batch": batch_id, "after": after, "last": last}
        with ledger.read() as tx:
            page = [AnswerRecord(*row) for row in plain_rows(tx, _RESULTS, values)]
        if not page:  # the end, or the remaining rows were removed meanwhile
            return
        yield page
        # A request has two results in one batch only if its former sending was found late.
        after = page[-1].seq


class Queue(NamedTuple):
    """The queue of a workspace in numbers."""

    queued: int
    at_api: int
    batches: int
    oldest: float | None
    """When the oldest batch at the API was submitted (seconds since the epoch)."""


_AT_API = (
    BatchState.SUBMITTING,
    BatchState.IN_PROGRESS,
    BatchState.CANCELING,
    BatchState.ENDED,
    BatchState.UNKNOWN,
)


def queue_of(tx: Connection, workspace_id: int) -> Queue:
    """Return the number of waiting requests and of open batches of a workspace.

    Open batches are those that the API has, or may have.
    """
    queued = tx.scalar(
        select(func.count())
        .select_from(requests)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .where(requests.c.state == RequestState.QUEUED, lanes.c.workspace_id == workspace_id)
    )
    found: dict[str, Record] = {}
    for row in tx.execute(
        select(
            batches.c.state,
            func.count().label("count"),
            func.sum(batches.c.request_count).label("requests"),
            func.min(func.coalesce(batches.c.submitted, batches.c.intended)).label("oldest"),
        )
        .join(lanes, lanes.c.id == batches.c.lane_id)
        .where(
            batches.c.state.in_((BatchState.PACKED, *_AT_API)),
            lanes.c.workspace_id == workspace_id,
        )
        .group_by(batches.c.state)
    ):
        found[row.state] = row
    packed = found.pop(BatchState.PACKED, None)
    at_api = found.values()
    return Queue(
        queued=(queued or 0) + (packed.requests if packed is not None else 0),
        at_api=sum(row.requests for row in at_api),
        batches=sum(row.count for row in at_api),
        oldest=min((row.oldest for row in at_api if row.oldest is not None), default=None),
    )
