"""Whether conversations were weathered: no tool ran twice, and each turn follows from an answer.

Each run of a tool has left a note with a mark of its own, and the mark stands in what it returned
(`robot/scripts/storm_tools.py`). So the notes tell how often a tool ran, the ledger's rows of calls
which run's result was recorded, and the answer which result the model was shown. When processes
began, and which of them were killed, is known from those who started and killed them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

REPEATABLE = {"record": False, "measure": True}
"""The tools, and whether they may be run again where they were interrupted."""

_PAUSES = re.compile(r"\[\[sandbox:pause:?(\d*)\]\]")
_MARKS = re.compile(r"\s*\[\[[^\]]*\]\]")


def subject_of(prompt: str) -> str:
    """A prompt without what the sandbox is told in it: what its tools are called with."""
    return _MARKS.sub("", prompt)


def calls_tools(prompt: str) -> bool:
    """Whether the sandbox calls each tool once before it answers this prompt."""
    return "[[sandbox:tools" in prompt


def turns_of(prompt: str) -> int:
    """How many turns the sandbox's model takes for a prompt, the last answer included."""
    pauses = sum(int(count or 1) for count in _PAUSES.findall(prompt))
    calls = 1 if "[[sandbox:tools:all]]" in prompt else len(REPEATABLE)
    return pauses + (calls if calls_tools(prompt) else 0) + 1


class ToolTrial:
    """Judges the runs of tools."""

    def __init__(self, evidence: Json) -> None:
        self.killed = [each for each in evidence["processes"] if each["killed"]]
        prompts = {row["id"]: row["prompt"] for row in evidence["requests"]}
        self.runs: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for note in evidence["notes"]:
            self.runs[note["tool"], note["subject"]].append(note)
        self.calls: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for call in evidence["tool_calls"]:
            self.calls[call["name"], subject_of(prompts[call["request"]])].append(call)
        # A process tells its own number only by the notes whose results it has recorded.
        marks = {note["mark"]: note["pid"] for note in evidence["notes"]}
        self.pids = {
            call["process"]: pid
            for call in evidence["tool_calls"]
            for mark, pid in marks.items()
            if mark in (call["output"] or "")
        }
        self.stopped = {
            subject_of(asked["prompt"])
            for role, lines in evidence["outputs"].items()
            for asked, line in zip(evidence["asked"][role], lines, strict=False)
            if not line["ok"] and line["error"]["type"] in ("tool_interrupted", "canceled")
        }

    def findings(self) -> Iterator[str]:
        """Everything that is wrong with how tools ran."""
        for tool, subject in sorted(self.runs.keys() | self.calls.keys()):
            runs, calls = self.runs[tool, subject], self.calls[tool, subject]
            told = f"the tool {tool} for {subject!r}"
            if len(calls) > 1:
                yield f"{told} was called {len(calls)} times"
            if not calls:
                yield f"{told} ran, and no call of it is in the ledger"
            yield from self._run_findings(told, runs, REPEATABLE[tool])
            for call in calls:
                yield from self._call_findings(told, call, runs, subject)

    def _run_findings(self, told: str, runs: list[Json], repeatable: bool) -> Iterator[str]:
        if len(runs) > 1 and not repeatable:
            yield f"{told} ran {len(runs)} times, and is not repeatable"
        killed = {each["pid"] for each in self.killed}
        for run in runs[:-1]:
            if run["pid"] not in killed:
                yield f"{told} ran again, though process {run['pid']}, which ran it, was not killed"

    def _call_findings(
        self, told: str, call: Json, runs: list[Json], subject: str
    ) -> Iterator[str]:
        if call["finished"] is None:
            if subject not in self.stopped:
                yield f"{told} has no result, and its conversation went on"
            return
        marked = [at for at, run in enumerate(runs, 1) if run["mark"] in call["output"]]
        if not marked:
            yield f"{told} has a result which is no run's: {call['output']!r}"
        elif marked[0] < len(runs):
            yield f"{told} ran again after its result was recorded"

    def interruption_findings(self, told: str, prompt: str) -> Iterator[str]:
        """A conversation that ended since a tool was interrupted: whether one was, by a death."""
        broken = [
            call
            for tool, repeatable in REPEATABLE.items()
            for call in self.calls[tool, subject_of(prompt)]
            if call["finished"] is None and not repeatable
        ]
        if not broken:
            yield f"no tool was interrupted that must not be run again: {told}"
        for call in broken:
            if not any(self._may_have_run(each, call) for each in self.killed):
                yield f"no death has interrupted a tool: {told}"

    def _may_have_run(self, process: Json, call: Json) -> bool:
        there = process["began"] <= call["started"] <= process["ended"]
        return there and self.pids.get(call["process"], process["pid"]) == process["pid"]

    def answer_findings(self, prompt: str, text: str) -> Iterator[str]:
        """An answer, after all its tools: it tells of the results that were recorded."""
        if not calls_tools(prompt):
            return
        subject = subject_of(prompt)
        for tool in REPEATABLE:
            runs = self.runs[tool, subject]
            if not runs or runs[-1]["mark"] not in text:
                yield f"{prompt!r} is answered without what {tool} gave: {text!r}"
