"""`Ledger`: the open database, its read and write transactions, and its metadata."""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Insert,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from claude_batch.core.errors import LedgerError
from claude_batch.core.ids import new_incarnation
from claude_batch.ledger.locks import seat_files
from claude_batch.ledger.schema import SCHEMA_VERSION, meta, metadata, workspaces
from claude_batch.ledger.sqlite import copy_ledger, damaged_error, find_damage, ledger_error

Transaction = Connection
"""The transaction type of the ledger's functions. Other packages use this name instead of SQL
types.
"""

Query = Any
"""A SELECT. Its precise type counts the columns, which no function here needs."""

Record = Any
"""A row of a query. Its attributes are the columns of `claude_batch.ledger.schema`."""

_FACTS = "SELECT value FROM meta WHERE name IN ('incarnation', 'schema_version') ORDER BY name"

PAGE_BYTES = 8192
"""Page size of new ledgers. With SQLite's 4096 bytes, a large run reads and writes twice as many
pages, which takes a third more of the system's time; larger pages gain little and make small
transactions write more.
"""

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


_written: set[Path] = set()
"""Ledgers that this process has written to."""


class Deposed(Exception):
    """Another process took the leader lock; the transaction was rolled back."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The right to drive one workspace, valid while its epoch equals the ledger's."""

    workspace_id: int
    epoch: int


