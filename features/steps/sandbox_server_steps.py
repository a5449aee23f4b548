"""Steps of the sandbox as a server and a command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anthropic
import httpx2
from behave import then, when
from behave.runner import Context
from click.testing import CliRunner
from sandbox_steps import _AUTH, _HTTP, call, contains, equal, params, sdk
from tables import rule

from claude_batch.sandbox import SandboxServer, SandboxSettings, create_app
from claude_batch.sandbox.command import sandbox as sandbox_command
from claude_batch.sandbox.sandbox_settings import parse_duration


def environment() -> dict[str, str]:
    """This process's environment, with the same modules in reach from any directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def launch(context: Context, *options: str, **spawn: Any) -> subprocess.Popen[str]:
    """`python -m claude_batch.sandbox` as a process, ended with the scenario."""
    process = subprocess.Popen(
        [sys.executable, "-m", "claude_batch.sandbox", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **spawn,
    )

    def stop() -> None:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=20)

    context.add_cleanup(stop)
    return process


@when("the sandbox is started as a process with a responder and the options")
def _(context: Context) -> None:
    folder = tempfile.TemporaryDirectory()
    context.add_cleanup(folder.cleanup)
    (Path(folder.name) / "echoes.py").write_text(
        "def reply(params):\n    return 'echo: ' + params['messages'][0]['content']\n"
    )
    options = [
        option for row in context.table for option in (row["option"], row["value"]) if option
    ]
    process = launch(
        context, "--responder", "echoes:reply", *options, cwd=folder.name, env=environment()
    )
    assert process.stdout is not None
    context.sandbox_line = process.stdout.readline().strip()
    context.sandbox_process = process


@then('the sandbox process prints "{line}" and answers "{text}"')
def _(context: Context, line: str, text: str) -> None:
    said, _, port = context.sandbox_line.rpartition(":")
    equal(said, line)
    client = anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0, http_client=_HTTP
    )
    message = client.messages.create(**params("hello"))
    equal(getattr(message.content[0], "text", None), text)


@then("the sandbox process ends well on signal {name}")
def _(context: Context, name: str) -> None:
    context.sandbox_process.send_signal(getattr(signal, name))
    out, err = context.sandbox_process.communicate(timeout=20)
    equal((context.sandbox_process.returncode, out, err), (0, "", ""))


@rule("the sandbox command exits")
def _(context: Context, options: str, plan: str) -> dict[str, object]:
    path = context.tmp / "plan.json"
    path.write_text(plan)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = options.replace("PLAN", str(path)).replace("TAKEN", port)
        run = CliRunner().invoke(sandbox_command, given.split())
    assert type(run.exception) is SystemExit, run.exc_info
    return {"code": run.exit_code, "message": " ".join(run.output.split())}


@rule("the sandbox command without a module exits")
def _(module: str) -> dict[str, object]:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from claude_batch.sandbox.command import sandbox\n"
        "sandbox(['--port', '0'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=environment()
    )
    return {"code": ended.returncode, "message": ended.stderr}


@rule("the sandbox reads durations")
def _(text: str) -> float:
    return parse_duration(text)


@rule("the sandbox starts with settings")
def _(settings: dict[str, Any]) -> SandboxServer:
    return SandboxServer(**settings).start()


@then("the sandbox server tells what it is not")
def _(context: Context) -> None:
    from claude_batch import sandbox as room

    server = SandboxServer(SandboxSettings(latency=1.0))
    for wrong, error in (
        (lambda: server.url, RuntimeError),
        (lambda: SandboxServer(SandboxSettings(), latency=1.0), TypeError),
        (lambda: room.nothing, AttributeError),  # type: ignore[attr-defined]
    ):
        try:
            wrong()
        except error:
            continue
        raise AssertionError(f"no {error.__name__}")
    server.stop()
    with server as running:
        assert running.log() == []
        try:
            running.set_faults({"rulez": []})
        except ValueError as refused:
            contains(str(refused), "rulez")
        else:
            raise AssertionError("the plan was taken")
    for field in SandboxSettings.__dataclass_fields__:
        assert hasattr(server.settings, field)


