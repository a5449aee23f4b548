"""Routes that the gateway passes to the API, with its own key.

Uploads, files and results are streamed: a file has up to 500 MB, and a batch's results may have
more. Only headers that are known are passed, so that no credential or cookie crosses the gateway.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import httpx2
import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.gateway.access import Caller, Refusal
from claude_batch.gateway.asgi import receive_body
from claude_batch.gateway.exchanges import Aborted, HeldCall
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.lifecycle.polling import CLOCKS_APART
from claude_batch.wire.connection import Connection, CredentialFault, Unreachable
from claude_batch.wire.inbound import iso_time

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
    "anthropic-user-profile-id",
    "anthropic-version",
    "content-encoding",
    "content-length",
    "content-type",
    "idempotency-key",
)
"""Headers of a call that are passed to the API."""

_OF_BODY: Final = ("content-encoding", "content-length", "content-type")

_RETURNED: Final = (
    "cache-control",
    "content-disposition",
    "content-type",
    "request-id",
    "retry-after",
    "x-should-retry",
)
"""Headers of a response that are passed, beside those that begin with ``anthropic-``."""

_Fields = dict[str, Any]
_fields = msgspec.json.Decoder(_Fields)
_URL: Final = "results_url"

_USUAL_PAGE: Final = 20
_LARGEST_PAGE: Final = 1000
"""Batches in a page of the API's list: without a `limit`, and at most."""

_MOST_CREATED: Final = 10_000
"""Ids that are remembered of batches that callers have made; the API's queue holds fewer."""

_MOST_PAGES: Final = 100
"""Pages that are read for one call, if all their batches are the ledger's."""


