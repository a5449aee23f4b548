"""Who lives and who drives, on several machines: rows that are renewed, and expire.

The operating system cannot tell of a process on another machine. A process therefore renews its row
every few seconds, and is taken for dead when it has not for `TAKE_OVER`. A lease only saves work:
if a process that was taken for dead goes on, the epoch and the token of its seat exclude its
writes, and its POSTs are excluded by the arm window, which is shorter than the lease.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading

from sqlalchemy import Connection, Float, delete, literal_column, select
from sqlalchemy.dialects.postgresql import insert

from claude_batch.ledger.backends.backend import Worker
from claude_batch.ledger.backends.postgres_connections import PostgresConnections
from claude_batch.ledger.backends.postgres_sql import processes, seats

HEARTBEAT = 3.0
"""Seconds between two renewals."""

TAKE_OVER = 10.0
"""Seconds without a renewal after which a process is taken for dead.

Longer than the arm window of 5 s and a heartbeat together: a process that armed a POST within its
lease has sent it, or will not send it any more, when another takes the seat.
"""

_FORGET = 100.0
"""Seconds without a renewal after which the row of a process is removed."""

_NOW = literal_column("CAST(extract(epoch FROM clock_timestamp()) AS float8)", Float)
"""The server's clock, the only one that all processes share."""

_log = logging.getLogger(__name__)


class Leases:
    """The rows of processes and seats of one ledger, and the heartbeat of this process."""

    def __init__(self, connections: PostgresConnections) -> None:
        self.connections = connections
        self.process: str = secrets.token_hex(8)
        """This process's name, once it lives."""
        self._beating: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    # Processes --------------------------------------------------------------------------------

    def live(self) -> str:
        """Begin to renew this process's row, unless it has begun; return the process's name."""
        with self._lock:
            if self._beating is None:
                self._beat()
                self._beating = threading.Thread(
                    target=self._keep_beating, name="claude-batch-heartbeat", daemon=True
                )
                self._beating.start()
        return self.process

    def _keep_beating(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            try:
                self._beat()
            except self.connections.faults as error:
                # The next write of the ledger says so to whoever needs it.
                _log.debug("the heartbeat did not reach the ledger: %s", error)

    def _beat(self) -> None:
        # Not a write of the ledger, so it takes no lock, and never waits for one.
        row = insert(processes).values(
            name=self.process,
            host=socket.gethostname(),
            pid=os.getpid(),
            beat=_NOW,
        )
        with self.connections.engine.connect() as plain:
            connection = plain.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                connection.execute(
                    row.on_conflict_do_update(
                        index_elements=["name"], set_={"beat": row.excluded.beat}
                    )
                )

    def end(self) -> None:
        """Stop renewing, and remove this process and its seats."""
        with self._lock:
            if self._beating is None:
                return
            self._ended.set()
            self._beating.join()
            self._beating = None
            try:
                with self.connections.leasing() as tx:
                    tx.execute(delete(seats).where(seats.c.process == self.process))
                    tx.execute(delete(processes).where(processes.c.name == self.process))
            except self.connections.faults as error:
                _log.info("this process's seat is free only after %g s: %s", TAKE_OVER, error)

    def is_alive(self, process: str) -> bool:
        """Return whether a process has renewed its row lately."""
        with self.connections.engine.connect() as connection, connection.begin():
            return _lives(connection, process)

    def sweep(self) -> None:
        """Remove processes that died long ago, and their seats."""
        with self.connections.leasing() as tx:
            dead = select(processes.c.name).where(processes.c.beat < _now(tx) - _FORGET)
            tx.execute(delete(seats).where(seats.c.process.in_(dead)))
            tx.execute(delete(processes).where(processes.c.name.in_(dead)))

    def workers(self) -> list[Worker]:
        """Return the living processes, and what they drive."""
        with self.connections.engine.connect() as connection, connection.begin():
            now = _now(connection)
            driven: dict[str, list[int]] = {}
            for seat in connection.execute(select(seats).order_by(seats.c.workspace_id)):
                driven.setdefault(seat.process, []).append(seat.workspace_id)
            return [
                Worker(
                    process=row.name,
                    host=row.host,
                    pid=row.pid,
                    seconds_since_heartbeat=max(0.0, now - row.beat),
                    drives=driven.get(row.name, []),
                )
                for row in connection.execute(select(processes).order_by(processes.c.name))
                if row.beat > now - TAKE_OVER
            ]

    # Seats ------------------------------------------------------------------------------------

    def take(self, workspace_id: int, holder: str) -> bool:
        """Take a seat that is free, or whose process is dead; return False if it is held."""
        process = self.live()
        with self.connections.leasing() as tx:
            there = tx.scalar(select(seats.c.process).where(seats.c.workspace_id == workspace_id))
            if there is not None and _lives(tx, there):
                return False
            tx.execute(delete(seats).where(seats.c.workspace_id == workspace_id))
            tx.execute(
                insert(seats).values(
                    workspace_id=workspace_id, process=process, holder=holder, since=_now(tx)
                )
            )
        return True

    def is_taken(self, workspace_id: int) -> bool:
        """Return whether a living process has a seat."""
        with self.connections.engine.connect() as connection, connection.begin():
            there = connection.scalar(
                select(seats.c.process).where(seats.c.workspace_id == workspace_id)
            )
            return there is not None and _lives(connection, there)

    def leave(self, workspace_id: int, holder: str) -> None:
        """Leave a seat, unless another has taken it meanwhile."""
        with self.connections.leasing() as tx:
            tx.execute(
                delete(seats).where(seats.c.workspace_id == workspace_id, seats.c.holder == holder)
            )


def _now(tx: Connection) -> float:
    return float(tx.scalar(select(_NOW)) or 0.0)


def _lives(tx: Connection, process: str) -> bool:
    beat = tx.scalar(select(processes.c.beat).where(processes.c.name == process))
    return beat is not None and beat > _now(tx) - TAKE_OVER


class SeatLease:
    """The leader lock of a workspace."""

    def __init__(self, leases: Leases, workspace_id: int) -> None:
        self._leases = leases
        self._workspace_id = workspace_id
        self._holder = secrets.token_hex(8)

    def take(self) -> bool:
        """Take it; return False if another process holds it. Raises `LedgerError`."""
        with self._leases.connections.translating("used"):
            return self._leases.take(self._workspace_id, self._holder)

    def release(self) -> None:
        """Release it. If the server cannot be reached, it expires."""
        try:
            self._leases.leave(self._workspace_id, self._holder)
        except self._leases.connections.faults as error:
            _log.info("the seat is free only after %g s: %s", TAKE_OVER, error)


class ProcessLease:
    """Shows that this process lives."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.process: str = self._leases.live()

    def release(self) -> None:
        """End it, because no caller waits in this process any more."""
        self._leases.end()
