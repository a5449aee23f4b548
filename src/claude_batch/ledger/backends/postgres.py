"""A ledger in a schema of a PostgreSQL database, for several machines."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Cast,
    Connection,
    Float,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.dialects.sqlite.dml import OnConflictDoNothing, OnConflictDoUpdate
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql import functions
from sqlalchemy.sql.compiler import SQLCompiler

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger.backends.backend import (
    PAGE_ROWS,
    Fetches,
    Query,
    Size,
    Weakness,
    Worker,
)
from claude_batch.ledger.backends.leases import (
    LeaderLease,
    Leases,
    SharedFetches,
    own_tables,
    processes,
    server_time,
)
from claude_batch.ledger.backends.postgres_connections import (
    CommitNotices,
    PostgresConnections,
    ServerClock,
)
from claude_batch.ledger.portable_sql import contains
from claude_batch.ledger.schema import SCHEMA_VERSION, metadata

OLDEST_SERVER = 14
"""The oldest supported version of PostgreSQL."""

_REPLICATION = text(
    "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), "
    "(SELECT count(*) FROM pg_stat_replication r WHERE "
    "coalesce(r.state, 'streaming') = 'streaming' AND NOT EXISTS (SELECT 1 FROM "
    "pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))"
)
"""The settings that make a commit wait for standbys, and the number of standbys. A user without
special rights sees no state of theirs
(https://www.postgresql.org/docs/current/monitoring-stats.html)."""


class PostgresBackend(PostgresConnections):
    """A ledger's schema in a database. A forked process cannot share it."""

    outlasts: frozenset[LedgerFault] = frozenset(("unreachable", "busy", "full"))

    def __init__(self, location: str) -> None:
        """Read the URL of a schema, which `create` makes. Raises `LedgerError`."""
        super().__init__(location)
        self._checked = False
        self._clock = ServerClock()
        self._leases = Leases(self, self._clock)
        self.fetches: Fetches = SharedFetches(self._leases)
        use_indexes_of(metadata)

    def tables(self, connection: Connection) -> list[str]:
        if not self._checked:
            self._check_server(connection)
            self._clock.read(lambda: server_time(connection))
            self._checked = True
        names = inspect(connection).get_table_names(schema=self.schema)
        if {"meta", processes.name} <= set(names):
            # They may hold the lock of all writes, and no process may live that ends them.
            self._leases.end_sessions_of_the_dead()
        return names

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
        if not inspect(tx).has_schema(self.schema):
            tx.execute(CreateSchema(self.schema))
        metadata.create_all(tx)
        own_tables.create_all(tx)

    def close(self) -> None:
        self._leases.release()
        self.engine.dispose()

    def migrate(self, version: int) -> None:
        from claude_batch.ledger.migrations import migrate_schema

        migrate_schema(self, version)

    def watch(self) -> CommitNotices:
        return CommitNotices(self)

    def backup(self, target: Path) -> None:
        # pg_dump reads a pattern, in which only a quoted name is itself.
        plain = re.fullmatch("[a-z_][a-z0-9_]*", self.schema)
        words = [
            "--format=custom",
            f"--schema={self.schema if plain else self.quoted_schema}",
            f"--file={target}",
            self.database,
        ]
        raise LedgerError(
            f"the ledger {self.location} is copied with PostgreSQL's own tool: "
            f"pg_dump {shlex.join(words)}"
        )

    def now(self) -> float:
        return self._clock.now()

    def server(self, tx: Connection) -> str:
        # The timeline rises when a standby is promoted. pg_control_checkpoint() shows it only after
        # the next checkpoint. A table that is restored in its old place has another oid.
        return str(
            tx.scalar(
                text(
                    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE "
                    "(pg_control_system()).system_identifier || '-' || "
                    "left(pg_walfile_name(pg_current_wal_lsn()), 8) || '-' || "
                    "(SELECT oid FROM pg_database WHERE datname = current_database()) || '-' || "
                    "CAST(CAST(:meta AS regclass) AS oid) END"
                ),
                {"meta": f"{self.quoted_schema}.meta"},
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
                {"schema": self.schema},
            )
        return Size(data=int(found or 0), log=0)

    # Statements -------------------------------------------------------------------------------

    def insert_many(
        self, tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]
    ) -> int:
        # COPY costs a tenth of an INSERT for each row. An insert with constants or with ON CONFLICT
        # goes through a temporary table.
        known = _copies.get(statement)
        if known is None:
            known = _copies[statement] = _as_copy(tx, statement)
        count = 0
        for part in _parts(rows, known.key):
            if known.staging:
                tx.exec_driver_sql(known.staging)
            _write_rows(tx, known.copy, known.types, part)
            count += tx.exec_driver_sql(known.insert).rowcount if known.staging else len(part)
        return count

    def row_pages(
        self, tx: Connection, statement: Query, values: Mapping[str, Any]
    ) -> Generator[list[tuple[Any, ...]]]:
        query, constants = compiled(tx, statement)
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

    def leader_lock(self, workspace_id: int) -> LeaderLease:
        return LeaderLease(self._leases, workspace_id)

    def has_leader(self, workspace_id: int) -> bool:
        return self._leases.is_taken(workspace_id)

    def process_lock(self, settings: LedgerSettings) -> Leases:
        self._leases.live(settings)
        return self._leases

    def is_alive(self, process: str) -> bool:
        return self._leases.is_alive(process)

    def workers(self) -> list[Worker]:
        return self._leases.workers()

    def sweep_locks(self) -> None:
        self._leases.sweep()


def use_indexes_of(metadata: MetaData) -> None:
    """Make the partial indexes of a schema partial here too."""
    for table in metadata.tables.values():
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


# Functions ----------------------------------------------------------------------------------------
#
# The ledger's modules write SQL once. Where SQLite and PostgreSQL differ in the name of a function
# or in how it rounds, the difference is here.


@compiles(functions.sum, "postgresql")
def _sum(element: functions.sum[Any], compiler: SQLCompiler, **how: Any) -> str:
    # A sum of bigint is numeric, which the driver returns as Decimal.
    return f"CAST(sum({compiler.process(element.clauses, **how)}) AS BIGINT)"


@compiles(functions.max, "postgresql")
def _max(element: functions.max[Any], compiler: SQLCompiler, **how: Any) -> str:
    name = "greatest" if len(element.clauses) > 1 else "max"
    return f"{name}({compiler.process(element.clauses, **how)})"


@compiles(functions.min, "postgresql")
def _min(element: functions.min[Any], compiler: SQLCompiler, **how: Any) -> str:
    name = "least" if len(element.clauses) > 1 else "min"
    return f"{name}({compiler.process(element.clauses, **how)})"


@compiles(Cast, "postgresql")
def _cast(element: Cast[Any], compiler: SQLCompiler, **how: Any) -> str:
    # SQLite cuts the fraction off, where PostgreSQL rounds: a day would begin at noon.
    inner = compiler.process(element.clause, **how)
    if isinstance(element.type, Integer) and isinstance(element.clause.type, Float):
        return f"CAST(trunc(CAST({inner} AS numeric)) AS BIGINT)"
    return f"CAST({inner} AS {compiler.process(element.typeclause, **how)})"


@compiles(contains, "postgresql")
def _contains(element: contains, compiler: SQLCompiler, **how: Any) -> str:
    whole, part = (compiler.process(each, **how) for each in element.clauses)
    return f"(position({part} in {whole}) > 0)"


@compiles(OnConflictDoUpdate, "postgresql")
@compiles(OnConflictDoNothing, "postgresql")
def _on_conflict(element: Any, compiler: Any, **how: Any) -> str:
    # The clause of `upsert` is SQLite's, and lacks only the name of a constraint.
    element.constraint_target = None
    if isinstance(element, OnConflictDoNothing):
        return compiler.visit_on_conflict_do_nothing(element, **how)
    return compiler.visit_on_conflict_do_update(element, **how)


# Many rows ----------------------------------------------------------------------------------------

_queries: dict[Query, tuple[str, dict[str, Any]]] = {}
"""Compiled queries, and the values of their constant parameters.

It keeps the statements. The id of one that is gone would be that of another one later.
"""


def compiled(tx: Connection, statement: Query) -> tuple[str, dict[str, Any]]:
    """Return a query's SQL with named parameters, and the values of the constant ones."""
    known = _queries.get(statement)
    if known is None:
        done = statement.compile(dialect=tx.dialect, compile_kwargs={"render_postcompile": True})
        known = _queries[statement] = (str(done), dict(done.params))
    return known


class _Copy(msgspec.Struct, frozen=True):
    """An insert of many rows as COPY."""

    copy: str
    types: list[str]
    staging: str = ""
    """Creates a temporary table, for an insert that is more than rows."""
    insert: str = ""
    """Inserts what the temporary table holds."""
    key: tuple[int, ...] = ()
    """Places of the primary key in a row, if the insert has ON CONFLICT."""


_copies: dict[Insert, _Copy] = {}


def copy_table(tx: Connection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows as they come by one COPY, in the order of the table's columns."""
    types = [_TYPES[type(column.type)] for column in table.columns]
    _write_rows(tx, f"COPY {table.name} FROM STDIN (FORMAT BINARY)", types, rows)


def _write_rows(
    tx: Connection, copy: str, types: list[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    driver: Any = tx.connection.dbapi_connection
    with driver.cursor() as cursor, cursor.copy(copy) as sink:
        sink.set_types(types)
        for row in rows:
            sink.write_row(row)


def _parts(
    rows: Sequence[tuple[Any, ...]], key: tuple[int, ...]
) -> Iterable[Sequence[tuple[Any, ...]]]:
    """Split rows, so that no part has two of one key.

    PostgreSQL refuses ON CONFLICT for two of one statement; in SQLite the second meets the first.
    """
    if not key or len({tuple(row[place] for place in key) for row in rows}) == len(rows):
        return [rows]
    seen: Counter[tuple[Any, ...]] = Counter()
    parts: list[list[tuple[Any, ...]]] = []
    for row in rows:
        name = tuple(row[place] for place in key)
        if seen[name] == len(parts):
            parts.append([])
        parts[seen[name]].append(row)
        seen[name] += 1
    return parts


_VALUES = re.compile(r"(.*) VALUES \(((?:%\(\w+\)s|[^()])*)\) ?(.*)", re.DOTALL)
"""An INSERT: what comes before its values, the values, and what follows them."""

_BOUND = re.compile(r"%\((\w+)\)s(?:::\w+)?")
"""A parameter with its type."""


def _as_copy(tx: Connection, statement: Insert) -> _Copy:
    table = statement.table
    names = [column.name for column in table.columns]
    words = str(statement.compile(dialect=tx.dialect, column_keys=names))
    found = _VALUES.fullmatch(words)
    assert found is not None, words
    before, values, after = found.groups()
    given: list[str] = _BOUND.findall(values)
    types = [_TYPES[type(table.c[name].type)] for name in given]
    listed, chosen = ", ".join(given), _BOUND.sub(r"\1", values)
    if chosen == listed and not after:
        copy = f"COPY {table.name} ({listed}) FROM STDIN (FORMAT BINARY)"
        return _Copy(copy, types)
    # A pooler may give the session to a process of another version.
    staged = f"staged_{table.name}_{SCHEMA_VERSION}"
    return _Copy(
        f"COPY {staged} ({listed}) FROM STDIN (FORMAT BINARY)",
        types,
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} ON COMMIT DELETE ROWS AS TABLE "
        f"{table.name} WITH NO DATA; TRUNCATE {staged}",
        f"{before} SELECT {chosen} FROM {staged} {after}",
        tuple(given.index(column.name) for column in table.primary_key) if after else (),
    )


_TYPES: dict[type[Any], str] = {
    BigInteger: "int8",
    Boolean: "bool",
    Float: "float8",
    Integer: "int4",
    LargeBinary: "bytea",
    String: "text",
    Text: "text",
}
"""PostgreSQL's types of the schema's, for COPY in its binary format."""
