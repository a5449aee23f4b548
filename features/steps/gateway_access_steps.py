"""Steps for who may call the gateway, and how much."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import stat
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import httpx2
from behave import given, then, when
from behave.runner import Context
from gateway_steps import body_of, connect, head_of
from sqlalchemy import select
from staging import KEY, ledger_values, until
from tables import equals, rule

import claude_batch as cb
from claude_batch import serving
from claude_batch.gateway import GatewaySettings, asgi
from claude_batch.gateway.access import TokenFile
from claude_batch.gateway.gateway_app import GatewayServer
from claude_batch.gateway.passthrough import BATCHES
from claude_batch.ledger.schema import batches


def _ask(context: Context, path: str, headers: dict[str, str], content: Any = None) -> Any:
    method = "POST" if path.endswith("messages") or path.startswith("/v1/") else "GET"
    own = {"<own key>": KEY}
    own |= {f"<{name}>": token for name, token in getattr(context, "gateway_tokens", {}).items()}
    for word, secret in own.items():
        headers = {name: value.replace(word, secret) for name, value in headers.items()}
    body = (
        (body_of(path, stream=False) if content is None else content) if method == "POST" else None
    )
    # As bytes: clients refuse to send some of them.
    sent = [(name, value.encode("latin-1")) for name, value in headers.items()]
    with httpx2.Client(base_url=context.gateway.url, timeout=60, trust_env=False) as http:
        return http.request(method, path, headers=[(n.encode(), v) for n, v in sent], content=body)


@rule("the gateway's responses to callers are")
def _(context: Context, path: str, headers: dict[str, str]) -> dict[str, Any]:
    response = _ask(context, path, headers)
    failed = response.status_code >= 400
    assert not failed or response.headers["content-type"] == "application/json", response
    words = response.json()["error"]["message"] if failed else ""
    assert KEY not in response.text
    others = [name for name in response.headers if name.startswith("access-control")]
    return {"status": response.status_code, "words": words, "other_origins": " ".join(others)}


@rule("the gateway starts with settings")
def _(settings: dict[str, Any]) -> None:
    with cb.ClaudeBatchProvider() as provider:
        GatewayServer(provider, GatewaySettings(port=0, **settings)).start()


@rule("the gateway's responses to methods are")
def _(context: Context, method: str, path: str) -> dict[str, Any]:
    with httpx2.Client(base_url=context.gateway.url, timeout=60, trust_env=False) as http:
        response = http.request(method, path)
    allowed = ", ".join(each for each in response.headers["allow"].split(", ") if each != "HEAD")
    assert response.headers["x-should-retry"] == "false", response.headers
    kind = response.json()["error"]["type"]
    return {"status": response.status_code, "allowed": allowed, "type": kind}


@when("{name}'s token is removed from the file")
def _(context: Context, name: str) -> None:
    path = context.gateway_settings.tokens
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(name)))


@then("the file of tokens has mode 600, and contains none of them")
def _(context: Context) -> None:
    path = context.gateway_settings.tokens
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for token in context.gateway_tokens.values():
        assert token not in path.read_text() and token[4:] not in path.read_text()


# Bodies


@rule("the gateway's responses to bodies are")
def _(
    context: Context,
    bytes: int,
    announced: bool,
    held: int,
    path: str = "/v1/messages",
    seconds: float = 0,
) -> dict[str, Any]:
    """A body that takes so many seconds comes in ten pieces."""
    body = body_of(f"{bytes}", stream=False)
    padded = body.replace(b"{", b"{" + b" " * (bytes - len(body)), 1)
    limits = context.gateway.gateway.bodies
    limits.held += held
    # It sends the whole body before it reads, and loses a response that comes with a reset.
    client = HTTPConnection(urlsplit(context.gateway.url).netloc, timeout=60)
    try:
        if seconds:
            size = -(-len(padded) // 10)
            sent = iter(
                time.sleep(seconds / 10) or padded[at : at + size]
                for at in range(0, len(padded), size)
            )
        else:
            sent = padded if announced else iter((padded[:1000], padded[1000:]))
        client.request(
            "POST", path, sent, {"content-length": f"{len(padded)}"} if announced else {}
        )
        response = client.getresponse()
        value = json.loads(response.read())
    finally:
        limits.held -= held
        client.close()
    kind = value["error"]["type"] if response.status >= 400 else ""
    return {"status": response.status, "type": kind}


@when("the gateway gets {part}, and nothing more for {seconds:g} seconds")
def _(context: Context, part: str, seconds: float) -> None:
    head = head_of(context, 100)
    sent = {"no byte": b"", "a line break": b"\r\n", "half a head": head[:-2]}
    sent["half a refused body"] = head.replace(b"messages", b"nothing") + b"{" * 50
    with mock.patch.object(asgi, "PATIENCE", seconds), connect(context) as connection:
        connection.sendall(sent.get(part, head + b"{" * 50))
        context.gateway_answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@rule("the gateway's responses over HTTP/1.0 are")
def _(context: Context, prompt: str, stream: bool) -> dict[str, Any]:
    body = body_of(prompt, stream)
    received, end = b"", ""
    with connect(context, 60) as connection:
        connection.sendall(head_of(context, len(body), version="1.0") + body)
        try:
            while piece := connection.recv(65536):
                received += piece
        except ConnectionResetError:
            end = "reset"
    heading, _, answer = received.partition(b"\r\n\r\n")
    status, *lines = heading.decode().lower().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    if not end and " 200 " in status:
        assert b"message_stop" in answer if stream else json.loads(answer)["content"], answer
        end = "whole"
    return {
        "connection": headers["connection"],
        "chunked": "transfer-encoding" in headers,
        "end": end or status.split()[1],
    }


@rule("the gateway's responses to calls that offer HTTP/2 in pieces are")
def _(context: Context, cut_at: str) -> dict[str, str]:
    """Two calls over one connection, whose bytes are cut where a pattern fits."""
    body = body_of("\\r\\n", stream=False).decode()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    head = head_of(context, len(body), *offer).decode()
    statuses: list[str] = []
    with connect(context, 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            for piece in filter(None, re.split(cut_at, head + body)):
                connection.sendall(piece.encode())
                time.sleep(0.002)
            with contextlib.suppress(TimeoutError):
                response = HTTPResponse(connection)
                response.begin()
                response.read()
                statuses.append(str(response.status))
    return {"statuses": " ".join(statuses)}


@rule("the gateway's responses to heads are")
def _(
    context: Context, before: str, url: int, headers: int, bytes: int, trailers: int, pieces: int
) -> dict[str, Any]:
    """The statuses of all responses, and the type of the last one's error.

    The head has ``headers`` of so many ``bytes`` each, and comes in so many ``pieces`` after the
    calls ``before``, such as `3 calls at once`. With ``trailers`` it is that of a body in chunks.
    """
    host = f"host: {urlsplit(context.gateway.url).netloc}\r\n".encode()
    line = b"x-line: %b\r\n" % (b"a" * (bytes - len("x-line: \r\n")))
    path = b"/healthz?".ljust(url, b"a")
    sent = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path, host, line * headers)
    if trailers:
        body = body_of("trailers", stream=False)
        sent = b"POST /v1/messages HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n" % host
        # The first would be refused as a header.
        lines = b"claude-batch-mode: fast\r\n%b" % (line * (trailers - 1))
        sent += b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, lines)
    count = int(before.split()[0]) if before else 0
    earlier = (b"GET /healthz HTTP/1.1\r\n%b\r\n" % host) * count
    came = b""
    with connect(context) as connection, contextlib.suppress(ConnectionError):
        if earlier and "at once" not in before:
            connection.sendall(earlier)
            while came.count(b"\r\n\r\nok\n") < count:
                came += connection.recv(65536)
            earlier = b""
        sent = earlier + sent
        size = -(-len(sent) // pieces)
        for at in range(0, len(sent), size):
            connection.sendall(sent[at : at + size])
            if pieces > 1:
                time.sleep(0.01)
        while piece := connection.recv(65536):
            came += piece
            if came.count(b"\r\n\r\nok\n") > count or b'"type":"message"' in came:
                break
    _, _, last = came.rpartition(b"\r\n\r\n")
    error = json.loads(last).get("error", {}) if last.startswith(b"{") else {}
    statuses = re.findall(rb"^HTTP/1.1 (\d+)", came, re.MULTILINE)
    return {"statuses": b" ".join(statuses).decode(), "type": error.get("type", "")}


@rule("the gateway's responses to nested bodies are")
def _(context: Context, levels: int, bytes: int) -> dict[str, int]:
    asked = body_of("deep" + "x" * bytes, stream=False)
    nested = b', "metadata": {"user_id": ' + b"[" * (levels - 2) + b"]" * (levels - 2) + b"}}"
    return {"status": _ask(context, "/v1/messages", {}, asked[:-1] + nested).status_code}


@rule("the gateway's responses to a field of a body are")
def _(context: Context, field: str, value: str) -> dict[str, Any]:
    """The value is JSON, and is sent as it is written."""
    asked = json.loads(body_of("one", stream=False))
    asked.pop(field, None)
    body = f'{json.dumps(asked)[:-1]}, "{field}": {value}}}'.encode()
    response = _ask(context, "/v1/messages", {}, body)
    kind = response.headers["content-type"].partition(";")[0]
    words = response.json()["error"]["message"] if response.status_code >= 400 else ""
    return {"status": response.status_code, "type": kind, "words": words}


@when("the gateway gets a byte of a body every {pause:g} seconds, for at least {seconds:g} second")
def _(context: Context, pause: float, seconds: float) -> None:
    with mock.patch.object(asgi, "PATIENCE", seconds), connect(context) as connection:
        connection.sendall(head_of(context, 1000))
        connection.settimeout(pause)
        answer = b""
        while not answer:
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65536)
        context.gateway_answer = answer.decode()


@rule("what bob gets of the ledger's batches is")
def _(context: Context, method: str, path: str) -> dict[str, Any]:
    [batch_id] = ledger_values(select(batches.c.remote_id))
    own = {"x-api-key": context.gateway_tokens["bob"]}
    address = f"/v1/messages/batches/{batch_id}{path}".removesuffix("/") if path else BATCHES
    with httpx2.Client(base_url=context.gateway.url, timeout=60, trust_env=False) as http:
        response = http.request(method, address, headers=own)
    listed = "" if path else str(len(response.json()["data"]))
    return {"status": response.status_code, "batches": listed}


@when("the gateway's engine meets an error")
def _(context: Context) -> None:
    engine = context.gateway.gateway.provider.engine()
    engine._loop.run(engine._guard(_fails())).result(20)


async def _fails() -> None:
    raise RuntimeError("a surprise")


@given("the file of tokens has no line break at its end")
def _(context: Context) -> None:
    path = context.gateway_settings.tokens
    path.write_text(path.read_text().rstrip())


@then("the file of tokens names {names}")
def _(context: Context, names: str) -> None:
    assert TokenFile(context.gateway_settings.tokens).names == set(names.split(" and "))


# Metrics and readiness


def _metrics(context: Context) -> dict[str, float]:
    lines = _ask(context, "/metrics", {}).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@then("the gateway's metrics are")
def _(context: Context) -> None:
    wanted = {row["metric"]: float(row["value"]) for row in context.table}

    def found() -> dict[str, float]:
        values = _metrics(context)
        return {name: round(values.get(name, -1), 9) for name in wanted}

    until(lambda: found() == wanted, 20)


@when("the gateway begins to end")
def _(context: Context) -> None:
    context.gateway.gateway.end()


@then('"{path}" is {status:d} with "{words}"')
def _(context: Context, path: str, status: int, words: str) -> None:
    def found() -> bool:
        response = _ask(context, path, {})
        return response.status_code == status and equals(response.text, f"{words}\n")

    until(found, 20)


@contextlib.contextmanager
def _full_disk() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _no_threads() -> Any:
    none = mock.Mock(side_effect=RuntimeError("can't start new thread"))
    return mock.patch.object(serving, "threading", mock.Mock(Thread=none))


_LACKS = {"its disk is full": _full_disk, "no thread can start": _no_threads}


@then('the gateway is not ready while {what}, because "{words}"')
def _(context: Context, what: str, words: str) -> None:
    assert _ask(context, "/readyz", {}).status_code == 200
    with _LACKS[what]():
        response = _ask(context, "/readyz", {})
    assert response.status_code == 503, response.text
    assert fnmatchcase(response.text, words.replace("…", "*") + "*"), response.text
    until(lambda: _ask(context, "/readyz", {}).status_code == 200)


@then(
    "three probes of a gateway whose ledger does not answer are 503 within {seconds:d} seconds, "
    "by one question"
)
def _(context: Context, seconds: int) -> None:
    answers, asked = threading.Event(), list[None]()

    def why(_: object) -> None:
        asked.append(None)
        answers.wait(60)

    begun = time.monotonic()
    with (
        mock.patch.object(cb.ClaudeBatchProvider, "why_not_sending", why),
        ThreadPoolExecutor() as pool,
    ):
        try:
            responses = list(pool.map(lambda _: _ask(context, "/readyz", {}), range(3)))
        finally:
            answers.set()
    assert time.monotonic() - begun < seconds
    assert [each.status_code for each in responses] == [503] * 3
    assert {each.text for each in responses} == {"the ledger has not answered for 3 s\n"}
    assert len(asked) == 1, asked
