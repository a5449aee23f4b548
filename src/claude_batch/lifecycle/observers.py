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
from typing import Any, TypeAlias

from claude_batch.core.events import Event, ObserverLike
from claude_batch.core.plurals import count_of
from claude_batch.lifecycle.logbook import Logbook

_log = logging.getLogger(__name__)

QUEUE = 1000
"""Most events that wait for an observer; older ones are dropped for newer ones."""

CLOSING_SECONDS = 2.0
"""Seconds that closing waits for observers to process queued events."""


def checked_observers(observers: Iterable[ObserverLike]) -> tuple[ObserverLike, ...]:
    """Return the observers if each can receive events. Raises ``TypeError``."""
    found = tuple(observers)
    for observer in found:
        for name in ("wants", "carry"):
            if inspect.iscoroutinefunction(getattr(observer, name, None)):
                raise TypeError(
                    f"observers: {observer!r}: {name} is called synchronously and cannot be "
                    "awaited; write it as a plain method (on_event may be `async def`)"
                )
        if not callable(observer) and not callable(getattr(observer, "on_event", None)):
            raise TypeError(
                f"observers: {observer!r} is not callable and has no method on_event(event)"
            )
    return found


Source: TypeAlias = Callable[[], Iterable[Event]]
"""Returns the events when called; it is called once for each observer."""


class Carriers:
    """The observers of a provider that carry something from a caller's own context."""

    def __init__(self, observers: Iterable[ObserverLike]) -> None:
        found: list[Any] = [getattr(observer, "carry", None) for observer in observers]
        self._carry: list[Callable[[], object]] = [each for each in found if callable(each)]
        self._told = False

    def carried(self) -> str | None:
        """Return the first text that an observer carries, or `None`; exceptions are logged once."""
        for carry in self._carry:
            try:
                found = carry()
            except Exception:
                if not self._told:
                    self._told = True
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
        self._queue: deque[Event | Source] = deque()
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._left_behind = False
        self._dropped = 0
        self._faults: set[str] = set()
        self._runner: asyncio.Runner | None = None
        """Event loop of an observer whose ``on_event`` is asynchronous."""

    def wants(self, kind: type[Event]) -> bool:
        if self._wants is None:
            return not kind.on_request
        try:
            return bool(self._wants(kind))
        except Exception as error:
            self._blame(error, "wants")
            return not kind.on_request

    def put(self, event: Event | Source) -> None:
        with self._ready:
            if self._closing:
                return
            if len(self._queue) >= QUEUE:
                self._queue.popleft()
                self._dropped += 1
                if self._dropped == 1:
                    _log.warning(
                        "the observer %r is too slow: its oldest events are dropped",
                        self.observer,
                    )
            if self._starts():
                self._queue.append(event)
                self._ready.notify()
                return
        self._hand_over_any(event)

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
            while (event := self._next()) is not None:
                self._hand_over_any(event)
        finally:
            if self._runner is not None:
                self._runner.close()

    def _next(self) -> Event | Source | None:
        """Return the next queued item, or `None` after the last one."""
        with self._ready:
            while not self._queue:
                if self._closing:
                    return None
                self._ready.wait()
            return self._queue.popleft()

    def _hand_over_any(self, event: Event | Source) -> None:
        if isinstance(event, Event):
            self._hand_over(event)
        else:
            self._hand_over_all(event)

    def _hand_over(self, event: Event) -> None:
        try:
            taking = self._take(event)
            if inspect.isawaitable(taking):
                self._finish(taking)
        except BaseException as error:
            self._blame(error, type(event).__name__)

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
            raise RuntimeError("the process ends; what is asynchronous is not begun any more")

    def _hand_over_all(self, source: Source) -> None:
        try:
            for event in source():
                if self._left_behind:
                    return
                self._hand_over(event)
        except Exception as error:
            self._blame(error, "what was to be read for it")

    def _blame(self, error: BaseException, what: str) -> None:
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
        self._lock = threading.Lock()
        self._outlets: tuple[_Outlet, ...] = (_Outlet(Logbook()),) if log else ()

    def wants(self, kind: type[Event]) -> bool:
        """Return whether any observer wants events of a class, so that they are worth computing."""
        return any(outlet.wants(kind) for outlet in self._outlets)

    def tell(self, event: Event) -> None:
        """Queue an event for every observer that wants it."""
        kind = type(event)
        for outlet in self._outlets:
            if outlet.wants(kind):
                outlet.put(event)

    def tell_each(self, kind: type[Event], source: Source) -> None:
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