class Passthrough:
    """The routes as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connection: Connection | None = None
        self._made_here: dict[str, None] = {}
        """Ids of the batches that callers have made here, the oldest first."""

    async def aclose(self) -> None:
        """Close the connections to the API."""
        if self._connection is not None:
            await self._connection.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call."""
        headers: dict[str, str] = scope["state"]["headers"]
        path: str = scope["path"]
        if not all(_SEGMENT.fullmatch(part) for part in path[1:].split("/")):
            raise Refusal(404, f"there is nothing at {path[:200]!r}")
        refused = next((n for n in _SENT if not headers.get(n, "").isascii()), None)
        if refused is not None:
            raise Refusal(400, f"{refused} has other than ASCII characters")
        creates = path == BATCHES and scope["method"] == "POST"
        if creates and self._gateway.provider.settings.exclusive_workspace:
            raise Refusal(
                403,
                "the gateway's ledger is set as the only one that creates batches in its workspace "
                "(exclusive_workspace); send messages instead",
            )
        caller: Caller = scope["state"]["caller"]
        if caller.name and (batch := _BATCH.match(path)) is not None:
            await self._check_batch(batch[1], headers, receive)
        response = await self._send(scope, path, headers, receive)
        if creates:
            self._note_created(response)
        if caller.name and path == BATCHES and scope["method"] == "GET":
            response = await self._without_ours(scope, headers, receive, response)
        try:
            with HeldCall(receive, send) as call:
                await self._return(call, response, headers)
        finally:
            await response.aclose()

    def _note_created(self, response: httpx2.Response) -> None:
        """Remember that a caller made a batch, so that it is not taken for one of the ledger's."""
        if not response.is_success:
            return
        try:
            made = _created_batch.decode(response.content).id
        except (msgspec.DecodeError, RecursionError):
            return
        self._made_here[made] = None
        while len(self._made_here) > _MOST_CREATED:
            del self._made_here[next(iter(self._made_here))]

    async def _check_batch(
        self, batch_id: str, headers: Mapping[str, str], receive: Receive
    ) -> None:
        """Refuse a batch that is, or may be, the ledger's: it has the calls of all names."""
        if batch_id in self._made_here:
            return
        own = await asyncio.to_thread(self._gateway.provider.own_batches, [batch_id])
        if batch_id in own.known:
            raise Refusal(404, f"there is no batch {batch_id!r}")
        is_open = batch_id in own.possible
        if not is_open and own.open_since is not None:
            path = f"{BATCHES}/{batch_id}"
            found = await self._send({"method": "GET"}, path, headers, receive)
            is_open = found.is_success and _may_be_sent_since(found.content, own.open_since)
        if is_open:
            raise Refusal(
                503,
                f"it is not known yet whether {batch_id!r} has calls of this gateway; try again",
                retry_after=5,
            )

    async def _send(
        self, scope: Scope, path: str, headers: Mapping[str, str], receive: Receive
    ) -> httpx2.Response:
        """Return the API's response; its body is unread if it may be large."""
        method: str = scope["method"]
        query: str = scope.get("query_string", b"").decode("latin-1")
        # The API's other calls have no body, and a length without one breaks the connection.
        has_body = method == "POST"
        try:
            response = await self._connect().send(
                method,
                f"{path}?{query}" if query else path,
                content=_upload(receive) if has_body else None,
                headers={
                    name: headers[name]
                    for name in _SENT
                    if name in headers and (has_body or name not in _OF_BODY)
                },
                stream=path.endswith(_LARGE),
            )
        except CredentialFault as error:
            raise Refusal(500, f"the gateway's own key: {error}") from None
        except ActorConfigurationError as error:
            raise Refusal(500, f"the gateway's own settings: {error}") from None
        except Unreachable as error:
            if isinstance(error.__cause__, ClientDisconnect | Refusal):
                raise error.__cause__ from None
            raise _unreachable(error, method, path) from None
        except asyncio.CancelledError:
            if not self._gateway.is_ending:
                raise
            raise _unanswered(
                503, "the gateway is shutting down", _may_repeat(method, path)
            ) from None
        if response.is_redirect:  # read and closed, as every failure
            raise Refusal(502, "the API sent a redirect, which is not followed")
        return response

    def _connect(self) -> Connection:
        if self._connection is None:
            credentials = self._gateway.provider.credentials()
            self._connection = Connection(
                base_url=credentials.get("base_url"), api_key=credentials.get("api_key")
            )
        return self._connection

    async def _return(
        self, call: HeldCall, response: httpx2.Response, headers: Mapping[str, str]
    ) -> None:
        """Send a response."""
        redaction = self._connect().redaction
        kept = {
            name: redaction.text(value)
            for name, value in response.headers.items()
            if name in _RETURNED or name.startswith("anthropic-")
        }
        if response.is_closed:  # it was read
            body = redaction.answer(with_results_url(response.content, _address(headers)))
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

    async def _without_ours(
        self,
        scope: Scope,
        headers: Mapping[str, str],
        receive: Receive,
        response: httpx2.Response,
    ) -> httpx2.Response:
        """Remove the ledger's batches from a list, because they hold the calls of others.

        The SDKs end their iteration at an empty page. So if nothing of a page is left, the pages
        that follow are read too, until one has a batch that the caller may see.
        """
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        backwards = "before_id" in query and "after_id" not in query
        given = query.get("limit", "")
        limit = int(given) if given.isdecimal() and len(given) <= 4 else _USUAL_PAGE
        for _ in range(_MOST_PAGES):
            if response.status_code != 200:
                break
            page = await asyncio.to_thread(self._page_without_ours, response.content)
            if page is None:
                break
            if page.batches or not page.has_more or page.first is None or page.last is None:
                body = page.cut(limit, backwards=backwards)
                # The body is not compressed, and its length is another.
                of_body = ("content-encoding", "content-length", "transfer-encoding")
                kept = {n: v for n, v in response.headers.items() if n not in of_body}
                # As they came: `Connection` reads headers as Latin-1.
                as_given = httpx2.Headers(kept, encoding="latin-1")
                return httpx2.Response(200, headers=as_given, content=body)
            query |= {"before_id": page.first} if backwards else {"after_id": page.last}
            query["limit"] = str(_LARGEST_PAGE)
            further = {**scope, "query_string": urlencode(query).encode()}
            response = await self._send(further, BATCHES, headers, receive)
        else:
            raise Refusal(
                502,
                f"the API's list has more than {_MOST_PAGES} pages of batches of this gateway in "
                "a row",
            )
        return response

    def _page_without_ours(self, body: bytes) -> _Page | None:
        """Return a page of batches without those of the ledger; None if it is no such page."""
        try:
            found = _fields.decode(body)
            if "data" not in found:
                return None
            listed = _listed(found)
            ids = [msgspec.convert(each["id"], str) for each in listed]
            has_more = msgspec.convert(found.get("has_more", False), bool)
        except (msgspec.DecodeError, RecursionError, KeyError):
            raise Refusal(502, "the API sent an unreadable list of batches") from None
        own = self._gateway.provider.own_batches(ids)
        since = own.open_since
        hidden = own.known | own.possible
        left = [
            (name, each)
            for each, name in zip(listed, ids, strict=True)
            if name in self._made_here
            or (name not in hidden and (since is None or not _is_new(each, since)))
        ]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return _Page(found, left, has_more, first, last)


