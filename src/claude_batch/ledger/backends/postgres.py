"""A ledger in a schema of a PostgreSQL database, for several machines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Insert, inspect, text
from sqlalchemy.schema import CreateSchema

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger.backends import postgres_sql
from claude_batch.ledger.backends.backend import (
    PAGE_ROWS,
    Backend,
    Fetches,
    Query,
    Size,
    Weakness,
    Worker,
    Writing,
)
from claude_batch.ledger.backends.commit_notices import CommitNotices
from claude_batch.ledger.backends.leases import Leases, ProcessLease, SeatLease, server_time
from claude_batch.ledger.backends.postgres_connections import PostgresConnections
from claude_batch.ledger.backends.server_clock import ServerClock
from claude_batch.ledger.backends.shared_fetches import SharedFetches
from claude_batch.ledger.schema import metadata

OLDEST_SERVER = 14
"""The oldest supported version of PostgreSQL."""

_REPLICATION = text(
    "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), "
    "(SELECT count(*) FROM pg_stat_replication r WHERE "
    "coalesce(r.state, 'streaming') = 'streaming' AND NOT EXISTS (SELECT 1 FROM "
    "pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))"
)
"""What makes a commit wait for standbys, and how many there are. A user without special rights sees
no state of theirs (https://www.postgresql.org/docs/current/monitoring-stats.html)."""


class PostgresBackend(Backend):
    """A ledger's schema in a database. A forked process cannot share it."""

    faults: tuple[type[BaseException], ...] = PostgresConnections.faults
    outlasts: frozenset[LedgerFault] = frozenset(("unreachable", "busy"))

    def __init__(self, location: str) -> None:
        """Read the URL of a schema, which `create` makes. Raises `LedgerError`."""
        self._connections = PostgresConnections(location)
        self.location: str = self._connections.location
        self.address: str = self.location
        self.engine: Engine = self._connections.engine
        self._schema = self._connections.schema
        self._checked = False
        self._clock = ServerClock()
        self._leases = Leases(self._connections, self._clock)
        self.fetches: Fetches = SharedFetches(self._leases)
        postgres_sql.use_indexes_of(metadata)

    def writer(self, connection: Connection) -> Connection:
        return self._connections.writer(connection)

    def tables(self, connection: Connection) -> list[str]:
        if not self._checked:
            self._check_server(connection)
            self._clock.read(lambda: server_time(connection))
            self._checked = True
        return inspect(connection).get_table_names(schema=self._schema)

    def _check_server(self, connection: Connection) -> None:
        version, encoding, standby = connection.execute(
            text(
                "SELECT current_setting('server_version_num')::int, "
                "current_setting('server_encoding'), pg_is_in_recovery()"
            )
        ).one()
        if version // 10000 < OLDEST_SERVER:
            raise self._refused(
                f"its server is PostgreSQL {version // 10000}, and {OLDEST_SERVER} or newer is "
                "needed"
            )
        if encoding != "UTF8":
            raise self._refused(f"its encoding is {encoding}, and UTF8 is needed")
        if standby:
            raise LedgerError(
                f"the ledger {self.location} is on a standby, which cannot be written; name the "
                "primary server, or try again once this one has been promoted",
                fault="busy",
            )

    def _refused(self, why: str) -> LedgerError:
        return LedgerError(
            f"the ledger {self.location} cannot be used: {why}; nothing was changed. Name another "
            "with --ledger"
        )

    def create(self, tx: Connection) -> None:
        # Even with IF NOT EXISTS, this asks for the right to create schemas.
        if not inspect(tx).has_schema(self._schema):
            tx.execute(CreateSchema(self._schema))
        metadata.create_all(tx)
        postgres_sql.own_tables.create_all(tx)

    def check_empty(self) -> None:
        pass  # A dropped schema leaves nothing beside it that could tell.

    def close(self) -> None:
        self._leases.end()
        self.engine.dispose()

    def find_damage(self, connection: Connection) -> str | None:
        return None  # The server checks its own pages.

    def error(self, what: str, cause: BaseException | str, *, written: bool) -> LedgerError:
        return self._connections.error(what, cause)

    def migrate(self, writing: Writing, version: int) -> None:
        from claude_batch.ledger.migrations import migrate_schema

        migrate_schema(self.location, self.engine, self.every_seat, writing, version)

    def watch(self) -> CommitNotices:
        return CommitNotices(self._connections)

    def backup(self, target: Path) -> None:
        # pg_dump reads a pattern, in which only a quoted name is itself.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", self._schema)
        words = [
            "--format=custom",
            f"--schema={self._schema if plain else self._connections.quoted_schema}",
            f"--file={target}",
            self._connections.database,
        ]
        raise LedgerError(
            f"the ledger {self.location} is copied with PostgreSQL's own tool: "
            f"pg_dump {shlex.join(words)}"
        )

    def checkpoint(self) -> bool:
        return False  # The server does so itself.

    def now(self) -> float:
        return self._clock.now()

    def server(self, tx: Connection) -> str:
        # The timeline rises when a standby is promoted. pg_control_checkpoint() tells only after
        # the next checkpoint.
        return str(
            tx.scalar(
                text(
                    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE "
                    "(pg_control_system()).system_identifier || '-' || "
                    "left(pg_walfile_name(pg_current_wal_lsn()), 8) || '-' || "
                    "(SELECT oid FROM pg_database WHERE datname = current_database()) END"
                )
            )
        )

    def weakness(self) -> Weakness | None:
        with self.engine.connect() as connection:
            commit, names, standbys = connection.execute(_REPLICATION).one()
        if commit == "off":
            return Weakness(
                "synchronous_commit is off: if the server crashes, it forgets the last commits, "
                "and what they sent must be resolved by hand",
                "Set synchronous_commit to on",
            )
        if standbys and (not names or commit == "local"):
            return Weakness(
                "a standby is replicated asynchronously: if it is promoted, it may have forgotten "
                "the last commits, and what they sent must be resolved by hand",
                "Set synchronous_standby_names, and synchronous_commit to on",
            )
        return None

    def size(self) -> Size:
        with self.engine.connect() as connection:
            found = connection.scalar(
                text(
                    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class "
                    "c JOIN pg_namespace n ON n.oid = c.relnamespace "
                    "WHERE n.nspname = :schema AND c.relkind = 'r'"
                ),
                {"schema": self._schema},
            )
        return Size(data=int(found or 0), log=0)

    # Statements -------------------------------------------------------------------------------

    def insert_many(
        self, tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]
    ) -> None:
        postgres_sql.copy_rows(tx, statement, rows)

    def row_pages(
        self, tx: Connection, statement: Query, values: Mapping[str, Any]
    ) -> Generator[list[tuple[Any, ...]]]:
        query, constants = postgres_sql.compiled(tx, statement)
        driver: Any = tx.connection.dbapi_connection
        # A cursor of the server: an ordinary one would bring all rows at once.
        with driver.cursor(name="pages") as cursor:
            cursor.itersize = PAGE_ROWS
            cursor.execute(query, {**constants, **values})
            while rows := cursor.fetchmany(PAGE_ROWS):
                yield rows

    @contextmanager
    def joining_many(self, tx: Connection) -> Generator[None]:
        # Without statistics of a batch the planner expects one row of it, and reads all its
        # requests again for each result.
        tx.exec_driver_sql("SET LOCAL enable_nestloop = off")
        yield
        tx.exec_driver_sql("SET LOCAL enable_nestloop TO DEFAULT")

    # Locks ------------------------------------------------------------------------------------

    def seat_lock(self, workspace_id: int) -> SeatLease:
        return SeatLease(self._leases, workspace_id)

    def seat_is_taken(self, workspace_id: int) -> bool:
        return self._leases.is_taken(workspace_id)

    def process_lock(self, settings: LedgerSettings) -> ProcessLease:
        return ProcessLease(self._leases, settings)

    def is_alive(self, process: str) -> bool:
        return self._leases.is_alive(process)

    def workers(self) -> list[Worker]:
        return self._leases.workers()

    def sweep_locks(self) -> None:
        self._leases.sweep()
