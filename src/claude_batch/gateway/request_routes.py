"""``/claude-batch/v1/requests/{id}``: a stored request, without holding a connection for it.

RFC 7240 names the preferences: ``Prefer: respond-async`` stores a call and returns 202 with the
address of its request, and ``Prefer: wait=60`` waits for the answer that long first.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from claude_batch.gateway.access import Caller, Refusal, ending
from claude_batch.gateway.exchanges import REQUEST_ID, HeldCall
from claude_batch.gateway.gateway_options import wait_of_headers
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.integrations.http_messages import response_of
from claude_batch.ledger.single_calls import StoredCall

REQUESTS: Final = "/claude-batch/v1/requests/"

_MOST_READ: Final = 1000
"""Read requests that are remembered."""

_ID: Final = re.compile(r"request-([1-9][0-9]{0,17})")


async def send_accepted(call: HeldCall, request_id: str, state: str, retry_after: float) -> None:
    """Send the 202 of a request that has no answer yet."""
    body = {"id": request_id, "type": "request", "status": state}
    headers = {
        "content-type": "application/json",
        "location": REQUESTS + request_id,
        "retry-after": str(max(1, round(retry_after))),
        "preference-applied": "respond-async",
        REQUEST_ID: request_id,
    }
    await call.send_whole(202, headers, msgspec.json.encode(body))


class RequestRoute:
    """``GET`` and ``DELETE`` of one request, as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        # Requests whose answers were read, newest last: the ledger records it a moment later.
        self._read: deque[int] = deque(maxlen=_MOST_READ)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        caller: Caller = scope["state"]["caller"]
        request_id: str = scope["path_params"]["id"]
        call = await self._find(caller, request_id)
        if scope["method"] == "DELETE":
            await asyncio.wrap_future(self._gateway.provider.cancel_call(call))
            call = await self._find(caller, request_id)
        with self._gateway.hold(scope, receive, send) as held:
            if not call.is_final:
                call = await self._wait(held, call, wait_of_headers(scope["state"]["headers"]))
            if not (call.is_final or call.is_sent):
                await asyncio.to_thread(self._gateway.provider.check_unsent, call)
            await self._send(held, call, request_id, whole=scope["method"] != "HEAD")

    async def _find(self, caller: Caller, request_id: str) -> StoredCall:
        number = _ID.fullmatch(request_id)
        provider = self._gateway.provider
        found: StoredCall | None = None
        if number is not None:
            found = await asyncio.to_thread(provider.stored_call, int(number[1]))
        # Another token's request is as unknown as one that does not exist.
        if found is None or found.actor != caller.actor:
            raise Refusal(404, f"there is no request {request_id[:100]!r}")
        return found

    async def _wait(self, held: HeldCall, call: StoredCall, seconds: float) -> StoredCall:
        gateway = self._gateway
        if seconds <= 0:
            return call
        future = gateway.provider.watch(call)
        future.on_loop().add_done_callback(lambda _: held.wake())
        try:
            await held.wait(seconds)
        finally:
            is_open = future.leave("keep")
        if gateway.is_ending and is_open:
            raise ending()
        found = await asyncio.to_thread(gateway.provider.stored_call, call.seq)
        return call if found is None else found

    async def _send(
        self, held: HeldCall, call: StoredCall, request_id: str, *, whole: bool
    ) -> None:
        gateway = self._gateway
        if not call.is_final:
            state = "in_progress" if call.is_sent else "queued"
            await send_accepted(held, request_id, state, gateway.poll_interval)
            return

        def make() -> Any:
            answer = gateway.provider.answer_of(call)
            return answer, response_of(answer, stream=False, failure_ttl=gateway.failure_ttl)

        answer, response = await asyncio.to_thread(make)
        headers = {**response.headers, REQUEST_ID: request_id}
        await held.send_whole(response.status_code, headers, response.content)
        # Once: a program may read it again and again. HEAD does not read it.
        if whole and held.is_whole and call.is_untaken and call.seq not in self._read:
            self._read.append(call.seq)
            gateway.acknowledge(answer, True)
