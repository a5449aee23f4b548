"""Callers that await their answers while the scenario goes on, on an event loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from behave.runner import Context


class Callers:
    """Calls of actors, each with the prompt that names its caller."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._calls: dict[str, asyncio.Task[Any]] = {}

    def ask(self, calls: dict[str, Coroutine[Any, Any, Any]]) -> None:
        """Begin calls in one pass of the event loop, and return when each has run a first time."""

        async def begin() -> None:
            for prompt, call in calls.items():
                self._calls[prompt] = asyncio.ensure_future(call)
            await asyncio.sleep(0)

        self._do(begin())

    def leave(self, *prompts: str) -> None:
        """Cancel calls in one pass of the event loop, and return when they have ended."""
        tasks = [self._calls.pop(prompt) for prompt in prompts]

        async def cancel() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        self._do(cancel())
        assert all(task.cancelled() for task in tasks), tasks

    def passes_during(self, work: Callable[[], Any]) -> int:
        """Do something on this thread, and count the passes of the callers' loop meanwhile."""
        passes = 0

        async def count() -> None:
            nonlocal passes
            while True:
                await asyncio.sleep(0)
                passes += 1

        counting = asyncio.run_coroutine_threadsafe(count(), self._loop)
        work()
        counting.cancel()
        return passes

    def outcomes(self) -> list[Any]:
        """Await the callers that have not left; the answer or the error of each."""

        async def wait() -> list[Any]:
            return await asyncio.gather(*self._calls.values(), return_exceptions=True)

        return self._do(wait())

    def close(self) -> None:
        """Cancel what is left, and end the thread."""
        for task in self._calls.values():
            self._loop.call_soon_threadsafe(task.cancel)
        self.outcomes()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(90)


def callers(context: Context) -> Callers:
    """Return the scenario's callers."""
    if "callers" not in context:
        context.callers = Callers()
        context.add_cleanup(context.callers.close)
    return context.callers
