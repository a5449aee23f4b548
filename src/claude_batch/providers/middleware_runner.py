"""Call middleware: plain methods on threads, ``async def`` methods on the caller's event loop.

No library's thread pool fits. asyncio joins its threads when the process ends, so a function that
never returns would keep the process alive. anyio's threads belong to one event loop. Both count the
time in the queue as time of the function.

The code is written once, for callers with an event loop. Callers without one share a loop, in a
separate thread. Without middleware, nothing here runs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from claude_batch.actor.middleware import Middlewares, Passage, Step
from claude_batch.actor.request import ActorRequest, RequestLike
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import ActorError, InvalidRequestError
from claude_batch.core.user_functions import ends_the_caller
from claude_batch.lifecycle.threads import DaemonThreads, SharedEventLoop, in_own_thread

# Threads ------------------------------------------------------------------------------------------

_T = TypeVar("_T")

WORKERS = 32
"""Maximum threads that work at once. One whose function exceeds its timeout is not counted."""

STUCK_SECONDS = 60.0
"""Seconds after which a function without a timeout no longer counts as working."""

_THREAD = "claude-batch-middleware"

_inside: ContextVar[bool] = ContextVar("claude_batch_inside_a_worker", default=False)


class Job:
    """Items that one thread passes to a function, one after the other."""

    def __init__(
        self, work: Callable[[Any], Any], items: Sequence[Any], seconds: float | None
    ) -> None:
        """``seconds`` is the timeout of each item, from the moment the item starts."""
        self._work = work
        self._items = items
        self.seconds = seconds
        self.results: list[Any] = []
        self._context = copy_context()
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._abandoned = False

    def run(self) -> None:
        """Process the items until the job is abandoned."""
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


_running: set[Job] = set()
"""The jobs that the threads of the pool process now."""


def _run(job: Job) -> None:
    _running.add(job)
    try:
        job.run()
    finally:
        _running.discard(job)


def stuck_jobs() -> int:
    """Return how many jobs hold a thread that no longer counts as working."""
    return sum(job.is_stuck for job in list(_running))


POOL: DaemonThreads = DaemonThreads(WORKERS, _THREAD, stuck=stuck_jobs)
"""The threads of this process. Starting one takes longer than most functions."""

os.register_at_fork(after_in_child=POOL.forget)
os.register_at_fork(after_in_child=_running.clear)


# Middleware runner --------------------------------------------------------------------------------


Prepared: TypeAlias = ActorRequest | InvalidRequestError | ActorResult
"""A request to encode, its error, or the failed result of one at which middleware failed."""

Reader: TypeAlias = Callable[[ActorResult], ActorResult]
"""Parses the answer of a result."""

NOTHING_SENT = "nothing was sent for it"
LOST_WITH_IT = "the answer was billed and is lost, because no ledger stores a live answer"

REQUESTS_AT_ONCE = 64
"""Number of a run's requests that one thread receives together."""

RESULTS_AT_ONCE = 16
"""Number of a run's results that one thread receives together, before the first is yielded."""


def request_or_error(given: RequestLike) -> ActorRequest | InvalidRequestError:
    """Return a request as it is now, or its error, to be used after the caller has gone on."""
    try:
        return ActorRequest.of(given)
    except InvalidRequestError as error:
        return error


def failed_result(request: ActorRequest, error: ActorError, position: int = 0) -> ActorResult:
    """Return the result of a request that has failed."""
    return ActorResult(key=request.key, position=position, error=error, context=request.context)


