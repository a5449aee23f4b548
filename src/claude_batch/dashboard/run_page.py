"""The page of a run: its progress, batches, outcomes, failures, distributions and requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.quantities import roughly
from claude_batch.core.states import BatchState, RequestState, RunState
from claude_batch.dashboard.ledger_reader import LedgerReader, Snapshot
from claude_batch.dashboard.overview_page import attention_of
from claude_batch.dashboard.progress_bar import bar_of
from claude_batch.ledger import page_queries, queries
from claude_batch.ledger.page_queries import TIME_STEPS, TOKEN_STEPS, FailedRequest
from claude_batch.ledger.store import Record
from claude_batch.providers.failure_report import words_of
from claude_batch.providers.progress import PAST_BATCHES, expected_end
from claude_batch.providers.status import RunStatus

ROWS: Final = 50
"""Requests on a page."""

_BATCHES: Final = 20
"""Batches of the timeline: the newest."""

_LAST_POSITION: Final = 10**9
"""A position that no run reaches. With what a search adds to it, a database still takes it."""

_SAMPLE: Final = 1000
"""Failures that are read to group them by the API's words."""


def run_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of a run. Raises `RunNotFoundError`."""
    snapshot = reader.snapshot
    status = reader.status(values["run_id"])
    total = snapshot.costs.total(status.run_id)
    tokens, seconds = snapshot.costs.distributions(status.run_id)
    with reader.ledger.read() as tx:
        row = queries.run_row(tx, status.run_id)
        batches = page_queries.newest_batches_of_run(tx, status.run_id, _BATCHES)
        failed: list[FailedRequest] = []
        if status.failed:
            failed = page_queries.failed_requests(tx, status.run_id, _SAMPLE)
        took = queries.past_durations(tx, row.workspace_id, PAST_BATCHES)
    bar = bar_of(status.counts, status.total)
    return {
        "snapshot": snapshot,
        "status": status,
        "run": row,
        "bar": bar,
        "total": total,
        "expected_cost": _expected_cost(status, total.cost, total.results - total.failed),
        "ends_in": _ends_in(status, took),
        "attention": [each for each in attention_of(snapshot) if each.run_id == status.run_id],
        "unknown": any(each.run_id == status.run_id for each in snapshot.unknown),
        "budget": _budget(snapshot, status.run_id),
        "outcomes": [(s, status.counts[s]) for s in RequestState if status.counts.get(s)],
        "timeline": timeline_of(batches, time.time()),
        "batches_in_all": len(status.batches),
        "failures": failures_of(failed),
        "failures_sampled": len(failed) == _SAMPLE,
        "tokens": _plot(tokens, [f"{step:,}" for step in TOKEN_STEPS]),
        "seconds": _plot(seconds, [roughly(step) for step in TIME_STEPS]),
        "requests": requests_of(reader, status, values),
    }


def _expected_cost(status: RunStatus, cost: int, answered: int) -> int | None:
    """Return what the run will have cost if its other answers cost as much as those so far."""
    if status.finished or not answered:
        return None
    open_requests = sum(n for state, n in status.counts.items() if not state.is_final)
    return cost + cost * open_requests // answered


def _ends_in(status: RunStatus, took: list[float]) -> float | None:
    """Return the seconds until the run may end, by how long past batches took, or None."""
    if status.state is not RunState.RUNNING or status.mode == "live":
        return None
    at_api = (BatchState.IN_PROGRESS, BatchState.CANCELING)
    submitted = [b.submitted for b in status.batches if b.state in at_api and b.submitted]
    waits = bool(status.counts.get(RequestState.QUEUED))
    now = time.time()
    end = expected_end(submitted, waits=waits, took=took, now=now)
    return None if end is None else end - now


def _budget(snapshot: Snapshot, run_id: str) -> Any:
    found = (each for each in snapshot.budgets if (each.scope, each.name) == ("run", run_id))
    return next(found, None)


# Timeline -----------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A part of a batch's life, in percent of the timeline."""

    tone: str
    start: float
    width: float


class Line(NamedTuple):
    """A batch in the timeline. Times are seconds since the epoch."""

    batch_id: str | None
    state: str
    requests: int
    packed: float
    submitted: float | None
    ended: float | None
    collected: float | None
    note: str | None
    spans: tuple[Span, ...]


