"""`Backend`: what a database must do for the ledger beyond the SQL that all of them share."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection, Engine, Insert

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.settings import LedgerSettings

Query = Any
"""A SELECT. Its precise type counts the columns, which no function here needs."""

PAGE_ROWS = 100
"""Rows of one page of `Backend.row_pages`."""

PATIENCE = 20.0
"""Seconds that a read, or the beginning of a transaction, waits for a server that was lost."""

RETRY = 0.25
"""Seconds between two attempts to reach it."""


class Patience:
    """How long threads wait for a server that was lost, or for a file that others have locked."""

    def __init__(self) -> None:
        """Set no limit but those of the waits themselves."""
        self._end = math.inf

    def limit(self, seconds: float) -> None:
        """End every wait within this time from now, those under way included."""
        self._end = min(self._end, time.monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time of `limit` has passed."""
        return time.monotonic() > self._end

    def ends(self, begun: float, seconds: float) -> bool:
        """Return whether a wait that began at this time, of so many seconds, has to end."""
        return time.monotonic() > min(begun + seconds, self._end)


class LeaderLock(Protocol):
    """The right to drive one workspace; it passes on when its holder dies."""

    def take(self) -> bool:
        """Take it; return False if another process holds it. Raises `LedgerError`."""
        ...

    def release(self) -> None:
        """Release it."""
        ...


class ProcessLock(Protocol):
    """Shows that this process lives, from construction until `release` or death."""

    process: str
    """This process's name in the ledger; no other process ever uses it."""

    def tick(self) -> None:
        """Show that the engine's loop runs, so that other processes do not take its place."""
        ...

    def release(self) -> None:
        """End it, because no caller waits in this process any more."""
        ...


class Watch(Protocol):
    """A cheap check for commits of other processes."""

    def changed(self) -> bool:
        """Return True if another process has committed since the last call.

        It may also return True without a commit. Raises `LedgerError`.
        """
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class FetchClaim(msgspec.Struct, frozen=True):
    """The right of one process to fetch the results of a batch for the driver."""

    batch_id: int
    holder: str


FetchedBy = Literal["driver", "other", "done"]
"""The state of a fetch; ``done`` if another process has stored all results of the batch."""


class Fetches:
    """The fetches of batches' results. If nothing is shared, the driver fetches all.

    If processes share the work, the driver offers batches, others claim and fetch them, and the
    driver judges what they stored. `offer`, `withdraw` and `claim` raise `LedgerError`.
    """

    def offer(self, workspace_id: int, batch_ids: Sequence[int]) -> None:
        """Offer ended batches to the other processes of a workspace; the driver calls this."""

    def offered(self) -> list[int]:
        """Return the batches that are offered or claimed, and not fetched yet."""
        return []

    def withdraw(self, batch_id: int) -> FetchedBy:
        """Return which process fetches a batch; end the offer unless another process does.

        The driver calls this. It fetches what a dead process has claimed.
        """
        return "driver"

    def claim(self, workspace_id: int) -> FetchClaim | None:
        """Claim an offered batch; None if there is none."""
        return None

    def holds(self, tx: Connection, claim: FetchClaim) -> bool:
        """Return whether a claim still holds, in a transaction that stores results by it."""
        return False

    def finish(self, tx: Connection, claim: FetchClaim) -> None:
        """Note that all results of the batch are stored."""

    def leave(self, claim: FetchClaim, *, offer: bool) -> None:
        """End a claim without all results; ``offer``: another process may claim the batch.

        If the ledger cannot be reached, the claim ends with the next heartbeat that reaches it.
        """


class Size(msgspec.Struct, frozen=True):
    """The space that a ledger takes, in bytes."""

    data: int
    log: int
    """Of a log that is not part of the data yet."""


class Weakness(NamedTuple):
    """Why a server may forget what was committed, and what to do."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that uses a ledger on a server."""

    process: str
    host: str
    pid: int
    seconds_since_heartbeat: float
    drives: list[int]
    """Ids of the workspaces in which it sends and collects."""


written_ledgers: set[str] = set()
"""Addresses of the ledgers that this process has written to."""


