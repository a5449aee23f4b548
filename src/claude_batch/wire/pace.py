"""Rate control of live calls: learned from the API's answers, shared by all callers.

A `Pace` is the pure part: it receives the time and the answers, and returns how long the next call
must wait. `claude_batch.wire.live_client` does the waiting. One `Pace` serves every call of a
process to one model with one credential, from any provider, thread or event loop. So one call's
limits apply to all.

- **Concurrency.** The concurrent calls are bounded by the caller's own limit and by `Pace.window`.
- **Rates.** ``anthropic-ratelimit-*`` headers contain the limits of requests, input and output
  tokens a minute, and what is left. Each limit is a token bucket that refills evenly, like the
  API's own. Input is estimated before a call from its bytes, output from recent answers; the
  answer corrects both.
- **Refusals.** After a 429 or a 529, no call is sent until ``retry-after`` (or a growing backoff)
  has passed. Then one call is sent, and the next only after its answer. The window grows by one
  for each answer up to half of its former size, and then by one for each round. Refusals of calls
  that were sent before the pause began are the same refusal; they do not extend the pause beyond
  what they ask for.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from claude_batch.wire.inbound import LARGEST_COUNT, iso_time, server_time
from claude_batch.wire.retry_policy import PACE

SHORTEST_WAIT = 0.001
"""Shortest wait in seconds."""

BYTES_PER_TOKEN = 4
"""First estimate of a request's tokens from the bytes of its params."""

_RECENT = 0.2
"""Weight of the last answer in the mean length of answers."""


def _moved(mean: float | None, value: float) -> float:
    """Return the mean of recent values with one more of them."""
    return float(value) if mean is None else mean + _RECENT * (value - mean)


_HEADER = "anthropic-ratelimit-"


class Cost(NamedTuple):
    """The amounts that a call takes from the limits of a minute."""

    requests: float = 1.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    tokens: float = 0.0
    """Input and output together, because some accounts have one limit for both."""


class _Bucket(msgspec.Struct):
    """The rest of one limit; it refills evenly, and is full after a minute."""

    limit: float
    level: float
    at: float
    full_at: float = math.inf
    """Time when the limit is full again, as reported by the API."""

    def refill(self, now: float) -> None:
        passed = max(0.0, now - self.at)
        self.level = min(self.limit, self.level + passed * self.limit / 60.0)
        if now >= self.full_at:
            self.level, self.full_at = self.limit, math.inf
        self.at = now

    def wait(self, need: float) -> float:
        # A call that needs more than the whole limit is sent when the limit is full.
        short = min(need, self.limit) - self.level
        if short <= 0:
            return 0.0
        wait = min(short * 60.0 / self.limit, max(0.0, self.full_at - self.at))
        # A shorter wait could be lost in the rounding of the time, and would repeat.
        return max(wait, SHORTEST_WAIT)


class Turn(msgspec.Struct, eq=False):
    """The permit of one call that was sent."""

    cost: Cost
    era: int
    """Number of pauses that had begun when it was sent."""
    counted: Counted | None = None
    """Its entry in the log that the user's own limits apply to, if there are any."""


