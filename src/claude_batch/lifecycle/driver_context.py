"""The context that the parts of a workspace's driver share, and how a part stops sending."""

from __future__ import annotations

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

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        client: BatchesClient,
        settings: LedgerSettings,
        observers: Observers = NOBODY,
        functions: UserFunctions | None = None,
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
        )


class DriverPart:
    """A part of a driver, with the context as its attributes."""

    def __init__(self, context: DriverContext) -> None:
        """Set up the part."""
        self._ledger = context.ledger
        self._high_water = context.high_water
        self._client = context.client
        self._settings = context.settings
        self._reporter = context.reporter
        self._prices = context.prices
        self._functions = context.functions

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
