"""The pages of the whole ledger: the overview, actors, costs, and the ledger itself."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from claude_batch.core.quantities import NANO, count_of, roughly
from claude_batch.core.settings import command_naming, naming_ledger
from claude_batch.core.states import RequestState, RunState
from claude_batch.dashboard.ledger_reader import CostCells, LedgerReader, Snapshot
from claude_batch.ledger import page_queries, queries, workspaces
from claude_batch.ledger.backends.backend import Worker
from claude_batch.ledger.budgets import Budget
from claude_batch.ledger.charges import DAY
from claude_batch.ledger.page_queries import ResultSums, Total
from claude_batch.ledger.schema import SCHEMA_VERSION
from claude_batch.ledger.store import Ledger, Record
from claude_batch.lifecycle.budget_room import today
from claude_batch.providers.ledger_care import mark_of

# Overview -----------------------------------------------------------------------------------------

_AGES = (3600.0, 6 * 3600.0, 12 * 3600.0, 24 * 3600.0)


class Attention(NamedTuple):
    """Something that waits for a person."""

    title: str
    words: str
    run_id: str | None
    command: str | None
    """The command that resolves it."""
    is_grave: bool


def overview_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the first page."""
    snapshot = reader.snapshot
    now = reader.ledger.now()
    day = today(now)
    month = day - datetime.fromtimestamp(now, UTC).day + 1
    costs = snapshot.costs
    shown = {each.run_id for each in (*snapshot.statuses, *snapshot.older)}
    budgets = [each for each in snapshot.budgets if each.scope != "run" or each.name in shown]
    return {
        "snapshot": snapshot,
        "today": costs.total(since=day),
        "month": costs.total(since=month),
        "total": costs.total(),
        "runs": [(status, bar_of(status.counts, status.total)) for status in snapshot.statuses],
        "states": _states(snapshot),
        "attention": list(attention_of(snapshot, reader.ledger)),
        "costs": costs.by(lambda each: each.run_id),
        "budgets": [(each, *shares_of(each)) for each in budgets],
        "changeable": [
            ("day:", "Each day (UTC)"),
            *((f"{each.scope}:{each.name}", each.name) for each in budgets if each.scope != "day"),
        ],
        "ages": _ages(snapshot, now),
        "waiting": sum(
            count
            for status in (*snapshot.statuses, *snapshot.older)
            for state, count in status.counts.items()
            if not state.is_final
        ),
    }


def _states(snapshot: Snapshot) -> list[tuple[RunState, int]]:
    """Count the newest runs by state."""
    states = [status.state for status in snapshot.statuses]
    return [(state, states.count(state)) for state in RunState if state in states]


def attention_of(snapshot: Snapshot, ledger: Ledger) -> Iterator[Attention]:
    """Yield what waits for a person, the gravest first."""
    location = ledger.location
    for row in snapshot.halted:
        behind = row.behind is not None or row.halt_reason == "ledger_behind"
        why = naming_ledger(row.halt_message or "", location)
        yield Attention(
            "The ledger must be recovered" if behind else "Sending is halted",
            f"{row.base_url}: {row.halt_reason}: {why} (for {roughly(ledger.now() - row.halted)})",
            None,
            command_naming(
                "claude-batch ledger recover" if behind else "claude-batch resume", location
            ),
            True,
        )
    for each in snapshot.unknown:
        what = count_of(each.requests, "request")
        paid = (
            "They may have been paid for, and are not sent again automatically."
            if each.lost
            else "The API's list of batches usually decides it. Sent again, they may be paid for "
            "twice."
        )
        yield Attention(
            f"{what} without a result" if each.lost else f"{what}, perhaps sent",
            f"{each.reason}. {paid}",
            each.run_id,
            command_naming(f"claude-batch unknown {each.run_id}", location),
            not each.lost,
        )
    for status in (*snapshot.statuses, *snapshot.older):
        name = status.label or status.run_id
        if status.held is not None and status.state is RunState.HELD:
            words = naming_ledger(status.held.describe(status.run_id), location)
            # The words name the command.
            yield Attention(f"{name} is held by a budget", words, status.run_id, None, False)
        elif status.state is RunState.PARKED:
            yield Attention(
                f"{name} is parked",
                "No process drives it. Its batches go on at the API; their results are collected "
                "when a process continues it.",
                status.run_id,
                command_naming(f"claude-batch resume {status.run_id}", location),
                False,
            )


