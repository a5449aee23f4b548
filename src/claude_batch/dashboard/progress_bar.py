"""The parts of a bar that shows how far a run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from claude_batch.core.states import RequestState

_PARTS: Final = (
    ("good", (RequestState.SUCCEEDED,)),
    ("calm", (RequestState.CANCELED,)),
    ("busy", (RequestState.PACKED, RequestState.CONTINUING)),
    ("rest", (RequestState.QUEUED, RequestState.HELD)),
)


class Part(NamedTuple):
    """A part of a bar, in percent."""

    tone: str
    start: float
    width: float


class Bar(NamedTuple):
    """How far a run is."""

    done: int
    total: int
    failed: int
    parts: tuple[Part, ...]

    @property
    def percent(self) -> float:
        """The share of the requests that have ended; never 100 before the last one."""
        share = 100 * self.done / self.total if self.total else 0.0
        return share if self.done == self.total else min(share, 99.9)


def bar_of(counts: Mapping[RequestState, int], total: int) -> Bar:
    """Return the bar of a run: succeeded, failed, cancelled, in a batch, and waiting."""
    named = {state for _, states in _PARTS for state in states}
    failed = sum(count for state, count in counts.items() if state not in named)
    numbers = [(tone, sum(counts.get(state, 0) for state in states)) for tone, states in _PARTS]
    numbers.insert(1, ("bad", failed))
    parts: list[Part] = []
    start = 0.0
    for tone, count in numbers:
        width = 100 * count / total if total else 0.0
        if count:
            parts.append(Part(tone, round(start, 2), round(width, 2)))
        start += width
    done = sum(count for state, count in counts.items() if state.is_final)
    return Bar(done, total, failed, tuple(parts))
