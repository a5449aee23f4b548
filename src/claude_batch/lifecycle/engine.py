"""The engine of a ledger: one thread with its own event loop.

A process has one engine for each ledger. All providers, event loops and threads of the process
share it. Callers pass encoded requests and receive futures; no engine code runs on a caller's loop.
When the last user closes it, the work stays in the ledger.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec

from claude_batch.core.errors import (
    ActorConfigurationError,
    ActorError,
    EngineStoppedError,
    LedgerError,
    first_cause,
    for_one_caller,
)
from claude_batch.core.settings import (
    LedgerSettings,
    naming_ledger,
    on_server,
    without_password,
)
from claude_batch.core.user_functions import UserFunctions
from claude_batch.ledger import queries, workspaces
from claude_batch.ledger.backends.sqlite import path_of
from claude_batch.ledger.store import Ledger, Watch
from claude_batch.lifecycle.api_sessions import ApiSession, closed_words, open_client
from claude_batch.lifecycle.budget_room import Reservations, declare_limits
from claude_batch.lifecycle.call_queue import CallQueue
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.ended_processes import sweep
from claude_batch.lifecycle.notices import Noticing
from claude_batch.lifecycle.observers import Observers
from claude_batch.lifecycle.threads import DaemonThreads, EventLoopThread, hold_at_fork
from claude_batch.lifecycle.tool_runner import ToolFinder, Workbench
from claude_batch.money.prices import Prices, prices_of

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

WATCH_INTERVAL = 0.1
"""Seconds between two checks whether another process has written to the ledger."""

BUSY_WATCH_INTERVAL = 0.5
"""Seconds between two checks while this process itself writes.

Its own writes hide the writes of other processes from the check."""

STOP_SECONDS = 90.0
"""Seconds that closing waits for live calls in progress.

An abandoned call is lost: it may have been billed, and a second call would be billed again. Nearly
all answers arrive within this time."""

RECOVERY_CHECK, LONGEST_RECOVERY_CHECK = 1.0, 60.0
"""Seconds until a full disk or a locked file that has stopped the engine is looked at again.

They double with each time that it soon stops the engine again: the drivers may need more room than
the look, and download the results of a batch each time."""

READERS = 4
"""Most threads that use the ledger for callers at the same time."""

ENCODERS = 4
"""Most threads that encode requests with documents for callers at the same time."""

LAST_SECONDS = 10.0
"""Seconds that closing then waits for the last transactions; also for a lost or locked ledger.

