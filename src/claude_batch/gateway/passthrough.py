"""Routes that the gateway passes to the API, with its own key.

Uploads, files and results are streamed: a file has up to 500 MB, and a batch's results may have
more. Only headers that are known are passed, so that no credential or cookie crosses the gateway.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import httpx2
import msgspec

from claude_batch.gateway.access import Caller
from claude_batch.gateway.asgi import Disconnected as CallerGone
from claude_batch.gateway.asgi import Receive, Scope, Send, headers_of
from claude_batch.gateway.bodies import receive_body
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.gateway.held_calls import Aborted, HeldCall
from claude_batch.gateway.refusals import Refusal
from claude_batch.wire.connection import Connection, CredentialFault, Disconnected

BATCHES: Final = "/v1/messages/batches"
_COUNT: Final = "/v1/messages/count_tokens"

PASSED: Final = (
    _COUNT,
    BATCHES,
    BATCHES + "/{rest:path}",
    "/v1/models",
    "/v1/models/{rest:path}",
    "/v1/files",
    "/v1/files/{rest:path}",
)
"""Paths that are passed on."""

METHODS: Final = ("GET", "POST", "DELETE")

_BATCH: Final = re.compile(rf"{BATCHES}/([^/]+)")

_LARGE: Final = ("/content", "/results")
"""Ends of the paths whose responses are streamed. All others are read first, so that a failure
midway has a status."""

_SEGMENT: Final = re.compile(r"(?!\.+$)[\w.:@-]+", re.ASCII)
"""A part of a path. ``..`` would reach other routes, such as live messages at the full price."""

_SENT: Final = (
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "content-length",
    "content-type",
    "idempotency-key",
)
"""Headers of a call that are passed to the API."""

_RETURNED: Final = (
    "cache-control",
    "content-disposition",
    "content-type",
    "request-id",
    "retry-after",
    "x-should-retry",
)
"""Headers of a response that are passed, beside those that begin with ``anthropic-``."""

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)
_list = msgspec.json.Decoder(list[_Fields])
_URL: Final = "results_url"


class Passthrough:
    """The routes as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connection: Connection | None = None

    async def aclose(self) -> None:
        """Close the connections to the API."""
        if self._connection is not None:
            await self._connection.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call."""
        headers = headers_of(scope)
        path: str = scope["path"]
        if not all(_SEGMENT.fullmatch(part) for part in path[1:].split("/")):
            raise Refusal(404, "not_found_error", f"there is nothing at {path[:200]!r}")
        refused = next((n for n in _SENT if not headers.get(n, "").isascii()), None)
        if refused is not None:
            raise Refusal(
                400, "invalid_request_error", f"{refused} has other than ASCII characters"
            )
        caller: Caller = scope["state"]["caller"]
        if caller.name and (batch := _BATCH.match(path)) is not None:
            await self._check_batch(batch[1])
        response = await self._send(scope, path, headers, receive)
        try:
            with HeldCall(receive, send) as call:
                await self._return(call, response, headers, apart=bool(caller.name))
        finally:
            await response.aclose()

    async def _check_batch(self, batch_id: str) -> None:
        """Refuse a batch of the ledger: it has the calls of all names."""
        known = await asyncio.to_thread(self._gateway.provider.known_batches, [batch_id])
        if known:
            raise Refusal(404, "not_found_error", f"there is no batch {batch_id!r}")

    async def _send(
        self, scope: Scope, path: str, headers: Mapping[str, str], receive: Receive
    ) -> httpx2.Response:
        """Return the API's response; its body is unread if it may be large."""
        method: str = scope["method"]
        query: str = scope.get("query_string", b"").decode("latin-1")
        try:
            response = await self._connect().send(
                method,
                f"{path}?{query}" if query else path,
                content=_upload(receive) if method == "POST" else None,
                headers={name: headers[name] for name in _SENT if name in headers},
                stream=path.endswith(_LARGE),
            )
        except CredentialFault as error:
            raise Refusal(500, "api_error", f"the gateway's own key: {error}") from None
        except Disconnected as error:
            if isinstance(error.__cause__, CallerGone | Refusal):
                raise error.__cause__ from None
            raise _unreachable(error, method, path) from None
        except asyncio.CancelledError:
            if not self._gateway.is_ending:
                raise
            raise _unanswered(
                503, "api_error", "the gateway is shutting down", _may_repeat(method, path)
            ) from None
        if response.is_redirect:  # read and closed, as every failure
            raise Refusal(502, "api_error", "the API sent a redirect, which is not followed")
        return response

    def _connect(self) -> Connection:
        if self._connection is None:
            credentials = self._gateway.provider.credentials()
            self._connection = Connection(
                base_url=credentials.get("base_url"), api_key=credentials.get("api_key")
            )
        return self._connection

    async def _return(
        self,
        call: HeldCall,
        response: httpx2.Response,
        headers: Mapping[str, str],
        *,
        apart: bool,
    ) -> None:
        """Send a response; ``apart``: without batches of the ledger, which others have asked."""
        redaction = self._connect().redaction
        kept = {
            name: redaction.text(value)
            for name, value in response.headers.items()
            if name in _RETURNED or name.startswith("anthropic-")
        }
        if response.is_closed:  # it was read
            body = response.content
            if apart and _URL.encode() in body:
                body = await asyncio.to_thread(self._without_ours, body)
            body = redaction.answer(with_results_url(body, _address(headers)))
            await call.send_whole(response.status_code, kept, body)
            return
        await call.begin(response.status_code, kept)
        try:
            async for piece in redaction.answers(response.aiter_bytes()):
                if call.is_gone:
                    return
                await call.send_some(piece)
        except (httpx2.HTTPError, OSError):
            raise Aborted from None
        await call.finish([])

    def _without_ours(self, body: bytes) -> bytes:
        """Take the batches of the ledger out of a list."""
        try:
            found = _fields.decode(body)
            if "data" not in found:
                return body
            listed = _list.decode(found["data"])
            ids = [msgspec.json.decode(each["id"], type=str) for each in listed]
        except (msgspec.DecodeError, RecursionError, KeyError):
            raise Refusal(502, "api_error", "the API sent an unreadable list of batches") from None
        known = self._gateway.provider.known_batches(ids)
        left = [each for each, name in zip(listed, ids, strict=True) if name not in known]
        found["data"] = msgspec.Raw(msgspec.json.encode(left))
        return msgspec.json.encode(found)


