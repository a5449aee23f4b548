"""The driver's seat as an OS file lock, which its holder's death frees."""

from __future__ import annotations

import time

from filelock import FileLock, Timeout

from claude_batch.ledger import sending
from claude_batch.ledger.seats import seat_file
from claude_batch.ledger.store import Ledger

__all__ = ["interrupted_workspaces", "seat_is_taken", "seat_lock", "settle_interrupted"]


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


def interrupted_workspaces(ledger: Ledger) -> list[int]:
    """The workspaces whose driver has ended in the middle of a POST, and that nobody drives."""
    with ledger.read() as tx:
        found = sending.sending_workspaces(tx)
    return [workspace_id for workspace_id in found if not seat_is_taken(ledger, workspace_id)]


def settle_interrupted(ledger: Ledger) -> None:
    """Note what became of interrupted sendings where nobody drives, for who wants to decide."""
    for workspace_id in interrupted_workspaces(ledger):
        lock = seat_lock(ledger, workspace_id)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # somebody drives it by now, and has noted it
        try:
            with ledger.write() as tx:
                sending.take_seat(tx, workspace_id)
                sending.settle_interrupted(tx, workspace_id, now=time.time())
        finally:
            lock.release()
