"""The gateway as a running server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

import uvicorn

from claude_batch.gateway.gateway_app import Gateway, GatewayApp
from claude_batch.gateway.gateway_settings import GatewaySettings
from claude_batch.providers.batch import ClaudeBatchProvider

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_KEEP_ALIVE: Final = 75
"""Seconds that an idle connection is kept: longer than load balancers keep theirs, which would
otherwise send a call on a connection that is being closed."""

_INCOMPLETE: Final = "ASGI callable returned without completing response."
"""What uvicorn logs for a response that the gateway aborts on purpose."""

_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn's server, which begins to end calls at the signal and not after them.

    An ASGI application learns of the end only once all responses are complete, and those of the
    gateway wait for batches.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: end the calls that wait, then the server."""
        self.end()

    def end(self) -> None:
        """End, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._gateway.end)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals without raising them again afterwards: the end was asked for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _not_incomplete(record: logging.LogRecord) -> bool:
    return record.getMessage() != _INCOMPLETE


def serve(
    provider: ClaudeBatchProvider,
    settings: GatewaySettings | None = None,
    *,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; call ``on_start`` with the URL once the port is open.

    The caller closes ``provider`` afterwards. By default one line, ``gateway listening on
    http://127.0.0.1:8788``, goes to standard output. Raises ``OSError`` if the port is taken,
    `ActorConfigurationError` for unusable settings and `LedgerError`.
    """
    settings = settings or GatewaySettings()
    entered = provider.opening().result()
    gateway = Gateway(provider, settings, entered.door.client.credential)
    listener = _listen(settings)
    raise_descriptor_limit()
    logging.getLogger("uvicorn.error").addFilter(_not_incomplete)
    with listener:
        (on_start or _announce)(_url(listener))
        _Server(_config(GatewayApp(gateway), settings), gateway).run(sockets=[listener])


def _config(app: GatewayApp, settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.grace),
    )


def _listen(settings: GatewaySettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY on accepted sockets.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(url: str) -> None:
    sys.stdout.write(f"gateway listening on {url}\n")
    sys.stdout.flush()


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may; return the limit.

    Each call that waits needs one; the usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS reports no hard limit, but refuses more than its own.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
