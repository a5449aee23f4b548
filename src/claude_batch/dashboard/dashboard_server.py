"""The dashboard as a running server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

from claude_batch.dashboard.dashboard_app import DashboardApp
from claude_batch.dashboard.dashboard_settings import DashboardSettings
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.serving.local_server import (
    LocalServer,
    ServerThread,
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


class DashboardServer:
    """A dashboard in a daemon thread of this process: ``with DashboardServer(…) as dashboard``."""

    def __init__(self, ledger: str, settings: DashboardSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._reader: LedgerReader | None = None
        self._thread: ServerThread | None = None
        self.url: str = ""

    @property
    def reader(self) -> LedgerReader:
        """The reader of the running dashboard."""
        if self._reader is None:
            raise RuntimeError("the dashboard has not been started")
        return self._reader

    def start(self) -> Self:
        """Start serving. Raises what `serve` raises."""
        self._reader, server, listener = _prepare(self._ledger, self._settings)
        self._thread = ServerThread(server, listener, "claude-batch-dashboard")
        self.url = self._thread.url
        return self

    def stop(self) -> None:
        """End the server; the port is free when this returns."""
        if self._thread is not None and self._reader is not None:
            self._thread.stop()
            self._reader.close()
            self._thread = self._reader = None

    def __enter__(self) -> Self:
        """Run `start`."""
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Run `stop`."""
        self.stop()


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
