"""Medians and ratios of the contest between claude-batch, the bare SDK and the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import median

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
from sections import Goal, Section
from workload import SMALL, Workload

PROMISED_REQUESTS = 100_000
PROMISED_PEAK = 400.0
"""Megabytes."""
AIM_PEAK = 120.0
AIM_CPU = 0.5
"""Of the bare SDK's."""

METRICS: dict[str, Callable[[Measurement], float]] = {
    "wall": lambda measured: measured.cost.wall,
    "cpu": lambda measured: measured.cost.cpu,
    "peak": lambda measured: measured.cost.peak,
    "calls": lambda measured: measured.calls,
}
_COMPARED = (
    (CLAUDE_BATCH.name, SDK.name),
    (CLAUDE_BATCH.name, FLOOR.name),
    (SDK.name, FLOOR.name),
)


def contest(workload: Workload, rounds: list[Round]) -> Section:
    """Return all rounds of one workload as a section."""

    def middle(name: str, metric: str) -> float:
        return median(METRICS[metric](measured[name]) for measured in rounds)

    def ratio(one: str, other: str, metric: str) -> float:
        return middle(one, metric) / middle(other, metric)

    table = [["", "wall", "CPU", "CPU a request", "peak memory", "API calls"]]
    for contestant in CONTESTANTS:
        wall, cpu, peak, calls = (middle(contestant.name, metric) for metric in METRICS)
        each = f"{cpu / workload.requests * 1e6:.0f} µs"
        own = [f"{wall:.1f} s", f"{cpu:.2f} s", each, f"{peak:.0f} MB", f"{calls:.0f}"]
        table.append([contestant.name, *own])
    for one, other in _COMPARED:
        wall, cpu, peak, calls = (f"**{ratio(one, other, metric):.2f}**" for metric in METRICS)
        table.append([f"**{one} ÷ {other}**", wall, cpu, cpu, peak, calls])
    cpu, wall = (ratio(CLAUDE_BATCH.name, SDK.name, metric) for metric in ("cpu", "wall"))
    peak = middle(CLAUDE_BATCH.name, "peak")
    goals: list[Goal] = []
    # With few requests, the start of the processes is most of what they cost.
    if workload.requests >= PROMISED_REQUESTS:
        times, memory = f"{cpu:.2f} times the bare SDK's CPU", f"{peak:.0f} MB of memory"
        if workload.shape == SMALL:
            goals += [
                Goal(f"{times}, promised 1", cpu <= 1, promised=True),
                Goal(
                    f"{memory}, promised {PROMISED_PEAK:.0f}", peak <= PROMISED_PEAK, promised=True
                ),
            ]
        goals += [
            Goal(f"{times}, aim {AIM_CPU}", cpu <= AIM_CPU),
            Goal(f"{memory}, aim {AIM_PEAK:.0f}", peak <= AIM_PEAK),
            Goal(f"{wall:.2f} times the bare SDK's wall time, aim 1", wall <= 1),
        ]
    return Section(
        title=f"{workload.shape.name.capitalize()} requests",
        heading=f"{workload.requests:,} requests ({workload.shape.words}) in one batch of "
        f"{workload.body_bytes:,} bytes. Median of rounds: {len(rounds)}.",
        table=table,
        goals=goals,
        values={
            "requests": workload.requests,
            "body_bytes": workload.body_bytes,
            "latency": LATENCY,
            "poll_interval": POLL_INTERVAL,
            "rounds": [
                {
                    name: {**asdict(measured.cost), "calls": measured.calls}
                    for name, measured in each.items()
                }
                for each in rounds
            ],
            "ratios": {
                f"{one} / {other}": {metric: ratio(one, other, metric) for metric in METRICS}
                for one, other in _COMPARED
            },
        },
    )
