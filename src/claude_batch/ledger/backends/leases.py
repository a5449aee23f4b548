"""Processes, leader locks and claims, on several machines: rows that are renewed, and expire.

The operating system does not report whether a process on another machine lives. A process therefore
renews its row every `heartbeat` seconds. If it has not done so for `take_over` seconds, the others
treat it as dead. On Linux, a process of the same machine that sees the pid end does not wait. A
lease only saves work: if a process that was treated as dead continues, its epoch excludes its
writes, and the arm window, which is shorter than the lease, excludes its POSTs.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Update,
    delete,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from claude_batch.core.errors import LedgerError
from claude_batch.core.quantities import format_duration
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState
from claude_batch.ledger.backends.backend import FetchClaim, FetchedBy, Fetches, Worker
from claude_batch.ledger.backends.postgres_connections import (
    PostgresConnections,
    ServerClock,
    application_of,
)
from claude_batch.ledger.schema import batches

own_tables: MetaData = MetaData()
"""Tables that only this backend has: processes, leader locks and fetches."""

processes: Table = Table(
    "processes",
    own_tables,
    Column("name", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("machine", String, nullable=False),  # which pids it shares with others; "" if unknown
    # Distinguishes it from a later process with its pid.
    Column("begun", BigInteger, nullable=False),
    Column("beat", Float, nullable=False),  # this and the next by the server's clock
    Column("expires", Float, nullable=False),
    Column("settings", Text, nullable=False),  # those that all need to have in common, or ""
)

leader_locks: Table = Table(
    "seats",  # the name that existing databases have
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

HANGS = 30.0
"""Seconds without a sign of the engine's loop after which its process releases its leader locks and
sends no heartbeats.

Longer than the loop waits for a server that was lost, or works on one large batch.
"""

_LAST_BEAT = 5.0
"""Seconds that the end of a process waits for a heartbeat in progress."""

_FORGET = 100.0
"""Seconds after its end by which the row of a dead process is removed."""

_NOW = literal_column("CAST(extract(epoch FROM clock_timestamp()) AS float8)", Float)
"""The server's clock, the only one that all processes share."""

_END_SESSIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY(:names) "
    "AND usename = session_user AND datname = current_database() AND pid != pg_backend_pid()"
)
"""Ends no session of another user of the server."""

_log = logging.getLogger(__name__)


