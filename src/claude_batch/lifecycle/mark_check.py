"""Check of the high-water mark: a ledger that is behind it sends nothing until recovered."""

from __future__ import annotations

import time

from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import halts
from claude_batch.ledger.high_water import HighWater, Mark, is_known, note_behind, posts_of
from claude_batch.ledger.store import Ledger, Transaction


def compare(
    tx: Transaction, ledger: Ledger, settings: LedgerSettings, mark: Mark | None, workspace_id: int
) -> None:
    """Stop sending if the ledger does not know what its mark, read before, counts."""
    if not is_known(mark, ledger.incarnations, posts_of(tx)):
        note_behind(tx, time.time())
    if halts.halt_of(tx, workspace_id).behind is not None:
        stop_behind(tx, ledger, settings, workspace_id)


def stop_behind(
    tx: Transaction, ledger: Ledger, settings: LedgerSettings, workspace_id: int
) -> None:
    """Halt a workspace of a ledger that is behind its mark, and store the reason."""
    halts.halt(
        tx,
        workspace_id,
        reason="ledger_behind",
        error_type=None,
        message=f"the ledger {ledger.location} has forgotten some of its sendings, which its "
        f"high-water mark {HighWater(ledger).path} counts: it was restored, or copied "
        "without its -wal file. Look for them at the API with: claude-batch ledger recover",
        now=time.time(),
        interval=settings.probe_interval,
    )
