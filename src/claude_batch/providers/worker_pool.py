"""Threads for the user's blocking functions: few, shared by all event loops of the process.

No library's pool fits. asyncio joins its threads when the process ends, so a function that never
returns would keep the process alive. anyio's threads belong to one event loop. Both count the time
in the queue as time of the function.
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

_T = TypeVar("_T")
_R = TypeVar("_R")

WORKERS = 32
"""Maximum threads that work at once. One whose function exceeds its timeout is not counted."""

IDLE_SECONDS = 10.0
"""Seconds that an idle thread waits for more work before it ends."""

STUCK_SECONDS = 60.0
"""Seconds after which a function without a timeout no longer counts as working."""

_inside: ContextVar[bool] = ContextVar("claude_batch_inside_a_worker", default=False)


class Job(Generic[_T, _R]):
    """Items that one thread passes to a function, one after the other."""

    def __init__(
        self, work: Callable[[_T], _R], items: Sequence[_T], seconds: float | None
    ) -> None:
        """``seconds`` is the timeout of each item, from the moment the item starts."""
        self._work = work
        self._items = items
        self.seconds = seconds
        self.results: list[_R] = []
        self.future: Future[None] = Future()
        # A caller that stops waiting must not cancel the future; `abandon` does that.
        self.future.set_running_or_notify_cancel()
        self.nested: bool = _inside.get()
        self._context = copy_context()
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._abandoned = False

    def run(self) -> None:
        """Process the items until the job is abandoned."""
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
        """Return the seconds until the current item may have exceeded its timeout."""
        whole = STUCK_SECONDS if self.seconds is None else self.seconds
        begun = self._begun
        return whole if begun is None else max(0.0, begun + whole - time.monotonic())

    @property
    def is_stuck(self) -> bool:
        """Return whether the job's thread no longer counts as working."""
        return self._begun is not None and not self.patience()

    def give_up(self) -> bool:
        """Abandon the job if the current item has exceeded its timeout; its results end there."""
        with self._lock:
            if self.seconds is None or self._begun is None or self.patience():
                return False
            self._abandoned = True
            return True

    def abandon(self) -> None:
        """Stop the job because nobody waits: the current item finishes, and no other starts."""
        with self._lock:
            self._abandoned = True


class WorkerPool:
    """Daemon threads that are started when there is work. Thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset after a fork: the threads and their jobs stay with the parent process."""
        self._ready = threading.Condition()
        self._queue: deque[Job[Any, Any]] = deque()
        self._at_work: dict[threading.Thread, Job[Any, Any] | None] = {}
        self._idle = 0

    def submit(self, job: Job[Any, Any]) -> None:
        """Run a job on a thread; jobs start in the order in which they are submitted."""
        if job.nested:
            # A pool thread waits for this job; queueing it in the same pool could deadlock.
            threading.Thread(target=job.run, name="claude-batch-middleware", daemon=True).start()
            return
        with self._ready:
            self._queue.append(job)
            self._staff()
            self._ready.notify()

    def relieve(self) -> None:
        """Start threads to replace those that are stuck, if there is work for them."""
        with self._ready:
            self._staff()

    def _staff(self) -> None:
        if len(self._queue) <= self._idle:
            return
        for _ in range(min(len(self._queue) - self._idle, WORKERS - self._working())):
            thread = threading.Thread(
                target=self._work, name="claude-batch-middleware", daemon=True
            )
            self._at_work[thread] = None
            try:
                thread.start()
            except RuntimeError:
                del self._at_work[thread]
                raise

    def _working(self) -> int:
        """Return the number of threads whose function has not exceeded its timeout."""
        return sum(job is None or not job.is_stuck for job in self._at_work.values())

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._next(me)) is not None:
            job.run()
            with self._ready:
                self._at_work[me] = None

    def _next(self, me: threading.Thread) -> Job[Any, Any] | None:
        """Return the next job, or None if the thread should end."""
        with self._ready:
            # A thread that was stuck and has returned may have been replaced meanwhile.
            while self._working() <= WORKERS:
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
