"""The parts that measure claude-batch in one situation each, beside the contest of `report.py`."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from statistics import median
from typing import Any

from contest import CLAUDE_BATCH, LATENCY, SCRIPTS, run_contestant, tested_params
from processes import MEGABYTE, Cost, Failed, client_environment, measured, sandbox
from sections import Goal, Section, version_of
from workload import BATCH, MODEL, prepare

AWAITED = 10_000
COMPARED = 2_000
"""Awaited calls of each library: the slowest takes minutes for more."""
RUNS, WATCHED = 100, 30.0
HELD = 3600.0
"""Seconds after which a batch ends that is to stay at the API while it is measured."""
POLLS_A_DAY = 303
"""Of a batch that takes a day, with the default settings: every minute at first, every tenth of
its age then, every five minutes from the first hour."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program of `contestants/` that has ended."""

    cost: Cost
    printed: dict[str, Any]
    batches: int


def play(script: str, *arguments: object, latency: float, requests: int = 0) -> Ended:
    """Run a program against a sandbox of its own; `requests` bounds what the API lets wait."""
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        with sandbox(latency, folder, queue_limit=max(500_000, 2 * requests)) as server:
            command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
            environment = {**client_environment(server, folder), **tested_params()}
            cost = measured(command, environment, folder)
            lines = (folder / "stdout").read_text(encoding="utf-8").splitlines()
            return Ended(cost, json.loads(lines[-1]), server.batches())


# A million requests -------------------------------------------------------------------------------


def million(requests: int) -> Section:
    """N requests beside a tenth of them: memory, CPU and the ledger's size."""
    few, many = requests // 10, requests
    found = {count: _ledger_run(count) for count in (few, many)}
    table = [["requests", "wall", "CPU", "CPU a request", "peak memory", "ledger ÷ carried"]]
    for count, (cost, ledger, carried) in found.items():
        each = f"{cost.cpu / count * 1e6:.0f} µs"
        own = [f"{cost.wall:.0f} s", f"{cost.cpu:.1f} s", each, f"{cost.peak:.0f} MB"]
        table.append([f"{count:,}", *own, f"{ledger / carried:.2f}"])
    (less, _, _), (more, ledger, carried) = found[few], found[many]
    growth = (more.cpu / many) / (less.cpu / few)
    return Section(
        title="Many requests",
        heading=f"`claude-batch run`, {-(-many // BATCH)} batches beside {-(-few // BATCH)}; one "
        f"round. The requests and the lines of results have {carried / MEGABYTE:.0f} MB, the "
        f"ledger {ledger / MEGABYTE:.0f} MB.",
        table=table,
        goals=[
            Goal(f"{more.peak:.0f} MB of memory, aim 200", more.peak <= 200),
            Goal(f"{growth:.2f} times the CPU a request, aim 1.1", growth <= 1.1),
            Goal(
                f"ledger {ledger / carried:.2f} times the bytes, aim 1.5", ledger <= 1.5 * carried
            ),
        ],
        values={
            str(count): {"cpu": cost.cpu, "wall": cost.wall, "peak": cost.peak, "ledger": size}
            for count, (cost, size, _) in found.items()
        },
    )


def _ledger_run(requests: int) -> tuple[Cost, int, int]:
    """Return a run's cost, the ledger's bytes, and those of the requests and results in it."""
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        workload = prepare(folder, requests)
        own = folder / "own"
        own.mkdir()
        cost = run_contestant(CLAUDE_BATCH, workload, own).cost
        files = [Path(f"{own / 'ledger.db'}{suffix}") for suffix in ("", "-wal")]
        ledger = sum(file.stat().st_size for file in files if file.exists())
        with closing(sqlite3.connect(files[0])) as connection:
            [(received,)] = connection.execute("SELECT sum(length(raw)) FROM results")
        return cost, ledger, workload.body_bytes + int(received)


# Awaited calls ------------------------------------------------------------------------------------


