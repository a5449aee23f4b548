"""Medians, ratios and promises, as a table that can stand in a document."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from statistics import median
from typing import Any

from contest import (
    CLAUDE_BATCH,
    CONTESTANTS,
    FLOOR,
    LATENCY,
    POLL_INTERVAL,
    SDK,
    Measurement,
    Round,
)

PROMISED_REQUESTS = 100_000
PROMISED_PEAK = 400.0
"""Megabytes."""

PACKAGES = ("anthropic", "httpx2", "msgspec", "SQLAlchemy", "pydantic")

METRICS: dict[str, Callable[[Measurement], float]] = {
    "wall": lambda measured: measured.cost.wall,
    "cpu": lambda measured: measured.cost.cpu,
    "peak": lambda measured: measured.cost.peak,
    "calls": lambda measured: measured.calls,
}


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that docs/explanation/performance.md says, and whether it is so."""

    words: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All rounds of one workload."""

    requests: int
    body_bytes: int
    rounds: list[Round]

    def median(self, name: str, metric: str) -> float:
        """The median of a contestant's rounds."""
        return median(METRICS[metric](measured[name]) for measured in self.rounds)

    @property
    def promises(self) -> list[Promise]:
        """Those of 100,000 small requests."""
        own, sdk = self.median(CLAUDE_BATCH.name, "cpu"), self.median(SDK.name, "cpu")
        peak = self.median(CLAUDE_BATCH.name, "peak")
        return [
            Promise(f"no more CPU than the bare SDK: {own:.1f} s, {sdk:.1f} s", own <= sdk),
            Promise(
                f"within {PROMISED_PEAK:.0f} MB of memory: {peak:.0f} MB", peak <= PROMISED_PEAK
            ),
        ]

    @property
    def judged(self) -> bool:
        """With few requests, the start of the processes is most of what they cost."""
        return self.requests >= PROMISED_REQUESTS

    @property
    def broken(self) -> bool:
        """True where a promise is judged and not kept."""
        return self.judged and not all(promise.kept for promise in self.promises)

    def values(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "date": _today(),
            "python": _python(),
            "packages": _versions(),
            "requests": self.requests,
            "body_bytes": self.body_bytes,
            "latency": LATENCY,
            "poll_interval": POLL_INTERVAL,
            "rounds": [
                {
                    name: {**asdict(measured.cost), "calls": measured.calls}
                    for name, measured in each.items()
                }
                for each in self.rounds
            ],
            "medians": {
                contestant.name: {
                    metric: self.median(contestant.name, metric) for metric in METRICS
                }
                for contestant in CONTESTANTS
            },
            "ratios": {
                f"{one} / {other}": {metric: self._ratio(one, other, metric) for metric in METRICS}
                for one, other in _COMPARED
            },
            "promises": [asdict(promise) for promise in self.promises] if self.judged else [],
        }

    def text(self) -> str:
        """The report as Markdown."""
        versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
        heading = (
            f"{self.requests:,} requests in one batch of {self.body_bytes:,} bytes, "
            f"medians of {len(self.rounds)} rounds. {_today()}, {_python()} on "
            f"{platform.system()} {platform.machine()}; {versions}."
        )
        lines = [
            heading,
            "",
            "| | wall | CPU | CPU a request | peak memory | API calls |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for contestant in CONTESTANTS:
            wall, cpu, peak, calls = (self.median(contestant.name, metric) for metric in METRICS)
            lines.append(
                f"| {contestant.name} | {wall:.1f} s | {cpu:.2f} s "
                f"| {cpu / self.requests * 1e6:.0f} µs | {peak:.0f} MB | {calls:.0f} |"
            )
        for one, other in _COMPARED:
            wall, cpu, peak, calls = (self._ratio(one, other, metric) for metric in METRICS)
            lines.append(
                f"| **{one} ÷ {other}** | **{wall:.2f}** | **{cpu:.2f}** | **{cpu:.2f}** "
                f"| **{peak:.2f}** | **{calls:.2f}** |"
            )
        lines.append("")
        if self.judged:
            lines += [
                f"{'pass' if promise.kept else 'FAIL'}: {promise.words}"
                for promise in self.promises
            ]
        else:
            lines.append(f"not judged: the promises are about {PROMISED_REQUESTS:,} requests")
        return "\n".join(lines)

    def _ratio(self, one: str, other: str, metric: str) -> float:
        return self.median(one, metric) / self.median(other, metric)


_COMPARED = (
    (CLAUDE_BATCH.name, SDK.name),
    (CLAUDE_BATCH.name, FLOOR.name),
    (SDK.name, FLOOR.name),
)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("claude-batch", *PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # A checkout on the path, not installed.
            found[name] = "from the checkout"
    return found