The end of the process first waits as long for the readers, which may be writing a file."""

_engines: dict[str, Engine] = {}
_engines_lock = threading.RLock()  # a signal handler may close a provider while this thread opens
_starting: set[str] = set()
"""The ledgers whose engines are being started, by the thread that holds the lock."""


class Engine:
    """The driver of one ledger, created by `Engine.acquire` and returned by `release`."""

    def __init__(self, ledger: Ledger, settings: LedgerSettings, finder: ToolFinder | None) -> None:
        self.ledger = ledger
        self.settings = settings
        self.prices: Prices = prices_of(settings.prices)
        """The prices of everything that this process asks, as they were when the engine began."""
        self._users = 0
        self._sessions: dict[tuple[str, str], ApiSession] = {}
        self._lock = ledger.process_lock(settings)
        self.workbench: Workbench = Workbench(finder, self._lock.process)
        self._subscribers: list[Future[int]] = []
        self._run_watches = RunWatches(ledger)
        self._failure: ActorError | None = None
        self._recovery_pause, self._recover_at = RECOVERY_CHECK, float("-inf")
        self.observers: Observers = Observers(ledger.location)
        self._watch_for_others = ledger.watch()
        closed = closed_words(ledger.location)
        self._readers = DaemonThreads(READERS, "claude-batch-read", closed=closed)
        self._encoders = DaemonThreads(ENCODERS, "claude-batch-encode", closed=closed)
        self._watching: asyncio.Task[None] | None = None
        self._holders: set[object] = set()
        """One object for each `sending_held` block that is being executed."""
        self.functions: UserFunctions = UserFunctions()
        """The functions of the user that this process asks; providers may add to them."""
        self._loop = EventLoopThread("claude-batch-engine")
        self.calls: CallQueue = CallQueue(self, self._loop, self._sessions, self.prices)
        """The single calls of all callers."""
        self.noticing: Noticing = Noticing(
            ledger, self.observers, self._sessions, self.calls.runs, self.calls.end_held
        )
        self._loop.soon(self._begin)
        self._readers.submit(lambda: sweep(self.ledger, self.process))

    # Opening and closing ---------------------------------------------------------------------

    @classmethod
    def acquire(
        cls,
        location: str,
        settings: LedgerSettings,
        finder: ToolFinder | None = None,
    ) -> Engine:
        """Return the process's engine for a ledger, and start it for its first user.

        ``finder`` finds the tool functions that the conversations of a run call.

        Raises `LedgerError`. Raises `ActorConfigurationError` if another user of the same ledger
        runs with other ledger settings. Raises `EngineStoppedError` in a signal handler that has
        interrupted this method.
        """
        # One engine for a file, also if one user names it by a path and another by a URL: two
        # engines of a process cannot both lead a workspace.
        name = location if on_server(location) else str(path_of(location).resolve())
        with _engines_lock:
            engine = _engines.get(name)
            if engine is not None and not engine._loop.closed:
                if engine.settings != settings:
                    theirs = msgspec.structs.asdict(engine.settings)
                    ours = msgspec.structs.asdict(settings)
                    different = ", ".join(
                        f"{each}={theirs[each]!r} there and {each}={ours[each]!r} here"
                        for each in ours
                        if theirs[each] != ours[each]
                    )
                    raise ActorConfigurationError(
                        f"the ledger {without_password(location)} is already open in this process "
                        f"with other settings: {different}; use the same settings for all its "
                        "providers"
                    )
            else:
                engine = _engines[name] = cls._start(name, location, settings, finder)
            engine._users += 1
            return engine

    @classmethod
    def _start(
        cls, name: str, location: str, settings: LedgerSettings, finder: ToolFinder | None
    ) -> Engine:
        if name in _starting:
            raise EngineStoppedError(
                f"a signal handler cannot use the ledger {without_password(location)}, because "
                "the code that it interrupted is opening it; call `close` there, or set a flag "
                "that the program reads later"
            )
        _starting.add(name)
        try:
            ledger = Ledger(location)
            declare_limits(ledger, settings)
            return cls(ledger, settings, finder)
        finally:
            _starting.discard(name)

    def release(self) -> None:
        """Remove one user; the last one ends the thread and leaves open work in the ledger."""
        with _engines_lock:
            self._users -= 1
            if self._users > 0:
                # Waits for runs of the closed provider look again, and end.
                self._loop.soon(self._notify)
                return
            for name, engine in list(_engines.items()):
                if engine is self:
                    del _engines[name]
        self._end()

    def hurry(self) -> None:
        """Wait only seconds more for a lost or locked ledger, because this process closes it.

        Any thread may call it: the engine's own may be in such a wait. Nothing is done while an
        answer that may be billed is under way, because it must be stored.
        """
        if not self._awaits_answer:
            self.ledger.hurry(LAST_SECONDS)

    def _end(self) -> None:
        self.workbench.is_closing = True  # before a tool's call can be refused
        self.hurry()
        self._encoders.close()
        self._readers.close()
        self._loop.close(self._finish, STOP_SECONDS + LAST_SECONDS)
        self.observers.close()

    def open_session(
        self, base_url: str | None, api_key: str | None, *, drive: bool = True
    ) -> ApiSession:
        """Return the session (client and driver) for this base URL and credential.

        Callers with the same pair share one session, which lasts as long as the engine.
        ``drive=False`` only registers it: nothing is sent or polled until `advance`.
        """
        return self._loop.run(self._open_session(base_url, api_key, drive)).result()

    async def _open_session(
        self, base_url: str | None, api_key: str | None, drive: bool
    ) -> ApiSession:
        client = await open_client(base_url, api_key, write_timeout=self.settings.arm_window)
        name = (client.base_url, self.ledger.fingerprint(client.credential))
        session = self._sessions.get(name)
        if session is None:
            context = DriverContext(
                self.ledger,
                client,
                self.settings,
                self.observers,
                self.functions,
                self._holders,
                self.prices,
            )
            context.reporter.follow = self.noticing.follow
            driver = Driver(context, self._notify, self.workbench)
            session = self._sessions[name] = ApiSession(client, driver)
            driver.loops_have_ended = functools.partial(self.calls.fail_closed, session)
        else:
            await client.close()
        if drive and session.task is None:
            # A new process or a new key is a reason to probe a halted workspace again.
            with self.ledger.write() as tx:
                workspaces.ask_probe(tx, session.workspace_id)
            # Before a caller asks what holds its run: it may be a price that was not known then.
            Reservations(self.ledger, self.prices, self.ledger.now()).price_anew()
            session.task = asyncio.create_task(self._guard(session.driver))
        return session

    @contextlib.contextmanager
    def sending_held(self) -> Generator[None]:
        """Send nothing from this process inside the block; poll and collect."""
        holder = object()
        self._holders.add(holder)
        try:
            yield
        finally:
            self._holders.remove(holder)
            self._loop.soon(self.wake_drivers)

    def wake_drivers(self) -> None:
        """Let the drivers of this process check for work. For the engine's loop."""
        for session in self._sessions.values():
            session.driver.wake()

    async def _guard(self, driver: Driver) -> None:
        """Run a driver's loop, and fail all callers if it ends unexpectedly."""
        try:
            await driver.run()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and driver.is_closing:
                raise
            cause = first_cause(error)
            if not isinstance(cause, LedgerError):
                _log.error("the engine stopped", exc_info=cause)
                location = self.ledger.location
                cause = EngineStoppedError(
                    f"the engine stopped: {type(cause).__name__}: {cause}. Everything stored is "
                    f"in the ledger {location}; fix the cause, then run "
                    f"{naming_ledger('`claude-batch resume`', location)}"
                )
            self._fail(cause)
            self._notify()

    def _fail(self, failure: ActorError) -> None:
        """Stop the engine: fail all waiting callers now and all later callers at once."""
        now = time.monotonic()
        if self._failure is None:
            was_soon = now - self._recover_at < LONGEST_RECOVERY_CHECK
            pause = min(2 * self._recovery_pause, LONGEST_RECOVERY_CHECK)
            self._recovery_pause = pause if was_soon else RECOVERY_CHECK
            self._recover_at = now + self._recovery_pause
        if self._failure is None or self._may_recover:
            self._failure = failure
        self.calls.fail(failure)

    @property
    def _may_recover(self) -> bool:
        return isinstance(self._failure, LedgerError) and self._failure.passes

    async def _recover(self) -> None:
        """Start the drivers again if what has stopped them has passed; else raise `LedgerError`."""
        self._recover_at = time.monotonic() + self._recovery_pause
        await asyncio.wrap_future(self.read(self.ledger.prove_writable))
        if not self._may_recover:
            return
        _log.warning(
            "the ledger %s can be written again; its work is tried again", self.ledger.location
        )
        self._failure = None
        for session in self._sessions.values():
            if session.task is not None and session.task.done():
                session.task = asyncio.create_task(self._guard(session.driver))

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch(self._watch_for_others))

    async def _finish(self) -> None:
        for session in self._sessions.values():
            session.driver.stop()
        if self._watching is not None:
            self._watching.cancel()
        tasks = [session.task for session in self._sessions.values() if session.task is not None]
        await self._let_end(tasks)
        self.ledger.hurry(LAST_SECONDS)
        await self._loop.end_the_rest()
        self.calls.remove_departed()
        self.calls.fail_closed()
        self._notify()
        for session in self._sessions.values():
            await session.client.close()
        self.calls.note()
        self.noticing.look_quietly()
        self._watch_for_others.close()
        self._lock.release()
        self.ledger.close()

    @property
    def _awaits_answer(self) -> bool:
        sessions = list(self._sessions.values())
        return any(session.driver.awaits_answer for session in sessions)

    async def _let_end(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Wait for drivers that stop; live calls may take this long, and a POST a shorter time.

        A pass of `advance` is waited for only while one of these is under way. Everything else ends
        at once.
        """
        end = time.monotonic() + STOP_SECONDS
        while tasks or self._awaits_answer:
            left = end - time.monotonic()
            if left <= 0:
                return
            # If its loop gave no sign of life, this process would release its leader locks, and
            # the next driver would count the calls as lost.
            self._lock.tick()
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=min(WATCH_INTERVAL, left))
            else:
                await asyncio.sleep(min(WATCH_INTERVAL, left))

    # Changes ---------------------------------------------------------------------------------

    async def _watch(self, watch: Watch) -> None:
        changed, looked, commits = False, 0.0, 0
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self._lock.tick()
            ours, commits = self.ledger.commits != commits, self.ledger.commits
            try:
                changed = watch.changed() or changed
                if self._may_recover and time.monotonic() >= self._recover_at:
                    await self._recover()
                    changed = True
            except LedgerError as error:
                changed = True
                if self.ledger.outlasts(error) or (error.passes and self._may_recover):
                    continue  # the driver or an error before reports it
                self._fail(error)
                self._notify()
                if not error.passes:
                    return
                continue
            except EngineStoppedError:
                return  # it is being closed
            if changed and not (ours and time.monotonic() - looked < BUSY_WATCH_INTERVAL):
                changed, looked = False, time.monotonic()
                self.prices.warn_if_changed()
                self._notify()
                self.wake_drivers()

    def _notify(self) -> None:
        self._run_watches.version += 1
        self.notify_callers()
        self.calls.plan_notes()
        self.noticing.plan()
        if self._failure is not None or self._loop.closed:
            self._run_watches.wake_all()
        subscribers, self._subscribers = self._subscribers, []
        for future in subscribers:
            _settle(future, self.version)

    def notify_callers(self) -> None:
        """Give callers what the ledger has for them. For the engine's loop."""
        if self._failure is not None:
            return
        try:
            self.calls.deliver()
            self._run_watches.look()
        except LedgerError as error:
            if not self.ledger.outlasts(error):
                self._fail(error)

    @property
    def version(self) -> int:
        """Counter of the changes that the engine has seen; it only increases."""
        return self._run_watches.version

    def change_after(self, version: int) -> Future[int]:
        """Return a future that completes when the version is higher than the given one."""

        def wait(future: Future[int]) -> None:
            if self.version > version:
                _settle(future, self.version)
            else:
                self._subscribers.append(future)

        return self._subscribed(wait)

    def run_change_after(self, watch: RunWatch, version: int) -> Future[int]:
        """Return a future that completes when the watched run may have changed.

        It completes at once after the end of some of its requests, and at times after other changes
        of the ledger. ``version`` is that of the engine before the caller read its run.
        """
        return self._subscribed(lambda future: self._run_watches.wait(watch, version, future))

    def _subscribed(self, wait: Callable[[Future[int]], object]) -> Future[int]:
        """Let a future wait on the loop; it is done at once if the engine has stopped."""
        future: Future[int] = Future()

        def subscribe() -> None:
            if self._failure is not None or self._loop.closed:
                _settle(future, self.version)
            else:
                wait(future)

        if not self._loop.soon(subscribe):
            future.set_result(self.version)
        return future

    @property
    def failure(self) -> ActorError | None:
        """The error that has stopped the engine, for good or until it has passed, or None."""
        return self._failure

    @property
    def process(self) -> str:
        """Id of this process in the ledger."""
        return self._lock.process

    def check(self) -> None:
        """Raise the error that stopped the engine, if there is one."""
        if self._failure is not None:
            raise for_one_caller(self._failure)

    def read(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function that reads the ledger on one of the engine's reader threads.

        Raises `EngineStoppedError` if the engine is closed.
        """
        return self._readers.submit(work)

    def encode(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function that encodes requests with documents on a thread that is no reader.

        It may wait for an upload, and no other caller's reading of the ledger waits for that.
        Raises `EngineStoppedError` if the engine is closed.
        """
        return self._encoders.submit(work)

    def look(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function that only reads the ledger there; see `Ledger.patiently`."""
        return self._readers.submit(lambda: self.ledger.patiently(work))

    def do(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine that uses a session's client on the engine's event loop."""
        return self._loop.run(work)

    def wake(self) -> None:
        """Check for work now, because a run was stored, cancelled or resumed."""

        def wake() -> None:
            self.wake_drivers()
            self._notify()

        self._loop.soon(wake)

    def advance(self, session: ApiSession) -> Future[bool]:
        """Make one pass over all due work; the result is False if another process drives."""
        return self._loop.run(session.driver.advance())

    def resume(self) -> None:
        """Probe every halted workspace that this process has a key for, and continue."""
        for session in list(self._sessions.values()):
            with self.ledger.write() as tx:
                workspaces.accept_unexplained(tx, session.workspace_id)
                workspaces.ask_probe(tx, session.workspace_id)
        self.wake()


# Callers that wait for runs -----------------------------------------------------------------------

# A program may wait for a hundred runs at once. If each change of the ledger woke every caller, and
# each caller read its run, the work would grow with the square of the number of runs.


TURNS_APART = 0.05
"""Seconds between two callers that are woken although no request of their runs has ended.

A halt or a budget may end their waiting. All callers of a process share these turns."""


class RunWatch(msgspec.Struct, eq=False, weakref=True):
    """What one caller has seen of its run. Belongs to the engine's loop once it is waited for.

    A caller keeps its watch between two waits, to see what is new.
    """

    run_id: str
    ended: int = -1
    """Stamp of the last requests that ended, as far as noticed."""
    changed: int = 0
    """Version of the engine at which that was noticed."""
    seen: int = 0
    """Version of the engine before the caller last read its run."""
    future: Future[int] | None = None


class RunWatches:
    """The watches of an engine. Belongs to the engine's loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._watches: WeakSet[RunWatch] = WeakSet()
        self.version: int = 0
        """Counter of the changes that the engine has seen."""
        self._stamp = -1
        self._turns: dict[RunWatch, None] = {}
        self._next_turn = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, watch: RunWatch, seen: int, future: Future[int]) -> None:
        """Set ``future`` once its run may have changed since version ``seen``."""
        is_new = watch not in self._watches
        self._watches.add(watch)
        watch.seen, watch.future = seen, future
        if watch.changed > seen or (is_new and self.version > seen):
            self._wake(watch)
        elif self.version > seen:
            self._turns[watch] = None
            self._give_turns()

    def look(self) -> None:
        """Wake the callers whose runs have changed, and plan the others. Raises `LedgerError`."""
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

    def wake_all(self) -> None:
        """Wake every caller, because the engine has failed or ends."""
        for watch in list(self._watches):
            self._wake(watch)

    def _compare(self, watches: list[RunWatch], endings: dict[str, int]) -> None:
        for watch in watches:
            ended = endings.get(watch.run_id, 0)
            if ended != watch.ended:
                watch.ended, watch.changed = ended, self.version

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
        return future is not None and _settle(future, self.version)


def _settle(future: Future[int], version: int) -> bool:
    """Set the result of a future; return False if its caller has cancelled it."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(version)
        return True
    return False


# All engines of the process -----------------------------------------------------------------------


def shutdown_all() -> None:
    """Close every engine of this process and end their threads; open work stays in the ledgers."""
    with _engines_lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.workbench.is_closing = True  # a tool of one may ask another, which ends first
    for engine in engines:
        engine._encoders.close(LAST_SECONDS)  # pyright: ignore[reportPrivateUsage]
        engine._readers.close(LAST_SECONDS)  # pyright: ignore[reportPrivateUsage]
        engine._end()  # pyright: ignore[reportPrivateUsage]


def _rest() -> list[Callable[[], object]]:
    # The child gets SQLite's locks as they are. It would wait for ever for one that the parent's
    # engine thread holds.
    loops = [engine._loop for engine in list(_engines.values())]  # pyright: ignore[reportPrivateUsage]
    return [loop.rest() for loop in loops]


def _after_fork() -> None:
    # The parent's engine thread does not exist in the child, which must not use its connections.
    global _engines_lock
    _engines_lock = threading.RLock()
    _engines.clear()
    _starting.clear()


atexit.register(shutdown_all)
hold_at_fork(_rest, _after_fork)