def shares_of(budget: Budget) -> tuple[float, float]:
    """Return how much of a budget is spent and how much is reserved, in percent up to 100."""
    whole = max(budget.amount, 1)
    spent = min(100.0, 100 * budget.gone / whole)
    return spent, min(100.0 - spent, 100 * budget.reserved / whole)


def _ages(snapshot: Snapshot, now: float) -> list[tuple[str, int, int]]:
    """Return the batches at the API by age: words, number of batches, number of requests."""
    words = ("under 1 h", "1 to 6 h", "6 to 12 h", "12 to 24 h", "over 24 h")
    batches, requests = [0] * len(words), [0] * len(words)
    for row in snapshot.open_batches:
        if row.submitted is not None:
            place = sum(now - row.submitted >= end for end in _AGES)
            batches[place] += 1
            requests[place] += row.request_count
    return list(zip(words, batches, requests, strict=True))


# Progress of a run --------------------------------------------------------------------------------

_TONES: Final[Mapping[RequestState, str]] = {
    RequestState.SUCCEEDED: "good",
    RequestState.CANCELED: "calm",
    RequestState.PACKED: "busy",
    RequestState.CONTINUING: "busy",
    RequestState.QUEUED: "rest",
    RequestState.HELD: "rest",
}
"""The colour of requests in a bar. States that are not here are failures."""


class Span(NamedTuple):
    """A part of a bar, or of a batch's life in the timeline, in percent."""

    tone: str
    start: float
    width: float


class Bar(NamedTuple):
    """How far a run is."""

    done: int
    total: int
    failed: int
    parts: tuple[Span, ...]

    @property
    def percent(self) -> float:
        """The share of the requests that have ended; never 100 before the last one."""
        share = 100 * self.done / self.total if self.total else 0.0
        return share if self.done == self.total else min(share, 99.9)


def bar_of(counts: Mapping[RequestState, int], total: int) -> Bar:
    """Return the bar of a run: succeeded, failed, cancelled, in a batch, and waiting."""
    numbers: Counter[str] = Counter()
    for state, count in counts.items():
        numbers[_TONES.get(state, "bad")] += count
    parts: list[Span] = []
    start = 0.0
    for tone in ("good", "bad", "calm", "busy", "rest"):
        if numbers[tone] and total:
            width = 100 * numbers[tone] / total
            parts.append(Span(tone, round(start, 2), round(width, 2)))
            start += width
    done = sum(count for state, count in counts.items() if state.is_final)
    return Bar(done, total, numbers["bad"], tuple(parts))


# Actors -------------------------------------------------------------------------------------------

_ACTORS: Final = 50

_RUNS: Final = 20
"""Runs of an actor on a page; each that was not read before is counted."""


def actors_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of all actors."""
    snapshot = reader.snapshot
    after = values.get("after", "")
    with reader.ledger.read() as tx:
        found = page_queries.actors(tx, after, _ACTORS + 1)
    totals = snapshot.costs.by(lambda each: each.actor)
    return {
        "snapshot": snapshot,
        "actors": [
            (each, totals.get(each.actor, Total()), snapshot.budget("actor", each.actor))
            for each in found[:_ACTORS]
        ],
        "after": after,
        "following": found[_ACTORS - 1].actor if len(found) > _ACTORS else None,
    }


def actor_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of one actor: its runs, newest first."""
    snapshot = reader.snapshot
    name = values["actor"]
    before: tuple[float, str] | None = None
    created, _, run_id = values.get("before", "").partition("_")
    try:
        before = (float(created), run_id) if run_id else None
    except ValueError:
        before = None
    with reader.ledger.read() as tx:
        rows = queries.recent_runs(tx, _RUNS + 1, before=before, actor=name)
    shown = rows[:_RUNS]
    statuses = [reader.status(row.id) for row in shown]
    budget = snapshot.budget("actor", name)
    return {
        "snapshot": snapshot,
        "actor": name,
        "total": snapshot.costs.by(lambda each: each.actor).get(name, Total()),
        "budget": budget,
        "shares": None if budget is None else shares_of(budget),
        "runs": [(each, bar_of(each.counts, each.total)) for each in statuses],
        "costs": snapshot.costs.by(lambda each: each.run_id if each.actor == name else None),
        "before": values.get("before", ""),
        "following": f"{shown[-1].created!r}_{shown[-1].id}" if len(rows) > _RUNS else None,
    }


