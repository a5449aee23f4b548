"""Robot keywords for the files that go into and come out of `claude-batch`.

Write Prompts    prompts.jsonl    10000
${answers} =    Read Answers    answers.jsonl
Ids Should Count Up    ${answers}    10000
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from robot.api.deco import keyword, library
from robot.libraries.BuiltIn import BuiltIn

SUCCESS = (
    "id",
    "ok",
    "text",
    "content",
    "stop_reason",
    "model",
    "usage",
    "batch_id",
    "attempt",
    "via",
)
PRICED = (*SUCCESS, "cost_usd")
FAILURE = ("id", "ok", "error", "batch_id", "attempt")
CONTINUED = (*FAILURE, "cost_usd")
"""Of a failure after turns that were paid for."""
ANSWERED = ("id", "ok", "error", "text", *SUCCESS[4:], "cost_usd")
"""Of a failure that came with an answer, which was paid for."""


@library(scope="SUITE")
class AnswerFiles:
    """Writes prompts and reads answers; relative paths lie in the test's scratch folder."""

    @keyword
    def write_prompts(self, name: str, count: int, word: str = "question") -> Path:
        """Write JSON lines of so many different prompts, each with its number in it."""
        path = self._path(name)
        lines = (json.dumps(f"{word} number {at}") for at in range(1, count + 1))
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    @keyword
    def read_answers(self, name: str | Path) -> list[dict[str, Any]]:
        """The objects of an output file."""
        return self.answers_in(self._path(name).read_text(encoding="utf-8"))

    @keyword
    def answers_in(self, text: str) -> list[dict[str, Any]]:
        """The objects of an output; fails if it is anything but lines of JSON objects."""
        if text and not text.endswith("\n"):
            raise AssertionError(f"the last line has no end: {text[-80:]!r}")
        answers = [json.loads(line) for line in text.splitlines()]
        for answer in answers:
            billed = ANSWERED if "text" in answer else CONTINUED
            failure = billed if "cost_usd" in answer else FAILURE
            expected = PRICED if answer["ok"] else failure
            # An answer of a model without a price has no cost, rather than none to pay.
            if tuple(answer) != expected and not (answer["ok"] and tuple(answer) == SUCCESS):
                raise AssertionError(f"the keys are {list(answer)}, not {list(expected)}")
        return answers

    @keyword
    def ids_should_be(self, answers: list[dict[str, Any]], *ids: str | Path) -> None:
        """Fail unless these are the ids, in this order."""
        found, expected = [answer["id"] for answer in answers], [str(each) for each in ids]
        if found != expected:
            raise AssertionError(f"the ids are {found}, not {expected}")

    @keyword
    def ids_should_count_up(
        self, answers: list[dict[str, Any]], count: int, word: str = "question"
    ) -> None:
        """Fail unless line n answers prompt n, each of them with success."""
        if len(answers) != count:
            raise AssertionError(f"there are {len(answers)} answers, not {count}")
        for at, answer in enumerate(answers, 1):
            right = answer["id"] == str(at) and answer["ok"]
            if not right or f"{word} number {at}" not in answer["text"]:
                raise AssertionError(f"line {at} is {answer}")

    @keyword
    def run_id_in(self, text: str) -> str:
        """The first run's id that a text names."""
        found = re.search(r"run-[0-9a-z]{10}\b", text)
        if found is None:
            raise AssertionError(f"no run's id in {text!r}")
        return found.group()

    @keyword
    def resume_command_in(self, text: str) -> list[str]:
        """The arguments of the `claude-batch resume` that a message tells to type."""
        found = re.search(r"continue with: claude-batch (resume \S+.*)$", text, re.MULTILINE)
        if found is None:
            raise AssertionError(f"it is not told how to go on: {text!r}")
        return found.group(1).split()

    def _path(self, name: str | Path) -> Path:
        folder = BuiltIn().run_keyword("Scratch Folder")
        return Path(str(folder)) / name
