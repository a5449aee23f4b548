"""Connections to the schema of a ledger in PostgreSQL, notices of its commits, and its clock."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.settings import without_password

try:
    import psycopg
    from psycopg.types.string import StrBinaryDumper, StrDumperUnknown
except ImportError:
    raise LedgerError(
        "a ledger on PostgreSQL needs its driver: pip install 'claude-batch[postgres]'"
    ) from None

from claude_batch.ledger.backends.backend import PATIENCE, RETRY, Backend, Patience

DEFAULT_SCHEMA = "claude_batch"
"""The PostgreSQL schema of a ledger whose URL names none, with ``?schema=NAME``."""

_BEGIN_READ = """
SELECT set_config('search_path', %(schema)s, true), set_config('statement_timeout', '0', true)
"""
"""Statement that begins a transaction. A time-out of the role would end a statement about a large
batch each time, however often it is repeated."""

_BEGIN_WRITE = f"""
{_BEGIN_READ},
    set_config('idle_in_transaction_session_timeout', '5s', true),
    set_config('lock_timeout', '8s', true),
    pg_advisory_xact_lock(%(lock)s), pg_notify(%(channel)s, '')
"""
"""Statements that begin a write transaction.

All writes of a ledger take one lock, so that they follow each other as in SQLite; a transaction can
then read what it decides by. A process that stops in one is ended by the server after 5 seconds,
and others wait 8. The settings are local, so that they also hold behind a pooler that gives a
connection to others between two transactions.
"""

_BEGIN_LEASE = _BEGIN_WRITE.replace(", pg_notify(%(channel)s, '')", "")
"""The same for a lease, whose changes concern nobody who watches the ledger."""

_NO_LIMIT = "SELECT set_config('transaction_timeout', '0', true), "
"""The same for the transaction, since PostgreSQL 17."""


class _TextDumper(StrDumperUnknown):
    """Text of whatever an API or a user wrote, for parameters."""

    def dump(self, obj: str) -> Any:
        return super().dump(_without_nul(obj))


class _BinaryTextDumper(StrBinaryDumper):
    """The same for COPY."""

    def dump(self, obj: str) -> Any:
        return super().dump(_without_nul(obj))


def _without_nul(text: str) -> str:
    # PostgreSQL cannot store a NUL in text, and a server's error message may have one. Keys, which
    # must stay as they are, are checked before.
    return text.replace("\0", "\ufffd") if "\0" in text else text


_LONGEST_NAME = 63
"""Bytes of the longest name that a server stores."""

_KEEPALIVE = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
    "tcp_user_timeout": "8000",
}
"""libpq's settings by which a cut link is noticed within seconds, not within a quarter of an hour
(https://www.postgresql.org/docs/current/libpq-connect.html). The URL may have others.
"""


_RESTARTS = re.compile("the database system is (starting up|shutting down|in recovery mode)")
"""Messages of a server that restarts. Other refusals may never pass."""


_CROWDED = re.compile("too many (clients|connections)|connection slots are reserved")
"""Messages of a server without a free connection, for anybody or for the role."""


_MISTAKES = re.compile(
    "definition of service|does not support SSL|certificate|no password supplied|"
    "invalid (port|sslmode|[a-z_]+ value)"
)
"""Messages of the driver about an address or settings that never work."""


def application_of(process: str) -> str:
    """Return the ``application_name`` of a process's sessions."""
    return f"claude-batch {process}"


class PostgresConnections(Backend):
    """The half of a backend that connects to its schema."""

    faults: tuple[type[BaseException], ...] = (DBAPIError, psycopg.Error, PoolTimeout)

    def __init__(self, location: str) -> None:
        """Read a URL; nothing is connected yet. Raises `LedgerError` if it cannot be read."""
        url, schema = _url_of(location)
        self.schema: str = schema
        self.location: str = without_password(location)
        self.address: str = self.location
        secret = [name for name in url.query if "password" in name]
        bare = url.difference_update_query(secret).set(drivername="postgresql")
        self.database: str = bare._replace(password=None).render_as_string()
        """The URL as PostgreSQL's own programs read it, which ask for the password."""
        self.process: str = secrets.token_hex(8)
        """The name of this process in the ledger."""
        lock = _lock_number(self.schema)
        self.channel: str = f"claude_batch_{lock & (1 << 64) - 1:x}"
        """The channel on which commits are notified."""
        self.quoted_schema: str = '"' + self.schema.replace('"', '""') + '"'
        self._names = {
            "schema": self.quoted_schema,
            "lock": lock,
            "channel": self.channel,
        }
        options = {
            **_KEEPALIVE,
            **url.query,
            # By its name others end the sessions of a dead process.
            "application_name": application_of(self.process),
            # Overrides the role and PGCLIENTENCODING.
            "client_encoding": "utf8",
        }
        try:
            engine = create_engine(
                url.update_query_dict(options), hide_parameters=True, pool_pre_ping=True
            )
        except ArgumentError as error:
            raise LedgerError(f"the ledger's URL cannot be used: {error}") from None
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "begin", self._begin)
        self.patience: Patience = Patience()
        self._lost = ""
        """Why the server could not be reached, in its words, or "" after it was."""
        self._reached = False
        """Whether the server ever answered; a wrong address is then not the cause."""
        # Every transaction of a read sees one state, as in SQLite.
        self.engine: Engine = engine.execution_options(
            isolation_level="REPEATABLE READ",
            # Otherwise the row count of an INSERT is -1, and an INSERT that met a conflict counts
            # as done.
            preserve_rowcount=True,
        )

    def _connect(self, dialect: Any, _record: object, args: Any, options: Any) -> Any:
        """Connect; wait for a server that restarts, or that another takes the place of.

        A server that has never answered is not waited for: its address may be wrong. One that was
        lost is not asked again once the patience is over, because each attempt can take seconds.
        """
        begun = time.monotonic()
        while True:
            if self._lost and self.patience.is_over:
                raise psycopg.OperationalError(self._lost)
            try:
                connection = dialect.connect(*args, **options)
            except psycopg.Error as error:
                self._reached = self._reached or _RESTARTS.search(str(error)) is not None
                # One that was reached may refuse logins for a while, in words of any language.
                if not self._reached or fault_of(error) == "busy":
                    raise
                self._lost = str(error)
                if self.patience.ends(begun, PATIENCE):
                    raise
                time.sleep(RETRY)
            else:
                self._lost = ""
                self._reached = True
                # A pooler gives a connection to others between two transactions, and their
                # prepared statements have the same names.
                connection.prepare_threshold = None
                connection.adapters.register_dumper(str, _BinaryTextDumper)
                connection.adapters.register_dumper(str, _TextDumper)
                return connection

    def _begin(self, connection: Connection) -> None:
        kind = connection.get_execution_options().get("claude_batch_write")
        begin = _BEGIN_READ if not kind else _BEGIN_LEASE if kind == "lease" else _BEGIN_WRITE
        driver: Any = connection.connection.dbapi_connection
        if driver.info.server_version >= 170000:
            begin = begin.replace("SELECT ", _NO_LIMIT, 1)
        connection.exec_driver_sql(begin, self._names)

    def writer(self, connection: Connection) -> Connection:
        # The lock makes writes follow each other. A snapshot of the transaction's beginning would
        # not show what was committed while it waited for the lock.
        return connection.execution_options(
            claude_batch_write=True, isolation_level="READ COMMITTED"
        )

    @contextmanager
    def leasing(self) -> Generator[Connection]:
        """Begin a write transaction that notifies no other process."""
        with self.engine.connect() as plain:
            connection = self.writer(plain).execution_options(claude_batch_write="lease")
            with connection.begin():
                yield connection

    def error(self, what: str, cause: BaseException | str) -> LedgerError:
        original = getattr(cause, "orig", None) or cause
        fault = fault_of(original)
        # Messages of the driver have the host and the user in them, but never the password.
        said = getattr(getattr(original, "diag", None), "message_primary", None) or str(original)
        if isinstance(original, PoolTimeout):
            said = "each connection of this process is in use, or waits for the server"
        words = " ".join(said.split()).rstrip(".?!")
        state = str(getattr(original, "sqlstate", None) or "")
        remedy = _CAUSES[state].format(self.schema) if state in _CAUSES else _REMEDIES[fault]
        return LedgerError(
            f"the ledger {self.location} cannot be {what}: {words}. {remedy}",
            fault=fault,
        )


