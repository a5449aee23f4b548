"""Event loops in threads of their own, whose end leaves no caller waiting; workers and locks.

docs/explanation/decisions/0012-event-loop-threads.md explains why no library class is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from claude_batch.core.errors import ActorConfigurationError, EngineStoppedError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_P = ParamSpec("_P")

# Locks --------------------------------------------------------------------------------------------

_locked: WeakKeyDictionary[object, str] = WeakKeyDictionary()


def fork_safe_lock(owner: object, name: str) -> threading.RLock:
    """Return a lock for the attribute ``name`` of an object, which a forked child replaces.

    If another thread of the parent held it, the child would wait for ever. A signal handler may
    enter it again.
    """
    _locked[owner] = name
    return threading.RLock()


def _renew_locks() -> None:
    for owner, name in list(_locked.items()):
        setattr(owner, name, threading.RLock())


os.register_at_fork(after_in_child=_renew_locks)


def hold_at_fork(
    hold: Callable[[], list[Callable[[], object]]], after_in_child: Callable[[], object]
) -> None:
    """Call ``hold`` before each fork of the process, and what it returns after it in the parent."""
    held = threading.local()

    def before() -> None:
        held.let_go = hold()

    def after_in_parent() -> None:
        for let_go in held.let_go:
            let_go()

    os.register_at_fork(
        before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
    )


# Event loops --------------------------------------------------------------------------------------


class LoopFuture(Future[_T]):
    """The result of a coroutine on another thread's loop, for one caller that may block for it."""

    def __init__(self, thread: EventLoopThread) -> None:
        super().__init__()
        self.thread: EventLoopThread = thread
        # An interrupt of `result` may leave the future's lock taken, which the loop would wait for.
        self.ends: SimpleQueue[None] = SimpleQueue()
        self.add_done_callback(lambda _: self.ends.put(None))

    def take(self, task: asyncio.Task[_T]) -> None:
        """Take over the outcome of a task that is done, unless the caller has cancelled this."""
        if task.cancelled():
            self.cancel()
        error = None if task.cancelled() else task.exception()
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)


REST_SECONDS = 5.0
"""Seconds that `EventLoopThread.rest` waits for a callback that is running."""


