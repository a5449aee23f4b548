"""A connection of the gateway: uvicorn's HTTP protocol, with limits for what precedes a body.

The parser has no limit for a head, and nothing is known of the caller before its head is complete.
uvicorn limits only the time between a response and the next byte.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import struct
from typing import Any, Final, NoReturn, Self

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from claude_batch.gateway import LARGEST_BODY, asgi
from claude_batch.gateway.access import Refusal

CONNECTION: Final = "claude_batch.connection"
"""What a call's state calls its `HttpProtocol`."""

LARGEST_HEAD: Final = 64 * 1024
"""Bytes of a call's request line, headers and trailers."""

LARGEST_URL: Final = 8 * 1024
"""Bytes of a call's URL."""

MOST_LINES: Final = 200
"""Headers of a call. Clients send about 30, and each proxy adds some."""

MOST_PIPELINED: Final = 16
"""Calls that wait on one connection for the response before theirs."""

_LINGER: Final = 2.0
"""Seconds for which a refused caller's bytes are dropped. If they stayed unread, the system would
reset the connection, and the caller could lose the response."""

BODY_LINGER: Final = 30.0
"""The same for a caller that still sends its body when it has the response. Most send all of it
before they read."""

_ENDED: Final = getattr(select, "POLLRDHUP", 0)
"""Event of a socket whose other end was closed. Elsewhere than on Linux, the system reports only
errors and resets."""

_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

