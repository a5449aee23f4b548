"""What durability costs: N requests through `claude-batch run`, the bare SDK, and a floor.

    python benchmarks/run.py [--requests 100000] [--rounds 3] [--json FILE]

Prints medians, their ratios, and whether the promises of `docs/explanation/performance.md` are
kept. Exit codes: 0 kept (or not judged, below 100,000 requests), 1 broken, 2 the measuring itself
failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from contest import CONTESTANTS, Round, check_same_requests, run_contestant
from processes import Failed
from report import Report
from workload import Workload, prepare

WARM_UP_REQUESTS = 200


def main() -> int:
    """Run the rounds, print the report, and judge it."""
    parser = argparse.ArgumentParser(
        description="N requests through claude-batch, the bare SDK, and a floor.",
    )
    parser.add_argument("--requests", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    options = parser.parse_args()
    if options.requests < 1 or options.rounds < 1:
        parser.error("--requests and --rounds are at least 1")
    try:
        report = measure(options.requests, options.rounds)
    except Failed as failure:
        print(f"the benchmark could not be run: {failure}", file=sys.stderr)
        return 2
    print(report.text())
    if options.json is not None:
        options.json.write_text(json.dumps(report.values(), indent=2) + "\n", encoding="utf-8")
    return 1 if report.broken else 0


def measure(requests: int, rounds: int) -> Report:
    """Every contestant once a round, one after the other, so that a busy minute hits them all."""
    with tempfile.TemporaryDirectory(prefix="claude-batch-benchmark-") as temporary:
        folder = Path(temporary)
        # Compiles the bytecode, and shows that all three ask for the same, before it counts.
        small = prepare(folder / "warm-up", WARM_UP_REQUESTS)
        check_same_requests(play(small, folder / "warm-up", "warm-up"))
        workload = prepare(folder, requests)
        return Report(
            requests=requests,
            body_bytes=workload.body.stat().st_size,
            rounds=[
                play(workload, folder, f"round {number} of {rounds}")
                for number in range(1, rounds + 1)
            ],
        )


def play(workload: Workload, folder: Path, name: str) -> Round:
    """One round; tells on standard error what it is doing."""
    measured: Round = {}
    for contestant in CONTESTANTS:
        print(f"{name}: {contestant.name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            measured[contestant.name] = run_contestant(contestant, workload, Path(own))
    return measured


if __name__ == "__main__":
    sys.exit(main())
