"""Migration of an older ledger to this version's schema, in one transaction.

A file is copied first. A server's transaction changes the tables too, or nothing.
"""

from __future__ import annotations

import filecmp
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Table,
    delete,
    exists,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import LedgerError
from claude_batch.core.files import sweep_beside
from claude_batch.ledger.backends.backend import RETRY, Backend
from claude_batch.ledger.backends.sqlite_file import (
    PARTIAL,
    copy_ledger,
    fault_of,
    ledger_error,
    why_forbidden,
)
from claude_batch.ledger.portable_sql import meta_number, put_meta
from claude_batch.ledger.schema import (
    OF_REQUESTS,
    SCHEMA_VERSION,
    batches,
    metadata,
    requests,
    workspaces,
)

MIGRATION_PATIENCE = 15.0
"""Seconds for which a process waits while another one migrates a schema, or has died doing so."""

_log = logging.getLogger(__name__)


def add_what_is_missing(tx: Connection) -> None:
    """Add the tables, columns and indexes of the schema that the ledger lacks.

    Existing tables and rows stay as they are. If a version only adds, nothing else is needed.
    """
    there = inspect(tx)
    tables = set(there.get_table_names())
    metadata.create_all(tx)
    for table in metadata.sorted_tables:
        if table.name not in tables:
            continue
        columns = {column["name"] for column in there.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                tx.exec_driver_sql(_add_column(tx, table, column))
        indexes = {index["name"] for index in there.get_indexes(table.name)}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in indexes:
                tx.execute(CreateIndex(index))


def _add_column(tx: Connection, table: Table, column: Column[object]) -> str:
    words = str(CreateColumn(column).compile(dialect=tx.dialect))
    # The schema writes foreign keys below the columns, which ALTER TABLE does not allow.
    for key in column.foreign_keys:
        words += f" REFERENCES {key.column.table.name} ({key.column.name})"
    return f"ALTER TABLE {table.name} ADD COLUMN {words}"


_FORMER_INDEXES = (
    (1, 2, "ix_requests_batch"),
    (1, 6, "ix_results_batch"),
    (2, 8, "ix_calls_digest"),
)
"""The first version with an index, and the one that last changed it. Between them it is dropped, so
that it is created again.
"""


def _allow_equal_ids(tx: Connection) -> None:
    """Allow batches of two workspaces to have the same id."""
    # SQLite cannot drop a constraint, so the table is created again. Other tables refer to it by
    # name (https://www.sqlite.org/lang_altertable.html#otheralter).
    names = ", ".join(column.name for column in batches.columns)
    words = str(CreateTable(batches).compile(dialect=tx.dialect))
    tx.exec_driver_sql(words.replace("CREATE TABLE batches", "CREATE TABLE next_batches", 1))
    tx.exec_driver_sql(f"INSERT INTO next_batches ({names}) SELECT {names} FROM batches")
    tx.exec_driver_sql("DROP TABLE batches")
    tx.exec_driver_sql("ALTER TABLE next_batches RENAME TO batches")
    for index in sorted(batches.indexes, key=lambda index: str(index.name)):
        tx.execute(CreateIndex(index))


def _move_charges(tx: Connection) -> None:
    """Move what budgets count to a table of its own, where each column always means the same."""
    columns = {column["name"] for column in inspect(tx).get_columns("batch_runs")}
    # The first version had no budgets, and the first ledgers of version 2 kept less.
    if "reserved" in columns:
        if "kept" not in columns:
            tx.exec_driver_sql("ALTER TABLE batch_runs ADD COLUMN kept BIGINT")
        for statement in _TO_CHARGES:
            tx.exec_driver_sql(statement)


_TO_CHARGES = (
    # ``reserved`` of a collected or unresolved batch was in doubt, and in others under way. Without
    # the sum that its state asks for, a row was not counted yet.
    """
    INSERT INTO charges (batch_id, run_id, actor, day, reserved, spent, doubt)
    SELECT m.batch_id, m.run_id, r.actor, coalesce(b.day, CAST(b.created / 86400 AS INTEGER)),
        CASE WHEN b.state IN ('collected', 'unresolved') THEN 0 ELSE m.reserved END,
        coalesce(m.spent, 0),
        coalesce(m.kept, 0)
            + CASE WHEN b.state IN ('collected', 'unresolved') THEN m.reserved ELSE 0 END
    FROM batch_runs m JOIN batches b ON b.id = m.batch_id JOIN runs r ON r.id = m.run_id
    WHERE b.state != 'rejected' AND m.reserved IS NOT NULL
        AND (b.state != 'collected' OR m.spent IS NOT NULL)
    """,
    "CREATE TABLE IF NOT EXISTS removed_costs (actor VARCHAR, day INTEGER, spent BIGINT)",
    """
    INSERT INTO charges (batch_id, run_id, actor, day, reserved, spent, doubt)
    SELECT 0, 'removed ' || day || ' ' || actor, actor, day, 0, spent, 0 FROM removed_costs
    """,
    "DROP TABLE removed_costs",
    "ALTER TABLE batch_runs DROP COLUMN reserved",
    "ALTER TABLE batch_runs DROP COLUMN spent",
    "ALTER TABLE batch_runs DROP COLUMN kept",
)


def _repair(tx: Connection) -> None:
    """Repair what earlier versions left behind."""
    # Earlier versions stored this reason as words that begin with it.
    limit = "batches_per_hour"
    was_limit = workspaces.c.wait_reason.startswith(f"{limit} ", autoescape=True)
    tx.execute(update(workspaces).where(was_limit).values(wait_reason=limit))
    # A dropped run left rows of its requests, which a new request of the same number would inherit.
    for table in OF_REQUESTS:
        tx.execute(delete(table).where(~exists().where(requests.c.seq == table.c.request_seq)))


_CHANGES: tuple[tuple[int, Callable[[Connection], None]], ...] = (
    (3, _allow_equal_ids),
    (4, _move_charges),
    (9, _repair),
)
"""What else changes in a ledger from before a version, once nothing is missing in it."""


def migrate_file(backend: Backend, path: Path, version: int) -> None:
    """Migrate a ledger in a file to `SCHEMA_VERSION`, or leave it unchanged.

    ``path`` is its file, and ``version`` its present schema version. Raises `LedgerError` if a
    process drives the ledger, if the copy fails, or if the version is unknown.
    """
    _check_known(str(path), version)
    # The transaction comes first: no other process writes from here on, so none takes a new leader
    # lock.
    copy: Path | None = None
    try:
        with backend.writing() as tx:
            if meta_number(tx, "schema_version") != version:
                return  # another process was faster
            _check_writable(tx, path, version)
            with backend.every_leader_lock(_workspace_ids(tx), _why(version)):
                copy = _copy(backend.engine, path, version)
                reach(CrashPoint.DURING_MIGRATION)
                _change_schema(tx, version)
    except BaseException:
        if copy is not None:  # else each attempt would leave one more, until the disk is full
            copy.unlink(missing_ok=True)
        raise
    _log.warning(
        "the ledger %s was migrated from schema version %d to %d; %s is a copy of the old file",
        path,
        version,
        SCHEMA_VERSION,
        copy,
        extra={"for_people": True},
    )


def migrate_schema(backend: Backend, version: int) -> None:
    """Migrate a ledger on a server to `SCHEMA_VERSION`, or leave it unchanged.

    Raises `LedgerError` if a process drives the ledger for longer than a process of this version
    that migrates it, or if the version is unknown.
    """
    _check_known(backend.location, version)
    end = time.monotonic() + MIGRATION_PATIENCE
    while True:
        try:
            _migrate_schema(backend, version)
        except LedgerError as error:
            if error.fault != "busy":
                raise
            if time.monotonic() > end:
                raise _not_migrated(backend.location, version, error) from None
            time.sleep(RETRY)
        else:
            return


def _migrate_schema(backend: Backend, version: int) -> None:
    with backend.engine.connect() as connection, connection.begin():
        if meta_number(connection, "schema_version") != version:
            return  # another process was faster
        ids = _workspace_ids(connection)
    # The leader locks come first: to take one writes, and the transaction excludes every writer.
    # A process of the older version that takes another lock meanwhile can write nothing any more.
    with backend.every_leader_lock(ids, _why(version)), backend.writing() as tx:
        if meta_number(tx, "schema_version") != version:
            return
        # A session that waits for a lock of a table keeps every other session from reading it.
        tx.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        _change_schema(tx, version)
        reach(CrashPoint.DURING_MIGRATION)
    _log.warning(
        "the ledger %s was migrated from schema version %d to %d",
        backend.location,
        version,
        SCHEMA_VERSION,
        extra={"for_people": True},
    )


def _not_migrated(location: str, version: int, cause: LedgerError) -> LedgerError:
    why = _why(version)
    if why in str(cause):
        return cause  # a process drives
    return LedgerError(
        f"the ledger {location} cannot be migrated now, and was not changed: {why}, and a session "
        f"has its tables in use, such as a backup. End it, or try again later ({cause})",
        fault="busy",
    )


def _check_known(location: str, version: int) -> None:
    if version < 1:
        raise LedgerError(
            f"{location} has schema version {version}, which this claude-batch cannot migrate; it "
            "was not changed. Name another ledger",
            fault="version",
        )


def _workspace_ids(tx: Connection) -> Sequence[int]:
    return tx.scalars(select(workspaces.c.id).order_by(workspaces.c.id)).all()


def _why(version: int) -> str:
    return f"this claude-batch brings it from schema version {version} to {SCHEMA_VERSION}"


def _check_writable(tx: Connection, path: Path, version: int) -> None:
    """Raise `LedgerError` if the file cannot be written; SQLite notices it at the first change."""
    try:
        put_meta(tx, "schema_version", version)
    except DBAPIError as error:
        if fault_of(error) != "unusable":
            raise
        raise LedgerError(
            f"the ledger {path} has to be migrated from schema version {version} to "
            f"{SCHEMA_VERSION}, also to be read, but cannot be written: "
            f"{why_forbidden(path) or error.orig}. It was not changed. Run as a user who may write "
            "it, or name a copy of it with --ledger"
        ) from None


def _change_schema(tx: Connection, version: int) -> None:
    if_it_exists = "IF EXISTS " if version == 2 else ""  # the first ledgers of version 2 lack one
    for first, changed, index in _FORMER_INDEXES:
        if first <= version < changed:
            tx.exec_driver_sql(f"DROP INDEX {if_it_exists}{index}")
    add_what_is_missing(tx)
    for changed, change in _CHANGES:
        if version < changed:
            change(tx)
    put_meta(tx, "schema_version", SCHEMA_VERSION)


def _copy(engine: Engine, path: Path, version: int) -> Path:
    there: list[Path] = []
    while True:
        dot = f"-{len(there) + 1}" if there else ""
        target = path.with_name(f"{path.name}.v{version}{dot}.backup")
        try:
            # No other process makes this copy, because it would need the write transaction.
            sweep_beside(target, PARTIAL)
            copy_ledger(engine, target)
        except FileExistsError:
            there.append(target)
        except OSError as error:
            raise LedgerError(
                f"the ledger {path} has to be migrated, but no copy can be made beside it: "
                f"{error.strerror}. It was not changed. Make room, then try again",
                fault="full",
            ) from None
        except sqlite3.Error as error:
            what = f"copied to {os.path.basename(target)}"
            raise ledger_error(path, what, error, written=False) from error
        else:
            for each in there:
                with suppress(OSError):
                    if filecmp.cmp(each, target, shallow=False):
                        target.unlink()
                        return each  # left by a process that was killed before it was done
            return target