def _lock_number(schema: str) -> int:
    """Return the number of the advisory lock of a schema's writes, 64 bits with a sign."""
    digest = hashlib.blake2b(f"claude-batch {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _url_of(location: str) -> tuple[URL, str]:
    """Return the URL for the driver, and the schema that it names."""
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):
        # The exception's text has the whole URL, with its password.
        raise LedgerError(
            "the ledger's URL cannot be read; it has the form "
            "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
        ) from None
    if "@" in (url.host or ""):
        # The driver would print the text after the first @ as a host's name.
        raise LedgerError("the ledger's URL has an @ in its password; it is written %40 there")
    if "\0" in unquote(location):
        raise LedgerError("the ledger's URL has a NUL character")  # libpq would end there
    schema = url.query.get("schema", DEFAULT_SCHEMA)
    if not isinstance(schema, str) or not schema or "\0" in schema:
        raise LedgerError("the ledger's URL names a schema more than once, or an empty one")
    if len(schema.encode()) > _LONGEST_NAME:
        # The server would cut it, and two names could be those of one schema.
        raise LedgerError(
            f"the ledger's URL names a schema of more than {_LONGEST_NAME} bytes, PostgreSQL's "
            "longest name"
        )
    return url.set(drivername="postgresql+psycopg").difference_update_query(["schema"]), schema