class Backend(ABC):
    """One open database, shared by threads."""

    location: str
    """The ledger's location, without a password, for messages."""
    engine: Engine
    """Begins read transactions. Its connections run ``BEGIN`` as `begin` says."""
    faults: tuple[type[BaseException], ...]
    """The exceptions that `error` translates."""
    outlasts: frozenset[LedgerFault] = frozenset()
    """Faults that end by themselves, so that a driver begins again and does not end."""
    address: str
    """The same, resolved: it identifies the ledger within this process."""
    fetches: Fetches = Fetches()
    """The fetches of batches' results."""
    patience: Patience
    """Ends the waits of its connections."""
    _is_sound: bool = False
    """Whether `find_damage` found nothing."""

    # Transactions -----------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """Begin a read transaction with one consistent snapshot. Raises `LedgerError`."""
        with self.translating("read"), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """Begin a write transaction, without the checks of `Ledger.write`. Raises `LedgerError`."""
        with self.translating("written"), self.engine.connect() as plain:
            if not self._is_sound:
                # Checked before the first write but not before a read, so that the readable part of
                # a damaged ledger stays readable.
                problem = self.find_damage(plain)
                if problem is not None:
                    raise self.error("written", problem)
                self._is_sound = True
            connection = self.writer(plain)
            with connection.begin():
                yield connection
            written_ledgers.add(self.address)

    @contextmanager
    def translating(self, what: str) -> Generator[None]:
        """Raise `LedgerError` for the driver's exceptions: the ledger cannot be ``used`` or so."""
        try:
            yield
        except self.faults as error:
            raise self.error(what, error) from error
        except (AssertionError, KeyboardInterrupt, SystemExit) as error:
            # SQLAlchemy asserts that no commit is interrupted.
            cause = error.__context__ if isinstance(error, AssertionError) else error
            if not isinstance(cause, (KeyboardInterrupt, SystemExit)):
                raise
            # The frames of an interrupted statement keep it open, and so its locks, as long as the
            # exception is handled.
            clear_frames(error.__traceback__)
            raise cause from None

    @abstractmethod
    def writer(self, connection: Connection) -> Connection:
        """Return the connection, whose next transaction shall write."""

    @abstractmethod
    def tables(self, connection: Connection) -> list[str]:
        """Return the names of the tables where the ledger is or would be."""

    @abstractmethod
    def create(self, tx: Connection) -> None:
        """Create the ledger's tables."""

    def check_empty(self) -> None:
        """Raise `LedgerError` if a ledger without tables replaced another.

        Nothing outside a schema records that it was dropped.
        """
        return

    def check_place(self) -> None:
        """Raise `LedgerError` if the place has another database now than when it was opened.

        A connection to a server ends with its database.
        """
        return

    def close(self) -> None:
        """Close every connection, and release what this process holds."""
        self.engine.dispose()

    def find_damage(self, connection: Connection) -> str | None:
        """Return the damage of a ledger in the database's words; None if nothing was found.

        A server checks its own pages.
        """
        return None

    @abstractmethod
    def error(self, what: str, cause: BaseException | str) -> LedgerError:
        """Return the error for a ledger that cannot be ``used``, ``read``, ``written`` or the like.

        ``cause`` is the driver's exception, or damage in words.
        """

    @abstractmethod
    def migrate(self, version: int) -> None:
        """Migrate an older schema, or raise `LedgerError` and leave it unchanged."""

    @abstractmethod
    def watch(self) -> Watch:
        """Return a check for commits of other processes."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """Copy all committed data to a new file while other processes write.

        Raises `FileExistsError`, `OSError`, `LedgerError` and the driver's errors.
        """

    def checkpoint(self) -> bool:
        """Move a large write-ahead log into the data; return False if there was nothing to do."""
        return False  # a server does so itself

    def now(self) -> float:
        """Return the time that all processes of the ledger share, in seconds since the epoch."""
        return time.time()

    def server(self, tx: Connection) -> str:
        """Return what identifies the server and the history of its data.

        "" for a file, and for a standby, which nothing is written to.
        """
        return ""

    def weakness(self) -> Weakness | None:
        """Return why the server may forget what was committed; None if no reason is known."""
        return None

    @abstractmethod
    def size(self) -> Size:
        """Return the space that the ledger takes."""

    # Statements -------------------------------------------------------------------------------

    @abstractmethod
    def insert_many(
        self, tx: Connection, statement: Insert, rows: Sequence[tuple[Any, ...]]
    ) -> int:
        """Run an insert for many rows of plain values, in the order of the table's columns.

        Returns the number of rows that were inserted (or changed, if the statement does that).

        A row leaves out the columns for which the statement has a constant. The statement is a
        constant of a module.
        """

    @abstractmethod
    def row_pages(
        self, tx: Connection, statement: Query, values: Mapping[str, Any]
    ) -> Generator[list[tuple[Any, ...]]]:
        """Yield the rows of a query lazily, as lists of plain tuples from the driver.

        The query is a constant of a module, with named parameters.
        """

    @contextmanager
    def joining_many(self, tx: Connection) -> Generator[None]:
        """Expect the statements of the block to join many rows, whatever the statistics are.

        Statistics may be older than the rows of the batch that is worked on.
        """
        yield

    # Locks ------------------------------------------------------------------------------------

    @abstractmethod
    def leader_lock(self, workspace_id: int) -> LeaderLock:
        """Return the leader lock of a workspace, not taken yet."""

    def has_leader(self, workspace_id: int) -> bool:
        """Return whether any process, including this one, drives the workspace now."""
        lock = self.leader_lock(workspace_id)
        if not lock.take():
            return True
        lock.release()
        return False

    def driver_of(self, workspace_id: int) -> str:
        """Return which process drives a workspace, for a message; "" if that is not known."""
        found = (each for each in self.workers() if workspace_id in each.drives)
        return next((f"process {each.pid} on {each.host}" for each in found), "")

    @contextmanager
    def every_leader_lock(self, workspace_ids: Iterable[int], why: str) -> Generator[None]:
        """Hold leader locks while the block runs, so that no process drives meanwhile.

        Raises `LedgerError` with a message that ends in ``why`` if a process drives.
        """
        with ExitStack() as stack:
            for workspace_id in workspace_ids:
                lock = self.leader_lock(workspace_id)
                if not lock.take():
                    who = self.driver_of(workspace_id)
                    raise LedgerError(
                        f"another process drives the ledger {self.location}"
                        f"{who and f' ({who})'}; end it first: {why}",
                        fault="busy",
                    )
                stack.callback(lock.release)
            yield

    @abstractmethod
    def process_lock(self, settings: LedgerSettings) -> ProcessLock:
        """Return the proof that this process lives. Raises `LedgerError`."""

    @abstractmethod
    def is_alive(self, process: str) -> bool:
        """Return whether a process still lives, or may live."""

    def workers(self) -> list[Worker]:
        """Return the living processes, if the backend records them."""
        return []

    @abstractmethod
    def sweep_locks(self) -> None:
        """Remove what dead processes left."""