class MiddlewareRunner(Middlewares):
    """Calls the middleware of one provider; false if there is none."""

    async def before_request(self, actor: str, request: ActorRequest) -> ActorRequest:
        """Return the request to encode. Raises `MiddlewareError`."""
        passage = Passage(actor, request.key, request, NOTHING_SENT)
        await self._pass(self.before, [passage], None)
        if passage.error is not None:
            raise passage.error
        return passage.value

    async def after_response(self, actor: str, result: ActorResult, kept: str) -> ActorResult:
        """Return a result as the middleware returns it. An error of it ends with ``kept``."""
        [passed] = await self._after_some(actor, [result], kept)
        return passed

    async def finish(self, actor: str, results: Sequence[ActorResult]) -> None:
        """Pass results to the user's function; nothing that happens in it changes them."""
        if self.post:
            passages = [Passage(actor, result.key, result, "") for result in results]
            await self._pass(self.post, passages, self.post_timeout)

    def finish_sync(self, actor: str, results: Sequence[ActorResult]) -> None:
        """Run `finish` synchronously, with or without a running event loop."""
        wait_on_a_loop(self.finish(actor, results))

    async def before_all(
        self, actor: str, requests: Sequence[ActorRequest | InvalidRequestError]
    ) -> list[Prepared]:
        """Apply the middleware to some requests of a run; return the outcomes in order."""
        prepared = [
            Passage(actor, each.key, each, NOTHING_SENT) if isinstance(each, ActorRequest) else each
            for each in requests
        ]
        passages = [each for each in prepared if isinstance(each, Passage)]
        await self._pass(self.before, passages, None)
        return [_prepared(each) if isinstance(each, Passage) else each for each in prepared]

    def before_all_sync(self, actor: str, requests: Iterable[RequestLike]) -> Iterator[Prepared]:
        """Apply the middleware to the requests of a run, with or without a running event loop."""
        for some in _chunks(map(request_or_error, requests), REQUESTS_AT_ONCE):
            yield from wait_on_a_loop(self.before_all(actor, some))

    async def after_all(
        self, actor: str, results: Iterable[ActorResult], kept: str, read: Reader
    ) -> AsyncIterator[Iterable[ActorResult]]:
        """Yield a run's results as the middleware returns them, in order, a few at a time.

        ``read`` makes the result that the user's function and the caller get.
        """
        if not self:
            yield map(read, results)
            return
        for some in _chunks(results, RESULTS_AT_ONCE):
            passed = [read(each) for each in await self._after_some(actor, some, kept)]
            await self.finish(actor, passed)
            yield passed

    def after_all_sync(
        self, actor: str, results: Iterable[ActorResult], kept: str, read: Reader
    ) -> Iterator[Iterable[ActorResult]]:
        """Run `after_all` synchronously, with or without a running event loop."""
        if not self:
            yield map(read, results)
            return
        for some in _chunks(results, RESULTS_AT_ONCE):
            passed = [read(each) for each in wait_on_a_loop(self._after_some(actor, some, kept))]
            self.finish_sync(actor, passed)
            yield passed

    async def _after_some(
        self, actor: str, results: Sequence[ActorResult], kept: str
    ) -> list[ActorResult]:
        passages = [
            None if result.response is None else Passage(actor, result.key, result.response, kept)
            for result in results
        ]
        passing = [passage for passage in passages if passage is not None]
        await self._pass(self.after, passing, self.timeout)
        return [
            result if passage is None else _passed(result, passage)
            for result, passage in zip(results, passages, strict=True)
        ]

    async def _pass(
        self, steps: Sequence[Step], passages: Sequence[Passage[Any]], seconds: float | None
    ) -> None:
        """Take passages through the steps; a passage that fails goes no further."""
        for step in steps:
            going = [passage for passage in passages if passage.error is None]
            if step.is_async:
                for passage in going:
                    await _await(partial(step.call, passage), step, passage, seconds)
            else:
                await _call_on_a_thread(step, going, seconds)


def _passed(result: ActorResult, passage: Passage[ActorResponse]) -> ActorResult:
    if passage.error is not None:
        passage.error.cost = result.cost
        return replace(result, response=None, error=passage.error)
    return replace(result, response=passage.value)


def _prepared(passage: Passage[ActorRequest]) -> Prepared:
    request = passage.value
    return request if passage.error is None else failed_result(request, passage.error)


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    them = iter(items)
    while some := list(itertools.islice(them, size)):
        yield some


async def _await(
    call: Callable[[], Any], step: Step, passage: Passage[Any], seconds: float | None
) -> None:
    """Await what a method returns."""
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            changed = await call()
    except BaseException as error:
        if ends_the_caller(error):
            raise
        if patience.expired() and seconds is not None and isinstance(error, Exception):
            step.overrun(passage, seconds)
        else:
            step.fail(passage, error)
    else:
        step.settle(passage, changed)


def _call(step: Step, passage: Passage[Any]) -> object:
    """Return what a plain method returns, or its exception.

    This runs on a thread, which must not change a passage that nobody waits for any more.
    """
    try:
        return step.call(passage)
    except BaseException as error:  # also `sys.exit()`, which ends no process from a thread
        return _Raised(error)


def _same(value: _T) -> _T:
    return value


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _call_on_a_thread(
    step: Step, passages: Sequence[Passage[Any]], seconds: float | None
) -> None:
    done = 0
    while done < len(passages):
        job = Job(partial(_call, step), passages[done:], seconds)
        await _done(job)
        for outcome in job.results:
            if isinstance(outcome, _Raised):
                step.fail(passages[done], outcome.error)
            elif isawaitable(outcome):
                # A decorator has hidden the `async def`, or a lambda calls such a function.
                await _await(partial(_same, outcome), step, passages[done], seconds)
            else:
                step.settle(passages[done], outcome)
            done += 1
        if done < len(passages):
            assert seconds is not None
            step.overrun(passages[done], seconds)
            done += 1


async def _done(job: Job) -> None:
    """Run a job on a thread; abandon it if one of its items exceeds its timeout."""
    waiting: asyncio.Future[None]
    if _inside.get():
        # A thread of the pool waits for this job; queueing it in the same pool could deadlock.
        waiting = asyncio.ensure_future(in_own_thread(job.run, name=_THREAD, daemon=True))
    else:
        waiting = asyncio.wrap_future(POOL.submit(partial(_run, job)))
    try:
        while True:
            # Without a timeout nothing ends it, so there is nothing to look at all the time.
            least = 1.0 if job.seconds is None else 0.0
            finished, _ = await asyncio.wait([waiting], timeout=max(job.patience(), least))
            if finished:
                waiting.result()
                return
            if job.give_up():
                return
            # Queued jobs may wait behind functions that never return.
            POOL.relieve()
    finally:
        job.abandon()
        waiting.cancel()


# --- Callers without an event loop ----------------------------------------------------------------

_loop = SharedEventLoop("claude-batch-middleware-loop")


def wait_on_a_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the shared loop of callers without one, and wait for it.

    Raises `ActorConfigurationError` on that loop, where the caller can await it.
    """
    return _loop.wait(work)
