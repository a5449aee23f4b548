"""A local HTTP server that speaks the Messages API and answers each call from the ledger.

Here are its settings, which the command line reads without the gateway's libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from claude_batch.core.errors import ActorConfigurationError

DEFAULT_PORT: Final = 8788

LARGEST_BODY: Final = 32 * 1024 * 1024
"""Most bytes of a call's body: the Messages API's own limit
(https://platform.claude.com/docs/en/api/overview#request-size-limits)."""

LARGEST_BODIES: Final = 256 * 1024 * 1024
"""Most bytes of all bodies that are being received or encoded; further calls get a 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of a gateway: its address, how long callers wait, and which calls it admits."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes a free port."""
    hold: float = 20.0
    """Seconds before a response begins without an answer. Failures within this time have their true
    status. Some load balancers drop a connection after 30 s without a byte."""
    ping: float = 15.0
    """Seconds between two signs of life to a caller that waits."""
    claude_code_ping: float = 50.0
    """The same for Claude Code, which counts them: after 30 it asks again."""
    tokens: Path | None = None
    """File with the names and hashed tokens of callers; None admits every program here."""
    allowed_hosts: frozenset[str] = frozenset()
    """Further values of the Host header, without a port."""
    allowed_origins: frozenset[str] = frozenset()
    """Web pages that may call the gateway."""
    largest_body: int = LARGEST_BODY
    largest_bodies: int = LARGEST_BODIES

    def __post_init__(self) -> None:
        """Raise `ActorConfigurationError` for an interval without a length.

        Its signs of life would follow each other without an end, and nothing else would be served.
        """
        if not min(self.ping, self.claude_code_ping) > 0:
            raise ActorConfigurationError(
                "--ping: the time between two signs of life must not be 0"
            )
