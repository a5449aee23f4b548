"""The file of a ledger in SQLite: its errors and checks, its copy, and the lock files beside it."""

from __future__ import annotations

import os
import pwd
import secrets
import sqlite3
import stat
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.core.files import create_beside, flush, sibling
from claude_batch.core.states import OPEN

SQLITE_VERSION = sqlite3.sqlite_version


def version_fault() -> str:
    """Return why this version of SQLite cannot write a ledger; empty if it can."""
    if sqlite3.sqlite_version_info >= (3, 35):  # the first one with RETURNING
        return ""
    return (
        f"SQLite {SQLITE_VERSION} is too old: a ledger in a file needs 3.35 or later. Use a Python "
        "that has a newer SQLite, or a ledger on PostgreSQL"
    )


# Errors -------------------------------------------------------------------------------------------

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
    location: object, what: str, error: BaseException | str, *, written: bool
) -> LedgerError:
    """Return the error for a ledger that cannot be ``used``, ``read``, ``written`` or the like.

    ``error`` is an exception, or the damage that SQLite's check found. ``written``: whether this
    process has written to it before.
    """
    is_found = isinstance(error, str)
    fault = "damaged" if is_found else fault_of(error)
    words = f"the ledger {location} cannot be {what}: {getattr(error, 'orig', None) or error}"
    if fault == "damaged":
        if not written and not is_found and (other := _foreign_error(location)) is not None:
            return other
        # "The ledger is unchanged" is never certain: other processes may have it open.
        words += (
            ". This process had written to it before the damage was found"
            if written
            else ". This process has written nothing to it"
        )
    elif fault == "unusable" and (why := why_forbidden(location)) is not None:
        words += f" ({why})"
    return LedgerError(f"{words}. {_REMEDIES[fault]}", fault=fault)


def why_forbidden(location: object) -> str | None:
    """Return which file of a ledger this process may not use, and whose it is; None without one."""
    if "://" in str(location):
        return None
    path = Path(str(location)).expanduser().resolve()
    for each in (path, sibling(path, "-wal"), sibling(path, "-shm"), path.parent):
        needed = os.R_OK | os.W_OK | (os.X_OK if each == path.parent else 0)
        # Not of a file that is not there, or cannot be looked for.
        if (owner := owner_of(each)) and not os.access(each, needed):
            what = "written" if os.access(each, os.R_OK) else "read"
            return f"{each} belongs to {owner} and cannot be {what} by {_name(os.geteuid())}"
    return None


_MAGIC = b"SQLite format 3\0"


def _foreign_error(location: object) -> LedgerError | None:
    """Return the error for a file that was never SQLite's; None if a ledger may be in it."""
    if "://" in str(location):
        return None
    path = Path(str(location)).expanduser()
    # Only a file that no process has used is opened here: closing it drops this process's locks.
    if sibling(path, "-wal").exists() or leader_lock_files(path):
        return None
    try:
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) == _MAGIC:
                return None
    except OSError:
        return None
    return LedgerError(
        f"{location} is not a ledger (no SQLite file); name the ledger with --ledger. It was not "
        "changed"
    )


def folder_error(path: Path) -> LedgerError:
    """Return the error for a folder that is named as a ledger."""
    return LedgerError(f"{path} is a folder; name the ledger, which is a file, with --ledger")


# Examination --------------------------------------------------------------------------------------


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a ledger's file, read without a change to it or to the files beside it."""

    damage: list[str]
    """Problems that SQLite's full check found, at most `_MOST_PROBLEMS` lines."""
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
        if path.is_dir():
            raise folder_error(path)
        # A connection that only reads leaves an empty log behind if there was none. Without a log
        # no process has the ledger open, so the file can be read as if it could not change.
        log = sibling(path, "-wal")
        if not log.exists():
            found = _examine(path, "immutable=1")
            if not log.exists():
                return found
        return _examine(path, "mode=ro")
    except (sqlite3.Error, OSError) as error:
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


# Online copy --------------------------------------------------------------------------------------


PARTIAL = "copy.partial"
"""Ending of an unfinished copy. It cannot be locked, because SQLite opens the file itself."""


def copy_ledger(engine: Engine, target: Path) -> None:
    """Copy all committed data to a new file, which appears complete and flushed.

    Raises `FileExistsError` if the target exists, `OSError`, and `sqlite3.Error`.
    """
    with taking_its_place(target) as temporary, closing(engine.raw_connection()) as source:
        driver: Any = source.driver_connection
        with closing(sqlite3.connect(temporary)) as copy:
            # A journal would stay behind on a full disk, and a copy that fails is removed.
            copy.execute("PRAGMA journal_mode = OFF")
            driver.backup(copy)


