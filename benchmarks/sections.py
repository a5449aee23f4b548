"""What a part of the benchmark reports: a table, and what it says of goals and promises."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

PACKAGES = ("anthropic", "httpx2", "msgspec", "SQLAlchemy", "pydantic")


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that docs/explanation/performance.md names, and whether it was met."""

    words: str
    met: bool
    promised: bool = False
    """Whether the benchmark fails if it was not met. Otherwise it is an aim."""

    def __str__(self) -> str:
        if self.promised:
            return f"{'pass' if self.met else 'FAIL'}: {self.words}"
        return f"{'reached' if self.met else 'not reached'}: {self.words}"


@dataclass(frozen=True, slots=True)
class Section:
    """One part, measured."""

    title: str
    heading: str
    """How it was measured: numbers of requests, rounds, settings."""
    table: list[Sequence[str]]
    """Rows of cells; the first row names the columns."""
    goals: list[Goal] = field(default_factory=list[Goal])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Every measurement, for `--json`."""

    @property
    def broken(self) -> bool:
        """Whether a promise was not kept."""
        return any(goal.promised and not goal.met for goal in self.goals)

    def text(self) -> str:
        """Return the section as Markdown."""
        columns, *rows = self.table
        lines = [f"### {self.title}", "", self.heading, ""]
        lines.append(f"| {' | '.join(columns)} |")
        lines.append("|---|" + "---:|" * (len(columns) - 1))
        lines += [f"| {' | '.join(row)} |" for row in rows]
        if self.goals:
            lines += ["", *(f"- {goal}" for goal in self.goals)]
        return "\n".join(lines)


def where() -> str:
    """Return the date, the machine's kind, and the versions."""
    names = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        f"{today()}, {platform.python_implementation()} {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}; {names}."
    )


def today() -> str:
    """Return the date in UTC."""
    return datetime.now(UTC).date().isoformat()


def versions() -> dict[str, str]:
    """Return the versions of this package and of those that it is compared with or built on."""
    return {name: version_of(name) for name in ("claude-batch", *PACKAGES)}


def version_of(package: str) -> str:
    """Return an installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # A checkout on the path, not installed.
        return "from the checkout"
