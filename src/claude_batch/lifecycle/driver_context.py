"""The context that the parts of a driver share, and how a part stops sending and lifts a halt."""

from __future__ import annotations

from collections.abc import Sized

from claude_batch.core.settings import LedgerSettings
from claude_batch.core.user_functions import UserFunctions
from claude_batch.ledger import batch_contents, workspaces
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.event_reports import Reporter
from claude_batch.lifecycle.observers import NOBODY, Observers
from claude_batch.money.prices import Prices, prices_of
from claude_batch.wire.batches_client import BatchesClient
from claude_batch.wire.error_table import ApiFault


class DriverContext:
    """One workspace as its driver sees it."""

    def __init__(
        self,
        ledger: Ledger,
        client: BatchesClient,
        settings: LedgerSettings,
        observers: Observers = NOBODY,
        functions: UserFunctions | None = None,
        holders: Sized = (),
        prices: Prices | None = None,
    ) -> None:
        """Set up the context.

        While there are ``holders``, nothing is sent; polling and collecting go on. ``prices`` are
        those of the process's engine, if it has one. Raises `ActorConfigurationError` for unusable
        ones.
        """
        self.ledger: Ledger = ledger
        self.high_water: HighWater = HighWater(ledger)
        self.client: BatchesClient = client
        self.settings: LedgerSettings = settings
        self.reporter: Reporter = Reporter(ledger, client, observers)
        self.prices: Prices = prices or prices_of(settings.prices)
        self.functions: UserFunctions = functions or UserFunctions()
        self.holders: Sized = holders
        self.workspace_id: int = 0
        """The row of the key's workspace, as far as it is known. `Contact` finds it."""
        self.is_leaving: bool = False
        """Whether the driver's loops shall end: for good, or to begin again after a fault."""


class DriverPart:
    """A part of a driver, with the context as its attributes.

    Its methods that take a `Leader` raise `Deposed` if the leader lock was lost.
    """

    def __init__(self, context: DriverContext) -> None:
        """Set up the part."""
        self._context = context
        self._ledger = context.ledger
        self._high_water = context.high_water
        self._client = context.client
        self._settings = context.settings
        self._reporter = context.reporter
        self._prices = context.prices
        self._functions = context.functions
        self._holders = context.holders

    @property
    def workspace_id(self) -> int:
        """The row of the key's workspace, as far as it is known."""
        return self._context.workspace_id

    def _stopping(self) -> bool:
        return self._context.is_leaving

    def stop_sending(
        self,
        tx: Transaction,
        workspace_id: int,
        message: str,
        *,
        reason: str = "refused",
        error_type: str | None = None,
    ) -> None:
        """Halt sending, and plan the next probe."""
        workspaces.halt(
            tx,
            workspace_id,
            reason=reason,
            error_type=error_type,
            message=message,
            now=self._ledger.now(),
            interval=self._settings.probe_interval,
        )

    def halt(self, tx: Transaction, workspace_id: int, fault: ApiFault) -> None:
        """Halt sending because of an answer about the account or the connection."""
        words = fault.message if fault.account_reason is not None else fault.describe()
        if fault.location is not None:
            words = f"{words}; it points to {fault.location}"
        reason = fault.account_reason or "refused"
        self.stop_sending(tx, workspace_id, words, reason=reason, error_type=fault.error_type)

    def lift_halt(self, tx: Transaction, workspace_id: int, *, probed: float | None) -> None:
        """Lift the halt that began at ``probed``, because its probe was accepted.

        An answer to what was sent before the halt is no evidence that its cause has gone.
        """
        row = workspaces.workspace_row(tx, workspace_id)
        if row.halted is None or row.halted != probed or row.halt_reason in workspaces.UNPROBED:
            return
        workspaces.clear_halt(tx, workspace_id)
        for row in batch_contents.refused_halves(tx, workspace_id):
            # Both halves were refused alike. Now that the account works, each is judged again, and
            # a single request by its next refusal.
            if batch_contents.split(tx, row.id, self._ledger.now()) is None:
                batch_contents.forget_refusal(tx, row.id)

    def stop_behind(self, tx: Transaction, workspace_id: int, why: str = "") -> None:
        """Halt a workspace of a ledger that is behind its high-water mark, and store the reason."""
        why = why or (
            "has forgotten some of its sendings, which its high-water mark "
            f"{self._high_water.path} counts: it was restored, or copied without its -wal file"
        )
        message = (
            f"the ledger {self._ledger.location} {why}. Look for them at the API with: "
            "`claude-batch ledger recover`"
        )
        self.stop_sending(tx, workspace_id, message, reason="ledger_behind")
