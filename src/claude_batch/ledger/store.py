"""`Ledger`: the open database, its read and write transactions, and its metadata."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Insert, bindparam, insert, select

from claude_batch.core.errors import LedgerError
from claude_batch.core.ids import new_incarnation
from claude_batch.core.settings import LedgerSettings, on_server
from claude_batch.ledger.backends.backend import (
    PATIENCE,
    RETRY,
    Backend,
    FetchClaim,
    Fetches,
    LeaderLock,
    ProcessLock,
    Query,
    Size,
    Watch,
    Weakness,
    Worker,
)
from claude_batch.ledger.portable_sql import drop_meta, meta_number, meta_value, put_meta
from claude_batch.ledger.schema import SCHEMA_VERSION, meta, workspaces

_T = TypeVar("_T")

Transaction = Connection
"""The transaction type of the ledger's functions. Other packages use this name instead of SQL
types.
"""

Record = Any
"""A row of a query. Its attributes are the columns of `claude_batch.ledger.schema`."""

_BACKEND = "claude_batch_backend"
"""The execution option that leads from a transaction to its backend."""

_FACTS = (
    "SELECT value FROM meta WHERE name IN ('incarnation', 'moved_to', 'schema_version') "
    "ORDER BY name"
)

MOVED_TO, MOVED_AS = "moved_to", "moved_as"
"""Metadata of a file that `ledger.transfer` has moved: where to, and as which incarnation."""

ARRIVING_FROM = "arriving_from"
"""Metadata of a ledger that has not arrived yet: the path of its file."""


def open_backend(location: str) -> Backend:
    """Return the backend of a path or URL. Raises `LedgerError`."""
    if on_server(location):
        from claude_batch.ledger.backends.postgres import PostgresBackend

        return PostgresBackend(location)
    from claude_batch.ledger.backends.sqlite import SqliteBackend

    return SqliteBackend(location)


def exists_on_server(location: str) -> bool:
    """Return whether a schema has tables, those of a ledger or of another program.

    Creates nothing. `Ledger` refuses the tables of another program. Raises `LedgerError`.
    """
    backend = open_backend(location)
    try:
        with backend.reading() as tx:
            return bool(backend.tables(tx))
    finally:
        backend.close()


class Deposed(Exception):
    """Another process took the leader lock, or the claim; the transaction was rolled back."""


class ServerChanged(Deposed):
    """Another server has the data now, and may lack what the leader has committed."""


_EPOCH = (
    select(workspaces.c.epoch)
    .where(workspaces.c.id == bindparam("workspace"))
    # Locked where rows can be: read plainly, an epoch would not exclude a transaction that raises
    # it meanwhile.
    .with_for_update(read=True)
)


class Leader(msgspec.Struct, frozen=True):
    """The driver of one workspace, for as long as its epoch equals the ledger's."""

    workspace_id: int
    epoch: int


