"""Steps for the gateway before an API that fails, is slow, or means harm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
from behave import given, then
from behave.runner import Context
from gateway_steps import restart
from hostile_server import Answer, HostileServer
from staging import KEY
from tables import rule

from claude_batch.wire.connection import MOST_BODY_BYTES

HALF = 4 << 20
"""Bytes of half a file: more than all buffers between its two ends."""

PATIENCE = 20.0
"""Seconds after which a half that has not come fails the test."""


@given("a server that means harm, between the gateway and the API")
def _(context: Context) -> None:
    HostileServer(context.api.url).stand_before(context)
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


def _names_a_file(answer: Answer) -> None:
    _praises_the_key(answer)
    answer.headers["content-disposition"] = "filename=日本".encode().decode("latin-1")


def _names_a_file_in_latin_1(answer: Answer) -> None:
    _praises_the_key(answer)
    answer.headers["content-disposition"] = "filename=café"


def _has_a_control(answer: Answer) -> None:
    _praises_the_key(answer)
    answer.headers["content-disposition"] = "filename=\x07"


def _has_status_999(answer: Answer) -> None:
    _praises_the_key(answer)
    answer.status = 999


FAULTS = {
    "closes": _closes,
    "ends early": _ends_early,
    "redirects": _redirects,
    "repeats the key": _repeats_the_key,
    "praises the key": _praises_the_key,
    "is too large": _is_too_large,
    "names a file in UTF-8": _names_a_file,
    "names a file in Latin-1": _names_a_file_in_latin_1,
    "has a control character": _has_a_control,
    "has the status 999": _has_status_999,
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
        try:
            response = http.request(method, path, content=b"{}" if method == "POST" else None)
        except httpx2.RemoteProtocolError:
            return {"status": "aborted", "retry": "", "words": ""}
    assert KEY not in response.text and KEY not in str(response.headers), response.text
    assert not {"set-cookie", "location"} & response.headers.keys(), response.headers
    assert context.hostile.paths.count(call) == 1, context.hostile.paths
    return {
        "status": response.status_code,
        "retry": response.headers.get("x-should-retry", ""),
        "words": response.json()["error"]["message"],
        "file": response.headers.get("content-disposition", ""),
    }


# Streams ------------------------------------------------------------------------------------------


@then("the second half of an upload is sent when the API has the first, with the headers")
def _(context: Context) -> None:
    came = bytearray()
    has_half = threading.Event()

    def on_body(piece: bytes) -> None:
        came.extend(piece)
        if len(came) >= HALF:
            has_half.set()

    sent: dict[str, str] = {}

    def keep(answer: Answer) -> None:
        if answer.path == "/v1/files":
            sent.update(answer.sent)

    def halves() -> Iterator[bytes]:
        yield upload[:HALF]
        assert has_half.wait(PATIENCE), f"{len(came)} bytes came"
        yield upload[HALF:]

    context.hostile.on_body, context.hostile.trick = on_body, keep
    head = '--edge\r\ncontent-disposition: form-data; name="file"; filename="a.bin"\r\n'
    data = bytes(range(256)) * (2 * HALF // 256)
    whole = f"{head}content-type: application/octet-stream\r\n\r\n".encode() + data
    upload = whole + b"\r\n--edge--\r\n"
    headers = {
        "content-type": "multipart/form-data; boundary=edge",
        "content-encoding": "identity",
        "content-length": str(len(upload)),
    }
    with _client(context) as http:
        response = http.post("/v1/files", content=halves(), headers=headers)
    assert response.status_code == 200, response.text
    assert bytes(came) == upload, len(came)
    assert sent["host"] in context.hostile.url, sent
    assert context.gateway_tokens["ann"] not in str(sent), sent
    for row in context.table:
        found = sent.get(row["header"], "(none)").replace(KEY, "<own key>")
        assert found == row["value"], (row["header"], found)


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
