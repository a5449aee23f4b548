"""The step behind every table of a pure function: see features/tables.py."""

from __future__ import annotations

from behave import then
from behave.runner import Context
from tables import check


@then("{sentence} as follows")
def _(context: Context, sentence: str) -> None:
    check(context, sentence)
