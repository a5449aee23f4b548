"""The steps behind tables of pure functions and of fields: see features/tables.py."""

from __future__ import annotations

import contextlib
import json

from behave import then
from behave.runner import Context
from staging import until
from tables import check, check_fields


@then("{sentence} as follows")
def _(context: Context, sentence: str) -> None:
    check(context, sentence)


@then("the {thing}'s fields are")
def _(context: Context, thing: str) -> None:
    """Compare what a path of attributes, keys and positions leads to; a method is called."""
    check_fields(context, getattr(context, thing.replace(" ", "_").lower()))


@then("the {thing}'s fields come to be")
def _(context: Context, thing: str) -> None:
    def hold() -> bool:
        with contextlib.suppress(AssertionError):
            check_fields(context, getattr(context, thing.replace(" ", "_")))
            return True
        return False

    until(hold)


@then("the {thing}'s plain values are")
def _(context: Context, thing: str) -> None:
    """Compare what an output line holds, with the order of its keys."""
    found = getattr(context, thing.replace(" ", "_")).to_dict()
    assert json.dumps(found) == json.dumps(json.loads(context.text)), found
