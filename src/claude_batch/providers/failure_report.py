"""Why requests of a run failed, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from claude_batch.core.quantities import count_of
from claude_batch.core.states import FAILED, RequestState
from claude_batch.ledger import page_queries, unknown_batches
from claude_batch.ledger.page_queries import FailedRequest
from claude_batch.ledger.store import Transaction
from claude_batch.providers.status import RunStatus
from claude_batch.wire.messages import UnreadableLine, decode_line

_KINDS: Final = 3
"""Kinds of failures that are listed; the status of the run shows all."""

_IDS: Final = 5
"""Ids of each kind that are listed."""

_SAMPLE: Final = 1000
"""Result lines that are read, so that a run with a million failures ends as quickly as others."""

_LONGEST: Final = 300
"""Characters of a message. The API's can contain a whole schema."""


def message_of_line(raw: bytes) -> str:
    """Return the API's message in a result line, cut to `_LONGEST`; "" if there is none."""
    if not raw:
        return ""
    try:
        error = decode_line(raw).error
    except UnreadableLine as problem:
        return str(problem)[:_LONGEST]
    return "" if error is None else error.message[:_LONGEST]


class FailureKind(NamedTuple):
    """Failed requests of a run with the same type of error, or in the same state."""

    kind: str
    words: str
    """The API's message for one of them; empty if there is none."""
    number: int
    ids: tuple[str, ...]
    """The ids of the first ones, as `claude-batch show` takes them."""


class FailureReport(NamedTuple):
    """Why requests of a run failed, the most frequent reason first."""

    kinds: tuple[FailureKind, ...]
    whole: bool
    """Whether all failures were read, so that the numbers are exact."""
    advice: tuple[str, ...] = ()
    """Lines about the lost requests, which `claude-batch retry RUN` leaves out."""

    def lines(self) -> list[str]:
        """Return a line for each of the first kinds, with one message."""
        lines = list(map(self._line, self.kinds[:_KINDS]))
        if (more := len(self.kinds) - _KINDS) > 0:
            lines.append(f"  and {more} more kinds" if more > 1 else "  and 1 more kind")
        return lines

    def details(self, run_id: str) -> list[str]:
        """Return lines with the first ids of every kind, and the command that shows a request."""
        if not self.kinds:
            return []
        lines = ["failed:"]
        for each in self.kinds:
            more = ", …" if each.number > len(each.ids) else ""
            # No id begins a line of its own.
            lines += [self._line(each), f"    {', '.join(each.ids)}{more}".replace("\n", " ")]
        ids = (key for each in self.kinds for key in each.ids if "\n" not in key)
        key = shlex.quote(next(ids, "KEY"))
        return [*lines, *self.advice, f"see a request with: `claude-batch show {run_id} {key}`"]

    def _line(self, each: FailureKind) -> str:
        least = "" if self.whole else "at least "
        return f"  {least}{each.number:,} {each.kind}{f': {each.words}' if each.words else ''}"


def failures_in(tx: Transaction, status: RunStatus) -> FailureReport:
    """Return why requests of a run failed, in a transaction of the caller."""
    if not status.failed:
        return FailureReport((), whole=True)
    found = page_queries.failed_requests(tx, status.run_id, _SAMPLE, failed=status.failed)
    kinds: dict[str, list[FailedRequest]] = {}
    for each in sorted(found, key=lambda failed: failed.position):
        kinds.setdefault(each.error_type or str(each.state), []).append(each)
    ordered = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return FailureReport(
        tuple(
            FailureKind(
                name,
                " ".join(message_of_line(of_kind[0].raw).split()),
                len(of_kind),
                tuple(map(_id_of, of_kind[:_IDS])),
            )
            for name, of_kind in ordered
        ),
        whole=len(found) < _SAMPLE,
        advice=tuple(_lost_lines(tx, status)),
    )


def _lost_lines(tx: Transaction, status: RunStatus) -> Iterator[str]:
    """Yield how to send the lost requests of a run again."""
    lost = status.counts.get(RequestState.LOST, 0)
    missing = unknown_batches.fetchable_lost(tx, status.run_id) if lost else 0
    refetch = f"`claude-batch results {status.run_id} --refetch -o OUT`"
    fetch = f"fetch the results again, free of charge, with: {refetch}"
    send = f"send them again with: `claude-batch unknown {status.run_id} --resubmit`"
    if missing:
        send = f"after the fetch, {send}; before it, the command sends all {lost:,} lost requests"
    for count, again in ((missing, fetch), (lost - missing, send)):
        if count:
            have = count_of(count, "request has", "requests have")
            yield f"{have} no result and may have been paid for; {again}"


def _id_of(failed: FailedRequest) -> str:
    return str(failed.position + 1) if failed.key is None else failed.key


def may_be_retried(status: RunStatus) -> bool:
    """Return whether `claude-batch retry RUN` sends some of a run's failed requests again."""
    return status.kind == "run" and any(
        count and state in FAILED and state is not RequestState.CANCELED
        for state, count in status.counts.items()
    )
