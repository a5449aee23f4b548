"""One of many programs on a ledger: says that it is ready, and asks N prompts when it is told to.

together.py N

Prints JSON: CPU and wall seconds of the N answers, and how many there were.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import claude_batch as cb

MODEL = os.environ["BENCHMARK_MODEL"]


async def main(count: int) -> None:
    """Ask once told to."""
    actor = cb.ActorConfiguration(
        name="benchmark/asker", provider="anthropic", model=MODEL, batch_processing=True
    )
    async with cb.ClaudeBatchProvider(poll_interval=0.5) as provider:
        asker = cb.Actor(actor, provider)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        cpu, wall = time.process_time(), time.perf_counter()
        # Each program asks something else: equal calls would be asked once.
        prompts = [f"prompt {number} of {os.getpid()}" for number in range(count)]
        answers = await asyncio.gather(*map(asker.respond, prompts))
        answered = sum(bool(answer.text) for answer in answers)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu, "wall": wall, "answered": answered}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
