"""Digests of params, which find equal requests: within one run, and among answered requests.

Digests are kept only for runs and calls that ask for them. A ledger without reuse of answers has
none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
)

from claude_batch.core.states import RequestState
from claude_batch.ledger.schema import conversations, digests, meta, params, requests, results, runs
from claude_batch.ledger.single_calls import digest_of
from claude_batch.ledger.store import Ledger, insert_many, plain_rows

Pair = tuple[int, int]
"""A request, and the request whose answer it shares; row numbers."""

_PAGE = 500
"""Requests whose params are read at a time."""

_INDEXED = "digested"
"""The meta row with the stamp up to which answers have digests."""

_INSERT = insert(digests)


def add_digests(tx: Connection, new: Sequence[tuple[int, bytes]]) -> None:
    """Store the digests of requests that were just stored: row number and digest."""
    if new:
        insert_many(tx, _INSERT, list(new))


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


_answer = requests.alias("answer")
_its_digest = digests.alias("its_digest")
_ANSWERED = (
    select(requests.c.seq, func.min(_answer.c.seq))
    .join(digests, digests.c.request_seq == requests.c.seq)
    .join(_its_digest, _its_digest.c.digest == digests.c.digest)
    .join(
        _answer,
        and_(
            _answer.c.seq == _its_digest.c.request_seq,
            _answer.c.lane_id == requests.c.lane_id,
            _answer.c.state == RequestState.SUCCEEDED,
        ),
    )
    .where(
        requests.c.run_id == bindparam("run"),
        requests.c.state == RequestState.QUEUED,
        _serves(_answer, requests.c.run_id),
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


def index_answers(ledger: Ledger) -> None:
    """Store a digest for every answered request of the ledger that lacks one. Raises `LedgerError`.

    Indexed answers are not read again, and each transaction is short.
    """
    with ledger.read() as tx:
        stamp = _number(tx, "stamp")
        since = _number(tx, _INDEXED)
        if since == stamp:
            return
        run_ids = list(tx.scalars(select(runs.c.id).where(runs.c.stored.is_not(None))))
    for run_id in run_ids:
        after = (since, 0)
        while True:
            with ledger.read() as tx:
                rows = tx.execute(_unindexed(run_id, after)).all()
                new = [(row.seq, digest_of(row.body)) for row in rows if not row.known]
            if not rows:
                break
            after = (rows[-1].finished, rows[-1].seq)
            if new:
                with ledger.write() as tx:
                    known = _known(tx, [seq for seq, _ in new])
                    add_digests(tx, [each for each in new if each[0] not in known])
    with ledger.write() as tx:
        tx.execute(delete(meta).where(meta.c.name == _INDEXED))
        tx.execute(insert(meta).values(name=_INDEXED, value=str(stamp)))


def _number(tx: Connection, name: str) -> int:
    return int(tx.scalar(select(meta.c.value).where(meta.c.name == name)) or 0)


def _unindexed(run_id: str, after: tuple[int, int]) -> Any:
    known = exists().where(digests.c.request_seq == requests.c.seq)
    stamp, seq = after
    # For a conversation: the params of the first turn.
    asked = func.coalesce(conversations.c.first_params, params.c.body)
    return (
        select(requests.c.seq, requests.c.finished, asked.label("body"), known.label("known"))
        .join(params, params.c.request_seq == requests.c.seq)
        .outerjoin(conversations, conversations.c.request_seq == requests.c.seq)
        .where(
            requests.c.run_id == run_id,
            requests.c.state == RequestState.SUCCEEDED,
            (requests.c.finished > stamp)
            | ((requests.c.finished == stamp) & (requests.c.seq > seq)),
        )
        .order_by(requests.c.finished, requests.c.seq)
        .limit(_PAGE)
    )


def _known(tx: Connection, seqs: Sequence[int]) -> set[int]:
    """Return the requests that another process has given a digest meanwhile."""
    return set(
        tx.scalars(select(digests.c.request_seq).where(digests.c.request_seq.in_(list(seqs))))
    )
