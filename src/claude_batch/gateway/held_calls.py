"""A call whose connection is kept alive until its answer is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from claude_batch.gateway import asgi
from claude_batch.gateway.asgi import Receive, Send

PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
"""The API's own event that means nothing; every client ignores it, also before `message_start`."""

SPACE: Final = b" "
"""White space before a JSON text, which every client skips."""


CHUNK: Final = 64 * 1024
"""Bytes that are written at once."""


def in_chunks(body: bytes) -> Iterator[bytes]:
    """Yield a body in pieces of `CHUNK` bytes."""
    for at in range(0, len(body), CHUNK):
        yield body[at : at + CHUNK]


class Aborted(Exception):
    """Ends a response in the middle: the server closes the connection.

    A clean end of the body, or an error object under the status 200, would be taken for an answer.
    """


class HeldCall:
    """The connection of one call, after its body was read.

    As a context, it notices when the caller goes away.
    """

    __slots__ = ("_receive", "_send", "_wake", "_watcher", "begun", "is_gone", "is_whole", "status")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watcher: asyncio.Task[None] | None = None
        self.status: int | None = None
        """The status, once it was sent."""
        self.begun: float = time.monotonic()
        """When it began to wait."""
        self.is_gone: bool = False
        """Whether the caller has closed the connection."""
        self.is_whole: bool = False
        """Whether the last byte of the response was written."""

    def __enter__(self) -> Self:
        """Watch the connection."""
        self._watcher = asyncio.create_task(self._watch())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = not self.is_whole
        self.wake()

    @property
    def has_begun(self) -> bool:
        """Whether the status was sent."""
        return self.status is not None

    def wake(self) -> None:
        """End the wait, because there is something to do."""
        if not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait until woken, at most ``seconds``; return whether it was."""
        if seconds > 0:
            await asyncio.wait((self._wake,), timeout=seconds)
        return self._wake.done()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status of a response whose body comes later."""
        self.status = status
        await asgi.start(self._send, status, headers)

    async def send_some(self, piece: bytes) -> None:
        """Send a part of the body."""
        await asgi.send_some(self._send, piece)

    async def finish(self, pieces: Iterable[bytes]) -> None:
        """Send the rest of the body, in pieces of `CHUNK` bytes at most.

        The server waits before a piece until the pieces before it are written. So the end, which
        has no bytes, is sent once all of them are.
        """
        await asgi.finish(self._send, pieces)
        self.is_whole = not self.is_gone

    async def send_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a response whose body is known."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.finish(in_chunks(body))