def fault_of(error: object) -> LedgerFault:
    """Return the fault that an exception of the driver stands for, by its SQLSTATE."""
    if isinstance(error, PoolTimeout):
        return "unreachable"
    state = str(getattr(error, "sqlstate", None) or "")
    if not state:
        # Without a SQLSTATE the server was never reached, or the connection was lost; or it refused
        # the user or the database, which the driver reports as text only.
        if _CROWDED.search(str(error)):
            return "busy"
        refused = _MISTAKES.search(str(error)) or (
            "FATAL:" in str(error) and "the database system is" not in str(error)
        )
        passes = isinstance(error, psycopg.OperationalError) and not refused
        return "unreachable" if passes else "unusable"
    return _FAULTS.get(state) or _FAULTS.get(state[:2]) or "unusable"


_FAULTS: dict[str, LedgerFault] = {
    "08": "unreachable",  # connection exceptions
    "57P": "unreachable",
    "57P01": "unreachable",  # ended by the administrator
    "57P02": "unreachable",  # the server crashed
    "57P03": "unreachable",  # the server is starting
    "57P05": "unreachable",  # the session was idle for too long
    "25P03": "unreachable",  # the transaction was idle for too long
    "25P04": "unreachable",  # the transaction took too long
    "53": "full",  # disk, memory
    "53300": "busy",  # too many connections
    "55P03": "busy",  # the lock was not free in time
    "57014": "busy",  # cancelled
    "40": "busy",  # deadlocks
    "25006": "busy",  # a standby
    "23": "conflict",
    "XX001": "damaged",
    "XX002": "damaged",
}
"""By SQLSTATE, or its class (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""

_CAUSES: dict[str, str] = {
    "25006": "Everything stored before is kept; the server is a standby, or its setting "
    "default_transaction_read_only forbids writing. Name the primary, or correct the setting",
    "42501": "Everything stored before is kept; grant the user what it lacks, such as TEMPORARY on "
    "the database for temporary tables, or name another ledger with --ledger",
    "42P01": "Everything stored before is kept; the user may lack the right USAGE on the schema "
    "{}, so grant it, or name another ledger with --ledger",
}
"""Remedies by SQLSTATE, where the server's words do not show the cause."""

