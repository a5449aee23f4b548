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
    case,
    delete,
    exists,
    insert,
    literal,
    literal_column,
    select,
    update,
)

from claude_batch.core.states import RequestState
from claude_batch.ledger.digests import Pair
from claude_batch.ledger.schema import doubles, lanes, meta, requests, results
from claude_batch.ledger.store import Ledger, insert_many, next_stamp

__all__ = [
    "REUSED",
    "any_held",
    "hold_doubles",
    "is_double",
    "is_held",
    "release",
    "stamp_of",
    "take_all_answers",
    "take_answers",
]

REUSED = 0
"""The number of sending of an answer that was another request's: none of its own has it."""

_MOST = 50_000
"""Doubles that one transaction answers."""

_CHUNK = 2000

_INSERT = insert(doubles)


def is_held() -> Any:
    """Of a request: whether it waits for another one."""
    # Written out, so that the index of held requests alone is seen to hold all of them.
    return requests.c.state == literal_column("'held'")


def any_held(tx: Connection, workspace_id: int) -> bool:
    """Whether a workspace has held requests; costs next to nothing where it has none."""
    held = select(requests.c.seq).where(is_held(), _of(workspace_id))
    return tx.scalar(held.limit(1)) is not None


def stamp_of(tx: Connection) -> int:
    """What rises whenever a request gets its final state."""
    return int(tx.execute(select(meta.c.value).where(meta.c.name == "stamp")).scalar_one())


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
            tx.execute(
                update(requests)
                .where(requests.c.seq.in_([seq for seq, _ in chunk]))
                .values(state=RequestState.HELD)
            )
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


def release(tx: Connection, workspace_id: int) -> bool:
    """Answer doubles whose others are final; True where something has changed."""
    return _answer(tx, and_(is_held(), _of(workspace_id)))


_original = requests.alias("original")
_theirs = results.alias("theirs")


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
    tx.execute(
        update(requests)
        .where(
            doubles.c.request_seq == requests.c.seq,
            doubles.c.of_seq == _original.c.seq,
            requests.c.seq.in_(of_these),
        )
        .values(
            state=_original.c.state,
            answered_by=case((_original.c.answered_by.is_not(None), literal(REUSED))),
            attempts=_original.c.attempts,
            finished=next_stamp(tx),
        )
    )
    return True


def is_double() -> Any:
    """Of a request: whether it has its answer from another one of its run."""
    return exists().where(doubles.c.request_seq == requests.c.seq)