class Leases:
    """The rows of processes and leader locks of one ledger, and the heartbeat of this process.

    Once `live` was called, it is the `ProcessLock` of this process.
    """

    def __init__(self, connections: PostgresConnections, clock: ServerClock) -> None:
        """Keep the rows in the ledger's schema, and set the clock with each heartbeat."""
        self.connections = connections
        self._clock = clock
        self.process: str = connections.process
        """This process's name, once it lives."""
        self._settings = LedgerSettings()
        self._agreed = ""
        """The settings that all processes need to have in common; "" if this one never drives."""
        self._ticked: float | None = None
        self._machine = ""
        """As `_identity` returns it, with the address that the server sees; "" before it lives."""
        self._held: dict[str, int] = {}
        """The leader locks that this process holds: the workspace by the holder's name.

        A row of this process that is not among them was left in an outage, and holds nothing.
        """
        self._later: list[Update | Delete] = []
        """Writes that failed in an outage; the next heartbeat repeats them."""
        self._beating: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    # Processes --------------------------------------------------------------------------------

    def live(self, settings: LedgerSettings | None = None) -> str:
        """Begin to renew this process's row, unless it has begun; return the process's name.

        Raises `LedgerError` if a living process has other ``settings`` that all need to have in
        common.
        """
        with self._lock:
            if settings is not None:
                self._check(settings)
                self._settings, self._agreed = settings, json.dumps(settings.agreed())
            if self._beating is None or settings is not None:
                self._register()
            if self._beating is None:
                self._ended = threading.Event()
                beating = threading.Thread(
                    target=self._keep_beating, name="claude-batch-heartbeat", daemon=True
                )
                beating.start()
                self._beating = beating  # not before: the next call tries again
        return self.process

    def _check(self, settings: LedgerSettings) -> None:
        # A process that armed a POST within its lease has then sent it, or will not send it any
        # more, when another drives.
        least = settings.heartbeat + settings.arm_window
        if settings.heartbeat <= 0:
            raise LedgerError(
                f"the ledger {self.connections.location} cannot be used: the time between two "
                "heartbeats must be more than 0s; nothing was changed. Set --heartbeat"
            )
        if settings.take_over < least:
            raise LedgerError(
                f"the ledger {self.connections.location} cannot be used: a heartbeat of "
                f"{format_duration(settings.heartbeat)} and an arm window of "
                f"{format_duration(settings.arm_window)} need a take-over of at least "
                f"{format_duration(least)}, and it is {format_duration(settings.take_over)}; "
                "nothing was changed. Set --take-over, or the others"
            )

    def tick(self) -> None:
        self._ticked = time.monotonic()

    def _keep_beating(self) -> None:
        while not self._ended.wait(self._settings.heartbeat):
            try:
                if self._ticked is not None and time.monotonic() - self._ticked > HANGS:
                    # Without a heartbeat it counts as dead, so others also run its tools again.
                    self._release_leader_locks()
                elif not self._beat():
                    # Others took this process for dead so long ago that they have forgotten it.
                    self._register()
            except self.connections.faults as error:
                # The next write of the ledger says so to whoever needs it.
                _log.debug("the heartbeat did not reach the ledger: %s", error)
            except LedgerError as error:
                _log.warning("%s", error, extra={"for_people": True})
            except Exception:
                # Without this thread a healthy process would count as dead for as long as it lives.
                _log.exception("a heartbeat failed; the next one follows")

    def _register(self) -> None:
        with self.connections.leasing() as tx:
            # A ledger that an earlier version made has all tables but this one.
            fetches.create(tx, checkfirst=True)
            address = tx.scalar(text("SELECT coalesce(host(inet_client_addr()), '')"))
            machine, begun = _identity()
            self._machine = f"{machine} {address}" if machine else ""
            self._agree(tx)
            now = server_time(tx)
            row = insert(processes).values(
                name=self.process,
                host=socket.gethostname(),
                pid=os.getpid(),
                machine=self._machine,
                begun=begun,
                beat=now,
                expires=now + self._settings.take_over,
                settings=self._agreed,
            )
            renewed = {name: row.excluded[name] for name in ("beat", "expires", "settings")}
            tx.execute(row.on_conflict_do_update(index_elements=["name"], set_=renewed))

    def _agree(self, tx: Connection) -> None:
        """Refuse settings that contradict those of a living process.

        Otherwise one process would take a sending for certain, and another would repeat it.
        """
        if not self._agreed:
            return
        others = select(processes).where(
            processes.c.name != self.process,
            processes.c.settings.not_in(("", self._agreed)),
        )
        now = server_time(tx)
        other = next((row for row in tx.execute(others).all() if self._is_alive(row, now)), None)
        if other is None:
            return
        ours, theirs = json.loads(self._agreed), json.loads(other.settings)
        different = [
            f"{name} {theirs.get(name)} there and {value} here"
            for name, value in ours.items()
            if theirs.get(name) != value
        ]
        raise LedgerError(
            f"the ledger {self.connections.location} is used by process {other.pid} on "
            f"{other.host} with other settings: {', '.join(different)}; nothing was changed. Give "
            "all processes the same, or end those with the old ones first"
        )

    def _beat(self) -> bool:
        """Renew the row; return False if it is gone."""
        # Not a write of the ledger, so it takes no lock, and never waits for one.
        row = update(processes).where(processes.c.name == self.process)
        with self.connections.engine.connect() as plain:
            connection = plain.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                found = connection.execute(
                    row.values(beat=_NOW, expires=_NOW + self._settings.take_over)
                )
                self._clock.read(lambda: server_time(connection))
                later = self._later.copy()
                for statement in later:
                    connection.execute(statement)
            del self._later[: len(later)]
        self.end_sessions_of_the_dead()
        return found.rowcount > 0

    def end_sessions_of_the_dead(self) -> None:
        """End the sessions of processes whose heartbeats have stopped.

        A process that is stopped while it copies rows is not idle, so no time-out of the server
        ends its transaction, and the lock of all writes with it.
        """
        dead = select(processes.c.name).where(processes.c.expires < _NOW)
        with self.connections.engine.connect() as tx, tx.begin():
            names = [application_of(name) for name in tx.scalars(dead)]
            if names:
                # Sessions belong to the user who logged in, also if it acts as another role.
                tx.execute(text("SET LOCAL ROLE NONE"))
                tx.execute(_END_SESSIONS, {"names": names})

    def _release_leader_locks(self) -> None:
        """Let others drive and fetch, because this process's loop hangs.

        If it continues later, the epochs exclude its writes as soon as another process drives.
        """
        for holder, workspace_id in list(self._held.items()):
            _log.warning(
                "the engine has hung for more than %g s; another process can drive workspace %d",
                HANGS,
                workspace_id,
                extra={"for_people": True},
            )
            self.leave(workspace_id, holder)
        self.write_soon(self._give_claims_up())

    def _give_claims_up(self) -> Update:
        claimed = (fetches.c.process == self.process) & ~fetches.c.done
        return update(fetches).where(claimed).values(process="", holder="")

    def write_soon(self, statement: Update | Delete) -> None:
        """Write a change of the leases; with the next heartbeat if the server is away now."""
        try:
            with self.connections.leasing() as tx:
                tx.execute(statement)
        except self.connections.faults as error:
            _log.info("a lease is changed only with the next heartbeat: %s", error)
            self._later.append(statement)

    def release(self) -> None:
        """Stop renewing, and remove this process and its leader locks."""
        with self._lock:
            if self._beating is None:
                return
            self._ended.set()
            beating, self._beating = self._beating, None
            self._held.clear()
            beating.join(_LAST_BEAT)
            if beating.is_alive():
                # The server accepts the connection but never answers.
                self._log_unreleased("no answer")
                return
            try:
                with self.connections.leasing() as tx:
                    tx.execute(self._give_claims_up())
                    tx.execute(delete(leader_locks).where(leader_locks.c.process == self.process))
                    tx.execute(delete(processes).where(processes.c.name == self.process))
            except self.connections.faults as error:
                self._log_unreleased(error)

    def _log_unreleased(self, error: object) -> None:
        _log.info("the leader lock is free only after %g s: %s", self._settings.take_over, error)

    def is_alive(self, process: str) -> bool:
        """Return whether a process has renewed its row lately, and was not seen to have ended."""
        with self.connections.reading() as tx:
            return self.lives(tx, process)

    def lives(self, tx: Connection, process: str) -> bool:
        """Return the same, in a transaction."""
        row = tx.execute(select(processes).where(processes.c.name == process)).first()
        return row is not None and self._is_alive(row, server_time(tx))

    def _is_alive(self, row: Any, now: float) -> bool:
        if row.expires <= now:
            return False
        # If a process shares its pids with this one, the operating system shows whether it has
        # ended.
        shares = bool(self._machine) and row.machine == self._machine
        return not (shares and _has_ended(row.pid, row.begun))

    def sweep(self) -> None:
        """Remove processes that died long ago, their leader locks, and unclaimed offers."""
        with self.connections.leasing() as tx:
            dead = select(processes.c.name).where(processes.c.expires < server_time(tx) - _FORGET)
            tx.execute(delete(leader_locks).where(leader_locks.c.process.in_(dead)))
            tx.execute(delete(processes).where(processes.c.name.in_(dead)))
            ended = select(batches.c.id).where(batches.c.state == BatchState.ENDED)
            tx.execute(delete(fetches).where(fetches.c.batch_id.not_in(ended)))

    def workers(self) -> list[Worker]:
        """Return the living processes, and what they drive."""
        with self.connections.reading() as tx:
            now = server_time(tx)
            driven: dict[str, list[int]] = {}
            for leader in tx.execute(select(leader_locks).order_by(leader_locks.c.workspace_id)):
                driven.setdefault(leader.process, []).append(leader.workspace_id)
            return [
                Worker(
                    process=row.name,
                    host=row.host,
                    pid=row.pid,
                    seconds_since_heartbeat=max(0.0, now - row.beat),
                    drives=driven.get(row.name, []),
                )
                for row in tx.execute(select(processes).order_by(processes.c.name))
                if self._is_alive(row, now)
            ]

    # Leader locks -----------------------------------------------------------------------------

    def take(self, workspace_id: int, holder: str) -> bool:
        """Take a leader lock that is free, or whose process is dead; return False if it is held."""
        process = self.live()
        with self.connections.leasing() as tx:
            if self._is_taken(tx, workspace_id):
                return False
            tx.execute(delete(leader_locks).where(leader_locks.c.workspace_id == workspace_id))
            tx.execute(
                insert(leader_locks).values(
                    workspace_id=workspace_id, process=process, holder=holder, since=server_time(tx)
                )
            )
        self._held[holder] = workspace_id
        return True

    def is_taken(self, workspace_id: int) -> bool:
        """Return whether a living process has the leader lock of a workspace."""
        with self.connections.reading() as tx:
            return self._is_taken(tx, workspace_id)

    def _is_taken(self, tx: Connection, workspace_id: int) -> bool:
        row = tx.execute(
            select(leader_locks).where(leader_locks.c.workspace_id == workspace_id)
        ).first()
        if row is None:
            return False
        return (
            row.holder in self._held if row.process == self.process else self.lives(tx, row.process)
        )

    def leave(self, workspace_id: int, holder: str) -> None:
        """Release a leader lock, unless another process has taken it meanwhile.

        If the server cannot be reached, the row stays until this process dies, or takes the lock
        again.
        """
        self._held.pop(holder, None)
        try:
            with self.connections.leasing() as tx:
                tx.execute(
                    delete(leader_locks).where(
                        leader_locks.c.workspace_id == workspace_id, leader_locks.c.holder == holder
                    )
                )
        except self.connections.faults as error:
            self._log_unreleased(error)