class Timeline(NamedTuple):
    """The newest batches of a run, oldest first."""

    begin: float
    end: float
    lines: tuple[Line, ...]


def timeline_of(batches: list[Record], now: float) -> Timeline | None:
    """Return the timeline of batches, which come newest first; None without any."""
    rows = [row for row in reversed(batches) if row.state != BatchState.LIVE]
    if not rows:
        return None
    begin = min(row.created for row in rows)
    ends = [_last(row, now) for row in rows]
    end = max(*ends, begin + 1.0)
    whole = end - begin

    def span(tone: str, start: float | None, stop: float | None) -> list[Span]:
        if start is None or stop is None or stop < start:
            return []
        left = 100 * (start - begin) / whole
        # A moment is drawn too, so that no batch is invisible.
        return [Span(tone, round(left, 2), round(max(100 * (stop - start) / whole, 0.4), 2))]

    lines: list[Line] = []
    for row, last in zip(rows, ends, strict=True):
        sent = row.submitted if row.submitted is not None else last
        spans = [
            *span("rest", row.created, sent),
            *span("busy", row.submitted, row.ended if row.ended is not None else last),
            *span("good", row.ended, last if row.ended is not None else None),
        ]
        lines.append(
            Line(
                row.remote_id,
                row.state,
                row.request_count,
                row.created,
                row.submitted,
                row.ended,
                row.collected,
                row.note,
                tuple(spans),
            )
        )
    return Timeline(begin, end, tuple(lines))


def _last(row: Record, now: float) -> float:
    """Return the end of a batch's line: when it was collected, or now."""
    return float(row.collected if row.collected is not None else now)


# Failures -----------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """Failures with the same words."""

    kind: str
    words: str
    number: int
    examples: tuple[FailedRequest, ...]


def failures_of(failed: list[FailedRequest]) -> list[Failure]:
    """Group failed requests by the API's words, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], list[FailedRequest]] = {}
    for each in failed:
        key = (each.error_type or each.state.value, words_of(each.raw))
        counts[key] += 1
        examples.setdefault(key, [])
        if len(examples[key]) < 3:
            examples[key].append(each)
    return [
        Failure(kind, words, count, tuple(examples[kind, words]))
        for (kind, words), count in counts.most_common(20)
    ]


# Distributions ------------------------------------------------------------------------------------


def _plot(counts: list[int], names: list[str]) -> list[tuple[str, tuple[int]]]:
    """Return the counted groups with their names, without empty ones at both ends."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    named = [
        f"from {name}" if place == len(names) - 1 else f"{name} – {names[place + 1]}"
        for place, name in enumerate(names)
    ]
    rows = [(name, (count,)) for name, count in zip(named, counts, strict=True)]
    return rows[filled[0] : filled[-1] + 1]


# Requests -----------------------------------------------------------------------------------------


class RequestList(NamedTuple):
    """A page of a run's requests."""

    rows: tuple[page_queries.RequestRow, ...]
    state: str
    key: str
    after: int
    following: int | None
    """The position after which the next page begins; None at the end."""
    searched_to: int | None
    """The last position that was looked at, if the search stopped before the end."""


def requests_of(reader: LedgerReader, status: RunStatus, values: Mapping[str, str]) -> RequestList:
    """Read a page of a run's requests, as the query asks."""
    try:
        after = int(values.get("after", "-1"))
        if not -1 <= after <= _LAST_POSITION:
            raise ValueError
        state = RequestState(values["state"]) if values.get("state") else None
    except ValueError:
        raise InvalidRequestError("the address names no state or no position") from None
    key = values.get("key", "").strip()
    with reader.ledger.read() as tx:
        found = page_queries.requests_after(
            tx, status.run_id, after, ROWS + 1, state=state, key=key
        )
    rows = tuple(found[:ROWS])
    following = rows[-1].position if len(found) > ROWS else None
    searched_to = None
    last = after + page_queries.SEARCHED
    if following is None and (state is not None or key) and last < status.total - 1:
        following = searched_to = last
    return RequestList(rows, state or "", key, after, following, searched_to)
