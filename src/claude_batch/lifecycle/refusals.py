"""Refusals: what follows when the API has definitely not accepted a batch.

A request that the API names fails alone. If it names none, the batch is split in two. A half that
is accepted proves that the account and the connection work, so the fault is in the other half. If
both halves are refused alike, the requests are not at fault, and sending halts.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState
from claude_batch.ledger import batch_contents, halts, submissions, unknown_batches
from claude_batch.ledger.store import Ledger, Seat, Transaction
from claude_batch.lifecycle.batch_list import Listing
from claude_batch.wire.encoding import custom_id
from claude_batch.wire.error_table import ApiFault
from claude_batch.wire.messages import errored_line

_NAMED_REQUEST = re.compile(r"requests\.(\d+)\b")


class Refusals:
    """The judge of one workspace's refused batches."""

    def __init__(self, ledger: Ledger, settings: LedgerSettings) -> None:
        self._ledger = ledger
        self._settings = settings

    def halt(self, tx: Transaction, workspace_id: int, fault: ApiFault) -> None:
        """Halt sending because of an answer about the account or the connection."""
        words = fault.message if fault.account_reason is not None else fault.describe()
        if fault.location is not None:
            words = f"{words}; it points to {fault.location}"
        reason = fault.account_reason or "refused"
        self.stop(tx, workspace_id, words, reason=reason, error_type=fault.error_type)

    def stop(
        self,
        tx: Transaction,
        workspace_id: int,
        message: str,
        *,
        reason: str = "refused",
        error_type: str | None = None,
    ) -> None:
        """Halt sending, and plan the next probe."""
        halts.halt(
            tx,
            workspace_id,
            reason=reason,
            error_type=error_type,
            message=message,
            now=time.time(),
            interval=self._settings.probe_interval,
        )

    def lift(self, tx: Transaction, workspace_id: int) -> None:
        """Lift a halt, because the API has accepted something."""
        if halts.halt_of(tx, workspace_id).halted is None:
            return
        halts.clear_halt(tx, workspace_id)
        for row in batch_contents.refused_halves(tx, workspace_id):
            # Both halves were refused alike. Now that the account works, each is judged again, and
            # a single request by its next refusal.
            if batch_contents.split(tx, row.id, time.time()) is None:
                batch_contents.forget_refusal(tx, row.id)

    def too_large(self, tx: Transaction, row: Any, note: str) -> None:
        """Split a batch in two; a single request that is too large fails."""
        if batch_contents.split(tx, row.id, time.time()) is None:
            self._fail(tx, row, 0, "request_too_large", note)

    def bad_request(self, tx: Transaction, row: Any, fault: ApiFault) -> None:
        """Handle a 400: fail the request that it names, or split the batch to find it."""
        named = _NAMED_REQUEST.search(fault.message)
        if named and self._fail(
            tx,
            row,
            int(named[1]),
            fault.error_type or "invalid_request_error",
            fault.message,
            fault.request_id,
        ):
            return
        refusal = json.dumps([fault.error_type, fault.message, fault.request_id])
        halted = halts.halt_of(tx, row.workspace_id).halted is not None
        batch_contents.note_refusal(tx, row.id, refusal)
        other = batch_contents.other_half(tx, row.id)
        alike = (
            other is not None
            and other.state == BatchState.PACKED
            and other.refusal is not None
            and json.loads(other.refusal)[:2] == json.loads(refusal)[:2]
        )
        if halted or alike:
            # A probe or the second half was refused like all before.
            self.halt(tx, row.workspace_id, fault)
        elif other is None:
            self._part(tx, batch_contents.batch(tx, row.id))

    def go_on(self, seat: Seat) -> bool:
        """Split refused halves whose other half has been judged; return whether there was one."""
        with self._ledger.read() as tx:
            found = batch_contents.refused_halves(tx, seat.workspace_id)
        # A half that still waits for its first sending is no evidence yet.
        judged = [
            row
            for row in found
            if row.other_state != BatchState.PACKED or row.other_refusal is not None
        ]
        if not judged:
            return False
        with self._ledger.write(seat) as tx:
            for row in judged:
                self._part(tx, batch_contents.batch(tx, row.id))
        return True

    def _part(self, tx: Transaction, row: Any) -> None:
        if batch_contents.split(tx, row.id, time.time()) is None:
            error_type, message, request_id = json.loads(row.refusal)
            self._fail(tx, row, 0, error_type or "invalid_request_error", message, request_id)

    def _fail(
        self,
        tx: Transaction,
        row: Any,
        index: int,
        error_type: str,
        message: str,
        request_id: str | None = None,
    ) -> bool:
        """End the request at a 0-based position of a batch as errored;

        False if it does not exist.
        """
        request = submissions.seq_at(tx, row.id, index)
        if request is None:
            return False
        # The row may have been read before the POST was counted.
        sent = request.sendings + batch_contents.batch(tx, row.id).posts
        identifier = custom_id(request.id, self._ledger.incarnation, sent)
        submissions.fail_packed(
            tx,
            row.id,
            request.seq,
            raw=errored_line(identifier, error_type, message, request_id),
            error_type=error_type,
            now=time.time(),
        )
        return True

    def unexplained(self, tx: Transaction, workspace_id: int, listing: Listing) -> bool:
        """Halt if the list holds a batch of unknown origin; return whether it does.

        The ledger has not made such a batch, nor can an unknown sending have made it.
        """
        # The Date header has whole seconds, so a listed batch may be dated a little later.
        dated = [remote.created or 0.0 for remote in listing.batches.values()]
        newest = max([listing.server_time, *dated])
        since = unknown_batches.explained_until(tx, workspace_id, newest)
        known = unknown_batches.known_remote_ids(tx, workspace_id, listing.ids)
        waiting = unknown_batches.unknown_batches(tx, workspace_id)
        counts = {row.request_count for row in waiting}
        for remote in listing.batches.values():
            created = remote.created
            if remote.id in known or created is None or created <= since:
                continue
            total = remote.request_counts.processing + remote.request_counts.finished
            if waiting and (total == 0 or total in counts):
                continue
            self.stop(
                tx,
                workspace_id,
                f"the workspace is set as exclusive, but batch {remote.id} was not created by "
                "this ledger; find the client that created it, then run `claude-batch resume`",
                reason="unexplained",
            )
            return True
        return False