# Costs --------------------------------------------------------------------------------------------

_DAYS: Final = 30
_COLUMNS: Final = 5
"""Series of a plot; the others are one more."""

_ROWS: Final = 100
"""Rows of a table: the most expensive."""

_OTHERS: Final = "all others"


class Stack(NamedTuple):
    """A plot of bars that are stacked. Values are dollars."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]


def costs_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of costs."""
    snapshot = reader.snapshot
    costs = snapshot.costs
    last = today(reader.ledger.now())
    return {
        "snapshot": snapshot,
        "total": costs.total(),
        "by_day_and_model": _stack(costs, last, lambda each: each.model),
        "by_day_and_actor": _stack(costs, last, lambda each: each.actor),
        "tables": [
            ("Models", "model", _table(costs.by(lambda each: each.model))),
            ("Actors", "actor", _table(costs.by(lambda each: each.actor))),
            ("Days (UTC)", "day", _days(costs)),
        ],
    }


def _stack(costs: CostCells, last: int, name: Callable[[ResultSums], str | None]) -> Stack:
    """Add up the cost of the days to the ``last`` by a name."""
    sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for each in costs.cells():
        if each.day is not None and last - _DAYS < each.day <= last and each.total.cost:
            sums[name(each) or "no model"][each.day] += each.total.cost
    ranked = sorted(sums, key=lambda each: (-sums[each].total(), each))
    heads, rest = ranked[:_COLUMNS], ranked[_COLUMNS:]
    first = min((day for of in sums.values() for day in of), default=last)
    rows: list[tuple[str, tuple[float, ...]]] = []
    # A week at least, so that a first day is not one wide bar.
    for day in range(min(first, last - 6), last + 1):
        columns = [sums[each][day] for each in heads]
        if rest:
            columns.append(sum(sums[each][day] for each in rest))
        rows.append((_date(day), tuple(each / NANO for each in columns)))
    return Stack((*heads, _OTHERS) if rest else tuple(heads), tuple(rows))


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))


def _table(groups: Mapping[str | int | None, Total]) -> list[tuple[str, Total]]:
    ranked = sorted(groups.items(), key=lambda item: (-item[1].cost, str(item[0])))
    return [("no answer" if name is None else str(name), total) for name, total in ranked[:_ROWS]]


def _days(costs: CostCells) -> list[tuple[str, Total]]:
    groups = costs.by(lambda each: each.day)
    known = sorted((day for day in groups if isinstance(day, int)), reverse=True)
    return [(_date(day), groups[day]) for day in known[:_ROWS]]


# Ledger -------------------------------------------------------------------------------------------


def ledger_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of the ledger."""
    ledger = reader.ledger
    with ledger.read() as tx:
        counts = page_queries.ledger_counts(tx)
        rows = page_queries.workspace_rows(tx)
        limits = workspaces.limits_of(tx)
    workers = ledger.workers()
    names = {row.id: row.name or f"workspace {row.id}" for row in rows}
    return {
        "snapshot": reader.snapshot,
        "path": ledger.backend.address,
        "size": ledger.size(),
        "members": [
            (each, [names.get(led, f"workspace {led}") for led in each.drives]) for each in workers
        ],
        "schema_version": SCHEMA_VERSION,
        "incarnation": ledger.incarnation,
        "counts": counts,
        "mark": mark_of(ledger),
        "workspaces": [_led(reader, row, names[row.id], workers) for row in rows],
        "limits": limits,
        "attention": [
            each for each in attention_of(reader.snapshot, ledger) if each.run_id is None
        ],
    }


def _led(
    reader: LedgerReader, row: Record, name: str, workers: Iterable[Worker]
) -> tuple[Record, str, str | None, int, int]:
    """Return a workspace, its name, its driver, and how much it has at the API.

    The driver is "" for a process that the ledger cannot name, and None for no process. At the API
    are batches and their requests.
    """
    driver = next(
        (f"pid {each.pid} on {each.host}" for each in workers if row.id in each.drives), None
    )
    if driver is None and reader.is_driven(row.id):
        driver = ""
    sent = [
        batch.request_count
        for batch in reader.snapshot.open_batches
        if batch.workspace_id == row.id and batch.submitted is not None
    ]
    return row, name, driver, len(sent), sum(sent)
