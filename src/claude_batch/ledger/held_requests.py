"""Held requests, which wait for another's answer or turn, and the digests that find equal requests.

Digests are kept only for runs and calls that ask for them.

A double (duplicate request) is never sent. It ends with the other request, with the same answer, at
no cost. Whatever happens to the other request, a held request goes on, because only the other's
state decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
)

from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import transitions
from claude_batch.ledger.portable_sql import (
    among,
    count_rows,
    finished_after,
    in_chunks,
    meta_number,
    of_workspace,
    put_meta,
    upsert,
)
from claude_batch.ledger.schema import (
    batches,
    calls,
    conversations,
    digests,
    doubles,
    params,
    primers,
    requests,
    results,
    runs,
)
from claude_batch.ledger.single_calls import digest_of
from claude_batch.ledger.store import Ledger, insert_many, joining_many, plain_rows
from claude_batch.ledger.transitions import REUSED, is_double

# Digests ------------------------------------------------------------------------------------------

Pair = tuple[int, int]
"""A request, and the request whose answer it shares; row numbers."""

_PAGE = 500
"""Requests whose params are read at a time."""

_INDEXED = "digested"
"""The meta row with the stamp up to which answers have digests."""

_INSERT_DIGEST = insert(digests)
_INSERT_MISSING = upsert(digests).on_conflict_do_nothing()


def add_digests(tx: Connection, new: Sequence[tuple[int, bytes]]) -> None:
    """Store the digests of requests that were just stored: row number and digest."""
    if new:
        insert_many(tx, _INSERT_DIGEST, list(new))


def digest_in(tx: Connection, seq: int) -> bytes | None:
    """Return the stored digest of a request; None if only its params are stored."""
    return tx.scalar(select(digests.c.digest).where(digests.c.request_seq == seq))


_first = (
    select(digests.c.digest, requests.c.lane_id, func.min(requests.c.seq).label("seq"))
    .join(requests, requests.c.seq == digests.c.request_seq)
    .where(requests.c.run_id == bindparam("run"))
    .group_by(digests.c.digest, requests.c.lane_id)
    .having(func.count() > literal_column("1"))
    .subquery()
)
_DOUBLED = (
    select(requests.c.seq, _first.c.seq)
    .join(digests, digests.c.request_seq == requests.c.seq)
    .join(_first, and_(_first.c.digest == digests.c.digest, _first.c.lane_id == requests.c.lane_id))
    .where(
        requests.c.run_id == bindparam("run"),
        requests.c.seq > _first.c.seq,
        requests.c.state == RequestState.QUEUED,
    )
)


def doubled(tx: Connection, run_id: str) -> Iterator[Pair]:
    """Yield the queued requests of a run that equal an earlier one of the same run."""
    with joining_many(tx):
        yield from plain_rows(tx, _DOUBLED, {"run": run_id})


def _serves(answer: Any, run_id: Any) -> Any:
    """Return the condition for answers that another run's request may reuse.

    A run that converses reuses no answer that asks for another turn. A run that does not converse
    reuses no answer that took one.
    """
    converses = exists().where(runs.c.id == run_id, runs.c.converses)
    is_last = exists().where(
        results.c.request_seq == answer.c.seq,
        results.c.sending == answer.c.answered_by,
        results.c.disposition == literal_column("'final'"),
    )
    took_turns = exists().where(conversations.c.request_seq == answer.c.seq)
    return or_(and_(converses, is_last), and_(~converses, ~took_turns))


_earlier = requests.alias("answer")
_its_digest = digests.alias("its_digest")
_ANSWERED = (
    select(requests.c.seq, func.min(_earlier.c.seq))
    .join(digests, digests.c.request_seq == requests.c.seq)
    .join(_its_digest, _its_digest.c.digest == digests.c.digest)
    .join(
        _earlier,
        and_(
            _earlier.c.seq == _its_digest.c.request_seq,
            _earlier.c.lane_id == requests.c.lane_id,
            _earlier.c.state == RequestState.SUCCEEDED,
        ),
    )
    .where(
        requests.c.run_id == bindparam("run"),
        requests.c.state == RequestState.QUEUED,
        _serves(_earlier, requests.c.run_id),
    )
    .group_by(requests.c.seq)
)


def answered_before(tx: Connection, run_id: str) -> Iterator[Pair]:
    """Yield the queued requests of a run whose params were answered before in the same lane."""
    yield from plain_rows(tx, _ANSWERED, {"run": run_id})


def answered_calls(tx: Connection, calls: Sequence[tuple[int, int, bytes]]) -> list[Pair]:
    """Return those of some single calls (row number, lane, digest) that were answered before."""
    found: list[Pair] = []
    for seq, lane_id, digest in calls:
        run_id = select(requests.c.run_id).where(requests.c.seq == seq)
        asker = tx.scalar(run_id)
        answer = tx.scalar(
            select(func.min(requests.c.seq))
            .join(digests, digests.c.request_seq == requests.c.seq)
            .where(
                digests.c.digest == digest,
                requests.c.lane_id == lane_id,
                requests.c.state == RequestState.SUCCEEDED,
                _serves(requests, asker),
            )
        )
        if answer is not None:
            found.append((seq, int(answer)))
    return found


_FAILED = "failed"
"""The meta row with the time of the last failure that is repeated for equal calls."""


def remember_failures(tx: Connection, seqs: Sequence[int], now: float) -> None:
    """Let equal calls find these failed calls, whose failure has just reached its caller."""
    if not seqs:
        return
    for some in in_chunks(seqs):
        rows = tx.execute(select(params).where(params.c.request_seq.in_(some)))
        new = [(row.request_seq, digest_of(row.body)) for row in rows]
        insert_many(tx, _INSERT_MISSING, new)
    put_meta(tx, _FAILED, int(now))


def any_failed_since(tx: Connection, since: float) -> bool:
    """Return whether `remember_failures` was called after a time; at the cost of one row."""
    return meta_number(tx, _FAILED) >= int(since)


class Failure(NamedTuple):
    """A failed call that equal calls find."""

    seq: int
    taken: float
    """When its caller received the failure."""


def failures(
    tx: Connection, wanted: Collection[bytes]
) -> defaultdict[tuple[int, str, bytes], list[Failure]]:
    """Return the failed calls with these digests by lane, actor and digest, the last one last.

    Calls whose conversation the driver continues are excluded, because they ask for more.
    """
    failed = (
        select(requests.c.lane_id, runs.c.actor, digests.c.digest, requests.c.seq, calls.c.taken)
        .select_from(digests)
        .join(requests, requests.c.seq == digests.c.request_seq)
        .join(calls, calls.c.request_seq == requests.c.seq)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(
            requests.c.finished.is_not(None),
            requests.c.state != RequestState.SUCCEEDED,
            calls.c.taken.is_not(None),
            ~runs.c.converses,
        )
        .order_by(calls.c.taken)
    )
    found: defaultdict[tuple[int, str, bytes], list[Failure]] = defaultdict(list)
    for row in among(tx, failed, digests.c.digest, wanted):
        found[row.lane_id, row.actor, row.digest].append(Failure(row.seq, row.taken))
    return found


def forget_failures(tx: Connection, seqs: Collection[int]) -> None:
    """Hide failed calls from equal ones."""
    for some in in_chunks(seqs):
        tx.execute(delete(digests).where(digests.c.request_seq.in_(some)))


def index_answers(ledger: Ledger) -> None:
    """Store a digest for every answered request of the ledger that lacks one. Raises `LedgerError`.

    Indexed answers are not read again, and each transaction is short.
    """
    with ledger.read() as tx:
        stamp = meta_number(tx, "stamp")
        since = meta_number(tx, _INDEXED)
        if since == stamp:
            return
        # The index of finished requests answers for each run, and most have nothing new.
        newer = and_(requests.c.run_id == runs.c.id, requests.c.finished > since)
        changed = exists().where(newer).correlate(runs)
        run_ids = list(tx.scalars(select(runs.c.id).where(runs.c.stored.is_not(None), changed)))
    for run_id in run_ids:
        after, count = (since, _ROWS), _PAGE
        while count == _PAGE:
            new: list[tuple[int, bytes]] = []
            count = 0
            with ledger.read() as tx:
                for later in finished_after(after):
                    for row in tx.execute(_unindexed(run_id, later, _PAGE - count)):
                        count, after = count + 1, (row.finished, row.seq)
                        if not row.known:
                            new.append((row.seq, digest_of(row.body)))
            if new:
                with ledger.write() as tx:
                    if tx.scalar(select(runs.c.id).where(runs.c.id == run_id)) is None:
                        break  # it was removed; its row numbers may be those of other requests
                    # Another process may have given some of them a digest meanwhile.
                    insert_many(tx, _INSERT_MISSING, new)
    with ledger.write() as tx:
        put_meta(tx, _INDEXED, stamp)


def _unindexed(run_id: str, later: ColumnElement[bool], most: int) -> Any:
    known = exists().where(digests.c.request_seq == requests.c.seq)
    # For a conversation: the params of the first turn.
    asked = func.coalesce(conversations.c.first_params, params.c.body)
    return (
        select(requests.c.seq, requests.c.finished, asked.label("body"), known.label("known"))
        .join(params, params.c.request_seq == requests.c.seq)
        .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
        .where(
            requests.c.run_id == run_id,
            requests.c.state == RequestState.SUCCEEDED,
            later,
        )
        .order_by(requests.c.finished, requests.c.seq)
        .limit(most)
        # Params may have a document of 30 MB in them.
        .execution_options(yield_per=10)
    )


# Held requests ------------------------------------------------------------------------------------

_MOST = 50_000
"""Doubles that one transaction answers."""

_CHUNK = 2000
_HELD_AT_ONCE = 20_000
"""Requests of a run that one transaction reads, so that other writers do not wait long."""

_ROWS = 1 << 35
"""More than any row number; with the size of a request in front, which has 28 bits
(`wire.limits.MAX_BODY_BYTES`), it fits into 63 bits."""

_INSERT = insert(doubles)


def is_held() -> Any:
    """Return the condition for requests that wait for another request."""
    # A literal, so that SQLite can use the partial index of held requests.
    return requests.c.state == literal_column("'held'")


_ANY_HELD = (
    select(requests.c.seq)
    .where(is_held(), of_workspace(requests.c.lane_id, bindparam("workspace")))
    .limit(1)
)


def any_held(tx: Connection, workspace_id: int) -> bool:
    """Return whether a workspace has held requests; almost free if it has none."""
    return tx.scalar(_ANY_HELD, {"workspace": workspace_id}) is not None


def stamp_of(tx: Connection) -> tuple[int, int]:
    """Return values that change whenever a held request may go on.

    They change when a request becomes final or unknown.
    """
    return meta_number(tx, "stamp"), count_rows(tx, batches, batches.c.state == BatchState.UNKNOWN)


def hold_doubles(ledger: Ledger, pairs: Iterable[Pair]) -> None:
    """Hold duplicate requests of a run that is not stored yet."""
    for chunk in in_chunks(pairs, _CHUNK):
        with ledger.write() as tx:
            _remember(tx, chunk)
            transitions.hold(tx, requests.c.seq.in_([seq for seq, _ in chunk]))


def take_answers(tx: Connection, pairs: Sequence[Pair]) -> None:
    """Copy other requests' answers to requests that were just stored, which makes these final.

    A request whose answer was removed since it was found stays queued. One whose run judges answers
    goes on from an answer that was never judged.
    """
    if not pairs:
        return
    answers = requests.c.seq.in_({of_seq for _, of_seq in pairs})
    is_there = requests.c.state == RequestState.SUCCEEDED
    there = set(tx.scalars(select(requests.c.seq).where(answers, is_there)))
    # A pair without its answer would hold the request for good as soon as it is tried again.
    if found := [pair for pair in pairs if pair[1] in there]:
        _remember(tx, found)
        mine = requests.c.seq.in_([seq for seq, _ in found])
        _answer(tx, mine)
        _judge_copies(tx, mine)


def take_all_answers(ledger: Ledger, pairs: Iterable[Pair]) -> None:
    """Run `take_answers` for a run in short transactions."""
    for chunk in in_chunks(pairs, _CHUNK):
        with ledger.write() as tx:
            take_answers(tx, chunk)


def _remember(tx: Connection, pairs: Sequence[Pair]) -> None:
    insert_many(tx, _INSERT, list(pairs))


def hold_back(ledger: Ledger, run_id: str) -> int:
    """Queue one primer for each prefix of a run and hold the others; return the number of primers.

    The run is not stored yet, so none of it can be packed. Each transaction is short.
    """
    mine = and_(requests.c.run_id == run_id, requests.c.state == RequestState.QUEUED)
    # The shortest, because a budget that has no room for it has none for the others.
    shortest = func.min(cast(requests.c.size, BigInteger) * _ROWS + requests.c.seq) % _ROWS
    with ledger.write() as tx:
        first = (
            select(shortest, requests.c.run_id, requests.c.prefix)
            .where(mine, requests.c.prefix.is_not(None))
            .group_by(requests.c.run_id, requests.c.prefix)
            .having(func.count() > 1)
        )
        names = ["request_seq", "run_id", "prefix"]
        count = tx.execute(insert(primers).from_select(names, first)).rowcount
        last = tx.scalar(select(runs.c.request_count).where(runs.c.id == run_id)) or 0
    ahead = exists().where(primers.c.request_seq == requests.c.seq)
    primed = exists().where(
        primers.c.run_id == requests.c.run_id, primers.c.prefix == requests.c.prefix
    )
    for position in range(0, last if count else 0, _HELD_AT_ONCE):
        with ledger.write() as tx:
            here = and_(
                requests.c.position >= position,
                requests.c.position < position + _HELD_AT_ONCE,
            )
            transitions.hold(tx, and_(mine, here, primed, ~ahead))
    return count


def release(tx: Connection, workspace_id: int, now: float) -> bool:
    """Answer doubles whose originals are final, and queue requests that waited for a primer.

    Returns True if something has changed.
    """
    held = and_(is_held(), of_workspace(requests.c.lane_id, workspace_id))
    answered = _answer(tx, held)
    return _let_go(tx, held, now) or answered


def _let_go(tx: Connection, held: Any, now: float) -> bool:
    """Queue the requests that no primer holds back any more, whatever its outcome."""
    primer = requests.alias("primer")
    # A retried primer had its chance. A primer whose sending is unknown may take a day.
    unknown = select(batches.c.id).where(batches.c.state == BatchState.UNKNOWN).scalar_subquery()
    still_ahead = (
        exists()
        .where(
            primers.c.run_id == requests.c.run_id,
            primers.c.prefix == requests.c.prefix,
            primer.c.seq == primers.c.request_seq,
            primer.c.finished.is_(None),
            primer.c.attempts == 0,
            or_(primer.c.batch_id.is_(None), primer.c.batch_id.not_in(unknown)),
            # A conversation's first turn was its chance.
            ~exists().where(conversations.c.request_seq == primer.c.seq),
        )
        .correlate(requests)
    )
    return transitions.release(tx, and_(held, ~is_double(), ~still_ahead), due=now) > 0


_original = requests.alias("original")
_theirs = results.alias("theirs")
_talked = conversations.alias("talked")


def _answer(tx: Connection, waiting: Any) -> bool:
    """End doubles with the state of their originals; return False if none could end."""
    ready = (
        select(requests.c.seq)
        .join(doubles, doubles.c.request_seq == requests.c.seq)
        .join(_original, _original.c.seq == doubles.c.of_seq)
        .where(waiting, _original.c.finished.is_not(None))
        .order_by(requests.c.seq)
        .limit(_MOST)
    )
    if tx.scalar(ready.limit(1)) is None:
        return False
    of_these = select(ready.subquery().c.seq).scalar_subquery()
    # From an earlier attempt that failed.
    tx.execute(
        delete(results).where(results.c.sending == REUSED, results.c.request_seq.in_(of_these))
    )
    nothing = literal(0)
    tx.execute(
        insert(results).from_select(
            [column.name for column in results.c],
            select(
                doubles.c.request_seq,
                literal(REUSED),
                _theirs.c.batch_id,
                _theirs.c.outcome,
                _theirs.c.disposition,
                _theirs.c.error_type,
                _theirs.c.raw,
                *(nothing,) * 6,
                _theirs.c.model,
                *(nothing,) * 3,
                _theirs.c.answered,
            )
            .join(_original, _original.c.seq == doubles.c.of_seq)
            .join(
                _theirs,
                and_(
                    _theirs.c.request_seq == _original.c.seq,
                    _theirs.c.sending == _original.c.answered_by,
                ),
            )
            .where(doubles.c.request_seq.in_(of_these)),
        )
    )
    # The double also copies the number of turns, and the reason if the conversation stopped.
    tx.execute(delete(conversations).where(conversations.c.request_seq.in_(of_these)))
    tx.execute(
        insert(conversations).from_select(
            ["request_seq", "turns", "rejected", "consumed", "cost", "stopped", "note"],
            select(
                doubles.c.request_seq,
                _talked.c.turns,
                _talked.c.rejected,
                *(nothing,) * 2,
                _talked.c.stopped,
                _talked.c.note,
            )
            .join(_talked, _talked.c.request_seq == doubles.c.of_seq)
            .where(doubles.c.request_seq.in_(of_these)),
        )
    )
    pairs = and_(
        doubles.c.request_seq == requests.c.seq,
        doubles.c.of_seq == _original.c.seq,
        requests.c.seq.in_(of_these),
    )
    transitions.copy_answer(tx, pairs, _original)
    return True


def _judge_copies(tx: Connection, which: Any) -> None:
    """Let requests that have just taken an answer go on from it, if nobody has judged it yet."""
    strict = exists().where(
        runs.c.id == requests.c.run_id, runs.c.converses, runs.c.validation_attempts > 1
    )
    its_run = runs.alias("its_run")
    unjudged = list(
        tx.scalars(
            select(requests.c.seq)
            .join(doubles, doubles.c.request_seq == requests.c.seq)
            .join(_original, _original.c.seq == doubles.c.of_seq)
            .join(its_run, its_run.c.id == _original.c.run_id)
            .where(which, strict, its_run.c.validation_attempts <= 1)
        )
    )
    if unjudged:
        transitions.continue_copies(tx, requests.c.seq.in_(unjudged))
        # If it is sent again, it is not answered by the same answer.
        tx.execute(delete(doubles).where(doubles.c.request_seq.in_(unjudged)))


def answer_lost_doubles(tx: Connection, batch_id: int) -> None:
    """Answer doubles that were lost with a request which now has a line of a batch."""
    held = (
        select(requests.c.seq)
        .join(doubles, doubles.c.request_seq == requests.c.seq)
        .join(_original, _original.c.seq == doubles.c.of_seq)
        .join(_theirs, _theirs.c.request_seq == _original.c.seq)
        .where(
            _theirs.c.batch_id == batch_id,
            _original.c.state != RequestState.LOST,
            requests.c.state == RequestState.LOST,
        )
    )
    if transitions.hold_lost(tx, requests.c.seq.in_(held)):
        _answer(tx, is_held())
