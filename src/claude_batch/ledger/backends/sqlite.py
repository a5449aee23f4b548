"""A ledger in a file of SQLite."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Insert, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from claude_batch.core.errors import LedgerError
from claude_batch.core.files import sibling
from claude_batch.core.settings import LedgerSettings, in_home, without_password
from claude_batch.ledger.backends import sqlite_file
from claude_batch.ledger.backends.backend import (
    PAGE_ROWS,
    Backend,
    Patience,
    Query,
    Size,
    written_ledgers,
)
from claude_batch.ledger.schema import metadata

PAGE_BYTES = 8192
"""Page size of new ledgers. With SQLite's 4096 bytes, a large run reads and writes twice as many
pages, which takes a third more of the system's time; larger pages gain little and make small
transactions write more.
"""

_CACHE_KIB, _LARGE_CACHE_KIB = 2000, 8000
"""Memory for pages in a connection: SQLite's default, and while it inserts `_MANY_ROWS` or more.

A chunk of results changes more pages than fit into the default, so some would be written twice:
storing 100,000 results takes a quarter more CPU. Each connection of a process has a cache.
"""
_MANY_ROWS = 1000

_LOG_PAGES = 8192
"""Size in pages at which a commit moves the write-ahead log into the file: 64 MiB in new ledgers. A
driver does so much sooner, so that commits of other processes do not pay for it.
"""

_LOG_BYTES = 4 << 20
"""Size in bytes from which a driver moves the log into the file."""

_BUSY_SECONDS = 60.0
"""Seconds that a write waits for another process's transaction. No transaction here lasts that
long.
"""

_BUSY_SLICE = 0.5
"""Seconds after which such a wait looks whether it may go on; nothing else ends it in SQLite."""


class SqliteBackend(Backend):
    """A ledger's file. A forked process cannot share it."""

    faults: tuple[type[BaseException], ...] = (DBAPIError, sqlite3.Error)
    path: Path
    is_new: bool = False
    """Whether this object has created the file."""

    def __init__(self, location: str) -> None:
        """Open or create the file at a path or SQLAlchemy URL. Raises `LedgerError`."""
        if why := sqlite_file.version_fault():
            raise LedgerError(why)
        self.location: str = location
        self.patience: Patience = Patience()
        self.path = path_of(location)
        file = str(self._file(self.path))
        self.address: str = file
        if "://" in location:
            url = _url_of(location).set(database=file)
        else:
            # Not as text, because a `?` in the path would begin the URL's options.
            url = URL.create("sqlite", database=file)
        try:
            self.engine: Engine = create_engine(url, hide_parameters=True)
        except (ArgumentError, ImportError) as error:
            raise _unusable_url(location, error) from None
        found = self._stat()
        self._file_opened = found and (found.st_dev, found.st_ino)
        self._size = found.st_size if found else 0
        event.listen(self.engine, "do_connect", self._on_opening)
        event.listen(self.engine, "connect", _on_connect)
        event.listen(self.engine, "begin", self._on_begin)
        event.listen(self.engine, "checkin", _on_checkin)

    def _file(self, path: Path) -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = path.resolve()
            if path.is_dir():
                raise sqlite_file.folder_error(path)
            if not path.exists():
                # Created here, so that other users can never read it, not even briefly.
                with suppress(FileExistsError):
                    os.close(
                        os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                    )
                    self.is_new = True
            elif not path.stat().st_size and sqlite_file.leader_lock_files(path):
                # Checked before SQLite opens the file, because SQLite would create a new database
                # in it.
                raise self._emptied(path)
        except OSError as error:
            why = error.strerror
            if isinstance(error, FileExistsError):
                why = f"{path.parent} is not a folder"
            raise LedgerError(
                f"the ledger {path} cannot be opened: {why}; "
                "name another with --ledger or CLAUDE_BATCH_LEDGER"
            ) from None
        # Only SQLite opens an existing ledger. Closing any other descriptor drops the locks of this
        # process's own connections, and another process could then delete the log in use
        # (https://www.sqlite.org/howtocorrupt.html, 2.2).
        return path

    def _emptied(self, path: Path) -> LedgerError:
        return LedgerError(
            f"the ledger {path} is empty, although it was used before, as the lock files beside "
            "it show: it was truncated, or copied without its -wal file. It was not changed. Put "
            "a backup in its place, then run `claude-batch ledger recover`; or move it away to "
            "begin a new ledger",
            fault="damaged",
        )

    def _on_begin(self, connection: Connection) -> None:
        if not connection.get_execution_options().get("claude_batch_write", False):
            connection.exec_driver_sql("BEGIN DEFERRED")
            return
        begun = time.monotonic()
        driver: Any = connection.connection.dbapi_connection
        _set_busy_timeout(driver, _BUSY_SLICE)
        try:
            _execute(driver, "BEGIN IMMEDIATE", lambda: self.patience.ends(begun, _BUSY_SECONDS))
        finally:
            _set_busy_timeout(driver, _BUSY_SECONDS)

    def writer(self, connection: Connection) -> Connection:
        return connection.execution_options(claude_batch_write=True)

    def tables(self, connection: Connection) -> list[str]:
        return inspect(connection).get_table_names()

    def create(self, tx: Connection) -> None:
        # Asked once, not once for each table: one transaction creates all of them, or none.
        if not self.tables(tx):
            metadata.create_all(tx, checkfirst=False)

    def check_place(self) -> None:
        # SQLite keeps the file open, so that a process would not notice otherwise.
        before = self._size  # read first: another thread may see the file grow meanwhile
        found = self._check_there()
        if found.st_size < before:
            raise LedgerError(
                f"the ledger {self.path} became smaller while this process had it open, as if an "
                "older copy was written over it. If it was, end each process that uses it, move it "
                "away together with its -wal file, put the copy in its place, then `claude-batch "
                "ledger recover`. After a VACUUM, restart this process",
                fault="damaged",
            )
        self._size = found.st_size

    def _check_there(self) -> os.stat_result:
        found = self._stat()
        if found is None or (found.st_dev, found.st_ino) != self._file_opened:
            raise LedgerError(
                f"the ledger {self.path} was removed or replaced by another file after this "
                "process had opened it; nothing was changed. Put it or a backup in its place, "
                "because a new ledger sends the same requests again. Then restart this process",
                fault="damaged",
            )
        return found

    def _on_opening(
        self, _dialect: object, _record: object, arguments: list[Any], keywords: dict[str, Any]
    ) -> None:
        """Let no further connection of this process make a new file where the ledger was."""
        self._check_there()
        arguments[0] = f"{Path(self.address).as_uri()}?mode=rw"
        keywords["uri"] = True

    def _stat(self) -> os.stat_result | None:
        try:
            return self._resolved.stat()
        except OSError:
            return None

    def check_empty(self) -> None:
        if not self.is_new and sqlite_file.leader_lock_files(self.path):
            raise self._emptied(self.path)

    def find_damage(self, connection: Connection) -> str | None:
        return None if self.is_new else sqlite_file.find_damage(connection)

    def error(self, what: str, cause: BaseException | str) -> LedgerError:
        is_written = self.address in written_ledgers
        return sqlite_file.ledger_error(self.location, what, cause, written=is_written)

    def migrate(self, version: int) -> None:
        from claude_batch.ledger.migrations import migrate_file

        migrate_file(self, self._resolved, version)

    def watch(self) -> DataVersion:
        return DataVersion(self)

    def backup(self, target: Path) -> None:
        sqlite_file.copy_ledger(self.engine, target)

    def checkpoint(self) -> bool:
        # It neither waits for nor blocks another connection. Pages that readers still need stay for
        # the next call.
        if self._log_size() < _LOG_BYTES:
            return False
        with closing(self.engine.raw_connection()) as connection:
            driver: Any = connection.driver_connection
            driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return True

    def _log_size(self) -> int:
        try:
            return sibling(self.path, "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def size(self) -> Size:
        try:
            data = self._resolved.stat().st_size
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be read: {error.strerror}") from None
        return Size(data=data, log=self._log_size())

    @property
    def _resolved(self) -> Path:
        return self.path.expanduser().resolve()

    # Statements -------------------------------------------------------------------------------

    def insert_many(
        self, tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]
    ) -> int:
        # SQLAlchemy compiles the SQL, and the rows go to the driver unchanged. SQLAlchemy's own
        # path builds a dictionary and processes every value, which costs as much as SQLite itself.
        known = _inserts.get(statement)
        if known is None:
            names = [column.name for column in statement.table.columns]
            compiled = statement.compile(dialect=tx.dialect, column_keys=names)
            order = compiled.positiontup or []
            assert order == [name for name in names if name in order] != [], order
            known = _inserts[statement] = (str(compiled), _for_a_block(str(compiled)))
        of_row, of_block = known
        if len(rows) >= _MANY_ROWS and not tx.info.get(_HAS_LARGE_CACHE):
            tx.info[_HAS_LARGE_CACHE] = True
            tx.exec_driver_sql(f"PRAGMA cache_size = -{_LARGE_CACHE_KIB}")
        rest = len(rows) % _BLOCK_ROWS
        whole = len(rows) - rest
        count = 0
        for start in range(0, whole, _BLOCK_ROWS):
            block = rows[start : start + _BLOCK_ROWS]
            count += tx.exec_driver_sql(of_block, tuple(chain.from_iterable(block))).rowcount
        if rest:
            count += tx.exec_driver_sql(of_row, list(rows[whole:])).rowcount
        return count

    def row_pages(
        self, tx: Connection, statement: Query, values: Mapping[str, Any]
    ) -> Generator[list[tuple[Any, ...]]]:
        known = _queries.get(statement)
        if known is None:
            compiled = statement.compile(
                dialect=tx.dialect, compile_kwargs={"render_postcompile": True}
            )
            order = tuple(compiled.positiontup)
            known = _queries[statement] = (str(compiled), order, dict(compiled.params))
        sql, order, constants = known
        given = {**constants, **values} if values else constants
        driver: Any = tx.connection.dbapi_connection
        cursor = driver.cursor()
        try:
            cursor.execute(sql, [given[name] for name in order])
            while rows := cursor.fetchmany(PAGE_ROWS):
                yield rows
        finally:
            cursor.close()

    # Locks ------------------------------------------------------------------------------------

    def leader_lock(self, workspace_id: int) -> sqlite_file.LeaderLockFile:
        return sqlite_file.LeaderLockFile(self._resolved, workspace_id)

    def driver_of(self, workspace_id: int) -> str:
        pid = sqlite_file.holder_of(sqlite_file.leader_lock_file(self.path, workspace_id))
        return "" if pid is None else f"process {pid}"

    def process_lock(self, settings: LedgerSettings) -> sqlite_file.ProcessFile:
        return sqlite_file.ProcessFile(self.path)

    def is_alive(self, process: str) -> bool:
        return sqlite_file.is_alive(self.path, process)

    def sweep_locks(self) -> None:
        sqlite_file.sweep_locks(self.path)