class EventLoopThread:
    """An event loop in its own daemon thread, which starts at once.

    One lock decides whether submitted work comes before the end or is refused. The thread is a
    daemon, so that a program that never closes its provider can end.
    """

    def __init__(self, name: str, *, closed: str = "the provider was closed meanwhile") -> None:
        """Start the thread; ``closed`` is the message for work that closing has cut off."""
        self.gate: threading.RLock = threading.RLock()  # a signal handler may enter it again
        self._closed = False
        self._ended = False
        self._words = closed
        self._futures: set[Future[Any]] = set()
        self._name = name
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._loop.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._ended:
                try:
                    self._loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    # Raised by a user's function in a task or callback. asyncio stops the loop at
                    # these two, but the loop serves all callers. The task itself has the exception.
                    _log.error("the thread %s goes on after an exit", self._name, exc_info=error)
        except Exception as error:
            _log.exception("the thread %s has failed", self._name)
            self._fail_the_rest(f"its event loop has failed: {type(error).__name__}: {error}")
        finally:
            self._ended = True
            self._loop.close()

    def _fail_the_rest(self, words: str) -> None:
        """End the work of a loop that can no longer run, so that no caller waits for it."""
        with self.gate:
            self._closed = self._ended = True
            left = list(self._futures)
        for future in left:
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(EngineStoppedError(words))

    @property
    def alive(self) -> bool:
        """Whether the loop runs; not after a fork, because threads stay with the parent process."""
        return self._process == os.getpid() and not self._ended

    @property
    def closed(self) -> bool:
        """Whether no more work is accepted."""
        return self._closed

    def rest(self) -> Callable[[], None]:
        """Stop the loop between two callbacks, from another thread; return what lets it go on."""
        is_resting, goes_on = threading.Event(), threading.Event()

        def stand() -> None:
            is_resting.set()
            goes_on.wait()

        if threading.current_thread() is not self._thread and self.soon(stand):
            is_resting.wait(REST_SECONDS)
        return goes_on.set

    def soon(self, work: Callable[..., object], *arguments: object) -> bool:
        """Schedule a function call on the loop, from any thread; return False if it is closed."""
        with self.gate:
            if not self._closed:
                self._loop.call_soon_threadsafe(work, *arguments)
            return not self._closed

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop's own thread."""
        return threading.current_thread() is self._thread

    def check_blocking(self) -> None:
        """Raise `ActorConfigurationError` on the loop's own thread, which must not wait for it."""
        if self.is_current:
            raise ActorConfigurationError(
                f"this code runs on an event loop of claude-batch ({self._name}). A synchronous "
                "method would block that loop, which its own answer needs. Await the asynchronous "
                "method here, such as `respond` instead of `respond_sync`"
            )

    def run(self, work: Coroutine[Any, Any, _T]) -> LoopFuture[_T]:
        """Start a coroutine from any thread; cancelling the future cancels the coroutine.

        Never waits for the loop. Raises `EngineStoppedError` if the loop is closed.
        """
        future: LoopFuture[_T] = LoopFuture(self)
        future.add_done_callback(self._futures.discard)
        try:
            with self.gate:
                if not self._closed:
                    self._futures.add(future)
                    self._loop.call_soon_threadsafe(self._begin, work, future)
                    return future
        except BaseException:  # of a signal handler; the loop may have the coroutine already
            future.cancel()
            raise
        work.close()
        raise EngineStoppedError("the provider is closed; create a new one")

    def _begin(self, work: Coroutine[Any, Any, _T], future: LoopFuture[_T]) -> None:
        if future.cancelled():
            work.close()
            return
        task = self._loop.create_task(self._ended_by_us(work, future))
        task.add_done_callback(future.take)

        def cancel(done: Future[_T]) -> None:
            if done.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel)

    async def _ended_by_us(self, work: Coroutine[Any, Any, _T], future: LoopFuture[_T]) -> _T:
        try:
            return await work
        except asyncio.CancelledError:
            if not self._closed or future.cancelled():
                raise
            # The caller was not cancelled, so it must not receive a `CancelledError`.
            raise EngineStoppedError(self._words) from None

    def close(
        self, last: Callable[[], Coroutine[Any, Any, None]], seconds: float | None = None
    ) -> None:
        """Refuse new work, run ``last``, and end; wait for the end, at most ``seconds``.

        ``last`` must await `end_the_rest`.
        """
        with self.gate:
            if self._closed:
                return
            # Set before the loop can end anything, because cancelled work reads the reason from it.
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def end_when_idle(self) -> None:
        """Refuse new work, and end once the tasks that the loop has now have ended by themselves.

        Does not wait for that, because one of them may block the loop for ever.
        """
        with self.gate:
            if not self._closed:
                self._closed = True
                asyncio.run_coroutine_threadsafe(self._end(self._let_the_rest_end), self._loop)

    async def _let_the_rest_end(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await last()
        except Exception:
            _log.exception("the thread %s did not end cleanly", self._name)
        finally:
            self._ended = True
            self._loop.stop()

    async def end_the_rest(self) -> None:
        """Cancel every other task of the loop, and wait for their end."""
        await asyncio.sleep(0)  # let new tasks begin, so that they receive the cancellation
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # let the futures of tasks that have just ended take their outcomes


class SharedEventLoop:
    """An event loop that the whole process shares; its thread starts with the first use."""

    def __init__(self, name: str) -> None:
        """Set up the loop; ``name`` is that of its thread."""
        self._name = name
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._thread: EventLoopThread | None = None

    def start(self) -> None:
        """Start the thread if there is none. Raises ``RuntimeError`` if none can start."""
        with self._lock:
            self._running()

    def _running(self) -> EventLoopThread:
        if self._thread is None or not self._thread.alive:
            self._thread = EventLoopThread(self._name)
        return self._thread

    def run(self, work: Coroutine[Any, Any, _T]) -> LoopFuture[_T]:
        """Start a coroutine from any thread; cancelling the future cancels the coroutine."""
        with self._lock:
            return self._running().run(work)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop."""
        return (thread := self._thread) is not None and thread.is_current

    def check_blocking(self) -> None:
        """Raise `ActorConfigurationError` if the caller runs on this loop, and would block it."""
        if (thread := self._thread) is not None:
            thread.check_blocking()

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine, and wait for its result; see `check_blocking` and `wait_for`."""
        try:
            self.check_blocking()
        except ActorConfigurationError:
            work.close()
            raise
        return wait_for(self.run(work))

    def abandon(self, thread: EventLoopThread) -> None:
        """Drop a blocked event loop; later work gets a new one.

        Its thread ends when it is blocked no more, and its tasks have ended.
        """
        with self._lock:
            if self._thread is thread:
                self._thread = None
        thread.end_when_idle()


def wait_for(future: LoopFuture[_T]) -> _T:
    """Return the future's result; an interrupt (Ctrl-C) during the wait cancels the future.

    Only one caller may wait.
    """
    try:
        future.ends.get()
        return future.result()
    except BaseException:
        future.cancel()  # no effect if it is done
        raise


async def sleep_or_wake(wake: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most ``seconds``."""
    await asyncio.sleep(0)  # other tasks run once even if the event is already set
    # Python 3.11's `wait_for` may swallow a cancellation that arrives together with the event. A
    # driver's loop would then continue although its sibling has ended.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()


async def in_a_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a function on an executor thread, or on the loop if the process is ending.

    No thread can start at the end of the process.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))
    except RuntimeError:
        return work(*args, **kwargs)
    return await running


async def in_own_thread(
    work: Callable[[], _T], *, name: str = "claude-batch-once", daemon: bool = False
) -> _T:
    """Run a function on a thread of its own; the end of the process waits for it unless ``daemon``.

    Not on the default executor's, because its threads may all wait for answers. A caller that is
    cancelled leaves the function running.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # from now on, cancelling it has no effect
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=daemon).start()
    except RuntimeError:  # no thread can start at the end of the process
        run()
    return await asyncio.wrap_future(future)


# Workers ------------------------------------------------------------------------------------------

# `ThreadPoolExecutor` refuses work as soon as the main thread has ended, although other threads of
# the program may still ask.


class DaemonThreads:
    """Runs functions in the order in which they are submitted, until it is closed. Thread-safe."""

    def __init__(
        self,
        most: int,
        name: str,
        *,
        closed: str = "the threads have ended",
        stuck: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start at most ``most`` threads, when needed; ``stuck`` returns how many do not count.

        ``closed`` is the message for work that comes after `close`.
        """
        self._most = most
        self._name = name
        self._words = closed
        self._stuck = stuck
        self._closed = False
        self.forget()

    def forget(self) -> None:
        """Reset after a fork: the threads and their work stay with the parent process."""
        self._ready = threading.Condition()
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function on a thread. Raises `EngineStoppedError` after `close`."""
        future: Future[_T] = Future()
        with self._ready:
            if self._closed:
                raise EngineStoppedError(self._words)
            self._queue.append((future, work))
            self._staff()
            if self._threads:
                self._ready.notify()
                return future
            self._queue.pop()
        _run(future, work)
        return future

    def relieve(self) -> None:
        """Start a thread to replace one that is stuck, if there is work for it."""
        with self._ready:
            self._staff()

    def _staff(self) -> None:
        if len(self._queue) <= self._idle or self._threads - self._stuck() >= self._most:
            return
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # no thread can start at the end of the process
            return
        self._threads += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            _run(*job)
            del job  # an idle thread keeps no result

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._ready:
            # A thread that was stuck may have been replaced meanwhile.
            if self._threads - self._stuck() <= self._most:
                self._idle += 1
                while not self._queue and not self._closed:
                    self._ready.wait()
                self._idle -= 1
                if self._queue:
                    return self._queue.popleft()
            self._threads -= 1
            self._ready.notify_all()  # `close` may wait for the last one
            return None

    def close(self, seconds: float = 0.0) -> None:
        """Refuse new work; wait for the work that was submitted, at most ``seconds``."""
        end = time.monotonic() + seconds
        with self._ready:
            self._closed = True
            self._ready.notify_all()
            while self._threads and (left := end - time.monotonic()) > 0:
                self._ready.wait(left)


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        del future  # it holds the error, whose traceback would hold it
    else:
        future.set_result(result)
