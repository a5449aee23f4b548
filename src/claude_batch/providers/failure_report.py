"""Why requests of a finished run failed, in a few lines for the end of a command."""

from __future__ import annotations

from collections import Counter
from typing import Final

from claude_batch.core.states import FAILED, RequestState
from claude_batch.ledger import page_queries
from claude_batch.ledger.store import Ledger
from claude_batch.providers.status import RunStatus
from claude_batch.wire.messages import UnreadableLine, decode_line

_KINDS: Final = 3
"""Kinds of failures that are listed; the status of the run shows all."""

_SAMPLE: Final = 1000
"""Result lines that are read, so that a run with a million failures ends as quickly as others."""

_LONGEST: Final = 300
"""Characters of a message. The API's can contain a whole schema."""


def words_of(raw: bytes) -> str:
    """Return the API's message in a result line, cut to `_LONGEST`; "" if there is none."""
    try:
        error = decode_line(raw).error
    except UnreadableLine as problem:
        return str(problem)[:_LONGEST]
    return "" if error is None else error.message[:_LONGEST]


def failure_lines(location: str, status: RunStatus) -> list[str]:
    """Return a line for each kind of failure of a run, the most frequent first, with one message.

    ``location`` is that of its ledger.
    """
    if not status.failed:
        return []
    ledger = Ledger(location)
    try:
        with ledger.read() as tx:
            found = page_queries.failed_requests(tx, status.run_id, _SAMPLE)
    finally:
        ledger.close()
    counts: Counter[str] = Counter()
    said: dict[str, str] = {}
    for each in found:
        kind = each.error_type or str(each.state)
        counts[kind] += 1
        said.setdefault(kind, " ".join(words_of(each.raw).split()))
    whole = len(found) < _SAMPLE
    if whole:
        # Requests without a result line, such as lost ones, are known by their state alone.
        seen = Counter(each.state for each in found)
        for state, count in status.counts.items():
            if state.is_final and state is not RequestState.SUCCEEDED and count > seen[state]:
                counts[str(state)] += count - seen[state]
    least = "" if whole else "at least "
    lines: list[str] = []
    for kind, count in counts.most_common(_KINDS):
        words = said.get(kind)
        lines.append(f"  {least}{count:,} {kind}{f': {words}' if words else ''}")
    if (more := len(counts) - _KINDS) > 0:
        lines.append(f"  and {more} more kinds" if more > 1 else "  and 1 more kind")
    return lines


def may_be_retried(status: RunStatus) -> bool:
    """Return whether `claude-batch retry RUN` sends some of a run's failed requests again."""
    return any(
        count and state in FAILED and state is not RequestState.CANCELED
        for state, count in status.counts.items()
    )