_queries: dict[Query, tuple[str, tuple[str, ...], dict[str, Any]]] = {}
"""Compiled queries: SQL, parameter names in order, and the values of constant parameters.

It keeps the statements. The id of one that is gone would be that of another one later.
"""

_inserts: dict[Insert, tuple[str, str]] = {}
"""Compiled SQL of the few statements that insert many rows: for one row, and for `_BLOCK_ROWS`."""

_BLOCK_ROWS = 250
"""Rows of one statement in `insert_many`.

Starting a statement for each row costs as much as storing a narrow one. More rows gain nothing, and
250 stay far below SQLite's limit of 32,766 values.
"""


def _for_a_block(of_row: str) -> str:
    """Return the SQL that inserts `_BLOCK_ROWS` rows, from the SQL that inserts one."""
    # OR FAIL: SQLite would otherwise keep a copy of every page that the statement changes, to undo
    # it alone after an error. Here an error undoes the whole transaction.
    of_row = of_row.replace("INSERT INTO", "INSERT OR FAIL INTO", 1)
    before, word, after = of_row.partition(" VALUES ")
    values, end, clauses = after.partition(")")
    assert values.count("?") == of_row.count("?"), of_row
    return before + word + ", ".join([values + end] * _BLOCK_ROWS) + clauses


