"""Steps of the sandbox as a server and a command."""

from __future__ import annotations

import os
import re
import signal as signals
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx2
from behave import then
from behave.runner import Context
from click.testing import CliRunner
from sandbox_steps import _HTTP, call, contains, equal, params
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


@rule("a process of the sandbox with a responder runs")
def _(context: Context, options: str, signal: str) -> dict[str, object]:
    Path(context.tmp, "echoes.py").write_text(
        "def reply(params):\n    return 'echo: ' + params['messages'][0]['content']\n"
    )
    process = launch(
        context,
        *("--responder", "echoes:reply", *options.split()),
        cwd=context.tmp,
        env=environment(),
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    client = anthropic.Anthropic(
        base_url=line.split()[-1], api_key="k", max_retries=0, http_client=_HTTP
    )
    message = client.messages.create(**params("hello"))
    process.send_signal(getattr(signals, signal))
    out, errors = process.communicate(timeout=20)
    return {
        "prints": re.sub(r"\d+$", "PORT", line),
        "answer": getattr(message.content[0], "text", None),
        "code": process.returncode,
        "and_then": out + errors,
    }


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
        address = running.url
        assert running.start().url == address
        try:
            running.set_faults({"rulez": []})
        except ValueError as refused:
            contains(str(refused), "rulez")
        else:
            raise AssertionError("the plan was taken")
    for field in SandboxSettings.__dataclass_fields__:
        assert hasattr(server.settings, field)


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


@then("the sandbox answers {status:d} or drops the connection")
def _(context: Context, status: int) -> None:
    if context.sandbox_answer is None:
        assert isinstance(context.sandbox_failure, httpx2.TransportError)
    else:
        equal(context.sandbox_answer.status_code, status)


@rule("the sandbox draws chances of one half")
def _(context: Context, seed: int) -> str:
    """The statuses of 12 calls, under a fault that happens to half of them."""
    fault = {"route": "list", "probability": 0.5, "action": {"type": "error", "status": 500}}
    context.sandbox.set_faults({"seed": seed, "rules": [fault]})
    statuses: list[str] = []
    for _ in range(12):
        call(context, "GET", "/v1/messages/batches")
        statuses.append(str(context.sandbox_answer.status_code))
    return " ".join(statuses)
