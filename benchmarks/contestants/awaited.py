"""N tasks of a program that await an answer each, at the same time.

    awaited.py tasks|claude-batch|pydantic-ai|langasync N [--no-gc | --freeze]

Prints JSON: CPU and wall seconds of the N answers, without imports and the first call; the longest
time for which the event loop ran nothing else; how many answers there were. `tasks` awaits a timer
in each task: that is what the program itself costs.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

MODEL = os.environ["BENCHMARK_MODEL"]
POLL_INTERVAL = 0.5
LINGER = 1.0
"""Seconds for which the first call of a batch waits for others, where that can be set."""
TICK = 0.005

Respond = Callable[[list[str]], Awaitable[int]]
"""Answers prompts, and returns how many were answered."""


@asynccontextmanager
async def tasks(_: int) -> Any:
    """No library: each task sleeps."""

    async def each(_: str) -> bool:
        await asyncio.sleep(LINGER)
        return True

    async def respond(prompts: list[str]) -> int:
        return sum(await asyncio.gather(*map(each, prompts)))

    yield respond


@asynccontextmanager
async def claude_batch(_: int) -> Any:
    """`actor.respond` in each task."""
    import claude_batch as cb

    actor = cb.ActorConfiguration(
        name="benchmark/asker", provider="anthropic", model=MODEL, batch_processing=True
    )
    async with cb.ClaudeBatchProvider(poll_interval=POLL_INTERVAL, linger=LINGER) as provider:
        asker = cb.Actor(actor, provider)

        async def respond(prompts: list[str]) -> int:
            answers = await asyncio.gather(*map(asker.respond, prompts))
            return sum(bool(answer.text) for answer in answers)

        yield respond


@asynccontextmanager
async def pydantic_ai(count: int) -> Any:
    """`agent.run` in each task, with the capability `BatchModelRequests`."""
    # By name, because the type checker of this project does not install it.
    library, capabilities = map(
        importlib.import_module, ("pydantic_ai", "pydantic_ai.capabilities")
    )
    batching = capabilities.BatchModelRequests(
        max_requests=count,
        max_wait=timedelta(seconds=LINGER),
        poll_interval=timedelta(seconds=POLL_INTERVAL),
        max_poll_interval=timedelta(seconds=POLL_INTERVAL),
    )
    agent = library.Agent(f"anthropic:{MODEL}", capabilities=[batching])

    async def respond(prompts: list[str]) -> int:
        answers = await asyncio.gather(*map(agent.run, prompts))
        return sum(bool(answer.output) for answer in answers)

    yield respond


@asynccontextmanager
async def langasync(_: int) -> Any:
    """Its own form: one job of all prompts, and a poller; it has no call to await for each."""
    library = importlib.import_module("langasync")
    chat = importlib.import_module("langchain_anthropic").ChatAnthropic(model=MODEL)
    settings = library.LangasyncSettings(
        ANTHROPIC_API_KEY=os.environ["ANTHROPIC_API_KEY"],
        ANTHROPIC_BASE_URL=os.environ["ANTHROPIC_BASE_URL"],
        LANGASYNC_BATCH_POLL_INTERVAL=POLL_INTERVAL,
        LANGASYNC_BASE_STORAGE_PATH=tempfile.mkdtemp(),
    )

    async def respond(prompts: list[str]) -> int:
        await library.batch_chain(chat, settings).submit(prompts)
        jobs = [job async for job in library.BatchPoller(settings).wait_all()]
        return sum(bool(answer.content) for job in jobs for answer in job.results or [])

    yield respond


WAYS = {
    "tasks": tasks,
    "claude-batch": claude_batch,
    "pydantic-ai": pydantic_ai,
    "langasync": langasync,
}


async def main(way: str, count: int) -> None:
    """Measure one way of asking."""
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(TICK)
            gaps.append(time.perf_counter() - begun - TICK)

    async with WAYS[way](count) as respond:
        # The first call imports what is imported late, and opens connections.
        assert await respond(["warm up"]) == 1
        prompts = [f"prompt {number}" for number in range(count)]
        gc.collect()
        if "--freeze" in sys.argv:
            gc.freeze()
        watcher = asyncio.create_task(watch())
        cpu, wall = time.process_time(), time.perf_counter()
        answered = await respond(prompts)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        watcher.cancel()
    print(json.dumps({"cpu": cpu, "wall": wall, "gap": max(gaps), "answered": answered}))


if __name__ == "__main__":
    if "--no-gc" in sys.argv:
        gc.disable()
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
