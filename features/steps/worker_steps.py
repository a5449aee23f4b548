"""Steps of `claude-batch worker` and its probes."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import programs
from behave import then, when
from behave.runner import Context
from staging import until
from tables import rule

from claude_batch.cli.server_commands import probes
from claude_batch.core.errors import LedgerError

FAREWELL = "the worker has ended"
"""What a worker says after the signal that ends it."""


@when("a worker is started with probes on {where}")
def _(context: Context, where: str) -> None:
    """WHERE may end with flags, as in `a free port and --ledger other.db`."""
    where, _, more = where.partition(" and ")
    ports = {"a free port": 0, "the port of the server": urlsplit(context.api.url).port}
    _start(context, "works on", "worker", "--health", str(ports[where]), *more.split())
    if found := re.search(r"probes on port (\d+)", said(context)):
        context.probes = f"http://127.0.0.1:{found[1]}"


@when("a gateway is started in the place of a worker")
def _(context: Context) -> None:
    _start(context, "set ANTHROPIC_BASE_URL", "gateway", "--port", "0")


def _start(context: Context, begins: str, *words: str) -> None:
    context.said = Path(context.tmp) / "worker.txt"
    with context.said.open("wb") as stream:
        context.worker = programs.start(programs.COMMAND, *words, stdout=stream, stderr=stream)

    def stop() -> None:
        context.worker.kill()
        context.worker.wait()

    context.add_cleanup(stop)
    until(lambda: context.worker.poll() is not None or begins in said(context))


def said(context: Context) -> str:
    return context.said.read_text("utf-8")


@when('the worker has said "{words}"')
@when('the worker has said "{words}" {times:d} times')
def _(context: Context, words: str, times: int = 1) -> None:
    until(lambda: said(context).count(words) == times)


@when("callers of its probes reset their connections")
def _(context: Context) -> None:
    url = urlsplit(context.probes)
    for sent in (b"", b"GET /healthz HTTP/1.1\r\n", b"\x16\x03\x01"):
        with socket.create_connection((str(url.hostname), url.port or 0), 20) as connection:
            connection.sendall(sent)
            # Without lingering, the connection is reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@rule("its probes answer")
def _(
    context: Context, path: str, method: str = "GET", *, at_last: bool = False
) -> dict[str, object]:
    """``at_last``: once it is no longer 200."""
    ask = partial(httpx2.request, method, context.probes + path, timeout=30)
    if at_last:
        until(lambda: ask().status_code != 200)
    response = ask()
    return {"status": response.status_code, "text": response.text.rstrip("\n")}


@rule("probes of such a ledger answer")
def _(ledger: str) -> dict[str, object]:
    answers, asked = threading.Event(), list[None]()

    def why() -> str | None:
        asked.append(None)
        if ledger == "cannot be read":
            raise LedgerError("it cannot be read")
        if ledger == "does not answer":
            answers.wait(60)
        return None

    with probes(0, why) as port:
        ready = [httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=30) for _ in range(2)]
        alive = httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=30)
        answers.set()
    # One that waits is enough.
    assert len(asked) == (1 if ledger == "does not answer" else 2)
    assert ready[0].text == ready[1].text
    return {
        "healthz": alive.status_code,
        "readyz": ready[0].status_code,
        "text": ready[0].text.rstrip("\n"),
    }


@rule("callers that send a byte now and then hold threads of the probes")
def _(callers: int, seconds: float) -> dict[str, object]:
    with probes(0, lambda: None) as port, contextlib.ExitStack() as opened:
        slow: list[socket.socket] = []
        for _ in range(callers):
            slow.append(opened.enter_context(socket.create_connection(("127.0.0.1", port), 20)))
            time.sleep(0.03)  # the queue of new connections is short
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for each in slow:
                with contextlib.suppress(ConnectionError):
                    each.sendall(b"G")
            time.sleep(0.1)
        held = sum("process_request_thread" in each.name for each in threading.enumerate())
        alive = httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=30)
    until(lambda: not any("process_request_thread" in t.name for t in threading.enumerate()))
    return {"threads": held, "healthz": alive.status_code}


@then('it ends with {code:d} and says "{words}"')
@then('it ends at {name:w} with {code:d} and says "{words}"')
def _(context: Context, code: int, words: str, name: str | None = None) -> None:
    if name is not None:
        if words != FAREWELL:
            # It is ready before it has looked at every run.
            until(lambda: words in said(context))
        context.worker.send_signal(signal.Signals[name])
    assert context.worker.wait(60) == code, said(context)
    assert words in said(context), said(context)
    assert "Traceback" not in said(context), said(context)
