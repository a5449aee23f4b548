"""The clock of the ledger's server, which its processes on several machines share."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

_elapsed: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds that no setting of a clock changes; on Linux also those in which the machine sleeps."""


_SLOW: Final = 1.0
"""Seconds for an answer from which on it tells too little, because the process may have slept."""


class ServerClock:
    """Tells the server's time between the answers that bring it."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        """What the server's time has more than `_elapsed`."""

    def read(self, ask: Callable[[], float]) -> None:
        """Set the clock by a query that returns the server's seconds since the epoch.

        The answer is taken for the time halfway between the question and its arrival. A slow one
        changes nothing, unless it is the first.
        """
        asked = _elapsed()
        told = ask()
        answered = _elapsed()
        if self._ahead is None or answered - asked < _SLOW:
            self._ahead = told - (asked + answered) / 2

    def now(self) -> float:
        """Return the server's time in seconds since the epoch. It was `read` before."""
        assert self._ahead is not None
        return self._ahead + _elapsed()
