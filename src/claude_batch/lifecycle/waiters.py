"""Callers that wait for the answers of their calls.

A program may await ten thousand calls at once. `concurrent.futures.Future` and
`asyncio.wrap_future` make some twenty objects for each, which Python's garbage collector examines
again and again, and wake the caller's event loop once for each answer. Both took more time than the
rest of a call, so `CallFuture` takes their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakKeyDictionary, ref

import msgspec

from claude_batch.core.errors import ActorError, for_one_caller
from claude_batch.core.states import RequestState
from claude_batch.ledger import queries
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.threads import fork_safe_lock

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

# The answer of a call -----------------------------------------------------------------------------

Departure = Literal["withdraw", "keep", "drop"]
"""What becomes of the request of a caller that leaves. ``withdraw``: it ends if it is not sent yet,
and is kept for an equal call otherwise. ``keep``: it is sent and kept. ``drop``: it is cancelled,
even if it is sent."""

Joined = Literal["equal", "key", "retry", "failure"]
"""What a call joined: an equal request that no caller waited for, the request of its key, that of
the try before, or the failure of an equal call, which is repeated."""


Note = Callable[[int, bool, bool], object]
"""Notes of a request whether its caller has taken the answer, and whether that is a failure which
equal calls get too. Called on the caller's thread.

