"""The page of costs: by day, model and actor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from claude_batch.core.quantities import NANO
from claude_batch.dashboard.cost_cells import Cell, CostCells, Total
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.ledger.cost_sums import DAY
from claude_batch.lifecycle.budget_room import today

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
    return {
        "snapshot": snapshot,
        "total": costs.total(),
        "by_day_and_model": _stack(costs, lambda cell: cell.sums.model),
        "by_day_and_actor": _stack(costs, lambda cell: cell.actor),
        "tables": [
            ("Models", "model", _table(costs.by(lambda cell: cell.sums.model))),
            ("Actors", "actor", _table(costs.by(lambda cell: cell.actor))),
            ("Days (UTC)", "day", _days(costs)),
        ],
    }


def _stack(costs: CostCells, name: Callable[[Cell], str | None]) -> Stack:
    """Add up the cost of the last days by a name."""
    last = today(time.time())
    sums: dict[str, dict[int, int]] = {}
    for cell in costs.cells():
        day = cell.sums.day
        if day is not None and last - _DAYS < day <= last and cell.sums.cost:
            of = sums.setdefault(name(cell) or "no model", {})
            of[day] = of.get(day, 0) + cell.sums.cost
    ranked = sorted(sums, key=lambda each: (-sum(sums[each].values()), each))
    heads = ranked[:_COLUMNS]
    rest = ranked[_COLUMNS:]
    first = min((day for of in sums.values() for day in of), default=last)
    rows: list[tuple[str, tuple[float, ...]]] = []
    # A week at least, so that a first day is not one wide bar.
    for day in range(min(first, last - 6), last + 1):
        columns = [sums[each].get(day, 0) for each in heads]
        if rest:
            columns.append(sum(sums[each].get(day, 0) for each in rest))
        rows.append((_date(day), tuple(each / NANO for each in columns)))
    return Stack((*heads, _OTHERS) if rest else tuple(heads), tuple(rows))


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))


def _table(groups: Mapping[str | int | None, Total]) -> list[tuple[str, Total]]:
    ranked = sorted(groups.items(), key=lambda item: (-item[1].cost, str(item[0])))
    return [("no answer" if name is None else str(name), total) for name, total in ranked[:_ROWS]]


def _days(costs: CostCells) -> list[tuple[str, Total]]:
    groups = costs.by(lambda cell: cell.sums.day)
    known = sorted((day for day in groups if isinstance(day, int)), reverse=True)
    return [(_date(day), groups[day]) for day in known[:_ROWS]]
