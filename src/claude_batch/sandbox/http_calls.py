"""One API call from first to last byte: the caller, the response headers, and the faults.

Faults happen here, around the handlers, which do not handle them. A dropped connection is a real
one: the server's protocol puts its transport into the call's scope (see `server`), and the fault
aborts it. So the client sees a reset or a closed socket, not an HTTP response.

A live message is streamed in the order and shapes of
https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, cast

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .api_errors import TYPE_OF, ApiError, error_body
from .fault_plan import (
    AnyAction,
    CutBetweenLines,
    CutInsideLine,
    DropBefore,
    Early413,
    Error,
    Hang,
    Html200,
    Proxy413,
    Redirect,
    UnknownFields,
)
from .results import with_unknown_fields
from .sandbox_settings import ORGANIZATION

# Server-sent events -------------------------------------------------------------------------------

PIECE = 24
"""Characters of text or JSON in one delta."""


_Event = tuple[str, dict[str, Any]]


def events(message: dict[str, Any], *, unknown_fields: bool = False) -> Iterator[bytes]:
    """Yield all events of a finished message object; their data repeat the name as `type`."""
    for name, fields in _events(message):
        data: Any = {"type": name, **fields}
        if unknown_fields:
            data = with_unknown_fields(data)
        yield b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def _events(message: dict[str, Any]) -> Iterator[_Event]:
    usage = message["usage"]
    opening: dict[str, Any] = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {**usage, "output_tokens": 1},
    }
    opening["usage"].pop("output_tokens_details", None)
    yield ("message_start", {"message": opening})
    for index, block in enumerate(message["content"]):
        yield from _block(index, block)
    delta = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    counted = (
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
        "output_tokens_details",
    )  # fmt: skip
    final = {name: usage[name] for name in counted if name in usage}
    yield ("message_delta", {"delta": delta, "usage": final})
    yield ("message_stop", {})


def _block(index: int, block: dict[str, Any]) -> Iterator[_Event]:
    kind = block["type"]
    deltas: list[dict[str, Any]] = []
    opening = dict(block)
    if kind == "text":
        opening["text"] = ""
        if "citations" in block:
            opening["citations"] = []
            deltas += [{"type": "citations_delta", "citation": each} for each in block["citations"]]
        deltas += [
            {"type": "text_delta", "text": piece} for piece in _pieces(block.get("text", ""))
        ]
    elif kind == "tool_use":
        opening["input"] = {}
        text = msgspec.json.encode(block.get("input", {})).decode()
        deltas += [
            {"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]
        ]
    elif kind == "thinking":
        opening.update(thinking="", signature="")
        deltas += [
            {"type": "thinking_delta", "thinking": piece}
            for piece in _pieces(block.get("thinking", ""))
        ]
        deltas.append({"type": "signature_delta", "signature": block.get("signature", "")})
    yield ("content_block_start", {"index": index, "content_block": opening})
    if index == 0:
        yield ("ping", {})
    for delta in deltas:
        yield ("content_block_delta", {"index": index, "delta": delta})
    yield ("content_block_stop", {"index": index})


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


# Http calls ---------------------------------------------------------------------------------------

MAX_KEPT_BYTES = 500_010_000
"""Maximum bytes of a body that is read early: the API's largest, a file with its form."""

TRANSPORT = "claude_batch_sandbox_transport"
"""Name in the scope's state under which the server's protocol stores its transport."""

_PAGE = b"<html><head><title>%b</title></head><body><h1>%b</h1><hr>nginx</body></html>\n"
_LOGGED = (
    "anthropic-version", "anthropic-beta", "anthropic-workspace-id", "anthropic-user-profile-id",
    "content-length", "transfer-encoding", "content-type", "accept", "user-agent", "expect",
    "x-stainless-retry-count",
)  # fmt: skip


