"""Held requests: each waits for another request, for its answer or for its turn to be sent.

A double (duplicate request) is never sent. It ends with the other request, with the same answer, at
no cost. Whatever happens to the other request, a held request goes on, because only the other's
state decides.
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

_MOST = 50_000
"""Doubles that one transaction answers."""

_CHUNK = 2000
_HELD_AT_ONCE = 20_000
"""Requests of a run that one transaction reads, so that other writers do not wait long."""

_INSERT = insert(doubles)


def is_held() -> Any:
    """Return the condition for requests that wait for another request."""
    # A literal, so that SQLite can use the partial index of held requests.
    return requests.c.state == literal_column("'held'")


def any_held(tx: Connection, workspace_id: int) -> bool:
    """Return whether a workspace has held requests; almost free if it has none."""
    held = select(requests.c.seq).where(is_held(), _of(workspace_id))
    return tx.scalar(held.limit(1)) is not None


def stamp_of(tx: Connection) -> tuple[int, int]:
    """Return values that change whenever a held request may go on.

    They change when a request becomes final or unknown.
    """
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
    """Hold duplicate requests of a run that is not stored yet; return their number."""
    count = 0
    for chunk in _chunks(pairs):
        count += len(chunk)
        with ledger.write() as tx:
            _remember(tx, chunk)
            transitions.hold(tx, requests.c.seq.in_([seq for seq, _ in chunk]))
    return count


def take_answers(tx: Connection, pairs: Sequence[Pair]) -> None:
    """Copy other requests' answers to requests that were just stored, which makes these final."""
    if pairs:
        _remember(tx, pairs)
        _answer(tx, requests.c.seq.in_([seq for seq, _ in pairs]))


def take_all_answers(ledger: Ledger, pairs: Iterable[Pair]) -> int:
    """Run `take_answers` for a run in short transactions; return the number of requests."""
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
    """Queue one primer for each prefix of a run and hold the others; return the number of primers.

    The run is not stored yet, so none of it can be packed. Each transaction is short.
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
    """Answer doubles whose originals are final, and queue requests that waited for a primer.

    Returns True if something has changed.
    """
    held = and_(is_held(), _of(workspace_id))
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
