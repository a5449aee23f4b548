"""The traces of processes that have ended: interrupted sendings, and half-stored runs."""

from __future__ import annotations

import logging

from claude_batch.core.errors import LedgerError
from claude_batch.core.quantities import count_of
from claude_batch.ledger import deliveries, enqueue, live_calls, submissions
from claude_batch.ledger.store import Ledger, Record, Transaction, now_in

_log = logging.getLogger(__name__)

# Interrupted sendings -----------------------------------------------------------------------------


def interrupted_workspaces(ledger: Ledger) -> list[int]:
    """Return the ids of undriven workspaces whose last driver ended during a POST."""
    with ledger.read() as tx:
        found = set(submissions.sending_workspaces(tx))
        found.update(row.workspace_id for row in live_calls.under_way(tx, None))
    return [each for each in sorted(found) if not ledger.has_leader(each)]


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
    return submissions.settle_interrupted(tx, workspace_id, now=now_in(tx))


def settle_interrupted(ledger: Ledger) -> None:
    """Call `note_interrupted` for every undriven workspace, so that the user can decide."""
    for workspace_id in interrupted_workspaces(ledger):
        lock = ledger.leader_lock(workspace_id)
        if not lock.take():
            continue  # another process drives it now, and has recorded it
        try:
            with ledger.write() as tx:
                submissions.begin_epoch(tx, workspace_id)
                note_interrupted(tx, workspace_id)
        finally:
            lock.release()


# Half-stored runs ---------------------------------------------------------------------------------


def sweep(ledger: Ledger, own: str) -> None:
    """Remove half-stored runs of dead processes, and their locks.

    ``own`` is the id of this process in the ledger. Never raises: what could not be removed only
    takes space, and the next process tries again.
    """
    try:
        with ledger.read() as tx:
            found = enqueue.half_stored(tx, own)
        for run_id, process in found:
            if ledger.is_alive(process):
                continue
            with ledger.write() as tx:
                ours = enqueue.claim_half_stored(tx, run_id, former=process, process=own)
            if ours:
                _log.info("%s was never completely stored and is removed", run_id)
                # It may be a finished run, whose removal the process had begun.
                for _ in deliveries.remove_in_pieces(ledger, run_id):
                    pass
        ledger.sweep_locks()
    except (LedgerError, OSError) as error:
        _log.warning("files and rows of ended processes could not be removed: %s", error)
