"""Threads for the user's own blocking functions: few, shared by all event loops of the process.

No library's pool fits. asyncio's joins its threads when the process ends, so that a function which
never returns would keep it alive; anyio's belong to one event loop; and both count the time in the
queue as time of the function.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

__all__ = ["POOL", "Job", "WorkerPool"]

_T = TypeVar("_T")
_R = TypeVar("_R")

WORKERS = 32
"""Threads that work at once. One whose function overruns its time is not counted."""

IDLE_SECONDS = 10.0
"""How long a thread waits for more work before it ends."""

STUCK_SECONDS = 60.0
"""Seconds after which a function without a time-out no longer counts as working."""

_inside: ContextVar[bool] = ContextVar("claude_batch_inside_a_worker", default=False)


class Job(Generic[_T, _R]):
    """Items that one thread hands to a function, one after the other."""

    def __init__(
        self, work: Callable[[_T], _R], items: Sequence[_T], seconds: float | None
    ) -> None:
        """``seconds`` is the time-out of each item, from the moment at which it is begun."""
        self._work = work
        self._items = items
        self.seconds = seconds
        self.results: list[_R] = []
        self.future: Future[None] = Future()
        # Whoever gives up waiting must not cancel it: `abandon` does that.
        self.future.set_running_or_notify_cancel()
        self.nested: bool = _inside.get()
        self._context = copy_context()
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._abandoned = False

    def run(self) -> None:
        """Work through the items, as far as nobody abandons the job."""
        try:
            self._context.run(_inside.set, True)
            for item in self._items:
                with self._lock:
                    if self._abandoned:
                        return
                    self._begun = time.monotonic()
                result = self._context.run(self._work, item)
                with self._lock:
                    if self._abandoned:
                        return
                    self._begun = None
                    self.results.append(result)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(None)

    def patience(self) -> float:
        """Seconds until it is worth looking whether the present item has overrun its time."""
        whole = STUCK_SECONDS if self.seconds is None else self.seconds
        begun = self._begun
        return whole if begun is None else max(0.0, begun + whole - time.monotonic())

    @property
    def is_stuck(self) -> bool:
        """Whether its thread is not to be counted on any more."""
        return self._begun is not None and not self.patience()

    def give_up(self) -> bool:
        """Abandon the job if the present item has overrun its time-out; its results then end."""
        with self._lock:
            if self.seconds is None or self._begun is None or self.patience():
                return False
            self._abandoned = True
            return True

    def abandon(self) -> None:
        """Nobody waits any more: the present item ends by itself, no other is begun."""
        with self._lock:
            self._abandoned = True


class WorkerPool:
    """Daemon threads that are started when there is work. Thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a fork: the threads and what they do stay with the parent."""
        self._ready = threading.Condition()
        self._queue: deque[Job[Any, Any]] = deque()
        self._at_work: dict[threading.Thread, Job[Any, Any] | None] = {}
        self._idle = 0

    def submit(self, job: Job[Any, Any]) -> None:
        """Have a thread do a job, in the order in which they come."""
        if job.nested:
            # A thread of the pool waits for it: waiting for that pool too might never end.
            threading.Thread(target=job.run, name="claude-batch-middleware", daemon=True).start()
            return
        with self._ready:
            self._queue.append(job)
            self._staff()
            self._ready.notify()

    def relieve(self) -> None:
        """Start threads in the place of those that are stuck, where there is work for them."""
        with self._ready:
            self._staff()

    def _staff(self) -> None:
        if len(self._queue) <= self._idle:
            return
        counted = sum(job is None or not job.is_stuck for job in self._at_work.values())
        for _ in range(min(len(self._queue) - self._idle, WORKERS - counted)):
            thread = threading.Thread(
                target=self._work, name="claude-batch-middleware", daemon=True
            )
            self._at_work[thread] = None
            try:
                thread.start()
            except RuntimeError:
                del self._at_work[thread]
                raise

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._next(me)) is not None:
            job.run()
            with self._ready:
                self._at_work[me] = None

    def _next(self, me: threading.Thread) -> Job[Any, Any] | None:
        """The next job; None where the thread shall end."""
        with self._ready:
            # One that was stuck and has come back may have been replaced meanwhile.
            while len(self._at_work) <= WORKERS:
                if self._queue:
                    job = self._at_work[me] = self._queue.popleft()
                    return job
                self._idle += 1
                woken = self._ready.wait(IDLE_SECONDS)
                self._idle -= 1
                if not woken and not self._queue:
                    break
            del self._at_work[me]
            return None


POOL: WorkerPool = WorkerPool()
"""The pool of this process."""

os.register_at_fork(after_in_child=POOL.forget)
