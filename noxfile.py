"""The project's checks: `nox` runs them all, `nox -s unit_tests -- features/wire` a part.

The tests run against the installed package, as its users have it. Each suite writes its results and
its coverage under `build/`, where `.ci/summary.py` and `coverage_report` find them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
FEATURES = ROOT / "features"

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
AT_A_TIME = min(8, 2 * (os.cpu_count() or 1))
"""How many processes run features side by side. Two for each core: they mostly wait."""

SHARE = 30_000
"""Bytes of a room's features after which another process plays the rest."""

FEW = 10
"""So many tests that failed are played once more, alone: a busy machine may have left them no time.
Each that passes then is named. Where more fail it is no accident."""

HISTORIES = "histories"
"""The room that plays the same lines thousands of times. Measured, it would take twenty times as
long, and cover nothing that the others leave out."""

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_external_run = True
# A checkout keeps its environments; continuous integration proves that they can be made.
nox.options.reuse_venv = "no" if "CI" in os.environ else "yes"
nox.options.report = str(BUILD / "nox.json")
BUILD.mkdir(exist_ok=True)


# What pyproject.toml says


def pyproject() -> dict[str, Any]:
    """Its tables."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def extra(name: str, only: str = "") -> list[str]:
    """The requirements of one of pyproject.toml's extras, without the project itself."""
    requirements = pyproject()["project"]["optional-dependencies"][name]
    return [line for line in requirements if line.startswith(only) and "claude-batch" not in line]


# Which Pythons


def supported_pythons() -> list[str]:
    """The versions that pyproject.toml's classifiers promise, oldest first."""
    lines = pyproject()["project"]["classifiers"]
    versions = (line.rpartition(" :: ")[2] for line in lines if "Python ::" in line)
    return [version for version in versions if version.startswith("3.")]


