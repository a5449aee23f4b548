"""Ask a researcher with tools: all questions advance together, one batch for each turn.

    python examples/research.py --sandbox                  # tried out: nothing is sent or paid
    python examples/research.py "How deep is Cork?" …      # with your key

Killed and started again it goes on where it stood; what the almanac has said is not asked again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import claude_batch as cb

HERE = Path(__file__).parent / "researcher"


async def ask(questions: list[cb.ActorRequest], **settings: Any) -> int:
    """Print what each question comes to; returns how many were not answered."""
    failed = 0
    async with cb.load_actor(HERE / "researcher.yaml", **settings) as researcher:
        async for result in researcher.respond_all(questions):
            if result.response is None:
                failed += 1
                print(f"{result.key}: {result.error}")
                continue
            answer = result.response
            print(f"{result.key} ({answer.turns} turns): {answer.text}")
    return failed


def main() -> int:
    """Ask what is given, or the questions beside the actor; returns the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("questions", metavar="QUESTION", nargs="*")
    parser.add_argument("--sandbox", action="store_true", help="try it: nothing is sent or paid")
    given = parser.parse_args()
    lines = (HERE / "questions.jsonl").read_text("utf-8").splitlines()
    questions = [cb.ActorRequest.of(json.loads(line)) for line in lines]
    if asked := given.questions:
        questions = [cb.ActorRequest(text, key=f"question {n}") for n, text in enumerate(asked, 1)]
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if given.sandbox:
            from claude_batch.sandbox import SandboxServer

            server = stack.enter_context(SandboxServer(latency=0.2, uses_tools=True))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            settings = {"base_url": server.url, "api_key": "sk-sandbox", "poll_interval": 0.1}
            settings["ledger"] = f"{folder}/ledger.db"
        return 1 if asyncio.run(ask(questions, **settings)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cb.ActorError as error:  # a wrong key, a halted account, a wait that was too long
        sys.exit(str(error))
