"""How fast live calls may leave: learned from the API's answers, shared by all who call.

A `Pace` is the pure part: it is told the time and what was answered, and says how long the next
call must wait. `claude_batch.wire.live_client` does the waiting. One `Pace` serves every call of a
process to one model with one credential, whichever provider, thread or event loop it comes from, so
one call's limits hold for all.

- **Concurrency.** No more calls are under way than the caller's own bound, nor than `Pace.window`.
- **Rates.** ``anthropic-ratelimit-*`` headers name the limits of requests, input and output tokens
  a minute, and what is left. Each is kept as a bucket that fills evenly, as the API's own do. Input
  is guessed before a call from its bytes, output from what the last answers had; what an answer
  says corrects both.
- **Refusals.** After a 429 or a 529 nobody leaves until ``retry-after`` (or a growing wait) has
  passed. Then one call goes, and only when it was answered the next: the window grows by one for
  each answer up to half of what it was, and then by one for each round. Refusals of calls that left
  before the pause began are the same refusal, and do not make it longer than they ask for.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from claude_batch.wire.inbound import LARGEST_COUNT, iso_time, server_time

__all__ = ["Cost", "Pace", "Turn"]

LONGEST_PAUSE = 60.0
"""Seconds that refusals in a row make everybody wait where no answer says how long."""

SHORTEST_WAIT = 0.001
"""Seconds."""

BYTES_PER_TOKEN = 4
"""A first guess at the tokens of a request by the bytes of its params."""

_RECENT = 0.2
"""How much the last answer counts in the mean length of answers."""

_HEADER = "anthropic-ratelimit-"


class Cost(NamedTuple):
    """What a call takes of the limits of a minute."""

    requests: float = 1.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    tokens: float = 0.0
    """Both together: some accounts have one limit for them."""


@dataclass(slots=True)
class _Bucket:
    """What is left of one limit; it fills evenly, and is full after a minute."""

    limit: float
    level: float
    at: float
    full_at: float = math.inf
    """When the API says that it is full again."""

    def refill(self, now: float) -> None:
        passed = max(0.0, now - self.at)
        self.level = min(self.limit, self.level + passed * self.limit / 60.0)
        if now >= self.full_at:
            self.level, self.full_at = self.limit, math.inf
        self.at = now

    def wait(self, need: float) -> float:
        # What is larger than the whole limit leaves when the limit is wholly free.
        short = min(need, self.limit) - self.level
        if short <= 0:
            return 0.0
        wait = min(short * 60.0 / self.limit, max(0.0, self.full_at - self.at))
        # A shorter one could be lost in the rounding of the time, and be asked for again and again.
        return max(wait, SHORTEST_WAIT)


@dataclass(slots=True, eq=False)
class Turn:
    """One call that has left."""

    cost: Cost
    era: int
    """The pauses that had begun when it left."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Pace:
    """When the next call may leave. Times are seconds of any clock that does not jump back.

    Usable from any thread.
    """

    under_way: int = 0
    """Calls that have left and not ended."""
    window: float = math.inf
    """How many calls the last refusals allow to be under way at once."""
    paused_until: float = -math.inf
    refusals: int = 0
    """Pauses since the last answer."""
    _buckets: dict[str, _Bucket] = field(default_factory=dict[str, _Bucket])
    _era: int = 0
    _threshold: float = math.inf
    _output_mean: float | None = None
    _listeners: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cost_of(self, params_bytes: int, max_tokens: int | None = None) -> Cost:
        """What a call will take of the limits, as far as can be guessed."""
        given = params_bytes / BYTES_PER_TOKEN
        mean = self._output_mean
        told = 0.0 if mean is None else mean
        if max_tokens is not None:
            told = min(told, max_tokens)
        return Cost(1.0, given, told, given + told)

    def ask(self, now: float, cost: Cost, most: int) -> float | Turn:
        """A turn for a call that may leave now, or the seconds until it is worth asking again.

        ``most`` bounds the calls under way at once. Endless where another call must end first.
        """
        with self._lock:
            if self.under_way + 1 > min(most, self.window):
                return math.inf
            wait = self.paused_until - now
            for name, bucket in self._buckets.items():
                bucket.refill(now)
                wait = max(wait, bucket.wait(getattr(cost, name)))
            if wait > 0:
                return wait
            for name, bucket in self._buckets.items():
                bucket.level -= getattr(cost, name)
            self.under_way += 1
            return Turn(cost, self._era)

    def answered(
        self,
        now: float,
        turn: Turn,
        headers: Mapping[str, str],
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """A call has ended with an answer of the API; the tokens are those that it counted."""
        with self._lock:
            if output_tokens is not None:
                mean = self._output_mean
                self._output_mean = (
                    float(output_tokens)
                    if mean is None
                    else mean + _RECENT * (output_tokens - mean)
                )
            given = turn.cost.input_tokens if input_tokens is None else float(input_tokens)
            told = turn.cost.output_tokens if output_tokens is None else float(output_tokens)
            self._correct(turn.cost, Cost(1.0, given, told, given + told))
            if turn.era == self._era:
                # An answer to a call that left before a pause says nothing of what holds now.
                self.refusals = 0
                grown = 1.0 if self.window < self._threshold else 1.0 / self.window
                self.window += grown
            self._learn(now, headers)
            self._end()
        self._tell()

    def refused(
        self, now: float, turn: Turn, headers: Mapping[str, str], retry_after: float | None
    ) -> None:
        """A call was refused for its rate, or for the API's own load: everybody pauses."""
        with self._lock:
            self._correct(turn.cost, Cost(0.0))
            self._learn(now, headers)
            if turn.era == self._era:
                self._era += 1
                self.refusals += 1
                self._threshold = max(1.0, min(self.window, float(self.under_way)) / 2)
                self.window = 1.0
                if retry_after is None:
                    retry_after = min(LONGEST_PAUSE, 2.0 ** (self.refusals - 1))
            if retry_after is not None:
                self.paused_until = max(self.paused_until, now + retry_after)
            self._end()
        self._tell()

    def failed(self) -> None:
        """A call has ended in any other way; it counts as having taken what was guessed."""
        with self._lock:
            self._end()
        self._tell()

    def unused(self, turn: Turn) -> None:
        """A call did not leave after all."""
        with self._lock:
            self._correct(turn.cost, Cost(0.0))
            self._end()
        self._tell()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function whenever a call ends, on whatever thread it ends."""
        with self._lock:
            self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.discard(listener)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _end(self) -> None:
        self.under_way -= 1

    def _correct(self, guessed: Cost, taken: Cost) -> None:
        for name, bucket in self._buckets.items():
            back = getattr(guessed, name) - getattr(taken, name)
            bucket.level = min(bucket.limit, bucket.level + back)

    def _learn(self, now: float, headers: Mapping[str, str]) -> None:
        for name in Cost._fields:
            limit = _number(headers, name, "limit")
            left = _number(headers, name, "remaining")
            # Anything else is no limit of calls: one below 1 a minute would hold them up for ever.
            if limit is None or limit < 1:
                continue
            bucket = self._buckets.get(name)
            if bucket is None:
                bucket = self._buckets[name] = _Bucket(limit, limit, now)
                if name == "requests" and left is not None:
                    # Those that left before the limit was known may not be counted in this yet.
                    left -= self.under_way - 1
            bucket.refill(now)
            bucket.limit = limit
            if left is None:
                continue
            # Others may use the same limits, so that less is left than our own calls took; more
            # than we think is left too, where calls are under way that it has not counted.
            bucket.level = min(bucket.level, left, limit)
            reset = _reset(headers, name)
            bucket.full_at = math.inf if reset is None else now + reset
        if "input_tokens" in self._buckets:
            # The limit of both together repeats whichever of the two is the tighter.
            self._buckets.pop("tokens", None)


def _number(headers: Mapping[str, str], name: str, what: str) -> float | None:
    value = headers.get(f"{_HEADER}{name.replace('_', '-')}-{what}")
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number <= LARGEST_COUNT else None


def _reset(headers: Mapping[str, str], name: str) -> float | None:
    """Seconds until a limit is wholly free again, by the server's clock."""
    value = headers.get(f"{_HEADER}{name.replace('_', '-')}-reset")
    now = server_time(headers)
    reset = iso_time(value)
    if reset is None or now is None:
        return None
    # ``Date`` and this are whole seconds: one more, so that it is not taken for sooner.
    return max(0.0, reset - now) + 1.0
