"""Callers that wait for runs: each is woken when requests of its own run have ended.

A program may wait for a hundred runs at once. If each change of the ledger woke every caller, and
each caller read its run, the work of a program would grow with the square of the number of runs.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from weakref import WeakSet

from claude_batch.ledger import queries
from claude_batch.ledger.store import Ledger

TURNS_APART = 0.05
"""Seconds between two callers that are woken although no request of their runs has ended.

A halt or a budget may end their waiting. All callers of a process share these turns."""


class RunWatch:
    """What one caller knows of its run. It belongs to the engine's loop once it is waited for."""

    __slots__ = ("__weakref__", "changed", "ended", "future", "run_id", "seen")

    def __init__(self, run_id: str) -> None:
        """Begin to watch; keep the watch between two waits, because it tells what is new."""
        self.run_id: str = run_id
        self.ended: int = -1
        """Stamp of the last requests that ended, as far as noticed."""
        self.changed: int = 0
        """Version of the engine at which that was noticed."""
        self.seen: int = 0
        """Version of the engine before the caller last read its run."""
        self.future: Future[int] | None = None


class RunWatches:
    """The watches of an engine. Belongs to the engine's loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._watches: WeakSet[RunWatch] = WeakSet()
        self._version = 0
        self._stamp = -1
        self._turns: dict[RunWatch, None] = {}
        self._next_turn = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, watch: RunWatch, seen: int, future: Future[int], version: int) -> None:
        """Set ``future`` once its run may have changed since version ``seen``."""
        is_new = watch not in self._watches
        self._watches.add(watch)
        self._version = version
        watch.seen, watch.future = seen, future
        if watch.changed > seen or (is_new and version > seen):
            self._wake(watch)
        elif version > seen:
            self._turns[watch] = None
            self._give_turns()

    def look(self, version: int) -> None:
        """Wake the callers whose runs have changed, and plan the others. Raises `LedgerError`."""
        self._version = version
        watches = list(self._watches)
        if not watches:
            return
        with self._ledger.read() as tx:
            stamp = queries.last_stamp(tx)
            if stamp != self._stamp:
                self._stamp = stamp
                self._compare(watches, queries.last_endings(tx, {each.run_id for each in watches}))
        for watch in watches:
            if watch.future is None:
                continue
            if watch.changed > watch.seen:
                self._wake(watch)
            else:
                self._turns[watch] = None
        self._give_turns()

    def wake_all(self, version: int) -> None:
        """Wake every caller, because the engine has failed or ends."""
        self._version = version
        for watch in list(self._watches):
            self._wake(watch)

    def _compare(self, watches: list[RunWatch], endings: dict[str, int]) -> None:
        for watch in watches:
            ended = endings.get(watch.run_id, 0)
            if ended != watch.ended:
                watch.ended, watch.changed = ended, self._version

    def _give_turns(self) -> None:
        loop = asyncio.get_running_loop()
        while self._turns and loop.time() >= self._next_turn:
            watch = next(iter(self._turns))
            del self._turns[watch]
            if self._wake(watch):
                self._next_turn = loop.time() + TURNS_APART
        if self._turns and self._timer is None:
            self._timer = loop.call_at(self._next_turn, self._take_turn)

    def _take_turn(self) -> None:
        self._timer = None
        self._give_turns()

    def _wake(self, watch: RunWatch) -> bool:
        """Wake a caller; return False if it does not wait any more."""
        future, watch.future = watch.future, None
        if future is None:
            return False
        with suppress(InvalidStateError):  # its caller has cancelled it
            future.set_result(self._version)
            return True
        return False
