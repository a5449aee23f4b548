"""The calls that wait for an answer, and the requests for which they wait.

A call's connection is kept alive until its answer is there. The ledger joins calls to requests that
no caller waits for. An exchange also lets the retry of a call join a request whose first caller
seems to be waiting still: a broken connection is often noticed much later than the client repeats
its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from starlette.types import Receive, Send

from claude_batch.gateway.access import Caller, Refusal
from claude_batch.gateway.gateway_options import GatewayOptions
from claude_batch.gateway.http_protocol import HttpProtocol
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.waiters import CallFuture, Departure
from claude_batch.wire.encoding import EncodedRequest

# Connections --------------------------------------------------------------------------------------

PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
"""The API's own event that means nothing; every client ignores it, also before `message_start`."""

SPACE: Final = b" "
"""White space before a JSON text, which every client skips."""

CHUNK: Final = 64 * 1024
"""Bytes that are written at once."""

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that uvicorn sends in no header."""


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

    def __init__(
        self, receive: Receive, send: Send, connection: HttpProtocol | None = None
    ) -> None:
        """``connection``: below ``receive`` and ``send``, if the server shows it."""
        self._connection = connection
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
        """Whether the system has taken the last byte of the response."""

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
        """Send the status of a response whose body comes later.

        Raises `Refusal` for the API's response if it cannot be sent as HTTP.
        """
        if not 200 <= status < 600 or any(map(_CONTROLS.search, headers.values())):
            raise Refusal(502, "the API sent a malformed status or header")
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send_some(self, piece: bytes) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self, pieces: Iterable[bytes]) -> None:
        """Send the rest of the body, in pieces of `CHUNK` bytes at most.

        The server waits before a piece until the pieces before it are written. So the end, which
        has no bytes, is sent once all of them are.

        A busy event loop learns later that the caller has closed the connection, or that the system
        refused the bytes. A caller that closes it once it has all bytes has taken them.
        """
        connection = self._connection
        if connection is not None and connection.has_ended():
            self.is_gone = True
        for piece in pieces:
            await self.send_some(piece)
        if connection is not None and connection.is_closing():
            self.is_gone = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.is_whole = not self.is_gone

    async def send_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a response whose body is known."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.finish(in_chunks(body))


# Exchanges ----------------------------------------------------------------------------------------

REQUEST_ID: Final = "claude-batch-request-id"

_DIGEST_BYTES: Final = 16

_LOOKS: Final = 10
_LOOK: Final = 0.01
"""How often, and for how many seconds each, a call waits for an equal one to leave."""

_PAUSE: Final = 60.0
"""Seconds within which a client repeats an aborted call; the SDKs wait 8 s at most."""

_UNNUMBERED: Final = -1
"""Number of a try whose client sends none: lower than that of a first try."""


class Exchange:
    """One request, and the calls that wait for its answer. Belongs to the server's event loop."""

    def __init__(
        self,
        future: CallFuture,
        digest: bytes,
        departure: Departure,
        on_taken: Callable[[Answer, bool], None],
        retries: int = 0,
    ) -> None:
        """``departure``: what becomes of the request if all its callers go away.

        ``on_taken`` is called with the answer and with whether a caller has received it.
        ``retries``: which retry its first call is; 0 for a first try.
        """
        self.future: CallFuture = future
        self.digest: bytes = digest
        self.retries: int = retries
        """Number of the last retry that waits for it; 0 for a first try."""
        self._departure: Departure = departure
        self._on_taken = on_taken
        self._calls: set[HeldCall] = set()
        self._keeps = False
        self._is_acknowledged = False
        self._done = future.on_loop()
        self.on_done(self._wake_calls)

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return self.future.done()

    @property
    def answer(self) -> Answer | None:
        """The answer; None without one."""
        try:
            return self.future.result()
        except Exception:  # a failure without a result line, or no outcome yet
            return None

    @property
    def request_id(self) -> str | None:
        """The id of its request; None before that is stored."""
        return None if self.future.seq is None else f"request-{self.future.seq}"

    @property
    def origin(self) -> dict[str, str]:
        """The header with the id of its request, if that is stored."""
        return {} if self.request_id is None else {REQUEST_ID: self.request_id}

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call a function on the event loop once there is an outcome."""
        self._done.add_done_callback(lambda _: callback())

    async def wait_until_stored(self, patience: float) -> None:
        """Wait until its request is in the ledger, or its outcome is known.

        Raises ``TimeoutError`` after ``patience`` seconds.
        """
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()

        def is_stored() -> None:
            if not stored.done():
                stored.set_result(None)

        def on_stored() -> None:
            with contextlib.suppress(RuntimeError):  # the gateway's loop has ended
                loop.call_soon_threadsafe(is_stored)

        self.future.on_stored(on_stored)
        self.on_done(is_stored)
        async with asyncio.timeout(patience):
            await stored

    def join(self, call: HeldCall) -> None:
        """Let a call wait for the answer."""
        self._calls.add(call)
        if self.is_done:
            call.wake()

    def leave(self, call: HeldCall, *, keep: bool) -> bool:
        """Remove a call that is answered, gone or aborted; return whether it was the last.

        ``keep``: the request stays whichever call is the last, because the gateway ends rather than
        the caller, or because the caller has its address.
        """
        self._calls.discard(call)
        self._keeps |= keep
        if self._calls:
            return False
        if not self.future.leave("keep" if self._keeps else self._departure):
            self.acknowledge(taken=False)
        return True

    def acknowledge(self, *, taken: bool) -> None:
        """Report once whether a caller has the answer, or gets a failure when it calls again."""
        answer = self.answer
        if answer is not None and not self._is_acknowledged:
            self._is_acknowledged = True
            self._on_taken(answer, taken)

    def repeated(self, retries: int) -> Exchange:
        """Return an exchange with the same outcome, for the repetition of an aborted call."""
        outcome: Answer | Exception
        try:
            outcome = self.future.result()._replace(reused=1)
        except Exception as error:
            outcome = error
        future = CallFuture()
        future.seq, future.joined = self.future.seq, "failure"
        future.settle(outcome)
        # The answer is acknowledged already.
        return Exchange(future, self.digest, "keep", lambda _answer, _taken: None, retries)

    def _wake_calls(self) -> None:
        for call in self._calls:
            call.wake()


class _LateFailure(NamedTuple):
    """A failure whose call was aborted, because it came after the status 200."""

    number: int
    """Of the aborted try."""
    at: float
    """When the call was aborted, on the monotonic clock."""
    exchange: Exchange


def _number_of(failure: _LateFailure) -> int:
    return failure.number


_Call = tuple[bytes, str | None]
"""What the tries of a call share: their digest and Idempotency-Key."""


class Exchanges:
    """The exchanges of a gateway. Belongs to the server's event loop."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_digest: dict[bytes, list[Exchange]] = {}
        # In the order of their numbers, and of equal numbers the newest last.
        self._failures: dict[_Call, list[_LateFailure]] = {}

    def __len__(self) -> int:
        """Return for how many requests calls are waiting."""
        return sum(map(len, self._by_digest.values()))

    async def departure(self, digest: bytes) -> None:
        """Wait for a moment if an equal call seems to wait still.

        A client may close its connection and ask again at once, as the watchdog of Claude Code
        does. A busy event loop reads both together, and would take the new call for another
        request. Each look is a pass of the loop, which reads what connections have closed.
        """
        for _ in range(_LOOKS):
            if digest not in self._by_digest:
                return
            await asyncio.sleep(_LOOK)

    def of_retry(self, digest: bytes, retries: int, *, newest: bool) -> Exchange | None:
        """Return the exchange that a call's retry with this number may join, if there is one.

        Several equal calls may be waiting. A retry is of one that has been tried less often. An
        exchange that an equally late retry has joined, or made from an orphan, belongs to another
        call. Of several, the oldest is found, or the ``newest``.
        """
        earlier = [each for each in self._by_digest.get(digest, ()) if each.retries < retries]
        if newest:
            earlier.reverse()
        return max(earlier, key=lambda each: each.retries, default=None)

    def add(self, exchange: Exchange) -> None:
        """Let retries find an exchange."""
        self._by_digest.setdefault(exchange.digest, []).append(exchange)

    def note_failure(self, exchange: Exchange, options: GatewayOptions) -> None:
        """Keep the failure of one call that is being aborted, for the repetition of that call.

        The ledger repeats only failures that have a result, and none if the call asks for that. The
        repetition would then make a new request, or wait once more for as long as the first try.
        """
        number = options.retries if options.numbers_tries else _UNNUMBERED
        failure = _LateFailure(number, time.monotonic(), exchange)
        call = exchange.digest, options.key
        insort(self._failures.setdefault(call, []), failure, key=_number_of)
        asyncio.get_running_loop().call_later(_PAUSE, self._forget, call, failure)

    def failure(self, digest: bytes, options: GatewayOptions) -> Exchange | None:
        """Return the failure that a call gets because it repeats an aborted one; once for each.

        That is the last try with a lower number. Below a first try are only those without numbers.
        """
        call = digest, options.key
        failures = self._failures.get(call, [])
        before = bisect_left(failures, options.retries, key=_number_of)
        if not before:
            return None
        found = failures[before - 1]
        is_too_old = time.monotonic() - found.at >= options.failure_ttl
        if not options.retries and (options.new or is_too_old):
            return None
        del failures[before - 1]  # at its place, because a search takes long among thousands
        if not failures:
            del self._failures[call]
        return found.exchange.repeated(options.retries)

    def _forget(self, call: _Call, failure: _LateFailure) -> None:
        failures = self._failures.get(call, [])
        if failure in failures:
            failures.remove(failure)
            if not failures:
                del self._failures[call]

    def remove(self, exchange: Exchange) -> None:
        """Forget an exchange without calls."""
        mine = self._by_digest.get(exchange.digest, [])
        if exchange in mine:
            mine.remove(exchange)
            if not mine:
                del self._by_digest[exchange.digest]


def digest_of(caller: Caller, encoded: EncodedRequest) -> bytes:
    """Return a digest of what equal calls share: name of the token, params and lane headers."""
    headers = encoded.headers
    lane = (caller.name, headers.api_version, *headers.betas, headers.user_profile or "")
    found = hashlib.blake2b(encoded.params, digest_size=_DIGEST_BYTES)
    found.update("\0".join(lane).encode())
    return found.digest()
