"""Liveness of processes: each holds a lock file beside the ledger while it works.

The operating system frees a lock when its holder dies, whatever the cause. A free lock therefore
proves that no caller waits in that process any more.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.locks import file_lock, take
from claude_batch.ledger.store import Ledger

_SUFFIX = ".process-"


def _path(ledger: Ledger, process: str) -> Path:
    return ledger.sibling(f"{_SUFFIX}{process}")


class ProcessLock:
    """This process's lock on a ledger, held from construction until `release` or death."""

    def __init__(self, ledger: Ledger) -> None:
        """Take the lock. Raises `LedgerError` if no file can be created beside the ledger."""
        self.process: str = secrets.token_hex(8)
        """This process's name in the ledger; no other process ever uses it."""
        self._path = _path(ledger, self.process)
        self._lock = file_lock(self._path)
        # A sweeping process may hold the new file's lock for a moment.
        if not take(self._lock, ledger.sibling(""), timeout=10):
            raise LedgerError(f"another process holds the lock file {self._path}", fault="busy")

    def release(self) -> None:
        """Release the lock, because no caller waits in this process any more."""
        # Unlinked first: while the file can be found, its lock must show a living process.
        self._path.unlink(missing_ok=True)
        self._lock.release()


def is_alive(ledger: Ledger, process: str) -> bool:
    """Return whether a process still holds its lock. The file of a dead process is removed."""
    path = _path(ledger, process)
    if not path.exists():
        return False
    lock = file_lock(path)
    try:
        if not take(lock, ledger.sibling("")):
            return True
    except LedgerError:
        return True  # a file that cannot be opened proves nothing
    path.unlink(missing_ok=True)
    lock.release()
    return False


def sweep_locks(ledger: Ledger) -> None:
    """Remove the files of dead processes."""
    stem = ledger.sibling(_SUFFIX)
    for path in stem.parent.glob(stem.name + "*"):
        is_alive(ledger, path.name.removeprefix(stem.name))
