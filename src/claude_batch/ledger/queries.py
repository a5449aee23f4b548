"""Read queries: answers, counts, and the state of runs and batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    Connection,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
)

from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.ids import RUN_PREFIX
from claude_batch.core.states import OPEN, UNDER_WAY, UNSUCCESSFUL, BatchState, RequestState
from claude_batch.ledger.portable_sql import among, count_rows, finished_after, meta_number
from claude_batch.ledger.schema import (
    OF_ANSWER,
    batch_runs,
    batches,
    contexts,
    conversations,
    lanes,
    meta,
    requests,
    results,
    runs,
    strange_lines,
    workspaces,
)
from claude_batch.ledger.store import Ledger, Record, plain_rows, row_pages
from claude_batch.ledger.transitions import REUSED


class Answer(NamedTuple):
    """A request as its caller sees it: its state and, once final, its raw result line."""

    seq: int
    run_id: str
    position: int
    key: str | None
    state: RequestState
    attempt: int
    finished: int | None
    raw: bytes | None
    """The result line as the API sent it; None without a result."""
    batch_id: str | None
    """The API's id of the batch that answered."""
    cost: int | None = None
    """Nano-dollars for all its results; None without a result, or if one has no price."""
    via: str = "batch"
    """``live`` for a live call, ``batch`` for a batch."""
    reused: int | None = None
    """1 if the answer is another request's, or was in the ledger before the caller asked."""
    answered: float | None = None
    """When its batch ended, or the live call was answered; seconds since the epoch."""
    turns: int = 1
    """Number of answers it took, including those that did not match the response format."""
    stopped: str | None = None
    """Why its conversation could not continue: `claude_batch.core.states.Stop`."""
    note: str | None = None
    """The same reason in words."""
    outcome: str | None = None
    """The outcome in the result line; None without a line."""
    canceler: str | None = None
    """The origin of a cancellation. ``user``: its run or call was cancelled here. ``deadline``:
    its run was withdrawn for its deadline. ``api``: another client cancelled its batch at the API.
    """
    kind: str | None = None
    """For a request that did not succeed: the kind of its run, ``run`` or ``calls``."""
    context: bytes | None = None
    """The caller's context of the request, as JSON; None if nothing is stored."""


class Success(NamedTuple):
    """The part of a succeeded request's `Answer` that an output file shows.

    Half as many columns take half the time to read.
    """

    seq: int
    position: int
    key: str | None
    attempt: int
    raw: bytes
    batch_id: str | None
    cost: int | None
    via: str
    reused: int | None
    context: bytes | None

    state = RequestState.SUCCEEDED


WAITING = (RequestState.QUEUED, RequestState.HELD)
"""States of requests that are in no batch."""

# The state's members by value; a lookup is cheaper than calling the enum for every row.
_STATES = {state.value: state for state in RequestState}


# A request without a line has no answer, although its batch has ended.
_ANSWERED_AT = case(
    (results.c.batch_id.is_(None), null()), else_=func.coalesce(results.c.answered, batches.c.ended)
)


def _of_its_run(value: Any) -> Any:
    return select(value).where(runs.c.id == requests.c.run_id).scalar_subquery()


def _word(text: str) -> Any:
    return literal_column(f"'{text}'", String())


def _only_if(value: Any, *states: str) -> Any:
    # SQLite evaluates only the branch that it takes, so other requests pay nothing for this.
    return case((requests.c.state.in_(list(map(_word, states))), value), else_=None)


_CANCELER = case(
    (
        and_(
            results.c.outcome == _word("canceled"),
            batches.c.cancel_requested.is_(None),
        ),
        _word("api"),
    ),
    (
        _of_its_run(and_(runs.c.past_margin.is_not(None), runs.c.cancelled.is_(None))),
        _word("deadline"),
    ),
    else_=_word("user"),
)