async def _upload(receive: Receive) -> AsyncGenerator[bytes]:
    more = True
    while more:
        piece, more = await receive_body(receive)
        if piece:
            yield piece


def _unreachable(error: Disconnected, method: str, path: str) -> Refusal:
    """Return the response to a call whose call to the API got no whole response."""
    cause = error.__cause__ or error
    late = isinstance(cause, httpx2.TimeoutException)
    safe = error.never_connected or _may_repeat(method, path)
    words = "was not reached" if error.never_connected else "did not answer"
    return _unanswered(
        504 if late else 502,
        "timeout_error" if late else "api_error",
        f"the API {words} ({type(cause).__name__})",
        safe,
    )


def _unanswered(status: int, kind: str, words: str, safe: bool) -> Refusal:
    """Return the response to a call that has no response of the API; ``safe``: to repeat it."""
    words = words if safe else f"{words}; it may have accepted the call"
    return Refusal(status, kind, words, {"x-should-retry": "true" if safe else "false"})


def _may_repeat(method: str, path: str) -> bool:
    """Return whether a call that the API may have accepted can be repeated.

    The SDKs repeat it by themselves. A batch that is created twice is paid for twice.
    """
    return method != "POST" or path == _COUNT or path.endswith("/cancel")


def _address(headers: Mapping[str, str]) -> str:
    """Return the gateway's address as the caller sees it."""
    scheme = "https" if headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{headers['host']}"


def with_results_url(body: bytes, address: str) -> bytes:
    """Let the batches in a response name the gateway in their ``results_url``.

    The SDKs follow that URL as it stands, and would send the caller's token to the API.
    """
    try:
        found = _fields.decode(body)
        if _URL in found:
            found = _at_gateway(found, address)
        elif b'"%b"' % _URL.encode() in body and "data" in found:
            batches = [_at_gateway(each, address) for each in _list.decode(found["data"])]
            found["data"] = msgspec.Raw(msgspec.json.encode(batches))
        else:
            return body
    except (msgspec.DecodeError, RecursionError):
        return body
    return msgspec.json.encode(found)


def _at_gateway(batch: _Fields, address: str) -> _Fields:
    given: Any = msgspec.json.decode(batch.get(_URL, msgspec.Raw(b"null")))
    if not isinstance(given, str):
        return batch
    batch_id = msgspec.json.decode(batch.get("id", msgspec.Raw(b'""')), type=str)
    url = f"{address}{BATCHES}/{batch_id}/results"
    return {**batch, _URL: msgspec.Raw(msgspec.json.encode(url))}
