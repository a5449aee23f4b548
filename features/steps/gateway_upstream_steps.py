"""Steps for the gateway before an API that fails, is slow, or means harm."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
from behave import given, then, when
from behave.runner import Context
from click.testing import CliRunner
from gateway_steps import restart, stop_timed
from hostile_server import Answer, HostileServer
from staging import KEY, until
from tables import rule

from claude_batch.cli.app import group
from claude_batch.wire.connection import MOST_BODY_BYTES

HALF = 4 << 20
"""Bytes of half a file: more than all buffers between its two ends."""

PATIENCE = 20.0
"""Seconds after which a half that has not come fails the test."""

RESULTS = "/v1/messages/batches/msgbatch_1/results"


@given("a server that means harm, between the gateway and the API")
def _(context: Context) -> None:
    server = context.hostile = HostileServer(context.api.url)
    server.start()
    context.add_cleanup(server.stop)
    os.environ["ANTHROPIC_BASE_URL"] = server.url
    restart(context)


def _client(context: Context) -> httpx2.Client:
    token = context.gateway_tokens["ann"]
    headers = {
        "x-api-key": token,
        "authorization": f"Bearer {token}",
        "cookie": f"session={token}",
        "claude-batch-label": "a label",
        "anthropic-beta": "files-api-2025-04-14",
    }
    url = context.gateway.url
    return httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False)


# Failures -----------------------------------------------------------------------------------------


def _closes(answer: Answer) -> None:
    def fail() -> Iterator[bytes]:
        raise OSError
        yield b""

    answer.before = fail


def _ends_early(answer: Answer) -> None:
    answer.status = 200
    answer.headers["content-length"] = "1000000"
    answer.pieces = lambda: iter([answer.body])


def _redirects(answer: Answer) -> None:
    answer.status = 307
    answer.headers["location"] = "https://elsewhere.test/v1/models"


def _repeats_the_key(answer: Answer, status: int = 400, opinion: str = "odd") -> None:
    answer.status = status
    answer.headers["request-id"] = answer.headers["set-cookie"] = KEY
    message = f"{answer.sent['authorization']} is {opinion}"
    answer.change({"type": "error", "error": {"type": "invalid_request_error", "message": message}})


def _praises_the_key(answer: Answer) -> None:
    _repeats_the_key(answer, 200, "fine")


def _is_too_large(answer: Answer) -> None:
    answer.status = 200
    answer.body = b" " * (MOST_BODY_BYTES + 1)
    answer.compress()


FAULTS = {
    "closes": _closes,
    "ends early": _ends_early,
    "redirects": _redirects,
    "repeats the key": _repeats_the_key,
    "praises the key": _praises_the_key,
    "is too large": _is_too_large,
}


@rule("the gateway's responses to a failing API are")
def _(context: Context, fault: str, call: str) -> dict[str, Any]:
    def trick(answer: Answer) -> None:
        if f"{answer.method} {answer.path}" == call:
            FAULTS[fault](answer)

    context.hostile.trick = trick
    context.hostile.paths.clear()
    method, path = call.split()
    with _client(context) as http:
        response = http.request(method, path, content=b"{}" if method == "POST" else None)
    assert KEY not in response.text and KEY not in str(response.headers), response.text
    assert not {"set-cookie", "location"} & response.headers.keys(), response.headers
    assert context.hostile.paths.count(call) == 1, context.hostile.paths
    return {
        "status": response.status_code,
        "retry": response.headers.get("x-should-retry", ""),
        "words": response.json()["error"]["message"],
    }


@when('the gateway ends while the API is silent about "{call}"')
def _(context: Context, call: str) -> None:
    def trick(answer: Answer) -> None:
        if f"{answer.method} {answer.path}" == call:
            context.hostile.stopping.wait(PATIENCE)

    context.hostile.trick = trick
    method, path = call.split()

    def ask() -> None:
        with _client(context) as http:
            context.gateway_response = http.request(method, path, content=b"{}")

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: call in context.hostile.paths)
    context.gateway_ended = stop_timed(context)
    asking.join()


@then('the call has been answered with {status:d}, and "{retry}" in x-should-retry')
def _(context: Context, status: int, retry: str) -> None:
    response = context.gateway_response
    found = response.status_code, response.headers["x-should-retry"]
    assert found == (status, retry), (found, response.text)


# Streams ------------------------------------------------------------------------------------------


@when("a file is uploaded whose second half is sent when the API has the first")
def _(context: Context) -> None:
    came = bytearray()
    has_half = threading.Event()

    def on_body(piece: bytes) -> None:
        came.extend(piece)
        if len(came) >= HALF:
            has_half.set()

    def keep(answer: Answer) -> None:
        if answer.path == "/v1/files":
            context.gateway_upload_headers = answer.sent

    def halves() -> Iterator[bytes]:
        yield context.gateway_upload[:HALF]
        assert has_half.wait(PATIENCE), f"{len(came)} bytes came"
        yield context.gateway_upload[HALF:]

    context.hostile.on_body, context.hostile.trick = on_body, keep
    head = '--edge\r\ncontent-disposition: form-data; name="file"; filename="a.bin"\r\n'
    data = bytes(range(256)) * (2 * HALF // 256)
    whole = f"{head}content-type: application/octet-stream\r\n\r\n".encode() + data
    context.gateway_upload = whole + b"\r\n--edge--\r\n"
    context.gateway_uploaded = came
    headers = {
        "content-type": "multipart/form-data; boundary=edge",
        "content-length": str(len(context.gateway_upload)),
    }
    with _client(context) as http:
        response = http.post("/v1/files", content=halves(), headers=headers)
    assert response.status_code == 200, response.text


@then(
    "the API has got the upload byte for byte, with the gateway's key and no header of the caller's"
)
def _(context: Context) -> None:
    assert bytes(context.gateway_uploaded) == context.gateway_upload
    headers = context.gateway_upload_headers
    assert headers["content-type"] == "multipart/form-data; boundary=edge", headers
    assert headers["anthropic-beta"] == "files-api-2025-04-14", headers
    assert headers["authorization"] == f"Bearer {KEY}", headers
    assert headers["host"] in context.hostile.url, headers
    assert not {"x-api-key", "cookie", "claude-batch-label"} & headers.keys(), headers
    assert context.gateway_tokens["ann"] not in str(headers), headers


@then('the second half of "{path}" is sent when the caller has the first')
def _(context: Context, path: str) -> None:
    has_half = threading.Event()

    def halves() -> Iterator[bytes]:
        yield b"a" * HALF
        if has_half.wait(PATIENCE):
            yield b"b" * HALF

    def trick(answer: Answer) -> None:
        if answer.path == path:
            answer.status, answer.pieces = 200, halves

    context.hostile.trick = trick
    came = bytearray()
    with _client(context) as http, http.stream("GET", path) as response:
        for piece in response.iter_raw():
            came.extend(piece)
            if len(came) >= HALF:
                has_half.set()
    assert bytes(came) == b"a" * HALF + b"b" * HALF, len(came)


@then("a download that the API ends early is aborted")
def _(context: Context) -> None:
    def trick(answer: Answer) -> None:
        if answer.path == RESULTS:
            _ends_early(answer)

    context.hostile.trick = trick
    with _client(context) as http, contextlib.suppress(httpx2.RemoteProtocolError):
        raise AssertionError(http.get(RESULTS))


# Its own address ----------------------------------------------------------------------------------


@then('a gateway whose API is the gateway itself is refused with "{words}"')
def _(context: Context, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ["ANTHROPIC_API_KEY"] = KEY
    os.environ["ANTHROPIC_BASE_URL"] = f"http://localhost:{port}"
    done = CliRunner().invoke(group, ["gateway", "--port", str(port)])
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
