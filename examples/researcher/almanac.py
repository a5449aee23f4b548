"""Tools of the researcher, who is told of them by their docstrings: an almanac of harbours."""

from __future__ import annotations

import csv
import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import claude_batch as cb

ALMANAC = Path(__file__).with_name("harbours.csv")


@dataclass
class Harbour:
    """One line of the almanac."""

    name: str
    country: str
    depth: float
    """At low water, in metres."""


def find_harbours(words: str, least_depth: float = 0.0) -> list[Harbour]:
    """Find harbours in the almanac: name, country, and depth at low water in metres.

    Args:
        words: What is looked for, such as a harbour's name or a country's.
        least_depth: Only harbours at least so deep, in metres.
    """
    with ALMANAC.open(encoding="utf-8", newline="") as stream:
        rows = [Harbour(row["name"], row["country"], float(row["depth"]))
                for row in csv.DictReader(stream)]  # fmt: skip
    lower = words.lower()
    named = [row for row in rows if row.name.lower() in lower or row.country.lower() in lower]
    return [row for row in named or rows if row.depth >= least_depth]


# It changes nothing, so it may be run again where its process was killed in its middle.
@cb.tool(repeatable=True, timeout="20s")
async def tide(harbour: str, day: dt.date) -> str:
    """When the water is high in a harbour.

    Args:
        harbour: The harbour's name.
        day: The day, as YYYY-MM-DD.
    """
    # A real one would ask a service here; this one is as regular as the moon.
    minutes = (day.toordinal() * 50 + 7 * len(harbour)) % 745
    return f"{harbour}, {day}: high water at {minutes // 60:02d}:{minutes % 60:02d}"
