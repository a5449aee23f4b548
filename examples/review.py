"""Review the Python files that are named on the command line, and print the reviews as they come.

    python examples/review.py src/claude_batch/core/*.py

The same files asked again are the same run: what is paid for is not paid for again.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import claude_batch as cb

ACTOR = Path(__file__).parent / "actors" / "reviewer.yaml"


async def review(requests: list[cb.ActorRequest]) -> int:
    """Print each answer, with the name of its file; returns how many could not be had."""
    reviewer = cb.load_actor(ACTOR)
    failed = 0
    async for result in reviewer.respond_all(requests, ordered=False):
        failed += not result.ok
        print(f"── {result.key}")
        print(result.text if result.ok else result.error, flush=True)
    return failed


def main() -> int:
    """Ask for all files at once; returns the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="FILE", nargs="+")
    given = parser.parse_args()
    requests = [cb.ActorRequest(Path(path).read_text("utf-8"), key=path) for path in given.paths]
    return 1 if asyncio.run(review(requests)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cb.ActorError as error:  # a wrong key, a halted account, a wait that was too long
        sys.exit(str(error))