def installed_python(version: str) -> str | None:
    """The path of an interpreter of that version, or None where the machine has none.

    Looks on the PATH and beside the Python that runs nox: who keeps several versions often has them
    in folders side by side, and only one on the PATH. Each is asked, since a name may be that of a
    launcher which finds nothing, or of a Python that was built without what the tests need.
    """
    name = f"python{version}"
    folders = [Path(folder) for folder in os.get_exec_path()]
    folders += sorted(Path(sys.base_prefix).parent.glob("*/bin"), reverse=True)
    question = "import sqlite3, ssl, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in (str(folder / name) for folder in folders if (folder / name).is_file()):
        try:
            answer = subprocess.run(
                [candidate, "-c", question], capture_output=True, text=True, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.stdout.strip() == version:
            return candidate
    return None


OTHER_PYTHONS = {
    version: path
    for version in supported_pythons()
    if version != THIS_PYTHON and (path := installed_python(version)) is not None
}


# Help for the sessions


def environment(session: nox.Session, **more: str) -> dict[str, str | None]:
    """Variables for a test: nothing of the user's own ledger, key or settings (None: unset)."""
    temporary = Path(session.create_tmp())
    inherited = [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_BATCH_"))]
    return {
        **dict.fromkeys(inherited),
        "CLAUDE_BATCH_LEDGER": str(temporary / "ledger.db"),
        "CLAUDE_BATCH_STATE_DIR": str(temporary / "state"),
        **more,
    }


def emptied(folder: Path) -> Path:
    """That folder, without what an earlier run left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def measured(suite: str) -> tuple[list[str], dict[str, str]]:
    """How a suite's Python is started so that coverage sees it, and the variables it needs."""
    folder = emptied(BUILD / "coverage" / suite)
    return ["-m", "coverage", "run"], {"COVERAGE_FILE": str(folder / "data")}


def shares() -> list[tuple[str, list[str]]]:
    """Name and features of what each process plays; what takes long comes first."""
    found: list[tuple[int, str, list[str]]] = []
    for room in sorted(FEATURES.iterdir()):
        number, size, features = 1, 0, list[str]()
        for feature in sorted(room.rglob("*.feature")):
            if size > SHARE:
                found.append((size, f"{room.name}-{number}", features))
                number, size, features = number + 1, 0, []
            size += feature.stat().st_size
            features.append(str(feature.relative_to(ROOT)))
        if features:
            found.append((size, f"{room.name}-{number}", features))
    found.sort(key=lambda share: (share[1].startswith(HISTORIES), share[0]), reverse=True)
    return [(name, features) for _, name, features in found]


def behave(session: nox.Session, start: Iterable[str], *, tags: str = "", **variables: str) -> None:
    """Run Behave in a few processes at a time; the output of each comes in one piece."""
    results = emptied(BUILD / "junit" / session.name)
    second = emptied(BUILD / "again" / session.name)
    python = str(Path(session.bin) / "python")
    path = os.pathsep.join([session.bin, os.environ.get("PATH", "")])
    wanted = {**os.environ, **session.env, "PATH": path, **environment(session, **variables)}
    env = {name: value for name, value in wanted.items() if value is not None}

    def run(name: str, arguments: list[str], results: Path = results) -> int:
        command = [python, *(() if name.startswith(HISTORIES) else start), "-m", "behave"]
        command += ["--format", "rerun", "--outfile", str(results / f"{name}.rerun")]
        command += ["--format", "progress", "--junit", "--junit-directory", str(results / name)]
        command += [*(("--tags", tags) if tags else ()), *arguments]
        # Into a file: a process that a scenario left behind would hold a pipe open for ever.
        with (results / f"{name}.txt").open("w+", errors="replace") as output:
            began = time.monotonic()
            code = subprocess.run(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode
            minutes, seconds = divmod(round(time.monotonic() - began), 60)
            output.seek(0)
            ended = "passed" if code == 0 else "failed"
            said = f"── {name}: {ended} in {minutes}:{seconds:02d} ──\n{output.read()}"
        if code != 0:
            said += "\n".join(failures(results / name))
        print(said, flush=True)
        return code

    tasks = [("chosen", list(session.posargs))] if session.posargs else shares()
    if not tasks:
        session.error("there is no feature to run")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        running = [(name, pool.submit(run, name, arguments)) for name, arguments in tasks]
        failed = [name for name, code in running if code.result() != 0]
    # One that hung, or could not start, has left no list of what failed.
    lists = {name: results / f"{name}.rerun" for name in failed}
    listed = {name: path for name, path in lists.items() if path.is_file()}
    if sum(len(failed_cases(results / name)) for name in listed) <= FEW:
        for name, path in listed.items():
            lines = path.read_text(encoding="utf-8").splitlines()
            places = [line for line in lines if line and not line.startswith("#")]
            if places and run(name, places, second) == 0:
                failed.remove(name)
                forgive(results / name)
    if failed:
        session.error(f"features failed in: {', '.join(failed)}")


def failed_cases(results: Path) -> list[str]:
    """The names of the scenarios that failed."""
    cases = (case for report in results.glob("*.xml") for case in ET.parse(report).iter("testcase"))
    return [str(case.get("name")) for case in cases if case.get("status") in ("failed", "error")]


def forgive(results: Path) -> None:
    """What failed has passed when it was played alone: say so, and count it as passed."""
    for report in results.glob("*.xml"):
        tree = ET.parse(report)
        for case in tree.iter("testcase"):
            if case.get("status") in ("failed", "error"):
                print(f"passed when it was played again, alone: {case.get('name')}", flush=True)
                case.set("status", "passed")
                for reason in (*case.findall("failure"), *case.findall("error")):
                    case.remove(reason)
        tree.write(report)


def failures(results: Path) -> Iterator[str]:
    """Why each scenario failed: the progress format only names them."""
    for report in sorted(results.glob("*.xml")):
        for case in ET.parse(report).iter("testcase"):
            for reason in (*case.iter("failure"), *case.iter("error")):
                yield f"{case.get('name')}\n{reason.text}\n"


# The sessions, in the order in which they run


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the table of rooms."""
    # The linters only read sources; `.[lint]` would install every dependency to no purpose.
    session.install(*extra("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": str(ROOT / "src")})


@nox.session
def typecheck(session: nox.Session) -> None:
    """Strict types inside, and complete types outside."""
    session.install(".[typecheck]")
    session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"))
    report = session.run(
        "pyright",
        "--verifytypes",
        "claude_batch",
        "--ignoreexternal",
        "--outputjson",
        silent=True,
        success_codes=[0, 1],
    )
    verified = json.loads(str(report))
    for finding in verified["generalDiagnostics"]:
        print(f"{finding.get('file', '')}: {finding['message']}")
    completeness = verified["typeCompleteness"]
    # A symbol without a finding of its own only uses one that has.
    for symbol in completeness["symbols"]:
        for found in symbol["diagnostics"] if symbol["isExported"] else ():
            if found["severity"] != "error":
                continue  # a missing docstring is no missing type
            line = found["range"]["start"]["line"] + 1 if "range" in found else "?"
            print(f"{found['file']}:{line}: {symbol['name']}: {found['message']}")
    score = completeness["completenessScore"]
    session.log(f"public types known: {score:.2%}")
    if score < 1 or verified["summary"]["errorCount"]:
        session.error("the public types are not complete")


@nox.session
def unit_tests(session: nox.Session) -> None:
    """Behave, measured, on the Python that runs nox."""
    session.install(".[test]")
    start, variables = measured("unit")
    behave(session, start, **variables)


def on_another_python(version: str, path: str) -> None:
    @nox.session(name=f"unit_tests-{version}", python=path)
    def unit_tests_elsewhere(session: nox.Session) -> None:
        session.install(".[test]")
        behave(session, [], tags="not @slow")

    unit_tests_elsewhere.__doc__ = f"Behave on Python {version}, without what is tagged @slow."


for other_version, other_path in OTHER_PYTHONS.items():
    on_another_python(other_version, other_path)


@nox.session
def integration_tests(session: nox.Session) -> None:
    """Robot: real processes and real HTTP."""
    session.install(".[test]")
    start, variables = measured("integration")
    folder, again = emptied(BUILD / "robot"), emptied(BUILD / "again" / "robot")
    command = ["python", *start, "-m", "robot", "--pythonpath", "robot/resources"]
    command += ["--console", "dotted"]
    wanted = session.posargs or ["robot"]
    env = environment(session, **variables)
    # Robot's exit code is how many tests failed.
    session.run(
        *command, "--outputdir", str(folder), *wanted, env=env, success_codes=range(FEW + 1)
    )
    first = folder / "output.xml"
    if not robot_failures(first):
        return
    second = ["--outputdir", str(again), "--rerunfailed", str(first), *wanted]
    session.run(*command, *second, env=env, success_codes=range(FEW + 1))
    both = [str(first), str(again / "output.xml")]
    rebot = ["python", "-m", "robot.rebot", "--merge", "--output", "output.xml"]
    session.run(*rebot, "--outputdir", str(folder), *both, env=env, success_codes=range(FEW + 1))
    if failed := robot_failures(first):
        session.error(f"tests failed: {', '.join(failed)}")


def robot_failures(output: Path) -> list[str]:
    """The names of the tests that failed, by Robot's output."""
    tests = ET.parse(output).iter("test")
    return [
        str(test.get("name"))
        for test in tests
        if (status := test.find("status")) is not None and status.get("status") == "FAIL"
    ]


@nox.session
def coverage_report(session: nox.Session) -> None:
    """At least 95 % of lines and of branches, over both suites."""
    session.install(*extra("test", only="coverage"))
    folders = [BUILD / "coverage" / suite for suite in ("unit", "integration")]
    for folder in folders:
        if not folder.is_dir() or not any(folder.iterdir()):
            session.error(f"no coverage data in {folder}: run its suite first")
    session.run("coverage", "combine", "--keep", "--quiet", *map(str, folders))
    session.run("coverage", "html", "--quiet", "--fail-under=0")
    session.run("coverage", "xml", "--quiet", "--fail-under=0")
    session.run("coverage", "report")
    # Coverage's own total mixes lines and branches: many lines may hide few branches.
    least = pyproject()["tool"]["coverage"]["report"]["fail_under"]
    total = ET.parse(BUILD / "coverage.xml").getroot()
    for what, rate in (("lines", "line-rate"), ("branches", "branch-rate")):
        covered = 100 * float(total.get(rate, 0))
        session.log(f"{what}: {covered:.2f} %")
        if covered < least:
            session.error(f"less than {least} % of {what} are covered")


@nox.session(default=False)
def storms(session: nox.Session) -> None:
    """200 random storms and 5,000 histories; `-- --seed 17 --family run` plays one storm again."""
    session.install(".[test]")
    if not session.posargs:
        histories = environment(session, HISTORIES="5000")
        session.run("python", "-m", "behave", "features/histories", env=histories)
    session.run("python", "robot/resources/storms.py", *session.posargs, env=environment(session))


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """N requests through claude-batch, beside a floor and the bare SDK."""
    session.install(".[test]")
    session.run("python", "benchmarks/run.py", *session.posargs, env=environment(session))
