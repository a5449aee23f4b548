"""Usage and cost of runs and batches: sums over the rows of `results`.

Every row counts, including those of requests that were sent again: an answer that was billed twice
costs twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    tuple_,
    update,
)

from claude_batch.core.events import AnsweredRequest
from claude_batch.core.states import UNDER_WAY, UNSUCCESSFUL, BatchState, RequestState
from claude_batch.ledger import charges
from claude_batch.ledger.portable_sql import count_if, count_rows, in_chunks, of_workspace, total
from claude_batch.ledger.schema import (
    OF_ANSWER,
    batch_runs,
    batches,
    params,
    requests,
    results,
    runs,
)
from claude_batch.ledger.store import Ledger, Record, joining_many, plain_rows
from claude_batch.ledger.transitions import REUSED

# Cost sums ----------------------------------------------------------------------------------------

Grouping = Literal["actor", "model", "day"]
"""By actor, by the model that answered, or the day (UTC) of the batch's end or live answer."""

PAGE = 1000
"""Answers per page."""

_SUCCEEDED = results.c.outcome == RequestState.SUCCEEDED


class Sums(NamedTuple):
    """Sums over results. Costs are in nano-dollars, for answers whose price is known."""

    group: str | int | None
    """An actor, a model or a day (counted since the epoch). None for no model, and for the
    total.
    """
    succeeded: int
    errored: int
    expired: int
    canceled: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_5m_tokens: int
    cache_1h_tokens: int
    web_searches: int
    unpriced: int
    """Number of answers whose cost is unknown: their model has no price, or their usage cannot be
    read.
    """
    cost: int
    live_cost: int
    uncached_cost: int
    reused: int
    """Number of answers reused from another request; no other number here includes them."""


_SUMS = (
    *(
        count_if((results.c.outcome == outcome) & (results.c.sending > REUSED))
        for outcome in ("succeeded", "errored", "expired", "canceled")
    ),
    total(results.c.input_tokens),
    total(results.c.output_tokens),
    total(results.c.cache_read_tokens),
    total(results.c.cache_5m_tokens),
    total(results.c.cache_1h_tokens),
    total(results.c.web_searches),
    count_if(_SUCCEEDED & results.c.cost.is_(None)),
    total(results.c.cost),
    total(results.c.live_cost),
    total(results.c.uncached_cost),
    count_if(results.c.sending == REUSED),
)


_KEYS = {
    None: null(),
    "actor": runs.c.actor,
    "model": results.c.model,
    "day": cast(func.coalesce(results.c.answered, batches.c.ended) / charges.DAY, Integer),
}
"""The groups of `Sums`."""


def sums(tx: Connection, run_id: str | None = None, by: Grouping | None = None) -> list[Sums]:
    """Return the usage and cost of a run or the whole ledger: one total, or groups in order."""
    key: Any = _KEYS[by]
    query = select(key, *_SUMS).select_from(results)
    if by is not None:
        query = query.group_by(key).order_by(key)
    if run_id is not None or by == "actor":
        query = query.join(requests, requests.c.seq == results.c.request_seq)
    if by == "actor":
        query = query.join(runs, runs.c.id == requests.c.run_id)
    if by == "day":
        query = query.join(batches, batches.c.id == results.c.batch_id)
    if run_id is not None:
        query = query.where(requests.c.run_id == run_id)
    return [Sums(*row) for row in tx.execute(query)]


_PROMPT = (
    results.c.input_tokens
    + results.c.cache_read_tokens
    + results.c.cache_5m_tokens
    + results.c.cache_1h_tokens
)
"""Tokens of the prompt, including cached ones."""


def unpriced_models(tx: Connection, run_id: str | None = None) -> dict[str, int]:
    """Return the number of answers whose model has no price, by model.

    Answers whose usage cannot be read are left out: they have no tokens, and no price would help.
    """
    query = (
        select(func.coalesce(results.c.model, ""), func.count())
        .where(_SUCCEEDED, results.c.cost.is_(None), _PROMPT + results.c.output_tokens > 0)
        .group_by(results.c.model)
        .order_by(results.c.model)
    )
    if run_id is not None:
        query = query.join(requests, requests.c.seq == results.c.request_seq).where(
            requests.c.run_id == run_id
        )
    return {str(model): count for model, count in tx.execute(query)}


def batches_with_results(tx: Connection, run_id: str) -> list[tuple[int, bool]]:
    """Return the batches of a run whose results are in the ledger, each with whether all are.

    Live calls of the same day are grouped in a batch too, to which more may be added.
    """
    rows = tx.execute(
        select(batches.c.id, batches.c.state)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(
            batch_runs.c.run_id == run_id,
            batches.c.state.in_((BatchState.COLLECTED, BatchState.LIVE)),
        )
    )
    return [(row.id, row.state == BatchState.COLLECTED) for row in rows]


