"""Threads that run functions for callers, as those that read a ledger.

`concurrent.futures.ThreadPoolExecutor` refuses work as soon as the main thread has ended, although
other threads of the program may still ask. These threads are daemons, and take work until they are
closed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from claude_batch.core.errors import EngineStoppedError

_T = TypeVar("_T")


class DaemonThreads:
    """Runs functions in the order in which they are submitted. Thread-safe."""

    def __init__(self, most: int, name: str, *, closed: str = "the threads have ended") -> None:
        """Start at most ``most`` threads, when needed.

        ``closed`` is the message for work that comes after `close`.
        """
        self._most = most
        self._name = name
        self._words = closed
        self._ready = threading.Condition()
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        """Run a function on a thread. Raises `EngineStoppedError` after `close`."""
        future: Future[_T] = Future()
        with self._ready:
            if self._closed:
                raise EngineStoppedError(self._words)
            self._queue.append((future, work))
            if len(self._queue) > self._idle and self._threads < self._most:
                self._start()
            if self._threads:
                self._ready.notify()
                return future
            self._queue.pop()
        _run(future, work)
        return future

    def _start(self) -> None:
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
