"""Observers: receivers of events, each on its own thread; none of them can disturb a run.

Reporting puts an event into a queue and returns. If an observer is slower than the events, its
oldest ones are dropped and counted. An exception that it raises is logged once for each type. An
observer that never returns is abandoned at the end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, cast

from claude_batch.core import events
from claude_batch.core.events import Event, ObserverLike
from claude_batch.core.quantities import count_of
from claude_batch.core.settings import command_naming
from claude_batch.core.user_functions import check_takes, ends_the_caller

# Observers ----------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

QUEUE = 1000
"""Most events that wait for an observer; older ones are dropped for newer ones."""

WARNINGS_APART = 60.0
"""Least seconds between two warnings that an observer is too slow, if it caught up meanwhile."""

CLOSING_SECONDS = 2.0
"""Seconds that closing waits for observers to process queued events."""


def checked_observers(observers: Iterable[ObserverLike]) -> tuple[ObserverLike, ...]:
    """Return the observers if each can receive events. Raises ``TypeError``."""
    if not isinstance(cast("object", observers), Iterable):
        raise TypeError(f"observers: {observers!r} is not a list; give [{observers!r}]")
    found = tuple(observers)
    for observer in found:
        if isinstance(observer, type):
            raise TypeError(
                f"observers: {observer!r} is a class; give an object of it: {observer.__name__}()"
            )
        for name in ("wants", "carry"):
            if inspect.iscoroutinefunction(getattr(observer, name, None)):
                raise TypeError(
                    f"observers: {observer!r}: {name} is called synchronously and cannot be "
                    "awaited; write it as a plain method (on_event may be `async def`)"
                )
        on_event: Any = getattr(observer, "on_event", None)
        taking = on_event if callable(on_event) else observer
        if not callable(taking):
            raise TypeError(
                f"observers: {observer!r} is not callable and has no method on_event(event)"
            )
        check_takes("observers", taking, "event")
    return found


Source: TypeAlias = Callable[[], Iterable[Event]]
"""Returns the events when called; it is called once for each observer."""


class Carriers:
    """The observers of a provider that carry something from a caller's own context."""

    def __init__(self, observers: Iterable[ObserverLike]) -> None:
        found: list[Any] = [getattr(observer, "carry", None) for observer in observers]
        self._carry: list[Callable[[], object]] = [each for each in found if callable(each)]
        self._warned = False

    def carried(self) -> str | None:
        """Return the first text that an observer carries, or `None`; exceptions are logged once."""
        for carry in self._carry:
            try:
                found = carry()
            except Exception:
                if not self._warned:
                    self._warned = True
                    _log.exception("an observer's carry() failed; requests are sent without it")
                continue
            if isinstance(found, str):
                return found
        return None