def costs_in_batches(
    tx: Connection, run_id: str, batch_ids: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return a run's cost in each batch (nano-dollars), and its number of unpriced results."""
    nothing: tuple[int, int] = (0, 0)
    costs: dict[int, tuple[int, int]] = dict.fromkeys(batch_ids, nothing)
    for some in in_chunks(batch_ids):
        query = (
            select(
                results.c.batch_id,
                total(results.c.cost),
                count_if(_SUCCEEDED & results.c.cost.is_(None)),
            )
            .join(requests, requests.c.seq == results.c.request_seq)
            .where(
                results.c.batch_id.in_(some),
                requests.c.run_id == run_id,
                results.c.sending > REUSED,
            )
            .group_by(results.c.batch_id)
        )
        # A run that has just been stored looks small to the server, whose statistics are older.
        with joining_many(tx):
            rows = tx.execute(query).all()
        costs.update((row[0], (int(row[1]), int(row[2]))) for row in rows)
    return costs


def failures(tx: Connection, run_id: str) -> dict[str, int]:
    """Return a run's failed requests by error type, else by state; the most frequent first."""
    kind = func.coalesce(results.c.error_type, requests.c.state)
    number = func.count()
    rows = tx.execute(
        select(kind, number)
        .select_from(requests)
        .outerjoin(results, OF_ANSWER)
        .where(requests.c.run_id == run_id, requests.c.state.in_(UNSUCCESSFUL))
        .group_by(kind)
        .order_by(number.desc(), kind)
    )
    return {str(name): int(count) for name, count in rows}


def answer_times(tx: Connection, run_id: str) -> tuple[float | None, float | None]:
    """Return when a run's first and last results reached the ledger (seconds since the epoch)."""
    answered = (
        select(results.c.request_seq)
        .join(requests, requests.c.seq == results.c.request_seq)
        .where(
            results.c.batch_id == batches.c.id,
            requests.c.run_id == run_id,
            results.c.sending > REUSED,
        )
        .exists()
    )
    # A row of live calls was collected when the last one ended.
    live = (
        select(func.min(results.c.answered))
        .where(results.c.batch_id == batches.c.id, results.c.sending > REUSED)
        .scalar_subquery()
    )
    first = func.coalesce(case((batches.c.state == BatchState.LIVE, live)), batches.c.collected)
    row = tx.execute(
        select(func.min(first), func.max(batches.c.collected))
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(batch_runs.c.run_id == run_id, answered)
    ).one()
    return row[0], row[1]


_UNPRICED = (
    select(
        results.c.request_seq,
        results.c.sending,
        results.c.raw,
        batches.c.ended,
        (batches.c.state != literal_column("'live'")).label("of_batch"),
    )
    .join(batches, batches.c.id == results.c.batch_id)
    .join(requests, requests.c.seq == results.c.request_seq)
    .where(
        _SUCCEEDED,
        results.c.cost.is_(None),
        tuple_(results.c.request_seq, results.c.sending)
        > tuple_(bindparam("seq"), bindparam("sending")),
    )
    .order_by(results.c.request_seq, results.c.sending)
    .limit(PAGE)
)
_UNPRICED_OF_RUN = _UNPRICED.where(requests.c.run_id == bindparam("run"))


def unpriced_answers(ledger: Ledger, run_id: str | None = None) -> Iterator[list[Record]]:
    """Yield pages of answers without a price.

    Columns: request, sending, raw line, when its batch ended, and whether it came from a batch
    rather than a live call.
    """
    values: dict[str, Any] = {"seq": 0, "sending": 0}
    if run_id is not None:
        values["run"] = run_id
    while True:
        with ledger.read() as tx:
            page = list(plain_rows(tx, _UNPRICED if run_id is None else _UNPRICED_OF_RUN, values))
        if not page:
            return
        yield page
        values["seq"], values["sending"] = page[-1][:2]


_PUT = update(results).where(
    results.c.request_seq == bindparam("of_seq"),
    results.c.sending == bindparam("of_sending"),
    results.c.cost.is_(None),
)
"""Each execution adds the columns that its values name."""


Priced = tuple[int, int, str | None, int, int, int]
"""Request, sending, the model that answered, and the three costs in nano-dollars."""


def put_costs(tx: Connection, priced: Sequence[Priced]) -> None:
    """Store at least one price that was unknown when the answer was collected."""
    names = ("of_seq", "of_sending", "model", "cost", "live_cost", "uncached_cost")
    charges.price(tx, [(seq, sending, cost) for seq, sending, _, cost, _, _ in priced])
    tx.execute(_PUT, [dict(zip(names, row, strict=True)) for row in priced])


class Seen(NamedTuple):
    """The usage of one answer."""

    model: str
    actor: str
    size: int
    """Bytes of the request's params."""
    input_tokens: int
    """Tokens of the prompt, including cached ones."""
    output_tokens: int


_RECENT = 2000
"""Number of recent answers from which the length of the next ones is estimated."""


def recent_usage(tx: Connection) -> list[Seen]:
    """Return the usage of the newest answers."""
    newest = (
        select(
            results.c.request_seq,
            results.c.model,
            _PROMPT.label("prompt"),
            results.c.output_tokens,
        )
        .where(_SUCCEEDED, results.c.sending != REUSED)
        .order_by(results.c.request_seq.desc(), results.c.sending.desc())
        .limit(_RECENT)
        .subquery()
    )
    rows = tx.execute(
        select(
            func.coalesce(newest.c.model, ""),
            runs.c.actor,
            requests.c.size,
            newest.c.prompt,
            newest.c.output_tokens,
        )
        .join(requests, requests.c.seq == newest.c.request_seq)
        .join(runs, runs.c.id == requests.c.run_id)
    )
    return [Seen(*row) for row in rows]


def params_at(tx: Connection, run_id: str, positions: Sequence[int]) -> list[bytes]:
    """Return the params of some of a run's requests, by their 0-based positions."""
    return list(
        tx.scalars(
            select(params.c.body)
            .join(requests, requests.c.seq == params.c.request_seq)
            .where(requests.c.run_id == run_id, requests.c.position.in_(positions))
            .order_by(requests.c.position)
        )
    )


# Sums for events ----------------------------------------------------------------------------------

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


def sums_of_batches(tx: Connection, batch_ids: Sequence[int]) -> dict[int, list[BatchSums]]:
    """Return the usage of each batch's results, by outcome, error type and model."""
    alike = (results.c.batch_id, results.c.outcome, results.c.error_type, results.c.model)
    rows: Sequence[Any] = tx.execute(
        select(
            *alike,
            func.count(),
            func.sum(results.c.input_tokens),
            func.sum(results.c.output_tokens),
            func.sum(results.c.cache_read_tokens),
            func.sum(results.c.cache_5m_tokens + results.c.cache_1h_tokens),
            func.count(results.c.cost),
            total(results.c.cost),
        )
        .where(results.c.batch_id.in_(batch_ids), results.c.sending > REUSED)
        .group_by(*alike)
        .order_by(*alike)
    ).all()
    found: dict[int, list[BatchSums]] = {batch_id: [] for batch_id in batch_ids}
    for batch_id, *sums in rows:
        found[batch_id].append(BatchSums(*sums))
    return found


class AnswerRecord(NamedTuple):
    """One result of a batch."""

    seq: int
    actor: str
    beginning: bytes
    """The first bytes of the request's params."""
    answer: AnsweredRequest
    """The result, without the requested model, which ``beginning`` may name."""


_RESULTS = (
    select(
        results.c.request_seq,
        runs.c.actor,
        func.substr(params.c.body, 1, BEGINNING),
        # The fields of `AnsweredRequest`
        requests.c.run_id,
        requests.c.key,
        requests.c.position,
        requests.c.attempts,
        results.c.outcome,
        results.c.error_type,
        null(),
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
            page = [
                AnswerRecord(seq, actor, beginning, AnsweredRequest(*answer))
                for seq, actor, beginning, *answer in plain_rows(tx, _RESULTS, values)
            ]
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


def queue_of(tx: Connection, workspace_id: int) -> Queue:
    """Return the number of waiting requests and of open batches of a workspace.

    Open batches are those that the API has, or may have.
    """
    queued = count_rows(
        tx,
        requests,
        requests.c.state == RequestState.QUEUED,
        of_workspace(requests.c.lane_id, workspace_id),
    )
    by_state = (
        select(
            batches.c.state,
            func.count().label("count"),
            func.sum(batches.c.request_count).label("requests"),
            func.min(func.coalesce(batches.c.submitted, batches.c.intended)).label("oldest"),
        )
        .where(batches.c.state.in_(UNDER_WAY), of_workspace(batches.c.lane_id, workspace_id))
        .group_by(batches.c.state)
    )
    found: dict[str, Record] = {row.state: row for row in tx.execute(by_state)}
    packed = found.pop(BatchState.PACKED, None)
    at_api = found.values()
    return Queue(
        queued=queued + (packed.requests if packed is not None else 0),
        at_api=sum(row.requests for row in at_api),
        batches=sum(row.count for row in at_api),
        oldest=min((row.oldest for row in at_api if row.oldest is not None), default=None),
    )
