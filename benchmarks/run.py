"""What durability costs, measured against the sandbox.

    python benchmarks/run.py [PART …] [--requests 100000] [--rounds 3] [--json FILE] [--page FILE]

Prints a table for each part, and which aims and promises of `docs/explanation/performance.md` were
met. Exit codes: 0 all promises kept, 1 a promise broken, 2 the measuring itself failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import rows
from contest import CLAUDE_BATCH, CONTESTANTS, SDK, Round, check_same_requests, run_contestant
from gateway import gateway
from processes import Failed
from report import contest
from sections import Goal, Section, today, versions, where
from workload import MIDDLE, SMALL, Shape, Workload, prepare

WARM_UP_REQUESTS = 200
GUARD_REQUESTS = 20_000
GUARD_CPU, GUARD_PEAK = 1.0, 130.0
"""Of the bare SDK's CPU, and megabytes. Both are a third above what is measured on a quiet machine,
so that a busy one does not fail a change that costs nothing."""


# These two import their module late: the guard's environment has no PostgreSQL.
def on_server(requests: int, rounds: int) -> Section:
    """A ledger on PostgreSQL, beside one in a file."""
    import servers

    return servers.on_server(requests, rounds)


def shared(_: int, rounds: int) -> Section:
    """Programs that share batches on a server."""
    import servers

    return servers.shared(rounds)


PARTS: dict[str, tuple[str, Callable[[int, int], Section]]] = {
    "small": ("small requests, beside the bare SDK and a floor", lambda n, r: sized(SMALL, n, r)),
    "middle": ("2 kB in, 1 kB out, beside both", lambda n, r: sized(MIDDLE, n, r)),
    "awaited": ("10,000 tasks that await an answer each", lambda _, r: rows.awaited(r)),
    "runs": ("100 runs of one process, beside one", lambda n, r: rows.runs(10 * n, r)),
    "waiting": ("200 batches that wait at the API", lambda _, __: rows.waiting(200)),
    "thousand": ("1,000 batches that wait at the API", lambda _, __: rows.waiting(1000)),
    "gateway": ("thousands of calls that wait at the gateway", lambda _, __: gateway()),
    "server": ("a ledger on PostgreSQL, beside one in a file", on_server),
    "shared": ("50 programs that share batches on it", shared),
    "commands": ("commands with little to do", lambda _, r: rows.commands(r)),
    "libraries": ("other libraries, if installed", lambda _, r: rows.libraries(r)),
    "million": ("ten times as many requests", lambda n, _: rows.million(10 * n)),
    "guard": (f"{GUARD_REQUESTS:,} requests; fails above its bounds", lambda _, r: guard(r)),
}
NOT_BY_DEFAULT = ("runs", "thousand", "gateway", "million", "server", "shared", "guard")
"""These take minutes, or need the extra `test`; the last is a part of continuous integration."""


def main() -> int:
    """Measure the parts, print each as soon as it is known, and judge."""
    parser = argparse.ArgumentParser(
        description="What durability costs, measured against the sandbox.",
        epilog="parts: " + "; ".join(f"{name}: {words}" for name, (words, _) in PARTS.items()),
    )
    default = [name for name in PARTS if name not in NOT_BY_DEFAULT]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(default)}")
    parser.add_argument("--requests", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    parser.add_argument("--page", type=Path, help="replace the parts' tables in this Markdown file")
    options = parser.parse_args()
    if options.requests < 100 or options.rounds < 1:
        parser.error("--requests is at least 100, and --rounds at least 1")
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part is named {' or '.join(sorted(unknown))}")
    parts: list[str] = options.parts or default
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        if missing := [name for name in parts if f"<!-- {name} -->\n" not in text]:
            parser.error(f"{options.page} has no place for {' and '.join(missing)}")
    sections: dict[str, Section] = {}
    print(where())
    try:
        for name in parts:
            sections[name] = PARTS[name][1](options.requests, options.rounds)
            print(f"\n{sections[name].text()}", flush=True)
            if options.page is not None:
                renew(options.page, name, sections[name].text())
    except Failed as failure:
        print(f"the benchmark could not be run: {failure}", file=sys.stderr)
        return 2
    if options.json is not None:
        values = {name: section.values for name, section in sections.items()}
        written = {"date": today(), "packages": versions(), "parts": values}
        options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return 1 if any(section.broken for section in sections.values()) else 0


def renew(page: Path, part: str, text: str) -> None:
    """Replace what stands between `<!-- PART -->` and `<!-- end -->` in a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise Failed(f"{page} has no place for {part}")
    measured = f"{text}\n\n*Measured: {where()}*\n"
    page.write_text(before + begin + "\n" + measured + "\n" + end + after, encoding="utf-8")


def sized(shape: Shape, requests: int, rounds: int) -> Section:
    """Every contestant once a round, one after the other, so that a busy minute hits them all."""
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        warm_up(folder, shape)
        workload = prepare(folder, requests, shape)
        return contest(
            workload,
            [play(workload, folder, f"round {n} of {rounds}") for n in range(1, rounds + 1)],
        )


def guard(rounds: int) -> Section:
    """Bounds for continuous integration: the first round within them is enough."""
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        warm_up(folder, SMALL)
        workload = prepare(folder, GUARD_REQUESTS)
        played: list[Round] = []
        while len(played) < rounds and not (played and bounded(played[-1])):
            played.append(play(workload, folder, f"try {len(played) + 1} of at most {rounds}"))
    section = contest(workload, played[-1:])
    words = (
        f"{GUARD_CPU} times the bare SDK's CPU, and {GUARD_PEAK:.0f} MB, in one of {rounds} tries"
    )
    return replace(section, goals=[Goal(words, bounded(played[-1]), promised=True)])


def bounded(measured: Round) -> bool:
    """Whether a round stays within the bounds of the guard."""
    own, sdk = measured[CLAUDE_BATCH.name].cost, measured[SDK.name].cost
    return own.cpu <= GUARD_CPU * sdk.cpu and own.peak <= GUARD_PEAK


def warm_up(folder: Path, shape: Shape) -> None:
    """Compile the bytecode, and show that all contestants ask for the same."""
    small = prepare(folder / "warm-up", WARM_UP_REQUESTS, shape)
    check_same_requests(play(small, folder / "warm-up", "warm-up"))


def play(workload: Workload, folder: Path, name: str) -> Round:
    """Play one round; reports on standard error what it is doing."""
    measured: Round = {}
    for contestant in CONTESTANTS:
        print(f"{name}: {contestant.name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            measured[contestant.name] = run_contestant(contestant, workload, Path(own))
    return measured


if __name__ == "__main__":
    sys.exit(main())
