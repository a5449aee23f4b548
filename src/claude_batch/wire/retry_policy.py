"""Waits between two tries of the same work, built of tenacity's wait objects.

Every wait of the package that grows with failures, or with age, is defined here.
"""

from __future__ import annotations

import math

from tenacity import (
    RetryCallState,
    Retrying,
    wait_exponential,
    wait_random,
    wait_random_exponential,
)
from tenacity.wait import wait_base

LONGEST_WAIT = 3600.0
"""Longest wait in seconds before a batch or a live call is retried, whatever an answer asks for."""

LEAST_AGAIN = 1.0
"""Seconds that a second failure in a row and later ones wait, even if the answers ask for less.

Otherwise a server that always asks for no wait would be called without a pause."""

_RETRYING = Retrying()


class Backoff:
    """Seconds to wait after consecutive failures, or what the API asked for instead."""

    def __init__(self, wait: wait_base, *, most_asked: float = math.inf) -> None:
        """Set up the wait; ``most_asked`` bounds a wait that an answer asks for, in seconds."""
        self._wait = wait
        self._most_asked = most_asked

    def __call__(self, failures: int, asked: float | None = None) -> float:
        """Return the seconds to wait after ``failures`` in a row, of which the first is 1.

        ``asked`` is the ``retry-after`` of the last answer, or `None`.
        """
        state = RetryCallState(_RETRYING, None, (), {})
        state.attempt_number = max(1, failures)
        own = float(self._wait(state))
        if asked is None:
            return own
        least = min(own, LEAST_AGAIN) if failures > 1 else 0.0
        return min(max(asked, least), self._most_asked)


SENDING = Backoff(wait_exponential(max=300), most_asked=LONGEST_WAIT)
"""Before the driver calls the API again: 1, 2, 4 … 300 seconds."""

CONTACT = Backoff(wait_exponential(max=60))
"""Before the driver tries again to reach the API, or to use a key that was refused."""

STORING = Backoff(wait_exponential(multiplier=0.25, max=75))
"""Before a write of the ledger is repeated whose content exists only in memory."""

READING = Backoff(wait_exponential(multiplier=0.2, max=8) + wait_random(0, 0.2), most_asked=30)
"""Inside one reading call. The driver plans longer waits; a call does not sleep through them."""

LIVE_CALL = Backoff(
    wait_exponential(multiplier=0.375, max=6) + wait_random_exponential(multiplier=0.125, max=2),
    most_asked=8,
)
"""Before `ClaudeProvider` repeats a call: 0.5, 1, 2 … 8 seconds, shortened by up to a quarter."""

PACE = Backoff(wait_exponential(max=60), most_asked=LONGEST_WAIT)
"""While all live calls pause after a refusal: 1, 2, 4 … 60 seconds, or as the API asks."""


def next_check(age: float, poll_interval: float, max_poll_interval: float) -> float:
    """Return the seconds until the next check of a batch: a tenth of its age.

    The result stays within both intervals. A batch of one minute is worth an early check; a batch
    of ten hours is not.
    """
    return min(max(age / 10, poll_interval), max_poll_interval)
