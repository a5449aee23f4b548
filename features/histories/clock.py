"""Simulated time: the server's, a wall clock that may jump, and a monotonic one that does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["START", "Clock", "installed"]

START = 1_900_000_000.0
"""When every history begins, in seconds since the epoch."""


class Clock:
    """Stands where a module has its `time`."""

    def __init__(self) -> None:
        self.server = START
        """The true time, which is the API's."""
        self.skew = 0.0
        """How far the wall clock is ahead of it."""

    def advance(self, seconds: float) -> None:
        self.server += seconds

    def time(self) -> float:
        return self.server + self.skew

    def monotonic(self) -> float:
        return self.server - START


@contextmanager
def installed(clock: Clock) -> Generator[None]:
    """Every module of the package that is loaded by now reads this clock, while the block lasts."""
    loaded = [m for name, m in list(sys.modules.items()) if name.startswith("claude_batch.")]
    patched = [module for module in loaded if getattr(module, "time", None) is time]
    for module in patched:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in patched:
            module.time = time  # type: ignore[attr-defined]