def path_of(location: str) -> Path:
    """Return the file of a ledger's path or SQLAlchemy URL. Raises `LedgerError`."""
    if "://" not in location:
        return in_home(f"the ledger {location}", Path(location).expanduser)
    return Path(_url_of(location).database or "")


def _url_of(location: str) -> URL:
    try:
        url = make_url(location)
    except (ArgumentError, ValueError) as error:
        raise _unusable_url(location, error) from None
    if url.get_backend_name() != "sqlite" or not url.database:
        raise LedgerError(
            f"{without_password(location)}: a ledger is named by a path, or a URL of SQLite or "
            "PostgreSQL"
        )
    if "uri" in url.query:
        raise LedgerError(
            f"{without_password(location)}: `uri` is not supported in a ledger's URL; name a file"
        )
    return url


def _unusable_url(location: str, error: Exception) -> LedgerError:
    # The exception's words have the whole URL.
    shown = without_password(location)
    words = str(error).replace(location, shown)
    return LedgerError(f"the ledger's URL {shown!r} cannot be used: {words}")


class DataVersion:
    """`PRAGMA data_version` on a separate connection.

    The value changes when another connection commits.
    """

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        with backend.translating("read"):
            self._connection = backend.engine.raw_connection()
        self._last = self._version()

    def _version(self) -> int:
        with self._backend.translating("read"), closing(self._connection.cursor()) as cursor:
            cursor.execute("PRAGMA data_version")
            row: Any = cursor.fetchone()
            return int(row[0])

    def changed(self) -> bool:
        version = self._version()
        changed, self._last = version != self._last, version
        return changed

    def close(self) -> None:
        self._connection.close()