class _CreatedBatch(msgspec.Struct):
    id: str


_created_batch: Final = msgspec.json.Decoder(_CreatedBatch)


def _may_be_sent_since(body: bytes, since: float) -> bool:
    """Return whether the batch in a response may be new at a time of the API."""
    try:
        return _is_new(_fields.decode(body), since)
    except (msgspec.DecodeError, RecursionError):
        raise Refusal(502, "the API sent an unreadable batch") from None


def _is_new(batch: _Fields, since: float) -> bool:
    """Return whether a batch may have been created at a time of the API, or later."""
    given = batch.get("created_at")
    created = iso_time(given) if isinstance(given, str) else None
    return created is None or created >= since - CLOCKS_APART


class _Page(NamedTuple):
    """A page of the API's list of batches, as far as a caller may see it."""

    fields: _Fields
    batches: list[tuple[str, _Fields]]
    has_more: bool
    first: str | None
    last: str | None
    """The ids at its ends, with those of the batches that were taken out."""

    def cut(self, limit: int, *, backwards: bool) -> bytes:
        """Return it as JSON, with at most `limit` batches: those next to the cursor."""
        shown = self.batches[-limit:] if backwards else self.batches[:limit]
        fields = {**self.fields, "data": [batch for _, batch in shown]}
        if len(shown) < len(self.batches):
            fields |= {"first_id": shown[0][0], "last_id": shown[-1][0], "has_more": True}
        return msgspec.json.encode(fields)


async def _upload(receive: Receive) -> AsyncGenerator[bytes]:
    more = True
    while more:
        piece, more = await receive_body(receive)
        if piece:
            yield piece


def _unreachable(error: Unreachable, method: str, path: str) -> Refusal:
    """Return the response to a call whose call to the API got no whole response."""
    cause = error.__cause__
    late = isinstance(cause, httpx2.TimeoutException)
    why = error.reason if cause is None else type(cause).__name__
    safe = error.never_connected or _may_repeat(method, path)
    words = "was not reached" if error.never_connected else "did not answer"
    return _unanswered(504 if late else 502, f"the API {words} ({why})", safe)


def _unanswered(status: int, words: str, safe: bool) -> Refusal:
    """Return the response to a call that has no response of the API; ``safe``: to repeat it."""
    words = words if safe else f"{words}; it may have accepted the call"
    return Refusal(status, words, {"x-should-retry": "true" if safe else "false"})


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
            batches = [found]
        elif b'"%b"' % _URL.encode() in body:
            batches = found["data"] = _listed(found)
        else:
            return body
        for batch in batches:
            if isinstance(batch.get(_URL), str):
                batch_id = msgspec.convert(batch.get("id", ""), str)
                batch[_URL] = f"{address}{BATCHES}/{batch_id}/results"
    except (msgspec.DecodeError, RecursionError, KeyError):
        return body
    return msgspec.json.encode(found)


def _listed(page: _Fields) -> list[_Fields]:
    """Return the items of a page. Raises ``KeyError`` and `msgspec.ValidationError`."""
    return msgspec.convert(page["data"], list[_Fields])
