"""Evaluate an actor over a CSV of questions with expected answers: asked, then graded.

    python examples/evaluation/evaluate.py --sandbox                 # tried out: made-up answers
    python examples/evaluation/evaluate.py my-questions.csv          # with your key

The CSV has the columns `id`, `question` and `expected`. Two runs: one asks every question, one
has every answer that is not literally the expected one judged. The same command again costs
nothing, and goes on where the last one was interrupted.
"""

from __future__ import annotations

import asyncio
import csv
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

import claude_batch as cb

HERE = Path(__file__).parent


class Question(NamedTuple):
    id: str
    question: str
    expected: str


class Verdict(BaseModel):
    right: bool
    why: str


def read(path: Path) -> list[Question]:
    """The rows of the CSV. Raises ``KeyError`` for one that lacks a column."""
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream))
    return [Question(row["id"], row["question"], row["expected"]) for row in rows]


def same(answer: str, expected: str) -> bool:
    """Whether nobody needs to be asked."""
    return answer.strip().rstrip(".").casefold() == expected.strip().casefold()


def about(question: Question, answer: str) -> str:
    """What the judge is asked."""
    return (
        f"<question>{question.question}</question>\n<expected>{question.expected}</expected>\n"
        f"<answer>{answer}</answer>"
    )


async def evaluate(questions: list[Question], **settings: Any) -> int:
    """Print a line for each question, and the score; returns how many have no verdict."""
    async with (
        cb.load_actor(HERE / "student.yaml", **settings) as student,
        cb.load_actor(HERE / "judge.yaml", **settings) as judge,
    ):
        asked = [cb.ActorRequest(each.question, key=each.id) for each in questions]
        answers = {result.key: result async for result in student.respond_all(asked)}
        texts = {key: result.response.text for key, result in answers.items() if result.response}
        verdicts = {
            each.id: Verdict(right=True, why="literally the expected answer")
            for each in questions
            if same(texts.get(each.id, ""), each.expected)
        }
        faults = {key: result.error for key, result in answers.items() if not result.ok}
        doubtful = [
            cb.ActorRequest(about(each, texts[each.id]), key=each.id)
            for each in questions
            if each.id in texts and each.id not in verdicts
        ]
        if doubtful:
            async for result in judge.respond_all(doubtful, output_format=Verdict):
                if result.response is not None:
                    verdicts[str(result.key)] = result.response.parsed_output
                else:
                    faults[result.key] = result.error
    for each in questions:
        verdict = verdicts.get(each.id)
        word = "?" if verdict is None else "right" if verdict.right else "wrong"
        print(f"{each.id}: {word} ({faults[each.id] if verdict is None else verdict.why})")
    right = sum(verdict.right for verdict in verdicts.values())
    print(f"{right} of {len(questions)} right, {len(questions) - len(verdicts)} without a verdict")
    return len(questions) - len(verdicts)


def main() -> int:
    """Evaluate over the CSV that is named, or the one beside this program; the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="CSV", nargs="?", type=Path, default=HERE / "questions.csv")
    parser.add_argument("--sandbox", action="store_true", help="try it: nothing is sent or paid")
    given = parser.parse_args()
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if given.sandbox:
            from claude_batch.sandbox import SandboxServer

            server = stack.enter_context(SandboxServer(latency=0.2))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            settings = {"base_url": server.url, "api_key": "sk-sandbox", "poll_interval": 0.1}
            settings["ledger"] = f"{folder}/ledger.db"
        return 1 if asyncio.run(evaluate(read(given.path), **settings)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cb.ActorError as error:  # a wrong key, a halted account, a wait that was too long
        sys.exit(str(error))
    except (OSError, KeyError) as error:
        sys.exit(f"the questions cannot be read: {error}")
