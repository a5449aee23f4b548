"""Pages that show a ledger: its runs, their requests, and what they cost.

Here are their settings, which the command line reads without the dashboard's libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_PORT: Final = 8790

TOKEN_VARIABLE: Final = "CLAUDE_BATCH_DASHBOARD_TOKEN"

SHORTEST_TOKEN: Final = 16
"""Characters of a token. A shorter one could be found by trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Settings of a dashboard: its address, who may log in, and what its pages may change."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes a free one."""
    token: str | None = None
    """What a browser must send to see anything; None admits every program of this machine."""
    allowed_hosts: frozenset[str] = frozenset()
    """Further values of the Host header, without a port."""
    allow_actions: bool = False
    """Whether pages may cancel, retry, raise budgets and decide unknown sendings."""
    prices: str | None = None
    """A file of prices, by which a changed budget counts earlier requests."""