_BEGUN: Final = re.compile(rb"\r(\n(\r|u(p(g(r(a(d(e)?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""Bytes at the end of a piece of a head that may begin `_UPGRADE`, or the empty line."""

_LONGEST_BEGUN: Final = len(b"\r\nupgrade")


class _Unbounded(int):
    """The expected length of a body that ends with its connection, as uvicorn compares it."""

    def __lt__(self, other: object) -> bool:
        """Return False: no body is longer."""
        return False

    def __sub__(self, other: object) -> Self:
        """Return the same: what is left is unknown, and at the end nothing is missing."""
        return self


class _ResponseTransport(asyncio.Transport):
    """The transport of one call, whose end of a response closes the connection with care."""

    def __init__(self, protocol: HttpProtocol, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._protocol = protocol
        self._cycle = cycle

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Write bytes of the response."""
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return self._protocol.is_closing()

    def close(self) -> None:
        """Close the connection. A response that is not complete must look broken to the caller."""
        if self._cycle.response_complete:
            self._protocol.close_after_response()
        else:
            self._protocol.transport.close()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which is writing for as long as a byte is not handed to the system.

    By default 64 KB may be left, and an answer would count as taken that its caller never got.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """asyncio's callback for a new connection."""
        transport.set_write_buffer_limits(high=0)
        self._refusal: Refusal | None = None
        self._is_refused = False
        # Whether a head is read, or comes next; a body with its trailers otherwise.
        self._is_head = True
        # Bytes of the lines of a head that are complete.
        self._head_bytes = 0
        # Bytes since the last part of a body, or the end of a head or a call: what the parser
        # collects for a line that is not complete.
        self._pending_bytes = 0
        # The end of a piece of a head that is passed to the parser with the next piece.
        self._held = b""
        # Whether a part of a head was read.
        self._has_begun = False
        # Ends the wait for a head, for its first byte, or for the rest of a body that is dropped.
        self._head_timer: asyncio.TimerHandle | None = None
        # When the response was complete while the body still came, and bytes of it since then.
        self._drops_since: float | None = None
        self._dropped_bytes = 0
        # The call that is answered now; those after it wait in `pipeline`.
        self._answering: RequestResponseCycle | None = None
        super().connection_made(transport)
        self._wait_for_head(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback for the end of the connection; every call on it is left.

        uvicorn leaves only the last one. Another one would wait for its answer for hours.
        """
        self._stop_head_timer()
        # Before uvicorn resumes writing: a call must hear that its caller has gone before it
        # continues an answer that is half written.
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio's callback for received bytes.

        Java's client offers HTTP/2 (``Upgrade: h2c``) with each call over HTTP/1.1. A server may
        ignore that, but the parser would ignore the body. So it gets the header by another name.
        """
        if self._is_refused:
            return
        if self._is_head:
            data = self._without_upgrade(data)
            if not data:
                return
        self._pending_bytes += len(data)
        super().data_received(data)
        if self._pending_bytes > LARGEST_HEAD and not self._is_refused:
            self._refuse(_large_head())
        elif self._drops_since is not None and self._dropped_bytes > LARGEST_BODY:
            self.close_after_response()
        if not (self._is_answering or self._head_timer or self._is_refused):
            # A line break before a call, which ends uvicorn's own timeout.
            self._wait_for_head(self.timeout_keep_alive)

    def _without_upgrade(self, data: bytes) -> bytes:
        """Return the next piece of a head, and what follows it, with the header renamed.

        A piece may end within that header, or within the empty line. Its last bytes wait for the
        next piece then.
        """
        head, end, rest = (self._held + data).partition(b"\r\n\r\n")
        self._held = b""
        if not end and (found := _BEGUN.search(head, max(0, len(head) - _LONGEST_BEGUN))):
            head, self._held = head[: found.start()], found[0]
        return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest

    def on_response_complete(self) -> None:
        """uvicorn's callback for the end of a response; a part of the next head may be there."""
        if self._is_refused:
            return
        super().on_response_complete()
        if self._has_begun:
            self._wait_for_head(asgi.PATIENCE)
        elif not (self._is_head or self._is_answering):
            # Many clients read the response only when they have sent the body.
            self._unset_keepalive_if_required()
            self._drops_since, self._dropped_bytes = self.loop.time(), 0
            self._wait_for_rest(self._drops_since)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Parser's callbacks ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The parser's callback for the first byte of a call."""
        self._is_head, self._head_bytes, self._has_begun = True, 0, True
        self._wait_for_head(asgi.PATIENCE)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The parser's callback for a part of the URL."""
        self._count(len(url))
        super().on_url(url)
        if len(self.url) > LARGEST_URL:
            words = f"the URL has more than {LARGEST_URL // 1024} KiB"
            self._fail(Refusal(414, words))

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's callback for a header, or for a trailer of a body in chunks."""
        self._count(len(name) + len(value) + len(b": \r\n"))
        if not self._is_head:
            # A trailer must not become a header, because the headers have been checked.
            return
        super().on_header(name, value)
        if len(self.headers) > MOST_LINES:
            words = f"the call has more than {MOST_LINES} headers"
            self._fail(Refusal(431, words))

    def on_headers_complete(self) -> None:
        """The parser's callback for the end of a call's headers.

        HTTP/1.0, which nginx uses by default, has no chunks. A body whose length is not known ends
        with the connection, so that only a reset shows that a response was aborted.
        """
        super().on_headers_complete()
        # Its task has not begun.
        self.cycle.transport = _ResponseTransport(self, self.cycle)
        # Not earlier: an URL that cannot be parsed is a fault of the head.
        self._is_head, self._pending_bytes, self._has_begun = False, 0, False
        self._stop_head_timer()
        if len(self.pipeline) > MOST_PIPELINED:
            words = f"more than {MOST_PIPELINED} calls wait on this connection"
            self._fail(Refusal(400, words))
        state = self.scope.setdefault("state", {})
        state[CONNECTION] = self
        if self.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _Unbounded()

    def on_body(self, body: bytes) -> None:
        """The parser's callback for a part of a body."""
        self._pending_bytes = 0
        super().on_body(body)
        if self._drops_since is not None:
            self._dropped_bytes += len(body)
            self._wait_for_rest(self._drops_since)

    def on_message_complete(self) -> None:
        """The parser's callback for the last byte of a call."""
        self._is_head, self._pending_bytes = True, 0
        super().on_message_complete()
        if self._drops_since is not None:
            self._drops_since = None
            self._wait_for_head(self.timeout_keep_alive)

    # The connection's end -------------------------------------------------------------------------

    def reset_at_end(self) -> None:
        """Let the end of the connection be a reset."""
        connection: socket.socket = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def has_ended(self) -> bool:
        """Return whether the caller has closed the connection, by what the system has received."""
        if self.transport.is_closing():
            return True
        events = select.poll()
        events.register(self.transport.get_extra_info("socket"), _ENDED)
        return bool(events.poll(0))

    def is_closing(self) -> bool:
        """Return whether the connection is being closed, as after a failed write."""
        return self.transport.is_closing()

    def close_after_response(self) -> None:
        """Close the connection; bytes of a body that still come are dropped for a while."""
        if self._is_head:
            self.transport.close()
        else:
            self._linger(BODY_LINGER)

    def _linger(self, seconds: float) -> None:
        """End the responses, and close the connection when the caller does, or after a while."""
        self._is_refused = True
        self._stop_head_timer()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(seconds, self.transport.close)

    # Time -----------------------------------------------------------------------------------------

    @property
    def _is_answering(self) -> bool:
        # uvicorn has no cycle before the first call.
        return bool(self.cycle) and not self.cycle.response_complete

    def _wait_for_head(self, seconds: float) -> None:
        """Give the connection up unless what it waits for has come after so long."""
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(seconds, self._give_up)

    def _wait_for_rest(self, since: float) -> None:
        """Wait for the rest of a body that is dropped as long as for one that is read."""
        due = since + asgi.PATIENCE + self._dropped_bytes / asgi.SLOWEST
        self._wait_for_head(max(0.0, min(asgi.PATIENCE, due - self.loop.time())))

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_answering:
            # Nothing is read while calls wait, so that the rest of a head may have come.
            return
        if self._has_begun:
            words = f"the URL and headers were not complete after {asgi.PATIENCE:g} s"
            self._refuse(Refusal(408, words))
        else:
            self.transport.close()

    # Refusals -------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """uvicorn's callback for bytes that the parser refuses."""
        self._refuse(self._refusal or Refusal(400, "this is not a call by HTTP"))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > LARGEST_HEAD:
            self._fail(_large_head())

    def _fail(self, refusal: Refusal) -> NoReturn:
        """End the parser, which calls `send_400_response` then."""
        self._refusal = refusal
        raise refusal

    def _refuse(self, refusal: Refusal) -> None:
        """Answer if the caller would take that for the response to this call, and close."""
        self._is_refused = True
        self._stop_head_timer()
        cycle = self.cycle
        if self._is_head:
            is_awaited = not cycle or cycle.response_complete
        else:
            is_awaited = not (self.pipeline or cycle.response_started)
        if not is_awaited:
            self.transport.close()
            return
        if not self._is_head:  # the call reads its body
            cycle.disconnected = True
            cycle.message_event.set()
        body = refusal.body
        lines = (
            b"content-type: application/json\r\nx-should-retry: false\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        )
        self.transport.write(b"".join((STATUS_LINE[refusal.status], *lines, body)))
        self._linger(_LINGER)


def _large_head() -> Refusal:
    words = f"the URL and headers have more than {LARGEST_HEAD // 1024} KiB"
    return Refusal(431, words)