class Pace(msgspec.Struct, eq=False, weakref=True):
    """Decides when the next call may be sent.

    Times are seconds of any clock that does not jump back. Thread-safe.
    """

    under_way: int = 0
    """Number of calls that were sent and have not ended."""
    window: float = math.inf
    """Number of concurrent calls that the last refusals allow."""
    paused_until: float = -math.inf
    refusals: int = 0
    """Number of pauses since the last answer."""
    _buckets: dict[str, _Bucket] = msgspec.field(default_factory=dict[str, _Bucket])
    _era: int = 0
    _is_changed: bool = False
    _threshold: float = math.inf
    _output_mean: float | None = None
    _listeners: set[Callable[[], None]] = msgspec.field(default_factory=set[Callable[[], None]])
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def cost_of(self, params_bytes: int, max_tokens: int | None = None) -> Cost:
        """Return the estimated cost of a call in terms of the limits."""
        given = params_bytes / BYTES_PER_TOKEN
        mean = self._output_mean
        output = 0.0 if mean is None else mean
        if max_tokens is not None:
            output = min(output, max_tokens)
        return Cost(1.0, given, output, given + output)

    def ask(self, now: float, cost: Cost, most: int) -> float | Turn:
        """Return a permit for a call that may be sent now, or the seconds until the next attempt.

        ``most`` bounds the concurrent calls. The wait is infinite if another call must end first.
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
        """Record a call that ended with an answer of the API, and the tokens that it counted."""
        with self._lock:
            if output_tokens is not None:
                self._output_mean = _moved(self._output_mean, output_tokens)
            given = turn.cost.input_tokens if input_tokens is None else float(input_tokens)
            output = turn.cost.output_tokens if output_tokens is None else float(output_tokens)
            self._correct(turn.cost, Cost(1.0, given, output, given + output))
            if turn.era == self._era:
                # Only for a call of the current era: an answer to an older call is no evidence.
                self.refusals = 0
                grown = 1.0 if self.window < self._threshold else 1.0 / self.window
                self.window += grown
            self._learn(now, headers)
            self._end()
        self._notify()

    def refused(
        self, now: float, turn: Turn, headers: Mapping[str, str], retry_after: float | None
    ) -> int:
        """Record a refusal for the rate, or for the API's own load: all calls pause.

        Returns the number of pauses since the last answer if this refusal begins one, else 0.
        """
        begun = 0
        with self._lock:
            self._correct(turn.cost, Cost(0.0))
            self._learn(now, headers)
            if turn.era == self._era:
                self._era += 1
                self.refusals += 1
                begun = self.refusals
                self._threshold = max(1.0, min(self.window, float(self.under_way)) / 2)
                self.window = 1.0
                retry_after = PACE(self.refusals, retry_after)
                self._is_changed = False
            elif self._is_changed:
                retry_after = None
            elif retry_after is not None:
                retry_after = PACE(1, retry_after)
            if retry_after is not None:
                self.paused_until = max(self.paused_until, now + retry_after)
            self._end()
        self._notify()
        return begun

    def change_pause(self, turn: Turn, until: float) -> None:
        """End the pause that began with the refusal of a call at this time instead.

        Nothing changes if another pause has begun since. Late refusals do not extend it then.
        """
        with self._lock:
            if self._era == turn.era + 1:
                self.paused_until, self._is_changed = until, True
        self._notify()

    def failed(self) -> None:
        """Record a call that ended in any other way; its estimated cost counts as used."""
        with self._lock:
            self._end()
        self._notify()

    def unused(self, turn: Turn) -> None:
        """Return a permit whose call is not sent."""
        with self._lock:
            self._correct(turn.cost, Cost(0.0))
            self._end()
        self._notify()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function whenever a call ends, on the thread on which it ends."""
        with self._lock:
            self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Remove a listener."""
        with self._lock:
            self._listeners.discard(listener)

    def _notify(self) -> None:
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
            # Other values are no limits of calls; one below 1 a minute would block them for ever.
            if limit is None or limit < 1:
                continue
            bucket = self._buckets.get(name)
            if bucket is None:
                bucket = self._buckets[name] = _Bucket(limit, limit, now)
                if name == "requests" and left is not None:
                    # This number may not count calls yet that were sent before the limit was known.
                    left -= self.under_way - 1
            bucket.refill(now)
            bucket.limit = limit
            if left is None:
                continue
            # Other clients may share the limits, so less may be left than our own calls used. More
            # may be left than we count, if the answer does not include calls in progress.
            bucket.level = min(bucket.level, left, limit)
            reset = _reset(headers, name)
            bucket.full_at = math.inf if reset is None else now + reset
        if "input_tokens" in self._buckets:
            # The combined limit repeats the tighter of the two.
            self._buckets.pop("tokens", None)


# The user's own limits ----------------------------------------------------------------------------

MINUTE = 60.0

_TOGETHER = 1.0
"""Seconds of calls that the log counts together, as if all were sent with the last of them."""


class OwnLimits(NamedTuple):
    """The most that may be sent in any minute; `None` for no limit."""

    requests: int | None = None
    tokens: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.requests is not None or self.tokens is not None


NO_LIMITS = OwnLimits()


class _Sent(msgspec.Struct, eq=False):
    """The calls of about a second."""

    first: float
    last: float
    calls: int = 0
    tokens: float = 0.0


class Counted(NamedTuple):
    """One call in a `CallLog`."""

    among: _Sent
    tokens: float
    """The tokens that were estimated before it was sent."""


class CallLog:
    """The calls of the last minute, for limits that hold in every minute.

    A token bucket would allow twice its limit in the first minute. A call's tokens are estimated
    before it is sent, and corrected by its answer. Times are seconds of any clock that does not
    jump back. Thread-safe.
    """

    def __init__(self, calls: Iterable[tuple[float, int, float]] = ()) -> None:
        """Continue a log; each entry is a time, a number of calls, and their tokens."""
        self._sent = deque(_Sent(at, at, count, tokens) for at, count, tokens in calls)
        self._output_mean: float | None = None
        self._lock = threading.Lock()

    def entries(self, now: float) -> list[tuple[float, int, float]]:
        """Return the log of the last minute, as the constructor takes it."""
        with self._lock:
            self._forget(now)
            return [(each.last, each.calls, each.tokens) for each in self._sent]

    def take(
        self, now: float, limits: OwnLimits, params_bytes: int, max_tokens: int
    ) -> Counted | float:
        """Count a call if it may be sent now, else return the seconds until the next attempt.

        A call that needs more tokens than the whole limit is sent when the last minute is empty.
        """
        with self._lock:
            self._forget(now)
            mean = self._output_mean
            output = max_tokens if mean is None else min(max_tokens, mean)
            tokens = params_bytes / BYTES_PER_TOKEN + output
            if (wait := self._wait(now, limits, tokens)) > 0:
                return wait
            if not self._sent or now - self._sent[-1].first >= _TOGETHER:
                self._sent.append(_Sent(now, now))
            among = self._sent[-1]
            among.last = max(among.last, now)
            among.calls += 1
            among.tokens += tokens
            return Counted(among, tokens)

    def _wait(self, now: float, limits: OwnLimits, tokens: float) -> float:
        """Return the seconds until so many of the oldest calls are a minute old that one fits."""
        calls_left = tokens_left = math.inf
        if limits.requests is not None:
            calls_left = limits.requests - sum(each.calls for each in self._sent)
        if limits.tokens is not None:
            tokens_left = limits.tokens - sum(each.tokens for each in self._sent)
        wait = 0.0
        for each in self._sent:
            if calls_left >= 1 and tokens_left >= tokens:
                break
            wait = max(SHORTEST_WAIT, each.last + MINUTE - now)
            calls_left += each.calls
            tokens_left += each.tokens
        return wait

    def correct(self, counted: Counted, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of an answered call in place of the estimate."""
        with self._lock:
            self._output_mean = _moved(self._output_mean, output_tokens)
            counted.among.tokens += input_tokens + output_tokens - counted.tokens

    def give_back(self, counted: Counted) -> None:
        """Forget a call that is not sent."""
        with self._lock:
            counted.among.calls -= 1
            counted.among.tokens -= counted.tokens
            if not counted.among.calls and counted.among in self._sent:
                self._sent.remove(counted.among)

    def _forget(self, now: float) -> None:
        while self._sent and self._sent[0].last + MINUTE <= now:
            self._sent.popleft()


def _number(headers: Mapping[str, str], name: str, what: str) -> float | None:
    value = headers.get(f"{_HEADER}{name.replace('_', '-')}-{what}")
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number <= LARGEST_COUNT else None


def _reset(headers: Mapping[str, str], name: str) -> float | None:
    """Return the seconds until a limit is full again, by the server's clock."""
    value = headers.get(f"{_HEADER}{name.replace('_', '-')}-reset")
    now = server_time(headers)
    reset = iso_time(value)
    if reset is None or now is None:
        return None
    # ``Date`` and this header are whole seconds; one more avoids a time that is too early.
    return max(0.0, reset - now) + 1.0