@dataclass(slots=True)
class Call:
    """State of one API call for handlers and faults."""

    route: str
    request_id: str
    scope: Scope
    receive: Receive
    send: Send
    now: float
    """Server time at which the call came in."""
    workspace: str | None = None
    """Set once the caller is authenticated."""
    report_workspace: bool = True
    action: AnyAction | None = None
    limit_headers: dict[str, str] = field(default_factory=dict[str, str])
    """Additional headers of the answer."""
    anonymous: bool = False
    """Whether the answer comes from a proxy in front, which sends no API headers."""
    status: int | None = None
    body_read: bool = False
    kept: bytes | None = None
    """The body, if it was read early."""
    http: HttpRequest = field(init=False)

    def __post_init__(self) -> None:
        self.http = HttpRequest(self.scope, self.receive)

    @property
    def base_url(self) -> str:
        """Return the URL at which the client reached the sandbox, without a trailing slash."""
        return str(self.http.base_url).rstrip("/")

    @property
    def transport(self) -> asyncio.Transport:
        """Return the connection itself; available only with `claude_batch.sandbox`'s own server."""
        found = self.scope.get("state", {}).get(TRANSPORT)
        if found is None:
            raise RuntimeError("this fault needs the sandbox's own server: use SandboxServer")
        return cast(asyncio.Transport, found)

    async def body(self, limit: int) -> bytes:
        """Return the whole body; raises `ApiError` (413) above `limit` bytes.

        A body of up to twice the limit is first read to its end, as the API does.
        """
        # BytesIO returns its buffer without a copy: a body may be 256 MB.
        held = io.BytesIO()
        size = 0
        async for part in self.parts():
            size += len(part)
            if size <= limit:
                held.write(part)
            elif size > 2 * limit:
                break  # it may have no end
        if size > limit:
            raise ApiError(
                "request_too_large",
                f"Request exceeds the maximum size of {limit} bytes",
                headers={} if self.body_read else {"connection": "close"},
            )
        return held.getvalue()

    async def keep_body(self) -> None:
        """Read the body now, for a handler that runs once the connection is gone."""
        try:
            self.kept = await self.body(MAX_KEPT_BYTES)
        except ApiError:
            self.kept = b""

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raises `ConnectionError` if the client disconnects."""
        if self.kept is not None:
            yield self.kept
        while not self.body_read:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client went away while it was sending")
            self.body_read = not message.get("more_body", False)
            yield message.get("body", b"")

    async def drain(self, up_to: int | None = None) -> None:
        """Read and discard the body, or its first `up_to` bytes."""
        size = 0
        if up_to is None or up_to > 0:
            async for part in self.parts():
                size += len(part)
                if up_to is not None and size >= up_to:
                    return

    async def send_reply(self, message: Message) -> None:
        """ASGI's `send`, with the headers that every answer of the API carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"date", self._date())]
            if not self.anonymous:
                headers += self._api_headers()
            message = {**message, "headers": headers}
        await self.send(message)

    def _date(self) -> bytes:
        return formatdate(self.now, usegmt=True).encode()

    def _api_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"request-id", self.request_id.encode()),
            (b"anthropic-organization-id", ORGANIZATION.encode()),
        ]
        if self.workspace is not None and self.report_workspace:
            headers.append((b"anthropic-workspace-id", self.workspace.encode()))
        return headers + [
            (name.encode(), value.encode()) for name, value in self.limit_headers.items()
        ]

    async def answer(self, response: Response) -> None:
        """Send a response, modified by the fault plan."""
        if isinstance(self.action, UnknownFields) and response.media_type == "application/json":
            extended = with_unknown_fields(msgspec.json.decode(response.body))
            kept = {
                name: value
                for name, value in response.headers.items()
                if name not in ("content-length", "content-type")
            }
            response = json_response(extended, response.status_code, kept)
        if isinstance(self.action, CutInsideLine) and isinstance(response, StreamingResponse):
            await self._cut_short(response)
        elif (
            isinstance(self.action, CutBetweenLines)
            and self.action.framing == "close"
            and isinstance(response, StreamingResponse)
        ):
            await self._without_framing(response)
        else:
            await response(self.scope, self.receive, self.send_reply)

    async def refuse(self, error: ApiError) -> None:
        """Send an API error, after reading the body up to `MAX_KEPT_BYTES`."""
        headers = error.headers
        if self.route == "results" and error.status == 404:
            headers = {**headers, "x-should-retry": "false"}
        if "connection" not in headers:
            await self.drain(MAX_KEPT_BYTES)
            if not self.body_read:
                headers = {**headers, "connection": "close"}
        body = error_body(error, self.request_id)
        await self.answer(json_response(body, error.status, headers))

    async def drop(self) -> None:
        """Abort the connection, and wait until the server has noticed."""
        self.transport.abort()
        await self._gone()

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _cut_short(self, response: StreamingResponse) -> None:
        """Send everything but the end of the body, then close."""
        start = {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
        await self.send_reply(start)
        async for part in response.body_iterator:
            await self.send({"type": "http.response.body", "body": part, "more_body": True})
        # close(), not abort(), because the data sent must arrive.
        self.transport.close()
        await self._gone()

    async def _without_framing(self, response: StreamingResponse) -> None:
        """Write the answer past the server, which would frame it as chunks."""
        self.status = response.status_code
        headers = [
            *response.raw_headers, *self._api_headers(),
            (b"date", self._date()), (b"connection", b"close"),
        ]  # fmt: skip
        head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        self.transport.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        async for part in response.body_iterator:
            self.transport.write(bytes(part) if not isinstance(part, str) else part.encode())
        self.transport.close()
        await self._gone()

    async def instead(self, action: AnyAction) -> bool:
        """Carry out a fault that replaces the processing; return False for any other fault."""
        match action:
            case Error(processed=False):
                await self.drain()
                await self.error(action)
            case Proxy413():
                await self.drain()
                await self._proxy_page(413, b"413 Request Entity Too Large")
            case Early413():
                await self.drain(action.after_bytes)
                await self._early_413(action)
            case Html200(processed=False):
                await self.drain()
                await self.page_200()
            case Redirect():
                await self.drain()
                await self.answer(Response(None, action.status, {"location": action.location}))
            case Hang(processed=False):
                await self.drain()
                await self.hang(action.seconds)
            case DropBefore():
                await self.drain(action.after_bytes)
                await self.drop()
            case _:
                return False
        return True

    async def page_200(self) -> None:
        """Send a page that is not from the API at all."""
        await self._proxy_page(200, b"Welcome to the guest network")

    async def hang(self, seconds: float) -> None:
        """Send nothing, then drop; ends early if the client disconnects."""
        try:
            await asyncio.wait_for(self._gone(), seconds)
        except TimeoutError:
            await self.drop()

    async def error(self, action: Error) -> None:
        """Send the error of the plan."""
        headers: dict[str, str] = {}
        if action.retry_after is not None:
            headers["retry-after"] = f"{action.retry_after:g}"
        if not action.json:
            self.anonymous = True
            text = action.message or f"error {action.status}"
            await self.answer(Response(text, action.status, headers, "text/plain"))
            return
        kind = action.error or TYPE_OF.get(action.status, "api_error")
        error = ApiError(
            kind, action.message, status=action.status, details=action.details, headers=headers
        )
        await self.refuse(error)

    async def _proxy_page(self, status: int, title: bytes) -> None:
        self.anonymous = True
        await self.answer(Response(_PAGE % (title, title), status, media_type="text/html"))

    async def _early_413(self, action: Early413) -> None:
        self.anonymous = True
        title = b"413 Request Entity Too Large"
        page = _PAGE % (title, title)
        headers = [
            (b"content-type", b"text/html"),
            (b"content-length", str(len(page)).encode()),
            (b"connection", b"close"),
        ]
        await self.send_reply({"type": "http.response.start", "status": 413, "headers": headers})
        await self.send({"type": "http.response.body", "body": page, "more_body": action.drain})
        if action.drain:
            await self.drain()
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def record(self, started: float) -> dict[str, Any]:
        """Return the call's record for `GET /sandbox/log`; it never contains a key."""
        headers = {name: self.http.headers[name] for name in _LOGGED if name in self.http.headers}
        action = self.action
        return {
            "method": self.scope["method"],
            "path": self.scope["path"],
            "query": self.scope["query_string"].decode("latin-1"),
            "route": self.route,
            "status": self.status,
            "request_id": self.request_id,
            "workspace": self.workspace,
            "auth": auth_kind(self.http),
            "headers": headers,
            "fault": None if action is None else str(action.__struct_config__.tag),
            "at": self.now,
            "seconds": round(time.monotonic() - started, 6),
        }


def auth_kind(http: HttpRequest) -> str | None:
    """Return the kind of header that carries the call's key."""
    if http.headers.get("x-api-key"):
        return "x-api-key"
    return "bearer" if http.headers.get("authorization") else None


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def stream(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces, and let other calls run between two of them."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)