def server_time(tx: Connection) -> float:
    """Return the server's time in seconds since the epoch."""
    return float(tx.scalar(select(_NOW)) or 0.0)


def _identity() -> tuple[str, int]:
    """Return an id shared by the processes that see each other's pids, and when this one began.

    Linux numbers each boot of a machine, and each namespace of pids, as containers have their own.
    Copies of a running machine have the same numbers, but mostly another name. The text is empty if
    nothing identifies them.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')} {socket.gethostname()}"
        return machine, _begun(os.getpid()) or 0
    except OSError:
        return "", 0


def _begun(pid: int) -> int | None:
    """Return when a process began, in ticks since the boot; None if it has ended.

    Raises `OSError` if the system does not report it. See
    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        # If users cannot see each other's processes, only this shows that there is none.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        raise
    # The name, in parentheses, may have spaces and parentheses itself.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _has_ended(pid: int, begun: int) -> bool:
    """Return whether a process has certainly ended; another may have its pid by now."""
    try:
        return _begun(pid) != begun
    except OSError:
        return False


class LeaderLease:
    """The leader lock of a workspace."""

    def __init__(self, leases: Leases, workspace_id: int) -> None:
        self._leases = leases
        self._workspace_id = workspace_id
        self._holder = secrets.token_hex(8)

    def take(self) -> bool:
        with self._leases.connections.translating("used"):
            # Each waiting process asks twice a second. A read delays no write.
            if self._leases.is_taken(self._workspace_id):
                return False
            return self._leases.take(self._workspace_id, self._holder)

    def release(self) -> None:
        self._leases.leave(self._workspace_id, self._holder)


