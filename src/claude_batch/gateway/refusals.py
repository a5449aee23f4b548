"""Responses of the gateway itself, in the shape of the API's errors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from claude_batch.gateway.asgi import Send, send_whole


class Refusal(Exception):
    """A call that the gateway does not take."""

    def __init__(
        self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """``kind`` is one of the API's error types."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers: dict[str, str] = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The API's error object."""
        fault = {"type": self.kind, "message": str(self)}
        return msgspec.json.encode({"type": "error", "error": fault, "request_id": None})

    async def send(self, send: Send) -> None:
        """Send it as a whole response."""
        await send_whole(
            send,
            self.status,
            {"content-type": "application/json", "x-should-retry": "false", **self.headers},
            self.body,
        )


def ending() -> Refusal:
    """Return the refusal of a call that comes, or is held, while the gateway ends."""
    return Refusal(
        503,
        "api_error",
        "the gateway is shutting down; its requests stay in the ledger, and the same call gets its "
        "answer after the restart",
        # The SDKs retry a 503 after this many seconds.
        {"retry-after": "5", "x-should-retry": "true"},
    )
