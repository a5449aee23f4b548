"""A cheap check for the commits of other processes, by LISTEN and NOTIFY."""

from __future__ import annotations

import time
from typing import Any

from claude_batch.ledger.backends.postgres_connections import PostgresConnections

_LOOKS_APART = 1.0
"""Seconds between two looks at the server's transactions, for notices that do not arrive: a pooler
may give the connection to others, and a replaced server has forgotten who listens.
"""

_TRANSACTIONS = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
"""Rises with every transaction that writes, in any database of the server."""


class CommitNotices:
    """A connection that listens; see `claude_batch.ledger.backends.backend.Watch`."""

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._connection: Any = None
        self._looked = 0.0
        self._seen = ""
        self.changed()

    def _connected(self) -> Any:
        if self._connection is None:
            # Detached: it is never given to a transaction of the ledger.
            pooled = self._connections.engine.raw_connection()
            driver: Any = pooled.driver_connection
            pooled.detach()
            driver.autocommit = True
            driver.execute(f"LISTEN {self._connections.channel}")
            self._connection = driver
        return self._connection

    def changed(self) -> bool:
        """Return True if another process may have committed since the last call."""
        try:
            connection = self._connected()
            own = self._connections.sender
            heard = [notice for notice in connection.notifies(timeout=0) if notice.payload != own]
            if heard or time.monotonic() - self._looked < _LOOKS_APART:
                return bool(heard)
            self._looked = time.monotonic()
            seen = connection.execute(_TRANSACTIONS).fetchone()[0]
        except self._connections.faults:
            self.close()  # the next call connects again
            raise
        changed, self._seen = seen != self._seen, seen
        return changed

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
