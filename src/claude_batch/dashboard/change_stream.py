"""Server-sent events: each open page hears that the ledger has changed, and draws itself again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

_BEAT: Final = 15.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it."""

MOST_STREAMS: Final = 500
"""Open streams; further pages are not live. Each costs some kilobytes."""


class ChangeStreams:
    """The open streams of all pages. All methods but `announce` are for the event loop's thread."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version`` returns the version of what pages show now."""
        self._version = version
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._is_ending = False

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._waiting)

    def announce(self) -> None:
        """Tell every stream that there is a new version; from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """End every stream."""
        self._is_ending = True
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def events(self, seen: str) -> AsyncGenerator[str]:
        """Yield an event for each version that follows ``seen``, the one that a page shows."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            # A browser waits so long before it connects again.
            yield "retry: 3000\n\n"
            while not self._is_ending:
                event.clear()
                version = str(self._version())
                if version != seen:
                    seen = version
                    yield f"event: ledger\ndata: {version}\n\n"
                    continue
                try:
                    async with asyncio.timeout(_BEAT):
                        await event.wait()
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._waiting.discard(event)
