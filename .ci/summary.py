"""Add up what a run of nox left under `build/`, with `N passed, N failed` as the last line.

Above it are the slow features, the sessions, and each failure with its reason.
Scenarios come from Behave's JUnit files, tests from Robot's output.xml, and every other session of
nox's report counts as one. A session of tests that failed without a failed test (it could not
start, say) counts as one failure. Exits with 1 if anything failed or no test ran.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SLOWEST = 10
"""How many of the slowest features are listed."""

REASON = 20
"""Lines of the reason why a test failed: what the log of a long run keeps is often only its end."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def scenarios(folder: Path) -> Counter[str]:
    """Outcomes of the scenarios in a folder of JUnit files."""
    outcomes: Counter[str] = Counter()
    for report in sorted(folder.rglob("*.xml")):
        for case in roots(report, "testcase"):
            if case.find("skipped") is not None:
                outcomes[SKIPPED] += 1
            elif case.find("failure") is not None or case.find("error") is not None:
                outcomes[FAILED] += 1
            else:
                outcomes[PASSED if case.get("status", PASSED) == PASSED else FAILED] += 1
    return outcomes


def robot_tests(output: Path) -> Counter[str]:
    """Outcomes of the tests in Robot's output.xml."""
    named = {"PASS": PASSED, "SKIP": SKIPPED}
    outcomes: Counter[str] = Counter()
    for test in roots(output, "test"):
        status = test.find("status")
        outcomes[named.get("" if status is None else status.get("status", ""), FAILED)] += 1
    return outcomes


def roots(report: Path, tag: str) -> Iterator[ET.Element]:
    """The elements of that tag; a report that was cut off has none."""
    try:
        yield from ET.parse(report).iter(tag)
    except (OSError, ET.ParseError) as error:
        print(f"{report}: {error}")


def sessions(build: Path) -> dict[str, tuple[str, float]]:
    """Outcome and seconds of each session by name, in the order in which they ended.

    `suites` starts sessions in processes of their own, each with a report.
    """
    found: dict[str, tuple[str, float]] = {}
    for report in (build / "nox.json", *sorted(build.glob("nox-*.json"))):
        try:
            listed = json.loads(report.read_text())["sessions"]
        except (OSError, ValueError, KeyError) as error:
            print(f"{report}: {error}")
            continue
        for each in listed:
            found[each["name"]] = each["result"], float(each.get("duration") or 0)
    return found


def slowest(build: Path) -> Iterator[str]:
    """A line for each of the slowest features of a run, the longest first."""
    longest_first = sorted(features(build), key=lambda each: each["seconds"], reverse=True)
    for each in longest_first[:SLOWEST]:
        name = f"{each['session']}: {each['name']}"
        yield f"{each['seconds']:7.0f} s, {each['cpu']:5.0f} s of CPU  {name}"


def features(build: Path) -> Iterator[dict[str, Any]]:
    """What `features/pool.py` wrote of each feature, with its session."""
    for report in sorted(build.glob("junit/*/times.json")):
        for each in json.loads(report.read_text()):
            yield {**each, "session": report.parent.name}


def failures(build: Path) -> Iterator[str]:
    """Each failed feature and test by name, a test with the end of its reason."""
    for each in features(build):
        if not each["passed"]:
            yield f"failed: {each['session']}: {each['name']}"
    for report in sorted(build.glob("junit/*/**/*.xml")):
        for case in roots(report, "testcase"):
            for reason in (*case.iter("failure"), *case.iter("error")):
                yield failure(f"{case.get('classname')}: {case.get('name')}", reason.text)
    for output in build.glob("robot/output.xml"):
        for test in roots(output, "test"):
            status = test.find("status")
            if status is not None and status.get("status") == "FAIL":
                yield failure(f"{test.get('name')}", status.text)


def failure(name: str, reason: str | None) -> str:
    """One failed test, as it is printed."""
    lines = [line for line in (reason or "").splitlines() if line.strip()]
    return "\n    ".join([f"failed: {name}", *lines[-REASON:]])


def is_tests(session: str) -> bool:
    """Whether a session's own tests are counted, rather than the session."""
    return session.startswith(("unit_tests", "integration_tests"))


def summed_up(build: Path, ended: dict[str, tuple[str, float]]) -> dict[str, Counter[str]]:
    """Outcomes by nox session."""
    summary: dict[str, Counter[str]] = {}
    results = {folder.name: scenarios(folder) for folder in sorted(build.glob("junit/*"))}
    if (build / "robot").is_dir():
        results["integration_tests"] = robot_tests(build / "robot" / "output.xml")
    for name, (result, _) in ended.items():
        good = result == "success"
        # What `suites` has started is counted itself.
        if result == "skipped" or (good and name == "suites"):
            continue
        if is_tests(name):
            summary[name] = results.pop(name, Counter())
            if not good and not summary[name][FAILED]:
                summary[name][FAILED] = 1
        else:
            summary[name] = Counter({PASSED if good else FAILED: 1})
    # Results of sessions that nox did not live to report.
    return {**summary, **results}


def main(build: Path) -> int:
    """Print the table and the sum; the exit code."""
    ended = sessions(build)
    summary = summed_up(build, ended)
    for line in slowest(build):
        print(line)
    for name, outcomes in summary.items():
        counts = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items() if n)
        print(f"{name:<20}{ended.get(name, ('', 0))[1]:6.0f} s  {counts}")
    total = sum(summary.values(), Counter[str]())
    tests = sum(outcomes[PASSED] for name, outcomes in summary.items() if is_tests(name))
    for line in failures(build):
        print(line)
    if not tests:
        print("no test ran")
    print(f"{total[PASSED]} passed, {total[FAILED]} failed")
    return 1 if total[FAILED] or not tests else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else "build")))
