"""The three contestants, how each is started, and how it is shown that it did its work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from processes import Cost, Failed, Sandbox, client_environment, measured, sandbox
from workload import MAX_TOKENS, MODEL, Workload

LATENCY = 1.0
"""Seconds from a batch's creation to its end."""

POLL_INTERVAL = 0.25
"""Seconds between two looks at a batch; the same for all."""

SCRIPTS = Path(__file__).with_name("contestants")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of getting N answers."""

    name: str
    command: Callable[[Workload, Path], list[str]]
    """From the workload and a folder of its own, where its ledger and its output may lie."""
    answered: Callable[[Path], int]
    """How many requests succeeded, by what it left in that folder."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One contestant in one round."""

    cost: Cost
    calls: int
    """API calls that the sandbox saw."""
    hashes: list[str]
    """Of each request processed; empty unless asked for."""


Round: TypeAlias = dict[str, Measurement]
"""Measurements by the contestant's name."""


def _claude_batch(workload: Workload, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "claude_batch", "run", "--model", MODEL, str(workload.lines)]
    command += ["-o", str(folder / "answers.jsonl"), "--ledger", str(folder / "ledger.db")]
    return [*command, "--poll-interval", f"{POLL_INTERVAL}"]


def _answers_in_order(folder: Path) -> int:
    succeeded = 0
    with (folder / "answers.jsonl").open("rb") as lines:
        for number, line in enumerate(lines):
            answer = json.loads(line)
            if answer["id"] != f"ticket-{number:06d}":
                raise Failed(f"line {number + 1} of the output answers {answer['id']}")
            succeeded += bool(answer["ok"] and answer["text"])
    return succeeded


def _script(name: str) -> Callable[[Workload, Path], list[str]]:
    def command(workload: Workload, folder: Path) -> list[str]:
        given = workload.body if name == "floor.py" else workload.lines
        return [sys.executable, str(SCRIPTS / name), str(given), str(POLL_INTERVAL)]

    return command


def _printed_count(folder: Path) -> int:
    return int((folder / "stdout").read_text(encoding="utf-8"))


CLAUDE_BATCH = Contestant("claude-batch", _claude_batch, _answers_in_order)
SDK = Contestant("bare SDK", _script("sdk.py"), _printed_count)
FLOOR = Contestant("floor", _script("floor.py"), _printed_count)

CONTESTANTS = (CLAUDE_BATCH, FLOOR, SDK)


def tested_params() -> dict[str, str]:
    """The variables by which a contestant's script knows the model and `max_tokens`."""
    return {"BENCHMARK_MODEL": MODEL, "BENCHMARK_MAX_TOKENS": str(MAX_TOKENS)}


def run_contestant(contestant: Contestant, workload: Workload, folder: Path) -> Measurement:
    """Run one against a fresh sandbox. Raises `Failed` where not every request was answered."""
    with sandbox(LATENCY, folder, responder=workload.shape.responder) as server:
        environment = {**client_environment(server, folder), **tested_params()}
        cost = measured(contestant.command(workload, folder), environment, folder)
        calls, hashes = server.calls(), _hashes(server, workload)
    answered = contestant.answered(folder)
    if answered != workload.requests:
        raise Failed(f"{contestant.name} answered {answered} of {workload.requests} requests")
    return Measurement(cost, calls, hashes)


def _hashes(server: Sandbox, workload: Workload) -> list[str]:
    # The bill of a large batch would fill this process, and its children would inherit the peak.
    return server.hashes() if workload.requests <= 1000 else []


def check_same_requests(measured: Round) -> None:
    """Raise `Failed` unless all contestants had the same params processed, each once."""
    expected = measured[FLOOR.name].hashes
    for name, measurement in measured.items():
        if measurement.hashes != expected:
            raise Failed(f"{name} asked for something else than the floor")