@then("the sandbox that is stopped while a call hangs drops it at once")
def _(context: Context) -> None:
    host, port = context.sandbox.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /v1/messages/batches HTTP/1.1\r\nhost: x\r\n\r\n")
        deadline = time.monotonic() + 10
        seen = 0
        while not seen:
            assert time.monotonic() < deadline, "the call never came in"
            call(context, "GET", "/sandbox/faults/counters")
            seen = context.sandbox_answer.json()["rules"][0]["seen"]
        context.sandbox.stop()
        with contextlib.suppress(ConnectionResetError):
            equal(connection.recv(1000), b"")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return
    raise AssertionError("the port is still open")


@then("the sandbox listens on IPv6 too, where the machine has it")
def _(context: Context) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return
    with SandboxServer(host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        equal(server.log(), [])


@then("the sandbox under another server says that it cannot drop a connection")
def _(context: Context) -> None:
    import asyncio

    plan = {"rules": [{"route": "list", "action": {"type": "drop_before"}}]}
    app = create_app(SandboxSettings(faults=plan))

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://sandbox") as client:
            return await client.get("/v1/messages/batches")

    try:
        asyncio.run(ask())
    except RuntimeError as error:
        contains(str(error), "SandboxServer")
    else:
        raise AssertionError("nothing was raised")


@then("the sandbox hangs up after {seconds:g} seconds of a hanging call")
def _(context: Context, seconds: float) -> None:
    began = time.monotonic()
    call(context, "GET", "/v1/messages/batches")
    assert isinstance(context.sandbox_failure, httpx2.TransportError), context.sandbox_answer
    assert time.monotonic() - began >= seconds


@then("the sandbox keeps a hanging call until its client gives up")
def _(context: Context) -> None:
    try:
        _HTTP.get(context.sandbox.url + "/v1/messages/batches", headers=_AUTH, timeout=0.2)
    except httpx2.ReadTimeout:
        pass
    else:
        raise AssertionError("the call was answered")
    deadline = time.monotonic() + 10
    while not context.sandbox.log():
        assert time.monotonic() < deadline, "the call never ended"


@then("the sandbox answers a call only after {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    began = time.monotonic()
    call(context, "GET", "/v1/messages/batches")
    equal(context.sandbox_answer.status_code, 200)
    assert time.monotonic() - began >= seconds


@then("the sandbox's date is {seconds:d} seconds from the machine's")
def _(context: Context, seconds: int) -> None:
    from email.utils import parsedate_to_datetime

    told = parsedate_to_datetime(context.sandbox_answer.headers["date"]).timestamp()
    assert abs(told - time.time() - seconds) < 5, context.sandbox_answer.headers["date"]


@then("the official SDK's calls work again")
def _(context: Context) -> None:
    equal(len(list(sdk(context).messages.batches.list())) < 2, True)


@then("the sandbox's upload of {size:d} megabytes meets a 413 or a broken connection")
def _(context: Context, size: int) -> None:
    call(context, "POST", "/v1/messages/batches", b" " * (size * 1_000_000))
    if context.sandbox_answer is None:
        assert isinstance(context.sandbox_failure, httpx2.TransportError)
    else:
        equal(context.sandbox_answer.status_code, 413)


@then("the sandbox draws the same chances for the same seed and others for another")
def _(context: Context) -> None:
    rule = {"route": "list", "probability": 0.5, "action": {"type": "error", "status": 500}}
    drawn: list[list[int]] = []
    for seed in (1, 1, 2):
        context.sandbox.set_faults({"seed": seed, "rules": [rule]})
        statuses: list[int] = []
        for _ in range(24):
            call(context, "GET", "/v1/messages/batches")
            statuses.append(context.sandbox_answer.status_code)
        drawn.append(statuses)
    equal(drawn[0], drawn[1])
    assert drawn[0] != drawn[2], "the same chances under another seed"
    equal(set(drawn[0]), {200, 500})