class Ledger:
    """One open ledger. Threads can share it; a forked process cannot."""

    def __init__(self, location: str) -> None:
        """Open or create the ledger at a path or SQLAlchemy URL.

        Raises `LedgerError` if it cannot be opened, is not a ledger, or has another schema version.
        """
        self.backend: Backend = open_backend(location)
        self.location: str = self.backend.location
        """The ledger's location, without a password, for messages."""
        self.commits: int = 0
        """Approximate number of write transactions of this process; concurrent threads may miss
        some.
        """
        self.closed: bool = False
        """Whether `close` was called; what still runs on other threads shall end then."""
        self.backend.engine.update_execution_options(**{_BACKEND: self.backend})
        try:
            with self.backend.translating("used"):
                self._prepare()
        except BaseException:
            self.backend.close()
            raise

    def _prepare(self) -> None:
        with self.backend.engine.connect() as connection:
            existing = self.backend.tables(connection)
        if "meta" not in existing:
            if existing:
                raise self._foreign()
            self.backend.check_empty()
            with self.backend.writing() as tx:
                self.backend.create(tx)
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
                    # Now, because a copy from before the first driver may be restored, too.
                    self.has_moved(tx)
        version = self._read_facts()
        if version < SCHEMA_VERSION:
            self.backend.migrate(version)
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
            raise self._foreign()
        self._check_place(facts)
        self.incarnation: str = facts["incarnation"]
        former = facts.get("former_incarnations", "").split()
        self.incarnations: frozenset[str] = frozenset((self.incarnation, *former))
        self._salt = facts["salt"]
        self._expected = [(self.incarnation,), (str(SCHEMA_VERSION),)]
        return int(version)

    def _foreign(self) -> LedgerError:
        place = "file with --ledger"
        if on_server(self.location):
            place = "schema, with ?schema=NAME in the URL"
        return LedgerError(
            f"{self.location} is a database, but not a ledger of claude-batch; it was not changed. "
            f"Name another {place}"
        )

    def _check_place(self, facts: Mapping[str, str]) -> None:
        """Raise `LedgerError` if the ledger is in another place, or has not arrived in this one."""
        if MOVED_TO in facts:
            raise LedgerError(
                f"the ledger {self.location} was moved to {facts[MOVED_TO]}, and is not used any "
                "more; nothing was changed. Name the new one with --ledger or CLAUDE_BATCH_LEDGER"
            )
        if ARRIVING_FROM in facts:
            origin = facts[ARRIVING_FROM]
            raise LedgerError(
                f"the ledger {self.location} is still arriving from {origin}. Finish that with: "
                f"claude-batch ledger copy {origin} URL"
            )

    def close(self) -> None:
        """Close every connection."""
        self.closed = True
        self.backend.close()

    def read(self) -> AbstractContextManager[Connection]:
        """Begin a read transaction with one consistent snapshot. Raises `LedgerError`."""
        return self.backend.reading()

    def query(self, question: Callable[[Connection], _T]) -> _T:
        """Run a function in a read transaction; again as `patiently` does. Raises `LedgerError`."""

        def read() -> _T:
            with self.read() as tx:
                return question(tx)

        return self.patiently(read)

    def patiently(self, work: Callable[[], _T]) -> _T:
        """Run a function; again if the ledger's server was lost meanwhile.

        The function only reads, or writes what may be written twice, because the answer of a COMMIT
        may be lost.

        Raises `LedgerError` if it is not back within `PATIENCE` seconds, or `hurry` ends the wait.
        """
        begun = time.monotonic()
        while True:
            try:
                return work()
            except LedgerError as error:
                if not self.outlasts(error) or self.backend.patience.ends(begun, PATIENCE):
                    raise
            time.sleep(RETRY)

    def apply(self, change: Callable[[Connection], _T]) -> _T:
        """Run a function in a write transaction; again as `patiently` does. Raises `LedgerError`.

        The function changes the ledger once, however often it runs.
        """

        def write() -> _T:
            with self.write() as tx:
                return change(tx)

        return self.patiently(write)

    def hurry(self, seconds: float) -> None:
        """Wait no longer than this for a lost server or a locked file, from now to the end.

        It holds for all threads, and for waits that are under way.
        """
        self.backend.patience.limit(seconds)

    def outlasts(self, error: LedgerError) -> bool:
        """Return whether a process can wait until the fault has passed, instead of ending."""
        return error.fault in self.backend.outlasts

    @contextmanager
    def write(
        self, leader: Leader | None = None, *, anywhere: bool = False
    ) -> Generator[Connection]:
        """Begin a write transaction: durable when the block ends, rolled back if the block raises.

        With a ``leader``, raises `Deposed` if the workspace's epoch is no longer the leader's, and
        `ServerChanged` if another server has the data than when its epoch began, unless
        ``anywhere``. Raises `LedgerError` if the disk is full, if the file is locked or damaged, or
        if another claude-batch has migrated or recovered the ledger meanwhile.
        """
        with self.backend.writing() as connection:
            # After a migration or a recovery this process would write wrong data. The check takes
            # some microseconds.
            driver: Any = connection.connection.dbapi_connection
            if driver.execute(_FACTS).fetchall() != self._expected:
                facts = {row.name: row.value for row in connection.execute(select(meta))}
                self._check_place(facts)
                if leader is not None and not anywhere:
                    # A server that has forgotten that this process began a recovery.
                    self.check_server(connection)
                raise self._changed(facts.get("schema_version", ""), "written")
            if leader is not None:
                # First, because a server that has forgotten the leader has another epoch, too.
                if not anywhere:
                    self.check_server(connection)
                epoch = connection.scalar(_EPOCH, {"workspace": leader.workspace_id})
                if epoch != leader.epoch:
                    raise Deposed
            yield connection
        self.commits += 1

    @contextmanager
    def write_for_driver(self, claim: FetchClaim) -> Generator[Connection]:
        """Begin a write transaction, as `write` does, for results that the driver left to a claim.

        Raises `Deposed` if the claim does not hold any more.
        """
        with self.write() as tx:
            if not self.fetches.holds(tx, claim):
                raise Deposed
            yield tx

    @property
    def fetches(self) -> Fetches:
        """Which process fetches the results of which batch."""
        return self.backend.fetches

    def now(self) -> float:
        """Return the time that all processes of the ledger share, in seconds since the epoch.

        For a file it is the machine's time; else the server's, which a process learns when it opens
        the ledger and with each heartbeat. It sends nothing.
        """
        return self.backend.now()

    def prove_writable(self) -> None:
        """Write a row and remove it. Raises `LedgerError` as `write` does.

        A transaction without a row succeeds on a full disk, and one in a file that was removed or
        replaced is lost.
        """
        self.check_place()
        with self.write() as tx:
            put_meta(tx, "probe", "")
            drop_meta(tx, "probe")

    def watch(self) -> Watch:
        """Return a cheap check for commits of other processes. Raises `LedgerError`."""
        return self.backend.watch()

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
        self._note_former(tx, self.incarnation)
        put_meta(tx, "incarnation", new_incarnation())

    def add_incarnation(self, tx: Connection, incarnation: str) -> None:
        """Note an incarnation under which a copy of this ledger has sent, if it is not known.

        This process calls `reopen` after the transaction has ended.
        """
        if incarnation not in self.incarnations:
            self._note_former(tx, incarnation)

    def _note_former(self, tx: Connection, incarnation: str) -> None:
        former = (meta_value(tx, "former_incarnations") or "").split()
        put_meta(tx, "former_incarnations", " ".join(sorted({*former, incarnation})))

    def has_moved(self, tx: Connection) -> bool:
        """Return whether another server holds the data than at the last call, and note it.

        A restored database, or a standby that was promoted, may have forgotten the last commits.
        """
        here = self.backend.server(tx)
        if not here:
            return False
        before = meta_value(tx, "server")
        if here != before:
            put_meta(tx, "server", here)
        return _differs(here, before)

    def is_elsewhere(self, tx: Connection) -> bool:
        """Return whether another server holds the data than at the last `has_moved`."""
        here = self.backend.server(tx)
        return here != "" and _differs(here, meta_value(tx, "server"))

    def check_server(self, tx: Connection) -> None:
        """Raise `ServerChanged` if another server has the data than at the last `has_moved`.

        A standby can take the place of the primary between two transactions of a driver that stays
        the leader. The connections are replaced without an error.
        """
        if self.is_elsewhere(tx):
            raise ServerChanged

    def weakness(self) -> Weakness | None:
        """Return why the server may forget what was committed; None if no reason is known.

        Raises `LedgerError`.
        """
        with self.backend.translating("read"):
            return self.backend.weakness()

    def check_place(self) -> None:
        """Raise `LedgerError` if the ledger's file was removed or replaced since it was opened."""
        self.backend.check_place()

    def reopen(self) -> None:
        """Read the identifying metadata again, which another process may have changed.

        Raises `LedgerError` if the ledger was removed, replaced, moved or migrated meanwhile.
        """
        self.check_place()
        if (version := self._read_facts()) != SCHEMA_VERSION:
            raise self._changed(str(version), "read")

    def _changed(self, version: str, what: str) -> LedgerError:
        how, restart = "recovered", "Restart this process"
        if version != str(SCHEMA_VERSION):
            how = f"migrated to schema version {version}"
            restart += ", with the version of claude-batch that did it"
        return LedgerError(
            f"the ledger {self.location} was {how} by another process; nothing was {what}. "
            f"{restart}",
            fault="version",
        )

    def backup(self, target: Path) -> None:
        """Copy all committed data to a new file while other processes write.

        Raises `FileExistsError` if the target exists, `OSError`, and `LedgerError`.
        """
        with self.backend.translating(f"copied to {target}"):
            self.backend.backup(target)

    def checkpoint(self) -> bool:
        """Move a large write-ahead log into the data. The driver calls this.

        Returns False if there was nothing to do. Raises `LedgerError`.
        """
        with self.backend.translating("written"):
            return self.backend.checkpoint()

    def size(self) -> Size:
        """Return the space that the ledger takes. Raises `LedgerError`."""
        with self.backend.translating("read"):
            return self.backend.size()

    # Locks ------------------------------------------------------------------------------------

    def leader_lock(self, workspace_id: int) -> LeaderLock:
        """Return the leader lock of a workspace, not taken yet."""
        return self.backend.leader_lock(workspace_id)

    def has_leader(self, workspace_id: int) -> bool:
        """Return whether any process drives the workspace now. Raises `LedgerError`."""
        with self.backend.translating("read"):
            return self.backend.has_leader(workspace_id)

    def every_leader_lock(
        self, workspace_ids: Iterable[int], why: str
    ) -> AbstractContextManager[None]:
        """Hold leader locks inside the block, so that no process drives; see `Backend`."""
        return self.backend.every_leader_lock(workspace_ids, why)

    def process_lock(self, settings: LedgerSettings) -> ProcessLock:
        """Return the proof that this process lives.

        Raises `LedgerError`, also if a process on another machine has settings that contradict
        these.
        """
        with self.backend.translating("used"):
            return self.backend.process_lock(settings)

    def is_alive(self, process: str) -> bool:
        """Return whether a process still lives, or may live."""
        with self.backend.translating("read"):
            return self.backend.is_alive(process)

    def workers(self) -> list[Worker]:
        """Return the living processes, if the ledger is on a server. Raises `LedgerError`."""
        with self.backend.translating("read"):
            return self.backend.workers()

    def sweep_locks(self) -> None:
        """Remove what dead processes left. Raises `LedgerError`."""
        with self.backend.translating("written"):
            self.backend.sweep_locks()


