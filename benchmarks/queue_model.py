"""A model of the queues that a request waits in: packing, the API, the workers that collect.

A simulation of events. Requests are counted and not held one by one: those that arrive together
share a *cohort*, and a batch has the cohorts that it was packed from. `docs/explanation/scale.md`
says what is modelled, measured and assumed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MINUTE, HOUR, DAY, MONTH = 60.0, 3_600.0, 86_400.0, 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Api:
    """Limits of the Message Batches API, of the highest tier unless others are given."""

    queue: int = 500_000
    """Requests in batches that have not ended."""
    batch_requests: int = 100_000
    batch_bytes: int = 256_000_000
    calls_a_minute: int = 4_000
    expires: float = 24 * HOUR


TIERS = {
    2: Api(queue=200_000, calls_a_minute=1_000),
    3: Api(queue=300_000, calls_a_minute=2_000),
    4: Api(),
}
"""By number of the tier: https://platform.claude.com/docs/en/api/rate-limits"""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines, by what was measured of them."""

    workers: int = 1
    """That collect at the same time: the one that drives the workspace."""
    results_a_second: float = 15_000
    """That one worker collects."""
    batch: float = 0.05
    """Seconds of CPU to send a batch, and again to collect it, whatever its size."""
    sending: float = 20e-6
    """Seconds a request, to store and to upload it."""
    database: float = 80e-6
    """Seconds of CPU of the PostgreSQL server a request, over its whole life."""
    log: float = 3_000
    """Bytes of the server's log (WAL) a request."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, and how long the API takes."""

    requests_a_month: float
    turnaround: float
    """Mean seconds from the creation of a batch to its end."""
    spread: float = 0.6
    """Sigma of the turnaround's logarithm: at 0.6, one batch in twenty takes more than 2.2 times
    the mean."""
    swing: float = 0.5
    """How far the hours of a day differ from their mean: half as much at night, and half as much
    again at noon."""
    request_bytes: int = 2_000
    linger: float = 30.0
    """Seconds that the oldest waiting request waits for others (`max_linger`)."""
    poll_interval: float = 30.0
    max_poll_interval: float = 300.0
    days: float = 3.0
    tick: float = 5.0
    """Seconds of arrivals that share a cohort, where there are many."""

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests_a_month / MONTH


@dataclass(slots=True)
class Cohort:
    """Requests that arrived at one time."""

    arrived: float
    count: int


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that travel together."""

    cohorts: list[Cohort]
    posted: float
    ends: float
    expired: bool
    count: int = 0

    def __post_init__(self) -> None:
        self.count = sum(cohort.count for cohort in self.cohorts)


@dataclass(slots=True)
class Stage:
    """A place where requests are, and the integral of their number over time."""

    count: int = 0
    most: int = 0
    integral: float = 0.0
    entered: int = 0
    since: float = 0.0

    def move(self, now: float, change: int) -> None:
        """Count requests that come (or go, if negative)."""
        self.integral += self.count * (now - self.since)
        self.since = now
        self.count += change
        self.most = max(self.most, self.count)
        self.entered += max(change, 0)


@dataclass(slots=True)
class Outcome:
    """What a simulation has seen."""

    load: Load
    api: Api
    fleet: Fleet
    seconds: float
    """From the first arrival to the end of the simulation."""
    arrived: int
    answered: int
    waiting: Stage
    """Arrived, and in no batch."""
    at_api: Stage
    """In a batch that has not ended."""
    collecting: Stage
    """In a batch that has ended, until the answer is stored."""
    latencies: Counter[float]
    """How many requests took so many seconds from arrival to answer, rounded up by up to 5 %."""
    time_in_system: float
    """Sum over all requests; those without an answer count until the end."""
    time_at_api: float
    """Sum over all sendings of requests, counted by batch."""
    batches: int
    expired: int
    """Batches that the API had not finished within its limit."""
    calls: Counter[int]
    """API calls by minute."""
    worker_seconds: float

    def latency(self, share: float) -> float:
        """Seconds within which that share of the answered requests were answered."""
        left = share * self.answered
        for seconds, count in sorted(self.latencies.items()):
            left -= count
            if left <= 0:
                return seconds
        return math.nan

    @property
    def keeps_up(self) -> bool:
        """Whether waiting requests were as many as the linger and an hour's crowd explain."""
        return self.waiting.count <= self.load.rate * (self.load.linger + HOUR)

    @property
    def database_cores(self) -> float:
        """Cores of the PostgreSQL server that are busy on average."""
        return self.answered * self.fleet.database / self.seconds


