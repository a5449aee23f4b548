"""Exchanges: the requests for which calls are waiting, and which call joins which.

The ledger joins calls to requests that no caller waits for. An exchange also lets the retry of a
call join a request whose first caller seems to be waiting still: a broken connection is often
noticed much later than the client repeats its call.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final

from claude_batch.gateway.access import Caller
from claude_batch.gateway.held_calls import HeldCall
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.waiters import CallFuture, Departure
from claude_batch.wire.encoding import EncodedRequest

_DIGEST_BYTES: Final = 16

_LOOKS: Final = 10
_LOOK: Final = 0.01
"""How often, and for how many seconds each, a call waits for an equal one to leave."""


class Exchange:
    """One request, and the calls that wait for its answer. Belongs to the server's event loop."""

    __slots__ = (
        "_calls",
        "_departure",
        "_done",
        "_on_taken",
        "_was_taken",
        "digest",
        "future",
        "retries",
    )

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
        self._was_taken = False
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

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call a function on the event loop once there is an outcome."""
        self._done.add_done_callback(lambda _: callback())

    def join(self, call: HeldCall) -> None:
        """Let a call wait for the answer."""
        self._calls.add(call)
        if self.is_done:
            call.wake()

    def leave(self, call: HeldCall, *, keep: bool) -> bool:
        """Remove a call that is answered, gone or aborted; return whether it was the last.

        ``keep``: its request stays, because the gateway ends rather than the caller.
        """
        self._calls.discard(call)
        if call.is_whole:
            self.taken()
        if self._calls:
            return False
        if not self.future.leave("keep" if keep else self._departure):
            answer = self.answer
            if answer is not None and not self._was_taken:
                self._on_taken(answer, False)
        return True

    def taken(self) -> None:
        """Note that a caller has the answer, or that it gets a failure when it calls again."""
        answer = self.answer
        if answer is not None and not self._was_taken:
            self._was_taken = True
            self._on_taken(answer, True)

    def _wake_calls(self) -> None:
        for call in self._calls:
            call.wake()


class Exchanges:
    """The exchanges of a gateway. Belongs to the server's event loop."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_digest: dict[bytes, list[Exchange]] = {}

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

    def of_retry(self, digest: bytes, retries: int) -> Exchange | None:
        """Return the exchange that a call's retry with this number joins, if there is one.

        Several equal calls may be waiting. A retry is of one that has been tried less often. An
        exchange that an equally late retry has joined, or made from an orphan, belongs to another
        call.
        """
        earlier = [each for each in self._by_digest.get(digest, ()) if each.retries < retries]
        found = max(earlier, key=lambda each: each.retries, default=None)
        if found is not None:
            found.retries = retries
        return found

    def add(self, exchange: Exchange) -> None:
        """Let retries find an exchange."""
        self._by_digest.setdefault(exchange.digest, []).append(exchange)

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