# Fetches ------------------------------------------------------------------------------------------
#
# A row is an offer of the driver, or the claim of another process that stores the results for it.
# The driver alone judges them. A lost row loses nothing: the driver then fetches the batch itself,
# and a result that is stored twice is stored once.


class SharedFetches(Fetches):
    """Which process fetches the results of which batch, in one ledger."""

    def __init__(self, leases: Leases) -> None:
        """Use the heartbeats by which processes know of each other."""
        self._leases = leases
        self._connections = leases.connections
        self._held: set[str] = set()
        """The claims that this process knows of. The server may have others in its name, from a
        COMMIT whose answer was lost; their batches have to be claimed again.
        """

    def offer(self, workspace_id: int, batch_ids: Sequence[int]) -> None:
        rows = [
            {
                "batch_id": batch_id,
                "workspace_id": workspace_id,
                "process": "",
                "holder": "",
                "done": False,
            }
            for batch_id in batch_ids
        ]
        # No notice is sent, because the others look for offers twice a second anyway.
        with self._connections.translating("written"), self._connections.leasing() as tx:
            tx.execute(insert(fetches).on_conflict_do_nothing(), rows)

    def offered(self) -> list[int]:
        query = select(fetches.c.batch_id).where(~fetches.c.done).order_by(fetches.c.batch_id)
        # If an earlier version made the ledger, the first process that may drive makes this table.
        exists = select(func.to_regclass(fetches.name).is_not(None))
        with self._connections.translating("read"), self._connections.reading() as tx:
            return list(tx.scalars(query)) if tx.scalar(exists) else []

    def withdraw(self, batch_id: int) -> FetchedBy:
        with self._connections.translating("written"):
            # Most batches were never offered. A read delays no write.
            with self._connections.reading() as tx:
                if self._fetched_by(tx, batch_id) is None:
                    return "driver"
            with self._connections.leasing() as tx:
                by = self._fetched_by(tx, batch_id)
                if by != "other":
                    tx.execute(delete(fetches).where(fetches.c.batch_id == batch_id))
        return by or "driver"

    def _fetched_by(self, tx: Connection, batch_id: int) -> FetchedBy | None:
        row = tx.execute(select(fetches).where(fetches.c.batch_id == batch_id)).first()
        if row is None:
            return None
        if row.done:
            return "done"
        if row.process == self._leases.process:
            return "other" if row.holder in self._held else "driver"
        return "other" if row.process and self._leases.lives(tx, row.process) else "driver"

    def claim(self, workspace_id: int) -> FetchClaim | None:
        lost = (
            (fetches.c.process == self._leases.process)
            & fetches.c.holder.not_in(self._held)
            & ~fetches.c.done
        )
        offered = (
            select(fetches.c.batch_id)
            .where(fetches.c.workspace_id == workspace_id, (fetches.c.process == "") | lost)
            .order_by(fetches.c.batch_id)
            .limit(1)
        )
        with self._connections.translating("written"):
            with self._connections.reading() as tx:
                if tx.scalar(offered) is None:
                    return None
            process = self._leases.live()
            with self._connections.leasing() as tx:
                batch_id = tx.scalar(offered)
                if batch_id is None:
                    return None
                claim = FetchClaim(batch_id, secrets.token_hex(8))
                tx.execute(
                    update(fetches)
                    .where(fetches.c.batch_id == batch_id)
                    .values(process=process, holder=claim.holder)
                )
        self._held.add(claim.holder)
        return claim

    def holds(self, tx: Connection, claim: FetchClaim) -> bool:
        # Every write holds the ledger's lock, so the claim cannot pass to another process before
        # this transaction ends.
        return tx.scalar(select(fetches.c.done).where(_is(claim))) is False

    def finish(self, tx: Connection, claim: FetchClaim) -> None:
        tx.execute(update(fetches).where(_is(claim)).values(done=True))
        self._held.discard(claim.holder)

    def leave(self, claim: FetchClaim, *, offer: bool) -> None:
        self._held.discard(claim.holder)
        # Rows that another process has taken over, or that are done, stay unchanged.
        unfinished = _is(claim) & ~fetches.c.done
        self._leases.write_soon(
            update(fetches).where(unfinished).values(process="", holder="")
            if offer
            else delete(fetches).where(unfinished)
        )


def _is(claim: FetchClaim) -> ColumnElement[bool]:
    return (fetches.c.batch_id == claim.batch_id) & (fetches.c.holder == claim.holder)
