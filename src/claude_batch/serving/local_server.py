"""A uvicorn server that ends open responses at a signal, in this thread or in one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from types import FrameType, TracebackType
from typing import Any, Final, Self

import uvicorn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ``OSError`` if the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY on accepted sockets.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class LocalServer(uvicorn.Server):
    """uvicorn's server, which begins to end calls at the signal and not after them.

    An ASGI application learns of the end only once all responses are complete, and some of ours
    last for hours.
    """

    def __init__(
        self,
        app: Any,
        *,
        end_calls: Callable[[], None],
        close: Callable[[], Awaitable[None]],
        **more: Any,
    ) -> None:
        """Create a server of an application; ``more`` are uvicorn's settings.

        ``end_calls`` makes open responses end; it is called once in the server's event loop.
        ``close`` is awaited after the last one.
        """
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            **more,
        )
        super().__init__(config)
        self._end_calls = end_calls
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, and wait until the calls have ended."""
        await super().shutdown(sockets)
        await self._close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: end the calls that wait, then the server."""
        self.end()

    def end(self) -> None:
        """End, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._end_calls)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals without raising them again afterwards: the end was asked for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = list(_SIGNALS)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as `nohup` wants it
            handled.remove(signal.SIGHUP)
        before = {each: signal.signal(each, self.handle_exit) for each in handled}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


class AppServer(ABC):
    """One application's server: `serve` runs it in this thread, ``with`` in one of its own."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self._running: tuple[LocalServer, threading.Thread] | None = None
        self.url: str = ""
        """``http://127.0.0.1:PORT``, once it is started."""

    @abstractmethod
    def _prepare(self) -> tuple[LocalServer, socket.socket]:
        """Return a server and its listening socket."""

    def serve(self, on_start: Callable[[str], None]) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP; call ``on_start`` with the URL.

        Raises ``OSError`` if the port is taken, and `ActorConfigurationError` for unusable
        settings.
        """
        server, listener = self._prepare()
        with listener:
            on_start(url_of(listener))
            server.run(sockets=[listener])

    def start(self) -> Self:
        """Begin to serve in a daemon thread. Raises what `serve` raises."""
        server, listener = self._prepare()
        self.url = url_of(listener)

        def run() -> None:
            with listener:
                server.run(sockets=[listener])

        thread = threading.Thread(target=run, name=self._thread_name, daemon=True)
        self._running = server, thread
        # The socket listens already: a call waits until the server accepts it.
        thread.start()
        return self

    def stop(self) -> None:
        """End the calls that wait, and the server; the port is free when this returns."""
        if self._running is not None:
            server, thread = self._running
            server.end()
            thread.join()
            self._running = None

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
