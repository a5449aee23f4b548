"""Lock files beside a ledger, created by their owner and accessible to no other user."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from filelock import FileLock, Timeout

from claude_batch.core.errors import LedgerError


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
