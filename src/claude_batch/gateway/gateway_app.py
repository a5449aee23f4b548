"""The gateway as a running server: its routes, the checks before each of them, and its socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from claude_batch.core.errors import ActorConfigurationError, ActorError
from claude_batch.gateway import GatewaySettings
from claude_batch.gateway.access import Refusal, ending
from claude_batch.gateway.asgi import headers_of
from claude_batch.gateway.exchanges import Aborted
from claude_batch.gateway.gateway_options import split_prefix
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.gateway.http_protocol import CONNECTION, HttpProtocol
from claude_batch.gateway.messages_route import MessagesRoute
from claude_batch.gateway.passthrough import METHODS, PASSED, Passthrough
from claude_batch.gateway.request_routes import REQUESTS, RequestRoute
from claude_batch.integrations.http_messages import failure
from claude_batch.lifecycle.engine import Engine
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.serving import Readiness, is_loopback
from claude_batch.serving.local_server import AppServer, LocalServer, listen
from claude_batch.wire.batches_client import base_url_advice

# Application --------------------------------------------------------------------------------------

_OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Routes for probes, which have no token."""

_MESSAGES: Final = ("/v1/messages", "/messages")
"""Vercel's AI SDK takes ``ANTHROPIC_BASE_URL`` as it is, and adds no ``/v1``."""

_CHAT: Final = "/v1/chat/completions"


