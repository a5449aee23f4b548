"""Steps of the connection: what it sends, beside what the official SDK sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from unittest import mock

import anthropic
import httpx2
from behave import given, then, when
from behave.runner import Context
from fuzzing.network import Network
from hostile_server import QuietServer
from tables import rule

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.wire.batches_client import ApiError, BatchesClient, Outage
from claude_batch.wire.connection import Connection, Unreachable
from claude_batch.wire.error_table import fault_of_response
from claude_batch.wire.inbound import Redaction

_PATH = "/v1/messages"
_OF_CREDENTIALS = ("ANTHROPIC_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@given("a server that records the head of each call")
def _(context: Context) -> None:
    context.heads = heads = []

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            heads.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = QuietServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context.add_cleanup(server.server_close)
    context.add_cleanup(server.shutdown)
    context.recorder = f"127.0.0.1:{server.server_port}"
    before = dict(os.environ)
    context.add_cleanup(lambda: (os.environ.clear(), os.environ.update(before)))
    for name in before:
        if name.upper().startswith(_OF_CREDENTIALS):
            del os.environ[name]


@given("the environment of the connection:")
def _(context: Context) -> None:
    for variable, value in context.table:
        if variable:
            value = value.replace("THERE", context.recorder).replace("HERE", str(context.tmp))
            os.environ[variable] = value.replace("\\n", "\n")


@given('the profile "{name}" with the token "{token}" and the workspace "{workspace}"')
def _(context: Context, name: str, token: str, workspace: str) -> None:
    written = {
        "configs": {"authentication": {"type": "user_oauth"}, "workspace_id": workspace},
        "credentials": {"access_token": token, "expires_at": time.time() + 3600},
    }
    for folder, content in written.items():
        file = context.tmp / folder / f"{name}.json"
        file.parent.mkdir(mode=0o700)
        file.write_text(json.dumps(content))
        file.chmod(0o600)


async def _send(base_url: str) -> None:
    connection = Connection(base_url=base_url)
    try:
        await connection.send("POST", _PATH, content=b"{}")
    finally:
        await connection.aclose()


@when("the connection and the SDK each send a call")
def _(context: Context) -> None:
    url = os.environ.get("ANTHROPIC_BASE_URL", f"http://{context.recorder}")

    async def send() -> None:
        await _send(url)
        async with anthropic.AsyncAnthropic(base_url=url, max_retries=0) as sdk:
            await sdk.post(_PATH, cast_to=httpx2.Response, content=b"{}")

    asyncio.run(send())


@then("both calls have the same path and these same headers:")
def _(context: Context) -> None:
    (path, ours), (expected, sdks) = context.heads
    assert path == expected, (path, expected)
    for [name] in context.table:
        assert ours.get(name) == sdks.get(name), (name, ours.get(name), sdks.get(name))
    # One of them is there at least, or the server has recorded something else.
    assert any(name in sdks for [name] in context.table), sdks


@rule("connections have credentials")
def _(key: str | None) -> str:
    """A key in quotation marks, which may be empty; else none."""
    given = None if key is None else key.strip('"')
    credential = Connection(base_url="http://127.0.0.1:1", api_key=given).credential
    return credential if key is None else f'"{credential}"'


@rule("base URLs are written")
def _(given: str) -> dict[str, str]:
    sdk = anthropic.Anthropic(base_url=given, api_key="sk-of-key")
    ours = Connection(base_url=given, api_key="sk-of-key")
    return {"by_us": ours.base_url, "by_the_SDK": str(sdk.base_url)}


@rule("the targets of calls are")
def _(context: Context, host: str, no_proxy: str) -> str:
    os.environ["no_proxy"] = no_proxy
    asyncio.run(_send(f"http://{host.replace('THERE', context.recorder)}"))
    path: str = context.heads.pop()[0]
    return path


@rule("the API's clock and the workspace are noted")
def _(answer: str) -> dict[str, object]:
    status, _, sender = answer.partition(" of ")
    date = formatdate(time.time() + 7200, usegmt=True)
    error = b'{"type":"error","error":{"type":"not_found_error","message":"m"}}'
    body = b'{"data":[]}' if status == "success" else error
    head = f"HTTP/1.1 {200 if status == 'success' else status} X\r\nDate: {date}\r\n"
    own = "anthropic-workspace-id: wrkspc_1\r\nrequest-id: req_1\r\n" if sender == "the API" else ""

    async def ask() -> BatchesClient:
        async with Network() as network:
            network.answer = f"{head}{own}Content-Length: {len(body)}\r\n\r\n".encode() + body
            with contextlib.suppress(ApiError):
                await network.client.has_file("file_1")
            return network.client

    client = asyncio.run(ask())
    return {"hours_ahead": round(client.clock_offset / 3600), "workspace": client.workspace}


@rule("calls of the API that end so are reported")
def _(ends: str) -> dict[str, object]:
    """Each end is a call's minute and what came: an answer, a proxy's 502, a fault; also live."""
    outage = Outage("http://there/")
    with (
        mock.patch("claude_batch.wire.batches_client._log") as log,
        mock.patch("time.monotonic") as clock,
    ):
        for each in ends.split(", "):
            at, came = each.split(" ", 1)
            clock.return_value = 1000.0 + 60.0 * float(at)
            outage.note(_ENDS[came.removeprefix("live ")], live=came.startswith("live "))
        lines = [call.args[0] % call.args[1:] for call in log.method_calls]
        return {"log": "; ".join(lines), "not_ready": outage.why() or ""}


_OVERLOADED = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
_PLAIN = Redaction.of("http://there")
_ENDS = {
    "answer": None,
    "busy": ApiError(fault_of_response(529, {"request-id": "req_1"}, _OVERLOADED, _PLAIN)),
    "502": ApiError(fault_of_response(502, {}, b"Bad Gateway", _PLAIN)),
    "fault": Unreachable("ConnectError"),
}


@rule("messages are shown with a header of one's own")
def _(header: str, message: str) -> dict[str, str]:
    os.environ["ANTHROPIC_CUSTOM_HEADERS"] = header
    redaction = Connection(api_key="sk-of-key").redaction
    return {
        "shown": redaction.text(message),
        "in_answers": redaction.answer(message.encode()).decode(),
    }


@rule("calls with a setting of the environment end")
def _(variable: str, value: str) -> str:
    written = value.replace("\\n", "\n")
    os.environ |= {"ANTHROPIC_BASE_URL": "https://api.invalid", variable: written}

    async def send() -> str:
        connection = Connection(api_key="sk-of-key")
        try:
            await connection.send("GET", _PATH)
        except Unreachable as error:
            return error.reason
        finally:
            await connection.aclose()
        raise AssertionError("the call was answered")

    try:
        words = asyncio.run(send())
    except ActorConfigurationError as error:
        words = f"{type(error).__name__}: {error}"
    finally:
        del os.environ[variable]
    assert written not in words and "word" not in words, words
    return words


@when('Python imports "{module}"')
def _(context: Context, module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    context.modules = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


@then('the module "{module}" is not imported')
def _(context: Context, module: str) -> None:
    assert context.modules and module not in context.modules