class Ledger:
    """One open ledger. Threads can share it; a forked process cannot."""

    def __init__(self, location: str) -> None:
        """Open or create the ledger at a path or SQLAlchemy URL.

        Raises `LedgerError` if it cannot be opened, is not a ledger, or has another schema version.
        """
        self.location = location
        self.path: Path
        self._is_new = False
        self.commits: int = 0
        """Approximate number of write transactions of this process; concurrent threads may miss
        some.
        """
        self._sound = False
        """Whether `find_damage` found nothing. It runs before the first write."""
        self._engine = self._connect(location)
        self._key: Path = self.sibling("")
        try:
            self._prepare()
        except (DBAPIError, sqlite3.Error) as error:
            self._engine.dispose()
            raise ledger_error(location, "used", error, written=self._written) from error
        except BaseException:
            self._engine.dispose()
            raise

    def _connect(self, location: str) -> Engine:
        if "://" in location:
            url = _url_of(location)
            self.path = path_of(location)
            url = url.set(database=str(self._file(self.path)))
            try:
                engine = create_engine(url, hide_parameters=True)
            except (ArgumentError, ImportError) as error:
                raise _unusable_url(location, error) from None
        else:
            self.path = Path(location).expanduser()
            engine = create_engine(
                # Not as text, because a `?` in the path would begin the URL's options.
                URL.create("sqlite", database=str(self._file(self.path))),
                hide_parameters=True,
            )
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def _file(self, path: Path) -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = path.resolve()
            if not path.exists():
                # Created here, so that other users can never read it, not even briefly.
                with suppress(FileExistsError):
                    os.close(
                        os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                    )
                    self._is_new = True
            elif not path.stat().st_size and seat_files(path):
                # Checked before SQLite opens the file, because SQLite would create a new database
                # in it.
                raise self._emptied(path)
        except OSError as error:
            raise LedgerError(
                f"the ledger {path} cannot be opened: {error.strerror}; "
                "name another with --ledger or CLAUDE_BATCH_LEDGER"
            ) from None
        # Only SQLite opens an existing ledger. Closing any other descriptor drops the locks of this
        # process's own connections, and another process could then delete the log in use
        # (https://www.sqlite.org/howtocorrupt.html, 2.2).
        return path

    def _prepare(self) -> None:
        with self._engine.connect() as connection:
            existing = inspect(connection).get_table_names()
        if "meta" not in existing:
            if existing:
                raise LedgerError(
                    f"{self.location} is a database, but not a ledger of claude-batch; it was "
                    "not changed. Name another file with --ledger"
                )
            self._check_empty()
            with self._writing() as tx:
                metadata.create_all(tx)
                if tx.execute(select(meta.c.name)).first() is None:
                    tx.execute(
                        insert(meta),
                        [
                            {"name": "schema_version", "value": str(SCHEMA_VERSION)},
                            {"name": "incarnation", "value": new_incarnation()},
                            {"name": "salt", "value": secrets.token_hex(16)},
                            {"name": "stamp", "value": "0"},
                        ],
                    )
        version = self._read_facts()
        if version < SCHEMA_VERSION:
            from claude_batch.ledger.migrations import migrate

            migrate(self.sibling(""), self._engine, self._writing, version)
            self._read_facts()
        elif version > SCHEMA_VERSION:
            raise LedgerError(
                f"{self.location} has schema version {version}, but this claude-batch writes "
                f"{SCHEMA_VERSION}; it was not changed. Use the claude-batch that wrote it, or "
                "name another ledger",
                fault="version",
            )

    def _read_facts(self) -> int:
        """Read the metadata that identifies this ledger; return its schema version."""
        with self.read() as tx:
            facts = {row.name: row.value for row in tx.execute(select(meta))}
        version = facts.get("schema_version", "")
        if not version.isdigit() or not facts.keys() >= {"incarnation", "salt"}:
            raise LedgerError(
                f"{self.location} is a database, but not a ledger of claude-batch; it was not "
                "changed. Name another file with --ledger"
            )
        self.incarnation: str = facts["incarnation"]
        former = facts.get("former_incarnations", "").split()
        self.incarnations: frozenset[str] = frozenset((self.incarnation, *former))
        self._salt = facts["salt"]
        self._expected = [(self.incarnation,), (str(SCHEMA_VERSION),)]
        return int(version)

    def _check_empty(self) -> None:
        """Raise `LedgerError` if an empty file replaced a ledger that was driven here before."""
        if not self._is_new and seat_files(self.path):
            raise self._emptied(self.path)

    def _emptied(self, path: Path) -> LedgerError:
        return LedgerError(
            f"the ledger {path} is empty, although it was used before, as the lock files beside "
            "it show: it was truncated, or copied without its -wal file. It was not changed. Put "
            "a backup in its place, then run `claude-batch ledger recover`; or move it away to "
            "begin a new ledger",
            fault="damaged",
        )

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Begin a read transaction with one consistent snapshot. Raises `LedgerError`."""
        with (
            self._translating_errors("read"),
            self._engine.connect() as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def write(self, seat: Seat | None = None) -> Generator[Connection]:
        """Begin a write transaction: durable when the block ends, rolled back if the block raises.

        With a ``seat``, raises `Deposed` if the workspace's epoch is no longer the seat's. Raises
        `LedgerError` if the disk is full, if the file is locked or damaged, or if another
        claude-batch has migrated or recovered the ledger meanwhile.
        """
        with self._writing() as connection:
            # After a migration or a recovery this process would write wrong data. The check takes
            # some microseconds.
            driver: Any = connection.connection.dbapi_connection
            if driver.execute(_FACTS).fetchall() != self._expected:
                raise LedgerError(
                    f"the ledger {self.location} was migrated or recovered by another process; "
                    "nothing was written. Restart this process, with the same version of "
                    "claude-batch",
                    fault="version",
                )
            if seat is not None:
                epoch = connection.scalar(
                    select(workspaces.c.epoch).where(workspaces.c.id == seat.workspace_id)
                )
                if epoch != seat.epoch:
                    raise Deposed
            yield connection

    def prove_writable(self) -> None:
        """Write a row and remove it. Raises `LedgerError` as `write` does.

        A transaction without a row succeeds on a full disk.
        """
        with self.write() as tx:
            tx.execute(insert(meta).values(name="probe", value=""))
            tx.execute(delete(meta).where(meta.c.name == "probe"))

    @contextmanager
    def _writing(self) -> Generator[Connection]:
        with self._translating_errors("written"), self._engine.connect() as plain:
            if not self._sound:
                # Checked before the first write but not before a read, so that the readable part of
                # a damaged ledger stays readable.
                problem = None if self._is_new else find_damage(plain)
                if problem is not None:
                    raise damaged_error(self.location, problem, written=self._written)
                self._sound = True
            connection = plain.execution_options(claude_batch_write=True)
            with connection.begin():
                yield connection
            self.commits += 1
            _written.add(self._key)

    @property
    def _written(self) -> bool:
        """Whether this process has written to the file, through any `Ledger` object."""
        return self._key in _written

    @contextmanager
    def _translating_errors(self, what: str) -> Generator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise ledger_error(self.location, what, error, written=self._written) from error

    def watch(self) -> Watch:
        """Return a cheap check for commits of other connections."""
        with self._translating_errors("read"):
            return Watch(self)

    def fingerprint(self, credential: str) -> str:
        """Return a salted hash that identifies a credential without storing it."""
        return hashlib.blake2b(
            credential.encode(), key=bytes.fromhex(self._salt), digest_size=12
        ).hexdigest()

    @property
    def identity(self) -> str:
        """A hash shared only by a ledger and its copies, whatever their incarnations and paths."""
        return identity_of(self._salt)

    def renew_incarnation(self, tx: Connection) -> None:
        """Start a new incarnation, which separates new requests from earlier ones and a copy's.

        Every process that has the ledger open must open it again. This process calls `reopen` after
        the transaction has ended.
        """
        former = " ".join(sorted(self.incarnations))
        for name, value in (
            ("former_incarnations", former),
            ("incarnation", new_incarnation()),
        ):
            tx.execute(delete(meta).where(meta.c.name == name))
            tx.execute(insert(meta).values(name=name, value=value))

    def reopen(self) -> None:
        """Read the identifying metadata again."""
        self._read_facts()

    def backup(self, target: Path) -> None:
        """Copy all committed data to a new file while other processes write.

        Raises `FileExistsError` if the target exists, `OSError`, and `LedgerError`.
        """
        with self._translating_errors("copied"):
            copy_ledger(self._engine, target)

    def checkpoint(self) -> bool:
        """Move a large write-ahead log into the file. The driver calls this.

        It neither waits for nor blocks another connection. Pages that readers still need stay for
        the next call. Returns False if there was nothing to do. Raises `LedgerError`.
        """
        log = self.sibling("-wal")
        try:
            if log.stat().st_size < _LOG_BYTES:
                return False
        except FileNotFoundError:
            return False
        with (
            self._translating_errors("written"),
            closing(self._engine.raw_connection()) as connection,
        ):
            driver: Any = connection.driver_connection
            driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return True

    def sibling(self, suffix: str) -> Path:
        """Return the path of a file beside the ledger; "" returns the ledger's own path."""
        resolved = self.path.expanduser().resolve()
        return resolved.with_name(resolved.name + suffix)


