"""Tools of a storm's model. Each notes beside this file that it runs: in which process, for whom.

A note is there before the tool returns, and what it returns bears the note's mark. So whoever reads
the notes afterwards knows how often each tool ran, and of which run a recorded result is.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import time
from pathlib import Path

import claude_batch as cb

NOTES = Path(__file__).with_name("notes.jsonl")

TAKES = (0.0, 0.05, 0.1, 0.2, 0.8)
"""Seconds that a tool may take."""


def _note(tool: str, subject: str) -> str:
    mark = secrets.token_hex(8)
    note = {"tool": tool, "subject": subject, "mark": mark, "pid": os.getpid()}
    # Unbuffered, and a line at once: whoever is killed leaves all of it, or nothing.
    with NOTES.open("ab", buffering=0) as stream:
        stream.write(f"{json.dumps(note)}\n".encode())
    return f"{tool} {mark} for {subject}"


def record(subject: str) -> str:
    """Something that must not be done twice."""
    told = _note("record", subject)
    time.sleep(random.choice(TAKES))
    return told


@cb.tool(repeatable=True)
async def measure(subject: str) -> str:
    """Something that may be done as often as one likes."""
    told = _note("measure", subject)
    await asyncio.sleep(random.choice(TAKES))
    return told
