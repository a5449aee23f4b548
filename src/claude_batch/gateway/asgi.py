"""How the gateway receives a call: its headers, and its body within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from claude_batch.gateway.access import Refusal


def headers_of(scope: Scope) -> dict[str, str]:
    """Return a call's headers by their names in lower case; repeated ones are joined by commas."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ",".join(values) for name, values in found.items()}


PATIENCE = 60.0
"""Seconds without a byte after which an upload is given up, and seconds that headers may take."""

SLOWEST = 16 * 1024
"""Fewest bytes a second of a body after `PATIENCE`, because its announced size counts as held."""


async def receive_body(receive: Receive, patience: float = PATIENCE) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follows.

    Raises `Refusal` if it does not come within ``patience`` seconds, and ``ClientDisconnect``.
    """
    try:
        async with asyncio.timeout(min(patience, PATIENCE)):
            message = await receive()
    except TimeoutError:
        words = (
            f"the body came more slowly than {SLOWEST // 1024} KiB a second"
            if patience < PATIENCE
            else f"no byte of the body came for {PATIENCE:g} s"
        )
        raise Refusal(408, f"{words}; nothing was stored", {"connection": "close"}) from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


class Bodies:
    """Reads bodies, and counts the bytes of those that are in memory."""

    def __init__(self, largest: int, most: int) -> None:
        """``largest``: bytes of one body. ``most``: bytes of all of them at once."""
        self._largest = largest
        self._most = most
        self.held: int = 0
        """Bytes in memory now."""

    @asynccontextmanager
    async def read(self, headers: Mapping[str, str], receive: Receive) -> AsyncGenerator[bytes]:
        """Yield a call's body, which counts as held until the block ends.

        Raises `Refusal` and ``ClientDisconnect``.
        """
        announced = headers.get("content-length", "")
        # Reserved before it is read, so that calls which arrive together do not all begin.
        reserved = int(announced) if announced.isdecimal() else 0
        if reserved > self._largest:
            raise self._too_large()
        self._reserve(reserved)
        try:
            pieces: list[bytes] = []
            size, more = 0, True
            begun = time.monotonic()
            while more:
                left = begun + PATIENCE + size / SLOWEST - time.monotonic()
                piece, more = await receive_body(receive, max(0.0, left))
                pieces.append(piece)
                size += len(piece)
                if size > self._largest:
                    raise self._too_large()
                if size > reserved:
                    self._reserve(size - reserved)
                    reserved = size
            yield pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            self.held -= reserved

    def _reserve(self, size: int) -> None:
        if self.held + size > self._most:
            raise Refusal(
                503,
                f"the gateway is receiving more than {self._most // 2**20} MB of calls at once; "
                "nothing of this call was stored",
                {"connection": "close"},
                retry_after=1,
                is_overload=True,
            )
        self.held += size

    def _too_large(self) -> Refusal:
        return Refusal(
            413,
            f"the body has more than {self._largest // 2**20} MB; nothing of it was stored",
            # The rest of the body may be endless.
            {"connection": "close"},
        )
