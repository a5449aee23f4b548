"""The table of outcomes: every case, against the table that the documentation prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from behave import then
from behave.runner import Context
from pages import agreement

from claude_batch.core.outcome import Disposition, Next, Outcome, Standing, next_step
from claude_batch.core.states import RequestState

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/architecture.md"
PACKAGE = ROOT / "src/claude_batch"

FAILURES = (Outcome.ERRORED, Outcome.CANCELED, Outcome.EXPIRED)
FACTS = {
    "cancelled": ("may_retry", False),
    "not cancelled": ("may_retry", True),
    "attempts left": ("attempts_left", True),
    "near its deadline": ("past_margin", True),
    "contradicted": ("contradicted", True),
    "not billed": ("may_be_paid", False),
    "converses": ("converses", True),
    "has tools": ("has_tools", True),
    "checks the format": ("checks_format", True),
}
"""The words of the table's third column, each with the field of `Standing` that it speaks of."""


def _rows() -> list[list[str]]:
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| outcome |")) + 2
    end = next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def _matches(row: list[str], outcome: Outcome, asks: Disposition, at: Standing) -> bool:
    outcomes = FAILURES if row[0] == "any failure" else [Outcome(word) for word in _words(row[0])]
    dispositions = [] if row[1] == "any" else [Disposition(word) for word in _words(row[1])]
    facts = [FACTS[word] for word in _words(row[2])]
    return (
        outcome in outcomes
        and (not dispositions or asks in dispositions)
        and all(getattr(at, name) is value for name, value in facts)
    )


def _words(cell: str) -> list[str]:
    return [word.strip() for word in cell.split(",") if word.strip()]


@agreement("the table of outcomes")
def table_of_outcomes() -> None:
    """Compare each outcome, with each disposition and all facts."""
    rows = _rows()
    used: set[int] = set()
    for outcome, asks in product(Outcome, Disposition):
        for facts in product((False, True), repeat=len(Standing.__slots__)):
            at = Standing(*facts)
            number, row = next(
                (n, row) for n, row in enumerate(rows) if _matches(row, outcome, asks, at)
            )
            used.add(number)
            state = RequestState(outcome if row[3] == "the outcome" else row[3])
            expected = (state, row[4] == "yes", row[5] or None)
            found: Next = next_step(outcome, asks, at)
            assert found == expected, (outcome, asks, at, found, row)
    assert used == set(range(len(rows))), f"rows that never apply: {set(range(len(rows))) - used}"


@then('no other module than "{name}" updates these columns of a request')
def _(context: Context, name: str) -> None:
    columns = {row["column"] for row in context.table}
    writers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if columns.intersection(_updated(path.read_text("utf-8")))
    }
    assert writers == {name}, writers


def _updated(source: str) -> Iterator[str]:
    """The columns that a module sets with `update(requests)…values(…)`, or in SQL of its own."""
    for found in re.finditer(r"UPDATE requests SET ([^\"]*)", source):
        yield from re.findall(r"(\w+) *=", found[1])
    if "update(requests)" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "values" or "update(requests)" not in ast.unparse(node.func.value):
            continue
        for keyword in node.keywords:
            # A dictionary that is unpacked may hold any column.
            yield keyword.arg or "state"
