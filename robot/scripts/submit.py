"""Submits a run, says its id, and waits for it: python submit.py ACTOR COUNT."""

from __future__ import annotations

import asyncio
import sys

import claude_batch as cb


async def main(path: str, count: int) -> None:
    actor = cb.load_actor(path)
    run = await actor.submit((f"question number {at}" for at in range(1, count + 1)), label="api")
    print(f"submitted {run.id}", flush=True)
    status = await run.wait()
    print(f"{status.state}: {status.counts}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
