"""The bare SDK, as its documentation shows it: create, poll, `results()`; nothing is kept.

    sdk.py REQUESTS_JSONL POLL_SECONDS

Counted is all that this process does: reading the input file, too, but no output file and no
memory of what was sent, so that a crash would lose everything.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import anthropic
from anthropic.types.messages.batch_create_params import Request


def main(lines: Path, interval: float) -> None:
    """Print how many requests succeeded."""
    client = anthropic.Anthropic()
    batch = client.messages.batches.create(requests=requests_of(lines))
    while batch.processing_status != "ended":
        time.sleep(interval)
        batch = client.messages.batches.retrieve(batch.id)
    succeeded = 0
    for line in client.messages.batches.results(batch.id):
        succeeded += line.result.type == "succeeded"
    print(succeeded)


def requests_of(lines: Path) -> list[Request]:
    """The input file as the SDK wants it."""
    model, max_tokens = os.environ["BENCHMARK_MODEL"], int(os.environ["BENCHMARK_MAX_TOKENS"])
    with lines.open("rb") as file:
        return [
            {
                # As long as the ids of claude-batch.
                "custom_id": f"{number:032x}-00000000-0001",
                "params": {
                    "model": model,
                    "max_tokens": max_tokens,
                    "messages": [{"role": "user", "content": json.loads(line)["prompt"]}],
                },
            }
            for number, line in enumerate(file)
        ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
