"""Processes, each measured by what the system says of it, and sandboxes that always end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000
TIMEOUT = 900.0
"""Seconds that one contestant may take."""

_START_TIMEOUT = 30.0
_LISTENING = "sandbox listening on "


class Failed(Exception):
    """A process did not do what it was started for."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process has used."""

    wall: float
    """Seconds from its start to its end."""
    cpu: float
    """Seconds of CPU, user and system, of all its threads."""
    peak: float
    """The most memory that it held at once, in megabytes of 1,000,000 bytes."""


def clean_environment() -> dict[str, str]:
    """The environment without keys, ledgers, settings and proxies of whoever runs the benchmark."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANTHROPIC_", "CLAUDE_BATCH_"))
        and not name.lower().endswith("_proxy")
    }
    return {**environment, "NO_PROXY": "*"}


def measured(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Cost:
    """Run a command to its end; its output goes to `stdout` and `stderr` in the folder.

    Raises `Failed` where it does not end well.
    """
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        deadline = threading.Timer(TIMEOUT, process.kill)
        deadline.start()
        try:
            # Popen's own wait would throw away what the system knows about this process alone.
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            deadline.cancel()
            if process.returncode is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        words = (folder / "stderr").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise Failed(f"{' '.join(command)} ended with {process.returncode}:\n{words}")
    # macOS counts bytes, Linux kibibytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / MEGABYTE)


class Sandbox:
    """A running sandbox."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def calls(self) -> int:
        """How many API calls it has seen."""
        return len(self._get("/sandbox/log"))

    def hashes(self) -> list[str]:
        """The hash of each request processed, sorted."""
        return sorted(record["params_sha256"] for record in self._get("/sandbox/billing"))

    def batches(self) -> int:
        """How many batches were created."""
        return self.bill()["batches"]

    def bill(self) -> Any:
        """The sums of what it has billed."""
        return self._get("/sandbox/billing?summary=true")

    def _get(self, path: str) -> Any:
        with self._opener.open(self.url + path, timeout=600) as answer:
            return json.load(answer)


def client_environment(server: Sandbox, folder: Path) -> dict[str, str]:
    """The variables by which a client finds that sandbox, and keeps its state in that folder."""
    return {
        **clean_environment(),
        "ANTHROPIC_API_KEY": "sk-benchmark",
        "ANTHROPIC_BASE_URL": server.url,
        "CLAUDE_BATCH_STATE_DIR": str(folder / "state"),
        "CLAUDE_BATCH_LEDGER": str(folder / "ledger.db"),
    }


@contextmanager
def sandbox(
    latency: float, folder: Path, *, responder: str | None = None, queue_limit: int = 500_000
) -> Generator[Sandbox]:
    """A sandbox process of one's own, whose batches end after `latency` seconds."""
    command = [sys.executable, "-m", "claude_batch.sandbox", "--port", "0"]
    command += ["--latency", str(latency), "--queue-limit", str(queue_limit)]
    command += ["--responder", responder] if responder else []
    # To a file: a pipe that nobody reads would one day block it.
    said = folder / "sandbox"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=clean_environment(),
            cwd=Path(__file__).parent,  # where a responder is found
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT
        while not (words := said.read_text(encoding="utf-8", errors="replace")).endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the sandbox did not start: {words}")
            time.sleep(0.02)
        _, found, url = words.strip().rpartition(_LISTENING)
        if not found:
            raise Failed(f"the sandbox did not start: {words}")
        yield Sandbox(url)
    finally:
        process.kill()
        process.wait()
