"""The requests: an input file as people have it, and the same requests as one prepared body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODEL = "claude-haiku-4-5"
MAX_TOKENS = 4096
"""What `claude-batch` gives where nobody says how much; the others give the same."""

_PROMPT = (
    "Ticket {number:06d}. A customer writes: the parcel arrived on {day:02d} March, the box was "
    "open and {items} of its items were missing. Say in one sentence which team must answer, and "
    "how soon; name the order."
)


@dataclass(frozen=True, slots=True)
class Workload:
    """The files that the contestants are given."""

    requests: int
    lines: Path
    """JSON lines with `id` and `prompt`."""
    body: Path
    """The body of one create call with the same requests, for the floor."""


def prompts(count: int) -> Iterator[str]:
    """About 200 bytes each, no two alike."""
    for number in range(count):
        yield _PROMPT.format(number=number, day=number % 31 + 1, items=number % 7 + 2)


def prepare(folder: Path, requests: int) -> Workload:
    """Write the files, without holding them in memory: a child's peak includes its parent's."""
    folder.mkdir(exist_ok=True)
    workload = Workload(requests, folder / "requests.jsonl", folder / "body.json")
    with (
        workload.lines.open("w", encoding="utf-8") as lines,
        workload.body.open("w", encoding="utf-8") as body,
    ):
        body.write('{"requests":[')
        for number, prompt in enumerate(prompts(requests)):
            lines.write(json.dumps({"id": f"ticket-{number:06d}", "prompt": prompt}) + "\n")
            item = {
                # As long as the ids of claude-batch.
                "custom_id": f"{number:032x}-00000000-0001",
                "params": {
                    "model": MODEL,
                    "max_tokens": MAX_TOKENS,
                    "messages": [{"role": "user", "content": prompt}],
                },
            }
            body.write(("," if number else "") + json.dumps(item, separators=(",", ":")))
        body.write("]}")
    return workload
