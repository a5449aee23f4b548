"""The parts of ASGI that the gateway uses: headers, bodies and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Disconnected(Exception):
    """The caller has closed its connection."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Return a call's headers by their names in lower case; repeated ones are joined by commas."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    """Send the status and headers of a response."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_some(send: Send, piece: bytes) -> None:
    """Send a part of a response's body."""
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def finish(send: Send, pieces: Iterable[bytes] = ()) -> None:
    """Send the rest of a response's body."""
    for piece in pieces:
        await send_some(send, piece)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_whole(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Send a response whose body is known."""
    await start(send, status, {**headers, "content-length": str(len(body))})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def receive_some(receive: Receive, patience: float) -> tuple[bytes, bool]:
    """Return the next part of a call's body, and whether more follows.

    Raises `Disconnected`, and ``TimeoutError`` after ``patience`` seconds without a part.
    """
    async with asyncio.timeout(patience):
        message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message.get("body", b""), message.get("more_body", False)
