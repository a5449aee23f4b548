"""Steps about random histories of the lifecycle."""

from __future__ import annotations

from behave import then, when
from behave.runner import Context
from histories.mutants import MUTANTS
from histories.play import find_out, play


@when("random histories are played")
@when("random histories with {kind} are played")
@when("random histories are played with a driver that {rule}")
def _(context: Context, kind: str | None = None, rule: str | None = None) -> None:
    assert kind in (None, "live calls"), kind
    if rule is None:
        context.broken = play(live=kind is not None)
    else:
        assert rule in MUTANTS
        context.broken = find_out(rule)


@then("{how_many} of them breaks a promise")
def _(context: Context, how_many: str) -> None:
    assert (context.broken is None) == (how_many == "none"), context.broken
