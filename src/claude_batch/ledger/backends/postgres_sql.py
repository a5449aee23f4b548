"""How SQLAlchemy's statements of the ledger are written for PostgreSQL.

The ledger's modules write SQL once. Where SQLite and PostgreSQL differ in what a function is called
or how it rounds, the difference is here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Cast,
    Column,
    Connection,
    Float,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.sqlite.dml import OnConflictDoNothing, OnConflictDoUpdate
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import functions
from sqlalchemy.sql.compiler import SQLCompiler

from claude_batch.ledger.portable_sql import contains, json_number

own_tables: MetaData = MetaData()
"""Tables that only this backend has: who lives, who drives, and who fetches."""

processes: Table = Table(
    "processes",
    own_tables,
    Column("name", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("machine", String, nullable=False),  # which pids it shares with others; "" if unknown
    Column("begun", BigInteger, nullable=False),  # tells it from a later process with its pid
    Column("beat", Float, nullable=False),  # this and the next by the server's clock
    Column("expires", Float, nullable=False),
    Column("settings", Text, nullable=False),  # those that all need to have in common, or ""
)

seats: Table = Table(
    "seats",
    own_tables,
    Column("workspace_id", BigInteger, primary_key=True, autoincrement=False),
    Column("process", String, nullable=False),
    Column("holder", String, nullable=False),  # one lock object of the process
    Column("since", Float, nullable=False),
)

fetches: Table = Table(
    "fetches",
    own_tables,
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("workspace_id", BigInteger, nullable=False),
    Column("process", String, nullable=False),  # "" while the batch is only offered
    Column("holder", String, nullable=False),  # one claim of the process
    Column("done", Boolean, nullable=False),  # whether all results are stored
)


def lock_number(schema: str) -> int:
    """Return the number of the advisory lock of a schema's writes, 64 bits with a sign."""
    digest = hashlib.blake2b(f"claude-batch {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def use_indexes_of(metadata: MetaData) -> None:
    """Make the partial indexes of a schema partial here too."""
    for table in metadata.tables.values():
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]


# Functions ----------------------------------------------------------------------------------------


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


@compiles(json_number, "postgresql")
def _json_number(element: json_number, compiler: SQLCompiler, **how: Any) -> str:
    document, name = (compiler.process(each, **how) for each in element.clauses)
    return f"CAST((CAST({document} AS json) ->> CAST({name} AS text)) AS BIGINT)"


@compiles(OnConflictDoUpdate, "postgresql")
@compiles(OnConflictDoNothing, "postgresql")
def _on_conflict(element: Any, compiler: Any, **how: Any) -> str:
    # The clause of `upsert` is SQLite's, and lacks only the name of a constraint.
    element.constraint_target = None
    if isinstance(element, OnConflictDoNothing):
        return compiler.visit_on_conflict_do_nothing(element, **how)
    return compiler.visit_on_conflict_do_update(element, **how)


# Many rows ----------------------------------------------------------------------------------------

_queries: dict[int, tuple[str, dict[str, Any]]] = {}
"""Compiled queries, and the values of their constant parameters."""


def compiled(tx: Connection, statement: Any) -> tuple[str, dict[str, Any]]:
    """Return a query's SQL with named parameters, and the values of the constant ones."""
    known = _queries.get(id(statement))
    if known is None:
        done = statement.compile(dialect=tx.dialect, compile_kwargs={"render_postcompile": True})
        known = _queries[id(statement)] = (str(done), dict(done.params))
    return known


@dataclass(frozen=True, slots=True)
class _Copy:
    """An insert of many rows as COPY."""

    statement: Insert
    copy: str
    types: list[str]
    staging: str = ""
    """Creates a temporary table, for an insert that is more than rows."""
    insert: str = ""
    """Inserts what the temporary table holds."""
    key: tuple[int, ...] = ()
    """Places of the primary key in a row, if the insert has ON CONFLICT."""


_copies: dict[int, _Copy] = {}


def copy_rows(tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows by COPY, which costs a tenth of an INSERT for each row.

    An insert with constants or with ON CONFLICT goes through a temporary table.
    """
    known = _copies.get(id(statement))
    if known is None or known.statement is not statement:
        known = _copies[id(statement)] = _as_copy(tx, statement)
    for part in _parts(rows, known.key):
        if known.staging:
            tx.exec_driver_sql(known.staging)
        _write_rows(tx, known.copy, known.types, part)
        if known.staging:
            tx.exec_driver_sql(known.insert)


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


def _as_copy(tx: Connection, statement: Insert) -> _Copy:
    table = statement.table
    names = [column.name for column in table.columns]
    words = str(statement.compile(dialect=tx.dialect, column_keys=names))
    before, _, rest = words.partition(" VALUES (")
    columns = [each.strip() for each in before[before.index("(") + 1 : -1].split(",")]
    values, after = _split_values(rest)
    chosen = [
        name if value.startswith("%(") else value
        for name, value in zip(columns, values, strict=True)
    ]
    given = [name for name in columns if name in chosen]
    types = [_TYPES[type(table.c[name].type)] for name in given]
    listed = ", ".join(given)
    if given == columns and not after:
        copy = f"COPY {table.name} ({listed}) FROM STDIN (FORMAT BINARY)"
        return _Copy(statement, copy, types)
    staged = f"staged_{table.name}"
    return _Copy(
        statement,
        f"COPY {staged} ({listed}) FROM STDIN (FORMAT BINARY)",
        types,
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} ON COMMIT DELETE ROWS AS TABLE "
        f"{table.name} WITH NO DATA; TRUNCATE {staged}",
        f"{before} SELECT {', '.join(chosen)} FROM {staged} {after}",
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


def _split_values(words: str) -> tuple[list[str], str]:
    """Split ``a, f(b, c)) ON CONFLICT …`` into the values and what follows them."""
    values: list[str] = []
    depth = begun = 0
    for place, letter in enumerate(words):
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter == ")":
            values.append(words[begun:place].strip())
            return values, words[place + 1 :].strip()
        elif letter == "," and not depth:
            values.append(words[begun:place].strip())
            begun = place + 1
    raise AssertionError(words)
