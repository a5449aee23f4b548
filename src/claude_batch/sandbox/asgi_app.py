"""The sandbox as an ASGI application: its routes, and the processing around each call.

Connection faults need the server of `claude_batch.sandbox.server`, which provides its transport.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .admin import admin_routes
from .api_errors import ApiError, error_json
from .fault_plan import Delay, DropAfter, Error, Hang, Html200
from .http_calls import Call
from .sandbox_settings import SandboxSettings
from .service import BATCH_ROUTES, FileCalls, Sandbox, key_of
from .validation import TOO_DEEP

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
        late = isinstance(action, DropAfter) and action.processed_after > 0
        if isinstance(action, DropAfter) and late:
            await call.keep_body()
            await call.drop()
            await asyncio.sleep(action.processed_after)
        try:
            await self.sandbox.batches.settle()
            call.workspace = self.sandbox.authenticate(call.http)
            if self.route in BATCH_ROUTES:
                call.limit_headers = self.sandbox.batch_limits(call.workspace)
            response = await self.handler(call)
        except RecursionError:
            if not late:
                await call.refuse(ApiError("invalid_request_error", TOO_DEEP))
            return
        except ApiError as error:
            if not late:
                await call.refuse(error)
            return
        if isinstance(action, DropAfter):
            if not late:
                await call.drop()
        elif isinstance(action, Hang):
            await call.hang(action.seconds)
        elif isinstance(action, Html200):
            await call.page_200()
        elif isinstance(action, Error):
            await call.error(action)
        else:
            await call.answer(response)


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
        body = error_json(ApiError(kind, "Not found" if status == 404 else str(error)), request_id)
        return Response(body, status, {"request-id": request_id}, "application/json")

    app = Starlette(
        routes=[*routes, *admin_routes(sandbox)], exception_handlers={HTTPException: refused}
    )
    # Starlette would answer `/v1/messages/batches/` with a redirect, and without a request id.
    app.router.redirect_slashes = False
    app.state.sandbox = sandbox
    return app