class _Outlet:
    """One observer with its queue and its thread, which starts with the first event."""

    def __init__(self, observer: ObserverLike) -> None:
        self.observer = observer
        self.users = 1
        on_event: Any = getattr(observer, "on_event", None)
        self._take: Callable[[Event], object] = on_event if callable(on_event) else observer  # type: ignore[assignment]
        wants: Any = getattr(observer, "wants", None)
        self._wants: Callable[[type[Event]], object] | None = wants if callable(wants) else None
        self._queue: deque[Source] = deque()
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._left_behind = False
        self._dropped = 0
        self._is_behind = False
        """Whether the log reports that events are dropped; until half of the queue is free."""
        self._next_warning = 0.0
        self._faults: set[str] = set()
        self._runner: asyncio.Runner | None = None
        """Event loop of an observer whose ``on_event`` is asynchronous."""

    def wants(self, kind: type[Event]) -> bool:
        if self._wants is None:
            return not kind.on_request
        try:
            return bool(self._wants(kind))
        except BaseException as error:  # also `sys.exit()`, which would end the engine's loop
            if ends_the_caller(error):
                raise
            self._log_failure(error, "wants")
            return not kind.on_request

    def put(self, source: Source) -> None:
        with self._ready:
            if self._closing:
                return
            if len(self._queue) >= QUEUE:
                self._queue.popleft()
                self._dropped += 1
                now = time.monotonic()
                if not self._is_behind and now >= self._next_warning:
                    self._is_behind, self._next_warning = True, now + WARNINGS_APART
                    _log.warning(
                        "the observer %r is too slow: its oldest events are dropped (%s so far)",
                        self.observer,
                        count_of(self._dropped, "event"),
                    )
            if self._starts():
                self._queue.append(source)
                self._ready.notify()
                return
        self._hand_over_all(source)

    def _starts(self) -> bool:
        """Return whether its thread runs; no thread can start while the process ends."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="claude-batch-observer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        try:
            while (source := self._next()) is not None:
                self._hand_over_all(source)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _next(self) -> Source | None:
        """Return the next queued item, or `None` after the last one."""
        with self._ready:
            self._is_behind = self._is_behind and len(self._queue) > QUEUE // 2
            while not self._queue:
                if self._closing:
                    return None
                self._ready.wait()
            # After closing, an observer that was too slow gets no more of what waits for it.
            return None if self._left_behind else self._queue.popleft()

    def _hand_over(self, event: Event) -> None:
        try:
            taking = self._take(event)
            if inspect.isawaitable(taking):
                self._finish(taking)
        except BaseException as error:
            self._log_failure(error, type(event).__name__)

    def _finish(self, taking: Awaitable[object]) -> None:
        async def finish() -> None:
            await taking

        if threading.current_thread() is self._thread:
            if self._runner is None:
                self._runner = asyncio.Runner()
            self._runner.run(finish())
        else:
            # The process ends and no thread can start; this thread may have a running loop.
            if inspect.iscoroutine(taking):
                taking.close()
            raise RuntimeError("the process is ending; asynchronous calls are not started any more")

    def _hand_over_all(self, source: Source) -> None:
        try:
            for event in source():
                if self._left_behind:
                    return
                self._hand_over(event)
        except Exception as error:
            self._log_failure(error, "events that are read from the ledger")

    def _log_failure(self, error: BaseException, what: str) -> None:
        kind = type(error).__name__
        if kind not in self._faults:
            self._faults.add(kind)
            _log.error(
                "the observer %r failed at %s; the run continues, and further errors of this "
                "kind are not logged",
                self.observer,
                what,
                exc_info=error,
            )

    def stop(self) -> None:
        """Accept no more events; the thread ends after the queued ones."""
        with self._ready:
            self._closing = True
            self._ready.notify()

    def join(self, until: float) -> None:
        """Wait for the thread until a `time.monotonic` time; a blocked thread is abandoned."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._left_behind = True
                _log.warning(
                    "the observer %r did not take %s in time and is abandoned",
                    self.observer,
                    count_of(len(self._queue) + 1, "event"),
                )
        if self._dropped:
            _log.warning(
                "the observer %r missed %s", self.observer, count_of(self._dropped, "event")
            )


class Observers:
    """All observers of a ledger in this process. Thread-safe; never blocks or raises."""

    def __init__(self, ledger: str, *, log: bool = True) -> None:
        """Set up for a ledger, whose name is in the events; ``log`` adds the log as an observer."""
        self.ledger: str = ledger
        self._lock = threading.RLock()  # a signal handler may close a provider
        self._outlets: tuple[_Outlet, ...] = (_Outlet(Logbook()),) if log else ()

    def wants(self, kind: type[Event]) -> bool:
        """Return whether any observer wants events of a class, so that they are worth computing."""
        return any(outlet.wants(kind) for outlet in self._outlets)

    def report(self, event: Event) -> None:
        """Queue an event for every observer that wants it."""
        self.report_each(type(event), lambda: (event,))

    def report_each(self, kind: type[Event], source: Source) -> None:
        """Queue a source of many events of a class; each interested observer reads it.

        The source is read on the observer's thread, so no faster than the observer processes it.
        """
        for outlet in self._outlets:
            if outlet.wants(kind):
                outlet.put(source)

    def attach(self, observers: Iterable[ObserverLike]) -> None:
        """Add observers; one that is already attached receives events only once."""
        with self._lock:
            outlets = list(self._outlets)
            for observer in observers:
                known = next((each for each in outlets if each.observer is observer), None)
                if known is None:
                    outlets.append(_Outlet(observer))
                else:
                    known.users += 1
            # Replaced, never changed in place, because readers take no lock.
            self._outlets = tuple(outlets)

    def detach(self, observers: Iterable[ObserverLike]) -> None:
        """Remove observers after they have processed queued events, or after the timeout."""
        gone: list[_Outlet] = []
        with self._lock:
            outlets = list(self._outlets)
            for observer in observers:
                for each in [each for each in outlets if each.observer is observer]:
                    each.users -= 1
                    if not each.users:
                        outlets.remove(each)
                        gone.append(each)
            self._outlets = tuple(outlets)
        self._end(gone)

    def close(self) -> None:
        """Remove all observers; waits briefly for queued events."""
        with self._lock:
            gone, self._outlets = self._outlets, ()
        self._end(gone)

    @staticmethod
    def _end(outlets: Iterable[_Outlet]) -> None:
        gone = list(outlets)
        for each in gone:
            each.stop()
        until = time.monotonic() + CLOSING_SECONDS
        for each in gone:
            each.join(until)


