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
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from claude_batch.core.errors import (
    ActorConfigurationError,
    ActorError,
    BudgetScope,
    EngineStoppedError,
    LedgerError,
    first_cause,
)
from claude_batch.core.settings import LedgerSettings, without_password
from claude_batch.core.user_functions import UserFunctions
from claude_batch.ledger import cancellations, queries, workspaces
from claude_batch.ledger.single_calls import StoredCall
from claude_batch.ledger.store import Ledger, Watch
from claude_batch.lifecycle.budget_room import (
    Held,
    bound_of,
    count_under_way,
    declare_limits,
    held_error,
    held_of,
    price_by,
    tokens_of_files,
)
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.doors import (
    Door,
    halted_error,
    open_client,
    timed_out_error,
)
from claude_batch.lifecycle.driver import Driver, SendingHold
from claude_batch.lifecycle.leader_lock import sweep
from claude_batch.lifecycle.notices import Noticing, RunWatch, RunWatches
from claude_batch.lifecycle.observers import Observers
from claude_batch.lifecycle.pending_call import Call, CallOptions, without_repeated
from claude_batch.lifecycle.threads import DaemonThreads, EventLoopThread, in_a_thread
from claude_batch.lifecycle.tool_runner import Talk, ToolFinder, Workbench
from claude_batch.lifecycle.waiters import CallFuture, Receipts, Waiter, Waiting
from claude_batch.money import prices_of
from claude_batch.wire.encoding import EncodedRequest

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

WATCH_INTERVAL = 0.1
"""Seconds between two checks whether another process has written to the ledger."""

BUSY_WATCH_INTERVAL = 0.5
"""Seconds between two checks while this process itself writes.

Its own writes hide the writes of other processes from the check."""

NOTES_AFTER = 0.5
"""Seconds until delivered answers are marked as taken, so that one flush to disk covers many."""

STOP_SECONDS = 90.0
"""Seconds that closing waits for live calls in progress.

An abandoned call is lost: it may have been billed, and a second call would be billed again. Nearly
all answers arrive within this time."""

READERS = 4
"""Most threads that use the ledger for callers at the same time."""

LAST_SECONDS = 10.0
"""Seconds that closing then waits for the last transactions.

The end of the process first waits as long for the readers, which may be writing a file."""

_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()


def closed_words(location: str) -> str:
    """Describe that the provider of a ledger is closed, and how to open another one."""
    return (
        f"the provider is closed; create a new one with cb.ClaudeBatchProvider(ledger={location!r})"
    )


def _not_stored(error: Exception) -> ActorError:
    if isinstance(error, LedgerError):
        return error
    _log.error("calls could not be stored", exc_info=error)
    return EngineStoppedError(f"the request could not be stored: {error}")