@contextmanager
def taking_its_place(target: Path) -> Generator[Path]:
    """Yield a temporary file, private to the owner, that becomes ``target`` when the block ends.

    Raises `FileExistsError` if the target exists, and leaves no file behind.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    descriptor, temporary = create_beside(Path(os.path.abspath(target)), PARTIAL)
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
    flush(target.parent)


# Lock files ---------------------------------------------------------------------------------------
#
# The operating system frees a lock when its holder dies, whatever the cause. A free lock of a
# process therefore proves that no caller waits in that process any more.


def file_lock(path: Path) -> FileLock:
    """Return a lock, not taken yet, whose file other users can neither read nor lock."""
    return FileLock(path, mode=0o600)


def take(lock: FileLock, beside: Path, *, timeout: float = 0) -> bool:
    """Take a lock; return False if another process holds it.

    The file may belong to this process's user, to root, or to the owner of ``beside``. Raises
    `LedgerError`, which names the owner, for a file of any other user. Also raises it if the file
    cannot be opened.
    """
    path = Path(lock.lock_file)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        _require_ours(path, beside)
        return False
    except OSError as error:
        if owner := owner_of(path):
            words = f"the lock file {path} belongs to {owner} and cannot be opened"
            raise LedgerError(f"{words}: {error.strerror}. {_REMEDY}") from None
        raise LedgerError(
            f"the lock file {path} cannot be created: {error.strerror}. Its folder belongs to "
            f"{owner_of(path.parent)}: run as that user, or let this one write there; nothing was "
            "changed"
        ) from None
    try:
        _require_ours(path, beside)
        about = path.lstat()
        if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o077:
            path.chmod(0o600)  # created by an older version: other users could lock it
    except BaseException:
        lock.release()
        raise
    return True


_REMEDY = (
    "Run as that user, or remove the file while no process uses the ledger; nothing was changed"
)


def _require_ours(path: Path, beside: Path) -> None:
    try:
        uid = path.lstat().st_uid
        ours = {0, os.geteuid(), beside.stat().st_uid}
    except OSError:
        return  # just removed by its holder
    if uid not in ours:
        raise LedgerError(
            f"the lock file {path} belongs to {_name(uid)}, but the ledger does not, so that "
            f"user can keep it locked. {_REMEDY}"
        )


def owner_of(path: Path) -> str:
    """Return the owner of a file as ``user name (uid 1000)``; "" if there is no file."""
    try:
        return _name(path.lstat().st_uid)
    except OSError:
        return ""


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def holder_of(path: Path) -> int | None:
    """Return the id of the process that holds a lock; None if the system does not report it."""
    try:
        about, locks = path.stat(), Path("/proc/locks").read_text("utf-8").splitlines()
    except OSError:
        return None
    device = about.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{about.st_ino}"
    for words in map(str.split, locks):
        # As in: 3: FLOCK  ADVISORY  WRITE 4121 fd:00:2531452 0 EOF
        if len(words) > 5 and words[5] == name and words[4].isdigit() and words[4] != "0":
            return int(words[4])
    return None


# Leader locks -------------------------------------------------------------------------------------


def leader_lock_file(ledger: Path, workspace_id: int) -> Path:
    """Return the path of a workspace's leader lock."""
    return sibling(ledger, f".seat-{workspace_id}")


def leader_lock_files(ledger: Path) -> list[Path]:
    """Return the leader locks taken since a ledger was first created at this path."""
    path = ledger.expanduser().resolve()
    prefix = f"{path.name}.seat-"
    return sorted(found for found in path.parent.iterdir() if found.name.startswith(prefix))


class LeaderLockFile:
    """The leader lock of a workspace."""

    def __init__(self, ledger: Path, workspace_id: int) -> None:
        self._ledger = ledger
        self._lock = file_lock(leader_lock_file(ledger, workspace_id))

    def take(self) -> bool:
        return take(self._lock, self._ledger)

    def release(self) -> None:
        self._lock.release()


# Processes ----------------------------------------------------------------------------------------


def _process_file(ledger: Path, process: str) -> Path:
    return sibling(ledger, f".process-{process}")


class ProcessFile:
    """This process's lock on a ledger, held from construction until `release` or death."""

    def __init__(self, ledger: Path) -> None:
        """Take the lock. Raises `LedgerError` if no file can be created beside the ledger."""
        self.process: str = secrets.token_hex(8)
        """This process's name in the ledger; no other process ever uses it."""
        self._path = _process_file(ledger, self.process)
        self._lock = file_lock(self._path)
        # A sweeping process may hold the new file's lock for a moment.
        if not take(self._lock, ledger, timeout=10):
            raise LedgerError(f"another process holds the lock file {self._path}", fault="busy")

    def tick(self) -> None:
        """Do nothing: nobody can take the lock of a process that hangs."""

    def release(self) -> None:
        # Unlinked first: while the file can be found, its lock must show a living process.
        self._path.unlink(missing_ok=True)
        self._lock.release()


def is_alive(ledger: Path, process: str) -> bool:
    """Return whether a process still holds its lock. The file of a dead process is removed."""
    path = _process_file(ledger, process)
    if not path.exists():
        return False
    lock = file_lock(path)
    try:
        if not take(lock, ledger):
            return True
    except LedgerError:
        return True  # a file that cannot be opened proves nothing
    path.unlink(missing_ok=True)
    lock.release()
    return False


def sweep_locks(ledger: Path) -> None:
    """Remove the files of dead processes."""
    stem = _process_file(ledger, "")
    # Listed first, because the loop removes files. A name is not a pattern: it may have brackets.
    for name in [path.name for path in stem.parent.iterdir()]:
        if name.startswith(stem.name):
            is_alive(ledger, name.removeprefix(stem.name))
