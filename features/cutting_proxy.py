"""A proxy before a PostgreSQL server that fails as networks do, at chosen moments.

    with CuttingProxy(server.port) as proxy:
        url = server.url(port=proxy.port)
        proxy.at_commit("lose_answer", having="batches")   # committed, but the client is not told
        proxy.cut()                                        # connections are reset, new ones refused
        proxy.stall()                                      # nothing passes, and nothing says so
        proxy.restore()
        proxy.refuse(3, "the database system is starting up")  # the server, for new connections

It reads just enough of the wire protocol to know which statements a transaction ran, in the simple
and in the extended protocol: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar

T = TypeVar("T")

Fault: TypeAlias = Literal["lose_answer", "lose_commit", "hold_answer"]
"""What happens at a COMMIT. `lose_answer`: the server has committed, and the connection is reset
before the client is told. `lose_commit`: it is reset before the server is told, so that it rolls
back. `hold_answer`: the server has committed, and the client waits for ever."""

HOST = "127.0.0.1"
COMMIT = re.compile(rb"\s*(commit|end)\b(?!\s+prepared)", re.IGNORECASE)

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


@dataclass(eq=False)
class _Rule:
    """A fault that waits for its COMMIT."""

    fault: Fault
    having: bytes
    happened: threading.Event = field(default_factory=threading.Event)


class _Message(NamedTuple):
    kind: bytes
    """One letter."""
    body: bytes
    raw: bytes


@dataclass(eq=False)
class _Link:
    """A client's connection, and the one to the server behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    prepared: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """The text of each prepared statement by its name."""
    seen: list[bytes] = field(default_factory=list[bytes])
    """The statements of the transaction."""

    def run(self, message: _Message) -> bytes | None:
        """Note what the client asks; returns the text of a statement that it runs."""
        if message.kind == b"Q":
            text = message.body
        elif message.kind == b"P":
            name, text, _ = message.body.split(b"\0", 2)
            self.prepared[name] = text
            return None
        elif message.kind == b"B":
            # A statement runs at its Execute. None has ever been bound and not executed.
            _portal, name, _ = message.body.split(b"\0", 2)
            text = self.prepared.get(name, b"")
        else:
            return None
        self.seen.append(text)
        return text

    def reset(self) -> None:
        """End both sides at once; the client sees a reset connection."""
        self.client.transport.abort()
        self.server.transport.abort()


class CuttingProxy:
    """A proxy on a free port of the loopback, from its creation to `close`.

    Methods may be called in any thread, and have happened when they return.
    """

    def __init__(self, upstream: int) -> None:
        """`upstream` is the port of the server; see `redirect`."""
        self._upstream = upstream
        self._links: set[_Link] = set()
        self._rules: list[_Rule] = []
        self._is_cut = False
        self._refusals: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._serve, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Reset all connections, and listen no longer."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What it does to connections

    def cut(self) -> None:
        """Reset all connections, and each new one, until `restore`."""
        self._do(self._cut)

    def reset_connections(self) -> int:
        """Reset those that there are, as a firewall that forgot them; returns how many."""
        return self._do(self._reset_links)

    def stall(self) -> None:
        """Pass nothing on, until `restore`; connections stay, and new ones get no answer."""
        self._do(self._flows.clear)

    def restore(self) -> None:
        """Pass everything on again, also what was sent while the proxy was stalled."""
        self._do(self._restore)

    def refuse(self, times: int, words: str) -> None:
        """Answer the next connections as a server that cannot take any now."""
        self._do(lambda: self._refusals.extend([words] * times))

    def redirect(self, upstream: int) -> None:
        """Lead new connections to another server, such as a promoted standby."""
        self._upstream = upstream

    def at_commit(self, fault: Fault, *, having: str = "") -> threading.Event:
        """Let the next COMMIT fail; with `having`, of a transaction whose SQL has that text.

        Each call is for one COMMIT. Returns an event that is set when it has happened.
        """
        rule = _Rule(fault, having.encode())
        self._do(lambda: self._rules.append(rule))
        return rule.happened

    # In the loop

    def _do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def _cut(self) -> None:
        self._is_cut = True
        self._reset_links()

    def _reset_links(self) -> int:
        for link in self._links:
            link.reset()
        return len(self._links)

    def _restore(self) -> None:
        self._is_cut = False
        self._flows.set()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        # `close` ends it; asyncio's own callback would report a cancelled task.
        with contextlib.suppress(asyncio.CancelledError):
            await self._pass_on(from_client, client)

    async def _pass_on(
        self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        await self._flows.wait()
        if self._is_cut:
            client.transport.abort()
            return
        try:
            from_server, server = await asyncio.open_connection(HOST, self._upstream)
        except OSError:
            # The server is down: for the client it is as if it had asked the server itself.
            client.transport.abort()
            return
        link = _Link(client, server)
        self._links.add(link)
        both = [
            asyncio.ensure_future(self._forward(link, from_client)),
            asyncio.ensure_future(self._answer(link, from_server)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # While the proxy is stalled, neither side learns that the other one has closed.
            await self._flows.wait()
        finally:
            self._links.discard(link)
            # What was passed on before one side closed still arrives.
            client.close()
            server.close()
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _forward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        if not await self._start(link, reader):
            return
        async for message in _messages(reader):
            await self._flows.wait()
            text = link.run(message)
            if text is not None and COMMIT.match(text) and self._fires(link, "lose_commit"):
                link.reset()
                return
            link.server.write(message.raw)
            await link.server.drain()

    async def _start(self, link: _Link, reader: asyncio.StreamReader) -> bool:
        """Pass on how a connection starts; false if it has ended."""
        while True:
            try:
                head = await reader.readexactly(8)
                size, code = struct.unpack("!ii", head)
                body = await reader.readexactly(size - 8)
            except (asyncio.IncompleteReadError, OSError):
                return False
            await self._flows.wait()
            if code in (SSL_REQUEST, GSS_REQUEST):
                # What is encrypted cannot be read.
                link.client.write(b"N")
                continue
            if self._refusals:
                fields = f"SFATAL\0VFATAL\0C57P03\0M{self._refusals.pop()}\0\0".encode()
                link.client.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)
                await link.client.drain()
                return False
            link.server.write(head + body)
            return True

    async def _answer(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for message in _messages(reader):
            await self._flows.wait()
            # The command's tag: a COMMIT of a failed transaction is answered with ROLLBACK.
            if message.kind == b"C" and message.body == b"COMMIT\0":
                if self._fires(link, "lose_answer"):
                    link.reset()
                    return
                if self._fires(link, "hold_answer"):
                    await asyncio.Event().wait()
            if message.kind == b"Z" and message.body == b"I":
                link.seen.clear()
            link.client.write(message.raw)
            await link.client.drain()

    def _fires(self, link: _Link, fault: Fault) -> bool:
        for rule in self._rules:
            if rule.fault == fault and any(rule.having in text for text in link.seen):
                self._rules.remove(rule)
                rule.happened.set()
                return True
        return False


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[_Message]:
    """All messages of one side, until it closes."""
    while True:
        try:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!xi", head)[0] - 4)
        except (asyncio.IncompleteReadError, OSError):
            return
        yield _Message(head[:1], body, head + body)