An answer is taken when the caller goes on with it. A task may be cancelled after its answer was
delivered to it, and before it runs again. The answer is paid for, so that an equal call must get
it."""


class CallFuture:
    """The answer of a call, for one waiter. Thread-safe; settled or left, whichever is first."""

    __slots__ = (
        "_caller",
        "_has_left",
        "_left_by",
        "_note",
        "_on_leave",
        "_on_stored",
        "_outcome",
        "_waits",
        "_wake",
        "acknowledges",
        "departure",
        "joined",
        "repeats",
        "seq",
    )

    def __init__(self) -> None:
        """Begin without an outcome."""
        self._outcome: Answer | Exception | None = None
        self._has_left = False
        self._on_leave: Callable[[Any], object] | None = None
        self._left_by: Any = None
        self._on_stored: Callable[[], object] | None = None
        self._wake: Callable[[], object] | None = None
        self._waits: asyncio.Future[None] | None = None
        self._caller: _CallerLoop | None = None
        self._note: Note | None = None
        self.acknowledges: bool = False
        """Whether the caller itself reports that it has the answer.

        The future then reports only that it cannot get it."""
        self.repeats: bool = False
        """Whether equal calls get the same failure."""
        self.departure: Departure = "withdraw"
        self.seq: int | None = None
        """Row number of the request; None until it is stored."""
        self.joined: Joined | None = None
        """What it joined, once `seq` is known; None for a request of its own."""

    # Set by the engine

    def settle(self, outcome: Answer | Exception, note: Note | None = None) -> bool:
        """Set the outcome; return False if the caller has left or there is one already.

        ``note`` records whether the caller takes an answer.
        """
        with _gate:
            if self.done():
                return False
            self._outcome, self._note = outcome, note
            self._on_leave = self._left_by = None
        self._wake_caller()
        return True

    def stored(self, seq: int) -> None:
        """Set the row number of the request, which is in the ledger now."""
        self.seq = seq
        if self._on_stored is not None:
            try:
                self._on_stored()
            except Exception as error:
                # The calls that were stored with it still need waiters and a driver.
                _log.warning("a caller was not notified that its call is stored: %s", error)

    def on_leave(self, callback: Callable[[_T], object], waiter: _T) -> None:
        """Call a function with ``waiter`` once the caller leaves without an outcome.

        It is called on the caller's thread.
        """
        with _gate:
            if self._outcome is not None:
                return
            if not self._has_left:
                self._on_leave, self._left_by = callback, waiter
                return
        callback(waiter)

    # Its caller

    def on_stored(self, callback: Callable[[], object]) -> None:
        """Call a function once `seq` is known, on any thread, and perhaps twice.

        An exception that it raises on the engine's thread is logged.
        """
        # Set first: the other thread either sees it, or has set `seq` before.
        self._on_stored = callback
        if self.seq is not None:
            callback()

    def leave(self, departure: Departure) -> bool:
        """Leave without the answer; return False if there is an outcome already."""
        with _gate:
            if self.done():
                return False
            self.departure = departure
            self._has_left = True
            callback, waiter = self._on_leave, self._left_by
            self._on_leave = self._left_by = None
        if callback is not None:
            callback(waiter)
        self._wake_caller()
        return True

    def cancel(self) -> bool:
        """Leave, and withdraw a request that is not sent; give an answer back that is not read."""
        has_left = self.leave("withdraw")
        if not has_left:
            self.give_back()
        return has_left

    def give_back(self) -> None:
        """Leave an answer that is there to an equal call, unless it was read."""
        self._report(taken=False)

    def _report(self, *, taken: bool) -> None:
        with _gate:
            note, self._note = self._note, None
        outcome = self._outcome
        if note is not None and outcome is not None and not isinstance(outcome, Exception):
            failed = outcome.state is not RequestState.SUCCEEDED
            note(outcome.seq, taken, taken and failed and self.repeats)

    def done(self) -> bool:
        """Return whether it is settled or left."""
        return self._has_left or self._outcome is not None

    def cancelled(self) -> bool:
        """Return whether the caller has left."""
        return self._has_left

    @property
    def is_withdrawn(self) -> bool:
        """Whether the caller has left, and wants no request to be stored."""
        return self._has_left and self.departure != "keep"

    def result(self) -> Answer:
        """Return the outcome or raise it; raise `CancelledError` if there is none.

        The caller has the answer then, unless it acknowledges answers itself.
        """
        if self._outcome is None:
            raise CancelledError
        if self._note is not None and not self.acknowledges:
            self._report(taken=True)
        if isinstance(self._outcome, Exception):
            raise for_one_caller(self._outcome)
        return self._outcome

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it is done, at most ``seconds``; return whether it is."""
        # An interrupt of an `Event` may leave its lock taken, which `set` would wait for.
        wakes: SimpleQueue[None] = SimpleQueue()
        self._wake_by(partial(wakes.put, None))
        with contextlib.suppress(Empty):
            wakes.get(timeout=None if seconds is None else max(0.0, seconds))
        return self.done()

    async def wait_on_loop(self, seconds: float | None = None) -> bool:
        """Wait on an event loop until it is done, at most ``seconds``; return whether it is."""
        waiter = self.on_loop()
        if seconds is None:
            await waiter
        else:
            await asyncio.wait([waiter], timeout=seconds)
        return self.done()

    def on_loop(self) -> asyncio.Future[None]:
        """Return a future of the running event loop that is done once this is.

        Only the newest of these futures, or waits, is woken.
        """
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[None] = loop.create_future()
        with _gate:
            self._wake, self._waits, self._caller = None, waits, _caller_loop(loop)
            is_done = self.done()
        if is_done:
            self._wake_caller()
        return waits

    def waits_on(self, loops: Collection[_CallerLoop]) -> bool:
        """Return whether its caller waits on one of these event loops."""
        return self._waits is not None and self._caller in loops

    def wake_on_loop(self) -> None:
        """Wake the caller that waits by `on_loop`; on its loop."""
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def _wake_by(self, wake: Callable[[], object]) -> None:
        with _gate:
            self._wake, self._waits = wake, None
            is_done = self.done()
        if is_done:
            wake()

    def _wake_caller(self) -> None:
        # Read once: the caller may begin to wait in another way meanwhile, which looks itself.
        waits, wake = self._waits, self._wake
        if waits is not None and self._caller is not None:
            self._caller.post(self, waits.get_loop())
        elif wake is not None:
            wake()


# One for all calls, because each object counts with ten thousand of them.
_gate = fork_safe_lock(sys.modules[__name__], "_gate")


