"""Steps of servers that point elsewhere."""

from __future__ import annotations

from behave import then
from behave.runner import Context

from claude_batch.core.errors import AccountHaltedError


@then('the status says that sending is halted with "{words}"')
def _(context: Context, words: str) -> None:
    status = context.run.status()
    assert status.failed == 0 and status.halt is not None, status
    assert status.halt.reason == "refused" and words in status.halt.message, status.halt
    assert words in status.waiting_for, status.waiting_for


@then("the live call halted because of a redirect")
def _(context: Context) -> None:
    error = context.live_error
    assert isinstance(error, AccountHaltedError) and error.reason == "refused", repr(error)
    assert "a redirect, which is not followed; check the base URL" in str(error), error
