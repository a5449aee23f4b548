"""Waiting and closing, for callers with and without an event loop.

Code that waits for the engine is written once, as a generator that yields `Pause` and items and
never waits itself; `step_async` and `step_sync` do the waiting, each in its own way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import msgspec

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.lifecycle.threads import DaemonThreads, in_own_thread

# Closing ------------------------------------------------------------------------------------------


class Closing:
    """Add ``aclose``, ``with`` and ``async with`` to `close`.

    The rule of ownership: who constructs an object closes it, and what claude-batch constructed for
    that object closes with it. So there are no copies, of which each could close the other's.
    """

    elsewhere: ClassVar[str] = "create one in each process"
    """How another process gets such an object, for errors."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied, because it has threads and "
            f"connections; {self.elsewhere}"
        )

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Run `close` without blocking the event loop."""
        # A task cancelled just before receives its cancellation in the loop's next iteration.
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # A cancelled scope of anyio raises it at every `await`; it closes nevertheless.
            await in_own_thread(self.close)
            raise
        await in_own_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_object(name: str, given: object) -> None:
    """Raise `ActorConfigurationError` for a class in the place of an object."""
    if isinstance(given, type):
        raise ActorConfigurationError(
            f"{name}: {given!r} is a class; give an object of it: {given.__name__}()"
        )


# Work beside the event loop -----------------------------------------------------------------------

_T = TypeVar("_T")

THREADS = 8
"""Most threads of the process that do such work at the same time."""


_threads = DaemonThreads(THREADS, "claude-batch-beside")
os.register_at_fork(after_in_child=_threads.forget)


async def in_worker_thread(work: Callable[[], _T]) -> _T:
    """Run a function that may block on a thread, in the caller's context.

    It must not wait for answers. `asyncio.to_thread` has no thread left if the program has as many
    calls waiting there as asyncio has threads.
    """
    context = copy_context()
    return await asyncio.wrap_future(_threads.submit(lambda: context.run(work)))


async def clean_up(error: BaseException, work: Callable[[], object]) -> None:
    """Run a function that may block after an exception; wait for it unless that is impossible."""
    if isinstance(error, GeneratorExit):  # the coroutine is closed, and cannot wait
        _threads.submit(work)
    else:
        await in_own_thread(work)


async def each_of(items: Iterable[_T] | AsyncIterable[_T]) -> AsyncGenerator[_T]:
    """Yield the items of an iterable of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


# Waiting ------------------------------------------------------------------------------------------

TIMED_OUT: Any = object()
"""The value that a generator receives if a pause ended by its timeout."""


class Pause(msgspec.Struct, frozen=True):
    """Wait for a future, at most ``seconds`` (None: no limit)."""

    future: Future[Any]
    seconds: float | None = None


async def step_async(work: Generator[Pause | _T, Any, None]) -> AsyncIterator[_T]:
    """Run a generator's pauses on the caller's loop; yield its items.

    The error of a future is raised in the generator, at its pause.
    """
    value: Any = None
    fault: Exception | None = None
    try:
        while True:
            try:
                step = work.send(value) if fault is None else work.throw(fault)
            except StopIteration:
                return
            value = fault = None
            if not isinstance(step, Pause):
                yield step
                continue
            try:
                value = await _value(step)
            except Exception as error:
                fault = error
    finally:
        fault = None  # else the error and this frame would hold each other
        work.close()


async def _value(pause: Pause) -> Any:
    # Not `asyncio.wait_for`: that of Python 3.11 may lose a cancellation that arrives together with
    # the value, and a `TimeoutError` of the work itself would look like the end of the pause.
    waiting = asyncio.wrap_future(pause.future)
    try:
        await asyncio.wait([waiting], timeout=pause.seconds)
        return waiting.result() if waiting.done() else TIMED_OUT
    finally:
        # Neither has an effect if it is done.
        with suppress(RuntimeError):  # the loop is closed
            waiting.cancel()
        pause.future.cancel()


def step_sync(work: Generator[Pause | _T, Any, None]) -> Iterator[_T]:
    """Do what `step_async` does, by blocking this thread."""
    value: Any = None
    fault: Exception | None = None
    try:
        while True:
            try:
                step = work.send(value) if fault is None else work.throw(fault)
            except StopIteration:
                return
            value = fault = None
            if not isinstance(step, Pause):
                yield step
                continue
            try:
                value = _value_sync(step)
            except Exception as error:
                fault = error
    finally:
        fault = None
        work.close()


def _value_sync(pause: Pause) -> Any:
    try:
        return pause.future.result(pause.seconds)
    except TimeoutError:
        # The work itself may raise it too, as for a file system that does not answer.
        if pause.future.done():
            return pause.future.result()
        pause.future.cancel()
        return TIMED_OUT
