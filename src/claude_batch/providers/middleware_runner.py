"""Call middleware: plain methods on threads, ``async def`` methods on the caller's event loop.

The code is written once, for callers with an event loop. Callers without one share a loop, in a
separate thread. Without middleware, nothing here runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from claude_batch.actor.middleware import Middlewares, Passage, Step
from claude_batch.actor.request import ActorRequest, RequestLike
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import InvalidRequestError, MiddlewareError
from claude_batch.lifecycle.event_loop_thread import SharedEventLoop, wait_for
from claude_batch.providers.worker_pool import POOL, Job

_T = TypeVar("_T")

Prepared = ActorRequest | InvalidRequestError | MiddlewareError
"""A request to encode, or the error that prevents it."""

NOTHING_SENT = "nothing was sent for it"
LOST_WITH_IT = "the answer was billed and is lost, because a live answer is in no ledger"

REQUESTS_AT_ONCE = 64
"""Number of a run's requests that one thread receives together."""

RESULTS_AT_ONCE = 16
"""Number of a run's results that one thread receives together, before the first is yielded."""


class MiddlewareRunner:
    """Calls the middleware of one provider."""

    def __init__(self, middleware: Middlewares) -> None:
        self._middleware = middleware

    async def before(self, actor: str, request: ActorRequest) -> ActorRequest:
        """Return the request to encode. Raises `MiddlewareError`."""
        passage = Passage(actor, request.key, request, NOTHING_SENT)
        await self._pass(self._middleware.before, [passage], None)
        if passage.error is not None:
            raise passage.error
        assert isinstance(passage.value, ActorRequest)
        return passage.value

    async def after(
        self, actor: str, key: str | None, response: ActorResponse, kept: str
    ) -> ActorResponse:
        """Return the response for the caller. Raises `MiddlewareError`; its message ends with
        ``kept``.
        """
        passage = Passage(actor, key, response, kept)
        await self._pass(self._middleware.after, [passage], self._middleware.timeout)
        if passage.error is not None:
            raise passage.error
        assert isinstance(passage.value, ActorResponse)
        return passage.value

    async def before_all(self, actor: str, requests: Sequence[RequestLike]) -> list[Prepared]:
        """Apply the middleware to some requests of a run; return the outcomes in order."""
        prepared: list[Prepared | Passage] = []
        for each in requests:
            try:
                request = ActorRequest.of(each)
            except InvalidRequestError as error:
                prepared.append(error)
            else:
                prepared.append(Passage(actor, request.key, request, NOTHING_SENT))
        passages = [each for each in prepared if isinstance(each, Passage)]
        await self._pass(self._middleware.before, passages, None)
        return [_prepared(each) if isinstance(each, Passage) else each for each in prepared]

    def before_all_sync(self, actor: str, requests: Iterable[RequestLike]) -> Iterator[Prepared]:
        """Apply the middleware to the requests of a run, with or without a running event loop."""
        for some in _chunks(requests, REQUESTS_AT_ONCE):
            yield from wait_on_a_loop(self.before_all(actor, some))

    async def after_all(
        self, actor: str, results: Iterable[ActorResult], kept: str
    ) -> AsyncIterator[list[ActorResult]]:
        """Yield a run's results as the middleware returns them, in order, a few at a time."""
        for some in _chunks(results, RESULTS_AT_ONCE):
            yield await self._after_some(actor, some, kept)

    def after_all_sync(
        self, actor: str, results: Iterable[ActorResult], kept: str
    ) -> Iterator[list[ActorResult]]:
        """Run `after_all` synchronously, with or without a running event loop."""
        for some in _chunks(results, RESULTS_AT_ONCE):
            yield wait_on_a_loop(self._after_some(actor, some, kept))

    async def _after_some(
        self, actor: str, results: Sequence[ActorResult], kept: str
    ) -> list[ActorResult]:
        passages = [
            None if result.response is None else Passage(actor, result.key, result.response, kept)
            for result in results
        ]
        passing = [passage for passage in passages if passage is not None]
        await self._pass(self._middleware.after, passing, self._middleware.timeout)
        return [
            result if passage is None else _passed(result, passage)
            for result, passage in zip(results, passages, strict=True)
        ]

    async def _pass(
        self, steps: Sequence[Step], passages: Sequence[Passage], seconds: float | None
    ) -> None:
        """Take passages through the steps; a passage that fails goes no further."""
        for step in steps:
            going = [passage for passage in passages if passage.error is None]
            if step.is_async:
                for passage in going:
                    await _await(step, passage, seconds)
            else:
                await _call_on_a_thread(step, going, seconds)


def _passed(result: ActorResult, passage: Passage) -> ActorResult:
    if passage.error is not None:
        return replace(result, response=None, error=passage.error)
    assert isinstance(passage.value, ActorResponse)
    return replace(result, response=passage.value)


def _prepared(passage: Passage) -> Prepared:
    if passage.error is not None:
        return passage.error
    assert isinstance(passage.value, ActorRequest)
    return passage.value


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    them = iter(items)
    while some := list(itertools.islice(them, size)):
        yield some


async def _await(step: Step, passage: Passage, seconds: float | None) -> None:
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            changed = await step.call(passage)
    except Exception as error:
        if patience.expired() and seconds is not None:
            step.overrun(passage, seconds)
        else:
            step.fail(passage, error)
    else:
        step.settle(passage, changed)


def _call(step: Step, passage: Passage) -> object:
    """Return what a plain method returns, or its exception.

    This runs on a thread, which must not change a passage that nobody waits for any more.
    """
    try:
        return step.call(passage)
    except Exception as error:
        return _Raised(error)


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def _call_on_a_thread(step: Step, passages: Sequence[Passage], seconds: float | None) -> None:
    done = 0
    while done < len(passages):
        job = Job(partial(_call, step), passages[done:], seconds)
        await _done(job)
        for outcome in job.results:
            if isinstance(outcome, _Raised):
                step.fail(passages[done], outcome.error)
            else:
                step.settle(passages[done], outcome)
            done += 1
        if done < len(passages):
            assert seconds is not None
            step.overrun(passages[done], seconds)
            done += 1


async def _done(job: Job[Any, Any]) -> None:
    """Run a job on a thread; abandon it if one of its items exceeds its timeout."""
    POOL.submit(job)
    waiting = asyncio.wrap_future(job.future)
    try:
        while True:
            finished, _ = await asyncio.wait([waiting], timeout=job.patience())
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
    """Run a coroutine on the shared loop of callers without one, and wait for it."""
    return wait_for(_loop.run(work))
