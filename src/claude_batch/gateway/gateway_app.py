"""The gateway as an ASGI application: its routes, and the checks before each of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from starlette.routing import Route, Router

from claude_batch.core.errors import ActorError
from claude_batch.gateway.asgi import Disconnected, Receive, Scope, Send, headers_of, send_whole
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.gateway.held_calls import Aborted
from claude_batch.gateway.messages_route import MessagesRoute
from claude_batch.gateway.passthrough import METHODS, PASSED, Passthrough
from claude_batch.gateway.refusals import Refusal, ending
from claude_batch.gateway.request_routes import REQUESTS, RequestRoute
from claude_batch.gateway.wishes import split_prefix
from claude_batch.integrations.http_messages import failure

_OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Routes for probes, which have no token."""

ANSWERS: Final = 3.0
"""Seconds in which the ledger answers a probe; an orchestrator often waits for five."""

_MESSAGES: Final = ("/v1/messages", "/messages")
"""Vercel's AI SDK takes ``ANTHROPIC_BASE_URL`` as it is, and adds no ``/v1``."""

_CHAT: Final = "/v1/chat/completions"


class GatewayApp:
    """The ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._passthrough = Passthrough(gateway)
        messages = MessagesRoute(gateway)
        self._router = Router(
            [
                *(_Route(path, messages, methods=["POST"]) for path in _MESSAGES),
                _Route(REQUESTS + "{id}", RequestRoute(gateway), methods=["GET", "DELETE"]),
                *(_Route(path, self._passthrough, methods=METHODS) for path in PASSED),
                _Route("/metrics", gateway.metrics, methods=["GET"]),
                _Route("/healthz", Health(gateway), methods=["GET"]),
                _Route("/readyz", Health(gateway, ready=True), methods=["GET"]),
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
            self._check(scope)
            # The server closes the connection of a response that is not complete.
            with contextlib.suppress(Aborted, Disconnected):
                await self._router(scope, receive, send)
        # The routes raise these only before they have sent a status.
        except Refusal as refusal:
            await refusal.send(send)
        except ActorError as error:
            response = failure(error)
            await send_whole(send, response.status_code, dict(response.headers), response.content)

    def _check(self, scope: Scope) -> None:
        headers = headers_of(scope)
        access = self.gateway.access
        access.check_page(headers)
        path, wishes = split_prefix(scope["path"])
        scope["path"], scope["raw_path"] = path, path.encode()
        state: dict[str, Any] = {**scope.get("state", {}), "wishes": wishes}
        if path not in _OPEN:
            state["caller"] = access.admit(headers)
            if self.gateway.is_ending:
                raise ending()
        scope["state"] = state


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
        await Refusal(405, "invalid_request_error", words, headers).send(send)


class Health:
    """``/healthz``, whether the process can serve, and ``/readyz``, whether calls should come."""

    def __init__(self, gateway: Gateway, *, ready: bool = False) -> None:
        self._gateway = gateway
        self._ready = ready
        self._asked: asyncio.Task[str | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a probe."""
        why = self._gateway.provider.why_stopped()
        if self._ready and why is None:
            why = "shutting down" if self._gateway.is_ending else await self._why_not()
        status = 200 if why is None else 503
        text = f"{why or 'ok'}\n".encode()
        await send_whole(send, status, {"content-type": "text/plain; charset=utf-8"}, text)

    async def _why_not(self) -> str | None:
        """Return the reason; one question at a time, so that an outage does not pile up threads."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask())
        try:
            return await asyncio.wait_for(asyncio.shield(self._asked), ANSWERS)
        except TimeoutError:
            return f"the ledger has not answered for {ANSWERS:.0f} s"

    async def _ask(self) -> str | None:
        try:
            return await asyncio.to_thread(self._gateway.provider.why_not_sending)
        except ActorError as error:
            return str(error)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    path: str = scope["path"]
    if path == _CHAT:
        message = (
            "this gateway speaks Anthropic's Messages API, not OpenAI's; use an Anthropic client, "
            "or a library that translates, such as LiteLLM"
        )
    else:
        message = f"there is nothing at {path[:200]!r}"
    await Refusal(404, "not_found_error", message).send(send)
