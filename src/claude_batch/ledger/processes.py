"""Which processes live: each holds a file lock of its own beside the ledger while it works.

An operating system frees a lock when its holder dies, whatever it dies of. So a free lock proves
that nobody waits any more for what its process was waiting for.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.locks import file_lock, take
from claude_batch.ledger.store import Ledger

__all__ = ["ProcessLock", "is_alive", "sweep_locks"]

_SUFFIX = ".process-"


def _path(ledger: Ledger, process: str) -> Path:
    return ledger.sibling(f"{_SUFFIX}{process}")


class ProcessLock:
    """This process's lock on a ledger, held from its making until `release` or death."""

    def __init__(self, ledger: Ledger) -> None:
        """Raises `LedgerError` where no file can be made beside the ledger."""
        self.process: str = secrets.token_hex(8)
        """What the ledger knows this process by; never used again by another."""
        self._path = _path(ledger, self.process)
        self._lock = file_lock(self._path)
        # Somebody who sweeps may look at the file before it is locked: that takes no time.
        if not take(self._lock, ledger.sibling(""), timeout=10):
            raise LedgerError(f"another process holds the lock file {self._path}", fault="busy")

    def release(self) -> None:
        """Nobody waits here any more."""
        # Unlinked first: until the lock is free, whoever finds the file finds a living process.
        self._path.unlink(missing_ok=True)
        self._lock.release()


def is_alive(ledger: Ledger, process: str) -> bool:
    """Whether a process still holds its lock; the file of a dead one is removed."""
    path = _path(ledger, process)
    if not path.exists():
        return False
    lock = file_lock(path)
    try:
        if not take(lock, ledger.sibling("")):
            return True
    except LedgerError:
        return True  # one that cannot be opened proves nothing
    path.unlink(missing_ok=True)
    lock.release()
    return False


def sweep_locks(ledger: Ledger) -> None:
    """Remove the files of processes that are dead."""
    stem = ledger.sibling(_SUFFIX)
    for path in stem.parent.glob(stem.name + "*"):
        is_alive(ledger, path.name.removeprefix(stem.name))
