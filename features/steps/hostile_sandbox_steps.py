"""Steps of callers who mean the sandbox harm: over raw connections, since no client would do so."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from typing import Any

from behave import given, then
from behave.runner import Context
from cli_steps import bytes_of
from staging import until
from tables import rule

from claude_batch.sandbox import SandboxServer, SandboxSettings, create_app

HEADERS = {
    "x-api-key": "sk-test",
    "anthropic-version": "2026-10-21",
    "content-type": "application/json",
}
ADMIN = ("healthz", "billing", "log", "faults", "faults/counters", "clock")
PARAMS = {
    "model": b'"claude-haiku-4-5"',
    "max_tokens": b"10",
    "messages": b'[{"role": "user", "content": "hi"}]',
}


def _call(
    context: Context,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", context.port, timeout=60)
    try:
        connection.request(method, path, body, {**HEADERS, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@given("a sandbox for strangers")
def _(context: Context) -> None:
    server = SandboxServer(latency=0.0, admin_token="the-token").start()
    context.add_cleanup(server.stop)
    context.sandbox = server
    context.port = int(server.url.rpartition(":")[2])


@rule("a body is answered by every route that takes one")
def _(context: Context, body: str) -> dict[str, str]:
    sent = bytes_of(body)
    form = {"content-type": "multipart/form-data; boundary=x"}
    answers = [
        _call(context, "POST", "/v1/messages", sent),
        _call(context, "POST", "/v1/messages/count_tokens", sent),
        _call(context, "POST", "/v1/messages/batches", sent),
        _call(context, "POST", "/v1/files", sent),
        _call(context, "POST", "/v1/files", sent, form),
        _call(context, "POST", "/sandbox/faults", sent),
        _call(context, "POST", "/sandbox/clock", sent),
    ]
    return {"statuses": " ".join(str(_checked(*answer)) for answer in answers)}


def _written(fields: dict[str, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % (n.encode(), v) for n, v in fields.items()) + b"}"


@rule("params are answered live, when their tokens are counted, and in a batch beside good ones,")
def _(context: Context, field: str, value: str) -> dict[str, Any]:
    fields = {**PARAMS, field: bytes_of(value)}
    params = _written(fields)
    counted = {n: v for n, v in fields.items() if n not in ("max_tokens", field)}
    found: dict[str, Any] = {
        "live": _checked(*_call(context, "POST", "/v1/messages", params)),
        "counted": _checked(
            *_call(
                context,
                "POST",
                "/v1/messages/count_tokens",
                _written({**counted, field: fields[field]}),
            )
        ),
    }
    entry = b'{"requests":[{"custom_id":"a","params":%s},{"custom_id":"b","params":%s}]}'
    good = _written(PARAMS)
    status, told = _call(context, "POST", "/v1/messages/batches", entry % (params, good))
    found["batch"] = _checked(status, told)
    outcomes: dict[str, str] = {}
    if status == 200:
        path = f"/v1/messages/batches/{json.loads(told)['id']}/results"
        until(lambda: _call(context, "GET", path)[0] == 200)
        lines = [json.loads(line) for line in _call(context, "GET", path)[1].splitlines()]
        outcomes = {line["custom_id"]: line["result"]["type"] for line in lines}
    return {**found, "its_result": outcomes.get("a"), "the_good_one": outcomes.get("b")}


@rule("calls with such headers and bodies are answered")
def _(context: Context, call: str, header: str, body: str) -> dict[str, int]:
    method, path = call.split()
    name, _, value = header.partition(": ")
    sent = body.encode().decode("unicode_escape").encode("latin-1")
    path = path.replace("99999…", "9" * 5000)
    return {"status": _checked(*_call(context, method, path, sent or None, {name: value}))}


def _checked(status: int, told: bytes) -> int:
    """The status of an answer, which is one of the API, or an error in the API's words."""
    found = json.loads(told)
    if status != 200:
        assert 400 <= status < 500, (status, told[:200])
        assert found["type"] == "error" and found["error"]["message"], found
    return status


@then("the sandbox still answers, bills and ends batches")
def _(context: Context) -> None:
    params = b"{" + b",".join(b'"%s":%s' % (n.encode(), v) for n, v in PARAMS.items()) + b"}"
    status, told = _call(context, "POST", "/v1/messages", params)
    assert status == 200, told
    body = b'{"requests":[{"custom_id":"a","params":%s}]}' % params
    status, told = _call(context, "POST", "/v1/messages/batches", body)
    assert status == 200, told
    path = f"/v1/messages/batches/{json.loads(told)['id']}"
    until(lambda: json.loads(_call(context, "GET", path)[1])["processing_status"] == "ended")
    assert context.sandbox.billing_summary()["paid"] >= 2
    assert context.sandbox.billing() and context.sandbox.log()


@rule("a body without content is answered")
def _(context: Context, size: int, path: str) -> dict[str, int]:
    status, _ = _call(context, "POST", path, b" " * size)
    return {"status": status}


@rule("a body without an end is read")
def _(context: Context, path: str) -> dict[str, str]:
    with socket.create_connection(("127.0.0.1", context.port), timeout=60) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        head += "transfer-encoding: chunked\r\n"
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}\r\n".encode())
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        try:
            for _ in range(1000):  # a gigabyte: it is answered, or broken off, long before
                connection.sendall(chunk)
        except OSError:
            pass
        else:
            return {"read": "whole"}
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):  # what was not read may take the answer along
            answer = connection.recv(100)
            assert not answer or int(answer.split()[1]) == 413, answer
    return {"read": "in part"}


@rule("a call that announces another length than it sends gets no answer of its own,")
def _(context: Context, announced: str, sent: int) -> dict[str, bool]:
    told = b""
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    with (
        # A server may break off at the head already.
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", context.port), timeout=60) as connection,
    ):
        connection.sendall(
            f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}"
            f"content-length: {announced}\r\n\r\n".encode()
        )
        connection.sendall(b"x" * sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            told += part
    return {"fails": b" 500 " in told or b"Traceback" in told, "succeeds": b" 200 " in told}


@rule("the sandbox's own routes answer a stranger")
def _(context: Context, host: str, header: str) -> dict[str, int]:
    name, _, value = header.partition(": ")
    headers = {"host": host.replace("PORT", str(context.port)), name: value}
    answers = [_call(context, "GET", f"/sandbox/{path}", headers=headers) for path in ADMIN]
    for method, path, body in (
        ("DELETE", "log", None),
        ("POST", "faults", b"{}"),
        ("DELETE", "faults", None),
        ("POST", "clock", b'{"advance": 0}'),
    ):
        answers.append(_call(context, method, f"/sandbox/{path}", body, headers))
    [status] = {status for status, _ in answers}
    if status == 403:
        error = json.loads(answers[0][1])["error"]
        assert error["type"] == "permission_error" and "--admin-token" in error["message"], error
    return {"status": status}


@rule("a call to the sandbox's own routes from an address is answered")
def _(address: str, token: str) -> dict[str, int]:
    app = create_app(SandboxSettings(admin_token="the-token"))
    headers = [(b"host", b"localhost")]
    if token != "none":
        headers.append((b"x-sandbox-token", token.encode()))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/sandbox/log",
        "raw_path": b"/sandbox/log",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None if address == "nowhere" else (address, 1),
        "server": ("localhost", 80),
    }
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(app(scope, receive, send))
    return {"status": told[0]["status"]}