def path_of(location: str) -> Path:
    """Return the file of a ledger's path or SQLAlchemy URL. Raises `LedgerError`."""
    if "://" not in location:
        return Path(location).expanduser()
    return Path(_url_of(location).database or "")


def _url_of(location: str) -> URL:
    try:
        url = make_url(location)
    except (ArgumentError, ValueError) as error:
        raise _unusable_url(location, error) from None
    if url.get_backend_name() != "sqlite" or not url.database:
        raise LedgerError(
            f"{location}: only ledgers in a file of SQLite are supported; name a file"
        )
    if "uri" in url.query:
        raise LedgerError(f"{location}: `uri` is not supported in a ledger's URL; name a file")
    return url


def _unusable_url(location: str, error: Exception) -> LedgerError:
    return LedgerError(f"the ledger's URL {location!r} cannot be used: {error}")


def identity_of(salt: str) -> str:
    """Return the identity of the ledger with this salt."""
    return hashlib.blake2b(bytes.fromhex(salt), digest_size=16).hexdigest()


class Watch:
    """`PRAGMA data_version` on a separate connection.

    The value changes when another connection commits.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._connection = ledger._engine.raw_connection()  # pyright: ignore[reportPrivateUsage]
        self._last = self._version()

    def _version(self) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute("PRAGMA data_version")
            row: Any = cursor.fetchone()
            return int(row[0])
        finally:
            cursor.close()

    def changed(self) -> bool:
        """Return True if another connection has committed since the last call.

        Raises `LedgerError`.
        """
        with self._ledger._translating_errors("read"):  # pyright: ignore[reportPrivateUsage]
            version = self._version()
        changed, self._last = version != self._last, version
        return changed

    def close(self) -> None:
        """Return the connection to the pool."""
        self._connection.close()


_compiled_queries: dict[tuple[int, str], tuple[str, tuple[str, ...], dict[str, Any]]] = {}
"""Compiled queries: SQL, parameter names in order, and the values of constant parameters."""

_compiled: dict[tuple[int, str], tuple[Insert, str, str]] = {}
"""Compiled SQL of the few statements that insert many rows: for one row, and for `_BLOCK_ROWS`.

