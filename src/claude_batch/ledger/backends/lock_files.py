"""Lock files beside a ledger: of leaders and of processes, accessible to no other user.

The operating system frees a lock when its holder dies, whatever the cause. A free lock of a
process therefore proves that no caller waits in that process any more.
"""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from pathlib import Path

from filelock import FileLock, Timeout

from claude_batch.core.errors import LedgerError

# Locks --------------------------------------------------------------------------------------------


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
        owner = owner_of(path)
        whose = f"belongs to {owner} and " if owner else ""
        raise LedgerError(
            f"the lock file {path} {whose}cannot be opened: {error.strerror}. {_REMEDY}"
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
    """Return the id of the process that holds a lock; None if the system does not tell."""
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


def seat_file(ledger: Path, workspace_id: int) -> Path:
    """Return the path of a workspace's leader lock."""
    return ledger.with_name(f"{ledger.name}.seat-{workspace_id}")


def seat_files(ledger: Path) -> list[Path]:
    """Return the leader locks taken since a ledger was first created at this path."""
    path = ledger.expanduser().resolve()
    prefix = f"{path.name}.seat-"
    return sorted(found for found in path.parent.iterdir() if found.name.startswith(prefix))


class SeatFile:
    """The leader lock of a workspace."""

    def __init__(self, ledger: Path, workspace_id: int) -> None:
        self._ledger = ledger
        self._lock = file_lock(seat_file(ledger, workspace_id))

    def take(self) -> bool:
        """Take it; return False if another process holds it. Raises `LedgerError`."""
        return take(self._lock, self._ledger)

    def release(self) -> None:
        """Release it."""
        self._lock.release()


# Processes ----------------------------------------------------------------------------------------

_SUFFIX = ".process-"


def _path(ledger: Path, process: str) -> Path:
    path = ledger.expanduser().resolve()
    return path.with_name(f"{path.name}{_SUFFIX}{process}")


class ProcessFile:
    """This process's lock on a ledger, held from construction until `release` or death."""

    def __init__(self, ledger: Path) -> None:
        """Take the lock. Raises `LedgerError` if no file can be created beside the ledger."""
        self.process: str = secrets.token_hex(8)
        """This process's name in the ledger; no other process ever uses it."""
        self._path = _path(ledger, self.process)
        self._lock = file_lock(self._path)
        # A sweeping process may hold the new file's lock for a moment.
        if not take(self._lock, ledger, timeout=10):
            raise LedgerError(f"another process holds the lock file {self._path}", fault="busy")

    def tick(self) -> None:
        """Do nothing: nobody can take the lock of a process that hangs."""

    def release(self) -> None:
        """Release the lock, because no caller waits in this process any more."""
        # Unlinked first: while the file can be found, its lock must show a living process.
        self._path.unlink(missing_ok=True)
        self._lock.release()


def is_alive(ledger: Path, process: str) -> bool:
    """Return whether a process still holds its lock. The file of a dead process is removed."""
    path = _path(ledger, process)
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
    stem = _path(ledger, "")
    for path in stem.parent.glob(stem.name + "*"):
        is_alive(ledger, path.name.removeprefix(stem.name))
