"""Steps about programs that use the package, each in a process of its own."""

from __future__ import annotations

import programs
from behave import then, when
from behave.runner import Context

BEGINNING = """
import asyncio
import claude_batch as cb

settings = {"linger": 0, "turn_linger": 0, "poll_interval": 0.05, "max_wait": 30}
asker = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
"""


@when("this program runs")
def _(context: Context) -> None:
    """``asker`` is an actor, and ``settings`` are quick ones of a provider."""
    context.done = programs.run(BEGINNING + context.text)


@then("the program has printed")
def _(context: Context) -> None:
    assert context.done.returncode == 0, context.done.stderr
    assert context.done.stdout.strip() == context.text.strip(), context.done
