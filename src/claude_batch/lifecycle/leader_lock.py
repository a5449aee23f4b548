"""The leader lock of a workspace, and what its holder checks and cleans before it sends."""

from __future__ import annotations

import logging

from claude_batch.core.errors import LedgerError
from claude_batch.core.quantities import count_of
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import deliveries, enqueue, live_calls, submissions, workspaces
from claude_batch.ledger.high_water import HighWater, Mark, is_known, note_behind, posts_of
from claude_batch.ledger.store import Ledger, Record, Transaction, now_in

_log = logging.getLogger(__name__)

# Leader lock --------------------------------------------------------------------------------------


def interrupted_workspaces(ledger: Ledger) -> list[int]:
    """Return the ids of undriven workspaces whose last driver ended during a POST."""
    with ledger.read() as tx:
        found = set(submissions.sending_workspaces(tx))
        found.update(row.workspace_id for row in live_calls.under_way(tx))
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


# High-water mark ----------------------------------------------------------------------------------


def compare(
    tx: Transaction,
    ledger: Ledger,
    settings: LedgerSettings,
    mark: Mark | None,
    workspace_id: int,
    at: float,
) -> None:
    """Stop sending if the ledger may have forgotten a POST; ``at`` is the API's time.

    That is the case if its mark, read before, counts POSTs that the ledger lacks, or if the ledger
    is on another server.
    """
    moved = ledger.has_moved(tx)
    known = is_known(mark, ledger.incarnations, posts_of(tx))
    if moved or not known:
        # A copy that was made within a recovery has forgotten what was sent after it, too.
        note_behind(tx, at, anew=moved)
    if workspaces.workspace_row(tx, workspace_id).behind is not None:
        why = _MOVED if moved else _UNFINISHED if known else ""
        stop_behind(tx, ledger, settings, workspace_id, why)


_MOVED = (
    "is on another server than before, or on a standby that was promoted, or was restored, and may "
    "have forgotten its last sendings"
)
_UNFINISHED = "may have forgotten sendings, because its recovery has not ended yet"


def stop_behind(
    tx: Transaction, ledger: Ledger, settings: LedgerSettings, workspace_id: int, why: str = ""
) -> None:
    """Halt a workspace of a ledger that is behind, and store the reason."""
    why = why or (
        "has forgotten some of its sendings, which its high-water mark "
        f"{HighWater(ledger).path} counts: it was restored, or copied without its -wal file"
    )
    workspaces.halt(
        tx,
        workspace_id,
        reason="ledger_behind",
        error_type=None,
        message=f"the ledger {ledger.location} {why}. Look for them at the API with: "
        "`claude-batch ledger recover`",
        now=ledger.now(),
        interval=settings.probe_interval,
    )


# Cleanup ------------------------------------------------------------------------------------------


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
                _remove(ledger, run_id)
        ledger.sweep_locks()
    except (LedgerError, OSError) as error:
        _log.warning("files and rows of ended processes could not be removed: %s", error)


def _remove(ledger: Ledger, run_id: str) -> None:
    # In small transactions, so that the removal of a million rows blocks no other process. It may
    # continue what a dead process had begun: the removal of a finished run.
    more = True
    while more:
        with ledger.write() as tx:
            more = deliveries.remove_some(tx, run_id).more
