"""Tools of a pilot, which note each of their calls beside this file."""

from __future__ import annotations

from pathlib import Path

import claude_batch as cb

CALLS = Path(__file__).with_name("calls.txt")


def _note(name: str) -> None:
    with CALLS.open("a", encoding="utf-8") as stream:
        stream.write(f"{name}\n")


def depth(harbour: str) -> str:
    """How deep a harbour is."""
    _note("depth")
    return f"{len(harbour)} m"


@cb.tool(repeatable=True)
def sounding(harbour: str) -> str:
    """How deep a harbour is, for as often as it is asked."""
    _note("sounding")
    return f"{len(harbour)} m"


async def tide(harbour: str) -> str:
    """When the water is high."""
    _note("tide")
    return "high at noon"