def _on_connect(dbapi_connection: Any, _record: object) -> None:
    # SQLAlchemy's recipe for SQLite. The driver must not begin transactions itself, so that a write
    # transaction begins as a writer and cannot fail midway because another writer came first.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    try:
        _set_busy_timeout(cursor, _BUSY_SECONDS)
        _keep_a_log(cursor)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        if sys.platform == "darwin":
            cursor.execute("PRAGMA fullfsync = 1")
    finally:
        cursor.close()


def _keep_a_log(cursor: sqlite3.Cursor) -> None:
    if cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        return
    tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master")}
    if tables and "meta" not in tables:
        return  # another program's database: it is rejected and not changed
    if not tables:
        cursor.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    # Switching a new file to WAL needs exclusive access. If another process opens the same new
    # ledger, SQLite refuses at once, whatever the busy timeout.
    end = time.monotonic() + _BUSY_SECONDS
    _execute(cursor, "PRAGMA journal_mode = WAL", lambda: time.monotonic() > end)


def _execute(driver: Any, statement: str, is_over: Callable[[], bool]) -> None:
    """Execute a statement; again while the file is busy, until the wait is over."""
    while True:
        try:
            driver.execute(statement)
        except sqlite3.OperationalError as error:
            if sqlite_file.fault_of(error) != "busy" or is_over():
                raise
            time.sleep(0.01)
        else:
            return


_HAS_LARGE_CACHE = "claude_batch_large_cache"


def _on_checkin(dbapi_connection: Any, record: Any) -> None:
    # None: the connection was closed.
    if dbapi_connection is not None and record.info.pop(_HAS_LARGE_CACHE, False):
        dbapi_connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def _set_busy_timeout(driver: Any, seconds: float) -> None:
    driver.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
