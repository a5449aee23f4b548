"""Steps of `claude-batch worker` and its probes."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import httpx2
from behave import then, when
from behave.runner import Context
from staging import until
from tables import rule

from claude_batch.cli.probe_server import probes
from claude_batch.core.errors import LedgerError


@when("a worker is started with probes")
def _(context: Context) -> None:
    start(context, 0)
    until(lambda: context.worker.poll() is not None or re.search(r"works on", said(context)))
    found = re.search(r"probes on port (\d+)", said(context))
    assert found, said(context)
    context.probes = f"http://127.0.0.1:{found[1]}"


@when("a worker is started with probes on the port of the server")
def _(context: Context) -> None:
    start(context, urllib.parse.urlsplit(context.api.url).port or 0)


def start(context: Context, port: int) -> None:
    context.said = Path(context.tmp) / "worker.txt"
    command = [sys.executable, "-m", "claude_batch", "worker", "--health", str(port)]
    with context.said.open("wb") as stream:
        context.worker = subprocess.Popen(command, stdout=stream, stderr=stream)

    def stop() -> None:
        context.worker.kill()
        context.worker.wait()

    context.add_cleanup(stop)


def said(context: Context) -> str:
    return context.said.read_text("utf-8")


@when('sending is halted, because "{why}"')
def _(context: Context, why: str) -> None:
    with sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"], timeout=30) as ledger:
        ledger.execute(
            "UPDATE workspaces SET halted = ?, halt_reason = 'credit', halt_message = ?,"
            " next_probe = ?",
            (time.time(), why, time.time() + 3600),
        )


@rule("its probes answer")
def _(context: Context, path: str) -> dict[str, object]:
    response = httpx2.get(context.probes + path, timeout=30)
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


@when("the worker is terminated")
def _(context: Context) -> None:
    context.worker.send_signal(signal.SIGTERM)


@then('it ends with {code:d} and says "{words}"')
def _(context: Context, code: int, words: str) -> None:
    assert context.worker.wait(60) == code, said(context)
    assert words in said(context), said(context)
    assert "Traceback" not in said(context), said(context)