_billed = results.alias("billed")
# Every result counts, as in the costs of a run: turns, attempts, and answers that came twice.
_ALL_COSTS = (
    select(case((func.count() == func.count(_billed.c.cost), func.sum(_billed.c.cost))))
    .where(_billed.c.request_seq == requests.c.seq)
    .scalar_subquery()
)
# A request that was sent once has one result, and looking for others would take a third of the time
# of an output.
_IS_ONLY = and_(
    requests.c.sendings == literal_column("1"), results.c.sending == literal_column("1")
)
COST: Any = case((_IS_ONLY, results.c.cost), else_=_ALL_COSTS)
"""What a request has cost in nano-dollars; NULL without a result, or if one has no price.

For a query that joins requests to their answers (`OF_ANSWER`).
"""
_VIA = case((batches.c.state == literal_column("'live'"), "live"), else_="batch")
_REUSED = requests.c.answered_by == REUSED


def _with_results(*columns: Any) -> Any:
    return (
        select(*columns)
        .outerjoin(results, OF_ANSWER)
        .outerjoin(batches, batches.c.id == func.coalesce(results.c.batch_id, requests.c.batch_id))
    )


def _answers() -> Any:
    return _with_results(
        requests.c.seq,
        requests.c.run_id,
        requests.c.position,
        requests.c.key,
        requests.c.state,
        requests.c.attempts,
        requests.c.finished,
        results.c.raw,
        batches.c.remote_id,
        COST,
        _VIA,
        _REUSED,
        _ANSWERED_AT,
        func.coalesce(conversations.c.turns + conversations.c.rejected, 0) + 1,
        conversations.c.stopped,
        conversations.c.note,
        results.c.outcome,
        _only_if(_CANCELER, "canceled"),
        _only_if(_of_its_run(runs.c.kind), *UNSUCCESSFUL),
        null(),  # the context, which is read apart
    ).outerjoin(conversations, conversations.c.request_seq == requests.c.seq)


def _answer(row: Sequence[Any]) -> Answer:
    # `_make` is faster than passing twenty arguments.
    return Answer._make((*row[:4], _STATES[row[4]], *row[5:]))


_AnswerT = TypeVar("_AnswerT", Answer, Answer | Success)


def _with_contexts(tx: Connection, answers: list[_AnswerT]) -> list[_AnswerT]:
    """Return the answers with their stored contexts; of a ledger without any, the same list."""
    if not answers or tx.scalar(_ANY_CONTEXT) is None:
        return answers
    seqs = (answer.seq for answer in answers)
    rows = among(tx, select(contexts), contexts.c.request_seq, seqs)
    found: dict[int, bytes] = {row.request_seq: row.value for row in rows}
    return [
        answer._replace(context=found[answer.seq]) if answer.seq in found else answer
        for answer in answers
    ]


_ANY_CONTEXT = select(contexts.c.request_seq).limit(1)
_BY_POSITION = (
    _answers()
    .where(requests.c.run_id == bindparam("run"), requests.c.position > bindparam("after"))
    .order_by(requests.c.position)
)
_OF_STATE = _BY_POSITION.where(requests.c.state == bindparam("state"))


_PAGE_BYTES = 1 << 20


def answers_by_position(
    ledger: Ledger,
    run_id: str,
    *,
    start: int = 0,
    state: RequestState | None = None,
    page_rows: int = 100_000,
) -> Iterator[Answer]:
    """Return a run's requests from a position on, in order, whatever their state, or of one.

    A transaction reads a page: about `_PAGE_BYTES`, and at most ``page_rows`` in hundreds. Raises
    `RunNotFoundError` if the run is removed meanwhile.
    """
    query, values = (_BY_POSITION, {}) if state is None else (_OF_STATE, {"state": state.value})

    def read(after: int, tx: Connection) -> list[Answer]:
        page: list[Answer] = []
        size = 0
        with closing(row_pages(tx, query, {"run": run_id, "after": after, **values})) as found:
            for rows in found:
                answers = [_answer(row) for row in rows]
                page += answers
                size += sum([len(answer.raw or b"") + 200 for answer in answers])
                if size >= _PAGE_BYTES or len(page) >= page_rows:
                    break
        return _with_contexts(tx, page)

    return _pages(ledger, run_id, read, start)


