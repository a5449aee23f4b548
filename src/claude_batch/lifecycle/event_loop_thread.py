"""An event loop in a thread, whose end leaves no caller waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from claude_batch.core.errors import EngineStoppedError

_T = TypeVar("_T")
_P = ParamSpec("_P")


class EngineLoop:
    """Runs one coroutine, and submitted work, on its own thread.

    One lock decides whether submitted work comes before the end or is refused.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start ``main`` at once; it must await `end_the_rest` before it returns."""
        self.gate: threading.RLock = threading.RLock()  # a signal handler may enter it again
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(main,), name="claude-batch-engine", daemon=True
        )
        self._thread.start()

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(main())
        finally:
            self._loop.close()

    @property
    def closed(self) -> bool:
        """Whether no more work is accepted."""
        return self._closed

    def soon(self, work: Callable[..., object], *arguments: object) -> bool:
        """Schedule a function call on the loop, from any thread; return False if it is closed."""
        with self.gate:
            if not self._closed:
                self._loop.call_soon_threadsafe(work, *arguments)
            return not self._closed

    def run(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine from any thread. Raises `EngineStoppedError` if the loop is closed."""
        with self.gate:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._ended_by_us(work), self._loop)
        work.close()
        raise EngineStoppedError("the provider is closed; make a new one")

    async def _ended_by_us(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return await work
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise EngineStoppedError("the provider was closed meanwhile") from None

    def close(self, last: Callable[[], None], seconds: float) -> None:
        """Refuse new work, call ``last`` on the loop, and wait up to ``seconds`` for its end."""
        with self.gate:
            if self._closed:
                return
            # Set before the loop can end anything, because cancelled work reads the reason from it.
            self._closed = True
            self._loop.call_soon_threadsafe(last)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    async def end_the_rest(self) -> None:
        """Cancel every other task of the loop, and wait for their end."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def sleep_or_wake(wake: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most ``seconds``."""
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
