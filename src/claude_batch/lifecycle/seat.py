"""The leader lock of a workspace: an OS file lock, which is released when its holder dies."""

from __future__ import annotations

import logging
import time

from filelock import FileLock

from claude_batch.core.plurals import count_of
from claude_batch.ledger import live_calls, submissions
from claude_batch.ledger.leader_locks import seat_file
from claude_batch.ledger.locks import file_lock, take
from claude_batch.ledger.store import Ledger, Record, Transaction

_log = logging.getLogger(__name__)


def seat_lock(ledger: Ledger, workspace_id: int) -> FileLock:
    """Return the leader lock of a workspace, not acquired yet."""
    return file_lock(seat_file(ledger.sibling(""), workspace_id))


def take_seat_lock(ledger: Ledger, lock: FileLock) -> bool:
    """Acquire a leader lock; return False if another process holds it. Raises `LedgerError`."""
    return take(lock, ledger.sibling(""))


def seat_is_taken(ledger: Ledger, workspace_id: int) -> bool:
    """Return whether any process, including this one, drives the workspace now."""
    lock = seat_lock(ledger, workspace_id)
    if not take_seat_lock(ledger, lock):
        return True
    lock.release()
    return False


def interrupted_workspaces(ledger: Ledger) -> list[int]:
    """Return the ids of undriven workspaces whose last driver ended during a POST."""
    with ledger.read() as tx:
        found = set(submissions.sending_workspaces(tx))
        found.update(row.workspace_id for row in live_calls.under_way(tx))
    return [each for each in sorted(found) if not seat_is_taken(ledger, each)]


def note_interrupted(tx: Transaction, workspace_id: int) -> list[Record]:
    """Record what the last driver's end interrupted; return the unknown batches.

    Only for the holder of the leader lock.
    """
    if lost := live_calls.interrupted(tx, workspace_id):
        _log.warning(
            "%s ended with the last driver: they may have been paid for, and are not sent again "
            "automatically",
            count_of(lost, "live call"),
        )
    return submissions.settle_interrupted(tx, workspace_id, now=time.time())


def settle_interrupted(ledger: Ledger) -> None:
    """Call `note_interrupted` for every undriven workspace, so that the user can decide."""
    for workspace_id in interrupted_workspaces(ledger):
        lock = seat_lock(ledger, workspace_id)
        if not take_seat_lock(ledger, lock):
            continue  # another process drives it now, and has recorded it
        try:
            with ledger.write() as tx:
                submissions.take_seat(tx, workspace_id)
                note_interrupted(tx, workspace_id)
        finally:
            lock.release()
