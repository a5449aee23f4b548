"""The page of actors: what each has been asked, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from claude_batch.dashboard.cost_cells import Total
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.dashboard.overview_page import shares_of
from claude_batch.dashboard.progress_bar import bar_of
from claude_batch.ledger import page_queries

_ROWS: Final = 50


def actors_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of all actors."""
    snapshot = reader.snapshot
    after = values.get("after", "")
    with reader.ledger.read() as tx:
        found = page_queries.actors(tx, after, _ROWS + 1)
    totals = snapshot.costs.by(lambda cell: cell.actor)
    budgets = {each.name: each for each in snapshot.budgets if each.scope == "actor"}
    return {
        "snapshot": snapshot,
        "actors": [
            (each, totals.get(each.actor, Total()), budgets.get(each.actor))
            for each in found[:_ROWS]
        ],
        "after": after,
        "following": found[_ROWS - 1].actor if len(found) > _ROWS else None,
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
        rows = page_queries.runs_before(tx, before, _RUNS + 1, actor=name)
    shown = rows[:_RUNS]
    statuses = [reader.status(row.id) for row in shown]
    budget = next(
        (each for each in snapshot.budgets if (each.scope, each.name) == ("actor", name)), None
    )
    costs = snapshot.costs.by(lambda cell: cell.sums.run_id if cell.actor == name else None)
    return {
        "snapshot": snapshot,
        "actor": name,
        "total": snapshot.costs.by(lambda cell: cell.actor).get(name, Total()),
        "budget": budget,
        "shares": None if budget is None else shares_of(budget),
        "runs": [(each, bar_of(each.counts, each.total)) for each in statuses],
        "costs": {run_id: total.cost for run_id, total in costs.items()},
        "before": values.get("before", ""),
        "following": f"{shown[-1].created!r}_{shown[-1].id}" if len(rows) > _RUNS else None,
    }


_RUNS: Final = 20
"""Runs of an actor on a page; each that was not read before is counted."""
