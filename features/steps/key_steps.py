"""Steps about a key that was changed."""

from __future__ import annotations

import os

from behave import when
from behave.runner import Context
from cli_steps import command


@when('a command\'s key is changed to "{key}"')
def _(context: Context, key: str) -> None:
    os.environ["ANTHROPIC_API_KEY"] = key


@when("a command runs besides: {words}")
def _(context: Context, words: str) -> None:
    """RUN stays the run that was asked first."""
    first = context.run_id
    command(context, words)
    context.run_id = first
