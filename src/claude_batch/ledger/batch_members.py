"""Whose a result line is: the requests of a batch, and those that have left it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from sqlalchemy import Connection, bindparam, select

from claude_batch.core.ids import COUNTER_DIGITS, counter_of
from claude_batch.ledger.schema import former_members, requests, results
from claude_batch.ledger.store import plain_rows
from claude_batch.ledger.transitions import REUSED

_MEMBERS = (
    select(requests.c.id, requests.c.seq)
    .where(requests.c.batch_id == bindparam("batch"))
    .order_by(requests.c.seq)
)


@dataclass(slots=True)
class _Block:
    """Requests whose ids and row numbers count upwards together."""

    shift: int
    """Their row numbers less the counters of their ids."""
    first: int
    last: int


class Members:
    """The row numbers of requests by their ids.

    The ids of requests that were stored together differ in a counter only, so the members of a
    large batch are a few blocks. As a dictionary, 100,000 of them would take 17 MB.
    """

    __slots__ = ("_alone", "_blocks")

    def __init__(self, rows: Iterable[tuple[str, int]] = ()) -> None:
        """Take ids and row numbers, best in the order of the row numbers."""
        self._alone: dict[str, int] = {}
        self._blocks: dict[str, list[_Block]] = {}
        before, prefix, counter, last = "", "", 0, -1
        block: _Block | None = None
        for identifier, seq in rows:
            if seq == last + 1 and identifier == f"{prefix}{counter + 1:0{COUNTER_DIGITS}x}":
                counter += 1
                if block is None:
                    block = _Block(seq - counter, self._alone.pop(before), seq)
                    self._blocks.setdefault(prefix, []).append(block)
                block.last = seq
            else:
                block = None
                self._alone[identifier] = seq
                counted = counter_of(identifier)
                # Without a counter, nothing continues it.
                prefix = "?" if counted is None else identifier[:-COUNTER_DIGITS]
                counter = counted or 0
            before, last = identifier, seq

    def add(self, rows: Iterable[tuple[str, int]]) -> None:
        """Take a few more, in any order."""
        self._alone.update(rows)

    def find(self, identifier: str) -> int | None:
        """Return the row number of a request; None if it is none of these."""
        blocks = self._blocks.get(identifier[:-COUNTER_DIGITS])
        if blocks is not None and (counter := counter_of(identifier)) is not None:
            for block in blocks:
                if block.first <= counter + block.shift <= block.last:
                    return counter + block.shift
        return self._alone.get(identifier)


def members_of(tx: Connection, batch_id: int) -> Members:
    """Return the requests that a line of a batch may belong to."""
    # Read all at once: that takes a quarter of one index lookup for each line.
    members = Members(plain_rows(tx, _MEMBERS, {"batch": batch_id}))
    members.add((identifier, seq) for _, identifier, seq in _left(tx, [batch_id]))
    return members


def members_of_all(tx: Connection, batch_ids: Sequence[int]) -> dict[int, Members]:
    """Return the same for several batches.

    One statement asks for all of them, so they should be small.
    """
    found: dict[int, list[tuple[str, int]]] = {batch_id: [] for batch_id in batch_ids}
    mine = select(requests.c.batch_id, requests.c.id, requests.c.seq)
    within = mine.where(requests.c.batch_id.in_(batch_ids)).order_by(requests.c.seq)
    for batch_id, identifier, seq in chain(tx.execute(within), _left(tx, batch_ids)):
        found[batch_id].append((identifier, seq))
    return {batch_id: Members(rows) for batch_id, rows in found.items()}


def _left(tx: Connection, batch_ids: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """Yield batch, id and row number of the requests that have left one of these batches."""
    # Undecided: the POST may have been accepted.
    yield from tx.execute(
        select(former_members.c.batch_id, requests.c.id, requests.c.seq)
        .join(former_members, former_members.c.request_seq == requests.c.seq)
        .where(former_members.c.batch_id.in_(batch_ids))
    ).tuples()
    # With a result of it: conversations in a later turn, and requests that were tried again.
    yield from tx.execute(
        select(results.c.batch_id, requests.c.id, requests.c.seq)
        .join(results, results.c.request_seq == requests.c.seq)
        .where(
            results.c.batch_id.in_(batch_ids),
            results.c.sending > REUSED,
            requests.c.batch_id.is_distinct_from(results.c.batch_id),
        )
    ).tuples()
