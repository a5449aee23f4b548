"""The context that the parts of a workspace's driver share, and how a part stops sending."""

from __future__ import annotations

from collections.abc import Callable, Sized

import msgspec

from claude_batch.core.settings import LedgerSettings
from claude_batch.core.user_functions import UserFunctions
from claude_batch.ledger import workspaces
from claude_batch.ledger.high_water import HighWater
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.event_reports import Reporter
from claude_batch.lifecycle.observers import NOBODY, Observers
from claude_batch.money.prices import Prices, prices_of
from claude_batch.wire.batches_client import BatchesClient


class DriverContext(msgspec.Struct, frozen=True):
    """One workspace as its driver sees it."""

    ledger: Ledger
    high_water: HighWater
    client: BatchesClient
    settings: LedgerSettings
    reporter: Reporter
    prices: Prices
    functions: UserFunctions
    holders: Sized
    """While there are any, nothing is sent; polling and collecting go on."""
    stopping: Callable[[], bool]
    """Returns whether the driver is to end."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        client: BatchesClient,
        settings: LedgerSettings,
        observers: Observers = NOBODY,
        functions: UserFunctions | None = None,
        holders: Sized = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> DriverContext:
        """Return the context of a driver. Raises `ActorConfigurationError` for unusable prices."""
        return cls(
            ledger,
            HighWater(ledger),
            client,
            settings,
            Reporter(ledger, client, observers),
            prices_of(settings.prices),
            functions or UserFunctions(),
            holders,
            stopping,
        )


class DriverPart:
    """A part of a driver, with the context as its attributes.

    Its methods that take a `Leader` raise `Deposed` if the leader lock was lost.
    """

    def __init__(self, context: DriverContext) -> None:
        """Set up the part."""
        self._ledger = context.ledger
        self._high_water = context.high_water
        self._client = context.client
        self._settings = context.settings
        self._reporter = context.reporter
        self._prices = context.prices
        self._functions = context.functions
        self._holders = context.holders
        self._stopping = context.stopping

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
