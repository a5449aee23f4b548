"""What most scenarios and their programs do first, done once in the process that they fork from.

A first use imports modules, reads the list of prices and compiles SQL, which was half of a
command's CPU. What was loaded and compiled before a fork belongs to every process after it. Nothing
else is left: no thread, no variable, and no file but the locks of a folder that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import compiled_sql
import httpx2
import toolbox
from cli_steps import ACTOR
from click.testing import CliRunner
from staging import KEY, LIVE, QUICK, until

import claude_batch as cb
from claude_batch.cli.app import group
from claude_batch.dashboard import DashboardSettings
from claude_batch.dashboard.dashboard_server import DashboardServer
from claude_batch.gateway.gateway_app import GatewayServer, GatewaySettings
from claude_batch.lifecycle import engine
from claude_batch.providers import middleware_runner
from claude_batch.sandbox import SandboxServer, SandboxSettings

__all__ = ["warm_up"]

OURS = ("ANTHROPIC_", "CLAUDE_BATCH_")

COMMANDS = (
    "run actor.yaml prompts.jsonl -o out.jsonl",
    "submit actor.yaml prompts.jsonl --new --label second",
    "resume",
    "status",
    "status --json",
    "cost",
    "budget",
    "estimate actor.yaml prompts.jsonl",
    "unknown",
    "advance",
    "ledger show",
    "doctor",
)


def warm_up(ledger: str | None = None) -> None:
    """Use what scenarios use, with a ledger in a folder, or at the URL of a server."""
    compiled_sql.share()
    before = _native_threads()
    with _place(ledger) as folder:
        server = SandboxServer(SandboxSettings(latency=0.05, uses_tools=True))
        server.start()
        os.environ["ANTHROPIC_API_KEY"] = KEY
        os.environ["ANTHROPIC_BASE_URL"] = server.url
        try:
            _use_commands(folder)
            _use_providers()
            _use_servers()
        finally:
            engine.shutdown_all()
            server.stop()
    _end_shared_loop()
    assert threading.active_count() == 1, threading.enumerate()
    # A thread that has ended for Python still gives back what OpenSSL keeps for it. A process that
    # is forked meanwhile would wait for OpenSSL's locks for ever.
    until(lambda: _native_threads() <= before)
    gc.collect()


def _native_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:  # not Linux
        time.sleep(0.5)
        return threading.active_count()


def _end_shared_loop() -> None:
    loop = middleware_runner._loop
    if loop._thread is not None:
        loop._thread.close(loop._thread.end_the_rest, 60)
        loop.abandon(loop._thread)


@contextlib.contextmanager
def _place(ledger: str | None) -> Generator[Path]:
    before, here = dict(os.environ), os.getcwd()
    folder = Path(tempfile.mkdtemp(prefix="claude-batch-warm-up-"))
    for name in before:
        if name.startswith(OURS):
            del os.environ[name]
    os.environ["CLAUDE_BATCH_LEDGER"] = ledger or str(folder / "ledger.db")
    os.environ["CLAUDE_BATCH_STATE_DIR"] = str(folder / "state")
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _use_commands(folder: Path) -> None:
    (folder / "actor.yaml").write_text(ACTOR)
    (folder / "prompts.jsonl").write_text('"one"\n"two"\n')
    for words in COMMANDS:
        done = CliRunner().invoke(group, words.split(), prog_name="claude-batch")
        assert not done.exit_code, (words, done.output, done.exception)


def _use_providers() -> None:
    configuration = cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )
    with cb.ClaudeBatchProvider(**QUICK) as provider:
        asker = cb.Actor(configuration, provider)
        asyncio.run(asker.respond("one"))
        looks = cb.Actor(configuration, provider, tools=[toolbox.population])
        asyncio.run(looks.respond("Look [[sandbox:tools]]"))
        run = provider.store(configuration, ["one", "[[sandbox:errored:invalid_request_error]]"])
        run.wait_sync()
        list(run.results_sync())
        run.status()
    with cb.ClaudeBatchProvider(**QUICK, **LIVE) as provider:
        asyncio.run(cb.Actor(configuration, provider).respond("live"))


def _use_servers() -> None:
    with cb.ClaudeBatchProvider(**QUICK) as provider:
        settings = GatewaySettings(port=0)
        with GatewayServer(provider, settings) as gateway, httpx2.Client() as client:
            message = {"role": "user", "content": "one"}
            body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [message]}
            client.post(f"{gateway.url}/v1/messages", json=body, timeout=60)
    server = DashboardServer(os.environ["CLAUDE_BATCH_LEDGER"], DashboardSettings(port=0))
    server.start()
    try:
        until(lambda: server.reader.snapshot.added_up)
        httpx2.get(server.url, timeout=60)
    finally:
        server.stop()
