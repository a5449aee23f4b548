"""Steps about random histories of the lifecycle."""

from __future__ import annotations

from behave import then, when
from behave.runner import Context
from histories.mutants import MUTANTS
from histories.play import FAMILIES, find_out, play


@when("random histories are played")
@when("random histories with {kind} are played")
@when("random histories are played with a driver that {rule}")
def _(context: Context, kind: str | None = None, rule: str | None = None) -> None:
    assert kind is None or kind in FAMILIES, kind
    if rule is None:
        context.broken = play(family=kind or "")
    else:
        assert rule in MUTANTS
        context.broken = find_out(rule)


@then("{how_many} of them breaks a promise")
def _(context: Context, how_many: str) -> None:
    assert (context.broken is None) == (how_many == "none"), context.broken
