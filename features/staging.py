"""What several steps files need to set a scene: an API, a provider, patience with a deadline."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import programs
from behave.runner import Context
from sqlalchemy import Select, select

import claude_batch as cb
from claude_batch.ledger.schema import batches
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.sandbox import SandboxServer, SandboxSettings

KEY = "sk-ant-marked-for-the-search-0123456789"
QUICK: dict[str, Any] = {"linger": 0.3, "poll_interval": 0.05}
LIVE: dict[str, Any] = {"mode": "live", "live_concurrency": 2}


class Markup(str):
    """A text of a type of its own, as templates make it."""


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition with a deadline; returns what made it true.

    The longer it takes, the rarer it looks: to ask a ledger takes as long as the shortest pause.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < seconds:
        if value := what():
            return value
        time.sleep(min(0.1, max(0.02, waited / 10)))
    raise AssertionError("it did not happen in time")


def memory_of(process: subprocess.Popen[Any]) -> int:
    """Return the resident memory of a process in bytes."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class KeptLog(logging.Handler):
    """What loggers have logged."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        """The messages."""
        return [record.getMessage() for record in self.records]


def listen(context: Context, *names: str, level: int = logging.NOTSET) -> KeptLog:
    """Keep what these loggers log, until the scenario ends."""
    log = KeptLog(level)
    for name in names:
        logging.getLogger(name).addHandler(log)
        context.add_cleanup(logging.getLogger(name).removeHandler, log)
    return log


def start_api(context: Context, **settings: Any) -> None:
    server = SandboxServer(SandboxSettings(**{"latency": 0.1, **settings}))
    server.start()
    context.add_cleanup(server.stop)
    context.api = context.sandbox = server
    context.sandbox_batches = []
    os.environ["ANTHROPIC_API_KEY"] = KEY
    os.environ["ANTHROPIC_BASE_URL"] = server.url


def make_provider(context: Context, actor: str = "tests/asker", **settings: Any) -> None:
    context.provider = cb.ClaudeBatchProvider(**{**QUICK, **settings})
    context.add_cleanup(context.provider.close)
    configuration = cb.ActorConfiguration(
        name=actor, provider="anthropic", model="claude-haiku-4-5", batch_processing=True
    )
    context.actor = cb.Actor(configuration, context.provider)


def unknown_command(*words: str, code: int = 0) -> str:
    """What ``claude-batch unknown`` says, in a process of its own that drives nothing."""
    script = "from claude_batch.cli import main; main()"
    done = programs.run(script, "unknown", *words)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


_DIES = """
import importlib, json, os, sys
import toolbox
import claude_batch as cb
from claude_batch.core import crash_points
point, prompts, tools, settings = map(json.loads, sys.argv[1:])
for path, limit in json.loads(os.environ.get("LOWERED_LIMITS", "{}")).items():
    module, _, name = path.rpartition(".")
    setattr(importlib.import_module(module), name, limit)
actor = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model="claude-haiku-4-5", batch_processing=True,
    tools=tools,
)
provider = cb.ClaudeBatchProvider(**settings)
run = provider.store(actor, prompts)
print(run.id, flush=True)
def die(here):
    if here == point:
        os._exit(9)
crash_points.on_reach = die
provider.resume()
run.wait_sync()
"""


def lowered_limits() -> dict[str, int]:
    """The limits that a scenario has lowered, which hold for its processes that die, too."""
    found: dict[str, int] = json.loads(os.environ.get("LOWERED_LIMITS", "{}"))
    return found


def run_of_a_process_that_dies(
    point: str, prompts: list[str], *, tools: Sequence[str] = (), **settings: Any
) -> str:
    """Have a process of its own ask a run and die at a crash point; the run's id."""
    done = programs.run(_DIES, *map(json.dumps, (point, prompts, tools, settings)))
    # Where all were answered before the point was watched for, it ended by itself.
    assert done.returncode == 9, (done.returncode, done.stderr)
    return done.stdout.strip()


def is_sent(count: int = 1) -> bool:
    """Whether the API has so many requests of the scenario's ledger in batches."""
    with contextlib.suppress(cb.LedgerError):  # nobody has made it yet
        at_api = select(batches.c.request_count).where(batches.c.remote_id.is_not(None))
        return sum(ledger_values(at_api)) >= count
    return False


def newest_batch(api_url: str) -> str | None:
    """The id of the API's newest batch, whoever made it."""
    headers = {"x-api-key": "sk-looks", "anthropic-version": "2023-06-01"}
    url = f"{api_url}/v1/messages/batches?limit=1"
    data = httpx2.get(url, headers=headers, trust_env=False).raise_for_status().json()["data"]
    return data[0]["id"] if data else None


def ledger_values(query: Select[Any]) -> list[Any]:
    """The first column of what the scenario's ledger says to a query."""
    with reading() as tx:
        return list(tx.scalars(query))


@contextmanager
def opened_ledger() -> Iterator[Ledger]:
    """The scenario's ledger, until the block ends."""
    with closing(Ledger(os.environ["CLAUDE_BATCH_LEDGER"])) as ledger:
        yield ledger


@contextmanager
def reading() -> Iterator[Transaction]:
    """A reading transaction of the scenario's ledger."""
    with opened_ledger() as ledger, ledger.read() as tx:
        yield tx


@contextmanager
def writing() -> Iterator[Transaction]:
    """A writing transaction of the scenario's ledger."""
    with opened_ledger() as ledger, ledger.write() as tx:
        yield tx
