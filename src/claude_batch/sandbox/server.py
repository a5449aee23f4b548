"""The sandbox as a running server: in this process's thread, or blocking for a command line.

A dropped connection must be a real one. uvicorn does not let an application close its socket. So
`SandboxProtocol` stores the connection's transport in the `state` of each request's scope, where
`claude_batch.sandbox.http_calls` aborts it. It extends uvicorn's h11 protocol, which every uvicorn
has; uvicorn copies a protocol's `app_state` into each scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from .asgi_app import create_app
from .http_calls import TRANSPORT
from .sandbox_settings import SandboxSettings

_GRACE = 1.0
"""Seconds that calls may take to notice that their connections are gone."""

_ENDING = (signal.SIGINT, signal.SIGTERM)

KEEP_ALIVE = 3600
"""Seconds that an idle connection is kept."""

START_TIMEOUT = 20.0
"""Seconds that a server's thread may take to start answering, or to end."""


class SandboxProtocol(H11Protocol):
    """uvicorn's protocol, with its transport available to the application."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """asyncio's callback for a new connection."""
        super().connection_made(transport)
        self.app_state: dict[str, Any] = {**self.app_state, TRANSPORT: transport}


def _listen(settings: SandboxSettings) -> socket.socket:
    """Return a listening socket; raises `OSError` if the address is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY on accepted sockets. Without it, an answer
    # of two writes waits 40 ms for the client's delayed acknowledgement.
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


class _Server(uvicorn.Server):
    """uvicorn's server, which ends at once and without an error.

    uvicorn checks ten times a second whether to end, then lets connections finish. The tests of
    this project start and end hundreds of sandboxes, and lose nothing with one.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _asked: asyncio.Event | None = None

    def end(self) -> None:
        """Request the end from another thread."""
        self.should_exit = True
        if self._loop is not None and self._asked is not None:
            # The loop may have ended by itself, on a signal.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._asked.set)

    async def main_loop(self) -> None:
        """Serve until `end`, or until a signal has set `should_exit`."""
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        while not self.should_exit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, drop every connection, and wait until the calls have noticed."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            cast(H11Protocol, connection).transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_GRACE)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals as uvicorn does, without raising them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _ENDING}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _server(app: Starlette) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=SandboxProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            # The sandbox sends its own time.
            date_header=False,
            # A client may keep a connection for its next turn or its next look at a batch.
            timeout_keep_alive=KEEP_ALIVE,
        )
    )


def serve(
    settings: SandboxSettings | None = None, *, on_start: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM; call `on_start` with the URL once the port is open.

    By default one line, `sandbox listening on http://127.0.0.1:PORT`, goes to standard output.
    Raises `OSError` if the port is taken, and what `create_app` raises.
    """
    settings = settings or SandboxSettings()
    app = create_app(settings)
    listener = _listen(settings)
    with listener:
        (on_start or _announce)(_url(listener))
        _server(app).run(sockets=[listener])


def _announce(url: str) -> None:
    sys.stdout.write(f"sandbox listening on {url}\n")
    sys.stdout.flush()


class SandboxServer:
    """A sandbox in a daemon thread of this process, on a free port of the loopback.

    ```python
    with SandboxServer(latency=0.1) as sandbox:
        client = anthropic.Anthropic(base_url=sandbox.url, api_key="sk-any")
    ```

    Takes `SandboxSettings`, or its fields as keywords. `start` and `stop` do what `with` does.
    """

    def __init__(self, settings: SandboxSettings | None = None, **fields: Any) -> None:
        if settings is not None and fields:
            raise TypeError("give either SandboxSettings or its fields, not both")
        self.settings: SandboxSettings = settings or SandboxSettings(**fields)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Return `http://127.0.0.1:PORT`, the SDK's `base_url`; `RuntimeError` before `start`."""
        if self._url is None:
            raise RuntimeError("the sandbox has not been started")
        return self._url

    def start(self) -> Self:
        """Start serving; return once calls are answered."""
        app = create_app(self.settings)
        listener = _listen(self.settings)
        self._url = _url(listener)
        self._server = server = _server(app)

        def run() -> None:
            with listener:
                server.run(sockets=[listener])

        self._thread = threading.Thread(target=run, name="claude-batch-sandbox", daemon=True)
        self._thread.start()
        # The socket already listens: this call waits until the server accepts it.
        self._call("GET", "/sandbox/healthz")
        return self

    def stop(self) -> None:
        """Drop every connection and end; the port is free when this returns."""
        if self._server is not None and self._thread is not None:
            self._server.end()
            self._thread.join(START_TIMEOUT)
            self._server = self._thread = None

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

    # Test controls, over HTTP like any other call.

    def set_faults(self, plan: Mapping[str, Any]) -> None:
        """Replace the fault plan; raises `ValueError` for an invalid plan."""
        self._call("POST", "/sandbox/faults", dict(plan))

    def clear_faults(self) -> None:
        """Remove the fault plan."""
        self._call("DELETE", "/sandbox/faults")

    def billing(self) -> list[dict[str, Any]]:
        """Return a record for each request processed: see `claude_batch.sandbox.admin.billed`."""
        return cast(list[dict[str, Any]], self._call("GET", "/sandbox/billing"))

    def billing_summary(self) -> dict[str, Any]:
        """Return billing counts: see `claude_batch.sandbox.admin.summary`."""
        return cast(dict[str, Any], self._call("GET", "/sandbox/billing?summary=true"))

    def log(self) -> list[dict[str, Any]]:
        """Return the API calls seen, oldest first."""
        return cast(list[dict[str, Any]], self._call("GET", "/sandbox/log"))

    def now(self) -> float:
        """Return the server time, in seconds since the epoch."""
        return float(self._call("GET", "/sandbox/clock")["now"])

    def advance_clock(self, seconds: float) -> None:
        """Advance the server time: batches end, expire and are archived as if it had passed."""
        self._call("POST", "/sandbox/clock", {"advance": seconds})

    def _call(self, method: str, path: str, value: Any = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        # Bypass the environment's proxies for a process's own loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]["message"]) from None
