"""Transactions about the API's result lines: whose a line is, what of it is stored, and counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
)

from claude_batch.core.ids import COUNTER_DIGITS, counter_of
from claude_batch.core.outcome import Disposition
from claude_batch.core.states import RequestState
from claude_batch.ledger.portable_sql import count_if, count_rows, upsert
from claude_batch.ledger.schema import (
    former_members,
    requests,
    results,
    strange_lines,
)
from claude_batch.ledger.store import (
    insert_many,
    plain_rows,
)
from claude_batch.ledger.transitions import REUSED

# Whose a line is ----------------------------------------------------------------------------------

_MEMBERS = (
    select(requests.c.id, requests.c.seq)
    .where(requests.c.batch_id == bindparam("batch"))
    .order_by(requests.c.seq)
)


class _Block(msgspec.Struct):
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
    left = ((identifier, seq) for _, identifier, seq in _left(tx, [batch_id]))
    # Read all at once: that takes a quarter of one index lookup for each line.
    return Members(chain(plain_rows(tx, _MEMBERS, {"batch": batch_id}), left))


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
    )
    # With a result of it: conversations in a later turn, and requests that were tried again.
    yield from tx.execute(
        select(results.c.batch_id, requests.c.id, requests.c.seq)
        .join(results, results.c.request_seq == requests.c.seq)
        .where(
            results.c.batch_id.in_(batch_ids),
            results.c.sending > REUSED,
            requests.c.batch_id.is_distinct_from(results.c.batch_id),
        )
    )


# Lines --------------------------------------------------------------------------------------------


class NewResult(NamedTuple):
    """A result line as the ledger stores it: a row of `results`, in the order of its columns."""

    request_seq: int
    sending: int
    batch_id: int
    outcome: str
    disposition: str
    error_type: str | None
    raw: bytes
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_5m_tokens: int
    cache_1h_tokens: int
    web_searches: int
    model: str | None
    cost: int | None
    """Nano-dollars; None if the price is unknown. The two fields below work the same way."""
    live_cost: int | None
    uncached_cost: int | None


_KEY = ("request_seq", "sending")
# The lines of a batch were answered when it ended; only live calls have a time of their own.
_INSERT = upsert(results).values(answered=null())
_INSERT_NEW = _INSERT.on_conflict_do_nothing(index_elements=_KEY)


@lru_cache
def _upsert_results() -> Any:
    replaced = {
        name: _INSERT.excluded[name]
        for name in results.c.keys()  # noqa: SIM118 - a ColumnCollection, no dict
        if name not in (*_KEY, "answered")
    }
    return _INSERT.on_conflict_do_update(
        index_elements=_KEY,
        set_=replaced,
        where=and_(
            # Literal, because `insert_many` binds values for columns only.
            _INSERT.excluded.outcome == literal_column("'succeeded'"),
            or_(
                results.c.outcome != literal_column("'succeeded'"),
                results.c.disposition == literal_column("'undocumented'"),
            ),
        ),
    )


def add_results(tx: Connection, new: Sequence[NewResult]) -> None:
    """Store result lines.

    A stored line stays, unless it is a failure and the new line is a success.
    """
    # Usually no line is stored yet. A statement that may change rows costs SQLite more: it prepares
    # to undo that statement alone.
    if new and insert_many(tx, _INSERT_NEW, new) < len(new):
        insert_many(tx, _upsert_results(), new)


UNREADABLE = "unreadable"
"""First word of the reason to keep a line that cannot be decoded."""
MOST_STRANGE_LINES = 1000
"""Most unexpected lines that are kept for one batch."""
MOST_STRANGE_BYTES = 1 << 20
"""Most bytes that are kept of each unexpected line."""


def add_strange_lines(tx: Connection, batch_id: int, lines: Iterable[tuple[bytes, str]]) -> None:
    """Keep lines that are no results of this batch, each once, with the reason.

    Anything beyond `MOST_STRANGE_LINES` or `MOST_STRANGE_BYTES` is dropped, so that a faulty server
    cannot fill the disk.
    """
    kept = count_rows(tx, strange_lines, strange_lines.c.batch_id == batch_id)
    for raw, reason in lines:
        if kept >= MOST_STRANGE_LINES:
            return
        digest = hashlib.sha256(raw).hexdigest()
        kept += tx.execute(
            upsert(strange_lines)
            .values(batch_id=batch_id, digest=digest, reason=reason, raw=raw[:MOST_STRANGE_BYTES])
            .on_conflict_do_nothing(index_elements=["batch_id", "digest"])
        ).rowcount


def has_foreign_lines(tx: Connection, batch_id: int) -> bool:
    """Return whether a readable line of somebody else was among the results of a batch."""
    readable = ~strange_lines.c.reason.startswith(UNREADABLE)
    found = select(strange_lines.c.id).where(strange_lines.c.batch_id == batch_id, readable)
    return tx.scalar(found.limit(1)) is not None


# Counts -------------------------------------------------------------------------------------------


class Stored(msgspec.Struct, frozen=True):
    """Counts of a batch's results in the ledger."""

    total: int
    succeeded: int
    """Certain successes."""
    undocumented: int = 0
    """Results of a type that the API does not document, which may be successes."""
    has_account_error: bool = False
    """Whether a result is an error of the account."""

    def lacks(self, counted: int, members: int) -> int:
        """Return how many more successes the API counts than are stored.

        ``members`` is the batch's number of requests. After a recovery, fewer of them are known
        than the API counts.
        """
        return min(counted, members) - self.succeeded - self.undocumented

    def hides_success(self, counted: int, members: int) -> bool:
        """Return whether a failure is stored where the API counts a success.

        Of the successes that `lacks` counts, some may be among the results that are not stored. If
        there are more, a stored failure contradicts the rest.
        """
        return self.lacks(counted, members) > max(members - self.total, 0)


_UNDOCUMENTED = results.c.disposition == Disposition.UNDOCUMENTED
_CERTAIN = and_(results.c.outcome == RequestState.SUCCEEDED, ~_UNDOCUMENTED)
_COUNTS = (
    func.count(),
    # Sums instead of GROUP BY, which would sort the results.
    count_if(_CERTAIN),
    count_if(_UNDOCUMENTED),
    func.max(case((results.c.disposition == Disposition.ACCOUNT, 1), else_=0)),
)


def stored_counts(tx: Connection, batch_id: int) -> Stored:
    """Return how many requests of a batch have a stored result, and how many have succeeded."""
    return stored_counts_of(tx, [batch_id])[batch_id]


def stored_counts_of(tx: Connection, batch_ids: Sequence[int]) -> dict[int, Stored]:
    """Return `stored_counts` of each of these batches."""
    rows: Sequence[Any] = tx.execute(
        select(results.c.batch_id, *_COUNTS)
        # A double's copy of an answer is not a result of the batch.
        .where(results.c.batch_id.in_(batch_ids), results.c.sending > REUSED)
        .group_by(results.c.batch_id)
    ).all()
    found = dict.fromkeys(batch_ids, Stored(0, 0))
    for batch_id, total, succeeded, doubtful, account in rows:
        found[batch_id] = Stored(total, succeeded, doubtful, bool(account))
    return found
