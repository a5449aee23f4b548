"""Ask through the Python API as docs/how-to/python.md shows it: single calls, then a table.

python ask.py ACTOR COUNT: COUNT single calls at once, COUNT requests of one `respond_all`, and the
synchronous twins from a second thread. Prints a line of JSON with what came back.
"""

from __future__ import annotations

import asyncio
import json
import sys

import claude_batch as cb


async def main(path: str, count: int) -> None:
    actor = cb.load_actor(path)
    calls = (actor.respond(f"call number {at}") for at in range(count))
    twin = asyncio.to_thread(actor.respond_sync, "from a thread")
    *answers, threaded = await asyncio.gather(*calls, twin)
    requests = [cb.ActorRequest(f"row number {at}", key=f"row-{at}") for at in range(count)]
    table = [result async for result in actor.respond_all(requests)]
    print(
        json.dumps(
            {
                "calls": [answer.text for answer in answers],
                "call_batches": len({answer.batch_id for answer in [*answers, threaded]}),
                "keys": [result.key for result in table],
                "rows": [result.response.text if result.response else None for result in table],
                "errors": [str(result.error) for result in table if result.error],
            }
        )
    )


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    except cb.AccountHaltedError as error:
        sys.exit(f"halted: {error.reason}")
