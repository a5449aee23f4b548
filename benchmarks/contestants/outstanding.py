"""B batches of one request each, which wait at the API, and then end at the same moment.

    outstanding.py BATCHES SECONDS

Measures `SECONDS` of waiting with a poll every second, then moves the sandbox's clock so that all
batches end, and measures how long the first and the last answer take to reach the caller.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.request
from collections import Counter
from typing import Any

import claude_batch as cb

POLL_INTERVAL = 1.0


def sandbox(method: str, path: str, value: Any = None) -> Any:
    """Call one of the sandbox's own routes."""
    data = None if value is None else json.dumps(value).encode()
    url = os.environ["ANTHROPIC_BASE_URL"] + path
    request = urllib.request.Request(url, data, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


async def main(batches: int, seconds: float) -> None:
    """Wait, end the batches, and read."""
    actor = cb.ActorConfiguration(
        name="benchmark/asker",
        provider="anthropic",
        model=os.environ["BENCHMARK_MODEL"],
        batch_processing=True,
    )
    async with cb.ClaudeBatchProvider(
        poll_interval=POLL_INTERVAL, max_poll_interval=POLL_INTERVAL, max_requests=1
    ) as provider:
        run = await cb.Actor(actor, provider).submit([f"prompt {n}" for n in range(batches)])
        await run.wait_until_sent()
        sent = len([call for call in sandbox("GET", "/sandbox/log") if call["route"] == "create"])
        await asyncio.sleep(2 * POLL_INTERVAL)
        sandbox("DELETE", "/sandbox/log")
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - cpu
        calls = Counter(call["route"] for call in sandbox("GET", "/sandbox/log"))
        reached: list[float] = []

        async def read() -> None:
            async for result in run.results(ordered=False):
                assert result.ok
                reached.append(time.perf_counter())

        reading = asyncio.create_task(read())
        await asyncio.sleep(POLL_INTERVAL)
        sandbox("POST", "/sandbox/clock", {"advance": 100_000.0})
        ended = time.perf_counter()
        await reading
    print(
        json.dumps(
            {
                "sent": sent,
                "cpu": cpu,
                "calls": calls,
                "first": reached[0] - ended,
                "last": reached[-1] - ended,
                "answered": len(reached),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