These statements are module constants.
"""

_BLOCK_ROWS = 250
"""Rows of one statement in `insert_many`.

Starting a statement for each row costs as much as storing a narrow one. More rows gain nothing, and
250 stay far below SQLite's limit of 32,766 values.
"""


def insert_many(tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run an insert for many rows of plain values, in the order of the table's columns.

    A row leaves out the columns for which the statement has a constant.

    SQLAlchemy compiles the SQL, and the rows go to the driver unchanged. SQLAlchemy's own path
    builds a dictionary and processes every value, which costs as much as SQLite itself.
    """
    key = (id(statement), tx.dialect.name)
    known = _compiled.get(key)
    if known is None or known[0] is not statement:
        names = [column.name for column in statement.table.columns]
        compiled = statement.compile(dialect=tx.dialect, column_keys=names)
        order = compiled.positiontup or []
        assert order == [name for name in names if name in order] != [], order
        known = _compiled[key] = (statement, str(compiled), _for_a_block(str(compiled)))
    _, of_row, of_block = known
    rest = len(rows) % _BLOCK_ROWS
    whole = len(rows) - rest
    for start in range(0, whole, _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        tx.exec_driver_sql(of_block, tuple(chain.from_iterable(block)))
    if rest:
        tx.exec_driver_sql(of_row, list(rows[whole:]))


def _for_a_block(of_row: str) -> str:
    """Return the SQL that inserts `_BLOCK_ROWS` rows, from the SQL that inserts one."""
    before, word, after = of_row.partition(" VALUES ")
    values, end, clauses = after.partition(")")
    assert values.count("?") == of_row.count("?"), of_row
    return before + word + ", ".join([values + end] * _BLOCK_ROWS) + clauses


def plain_rows(
    tx: Connection, statement: Query, values: Mapping[str, Any] | None = None
) -> Generator[tuple[Any, ...]]:
    """Yield the rows of a query lazily, as plain tuples from the driver.

    Used for the few queries that read every row of a batch, because SQLAlchemy's row objects cost
    about as much as the read. ``statement`` is a module constant with named parameters.
    """
    for rows in row_pages(tx, statement, values):
        yield from rows


def row_pages(
    tx: Connection, statement: Query, values: Mapping[str, Any] | None = None
) -> Generator[list[tuple[Any, ...]]]:
    """Yield the same rows in lists of a hundred."""
    key = (id(statement), tx.dialect.name)
    known = _compiled_queries.get(key)
    if known is None:
        compiled = statement.compile(
            dialect=tx.dialect, compile_kwargs={"render_postcompile": True}
        )
        order = compiled.positiontup
        assert order is not None, "the drivers in use take positional parameters"
        known = _compiled_queries[key] = (str(compiled), tuple(order), dict(compiled.params))
    sql, order, constants = known
    given = {**constants, **values} if values else constants
    driver: Any = tx.connection.dbapi_connection
    cursor = driver.cursor()
    try:
        cursor.execute(sql, [given[name] for name in order])
        while rows := cursor.fetchmany(100):
            yield rows
    finally:
        cursor.close()


def next_stamp(tx: Connection) -> int:
    """Return the next ledger-wide stamp: the order in which transactions finished requests."""
    value = int(tx.execute(select(meta.c.value).where(meta.c.name == "stamp")).scalar_one()) + 1
    tx.execute(update(meta).where(meta.c.name == "stamp").values(value=str(value)))
    return value


def _on_connect(dbapi_connection: Any, _record: object) -> None:
    # SQLAlchemy's recipe for SQLite. The driver must not begin transactions itself, so that a write
    # transaction begins as a writer and cannot fail midway because another writer came first.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
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
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    write = options.get("claude_batch_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN DEFERRED")
