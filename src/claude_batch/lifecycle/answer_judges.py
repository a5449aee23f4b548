"""Threads on which the caller's functions judge answers.

Such a function may itself ask claude-batch, and the answer that it then waits for may have to be
judged too. So conversations go on while it waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakSet

from claude_batch.lifecycle.tool_runner import ASKING_AT_ONCE, asking

_log = logging.getLogger(__name__)

Verdict = Future[str | None]
"""What is wrong with an answer, or None; perhaps not known yet."""


LONGEST_JUDGING = 30.0
"""Seconds after which the others no longer wait for a function, because it may hang."""


class JudgeThreads:
    """Runs one function after another, and those that wait for claude-batch beside them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called, on any thread, when a function has ended that was not waited for."""
        self._wake = wake
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[Verdict] = set()
        self._askers: WeakSet[Verdict] = WeakSet()
        self._has_warned = False

    @property
    def has_room(self) -> bool:
        """Return whether another function may run, because not too many wait."""
        return len(self._waiting) < ASKING_AT_ONCE

    def has_asked(self, verdict: Verdict) -> bool:
        """Return whether a function has asked claude-batch for something."""
        return verdict in self._askers

    def begin(self, judge: Callable[[], str | None]) -> Verdict:
        """Run a function; return when it has ended, waits for claude-batch, or takes too long."""
        asked, goes_on = threading.Event(), threading.Event()

        def on_ask() -> None:
            asked.set()
            goes_on.set()

        def run() -> str | None:
            with asking(on_ask):
                return judge()

        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "claude-batch-judge")
        verdict: Verdict
        try:
            verdict = self._pool.submit(run)
        except RuntimeError:  # no thread can start at the end of the process
            verdict = Future()
            verdict.set_result(judge())
            return verdict
        verdict.add_done_callback(lambda _: goes_on.set())
        if not goes_on.wait(LONGEST_JUDGING) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a function that checks answers has not returned for %g s; other answers are "
                "checked meanwhile, on other threads",
                LONGEST_JUDGING,
                extra={"for_people": True},
            )
        if asked.is_set():
            self._askers.add(verdict)
        if not verdict.done():
            self._pool.shutdown(wait=False)
            self._pool = None
            self._waiting.add(verdict)
            verdict.add_done_callback(self._end)
        return verdict

    def _end(self, verdict: Verdict) -> None:
        self._waiting.discard(verdict)
        self._wake()
