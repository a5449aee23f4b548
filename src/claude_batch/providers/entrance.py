"""A provider's access to the engine of its ledger: opened on first use, closed once.

Opening reads and writes the ledger, which may have to wait for other processes. So it happens on a
separate thread if the caller may have an event loop; callers wait for it as for an answer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from claude_batch.actor.tools import ToolFinder
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.events import ObserverLike
from claude_batch.core.settings import LedgerSettings
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.engine import Engine

_entrances: weakref.WeakSet[Entrance] = weakref.WeakSet()


def find_credentials(
    base_url: str | None, api_key: str | None, api_key_env: str | None
) -> dict[str, str]:
    """Return ``base_url`` and ``api_key`` for an SDK client; the SDK looks up what is missing.

    Raises `ActorConfigurationError` if ``api_key_env`` names a variable that is not set.
    """
    found: dict[str, str] = {}
    if base_url is not None:
        found["base_url"] = base_url
    if api_key is not None:
        found["api_key"] = api_key
    elif api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise ActorConfigurationError(f"no API key: the variable {api_key_env} is not set")
        found["api_key"] = key
    return found


class Entered(NamedTuple):
    """The open engine and door."""

    engine: Engine
    door: Door


class Entrance:
    """Open an engine and its door once for all threads and event loops of a provider."""

    def __init__(
        self,
        location: str,
        settings: LedgerSettings,
        credentials: Callable[[], dict[str, str]],
        *,
        drive: bool,
        observers: Sequence[ObserverLike] = (),
    ) -> None:
        self._location = location
        self.settings: LedgerSettings = settings
        self._credentials = credentials
        self._drive = drive
        self._observers = observers
        self._lock = threading.Lock()  # held while it opens: never waited for on an event loop
        self._engine: Engine | None = None
        self._door: Door | None = None
        self._planning = threading.Lock()  # held only briefly
        self._opening: Future[Entered] | None = None
        self.closed: bool = False
        _entrances.add(self)

    def forget(self) -> None:
        """Reset after a fork: the parent keeps its engine, and the child opens its own."""
        self._lock, self._planning = threading.Lock(), threading.Lock()
        self._engine = self._door = self._opening = None

    @property
    def entered(self) -> Entered | None:
        """Return the open engine and door, or None if it is not open. Never waits."""
        engine, door = self._engine, self._door
        return None if engine is None or door is None else Entered(engine, door)

    def engine(self) -> Engine:
        """Return the engine, which needs no key; wait while it opens. Raises `LedgerError`."""
        if (engine := self._engine) is not None:
            return engine
        with self._lock:
            return self._acquire()

    def _acquire(self) -> Engine:
        if self._engine is None:
            if self.closed:
                raise ActorConfigurationError("the provider is closed; create a new one")
            finder = ToolFinder(imports=self.settings.allow_tools_from_ledger)
            engine = Engine.acquire(self._location, self.settings, finder)
            engine.observers.attach(self._observers)
            self._engine = engine
        return self._engine

    def door(self) -> Door:
        """Return the door, once open. Raises `LedgerError` and `ActorConfigurationError`."""
        if (door := self._door) is not None:
            return door
        with self._lock:
            engine = self._acquire()
            if self._door is None:
                found = self._credentials()
                self._door = engine.open_door(
                    found.get("base_url"), found.get("api_key"), drive=self._drive
                )
            return self._door

    def opening(self) -> Future[Entered]:
        """Start opening if needed. Never waits; the future raises what `door` would raise."""
        if (entered := self.entered) is not None:
            done: Future[Entered] = Future()
            done.set_result(entered)
            return done
        with self._planning:
            if (opening := self._opening) is not None:
                return opening
            opening = self._opening = Future()
            # Many callers wait for it, so one that gives up must not cancel it.
            opening.set_running_or_notify_cancel()
        threading.Thread(
            target=self._open, args=(opening,), name="claude-batch-open", daemon=True
        ).start()
        return opening

    def _open(self, opening: Future[Entered]) -> None:
        try:
            door = self.door()
            entered = Entered(self.engine(), door)
        except BaseException as error:
            self._opening = None  # the next caller tries again
            opening.set_exception(error)
        else:
            self._opening = None
            opening.set_result(entered)

    def close(self) -> None:
        """Release the engine, once."""
        with self._lock:
            self.closed = True
            engine, self._engine = self._engine, None
            door, self._door = self._door, None
        if engine is not None:
            if door is not None:
                engine.close_door(door)
            engine.release()
            engine.observers.detach(self._observers)


def _after_fork() -> None:
    for entrance in list(_entrances):
        entrance.forget()


os.register_at_fork(after_in_child=_after_fork)