class Engine:
    """The driver of one ledger, created by `Engine.acquire` and returned by `release`."""

    def __init__(self, ledger: Ledger, settings: LedgerSettings, finder: ToolFinder | None) -> None:
        self.ledger = ledger
        self.settings = settings
        self._users = 0
        self._doors: dict[tuple[str, str], Door] = {}
        self._inbox: deque[Call] = deque()
        self._flush_planned = False
        self._reading = asyncio.Lock()  # one at a time, because reading takes processor time
        self._read_tasks: set[asyncio.Task[None]] = set()
        self._gone_callers: deque[Waiter] = deque()
        self._farewell_planned = False
        self._lock = ledger.process_lock(settings)
        self.workbench: Workbench = Workbench(finder, self._lock.process)
        self._receipts = Receipts(lambda: self._loop.soon(self._leave))
        self._calls = CallStore(
            ledger, self._lock.process, self._receipts, prices_of(settings.prices)
        )
        self._notes_planned = False
        self._subscribers: list[tuple[int, Future[int]]] = []
        self._run_watches = RunWatches(ledger)
        self._version = 0
        self._failure: ActorError | None = None
        self._waiting = Waiting(
            ledger,
            self._receipts,
            self._calls.let_go,
            self._calls.left,
            self._calls.dropped,
            self._time_out,
        )
        self.observers: Observers = Observers(ledger.location)
        self.noticing: Noticing = Noticing(
            ledger,
            self.observers,
            lambda: self._doors.values(),
            self._waiting.runs,
            self._end_held,
        )
        self._watch_for_others = ledger.watch()
        self._readers = DaemonThreads(
            READERS, "claude-batch-read", closed=closed_words(ledger.location)
        )
        self._watching: asyncio.Task[None] | None = None
        self._hold = SendingHold()
        self.functions: UserFunctions = UserFunctions()
        """The functions of the user that this process asks; providers may add to them."""
        self._loop = EventLoopThread("claude-batch-engine")
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
        runs with other ledger settings.
        """
        name = location if "://" in location else str(Path(location).expanduser().resolve())
        with _engines_lock:
            engine = _engines.get(name)
            if engine is not None and not engine._loop.closed:
                if engine.settings != settings:
                    theirs, ours = asdict(engine.settings), asdict(settings)
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
                ledger = Ledger(location)
                declare_limits(ledger, settings)
                engine = _engines[name] = cls(ledger, settings, finder)
            engine._users += 1
            return engine

    def release(self) -> None:
        """Remove one user; the last one ends the thread and leaves open work in the ledger."""
        with _engines_lock:
            self._users -= 1
            if self._users > 0:
                return
            for name, engine in list(_engines.items()):
                if engine is self:
                    del _engines[name]
        self._end()

    def _end(self) -> None:
        self.workbench.is_closing = True  # before a tool's call can be refused
        self._readers.close()
        self._loop.close(self._finish, STOP_SECONDS + LAST_SECONDS)
        self.observers.close()

    def open_door(self, base_url: str | None, api_key: str | None, *, drive: bool = True) -> Door:
        """Return the door (client and driver) for this base URL and credential.

        Callers with the same pair share one door. ``drive=False`` only registers it: nothing is
        sent or polled until `advance`.
        """
        return self._loop.run(self._open_door(base_url, api_key, drive)).result()

    async def _open_door(self, base_url: str | None, api_key: str | None, drive: bool) -> Door:
        client = await open_client(base_url, api_key, write_timeout=self.settings.arm_window)
        name = (client.base_url, self.ledger.fingerprint(client.credential))
        door = self._doors.get(name)
        if door is None:
            driver = Driver(
                self.ledger,
                client,
                self.settings,
                self._notify,
                self.workbench,
                self.observers,
                self.functions,
                self._hold,
            )
            driver.reporter.follow = self.noticing.follow
            door = self._doors[name] = Door(client, driver)
            driver.loops_have_ended = functools.partial(self._fail_closed, door)
        else:
            await client.close()
        door.users += 1
        if drive and door.task is None:
            # A new process or a new key is a reason to probe a halted workspace again.
            with self.ledger.write() as tx:
                workspaces.ask_probe(tx, door.workspace_id)
            # Before a caller asks what holds its run: it may be a price that was not known then.
            price_by(self.ledger, None, prices_of(self.settings.prices))
            door.task = asyncio.create_task(self._guard(door.driver.run()))
        return door

    @contextlib.contextmanager
    def sending_held(self) -> Generator[None]:
        """Send nothing from this process inside the block; poll and collect."""
        self._hold.change(+1)
        try:
            yield
        finally:
            self._hold.change(-1)
            self._loop.soon(self._wake_drivers)

    def _wake_drivers(self) -> None:
        for door in self._doors.values():
            door.driver.wake()

    def close_door(self, door: Door) -> None:
        """Remove one user of a door; its driver runs until the engine ends."""
        door.users -= 1

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a driver's loop, and fail all callers if it raises an unexpected error."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            cause = first_cause(error)
            if not isinstance(cause, LedgerError):
                _log.error("the engine stopped", exc_info=cause)
                cause = EngineStoppedError(
                    f"the engine stopped: {type(cause).__name__}: {cause}. Everything stored is "
                    f"in the ledger {self.ledger.location}; fix the cause, then run "
                    "`claude-batch resume`"
                )
            self._fail(cause)
            self._notify()

    def _fail(self, failure: ActorError) -> None:
        """Stop the engine: fail all waiting callers now and all later callers at once."""
        self._failure = self._failure or failure
        self._waiting.fail(self._waiting.all(), lambda _: failure)

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch(self._watch_for_others))

    def _fail_closed(self, door: Door | None = None) -> None:
        """Fail the callers of a door, or all, because the provider is closed."""
        stopped = EngineStoppedError(
            "the provider was closed while the call waited; its request stays in the ledger"
        )
        waiters = self._waiting.all() if door is None else self._waiting.of(door)
        self._waiting.fail(waiters, lambda _: stopped)

    async def _finish(self) -> None:
        for door in self._doors.values():
            door.driver.stop()
        if self._watching is not None:
            self._watching.cancel()
        tasks = [door.task for door in self._doors.values() if door.task is not None]
        await self._let_end(tasks)
        await self._loop.end_the_rest()
        self._see_off()
        self._fail_closed()
        self._notify()
        for door in self._doors.values():
            await door.client.close()
        self._note()
        self.noticing.look_once_more()
        self._watch_for_others.close()
        self._lock.release()
        self.ledger.close()

    async def _let_end(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Wait for drivers that stop; live calls may take this long, and a POST a shorter time.

        Everything else ends at once.
        """
        end = time.monotonic() + STOP_SECONDS
        while tasks and (left := end - time.monotonic()) > 0:
            # Without a sign of its loop, this process would give its seats up, and the next driver
            # would take the calls for lost.
            self._lock.tick()
            _, tasks = await asyncio.wait(tasks, timeout=min(WATCH_INTERVAL, left))

    # Changes ---------------------------------------------------------------------------------

    async def _watch(self, watch: Watch) -> None:
        changed, looked, commits = False, 0.0, 0
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self._lock.tick()
            ours, commits = self.ledger.commits != commits, self.ledger.commits
            try:
                changed = watch.changed() or changed
            except LedgerError as error:
                changed = True
                if self.ledger.outlasts(error):
                    continue  # the driver says so, and callers can wait
                self._fail(error)
                self._notify()
                return
            if changed and not (ours and time.monotonic() - looked < BUSY_WATCH_INTERVAL):
                changed, looked = False, time.monotonic()
                self._notify()
                for door in self._doors.values():
                    door.driver.wake()

    def _notify(self) -> None:
        self._version += 1
        self._notify_callers()
        self._plan_notes()
        self.noticing.plan()
        if self._failure is not None or self._loop.closed:
            self._run_watches.wake_all(self._version)
        if self._subscribers:
            ready = [f for seen, f in self._subscribers if seen < self._version]
            self._subscribers.clear()
            for future in ready:
                _settle(future, self._version)

    def _notify_callers(self) -> None:
        if self._failure is not None:
            return
        try:
            self._waiting.deliver()
            self._fail_halted()
            self._run_watches.look(self._version)
        except LedgerError as error:
            if not self.ledger.outlasts(error):
                self._fail(error)

    def _fail_halted(self) -> None:
        for door in self._doors.values() if self._waiting else ():
            with self.ledger.read() as tx:
                row = workspaces.workspace_row(tx, door.workspace_id)
            if workspaces.halt_stands(row, self.ledger.now()):
                self._waiting.fail(self._waiting.of(door), lambda _, row=row: halted_error(row))

    def _end_held(self, run_id: str, held: Held) -> None:
        # First the answers that have come since that was seen: then nothing of the run is sent.
        self._waiting.deliver()
        waiters = [waiter for waiter in self._waiting.all() if waiter.run_id == run_id]
        self._waiting.fail(waiters, lambda waiter: held_error(waiter.run_id, held))

    @property
    def version(self) -> int:
        """Counter of the changes that the engine has seen; it only increases."""
        return self._version

    def change_after(self, version: int) -> Future[int]:
        """Return a future that completes when the version is higher than the given one."""
        future: Future[int] = Future()

        def subscribe() -> None:
            if self._version > version or self._failure is not None or self._loop.closed:
                _settle(future, self._version)
            else:
                self._subscribers.append((version, future))

        if not self._loop.soon(subscribe):
            future.set_result(self._version)
        return future

    def run_change_after(self, watch: RunWatch, version: int) -> Future[int]:
        """Return a future that completes when the watched run may have changed.

        It completes at once after the end of some of its requests, and at times after other changes
        of the ledger. ``version`` is that of the engine before the caller read its run.
        """
        future: Future[int] = Future()

        def subscribe() -> None:
            if self._failure is not None or self._loop.closed:
                _settle(future, self._version)
            else:
                self._run_watches.wait(watch, version, future, self._version)

        if not self._loop.soon(subscribe):
            future.set_result(self._version)
        return future

    def check(self) -> None:
        """Raise the error that stopped the engine, if there is one."""
        if self._failure is not None:
            raise self._failure

    def read(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function that reads the ledger on one of the engine's reader threads.

        Raises `EngineStoppedError` if the engine is closed.
        """
        return self._readers.submit(work)

    def look(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function that only reads the ledger there; see `Ledger.patiently`."""
        return self._readers.submit(lambda: self.ledger.patiently(work))

    def do(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine that uses a door's client on the engine's event loop."""
        return self._loop.run(work)

    def wake(self) -> None:
        """Check for work now, because a run was stored, cancelled or resumed."""

        def wake() -> None:
            for door in self._doors.values():
                door.driver.wake()
            self._notify()

        self._loop.soon(wake)

    def advance(self, door: Door) -> Future[bool]:
        """Make one pass over all due work; the result is False if another process drives."""
        return self._loop.run(door.driver.advance())

    # Single calls ----------------------------------------------------------------------------

    def call(
        self,
        door: Door,
        encoded: EncodedRequest,
        future: CallFuture,
        options: CallOptions,
        trace: str | None = None,
    ) -> None:
        """Store a single request, and set ``future`` to its answer. Never blocks.

        If the caller cancels the future, a request that is not sent yet is withdrawn, unless it has
        a key or its ``keep`` is set. ``trace`` is the caller's ``traceparent``, if there is one.
        """
        self._queue(Call(door, encoded, options, self.ledger.now(), future, trace))

    def _queue(self, call: Call) -> None:
        with self._loop.gate:
            if not self._loop.closed:
                self._inbox.append(call)
                if not self._flush_planned:
                    # Set first: from the next line on, the flush may run and reset the flag.
                    self._flush_planned = True
                    self._loop.soon(self._flush)
                return
        call.future.settle(EngineStoppedError(closed_words(self.ledger.location)))

    async def _read_documents(self, call: Call) -> None:
        """Bound a call with documents for its budget, on a thread."""
        async with self._reading:
            if call.options.stays or not call.future.is_withdrawn:
                files = tokens_of_files(self.ledger)
                call.bound = await in_a_thread(bound_of, call.encoded.params, files)

    async def _count_for(self, calls: Sequence[Call]) -> None:
        """Count what was sent before the budgets that these calls bring, on a thread."""
        of: list[tuple[BudgetScope, str]] = [("actor", call.options.actor) for call in calls]
        prices, now = prices_of(self.settings.prices), self.ledger.now()
        await in_a_thread(count_under_way, self.ledger, None, prices, list(set(of)), now)
        for call in calls:
            call.countings += 1

    def _queue_after(self, work: Coroutine[Any, Any, None], calls: Sequence[Call]) -> None:
        """Queue calls again once a coroutine has ended; end them if it fails."""

        async def queue() -> None:
            try:
                await work
            except asyncio.CancelledError:
                for call in calls:
                    call.future.settle(EngineStoppedError(closed_words(self.ledger.location)))
                raise
            except Exception as error:
                for call in calls:
                    call.future.settle(_not_stored(error))
                return
            for call in calls:
                self._queue(call)

        task = asyncio.get_running_loop().create_task(queue())
        self._read_tasks.add(task)
        task.add_done_callback(self._read_tasks.discard)

    def acknowledge(self, seq: int, *, taken: bool, failed: bool = False) -> None:
        """Record whether an answer reached its caller; if it did not, it becomes an orphan.

        ``failed``: it is a failure that equal calls get again.
        """
        self._loop.soon(self._acknowledge, seq, taken, failed)

    def _acknowledge(self, seq: int, taken: bool, failed: bool) -> None:
        if taken:
            self._calls.taken(seq, failed)
        else:
            self._calls.let_go(seq)
        self._plan_notes()

    def watch(self, call: StoredCall, mode: BatchProcessingMode, future: CallFuture) -> None:
        """Set ``future`` to the answer of a stored call, beside the callers that wait for it."""
        self._loop.soon(self._add_watcher, call, mode, future)

    def _add_watcher(self, call: StoredCall, mode: BatchProcessingMode, future: CallFuture) -> None:
        # The request stays, and its answer untaken, whatever this watcher does.
        waiter = Waiter(future, call.seq, call.run_id, None, mode, keeps=True, acknowledges=True)
        self._waiting.add(waiter, seconds=mode.max_wait)
        future.stored(call.seq)
        future.on_leave(self._gone, waiter)
        # It may have ended meanwhile.
        self._waiting.deliver()

    def cancel_call(self, seq: int) -> Future[None]:
        """Cancel a call even if it is sent; its callers get that outcome. Raises `LedgerError`."""

        async def cancel() -> None:
            with self.ledger.write() as tx:
                cancellations.cancel_request(tx, seq, self.ledger.now())
            self.wake()
            self._notify_callers()

        return self._loop.run(cancel())

    def calls_run(
        self, door: Door, actor: str, mode: BatchProcessingMode, talk: Talk | None
    ) -> Future[str]:
        """Return the id of the run that holds such calls and stores their documents."""

        async def find() -> str:
            return self._calls.run_of(door, actor, mode, talk)

        return self._loop.run(find())

    def _flush(self) -> None:
        # All calls that arrived since the last flush share one transaction and one fsync.
        self._flush_planned = False
        # First, so that a new call can take over a request that was let go before it.
        self._see_off()
        calls: list[Call] = []
        while self._inbox:
            call = self._inbox.popleft()
            if call.options.stays or not call.future.is_withdrawn:
                calls.append(call)
        if not calls:
            self._note_farewells()
            return
        if self._failure is not None:
            for call in calls:
                call.future.settle(self._failure)
            return
        try:
            calls = without_repeated(calls)
            added = self._calls.store(calls)
        except Exception as error:
            failure = _not_stored(error)
            for call in calls:
                call.future.settle(failure)
            return
        for call in self._calls.unread:
            self._queue_after(self._read_documents(call), [call])
        if uncounted := self._calls.uncounted:
            self._queue_after(self._count_for(uncounted), uncounted)
        self._calls.report(self.observers)
        self.noticing.follow(self._calls.bounded)
        self._waiting.expect([c.encoded.params for c, _ in added if c.options.mode.mode == "batch"])
        gone = self._gone  # one object for all of them
        for call, waiter in added:
            if (talk := call.options.talk) is not None:
                self.workbench.give(waiter.run_id, talk.tools, talk.judge)
            self._waiting.add(waiter, seconds=call.begun + waiter.mode.max_wait - self.ledger.now())
            call.future.stored(waiter.seq)
            call.future.on_leave(gone, waiter)
        for door in self._doors.values():
            door.driver.wake()
        self._notify_callers()
        self.noticing.plan()  # a budget may hold them from the start

    def _gone(self, waiter: Waiter) -> None:
        """Queue a caller that has left for removal. Runs on the thread that ended the wait."""
        self._gone_callers.append(waiter)
        with self._loop.gate:
            if not self._farewell_planned:
                # Set first, as for the flush. Thousands of callers that leave together share one
                # callback.
                self._farewell_planned = True
                self._loop.soon(self._leave)

    def _leave(self) -> None:
        self._farewell_planned = False
        self._see_off()
        self._note_farewells()

    def _see_off(self) -> None:
        """Remove the callers that have left from the waiters, and note what the others got."""
        while self._gone_callers:
            self._waiting.leave(self._gone_callers.popleft())
        for seq, taken, repeats in self._receipts.drain():
            if taken:
                self._calls.taken(seq, repeats)
            else:
                self._calls.let_go(seq)

    def _note_farewells(self) -> None:
        if self._calls.has_left:
            # At once, because a driver may be about to pack these requests.
            self._note()
        else:
            self._plan_notes()

    def _plan_notes(self) -> None:
        """Schedule one write that marks many answers as taken and many calls as let go."""
        if self._calls.has_notes and not self._notes_planned:
            self._notes_planned = True
            asyncio.get_running_loop().call_later(NOTES_AFTER, self._note)

    def _note(self) -> None:
        self._notes_planned = False
        if self._calls.has_notes:
            withdrawing = self._calls.has_left
            try:
                self._calls.note()
                if withdrawing:
                    # The withdrawn calls may have freed room in a budget for held requests.
                    for door in self._doors.values():
                        door.driver.wake()
            except LedgerError as error:
                # Not fatal: an answer that is not marked as taken costs nothing when it is
                # requested again.
                _log.warning("delivered answers could not be recorded: %s", error)

    @property
    def failure(self) -> ActorError | None:
        """The error that has stopped the engine for good, or None."""
        return self._failure

    @property
    def process(self) -> str:
        """Id of this process in the ledger."""
        return self._lock.process

    def _time_out(self, waiter: Waiter) -> None:
        try:
            self._give_up(waiter, waiter.mode)
        except LedgerError as error:
            failure = error
            self._waiting.fail([waiter], lambda _: failure)

    def _give_up(self, waiter: Waiter, mode: BatchProcessingMode) -> None:
        if mode.on_timeout == "cancel":
            with self.ledger.write() as tx:
                cancellations.cancel_request(tx, waiter.seq, self.ledger.now())
            self.wake()
        with self.ledger.read() as tx:
            batch_id = queries.batch_of(tx, waiter.seq)
            held = None if batch_id else held_of(tx, waiter.run_id, self.ledger.now())
        words = "" if held is None else held.describe(waiter.run_id)
        self._waiting.fail([waiter], lambda w: timed_out_error(w.run_id, batch_id, mode, words))

    def resume(self) -> None:
        """Probe every halted workspace that this process has a key for, and continue."""
        for door in list(self._doors.values()):
            with self.ledger.write() as tx:
                workspaces.accept_unexplained(tx, door.workspace_id)
                workspaces.ask_probe(tx, door.workspace_id)
        self.wake()


def _settle(future: Future[int], version: int) -> None:
    with suppress(InvalidStateError):  # its caller has cancelled it
        future.set_result(version)


def shutdown_all() -> None:
    """Close every engine of this process and end their threads; open work stays in the ledgers."""
    with _engines_lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.workbench.is_closing = True  # a tool of one may ask another, which ends first
    for engine in engines:
        engine._readers.close(LAST_SECONDS)  # pyright: ignore[reportPrivateUsage]
        engine._end()  # pyright: ignore[reportPrivateUsage]


def _before_fork() -> None:
    # The child gets SQLite's locks as they are. It would wait for ever for one that the parent's
    # engine thread holds.
    loops = [engine._loop for engine in list(_engines.values())]  # pyright: ignore[reportPrivateUsage]
    _resting.loops = [loop.rest() for loop in loops]


def _after_fork_in_parent() -> None:
    for go_on in _resting.loops:
        go_on()


def _after_fork() -> None:
    # The parent's engine thread does not exist in the child, which must not use its connections.
    global _engines_lock
    _engines_lock = threading.Lock()
    _engines.clear()


atexit.register(shutdown_all)
_resting = threading.local()
"""The engines' loops that rest while this thread forks."""
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
)