def _pages(
    ledger: Ledger, run_id: str, read: Callable[[int, Connection], list[_AnswerT]], start: int
) -> Iterator[_AnswerT]:
    """Yield what ``read`` returns of the requests after a position, page by page, until nothing."""
    after, was_stored = start - 1, False

    def look(tx: Connection) -> list[_AnswerT]:
        nonlocal was_stored
        stored, page = run_row(tx, run_id).stored is not None, read(after, tx)
        # A removal first marks the run as not stored. A run that is being stored has no answers.
        if not stored and (was_stored or any(answer.raw for answer in page)):
            raise _removed(run_id)
        was_stored = stored
        return page

    while page := ledger.query(look):
        yield from page
        after = page[-1].position


_OUTPUTS = (
    _with_results(
        requests.c.seq,
        requests.c.position,
        requests.c.key,
        requests.c.attempts,
        case((requests.c.state == literal_column("'succeeded'"), results.c.raw)),
        batches.c.remote_id,
        COST,
        _VIA,
        _REUSED,
        null(),
    )
    .where(requests.c.run_id == bindparam("run"), requests.c.position > bindparam("after"))
    .order_by(requests.c.position)
)
_NO_OUTPUTS = _BY_POSITION.where(
    requests.c.position <= bindparam("last"),
    or_(requests.c.state != literal_column("'succeeded'"), results.c.raw.is_(None)),
)


def outputs_by_position(
    ledger: Ledger, run_id: str, *, start: int = 0
) -> Iterator[Answer | Success]:
    """Return the requests of `answers_by_position`, of each success only what files show."""

    def read(after: int, tx: Connection) -> list[Answer | Success]:
        page: list[Answer | Success] = []
        others = False
        size = 0
        values = {"run": run_id, "after": after}
        with closing(row_pages(tx, _OUTPUTS, values)) as found:
            for rows in found:
                page += map(Success._make, rows)
                raws = [row[4] or b"" for row in rows]
                others = others or b"" in raws
                size += sum(map(len, raws)) + 200 * len(raws)
                if size >= _PAGE_BYTES // 2:
                    break
        if others:
            last = page[-1].position
            rows = plain_rows(tx, _NO_OUTPUTS, {**values, "last": last})
            answers = {answer.position: answer for answer in map(_answer, rows)}
            page = [answers.get(each.position, each) for each in page]
        return _with_contexts(tx, page)

    return _pages(ledger, run_id, read, start)


def waiting_by_position(tx: Connection, run_id: str, *, start: int, limit: int) -> list[Answer]:
    """Return a run's requests that are in no batch, from a position on, in order."""
    rows = tx.execute(
        _answers()
        .where(
            requests.c.run_id == run_id,
            requests.c.position >= start,
            requests.c.state.in_(WAITING),
        )
        .order_by(requests.c.position)
        .limit(limit)
    )
    return _with_contexts(tx, [_answer(row) for row in rows])


def answers_since(
    tx: Connection, run_id: str, *, after: tuple[int, int], limit: int = 500
) -> list[Answer]:
    """Return finished requests of a run in order of completion, after ``(finished, seq)``."""
    found: list[Answer] = []
    for later in finished_after(after):
        in_order = _answers().where(requests.c.run_id == run_id, later)
        in_order = in_order.order_by(requests.c.finished, requests.c.seq)
        found += [_answer(row) for row in tx.execute(in_order.limit(limit - len(found)))]
        if len(found) == limit:
            break
    return _with_contexts(tx, found)


def answer_of(tx: Connection, seq: int) -> Answer:
    """Return one request by its row number."""
    answer = _answer(tx.execute(_answers().where(requests.c.seq == seq)).one())
    return _with_contexts(tx, [answer])[0]


_LANES = lanes.c.workspace_id == workspaces.c.id
_AT_WORK = select(workspaces.c.id).where(
    or_(
        # Literals, so that the partial indexes answer; each ends at the first row that it finds.
        *(
            exists()
            .where(
                requests.c.lane_id == lanes.c.id, _LANES, requests.c.state == literal_column(state)
            )
            .correlate(workspaces)
            for state in ("'queued'", "'held'")
        ),
        exists()
        .where(
            requests.c.run_id == runs.c.id,
            runs.c.workspace_id == workspaces.c.id,
            requests.c.state == literal_column("'continuing'"),
        )
        .correlate(workspaces),
        exists()
        .where(batches.c.lane_id == lanes.c.id, _LANES, batches.c.state.in_(UNDER_WAY))
        .correlate(workspaces),
        # Live calls under way, also of a process that died. Only those since yesterday are read,
        # because a batch of live calls keeps all of its day.
        exists()
        .where(
            requests.c.batch_id == batches.c.id,
            requests.c.state == literal_column("'packed'"),
            batches.c.lane_id == lanes.c.id,
            _LANES,
            batches.c.state == BatchState.LIVE,
            batches.c.day >= bindparam("day"),
        )
        .correlate(workspaces),
    )
)