AT_ONCE = 100
"""Most calls that begin, that are answered, and that time out, in one pass of their event loop.

Without a limit, ten thousand calls that are awaited together would block the loop for half a
second, before their first and again at their last step."""


class _CallerLoop:
    """The calls of one event loop: those that are about to begin, and those that are done."""

    def __init__(self) -> None:
        # Without the loop itself, which must not be kept alive by its own entry below.
        self._done: deque[CallFuture] = deque()
        self._is_planned = False
        self._begun = 0
        self._beginning: deque[asyncio.Future[None]] = deque()

    def post(self, call: CallFuture, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the caller of a call that is done, from any thread."""
        self._done.append(call)
        # A loop that was closed does not run what was planned.
        if not self._is_planned or loop.is_closed():
            self._plan(loop)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        # Set first: the delivery may run and reset it before the next line.
        self._is_planned = True
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the caller's loop has ended
            self.give_back()

    def give_back(self) -> None:
        """Leave the answers that a closed loop has not delivered to equal calls."""
        with contextlib.suppress(IndexError):  # two threads may do this
            while True:
                self._done.popleft().give_back()

    def _deliver(self) -> None:
        for _ in range(min(AT_ONCE, len(self._done))):
            self._done.popleft().wake_on_loop()
        # In this order: another thread that posts in between either plans, or is seen here.
        self._is_planned = False
        if self._done:
            self._plan(asyncio.get_running_loop())

    def turn(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        if not self._begun:
            loop.call_soon(self._next_pass, loop)
        self._begun += 1
        if self._begun <= AT_ONCE:
            return None
        turn: asyncio.Future[None] = loop.create_future()
        self._beginning.append(turn)
        return turn

    def _next_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = _wake_some(self._beginning)
        if self._begun:
            loop.call_soon(self._next_pass, loop)


def _wake_some(waiters: deque[asyncio.Future[None]]) -> int:
    """Wake the first waiters, and return how many."""
    count = min(AT_ONCE, len(waiters))
    for _ in range(count):
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
    return count


_caller_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _CallerLoop] = WeakKeyDictionary()


def _caller_loop(loop: asyncio.AbstractEventLoop) -> _CallerLoop:
    global _latest
    last, found = _latest
    if found is not None and last() is loop:
        return found
    found = _caller_loops.get(loop)
    if found is None:
        found = _caller_loops[loop] = _CallerLoop()
    _latest = ref(loop), found
    return found


_latest: tuple[Callable[[], asyncio.AbstractEventLoop | None], _CallerLoop | None]
_latest = (lambda: None), None
"""The loop of the last call, and its calls: a lookup in the dictionary makes an object."""


def turn_to_begin() -> asyncio.Future[None] | None:
    """Return what a call must await before it begins, if many have begun in this pass of the loop.

    No coroutine, because each object counts with ten thousand calls.
    """
    loop = asyncio.get_running_loop()
    return _caller_loop(loop).turn(loop)


# Waiters ------------------------------------------------------------------------------------------

MANY_RUNS = 3
"""Number of runs with waiting calls from which one statement finds those with new answers."""


class Waiter(msgspec.Struct, eq=False, gc=False):
    """One caller that waits for one request.

    Not examined by the garbage collector, because it is in no cycle once the wait has ended: its
    future and its timeout then let go of it.
    """

    future: CallFuture
    seq: int
    run_id: str
    workspace: object
    """The account; a halt of it ends the wait."""
    mode: BatchProcessingMode
    keeps: bool = False
    """Whether the request stays if the caller leaves before it is sent."""
    watches: bool = False
    """Whether it only looks at the answer of other callers, and decides nothing about it."""
    timeout: _Timeout | None = None


class _Timeout(msgspec.Struct):
    """One timer for the waiters whose time ends at nearly the same moment."""

    at: float
    timer: asyncio.Handle
    waiters: set[Waiter] = set()


class _Cursor(msgspec.Struct):
    """How far the answers of a run were read, while callers wait for some of them."""

    after: tuple[int, int]
    """Stamp and row number of the last one; after all of a stamp, the largest number."""
    waiting: int = 0


class Waiting(msgspec.Struct):
    """All waiters of an engine. Belongs to the engine's loop."""

    ledger: Ledger
    note: Note
    """Records which answers have reached their callers."""
    on_gone: Callable[[int, Departure], None]
    """Called with the row number when the last waiter is gone without an answer."""
    on_timeout: Callable[[Sequence[Waiter]], None]
    """Called with up to `AT_ONCE` waiters whose time is over; must end their waits."""
    _timeouts: dict[float, _Timeout] = {}
    _by_seq: dict[int, Waiter | list[Waiter]] = {}
    """A list only where several callers wait for a request."""
    _cursors: dict[str, _Cursor] = {}

    def add(self, waiter: Waiter, *, seconds: float, since: int) -> None:
        """Wait for a request, at most ``seconds`` and a fiftieth or a second more.

        ``since`` is a stamp of the ledger at which the request had not ended. The answers that the
        run had then, perhaps a million of a process that died, are not read.
        """
        others = self._by_seq.setdefault(waiter.seq, waiter)
        if isinstance(others, list):
            others.append(waiter)
        elif others is not waiter:
            self._by_seq[waiter.seq] = [others, waiter]
        cursor = self._cursors.get(waiter.run_id)
        if cursor is None:
            cursor = self._cursors[waiter.run_id] = _Cursor((since, sys.maxsize))
        cursor.waiting += 1
        loop = asyncio.get_running_loop()
        # Calls that begin together share a timer, although each has microseconds less than the one
        # before: a power of two is the same step for all of them.
        step = min(1.0, 2.0 ** math.floor(math.log2(max(seconds, 0.05) / 50)))
        at = math.ceil((loop.time() + max(0.0, seconds)) / step) * step
        timeout = self._timeouts.get(at)
        if timeout is None:
            timeout = _Timeout(at, loop.call_at(at, self._time_out, at))
            self._timeouts[at] = timeout
        timeout.waiters.add(waiter)
        waiter.timeout = timeout

    def _time_out(self, at: float) -> None:
        timeout = self._timeouts[at]
        self.on_timeout(list(islice(timeout.waiters, AT_ONCE)))
        if timeout.waiters:
            # In another pass of the loop, because each group may take a transaction, and the loop
            # must show meanwhile that this process is alive.
            timeout.timer = asyncio.get_running_loop().call_soon(self._time_out, at)

    def deliver(self) -> None:
        """Deliver every new answer in the ledger to its waiters."""
        for run_id, cursor in self._with_news():
            while cursor.waiting:
                with self.ledger.read() as tx:
                    answers = queries.answers_since(tx, run_id, after=cursor.after)
                if not answers:
                    cursor.after = (cursor.after[0], sys.maxsize)
                    break
                for answer in answers:
                    assert answer.finished is not None
                    cursor.after = (answer.finished, answer.seq)
                    self._resolve(answer)

    def watch(self, waiter: Waiter, *, seconds: float) -> None:
        """Wait for a request that may have ended already. Raises `LedgerError`."""
        with self.ledger.read() as tx:
            # Before the answer: one that comes between the two statements is read twice.
            since = queries.last_stamp(tx)
            answer = queries.answer_of(tx, waiter.seq)
        self.add(waiter, seconds=seconds, since=since)
        if answer.state.is_final:
            self._resolve(answer)

    def _with_news(self) -> list[tuple[str, _Cursor]]:
        """Return the runs with waiting callers that may have new answers, with their cursors."""
        waited_for = list(self._cursors.items())
        if len(waited_for) < MANY_RUNS:
            return waited_for
        # One statement for all, because most of them have nothing new.
        with self.ledger.read() as tx:
            ended = queries.last_endings(tx, self._cursors)
        return [
            (run_id, each)
            for run_id, each in waited_for
            if (ended.get(run_id, 0), sys.maxsize) > each.after
        ]

    def _resolve(self, answer: Answer) -> None:
        found = self._by_seq.pop(answer.seq, None)
        if found is None:
            return
        waiters = _listed(found)
        for waiter in waiters:
            self._release(waiter)
        settled = [
            waiter.future.settle(answer, self.note) and not waiter.watches for waiter in waiters
        ]
        if not any(settled):
            self.on_gone(answer.seq, "keep")

    def leave(self, waiter: Waiter) -> None:
        """Remove a caller that has left without an answer."""
        departure = waiter.future.departure
        waiter.keeps |= departure == "keep"
        self._remove(waiter, "keep" if waiter.keeps else departure)

    def leave_closed_loops(self, asked: Iterable[CallFuture]) -> None:
        """Let the callers leave whose event loop is closed, because their tasks never run again.

        ``asked`` are those whose calls are not stored yet.
        """
        loops = [loop for each in _caller_loops.keyrefs() if (loop := each()) is not None]
        closed = [_caller_loop(loop) for loop in loops if loop.is_closed()]
        for calls in closed:
            calls.give_back()
        waiting = (waiter.future for waiter in self.all())
        for future in (*asked, *waiting) if closed else ():
            if future.waits_on(closed):
                future.cancel()

    def fail(self, waiters: Iterable[Waiter], error: Callable[[Waiter], ActorError]) -> None:
        """End waits with an error; the requests stay unchanged."""
        for waiter in list(waiters):
            # A caller that was cancelled just now has left by itself.
            if waiter.future.settle(error(waiter)):
                self._remove(waiter, "keep")
            else:
                self.leave(waiter)

    def _remove(self, waiter: Waiter, departure: Departure) -> None:
        found = self._by_seq.get(waiter.seq)
        mine = [] if found is None else _listed(found)
        if waiter not in mine:
            return
        mine.remove(waiter)
        self._release(waiter)
        if not mine:
            del self._by_seq[waiter.seq]
            self.on_gone(waiter.seq, departure)
        elif waiter.watches:
            return
        elif all(other.watches for other in mine):
            # It is not withdrawn, because they wait for its answer; an equal call may take it.
            self.on_gone(waiter.seq, "keep")
        elif waiter.keeps:
            # A later caller that leaves must not withdraw what this caller wanted to keep.
            for other in mine:
                other.keeps = True

    def wanted_by_others(self, going: Collection[Waiter]) -> set[int]:
        """Return those requests of these waiters for which another caller waits, too."""
        leaving, wanted = set(going), set[int]()
        for waiter in leaving:
            found = self._by_seq.get(waiter.seq)
            others = [] if found is None else [w for w in _listed(found) if w not in leaving]
            if any(not (other.watches or other.future.cancelled()) for other in others):
                wanted.add(waiter.seq)
        return wanted

    def of(self, workspace: object) -> list[Waiter]:
        """Return the waiters of one account."""
        return [waiter for waiter in self.all() if waiter.workspace is workspace]

    def runs(self) -> list[str]:
        """Return the runs with waiting callers."""
        return list(self._cursors)

    def __bool__(self) -> bool:
        """Return whether anybody waits."""
        return bool(self._by_seq)

    def all(self) -> list[Waiter]:
        """Return every waiter."""
        return [waiter for found in self._by_seq.values() for waiter in _listed(found)]

    def _release(self, waiter: Waiter) -> None:
        if (timeout := waiter.timeout) is not None:
            waiter.timeout = None
            timeout.waiters.discard(waiter)
            if not timeout.waiters:
                timeout.timer.cancel()
                del self._timeouts[timeout.at]
        cursor = self._cursors[waiter.run_id]
        cursor.waiting -= 1
        if not cursor.waiting:
            del self._cursors[waiter.run_id]


def _listed(waiters: Waiter | list[Waiter]) -> list[Waiter]:
    return waiters if isinstance(waiters, list) else [waiters]
