"""R runs of one program, all in flight at the same time.

    runs.py RUNS REQUESTS_OF_EACH

Stores the runs one after the other, then reads the results of each, in order. Prints how many
requests succeeded, the CPU seconds without imports, and how many runs had a result before the last
one was stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import claude_batch as cb


async def main(runs: int, requests: int) -> None:
    """Store, wait and read."""
    actor = cb.ActorConfiguration(
        name="benchmark/asker",
        provider="anthropic",
        model=os.environ["BENCHMARK_MODEL"],
        batch_processing=True,
    )
    async with cb.ClaudeBatchProvider(poll_interval=0.5) as provider:
        asker = cb.Actor(actor, provider)
        await asker.respond("warm up")
        begun = time.process_time()
        stored = [
            await asker.submit([f"prompt {n} of run {number}" for n in range(requests)])
            for number in range(runs)
        ]
        early = sum(run.status().finished for run in stored)

        async def read(run: cb.Run) -> int:
            return sum([result.ok async for result in run.results()])

        succeeded = sum(await asyncio.gather(*map(read, stored)))
        cpu = time.process_time() - begun
    print(json.dumps({"succeeded": succeeded, "cpu": cpu, "early": early}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
