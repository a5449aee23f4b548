"""The requests: an input file as people have it, and the same requests as one prepared body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODEL = "claude-haiku-4-5"
MAX_TOKENS = 4096
"""What `claude-batch` gives where nobody says how much; the others give the same."""

BATCH = 100_000
"""Requests that one batch takes."""

_PROMPT = (
    "Ticket {number:06d}. A customer writes: the parcel arrived on {day:02d} March, the box was "
    "open and {items} of its items were missing. Say in one sentence which team must answer, and "
    "how soon; name the order."
)
_FILLER = "The customer adds that the courier's note names another address and an earlier day. "


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of requests and answers."""

    name: str
    words: str
    prompt_bytes: int = 0
    """Prompts are lengthened to this size; 0 leaves them as they are."""
    responder: str | None = None
    """`module:function` of this folder that makes the sandbox's answers."""


SMALL = Shape("small", "about 200 bytes of prompt, 150 bytes of answer")
MIDDLE = Shape("middle", "2 kB of prompt, 1 kB of answer", 2000, "answers:kilobyte")


@dataclass(frozen=True, slots=True)
class Workload:
    """The files that the contestants are given."""

    requests: int
    shape: Shape
    lines: Path
    """JSON lines with `id` and `prompt`."""
    body: Path
    """The body of one create call with the same requests, for the floor."""
    body_bytes: int


def prompts(count: int, shape: Shape = SMALL) -> Iterator[str]:
    """Yield prompts, no two alike."""
    for number in range(count):
        prompt = _PROMPT.format(number=number, day=number % 31 + 1, items=number % 7 + 2)
        if missing := max(0, shape.prompt_bytes - len(prompt)):
            prompt += " " + (_FILLER * (missing // len(_FILLER) + 1))[: missing - 1]
        yield prompt


def prepare(folder: Path, requests: int, shape: Shape = SMALL) -> Workload:
    """Write the files, without holding them in memory: a child's peak includes its parent's."""
    folder.mkdir(exist_ok=True)
    lines_path, body_path = folder / "requests.jsonl", folder / "body.json"
    with (
        lines_path.open("w", encoding="utf-8") as lines,
        body_path.open("w", encoding="utf-8") as body,
    ):
        body.write('{"requests":[')
        for number, prompt in enumerate(prompts(requests, shape)):
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
    return Workload(requests, shape, lines_path, body_path, body_path.stat().st_size)
