"""An event loop in a thread, so that any thread and any loop can use one asynchronous client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """An event loop in its own thread, which starts at once and ends with `stop`."""

    def __init__(self, name: str = "claude-live") -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        # A daemon thread, so that a program which never closes its provider can end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return False after a fork, because threads stay with the parent process."""
        return self._process == os.getpid() and self._thread.is_alive()

    def run(self, call: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine from any thread; cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Cancel the running coroutines, run ``last``, and end the thread."""

        async def end() -> None:
            await asyncio.sleep(0)  # let new tasks begin, so that they receive the cancellation
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if last is not None:
                await last()

        try:
            self.run(end()).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def wait_for(future: concurrent.futures.Future[_T]) -> _T:
    """Return the future's result; an interrupt (Ctrl-C) during the wait cancels the future."""
    try:
        return future.result()
    except BaseException:
        future.cancel()  # no effect if it is done
        raise
