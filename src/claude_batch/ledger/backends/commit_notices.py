"""A cheap check for the commits of other processes, by LISTEN and NOTIFY."""

from __future__ import annotations

import secrets
import time
from typing import Any

from claude_batch.ledger.backends.postgres_connections import PostgresConnections

_LOOKS_APART = 1.0
"""Seconds between two looks at the ledger where notices do not arrive: a pooler may give the
connection to others.
"""

_PROOFS_APART = 10.0
"""Seconds between two notices of its own, which prove that notices arrive."""

_PROOF_HOLDS = 15.0
"""Seconds after which a proof is too old."""


class CommitNotices:
    """A connection that listens; see `claude_batch.ledger.backends.backend.Watch`.

    It notifies itself, to learn whether notices arrive. While they do not, it reports a possible
    commit every second.
    """

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._connection: Any = None
        self._own_channel = f"{connections.channel}_{secrets.token_hex(8)}"
        self._asked = self._proved = self._looked = float("-inf")
        self.changed()

    def _connect(self) -> Any:
        # Detached: it is never given to a transaction of the ledger.
        pooled = self._connections.engine.raw_connection()
        driver: Any = pooled.driver_connection
        pooled.detach()
        driver.autocommit = True
        self._connection = driver
        self._asked = self._proved = float("-inf")
        driver.execute(f"LISTEN {self._connections.channel}")
        driver.execute(f"LISTEN {self._own_channel}")
        return driver

    def changed(self) -> bool:
        """Return True if a process may have committed since the last call."""
        now = time.monotonic()
        try:
            connection = self._connection or self._connect()
            notices = list(connection.notifies(timeout=0))
            if now - self._asked > _PROOFS_APART:
                connection.execute(f"NOTIFY {self._own_channel}")
                self._asked = now
        except self._connections.faults:
            self.close()  # the next call connects again
            raise
        if any(notice.channel == self._own_channel for notice in notices):
            self._proved = now
        # As with a file, commits of this process count: much that waits here waits for them.
        changed = any(notice.channel == self._connections.channel for notice in notices)
        if now - self._proved > _PROOF_HOLDS and now - self._looked > _LOOKS_APART:
            changed = True
        if changed:
            self._looked = now
        return changed

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
