"""A server that means harm: it stands before a real sandbox, and changes what it answers."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from behave.runner import Context

__all__ = ["DEEP", "MESSAGES", "Answer", "HostileServer", "QuietServer", "Trick", "spelled"]

DEEP = b"[" * 200_000 + b"]" * 200_000

_OWN = ("content-length", "transfer-encoding", "connection", "date", "server", "content-encoding")


@dataclass
class Answer:
    """What the sandbox answered, for a trick to change."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes
    sent: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of the request."""
    pieces: Callable[[], Iterator[bytes]] | None = None
    """Where it is set: the raw bytes after the headers, instead of ``body``."""
    before: Callable[[], Iterator[bytes]] | None = None
    """Raw bytes before the status line."""

    @property
    def kind(self) -> str:
        """Which call it answers: create, list, retrieve, results, cancel, count_tokens or live."""
        path = self.path.partition("?")[0]
        if path == "/v1/messages":
            return "live"
        if path == "/v1/messages/batches":
            return "create" if self.method == "POST" else "list"
        last = path.rpartition("/")[2]
        return last if last in ("results", "cancel", "count_tokens") else "retrieve"

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    def change(self, value: Any) -> None:
        """Answer another JSON value."""
        self.body = json.dumps(value).encode()

    def compress(self) -> None:
        """Send the body as gzip."""
        self.body = gzip.compress(self.body, 9)
        self.headers["content-encoding"] = "gzip"


Trick = Callable[[Answer], None]


def tokens(count: float) -> Callable[[dict[str, Any]], object]:
    return lambda message: message["usage"].update(input_tokens=count)


MESSAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "without content": lambda message: message.pop("content"),
    "with a string as content": lambda message: message.update(content="text"),
    "with a number as text": lambda message: message["content"][0].update(text=5),
    "with a lone surrogate": lambda message: message["content"][0].update(text="\ud800"),
    "with bytes that are no UTF-8": lambda message: message["content"][0].update(text="NO UTF-8"),
    "with 10 ** 16 tokens": tokens(10**16),
    "with fewer than no tokens": tokens(-5),
    "with half a token": tokens(0.5),
    "with 12.0 tokens": tokens(12.0),
    "without usage": lambda message: message.pop("usage"),
    "without output tokens": lambda message: message["usage"].pop("output_tokens"),
    "with a text of a megabyte": lambda message: message["content"][0].update(text="x" * 1_000_000),
    "without a model": lambda message: message.update(model=None),
    "nested 200,000 deep": lambda message: message.update(deep="DEEP"),
    "deep, and with a line within": lambda message: message.update(
        deep="DEEP", line={"custom_id": "x"}
    ),
}
"""Changes of a Message that break the API's format, or bend it."""


def spelled(value: Any) -> bytes:
    """A value in JSON, with what JSON cannot hold."""
    return json.dumps(value).encode().replace(b'"DEEP"', DEEP).replace(b"NO UTF-8", b"\xff")


class QuietServer(ThreadingHTTPServer):
    """Prints nothing for a caller that has gone: a command's errors are read on the same stream."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class HostileServer:
    """Forwards to ``upstream``, and lets ``trick`` change each answer. Ends with `stop`."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.rstrip("/")
        self.trick: Trick = lambda answer: None
        self.paths: list[str] = []
        """Method and path of each request that came."""
        self.on_body: Callable[[bytes], None] = lambda piece: None
        """Called with each piece of a request's body when it comes."""
        self.stopping = threading.Event()
        handler = type("Handler", (_Handler,), {"hostile": self})
        self._server = QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End, also in the middle of an endless answer."""
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def stand_before(self, context: Context) -> None:
        """Serve for a scenario, in place of the API."""
        self.start()
        context.add_cleanup(self.stop)
        os.environ["ANTHROPIC_BASE_URL"] = self.url
        context.hostile = self

    def drip(self, piece: bytes) -> Iterator[bytes]:
        """The same piece again and again, for ever."""
        while not self.stopping.wait(0.5):
            yield piece


class _Handler(BaseHTTPRequestHandler):
    hostile: HostileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _serve(self) -> None:
        hostile = self.hostile
        hostile.paths.append(f"{self.command} {self.path}")
        body = b"".join(self._pieces())
        sent = {name.lower(): value for name, value in self.headers.items()}
        passed = {k: v for k, v in sent.items() if k not in ("host", "accept-encoding")}
        if sent.get("authorization", "").startswith("Basic "):
            # As a gateway that knows its users by passwords, and has a key of its own.
            passed["x-api-key"] = "sk-of-the-gateway"
            del passed["authorization"]
        request = urllib.request.Request(
            hostile.upstream + self.path, data=body or None, headers=passed, method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                answer = self._answer(response.status, response.headers, response.read(), sent)
        except urllib.error.HTTPError as error:
            answer = self._answer(error.code, error.headers, error.read(), sent)
        hostile.trick(answer)
        try:
            self._send(answer)
        except OSError:
            self.close_connection = True

    def _pieces(self) -> Iterator[bytes]:
        rest = int(self.headers.get("content-length") or 0)
        while rest and (piece := self.rfile.read1(min(rest, 65536))):
            rest -= len(piece)
            self.hostile.on_body(piece)
            yield piece

    def _answer(self, status: int, headers: Any, body: bytes, sent: dict[str, str]) -> Answer:
        kept = {k.lower(): v for k, v in headers.items() if k.lower() not in _OWN}
        kept["date"] = self.date_time_string(int(time.time()))
        return Answer(self.command, self.path, status, kept, body, sent)

    def _send(self, answer: Answer) -> None:
        for piece in answer.before() if answer.before is not None else ():
            self.wfile.write(piece)
            self.wfile.flush()
        lines = [f"HTTP/1.1 {answer.status} Whatever"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.pieces is None:
            lines.append(f"content-length: {len(answer.body)}")
        else:
            lines.append("connection: close")
            self.close_connection = True
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if answer.pieces is None:
            self.wfile.write(answer.body)
            return
        for piece in answer.pieces():
            self.wfile.write(piece)
            self.wfile.flush()

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the names that the base class calls