NOBODY: Observers = Observers("", log=False)
"""No observers, for lifecycle work without an engine."""


# Logbook ------------------------------------------------------------------------------------------

LOGGER = "claude_batch.events"
"""Name of the logger for events."""

_LEVELS: dict[type[Event], int] = {
    events.BatchUnknown: logging.WARNING,
    events.BatchCanceled: logging.WARNING,
    events.UnknownDecided: logging.ERROR,
    events.SendingHalted: logging.ERROR,
    events.RunHeld: logging.WARNING,
}
"""Highest log level of an event by its class; all others are logged at INFO."""

_DECIDED = {
    "assumed": logging.WARNING,
    "resubmitted": logging.WARNING,
    "unresolved": logging.ERROR,
}


class Logbook:
    """An observer that writes each event to the logger ``claude_batch.events``.

    A record's message is for people. Its attributes are the event's name (``event``) and fields,
    for structured formatters.
    """

    def __init__(self) -> None:
        self._log = logging.getLogger(LOGGER)

    def __repr__(self) -> str:
        return "the log"

    def wants(self, kind: type[Event]) -> bool:
        """Return whether the logger's level lets events of a class through."""
        return not kind.on_request and self._log.isEnabledFor(_LEVELS.get(kind, logging.INFO))

    def on_event(self, event: Event) -> None:
        """Write one line."""
        level = _LEVELS.get(type(event), logging.INFO)
        if isinstance(event, events.UnknownDecided):
            level = _DECIDED.get(event.outcome, logging.INFO)
        self._log.log(level, "%s", message_of_event(event), extra=event.to_dict())


def message_of_event(event: Event) -> str:
    """Return an event as text for people."""
    match event:
        case events.RequestsQueued():
            return f"{event.run_id}: {_requests(event.requests)} queued ({event.actor})"
        case events.BatchSubmitted():
            return f"batch {event.batch_id}: {_requests(event.requests)} submitted"
        case events.BatchUnknown():
            return (
                f"{_requests(event.requests)}: it is unknown whether the API accepted the batch "
                f"({event.reason}); it is looked for in the API's list of batches before anything "
                "is sent again"
            )
        case events.UnknownDecided():
            return _decided(event)
        case events.BatchCanceled():
            return f"batch {event.batch_id} was canceled at the API, not by claude-batch"
        case events.BatchEnded():
            counts = ", ".join(f"{count} {state}" for state, count in event.counts.items() if count)
            return f"batch {event.batch_id} has ended: {counts}"
        case events.ResultsCollected():
            return (
                f"batch {event.batch_id}: {event.final} final, "
                f"{event.requests - event.final - event.missing} queued again, "
                f"{event.missing} missing; cost {event.cost / 1e9:f} USD"
            )
        case events.RequestsRetried():
            of = event.run_id or f"batch {event.batch_id}"
            return f"{of}: retrying {_requests(event.requests)} ({event.reason})"
        case events.SendingHalted():
            return f"sending halted ({event.reason}): {event.detail}"
        case events.SendingResumed():
            return f"sending continues (it was halted: {event.reason})"
        case events.RunHeld():
            return f"{event.run_id}: {event.reason}"
        case events.RunCancelled():
            return f"{event.run_id} was cancelled"
        case events.RunFinished():
            counts = ", ".join(f"{count} {state}" for state, count in event.counts.items())
            return f"{event.run_id} {event.state}: {counts} of {event.requests}"
        case _:
            return type(event).__name__


def _requests(count: int) -> str:
    return count_of(count, "request")


def _decided(event: events.UnknownDecided) -> str:
    match event.outcome:
        case "found":
            return f"batch {event.batch_id} is the result of a sending with an unknown outcome"
        case "assumed":
            return (
                f"batch {event.batch_id} is adopted as the unknown sending of "
                f"{_requests(event.requests)}, because no other client creates batches in this "
                "workspace"
            )
        case "not_accepted":
            return f"{_requests(event.requests)}: not accepted by the API, sent again"
        case "unresolved":
            again = command_naming("claude-batch unknown RUN --resubmit", event.ledger)
            return (
                f"{_requests(event.requests)}: it can no longer be learned whether the API "
                f"accepted the batch. To send it again: {again}"
            )
        case _:  # resubmitted
            return (
                f"{_requests(event.requests)}: sent again although it is unknown whether the API "
                "accepted the batch; may be paid for twice (on_unknown: resubmit)"
            )
