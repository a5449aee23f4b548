"""What several steps files need to set a scene: an API, a provider, patience with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from behave.runner import Context
from sqlalchemy import Select

import claude_batch as cb
from claude_batch.ledger.store import Ledger
from claude_batch.sandbox import SandboxServer, SandboxSettings

KEY = "sk-ant-marked-for-the-search-0123456789"
QUICK: dict[str, Any] = {"linger": 0.3, "poll_interval": 0.05}


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition with a deadline; returns what made it true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def start_api(context: Context, **settings: Any) -> None:
    server = SandboxServer(SandboxSettings(**{"latency": 0.1, **settings}))
    server.start()
    context.add_cleanup(server.stop)
    context.api = server
    os.environ["ANTHROPIC_API_KEY"] = KEY
    os.environ["ANTHROPIC_BASE_URL"] = server.url


def make_provider(context: Context, **settings: Any) -> None:
    context.provider = cb.ClaudeBatchProvider(**{**QUICK, **settings})
    context.add_cleanup(context.provider.close)
    configuration = cb.ActorConfiguration(
        name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )
    context.actor = cb.Actor(configuration, context.provider)


def ledger_values(query: Select[Any]) -> list[Any]:
    """The first column of what the scenario's ledger says to a query."""
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    try:
        with ledger.read() as tx:
            return list(tx.scalars(query))
    finally:
        ledger.close()