def awaited(rounds: int) -> Section:
    """`respond`, awaited by many tasks of one program."""
    ways = {
        "`respond` in each task": ("claude-batch",),
        "the same, after `gc.freeze()`": ("claude-batch", "--freeze"),
        "the same, without garbage collection": ("claude-batch", "--no-gc"),
        "the program alone": ("tasks",),
        "the program alone, without garbage collection": ("tasks", "--no-gc"),
    }
    found = _interleaved(ways, AWAITED, rounds)
    table = [["10,000 tasks", "wall", "CPU a call", "longest pause of the loop", "batches"]]
    for name, ended in found.items():
        # One batch is that of the first call, which is not measured.
        made = "–" if "alone" in name else f"{ended[-1].batches - 1}"
        cpu, wall, gap = (_median(ended, each) for each in ("cpu", "wall", "gap"))
        each = f"{cpu / AWAITED * 1e6:.0f} µs"
        table.append([name, f"{wall:.1f} s", each, f"{gap * 1e3:.0f} ms", made])
    calls, frozen, quiet, alone, _ = found.values()
    above = (_median(calls, "cpu") - _median(alone, "cpu")) / AWAITED * 1e6
    batches = max(ended.batches for ended in calls) - 1
    pause, freed, steady = (_median(each, "gap") for each in (calls, frozen, quiet))
    return Section(
        title="Awaited calls",
        heading=f"{AWAITED:,} tasks of one program, each of which awaits one answer. Median "
        f"of rounds: {rounds}; imports and a first call are not counted.",
        table=table,
        goals=[
            Goal(f"{above:.0f} µs of CPU a call above the program's own, aim 100", above <= 100),
            Goal(f"batches: {batches}, aim 1", batches == 1),
            Goal(f"the loop pauses for {pause * 1e3:.0f} ms, aim 50", pause <= 0.05),
            Goal(f"after `gc.freeze()` {freed * 1e3:.0f} ms, aim 50", freed <= 0.05),
            Goal(f"without garbage collection {steady * 1e3:.0f} ms, aim 50", steady <= 0.05),
        ],
        values={name: [each.printed for each in ended] for name, ended in found.items()},
    )


def libraries(rounds: int) -> Section:
    """The same calls through other libraries, where they are installed."""
    kept = {
        "claude-batch": "each request before it is sent, each answer as it arrives",
        "pydantic-ai": "nothing; a caller may store the history of a suspended run and resume it",
        "langasync": "the batch's id, after its creation; no requests and no answers",
    }
    packages = {"pydantic-ai": "pydantic_ai", "langasync": "langasync"}
    missing = [name for name, package in packages.items() if util.find_spec(package) is None]
    ways = {name: (name,) for name in kept if name not in missing}
    found = _interleaved(ways, COMPARED, rounds)
    table = [["", "wall", "CPU a call", "longest pause of the loop", "batches", "kept on disk"]]
    for name, ended in found.items():
        cpu, wall, gap = (_median(ended, each) for each in ("cpu", "wall", "gap"))
        own = [f"{wall:.1f} s", f"{cpu / COMPARED * 1e6:.0f} µs", f"{gap * 1e3:.0f} ms"]
        version = "" if name == "claude-batch" else f" {version_of(_DISTRIBUTIONS[name])}"
        table.append([f"{name}{version}", *own, f"{ended[-1].batches - 1}", kept[name]])
    skipped = f" Not installed, so not measured: {', '.join(missing)}." if missing else ""
    return Section(
        title="Other libraries",
        heading=f"{COMPARED:,} prompts of one program. Median of rounds: {rounds}; imports and a "
        f"first call are not counted.{skipped}",
        table=table,
        values={name: [each.printed for each in ended] for name, ended in found.items()},
    )


_DISTRIBUTIONS = {"pydantic-ai": "pydantic-ai-slim", "langasync": "langasync"}