def workspaces_at_work(tx: Connection, now: float) -> set[int]:
    """Return the workspaces with requests that wait to be sent or for their outcome."""
    return set(tx.scalars(_AT_WORK, {"day": int(now // 86400.0) - 1}))


def find_run(tx: Connection, run_id: str) -> Record | None:
    """Return a run by its id, or None if it does not exist."""
    return tx.execute(select(runs).where(runs.c.id == run_id)).first()


def runs_called(tx: Connection, run_id: str, *, limit: int) -> list[Record]:
    """Return the run with this id, or else the runs whose ids begin with it.

    They are ordered by id. A prefix that every id has, such as ``run-``, finds nothing.
    """
    if (exact := find_run(tx, run_id)) is not None:
        return [exact]
    if RUN_PREFIX.startswith(run_id):
        return []
    beginning = runs.c.id.startswith(run_id, autoescape=True)
    return list(tx.execute(select(runs).where(beginning).order_by(runs.c.id).limit(limit)))


_RUN = select(runs).where(runs.c.id == bindparam("run"))


def run_row(tx: Connection, run_id: str) -> Record:
    """Return a run that existed a moment ago. Raises `RunNotFoundError` if it was removed since."""
    if (row := tx.execute(_RUN, {"run": run_id}).first()) is None:
        raise _removed(run_id)
    return row


def _removed(run_id: str) -> RunNotFoundError:
    return RunNotFoundError(
        f"{run_id} was removed from the ledger meanwhile, as by `claude-batch ledger prune`; what "
        "was read of it before may be incomplete"
    )


def is_stored(tx: Connection, run_id: str) -> bool | None:
    """Return whether a run was fully stored; None if it is gone."""
    stored = tx.execute(select(runs.c.stored).where(runs.c.id == run_id)).first()
    return None if stored is None else stored[0] is not None


def recent_runs(
    tx: Connection,
    limit: int,
    *,
    before: tuple[float, str] | None = None,
    actor: str | None = None,
) -> list[Record]:
    """Return the newest runs that hold at least one request, newest first.

    ``before``: only runs older than ``(created, id)``.
    """
    query = select(runs).where(runs.c.request_count > 0)
    if actor is not None:
        query = query.where(runs.c.actor == actor)
    if before is not None:
        created, run_id = before
        query = query.where(
            or_(
                runs.c.created < created,
                and_(runs.c.created == created, runs.c.id > run_id),
            )
        )
    return list(tx.execute(query.order_by(runs.c.created.desc(), runs.c.id).limit(limit)))


def actors(tx: Connection) -> list[str]:
    """Return the names of all actors that have a run, sorted."""
    return sorted(tx.scalars(select(runs.c.actor).where(runs.c.request_count > 0).distinct()))


def actors_of_runs(tx: Connection, run_ids: Collection[str]) -> dict[str, str]:
    """Return the actors of runs by the runs' ids."""
    query = select(runs.c.id, runs.c.actor)
    return {row.id: row.actor for row in among(tx, query, runs.c.id, run_ids)}


def request_counts(tx: Connection, run_id: str) -> dict[RequestState, int]:
    """Return the number of a run's requests in each state; empty states are left out."""
    rows = tx.execute(
        select(requests.c.state, func.count())
        .where(requests.c.run_id == run_id)
        .group_by(requests.c.state)
    )
    return {RequestState(state): count for state, count in rows}


def batches_of_run(tx: Connection, run_id: str, newest: int | None = None) -> list[Record]:
    """Return the batches that carried requests of a run, oldest first.

    ``newest``: only so many of the newest ones, newest first.
    """
    query = (
        select(batches)
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(batch_runs.c.run_id == run_id, batches.c.state != BatchState.REJECTED)
    )
    order = batches.c.id if newest is None else batches.c.id.desc()
    return list(tx.execute(query.order_by(order).limit(newest)))


def standing(tx: Connection, run_id: str) -> dict[tuple[str, str], int]:
    """Return the number of a run's unfinished requests by their state and their batch's ("")."""
    state = func.coalesce(batches.c.state, "")
    rows = tx.execute(
        select(requests.c.state, state, func.count())
        .outerjoin(batches, batches.c.id == requests.c.batch_id)
        .where(requests.c.run_id == run_id, requests.c.finished.is_(None))
        .group_by(requests.c.state, state)
    )
    return {(row[0], row[1]): row[2] for row in rows}


class PackedRequests(NamedTuple):
    """How many requests of a run wait for their outcome, by where they are."""

    unsent: int
    """In batches that wait to be sent."""
    sent: int
    """In batches that the API has, or may have."""
    live: int
    """In live calls."""


def packed_requests(tx: Connection, run_id: str) -> PackedRequests:
    """Return how many requests of a run are in batches or live calls."""
    counts = {
        of_batch: count
        for (state, of_batch), count in standing(tx, run_id).items()
        if state == RequestState.PACKED
    }
    unsent, live = (counts.pop(state, 0) for state in (BatchState.PACKED, BatchState.LIVE))
    return PackedRequests(unsent, sum(counts.values()), live)


def unsent(tx: Connection, run_id: str) -> int:
    """Return how many of a run's requests are queued, or in a batch that is not submitted yet."""
    unsubmitted = (BatchState.PACKED, BatchState.SUBMITTING)
    return sum(
        count
        for (state, of_batch), count in standing(tx, run_id).items()
        if state == RequestState.QUEUED
        or (state == RequestState.PACKED and of_batch in unsubmitted)
    )


def requests_of_batches(tx: Connection, run_id: str) -> dict[BatchState, int]:
    """Return how many requests the batches that carry a run's requests hold, by their state."""
    rows = tx.execute(
        select(batches.c.state, func.sum(batches.c.request_count))
        .join(batch_runs, batch_runs.c.batch_id == batches.c.id)
        .where(batch_runs.c.run_id == run_id)
        .group_by(batches.c.state)
    )
    return {BatchState(state): count for state, count in rows}


def runs_of_batch(tx: Connection, batch_id: int) -> list[Record]:
    """Return the runs that have requests in a batch: id, kind, actor and trace."""
    return runs_of_batches(tx, [batch_id])[batch_id]


def runs_of_batches(tx: Connection, batch_ids: Sequence[int]) -> dict[int, list[Record]]:
    """Return `runs_of_batch` of each of these batches."""
    rows = tx.execute(
        select(batch_runs.c.batch_id, runs.c.id, runs.c.kind, runs.c.actor, runs.c.trace)
        .join(batch_runs, batch_runs.c.run_id == runs.c.id)
        .where(batch_runs.c.batch_id.in_(batch_ids))
        .order_by(runs.c.created, runs.c.id)
    )
    found: dict[int, list[Record]] = {batch_id: [] for batch_id in batch_ids}
    for row in rows:
        found[row.batch_id].append(row)
    return found


def last_stamp(tx: Connection) -> int:
    """Return the stamp of the last transaction that finished requests, of any run."""
    return meta_number(tx, "stamp")


_last = select(func.max(requests.c.finished)).where(
    requests.c.run_id == runs.c.id, requests.c.finished.is_not(None)
)
LAST_ENDING: Any = func.coalesce(_last.scalar_subquery(), 0)
"""The stamp of the last request of a run that became final, or 0, for a query of runs."""


def last_endings(tx: Connection, run_ids: Collection[str]) -> dict[str, int]:
    """Return the stamp of the last request of each run that became final; 0 if none has."""
    # One statement, which seeks once for each run.
    rows = tx.execute(select(runs.c.id, LAST_ENDING).where(runs.c.id.in_(run_ids)))
    return {row[0]: row[1] for row in rows}


def last_ending(tx: Connection, run_id: str) -> int:
    """Return `last_endings` of one run. Raises as `run_row` does."""
    run_row(tx, run_id)
    return last_endings(tx, [run_id])[run_id]


def strange_count(tx: Connection, run_id: str) -> int:
    """Return the number of lines of the run's batches that are no results."""
    lines = strange_lines.join(batch_runs, batch_runs.c.batch_id == strange_lines.c.batch_id)
    return count_rows(tx, lines, batch_runs.c.run_id == run_id)


def workspace_ids(tx: Connection) -> list[int]:
    """Return the ids of all workspaces of the ledger."""
    return list(tx.scalars(select(workspaces.c.id).order_by(workspaces.c.id)))


def waiting_workspaces(tx: Connection) -> set[int]:
    """Return the ids of the workspaces in which requests have no outcome yet."""
    waits = (
        select(requests.c.seq)
        .join(lanes, lanes.c.id == requests.c.lane_id)
        .where(lanes.c.workspace_id == workspaces.c.id, requests.c.state.in_(OPEN))
    )
    return set(tx.scalars(select(workspaces.c.id).where(waits.exists())))


def count_by_state(tx: Connection, table: Table) -> dict[str, int]:
    """Return the number of rows of `requests` or `batches` in each state, over all runs."""
    state = table.c.state
    rows = tx.execute(select(state, func.count()).group_by(state).order_by(state))
    return {str(state): int(count) for state, count in rows}


def counts_by_state(tx: Connection) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of requests and the number of batches in each state, over all runs."""
    return count_by_state(tx, requests), count_by_state(tx, batches)


def behind(tx: Connection) -> list[str]:
    """Return the base URL of each workspace that sends nothing until the ledger is recovered."""
    return list(tx.scalars(select(workspaces.c.base_url).where(workspaces.c.behind.is_not(None))))


def addresses(tx: Connection, limit: int) -> list[str]:
    """Return the base URLs of a ledger's newest workspaces."""
    newest = func.max(workspaces.c.id).desc()
    found = select(workspaces.c.base_url).group_by(workspaces.c.base_url).order_by(newest)
    return list(tx.scalars(found.limit(limit)))


# Finished requests are counted in their index alone; open ones would need a row lookup each.
FINISHED: Any = (
    select(func.count())
    .where(requests.c.run_id == runs.c.id, requests.c.finished.is_not(None))
    .scalar_subquery()
)
"""The number of final requests of a run, for a query of runs."""


def unfinished(tx: Connection, run_id: str) -> int:
    """Return the number of a run's requests without a final state. Raises as `run_row` does."""
    left = tx.scalar(select(runs.c.request_count - FINISHED).where(runs.c.id == run_id))
    if left is None:
        raise _removed(run_id)
    return left


def unfinished_runs(tx: Connection, run_ids: Collection[str]) -> set[str]:
    """Return those of these runs that have requests without a final state."""
    unfinished = and_(runs.c.id.in_(run_ids), runs.c.request_count > FINISHED)
    return set(tx.scalars(select(runs.c.id).where(unfinished)))


def runs_with_failures(tx: Connection, run_ids: Collection[str]) -> set[str]:
    """Return those of these ended runs that have a request that did not succeed."""
    failed = requests.c.state != RequestState.SUCCEEDED
    others = exists().where(requests.c.run_id == runs.c.id, failed)
    return set(tx.scalars(select(runs.c.id).where(runs.c.id.in_(run_ids), others)))


def metadata_of(tx: Connection) -> dict[str, str]:
    """Return the ledger's metadata by name."""
    return {row.name: row.value for row in tx.execute(select(meta))}


def may_write_on_server(tx: Connection) -> tuple[bool, bool, bool]:
    """Return if a server's settings, and its user's rights, allow to write the ledger's tables.

    The last one is the right to create the temporary tables that rows are stored through.
    """
    writable = func.current_setting("transaction_read_only") == "off"
    writes = func.has_table_privilege(requests.name, "INSERT")
    stores = func.has_database_privilege(func.current_database(), "TEMP")
    return tx.execute(select(writable, writes, stores)).one().tuple()


def workspaces_of(tx: Connection) -> list[dict[str, Any]]:
    """Return the rows of all workspaces."""
    found = tx.execute(select(workspaces).order_by(workspaces.c.id)).mappings()
    return [dict(row) for row in found]
