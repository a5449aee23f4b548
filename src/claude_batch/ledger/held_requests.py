"""Requests that are held: each waits for another one, and has its answer or its turn from it.

A double of a request is never sent: it ends as that one ends, with the same answer, at no cost.
Whatever becomes of the other one, a held request goes on: what is looked at is its state alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
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
from claude_batch.ledger.digests import Pair
from claude_batch.ledger.schema import (
    batches,
    conversations,
    doubles,
    lanes,
    meta,
    primers,
    requests,
    results,
    runs,
)
from claude_batch.ledger.store import Ledger, insert_many
from claude_batch.ledger.transitions import REUSED, is_double

__all__ = [
    "answer_lost_doubles",
    "any_held",
    "hold_back",
    "hold_doubles",
    "is_held",
    "release",
    "stamp_of",
    "take_all_answers",
    "take_answers",
]

_MOST = 50_000
"""Doubles that one transaction answers."""

_CHUNK = 2000
_HELD_AT_ONCE = 20_000
"""Requests of a run that one transaction looks at, so that nobody else waits long."""

_INSERT = insert(doubles)


def is_held() -> Any:
    """Of a request: whether it waits for another one."""
    # Written out, so that the index of held requests alone is seen to hold all of them.
    return requests.c.state == literal_column("'held'")


def any_held(tx: Connection, workspace_id: int) -> bool:
    """Whether a workspace has held requests; costs next to nothing where it has none."""
    held = select(requests.c.seq).where(is_held(), _of(workspace_id))
    return tx.scalar(held.limit(1)) is not None


def stamp_of(tx: Connection) -> tuple[int, int]:
    """What changes whenever a held request may go on: something became final, or unknown."""
    stamp = tx.execute(select(meta.c.value).where(meta.c.name == "stamp")).scalar_one()
    unknown = tx.execute(
        select(func.count()).select_from(batches).where(batches.c.state == BatchState.UNKNOWN)
    ).scalar_one()
    return int(stamp), unknown


def _of(workspace_id: int) -> Any:
    return requests.c.lane_id.in_(
        select(lanes.c.id).where(lanes.c.workspace_id == workspace_id).scalar_subquery()
    )


def hold_doubles(ledger: Ledger, pairs: Iterable[Pair]) -> int:
    """Have requests of a run that is not stored yet wait for those that they equal; how many."""
    count = 0
    for chunk in _chunks(pairs):
        count += len(chunk)
        with ledger.write() as tx:
            _remember(tx, chunk)
            transitions.hold(tx, requests.c.seq.in_([seq for seq, _ in chunk]))
    return count


def take_answers(tx: Connection, pairs: Sequence[Pair]) -> None:
    """Give requests that were just stored the answers that others have: they are final then."""
    if pairs:
        _remember(tx, pairs)
        _answer(tx, requests.c.seq.in_([seq for seq, _ in pairs]))


def take_all_answers(ledger: Ledger, pairs: Iterable[Pair]) -> int:
    """`take_answers` for a run, in short transactions; returns how many."""
    count = 0
    for chunk in _chunks(pairs):
        count += len(chunk)
        with ledger.write() as tx:
            take_answers(tx, chunk)
    return count


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    them = iter(pairs)
    while chunk := list(islice(them, _CHUNK)):
        yield chunk


def _remember(tx: Connection, pairs: Sequence[Pair]) -> None:
    insert_many(tx, _INSERT, list(pairs))


def hold_back(ledger: Ledger, run_id: str) -> int:
    """Send one request of each prefix of a run ahead, and hold the others; returns how many go.

    The run is not stored yet, so none of it can be packed; each transaction is short.
    """
    mine = and_(requests.c.run_id == run_id, requests.c.state == RequestState.QUEUED)
    with ledger.write() as tx:
        first = (
            select(func.min(requests.c.seq), requests.c.run_id, requests.c.prefix)
            .where(mine, requests.c.prefix.is_not(None))
            .group_by(requests.c.prefix)
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
    """Answer doubles whose others are final, and queue what has waited for a primer.

    True where something has changed.
    """
    held = and_(is_held(), _of(workspace_id))
    answered = _answer(tx, held)
    return _let_go(tx, held, now) or answered


def _let_go(tx: Connection, held: Any, now: float) -> bool:
    """Queue what no primer holds back any more, whatever became of it."""
    primer = requests.alias("primer")
    # One that is tried again has had its chance; one whose sending is unknown may take a day.
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
    """End doubles as their others have ended, where these have; False where none has."""
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
    # How many turns it took, and why it stopped if it did, is the double's too.
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


def answer_lost_doubles(tx: Connection, batch_id: int) -> None:
    """Answer the doubles that were lost with a request which has a line of a batch by now."""
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