class Model:
    """One simulation. `run` returns what it saw; `watch` is called after each event."""

    def __init__(
        self,
        load: Load,
        api: Api | None = None,
        fleet: Fleet | None = None,
        seed: int = 17,
        watch: Callable[[Model], None] | None = None,
    ) -> None:
        self.load, self.api, self.fleet = load, api or Api(), fleet or Fleet()
        self._random = random.Random(seed)
        self._watch = watch
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._queue: deque[Cohort] = deque()
        self._collecting: set[Batch] = set()
        self._remote: set[Batch] = set()
        self._free = [0.0] * self.fleet.workers
        self._sender_free = 0.0
        self._wakes: float | None = None
        self._arrivals = self._all_arrivals()
        self._end = load.days * DAY
        self.arrived = self.answered = self.batches = self.expired = 0
        self.waiting, self.at_api, self.collecting = Stage(), Stage(), Stage()
        self.latencies: Counter[float] = Counter()
        self.calls: Counter[int] = Counter()
        self._polls: set[int] = set()
        self.time_in_system = self.time_at_api = self.worker_seconds = 0.0

    def run(self) -> Outcome:
        """Simulate the load's days."""
        self._next_arrival()
        while self._heap and self._heap[0][0] <= self._end:
            now, _, event = heapq.heappop(self._heap)
            event(now)
            if self._watch is not None:
                self._watch(self)
        for stage in (self.waiting, self.at_api, self.collecting):
            stage.move(self._end, 0)
        inside = [*self._queue]
        inside += [each for batch in self._remote | self._collecting for each in batch.cohorts]
        self.time_in_system += sum((self._end - each.arrived) * each.count for each in inside)
        self.time_at_api += sum((self._end - each.posted) * each.count for each in self._remote)
        return Outcome(
            self.load,
            self.api,
            self.fleet,
            self._end,
            self.arrived,
            self.answered,
            self.waiting,
            self.at_api,
            self.collecting,
            self.latencies,
            self.time_in_system,
            self.time_at_api,
            self.batches,
            self.expired,
            self.calls,
            self.worker_seconds,
        )

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        # The number keeps the order of events at one time the same in each simulation.
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, event))

    # Arrivals

    def _all_arrivals(self) -> Iterator[tuple[float, int]]:
        now, load = 0.0, self.load
        while True:
            rate = load.rate * (1 - load.swing * math.cos(2 * math.pi * now / DAY))
            expected = rate * load.tick
            if expected < 1:
                now += self._random.expovariate(rate)
                yield now, 1
                continue
            # A sum of many arrivals is nearly normal.
            now += load.tick
            count = round(self._random.gauss(expected, math.sqrt(expected)))
            if count > 0:
                yield now, count

    def _next_arrival(self) -> None:
        when, count = next(self._arrivals)
        self._at(when, lambda now: self._arrive(now, count))

    def _arrive(self, now: float, count: int) -> None:
        self.arrived += count
        self._queue.append(Cohort(now, count))
        self.waiting.move(now, count)
        self._next_arrival()
        self._pack(now)

    # Packing and sending

    def _pack(self, now: float) -> None:
        """Send what is due and fits into the API's queue."""
        most = min(self.api.batch_requests, self.api.batch_bytes // self.load.request_bytes)
        while self._queue:
            due = self._queue[0].arrived + self.load.linger
            count = min(self.waiting.count, most)
            room = self.api.queue - self.at_api.count
            if self.waiting.count < most and due > now:
                self._wake(due)
                return
            if room < count:
                # The API would refuse it with a 429. The end of a batch makes room.
                return
            if self._sender_free > now:
                self._wake(self._sender_free)
                return
            self._send(now, count)

    def _wake(self, when: float) -> None:
        if self._wakes is None or when < self._wakes:
            self._wakes = when
            self._at(when, self._woken)

    def _woken(self, now: float) -> None:
        if self._wakes is not None and now >= self._wakes:
            self._wakes = None
        self._pack(now)

    def _send(self, now: float, count: int) -> None:
        cohorts = list[Cohort]()
        left = count
        while left:
            first = self._queue[0]
            taken = min(first.count, left)
            cohorts.append(Cohort(first.arrived, taken))
            left -= taken
            first.count -= taken
            if not first.count:
                self._queue.popleft()
        self.waiting.move(now, -count)
        takes = self.fleet.batch + count * self.fleet.sending
        self.worker_seconds += takes
        self._sender_free = now + takes
        sigma = self.load.spread
        mu = math.log(self.load.turnaround) - sigma**2 / 2
        turnaround = self._random.lognormvariate(mu, sigma)
        ends = now + min(turnaround, self.api.expires)
        batch = Batch(cohorts, now, ends, turnaround > self.api.expires)
        self._remote.add(batch)
        self.at_api.move(now, count)
        self.batches += 1
        # The list before the POST, and the POST.
        self.calls[int(now // MINUTE)] += 2
        self._at(ends, lambda then: self._ended(then, batch))

    # The API

    def _ended(self, now: float, batch: Batch) -> None:
        self._remote.remove(batch)
        self.time_at_api += (now - batch.posted) * batch.count
        self.at_api.move(now, -batch.count)
        self.collecting.move(now, batch.count)
        self._collecting.add(batch)
        self._at(self._polled(batch), lambda then: self._collect(then, batch))
        self._pack(now)

    def _polled(self, batch: Batch) -> float:
        """Count the polls of a batch; returns the time of the one that sees its end."""
        when = batch.posted
        while when < batch.ends:
            age = when - batch.posted
            when += min(max(age / 10, self.load.poll_interval), self.load.max_poll_interval)
            # One list call asks for all batches that are due in the same second.
            if int(when) not in self._polls:
                self._polls.add(int(when))
                self.calls[int(when // MINUTE)] += 1
        return when

    # The workers

    def _collect(self, now: float, batch: Batch) -> None:
        """Give the batch to the worker that is free first."""
        takes = self.fleet.batch + batch.count / self.fleet.results_a_second
        begins = max(now, heapq.heappop(self._free))
        heapq.heappush(self._free, begins + takes)
        self.worker_seconds += takes
        self.calls[int(begins // MINUTE)] += 1
        self._at(begins + takes, lambda then: self._collected(then, batch))

    def _collected(self, now: float, batch: Batch) -> None:
        self._collecting.remove(batch)
        self.collecting.move(now, -batch.count)
        if batch.expired:
            # None was processed, in the worst case. All are asked again, before what came later.
            self.expired += 1
            self._queue.extendleft(reversed(batch.cohorts))
            self.waiting.move(now, batch.count)
            self._pack(now)
            return
        self.answered += batch.count
        for cohort in batch.cohorts:
            took = now - cohort.arrived
            self.time_in_system += took * cohort.count
            self.latencies[_rounded_up(took)] += cohort.count


def _rounded_up(seconds: float) -> float:
    """To the next power of 1.05: a histogram of a few hundred steps."""
    return 1.05 ** math.ceil(math.log(max(seconds, 1e-3), 1.05))
