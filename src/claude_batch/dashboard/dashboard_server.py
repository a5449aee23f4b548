"""The dashboard as a running server."""

from __future__ import annotations

import socket
from collections.abc import Callable

from claude_batch.dashboard.dashboard_app import DashboardApp
from claude_batch.dashboard.dashboard_settings import DashboardSettings
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.serving.local_server import (
    BackgroundServer,
    LocalServer,
    configure,
    listen,
    url_of,
)


def serve(ledger: str, settings: DashboardSettings, *, on_start: Callable[[str], None]) -> None:
    """Serve a ledger's pages until SIGINT or SIGTERM; ``on_start`` gets the URL.

    Raises ``OSError`` if the port is taken, `ActorConfigurationError` for unusable settings and
    `LedgerError`.
    """
    reader, server, listener = _prepare(ledger, settings)
    try:
        with listener:
            on_start(url_of(listener))
            server.run(sockets=[listener])
    finally:
        reader.close()


class DashboardServer(BackgroundServer):
    """A dashboard in a daemon thread of this process: ``with DashboardServer(…) as dashboard``."""

    def __init__(self, ledger: str, settings: DashboardSettings) -> None:
        super().__init__("claude-batch-dashboard")
        self._ledger = ledger
        self._settings = settings
        self._reader: LedgerReader | None = None

    @property
    def reader(self) -> LedgerReader:
        """The reader of the running dashboard."""
        if self._reader is None:
            raise RuntimeError("the dashboard has not been started")
        return self._reader

    def _prepare(self) -> tuple[LocalServer, socket.socket]:
        self._reader, server, listener = _prepare(self._ledger, self._settings)
        return server, listener

    def stop(self) -> None:
        """End the server, and close the ledger; the port is free when this returns."""
        super().stop()
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _prepare(
    ledger: str, settings: DashboardSettings
) -> tuple[LedgerReader, LocalServer, socket.socket]:
    reader = LedgerReader(ledger)
    try:
        app = DashboardApp(reader, settings)
        listener = listen(settings.host, settings.port)
    except BaseException:
        reader.close()
        raise

    async def nothing() -> None:
        pass

    config = configure(app, http="h11", timeout_graceful_shutdown=3)
    server = LocalServer(config, end_calls=app.streams.end, close=nothing)
    reader.start(app.streams.announce)
    return reader, server, listener