def _differs(here: str, before: str | None) -> bool:
    """Return whether two descriptions of a server are of different ones; None is not known."""
    # Earlier versions did not note the table.
    return before is not None and here != before and not here.startswith(f"{before}-")


def identity_of(salt: str) -> str:
    """Return the identity of the ledger with this salt."""
    return hashlib.blake2b(bytes.fromhex(salt), digest_size=16).hexdigest()


def insert_many(tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]) -> int:
    """Run an insert for many rows; see `Backend.insert_many`."""
    return _backend_of(tx).insert_many(tx, statement, rows)


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
    return _backend_of(tx).row_pages(tx, statement, values or {})


def _backend_of(tx: Connection) -> Backend:
    found: Backend = tx.get_execution_options()[_BACKEND]
    return found


def joining_many(tx: Connection) -> AbstractContextManager[None]:
    """Expect the statements of the block to join many rows; see `Backend.joining_many`."""
    return _backend_of(tx).joining_many(tx)


def now_in(tx: Connection) -> float:
    """Return `Ledger.now` of a transaction's ledger."""
    return _backend_of(tx).now()


def next_stamp(tx: Connection) -> int:
    """Return the next ledger-wide stamp: the order in which transactions finished requests."""
    value = meta_number(tx, "stamp") + 1
    put_meta(tx, "stamp", value)
    return value
