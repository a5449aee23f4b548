"""Steps of the waits between two tries."""

from __future__ import annotations

from behave import then
from behave.runner import Context

from claude_batch.wire import retry_policy
from claude_batch.wire.retry_policy import Backoff


def _backoff(work: str) -> Backoff:
    found = getattr(retry_policy, work)
    assert isinstance(found, Backoff), work
    return found


@then(
    "the wait of {work} is {first}, {second}, {fifth} and {hundredth} seconds after 1, 2, 5 and "
    "100 failures"
)
def _(context: Context, work: str, first: str, second: str, fifth: str, hundredth: str) -> None:
    for failures, wanted in ((1, first), (2, second), (5, fifth), (100, hundredth)):
        low, _, high = wanted.partition("-")
        waits = [_backoff(work)(failures) for _ in range(200)]
        assert float(low) <= min(waits) and max(waits) <= float(high or low), (failures, waits)
        # A range is used, not one end of it.
        assert not high or max(waits) - min(waits) > (float(high) - float(low)) / 2, waits


@then("the wait of {work} is {seconds:g} seconds after an answer that asks for {asked:g}")
def _(context: Context, work: str, seconds: float, asked: float) -> None:
    assert _backoff(work)(1, asked) == seconds
