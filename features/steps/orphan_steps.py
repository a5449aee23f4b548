"""Steps of calls and runs whose process was killed, at a point that has a name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import programs
from behave import then, when
from behave.runner import Context
from staging import make_provider, until

MORTAL = """
import os, signal, sys
import claude_batch as cb
from claude_batch.core import crash_points

def die(point):
    if point == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

crash_points.on_reach = die
configuration = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
)
actor = cb.Actor(configuration, cb.ClaudeBatchProvider(linger=0.1, poll_interval=0.05))
"""


def _killed(point: str, script: str) -> None:
    done = programs.run(MORTAL + script, point)
    assert done.returncode == -9, (done.returncode, done.stderr)


@when('a process asks "{prompt}" and is killed when "{point}" is reached')
def _(context: Context, prompt: str, point: str) -> None:
    _killed(point, f"actor.respond_sync({prompt!r})")


@when('a process stores a run of {count:d} prompts and is killed when "{point}" is reached')
def _(context: Context, count: int, point: str) -> None:
    _killed(point, f"actor.submit_sync([f'prompt {{n}}' for n in range({count})])")


@when("a batch provider is opened")
def _(context: Context) -> None:
    make_provider(context)


@when("these prompts are asked: {prompts}")
def _(context: Context, prompts: str) -> None:
    async def ask() -> list[Any]:
        calls = [context.actor.respond(prompt.strip()) for prompt in prompts.split(",")]
        return await asyncio.gather(*calls, return_exceptions=True)

    context.outcomes = asyncio.run(ask())
    context.error = context.outcomes[0]


@then("no lock of a dead process lies beside the ledger")
def _(context: Context) -> None:
    ledger = Path(os.environ["CLAUDE_BATCH_LEDGER"])
    until(lambda: len(list(ledger.parent.glob("*.process-*"))) == 1)
