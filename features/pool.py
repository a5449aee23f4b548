"""Play features side by side: `python features/pool.py --results DIR [--tags TAGS] [FEATURE…]`.

With `--on-postgres TAGS`, the scenarios with those tags are played once more, with their ledgers on
a PostgreSQL server that all of them share.

One process imports the step definitions, which takes seconds, does what most scenarios do first
(`warm_up.py`), and forks a worker for each feature file. A feature therefore starts at once and
cannot disturb another one. Features tagged @long start first, then the largest files. Most features
wait three quarters of their time: while a quarter of a core is idle another worker is started, up
to four times as many as `--processes` says.

DIR gets a folder of JUnit files and the output of each feature, and `times.json`: the seconds of
wall clock and of CPU (child processes included) of each feature, and whether it passed. If few
scenarios fail they are played once more, alone, because a busy machine may have left them no time;
each that passes then is reported by name and counts as passed.

Scenarios tagged @frameworks need what `nox -s frameworks` installs, those tagged @browser what
`nox -s browser_tests` installs, and those tagged @airflow what `nox -s airflow` installs. By
default, all others are played.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import functools
import gc
import json
import os
import re
import shutil
import sys
import time
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import IO

import ledgers_on_postgres
import postgres_server
from behave.configuration import Configuration
from behave.formatter.progress import ProgressFormatterBase
from behave.model_type import Status
from behave.runner import Context, Runner

# behave has no letter for it, and would end the feature with a KeyError.
ProgressFormatterBase.dot_status[Status.cleanup_error] = "C"

FEATURES = Path(__file__).parent
ROOT = FEATURES.parent

FEW = 10
"""At most so many failed scenarios are played again. If more fail it is no accident."""

_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

BY_DEFAULT = "not @frameworks and not @browser and not @airflow"
"""The scenarios that need no more than the extra `test`."""

PATIENCE = 300
"""Seconds after which what is done before the fork is taken to hang."""

PROC_STAT = Path("/proc/stat")
LOOK = 1.0
"""Seconds after which is looked whether a core was idle."""


class Loaded(Runner):
    """A runner whose hooks and step definitions were imported before the fork."""

    def __init__(self, config: Configuration, hooks: dict[str, object]) -> None:
        super().__init__(config)
        self.hooks = hooks

    def load_hooks(self, filename: str | None = None) -> None:
        pass

    def load_step_definitions(self, extra_step_paths: Sequence[str] | None = None) -> None:
        pass


def warm_up(ledger: str | None = None) -> None:
    """See `warm_up.py`, which is found once the step definitions are.

    If it fails, the scenarios say more precisely why.
    """
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        import_module("warm_up").warm_up(ledger)
    except Exception:
        traceback.print_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()


def load() -> dict[str, object]:
    """Import environment.py and all step definitions; returns the hooks."""
    runner = Runner(Configuration(["--format", "progress", str(FEATURES)]))
    with runner.path_manager:
        runner.setup_paths()
        runner.context = Context(runner)
        runner.load_hooks()
        runner.load_step_definitions()
    # Workers find what step modules import late.
    sys.path[:0] = [str(FEATURES), str(FEATURES / "steps")]
    warm_up()
    # Python's cycle collector would take a tenth of the workers' CPU: it would scan hundreds of
    # thousands of objects that the imports made again and again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    return runner.hooks


@dataclass(frozen=True)
class Play:
    """What one worker plays."""

    name: str
    places: tuple[str, ...]
    """A feature file, or `file:line` of some of its scenarios."""
    tags: str = ""
    """Of the scenarios to play; of all if empty."""
    on_server: bool = False
    """Whether its ledgers are on a PostgreSQL server."""


@dataclass(frozen=True)
class Played:
    """How it ended."""

    play: Play
    code: int
    """Of the worker; negative for the signal that ended it."""
    seconds: float
    cpu: float

    @property
    def passed(self) -> bool:
        """Whether every scenario passed."""
        return self.code == 0


class Cores:
    """The machine's cores, where Linux tells what they do; elsewhere none is seen to be idle."""

    def __init__(self) -> None:
        self._seen = self._times()

    def were_idle(self) -> bool:
        """Whether a quarter of a core had nothing to do for `LOOK` seconds; earlier, no."""
        (idle, total), (idle_then, total_then) = self._times(), self._seen
        if total - total_then < LOOK * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1):
            return False
        self._seen = idle, total
        return 4 * (idle - idle_then) * (os.cpu_count() or 1) > total - total_then

    def _times(self) -> tuple[int, int]:
        try:
            ticks = [int(each) for each in PROC_STAT.read_text().split(maxsplit=9)[1:9]]
        except OSError:
            return 0, 0
        return ticks[3] + ticks[4], sum(ticks)


