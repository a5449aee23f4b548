"""Cleanup: remove what dead processes have left and nothing can use."""

from __future__ import annotations

import logging

from claude_batch.core.errors import LedgerError
from claude_batch.ledger import enqueue
from claude_batch.ledger.processes import is_alive, sweep_locks
from claude_batch.ledger.store import Ledger

_log = logging.getLogger(__name__)


def sweep(ledger: Ledger, own: str) -> None:
    """Remove half-stored runs of dead processes, and their locks.

    ``own`` is the id of this process in the ledger. Never raises: what could not be removed only
    takes space, and the next process tries again.
    """
    try:
        with ledger.read() as tx:
            found = enqueue.half_stored(tx, own)
        for run_id, process in found:
            if not is_alive(ledger, process):
                _log.info("run %s was never completely stored and is removed", run_id)
                _remove(ledger, run_id)
        sweep_locks(ledger)
    except (LedgerError, OSError) as error:
        _log.warning("files and rows of ended processes could not be removed: %s", error)


def _remove(ledger: Ledger, run_id: str) -> None:
    # In small transactions, so that the removal of a million rows blocks no other process.
    more = True
    while more:
        with ledger.write() as tx:
            more = enqueue.remove_half_stored(tx, run_id)