def _interleaved(ways: dict[str, Sequence[str]], count: int, rounds: int) -> dict[str, list[Ended]]:
    """Play each way once a round, so that a busy minute affects them all."""
    found: dict[str, list[Ended]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (way, *options) in ways.items():
            ended = play("awaited.py", way, count, *options, latency=LATENCY)
            if ended.printed["answered"] != count:
                raise Failed(f"{way} answered {ended.printed['answered']} of {count}")
            found[name].append(ended)
    return found


def _median(ended: Sequence[Ended], field: str) -> float:
    return median(each.printed[field] for each in ended)


# Waiting ------------------------------------------------------------------------------------------


def waiting(batches: int) -> Section:
    """Batches that wait at the API, polled every second."""
    ended = play("outstanding.py", batches, WATCHED, latency=HELD)
    printed = ended.printed
    if printed["answered"] != batches:
        raise Failed(f"{printed['answered']} of {batches} batches were answered")
    calls = printed["calls"]
    polls = calls.get("list", 0)
    each = printed["cpu"] / max(1, polls)
    share = each * POLLS_A_DAY / 86_400
    others = sum(calls.values()) - polls
    table = [
        ["", f"{batches:,} batches of one request"],
        [f"list calls in {WATCHED:.0f} s", f"{polls}"],
        ["other calls in that time", f"{others}"],
        ["CPU a poll", f"{each * 1e3:.0f} ms"],
        [f"share of a core, {POLLS_A_DAY} polls a day", f"{share:.2%}"],
        ["first answer after the batches ended", f"{printed['first']:.1f} s"],
        ["last answer after the batches ended", f"{printed['last']:.1f} s"],
    ]
    return Section(
        title="Waiting",
        heading="A poll every second, so that half a minute shows many. The share of a day is "
        "computed from the CPU of one poll and the polls of the default settings, not measured.",
        table=table,
        goals=[
            Goal(f"{polls} list calls in {WATCHED:.0f} s, aim one a poll", polls <= WATCHED + 1),
            Goal(f"{others} other calls, aim 0", others == 0),
            Goal(f"{share:.2%} of a core, aim 0.5%", share < 0.005),
            Goal(f"first answer after {printed['first']:.1f} s, aim 2", printed["first"] <= 2),
            Goal(f"last answer after {printed['last']:.1f} s, aim 2", printed["last"] <= 2),
        ],
        values=printed,
    )


# Commands -----------------------------------------------------------------------------------------


def commands(rounds: int) -> Section:
    """What a command costs that has little to do."""
    with _scene() as (environment, folder):
        prompt = folder / "prompt.jsonl"
        prompt.write_text('{"id": "one", "prompt": "hello"}\n', encoding="utf-8")
        claude_batch = [sys.executable, "-m", "claude_batch"]
        run = ["run", "--model", MODEL, str(prompt), "--poll-interval", "0.1", "--new"]
        measures: dict[str, tuple[list[str], float]] = {
            "`claude-batch run` of one prompt": ([*claude_batch, *run], 0.6),
            "`claude-batch --help`": ([*claude_batch, "--help"], 0.2),
            "`claude-batch status`": ([*claude_batch, "status"], 0.35),
            "`import claude_batch`": ([sys.executable, "-c", "import claude_batch"], 0.05),
            "Python alone": ([sys.executable, "-c", "pass"], 1.0),
        }
        for command, _ in measures.values():
            measured(command, environment, folder)
        found: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, (command, _) in measures.items():
                found[name].append(measured(command, environment, folder).cpu)
    alone = median(found["Python alone"])
    table = [["", "CPU", "CPU without Python's own start"]]
    goals: list[Goal] = []
    for name, seconds in found.items():
        own = median(seconds)
        table.append([name, f"{own:.2f} s", f"{own - alone:.2f} s"])
        if name != "Python alone":
            # An import is what a program pays that runs already; a command is a process.
            counted = own - alone if name.startswith("`import") else own
            aim = measures[name][1]
            goals.append(Goal(f"{name}: {counted:.2f} s, aim {aim}", counted <= aim))
    return Section(
        title="Commands",
        heading=f"Whole processes. Median of rounds: {rounds}, after one that is not counted.",
        table=table,
        goals=goals,
        values=found,
    )


@contextmanager
def _scene() -> Generator[tuple[dict[str, str], Path]]:
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        with sandbox(0.1, folder) as server:
            yield client_environment(server, folder), folder


# Many runs ----------------------------------------------------------------------------------------


def runs(requests: int, rounds: int) -> Section:
    """Many runs of one process, beside one run of as many requests."""
    ways = {f"{RUNS} runs": RUNS, "one run": 1}
    found: dict[str, list[Ended]] = {name: [] for name in ways}
    # All runs are stored before the first batch ends.
    latency = max(15.0, requests / 20_000)
    for _ in range(rounds):
        for name, count in ways.items():
            ended = play("runs.py", count, requests // count, latency=latency, requests=requests)
            if ended.printed["succeeded"] != requests // count * count:
                raise Failed(f"{name}: {ended.printed['succeeded']} of {requests} succeeded")
            found[name].append(ended)
    table = [["", "CPU a request", "peak memory", "batches", "finished before the last was stored"]]
    for name, ended in found.items():
        each = f"{_median(ended, 'cpu') / requests * 1e6:.0f} µs"
        peak = f"{median(one.cost.peak for one in ended):.0f} MB"
        early = f"{max(one.printed['early'] for one in ended)}"
        table.append([name, each, peak, f"{ended[-1].batches - 1}", early])
    many, one = (_median(ended, "cpu") for ended in found.values())
    return Section(
        title="Many runs",
        heading=f"{requests:,} requests of one process. Median of rounds: {rounds}; imports and a "
        "first call are not counted.",
        table=table,
        goals=[Goal(f"{many / one:.2f} times the CPU of one run, aim 1.1", many <= 1.1 * one)],
        values={name: [each.printed for each in ended] for name, ended in found.items()},
    )
