"""The sandbox as an ASGI application, and as a running server: in a thread, or for a command line.

A dropped connection must be a real one. uvicorn does not let an application close its socket. So
`SandboxProtocol` stores the connection's transport in the `state` of each request's scope, where
`claude_batch.sandbox.http_calls` aborts it. It extends uvicorn's h11 protocol, which every uvicorn
has; uvicorn copies a protocol's `app_state` into each scope. In another server, the application has
no connection faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .admin import TOKEN_HEADER, admin_routes
from .api_errors import ApiError, as_api_error, error_body
from .fault_plan import Delay, DropAfter, Unanswered
from .http_calls import TRANSPORT, Call, json_response
from .sandbox_settings import SandboxSettings
from .service import BATCH_ROUTES, FileCalls, Sandbox, key_of

# Application --------------------------------------------------------------------------------------

Handler = Callable[[Call], Awaitable[Response]]


class Endpoint:
    """One route of the API as an ASGI application: faults, caller, handler, errors, log."""

    def __init__(self, sandbox: Sandbox, route: str, handler: Handler) -> None:
        self.sandbox = sandbox
        self.route = route
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a call (ASGI)."""
        sandbox = self.sandbox
        started = time.monotonic()
        call = Call(self.route, sandbox.new_request_id(), scope, receive, send, sandbox.clock.now())
        call.report_workspace = sandbox.reports_workspace
        call.action = sandbox.plan.action(self.route, key_of(call.http))
        try:
            await self._answer(call)
        except ConnectionError:
            # The client disconnected during the upload: nothing was processed, nobody listens.
            pass
        finally:
            sandbox.log.append(call.record(started))

    async def _answer(self, call: Call) -> None:
        action = call.action
        if action is not None:
            await asyncio.sleep(action.delay)
            if isinstance(action, Delay):
                await asyncio.sleep(action.seconds)
            if await call.instead(action):
                return
        if isinstance(action, DropAfter) and action.processed_after > 0:
            await call.keep_body()
            await call.drop()
            await asyncio.sleep(action.processed_after)
            with contextlib.suppress(ApiError):
                await self._process(call)
            return
        try:
            response = await self._process(call)
        except ApiError as error:
            if isinstance(action, Unanswered):
                self.sandbox.plan.take_back(action)
                call.action = None
            await call.refuse(error)
            return
        if isinstance(action, Unanswered):
            await call.hide(action)
        else:
            await call.answer(response)

    async def _process(self, call: Call) -> Response:
        """Process a call; raises `ApiError`, and `ConnectionError` if the client disconnects."""
        sandbox = self.sandbox
        try:
            await sandbox.batches.settle()
            workspace = call.workspace = sandbox.authenticate(call.http)
            call.context = sandbox.context(call, workspace)
            if self.route in BATCH_ROUTES:
                call.limit_headers = sandbox.batch_limits(workspace)
            return await self.handler(call)
        except (ApiError, ConnectionError):
            raise
        except Exception as error:
            raise as_api_error(error, f"a call of the route {self.route}") from error


def create_app(settings: SandboxSettings | None = None) -> Starlette:
    """Return a sandbox as an ASGI application.

    Raises `claude_batch.sandbox.fault_plan.PlanError` for an invalid fault plan and
    `claude_batch.sandbox.answers.ResponderError` for an unusable responder.
    """
    sandbox = Sandbox(settings or SandboxSettings())
    files = FileCalls(sandbox)
    batches = "/v1/messages/batches"
    batch = batches + "/{batch_id}"
    table: list[tuple[str, str, str, Handler]] = [
        ("POST", batches, "create", sandbox.create),
        ("GET", batches, "list", sandbox.list),
        ("GET", batch, "retrieve", sandbox.retrieve),
        ("POST", batch + "/cancel", "cancel", sandbox.cancel),
        ("DELETE", batch, "delete", sandbox.delete),
        ("GET", batch + "/results", "results", sandbox.results),
        ("POST", "/v1/messages", "messages", sandbox.messages),
        ("POST", "/v1/messages/count_tokens", "count_tokens", sandbox.count_tokens),
        ("POST", "/v1/files", "upload_file", files.upload),
        ("GET", "/v1/files", "list_files", files.list),
        ("GET", "/v1/files/{file_id}", "retrieve_file", files.retrieve),
        ("DELETE", "/v1/files/{file_id}", "delete_file", files.delete),
        ("GET", "/v1/files/{file_id}/content", "download_file", files.download),
        ("GET", "/v1/models", "models", sandbox.models),
        ("GET", "/v1/models/{model_id}", "models", sandbox.models),
    ]
    routes = [
        Route(path, Endpoint(sandbox, route, handler), methods=[method])
        for method, path, route, handler in table
    ]

    async def refused(_: HttpRequest, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        request_id = sandbox.new_request_id()
        body = error_body(ApiError(kind, "Not found" if status == 404 else str(error)), request_id)
        return json_response(body, status, {"request-id": request_id})

    app = Starlette(
        routes=[*routes, *admin_routes(sandbox)], exception_handlers={HTTPException: refused}
    )
    # Starlette would answer `/v1/messages/batches/` with a redirect, and without a request id.
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    return app


# Server -------------------------------------------------------------------------------------------

_GRACE = 1.0
"""Seconds that calls may take to notice that their connections are gone."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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


_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Loopback addresses of servers that listen on every address."""


def _url(listener: socket.socket, *, loopback: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    if loopback and host in _EVERY_ADDRESS:
        host = _EVERY_ADDRESS[host]
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
        handled = list(_ENDING)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as `nohup` wants it
            handled.remove(signal.SIGHUP)
        before = {each: signal.signal(each, self.handle_exit) for each in handled}
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
    """Serve until SIGINT, SIGTERM or SIGHUP; call `on_start` with the URL once the port is open.

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
        self._control_url = ""

    @property
    def url(self) -> str:
        """Return `http://127.0.0.1:PORT`, the SDK's `base_url`; `RuntimeError` before `start`."""
        if self._url is None:
            raise RuntimeError("the sandbox has not been started")
        return self._url

    def start(self) -> Self:
        """Start serving, unless it does already; return once calls are answered."""
        if self._server is not None:
            return self
        app = create_app(self.settings)
        listener = _listen(self.settings)
        self._url = _url(listener)
        self._control_url = _url(listener, loopback=True)
        self._server = server = _server(app)

        def run() -> None:
            with listener:
                server.run(sockets=[listener])

        self._thread = threading.Thread(target=run, name="claude-batch-sandbox", daemon=True)
        self._thread.start()
        # The socket already listens: this call waits until the server accepts it.
        try:
            self._call("GET", "/sandbox/healthz")
        except BaseException:
            self.stop()
            raise
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
        # By a name of the loopback, because the routes answer to no other without the token.
        request = urllib.request.Request(self._control_url + path, data, method=method)
        if self.settings.admin_token is not None:
            request.add_header(TOKEN_HEADER, self.settings.admin_token)
        # Bypass the environment's proxies for a process's own loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]["message"]) from None
