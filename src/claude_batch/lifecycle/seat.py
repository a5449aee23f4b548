"""The driver's seat as an OS file lock, which its holder's death frees."""

from __future__ import annotations

from filelock import FileLock, Timeout

from claude_batch.ledger.seats import seat_file
from claude_batch.ledger.store import Ledger

__all__ = ["seat_is_taken", "seat_lock"]


def seat_lock(ledger: Ledger, workspace_id: int) -> FileLock:
    """The lock of a workspace's seat, not taken yet."""
    return FileLock(seat_file(ledger.sibling(""), workspace_id))


def seat_is_taken(ledger: Ledger, workspace_id: int) -> bool:
    """True where some process, this one included, drives the workspace now."""
    lock = seat_lock(ledger, workspace_id)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
