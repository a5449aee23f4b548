"""The driver's seat as an OS file lock, which its holder's death frees."""

from __future__ import annotations

import logging
import time

from filelock import FileLock

from claude_batch.ledger import live_calls, submissions
from claude_batch.ledger.leader_locks import seat_file
from claude_batch.ledger.locks import file_lock, take
from claude_batch.ledger.store import Ledger, Record, Transaction

__all__ = [
    "interrupted_workspaces",
    "note_interrupted",
    "seat_is_taken",
    "seat_lock",
    "settle_interrupted",
    "take_seat_lock",
]

_log = logging.getLogger(__name__)


def seat_lock(ledger: Ledger, workspace_id: int) -> FileLock:
    """The lock of a workspace's seat, not taken yet."""
    return file_lock(seat_file(ledger.sibling(""), workspace_id))


def take_seat_lock(ledger: Ledger, lock: FileLock) -> bool:
    """Take a seat's lock; False where another process holds it. Raises `LedgerError`."""
    return take(lock, ledger.sibling(""))


def seat_is_taken(ledger: Ledger, workspace_id: int) -> bool:
    """True where some process, this one included, drives the workspace now."""
    lock = seat_lock(ledger, workspace_id)
    if not take_seat_lock(ledger, lock):
        return True
    lock.release()
    return False


def interrupted_workspaces(ledger: Ledger) -> list[int]:
    """The workspaces whose driver has ended in the middle of a POST, and that nobody drives."""
    with ledger.read() as tx:
        found = set(submissions.sending_workspaces(tx))
        found.update(row.workspace_id for row in live_calls.under_way(tx))
    return [each for each in sorted(found) if not seat_is_taken(ledger, each)]


def note_interrupted(tx: Transaction, workspace_id: int) -> list[Record]:
    """Note what the last driver's end has left in the middle; returns the unknown batches.

    Only for whoever has the seat.
    """
    if lost := live_calls.interrupted(tx, workspace_id):
        _log.warning(
            "%d live calls were under way when the last driver ended: they may have been paid "
            "for, and are not made again by themselves",
            lost,
        )
    return submissions.settle_interrupted(tx, workspace_id, now=time.time())


def settle_interrupted(ledger: Ledger) -> None:
    """`note_interrupted` wherever nobody drives, for who wants to decide of it."""
    for workspace_id in interrupted_workspaces(ledger):
        lock = seat_lock(ledger, workspace_id)
        if not take_seat_lock(ledger, lock):
            continue  # somebody drives it by now, and has noted it
        try:
            with ledger.write() as tx:
                submissions.take_seat(tx, workspace_id)
                note_interrupted(tx, workspace_id)
        finally:
            lock.release()
