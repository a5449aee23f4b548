"""Steps of mistakes that a caller makes in Python."""

from __future__ import annotations

import asyncio
from typing import Any

from behave import then
from behave.runner import Context

import claude_batch as cb


@then("these mistakes are refused")
def _(context: Context) -> None:
    live = cb.ClaudeProvider()
    context.add_cleanup(live.close)
    configuration = cb.ActorConfiguration(model="claude-haiku-4-5")
    middle = cb.ClaudeBatchProvider(middleware=[cb.Middleware()])
    context.add_cleanup(middle.close)
    names: dict[str, Any] = {
        "asyncio": asyncio,
        "cb": cb,
        "actor": context.actor,
        "provider": context.provider,
        "changed": cb.Actor(configuration, middle),
        "live": cb.Actor(configuration, live),
        "run": getattr(context, "run", None),
    }
    for row in context.table:
        try:
            found = eval(row["expression"], names)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            assert words.startswith(row["error"]), (row["expression"], words)
        else:
            raise AssertionError(f"{row['expression']} is {found!r}")
