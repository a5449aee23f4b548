"""The recorded answers of the service, in features/recorded/: shapes and facts, written anew.

Each file names the date and the kind of its source. Ids, texts and numbers are made up; the fields,
their order, types and formats, the headers and the words of errors are those of the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class Recorded:
    """One answer."""

    recording: str
    """The name of its file."""
    step: str
    status: int
    headers: dict[str, str]
    value: Any
    """The decoded body; None for results."""
    lines: dict[str, dict[str, Any]]
    """The lines of results by their custom_id."""
    last_line_ends: bool | None
    """Whether results ended with a line break; None if the source does not show it."""

    @property
    def body(self) -> bytes:
        """The bytes that were sent."""
        if not self.lines:
            return encoded(self.value)
        return b"\n".join(map(encoded, self.lines.values())) + (
            b"" if self.last_line_ends is False else b"\n"
        )


def encoded(value: Any) -> bytes:
    """JSON as the service writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@cache
def recording(name: str) -> dict[str, Recorded]:
    """The answers of one file, by their steps."""
    content = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert content["source"].keys() == {"date", "kind"}, name
    return {
        each["step"]: Recorded(
            name,
            each["step"],
            each["status"],
            each["headers"],
            each.get("body"),
            {line["custom_id"]: line for line in each.get("lines", ())},
            each.get("last_line_ends"),
        )
        for each in content["answers"]
    }


def recorded() -> Iterator[Recorded]:
    """Every answer, those of the oldest recording first."""
    for path in sorted(FOLDER.glob("*.json")):
        yield from recording(path.stem).values()