_REMEDIES: dict[LedgerFault, str] = {
    "full": "Everything stored before is kept; give the server what it lacks, then repeat the "
    "command",
    "busy": "Everything stored before is kept; try again",
    "unreachable": "Everything stored before is kept; the command can be repeated once the server "
    "answers",
    "damaged": "Restore the database from a backup, then: claude-batch ledger recover",
    "conflict": "Everything stored before is kept, but this step is not. It contradicts the "
    "content of the ledger, so it is not tried again; please report it with the output of "
    "`claude-batch ledger show`",
    "version": "",
    "unusable": "Everything stored before is kept; correct the cause, or name another ledger "
    "with --ledger",
}


# Commits of other processes -----------------------------------------------------------------------

_LOOKS_APART = 1.0
"""Seconds between two looks at the ledger where notices do not arrive: a pooler may give the
connection to others.
"""

_PROOFS_APART = 10.0
"""Seconds between two notices of its own, which prove that notices arrive."""

_PROOF_HOLDS = 15.0
"""Seconds after which a proof is too old."""


class CommitNotices:
    """A connection that listens; see `claude_batch.ledger.backends.backend.Watch`.

    It notifies itself, to learn whether notices arrive. While they do not, it reports a possible
    commit every second.
    """

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._connection: Any = None
        self._own_channel = f"{connections.channel}_{secrets.token_hex(8)}"
        self._asked = self._proved = self._looked = float("-inf")
        self.changed()

    def _connect(self) -> Any:
        # Detached: it is never given to a transaction of the ledger.
        pooled = self._connections.engine.raw_connection()
        driver: Any = pooled.driver_connection
        pooled.detach()
        driver.autocommit = True
        self._connection = driver
        self._asked = self._proved = float("-inf")
        driver.execute(f"LISTEN {self._connections.channel}")
        driver.execute(f"LISTEN {self._own_channel}")
        return driver

    def changed(self) -> bool:
        now = time.monotonic()
        try:
            with self._connections.translating("read"):
                connection = self._connection or self._connect()
                notices = list(connection.notifies(timeout=0))
                if now - self._asked > _PROOFS_APART:
                    connection.execute(f"NOTIFY {self._own_channel}")
                    self._asked = now
        except LedgerError:
            self.close()  # the next call connects again
            raise
        if any(notice.channel == self._own_channel for notice in notices):
            self._proved = now
        # As with a file, commits of this process count: much that waits here waits for them.
        changed = any(notice.channel == self._connections.channel for notice in notices)
        if now - self._proved > _PROOF_HOLDS and now - self._looked > _LOOKS_APART:
            changed = True
        if changed:
            self._looked = now
        return changed

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# The server's clock -------------------------------------------------------------------------------

_elapsed: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds that no setting of a clock changes; on Linux also those in which the machine sleeps."""


_SLOW: Final = 1.0
"""Seconds after which an answer is too inexact, because the process may have slept."""


class ServerClock:
    """Tells the server's time between the answers that bring it."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        """Seconds by which the server's time exceeds `_elapsed`."""

    def read(self, ask: Callable[[], float]) -> None:
        """Set the clock by a query that returns the server's seconds since the epoch.

        The answer is taken for the time halfway between the question and its arrival. A slow one
        changes nothing, unless it is the first.
        """
        asked = _elapsed()
        told = ask()
        answered = _elapsed()
        if self._ahead is None or answered - asked < _SLOW:
            self._ahead = told - (asked + answered) / 2

    def now(self) -> float:
        """Return the server's time in seconds since the epoch. It was `read` before."""
        assert self._ahead is not None
        return self._ahead + _elapsed()