class Pool:
    """Plays features in forked workers, a few at a time."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._hooks = load()

    def run(self, plays: Sequence[Play], at_a_time: int) -> list[Played]:
        """Play all; prints the output of each in one piece when it ends."""
        waiting, ended = list(plays), list[Played]()
        running: dict[int, tuple[Play, float]] = {}
        cores = Cores()
        while waiting or running:
            some, most = len(running) < at_a_time, len(running) < 4 * at_a_time
            if waiting and (some or (most and cores.were_idle())):
                play = waiting.pop(0)
                running[self._start(play)] = play, time.monotonic()
                continue
            # The usage of a worker includes that of the processes that it waited for.
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid not in running:
                time.sleep(0.1)
                continue
            play, began = running.pop(pid)
            seconds, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
            ended.append(Played(play, os.waitstatus_to_exitcode(status), seconds, cpu))
            self._report(ended[-1])
        return ended

    def _start(self, play: Play) -> int:
        sys.stdout.flush()
        # Started before the first fork that needs it, so that all share it.
        server = self._server() if play.on_server else None
        pid = os.fork()
        if pid:
            return pid
        if server is not None:
            os.environ[ledgers_on_postgres.VARIABLE] = server.url()
        # A file: a process that a scenario leaves behind would hold a pipe open for ever.
        with self._output(play).open("w", errors="replace") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        failed = self._behave(play)
        # The exit handlers run as in a process of its own, but the interpreter is not torn down: a
        # tool that a scenario has left hanging in another thread may wake meanwhile, and CPython
        # then ends that thread through frames of Rust, which aborts the process.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failed)

    @functools.cache  # noqa: B019
    def _server(self) -> postgres_server.PostgresServer:
        server = postgres_server.shared()
        warm_up(server.url(schema=server.create_schema()))
        return server

    def _behave(self, play: Play) -> bool:
        arguments = ["--format", "rerun", "--outfile", str(self._failed(play))]
        arguments += ["--format", "progress", "--junit"]
        arguments += ["--junit-directory", str(self._results / play.name)]
        arguments += ["--tags", play.tags] if play.tags else []
        return bool(Loaded(Configuration([*arguments, *play.places]), self._hooks).run())

    def _report(self, played: Played) -> None:
        minutes, seconds = divmod(round(played.seconds), 60)
        ended = "passed" if played.passed else f"failed with {played.code}"
        name = played.play.name
        print(f"── {name}: {ended} in {minutes}:{seconds:02d}, {played.cpu:.0f} s of CPU ──")
        print(self._output(played.play).read_text(errors="replace"))
        if not played.passed:
            print("\n".join(reasons(self._results / name)))
        sys.stdout.flush()

    def again(self, played: Played) -> Play | None:
        """Its failed scenarios; `None` if it hung or could not start, so that none is known."""
        try:
            lines = self._failed(played.play).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        places = tuple(line for line in lines if line and not line.startswith("#"))
        name = f"{played.play.name}-again"
        return replace(played.play, name=name, places=places) if places else None

    def forgive(self, play: Play) -> None:
        """Count what failed as passed: it has passed when it was played alone."""
        for report in (self._results / play.name).glob("*.xml"):
            tree = tree_of(report)
            for case in tree.iter("testcase"):
                if case.get("status") in ("failed", "error", "cleanup_error"):
                    print(f"passed when it was played again, alone: {case.get('name')}")
                    case.set("status", "passed")
                    for reason in (*case.findall("failure"), *case.findall("error")):
                        case.remove(reason)
            tree.write(report)

    def _output(self, play: Play) -> Path:
        return self._results / f"{play.name}.txt"

    def _failed(self, play: Play) -> Path:
        return self._results / f"{play.name}.rerun"


def tree_of(report: Path) -> ET.ElementTree[ET.Element]:
    """Read a report, and mend it: it quotes what scenarios said, which may be no text for XML."""
    text = report.read_text(encoding="utf-8", errors="replace")
    if _NO_XML.search(text):
        text = _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
        report.write_text(text, encoding="utf-8")
    return ET.ElementTree(ET.fromstring(text))


def reasons(results: Path) -> Iterator[str]:
    """Why each scenario failed; the progress format only names them."""
    for report in sorted(results.glob("*.xml")):
        for case in tree_of(report).iter("testcase"):
            for reason in (*case.iter("failure"), *case.iter("error")):
                yield f"{case.get('name')}\n{reason.text}\n"


def count_played(results: Path) -> int:
    """How many scenarios were played: tags that are misspelled select none."""
    cases = (case for report in results.rglob("*.xml") for case in tree_of(report).iter("testcase"))
    return sum(case.find("skipped") is None for case in cases)


def plays(wanted: Sequence[str], tags: str, on_server: str) -> list[Play]:
    """A play for each feature file, what takes long first; see `main` for the tags."""
    files = [
        path
        for place in wanted or [str(FEATURES)]
        for path in (sorted(Path(place).rglob("*.feature")) if Path(place).is_dir() else [place])
    ]
    found = [pair for path in files for pair in _found(path, tags, on_server)]
    return [play for _, play in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _found(place: Path | str, tags: str, on_server: str) -> Iterator[tuple[tuple[bool, int], Play]]:
    """Yield the plays of a feature, each with a key that sorts by how long it may take."""
    path = Path(str(place).partition(":")[0])
    text = path.read_text(encoding="utf-8")
    own = text.partition("\n")[0].split()
    length = ("@long" in own, len(text))
    play = Play(_name(place), (os.path.relpath(place),))
    if tags:
        yield length, replace(play, tags=tags)
    # Most features have no scenario that is played on both.
    if on_server and (not on_server.startswith("@") or on_server in text):
        name = f"{play.name}-on-postgres"
        yield length, replace(play, name=name, tags=on_server, on_server=True)


def _name(place: Path | str) -> str:
    path, _, line = str(place).partition(":")
    name = Path(path).resolve().relative_to(FEATURES).with_suffix("").as_posix().replace("/", ".")
    return f"{name}.{line}" if line else name


def save_times(ended: Sequence[Played], failed: Sequence[Played], file: IO[str]) -> None:
    """Write of each feature the seconds of wall clock and CPU, and whether it passed."""
    times = [
        {
            "name": each.play.name,
            "seconds": round(each.seconds, 1),
            "cpu": round(each.cpu, 1),
            "passed": each not in failed,
        }
        for each in sorted(ended, key=lambda played: played.seconds, reverse=True)
    ]
    json.dump(times, file, indent=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument(
        "--tags", default=BY_DEFAULT, help="of the scenarios to play; empty: none of them"
    )
    parser.add_argument(
        "--on-postgres", metavar="TAGS", default="", help="of those with ledgers on a server"
    )
    parser.add_argument("--processes", type=int, default=min(8, 2 * (os.cpu_count() or 1)))
    parser.add_argument("features", nargs="*")
    options = parser.parse_args()
    chosen = plays(options.features, options.tags, options.on_postgres)
    if not chosen:
        print("there is no feature to play")
        return 1
    options.results.mkdir(parents=True, exist_ok=True)
    pool = Pool(options.results)
    ended = pool.run(chosen, options.processes)
    failed = [played for played in ended if not played.passed]
    second = [(played, pool.again(played)) for played in failed]
    if sum(len(play.places) for _, play in second if play is not None) <= FEW:
        for played, play in second:
            if play is None:
                continue
            if pool.run([play], 1)[0].passed:
                pool.forgive(played.play)
                failed.remove(played)
            # A scenario that was played twice counts once.
            shutil.rmtree(options.results / play.name, ignore_errors=True)
    with (options.results / "times.json").open("w", encoding="utf-8") as file:
        save_times(ended, failed, file)
    if failed:
        print(f"features failed: {', '.join(played.play.name for played in failed)}")
        return 1
    if not count_played(options.results):
        print("no scenario was played: check --tags and the names of the features")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