class GatewayApp:
    """The ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._passthrough = Passthrough(gateway)
        self._readiness = Readiness(lambda: gateway.provider.why_not_sending())
        messages = MessagesRoute(gateway)
        self._router = Router(
            [
                *(_Route(path, messages, methods=["POST"]) for path in _MESSAGES),
                _Route(REQUESTS + "{id}", RequestRoute(gateway), methods=["GET", "DELETE"]),
                *(_Route(path, self._passthrough, methods=METHODS) for path in PASSED),
                _Route("/metrics", gateway.metrics.respond, methods=["GET"]),
                _Route("/healthz", self._is_serving, methods=["GET"]),
                _Route("/readyz", self._is_ready, methods=["GET"]),
            ],
            redirect_slashes=False,
            default=_not_found,
        )

    async def aclose(self) -> None:
        """Close the connections to the API."""
        await self._passthrough.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        if scope["type"] != "http":
            return
        try:
            await self._check(scope)
            with contextlib.suppress(ClientDisconnect):
                await self._router(scope, receive, send)
        except Aborted:
            # The server closes the connection of a response that is not complete. HTTP/1.0 has no
            # other end of a body, so that only a reset differs from it.
            if scope.get("http_version") == "1.0":
                scope["state"][CONNECTION].reset_at_end()
        # The routes raise these only before they have sent a status.
        except Refusal as refusal:
            response = Response(refusal.body, refusal.status, refusal.headers, "application/json")
            await response(scope, receive, send)
        except ActorError as error:
            found = failure(error)
            response = Response(found.content, found.status_code, found.headers)
            await response(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        headers = headers_of(scope)
        access = self.gateway.access
        access.check_page(headers)
        raw_path, options = split_prefix(scope["raw_path"].decode("ascii"))
        path = unquote(raw_path)
        scope["path"], scope["raw_path"] = path, raw_path.encode()
        state: dict[str, Any] = {**scope.get("state", {}), "headers": {**options, **headers}}
        if path not in _OPEN:
            state["caller"] = await access.admit(headers)
            if self.gateway.is_ending:
                raise ending()
        if options:
            # On each path, because a fault that only messages refuse would be noticed late.
            self.gateway.option_reader.check(options)
        scope["state"] = state

    async def _is_serving(self, request: Request) -> Response:
        return _probed(self.gateway.provider.why_stopped())

    async def _is_ready(self, request: Request) -> Response:
        """Answer whether calls should come."""
        why_not = self.gateway.provider.why_stopped()
        if why_not is None:
            ends = self.gateway.is_ending
            why_not = "shutting down" if ends else await self._readiness.wait_why_not()
        return _probed(why_not)


class _Route(Route):
    """A route that refuses other methods with the API's error object."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of the route's path."""
        allowed = sorted(self.methods or ())
        if scope["method"] in allowed:
            await self.app(scope, receive, send)
            return
        words = f"{scope['method']} is not a method of this path; it has {', '.join(allowed)}"
        headers = {"allow": ", ".join(allowed)}
        raise Refusal(405, words, headers)


def _probed(why_not: str | None) -> Response:
    return PlainTextResponse(f"{why_not or 'ok'}\n", 200 if why_not is None else 503)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    path: str = scope["path"]
    if path == _CHAT:
        message = (
            "this gateway speaks Anthropic's Messages API, not OpenAI's; use an Anthropic client, "
            "or a library that translates, such as LiteLLM"
        )
    else:
        message = f"there is nothing at {path[:200]!r}"
        # A client adds the API's path to its base URL.
        if base := path.rpartition("/v1/")[0]:
            message = f"{message}; {base_url_advice(base)}"
    raise Refusal(404, message)


# Server -------------------------------------------------------------------------------------------

_KEEP_ALIVE: Final = 75
"""Seconds that an idle connection is kept: longer than load balancers keep theirs, which would
otherwise send a call on a connection that is being closed."""

_INCOMPLETE: Final = "ASGI callable returned without completing response."
"""The message that uvicorn logs for a response that the gateway aborts on purpose."""


def _is_news(record: logging.LogRecord) -> bool:
    # A call that is still under way after `GRACE` is cancelled, and uvicorn logs a traceback.
    kind = record.exc_info[0] if record.exc_info else None
    is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
    return not is_cancelled and record.getMessage() != _INCOMPLETE


class GatewayServer(AppServer):
    """A gateway: its caller closes ``provider`` afterwards."""

    def __init__(self, provider: ClaudeBatchProvider, settings: GatewaySettings) -> None:
        super().__init__("claude-batch-gateway")
        self._provider = provider
        self._settings = settings
        self._ends_with: Engine | None = None
        """The engine whose failure ends the server."""
        self._ended_by: ActorError | None = None
        self.gateway: Gateway
        """The running gateway, once it is started."""

    def serve(self, on_start: Callable[[str], None]) -> None:
        """Serve as `AppServer.serve` does.

        Raises also the error that stops the engine, such as a `LedgerError`.
        """
        engine, _ = self._provider.opening().result()
        self._ends_with = engine
        super().serve(on_start)
        engine.check()
        if self._ended_by is not None:
            raise self._ended_by

    def _prepare(self) -> tuple[LocalServer, socket.socket]:
        gateway = self.gateway = Gateway(self._provider, self._settings)
        listener = listen(self._settings.host, self._settings.port)
        try:
            _refuse_own_address(gateway.client.base_url, listener)
        except ActorConfigurationError:
            listener.close()
            raise
        raise_descriptor_limit()
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        app = GatewayApp(gateway)

        async def end_if_stopped() -> None:
            if self._ends_with is not None and self._ends_with.failure is not None:
                # Kept: the engine may recover while the gateway ends.
                self._ended_by = self._ends_with.failure
                server.end()

        server = LocalServer(
            app,
            end_calls=gateway.end,
            close=app.aclose,
            http=HttpProtocol,
            timeout_keep_alive=_KEEP_ALIVE,
            callback_notify=end_if_stopped,
            timeout_notify=1,
        )
        return server, listener


def _refuse_own_address(base_url: str, listener: socket.socket) -> None:
    """Refuse a gateway whose API is the gateway itself: each call would multiply without end.

    The shell that starts it often has the ``ANTHROPIC_BASE_URL`` of the gateway's clients.
    """
    url = urlsplit(base_url)
    host, port = listener.getsockname()[:2]
    if url.port == port and url.hostname and (url.hostname == host or is_loopback(url.hostname)):
        raise ActorConfigurationError(
            f"the API's address, {base_url}, is that of the gateway itself; unset "
            "ANTHROPIC_BASE_URL where the gateway starts, and set it where its clients start"
        )


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files as far as it may.

    Each call that waits needs one; the usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS reports no hard limit, but refuses more than its own.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
