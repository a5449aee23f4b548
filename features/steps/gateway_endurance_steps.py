"""Steps for calls that wait long, on a simulated clock, and in large numbers."""

from __future__ import annotations

import asyncio
import itertools
import resource
import selectors
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from behave import given, then, when
from behave.runner import Context
from cli_steps import keep_end
from gateway_steps import body_of
from pages import page
from sqlalchemy import func, select
from staging import ledger_values, memory_of, start_api, until

from claude_batch.gateway.gateway_app import GatewayApp
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.ledger.schema import batches, requests

# A simulated clock


class _Jumping(selectors.DefaultSelector):
    """A selector that does not wait: it moves the clock of its loop on instead."""

    ahead = 0.0
    jumps = True

    def select(self, timeout: float | None = None) -> Any:
        if not self.jumps or timeout is None:
            return super().select(timeout)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.ahead += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Jumping) -> None:
        super().__init__(selector)
        self._jumping = selector

    def time(self) -> float:
        return super().time() + self._jumping.ahead


@dataclass
class _Connection:
    """One call of the application, without a server."""

    body: bytes
    times: list[float] = field(default_factory=list[float])
    """When bytes were sent, by the loop's clock."""
    received: bytes = b""
    begun: float = 0.0

    async def serve(self, app: GatewayApp) -> None:
        loop = asyncio.get_running_loop()
        left = [{"type": "http.request", "body": self.body, "more_body": False}]
        self.begun = loop.time()

        async def receive() -> Any:
            return left.pop() if left else await loop.create_future()

        async def send(message: Any) -> None:
            self.times.append(loop.time())
            self.received += message.get("body", b"")

        headers = [(b"host", b"127.0.0.1")]
        path = "/v1/messages"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        await app({**scope, "headers": headers, "query_string": b""}, receive, send)


def _sent() -> int:
    """How many requests are in batches that the API has accepted."""
    at_api = requests.join(batches, batches.c.id == requests.c.batch_id)
    query = select(func.count()).select_from(at_api).where(batches.c.state == "in_progress")
    return ledger_values(query)[0]


@when("{count:d} calls wait for {hours:d} hours of the gateway's simulated clock")
def _(context: Context, count: int, hours: int) -> None:
    context.gateway.stop()
    connections = [_Connection(body_of(f"question {n}", stream=n % 2 == 0)) for n in range(count)]
    selector = _Jumping()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        app = GatewayApp(Gateway(context.gateway_provider, context.gateway_settings))
        serving = [asyncio.create_task(each.serve(app)) for each in connections]
        # Until they are stored and sent, time passes as it does.
        selector.jumps = False
        await asyncio.to_thread(until, lambda: _sent() == count)
        for each in connections:
            each.begun = loop.time()
            each.times.clear()
        selector.jumps = True
        await asyncio.sleep(hours * 3600)
        selector.jumps = False
        context.gateway_signs = [list(each.times) for each in connections]
        context.api.advance_clock(hours * 3600 + 1)
        await asyncio.gather(*serving)
        await app.aclose()

    with asyncio.Runner(loop_factory=lambda: _Loop(selector)) as runner:
        runner.run(wait())
    context.answers = [each.received.decode() for each in connections]


@then("each call has had {count:d} signs of life, at most {seconds:g} seconds apart")
def _(context: Context, count: int, seconds: float) -> None:
    for times in context.gateway_signs:
        gaps = [after - before for before, after in itertools.pairwise(times)]
        # The loop's own clock goes on between two jumps.
        assert max(gaps) <= seconds + 1, max(gaps)
        assert abs(len(times) - count) <= 3, len(times)


# Memory


@then("each of {count:d} waiting calls of {size:d} bytes takes at most {most:d} KiB of a gateway")
def _(context: Context, count: int, size: int, most: int) -> None:
    start_api(context, latency=3600)
    command = [sys.executable, "-m", "claude_batch", "gateway", "--port", "0", "--hold", "1s"]
    start_process(context, command)
    url = urlsplit(context.gateway_url)

    async def open_call(number: int) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        body = body_of(f"{number} " + "x" * size, stream=True)
        head = f"POST /v1/messages HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await reader.readuntil(b"event: ping")
        return writer

    async def memory_of_a_call() -> float:
        # What the first calls import and open is not theirs.
        writers = [await open_call(-1)]
        before = memory_of(context.gateway_process)
        writers += await asyncio.gather(*map(open_call, range(count)))
        grown = memory_of(context.gateway_process) - before
        metrics = await asyncio.to_thread(_metrics, context)
        assert f"calls_waiting {count + 1}.0" in metrics, metrics
        for writer in writers:
            writer.close()
        return grown / count / 1024

    found = asyncio.run(memory_of_a_call())
    assert found <= most, found


def start_process(context: Context, command: list[str]) -> None:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Fewer files than the machine allows, as in a login shell.
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        ),
    )
    assert process.stdout is not None
    context.gateway_process = process
    context.gateway_url = process.stdout.readline().decode().split()[-1]

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    context.add_cleanup(end)


def _metrics(context: Context) -> str:
    with urllib.request.urlopen(context.gateway_url + "/metrics") as response:
        return response.read().decode()


@given("another process serves a gateway of the same ledger")
def _(context: Context) -> None:
    """The calls of a table whose column `at` is "another" go there."""
    settings = (
        "--linger",
        "300ms",
        "--poll-interval",
        "50ms",
        "--hold",
        "300ms",
        "--ping",
        "100ms",
    )
    words = ("gateway", "--port", "0", "--on-disconnect", "drop", *settings)
    start_process(context, [sys.executable, "-m", "claude_batch", *words])


# The page's commands


@when("the commands of docs/how-to/gateway.md are typed, on a free port")
def _(context: Context) -> None:
    """The gateway's in the background, and curl as it stands, by a shell."""
    blocks = [block.code for block in page("docs/how-to/gateway.md").blocks]
    words = next(line for code in blocks for line in code.splitlines() if "--sandbox" in line)
    assert words == "claude-batch gateway --sandbox", words
    curl = next(code for code in blocks if "\ncurl $ANTHROPIC_BASE_URL" in code)
    command = [sys.executable, "-m", "claude_batch", *words.split()[1:], "--port", "0"]
    start_process(context, [*command, "--linger", "100ms"])
    address = context.gateway_url
    assert "127.0.0.1:8788" in curl, curl
    done = subprocess.run(
        ["bash", "-euc", curl.replace("http://127.0.0.1:8788", address)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    keep_end(context, done.returncode, done.stdout, done.stderr)


@then("the gateway may open as many files as this machine allows")
def _(context: Context) -> None:
    pid = context.gateway_process.pid
    with open(f"/proc/{pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    assert soft == hard, line
