"""SQLite's own errors as messages with a remedy, its checks of a file, and its online backup."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.states import OPEN
from claude_batch.core.temporary_files import create_beside, flush_folder

SQLITE_VERSION = sqlite3.sqlite_version

# Sqlite errors ------------------------------------------------------------------------------------

_FAULTS: dict[int, LedgerFault] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_IOERR: "full",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}

_CONFLICTS = (
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
)

_REMEDIES: dict[LedgerFault, str] = {
    "full": "Everything stored before is kept; make room on the disk or repair it, then repeat "
    "the command",
    "busy": "Everything stored before is kept; another process has locked the file, so end it "
    "and try again",
    "damaged": "Move it away together with its -wal file, put a backup in its place, then "
    "`claude-batch ledger recover`; or name another with --ledger",
    "conflict": "Everything stored before is kept, but this step is not. It contradicts the "
    "content of the ledger, so it is not tried again; please report it with the output of "
    "`claude-batch ledger show`",
    "unusable": "Everything stored before is kept; correct the cause, or name another ledger "
    "with --ledger",
}


_CHECKED_WHOLE = 4 << 20
"""Size in bytes up to which every page of a ledger is checked, which takes some milliseconds."""


def find_damage(connection: Connection) -> str | None:
    """Return the damage of a ledger in SQLite's words; None if nothing was found.

    In a large ledger only the ends of each table are checked, because rows are added there. Reading
    all of it would take longer than the command. Raises SQLite's own exception at a damaged page.
    """
    driver: Any = connection.connection.dbapi_connection

    def value(sql: str) -> Any:
        return driver.execute(sql).fetchone()[0]

    if value("PRAGMA page_count") * value("PRAGMA page_size") <= _CHECKED_WHOLE:
        problem = str(value("PRAGMA quick_check(1)"))
        return None if problem == "ok" else " ".join(problem.split())
    tables = driver.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in tables:
        driver.execute(
            f'SELECT (SELECT min(rowid) FROM "{name}" NOT INDEXED), '
            f'(SELECT max(rowid) FROM "{name}" NOT INDEXED)'
        ).fetchone()
    return None


def fault_of(error: BaseException) -> LedgerFault:
    """Return the fault that an exception of SQLAlchemy or SQLite stands for."""
    original: Any = getattr(error, "orig", None) or error
    code = int(getattr(original, "sqlite_errorcode", 0) or 0)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return "damaged"
    if code in _CONFLICTS:
        return "conflict"
    # The low byte is the primary code; the extended code is not needed here.
    return _FAULTS.get(code & 0xFF, "unusable")


def ledger_error(
    location: object, what: str, error: BaseException, *, written: bool
) -> LedgerError:
    """Return the error for a ledger that cannot be ``used``, ``read``, ``written`` or the like.

    ``written``: whether this process has written to it before.
    """
    fault = fault_of(error)
    words = f"the ledger {location} cannot be {what}: {getattr(error, 'orig', None) or error}"
    if fault == "damaged":
        return _damaged(words, written=written)
    return LedgerError(f"{words}. {_REMEDIES[fault]}", fault=fault)


def damaged_error(location: object, problem: str, *, written: bool) -> LedgerError:
    """Return the error for a ledger that SQLite's check found damaged."""
    return _damaged(f"the ledger {location} cannot be written: {problem}", written=written)


def _damaged(words: str, *, written: bool) -> LedgerError:
    # "The ledger is unchanged" is never certain: other processes may have it open.
    changed = (
        "This process had written to it before the damage was found"
        if written
        else "This process has written nothing to it"
    )
    return LedgerError(f"{words}. {changed}. {_REMEDIES['damaged']}", fault="damaged")


# Examination --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a ledger's file contains, read without a change to it or to the files beside it."""

    damage: list[str]
    """What SQLite's whole check found, at most `_MOST_PROBLEMS` lines."""
    meta: dict[str, str]
    """The metadata, such as ``schema_version``; empty if the file is no ledger."""
    workspaces: list[dict[str, Any]]
    """The rows of the workspaces, with the columns of the ledger's own schema version."""
    waiting: set[int]
    """The ids of the workspaces in which requests have no outcome yet."""


_MOST_PROBLEMS = 10

_WAITING = (
    "SELECT DISTINCT workspace_id FROM requests JOIN lanes ON lanes.id = lane_id "
    f"WHERE state IN ({', '.join('?' for _ in OPEN)})"
)


def examine(path: Path) -> Examined:
    """Check every page and index of a ledger, and read its metadata. Raises `LedgerError`.

    Unlike `Ledger`, it neither migrates nor recovers, and no log is moved into the file.
    """
    try:
        # A connection that only reads leaves an empty log behind if there was none. Without a log
        # no process has the ledger open, so the file can be read as if it could not change.
        if not _log_of(path).exists():
            found = _examine(path, "immutable=1")
            if not _log_of(path).exists():
                return found
        return _examine(path, "mode=ro")
    except sqlite3.Error as error:
        raise ledger_error(path, "read", error, written=False) from error


def _examine(path: Path, how: str) -> Examined:
    uri = f"{path.resolve().as_uri()}?{how}"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        problems = connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
        rows = connection.execute("SELECT * FROM workspaces") if "workspaces" in tables else ()
        meta = connection.execute("SELECT name, value FROM meta") if "meta" in tables else ()
        waiting = connection.execute(_WAITING, OPEN) if {"requests", "lanes"} <= tables else ()
        return Examined(
            damage=[" ".join(str(row[0]).split()) for row in problems if row[0] != "ok"],
            meta={row["name"]: row["value"] for row in meta},
            workspaces=[dict(row) for row in rows],
            waiting={row["workspace_id"] for row in waiting},
        )


def _log_of(path: Path) -> Path:
    resolved = path.resolve()
    return resolved.with_name(f"{resolved.name}-wal")


# Online copy --------------------------------------------------------------------------------------


def copy_ledger(engine: Engine, target: Path) -> None:
    """Copy all committed data to a new file, which appears complete and flushed.

    Raises `FileExistsError` if the target exists, `OSError`, and `sqlite3.Error`.
    """
    with taking_its_place(target) as temporary, closing(engine.raw_connection()) as source:
        driver: Any = source.driver_connection
        with closing(sqlite3.connect(temporary)) as copy:
            driver.backup(copy)


@contextmanager
def taking_its_place(target: Path) -> Generator[Path]:
    """Yield a temporary file, private to the owner, that becomes ``target`` when the block ends.

    Raises `FileExistsError` if the target exists, and leaves no file behind.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    # It has a separate suffix because SQLite opens the file itself, so it cannot be locked here.
    descriptor, temporary = create_beside(Path(os.path.abspath(target)), "copy.partial")
    os.close(descriptor)
    try:
        yield temporary
        flush(temporary)
        try:
            os.link(temporary, target)  # never overwrites a file that appeared meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    flush_folder(target.parent)


def flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
