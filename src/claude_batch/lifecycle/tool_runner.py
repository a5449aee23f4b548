"""Functions that answer calls of tools: who has them here, and running them.

A function runs on a thread that nobody waits for at the end, so one that hangs holds up neither the
driver nor the process's exit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

__all__ = [
    "Judge",
    "Talk",
    "Tool",
    "ToolFinder",
    "ToolOutput",
    "Tools",
    "Workbench",
    "no_such_tool",
    "run_tool",
    "timed_out",
]

_log = logging.getLogger(__name__)

Judge = Callable[[bytes], str | None]
"""Says what is wrong with an answer (a Message's JSON); None for nothing."""

ToolOutput = tuple[bytes, bool]
"""Content of a tool's result as JSON, and whether it tells of an error."""


class Tool(Protocol):
    """One function that the model may call."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether it may be run again after it was killed in its middle."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that it may take."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether `run` gives a coroutine."""
        ...

    def run(self, arguments: bytes) -> ToolOutput | Coroutine[Any, Any, ToolOutput]:
        """Call the function with the arguments' JSON; an error is an output too."""
        ...

    def failed(self, words: str) -> ToolOutput:
        """The output that tells the model why there is none."""
        ...


Tools = Mapping[str, Tool]
"""Functions by the names that the model calls them by."""


class ToolFinder(Protocol):
    """Finds the functions that a run of the ledger names."""

    @property
    def offered(self) -> int:
        """Rises when this process offers more functions: what was not found may be by now."""
        ...

    def find(self, remembered: str) -> Tools:
        """The functions that a run remembers; raises an error that says why they are not here."""
        ...


@dataclass(frozen=True, slots=True)
class Talk:
    """What makes the requests of a run conversations."""

    remembered: str | None = None
    """The functions that they may call, as JSON: a list of objects with at least ``name``."""
    tools: Tools | None = None
    """The functions themselves, where the caller has them."""
    judge: Judge | None = None
    """What the caller judges answers by."""

    def __hash__(self) -> int:
        # By identity: other functions of the same names are another run's.
        return hash((self.remembered, id(self.tools), id(self.judge)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Talk)
            and self.remembered == other.remembered
            and self.tools is other.tools
            and self.judge is other.judge
        )


class _Named(msgspec.Struct):
    name: str


def _names_in(remembered: str) -> frozenset[str]:
    try:
        return frozenset(each.name for each in msgspec.json.decode(remembered, type=list[_Named]))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return frozenset()


class Workbench:
    """Which functions, and which judges of answers, this process has for the runs of a ledger."""

    def __init__(self, finder: ToolFinder | None = None, process: str = "") -> None:
        """``finder`` finds the functions that a run remembers.

        ``process`` is what the ledger knows this process by.
        """
        self.process = process
        self._finder = finder
        self._given: dict[str, Tools] = {}
        self._judges: dict[str, Judge] = {}
        self._found: dict[str, Tools] = {}
        self._missing: dict[str, tuple[int, str]] = {}
        """Why functions are not here, and how many this process offered when that was found."""
        self._told: set[str] = set()
        self._refused: dict[str, str] = {}
        """The same by run, for those whose functions were needed."""
        self.running: set[tuple[int, int, str]] = set()
        """Calls that run in this process: request, sending and the API's id of each."""

    def give(self, run_id: str, tools: Tools | None, judge: Judge | None) -> None:
        """A caller in this process has these for a run."""
        if tools is not None:
            self._given[run_id] = tools
        if judge is not None:
            self._judges[run_id] = judge

    def judge_of(self, run_id: str) -> Judge | None:
        """What a caller in this process judges the run's answers by."""
        return self._judges.get(run_id)

    @property
    def has_given(self) -> bool:
        """Whether callers in this process have given any function."""
        return bool(self._given)

    def was_given(self, run_id: str) -> bool:
        """Whether a caller in this process has given the run's functions."""
        return run_id in self._given

    def names_of(self, run_id: str, remembered: str) -> Collection[str]:
        """The names of a run's tools; none if the ledger's list of them cannot be read."""
        given = self._given.get(run_id)
        return _names_in(remembered) if given is None else given.keys()

    def tools_of(self, run_id: str, remembered: str) -> Tools | None:
        """The functions of a run; None if this process does not have them, or must not import
        them."""
        given = self._given.get(run_id)
        if given is not None or self._finder is None:
            return given
        if (found := self._found.get(remembered)) is None:
            offered = self._finder.offered
            if self._missing.get(remembered, (-1, ""))[0] != offered:
                try:
                    found = self._found[remembered] = self._finder.find(remembered)
                except Exception as error:
                    self._missing[remembered] = (offered, str(error))
        if found is not None:
            self._refused.pop(run_id, None)
            return found
        why = self._refused[run_id] = self._missing[remembered][1]
        if why not in self._told:
            self._told.add(why)
            _log.warning(
                "the tools of run %s are not here: %s. Its conversations wait, and nothing is lost",
                run_id,
                why,
                extra={"for_people": True},
            )
        return None

    def why_not(self, run_id: str) -> str | None:
        """Why this process does not run a run's tools; None if it does, or was not asked to."""
        return None if run_id in self._given else self._refused.get(run_id)


class _Loop:
    """One event loop for all asynchronous tools, so that they can share what is bound to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, ToolOutput]) -> Future[ToolOutput]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="claude-batch-tools", daemon=True
                ).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def abandon(self) -> None:
        """Something blocks it: what comes next gets another one."""
        with self._lock:
            self._loop = None


_loop = _Loop()
# The parent's thread does not exist in the child.
os.register_at_fork(after_in_child=_loop.__init__)


def run_tool(tool: Tool, arguments: bytes, done: Callable[[ToolOutput], None]) -> None:
    """Run a function on a thread of its own; ``done`` is told there what came of it."""

    def run() -> None:
        try:
            if not tool.is_async:
                output = tool.run(arguments)
                assert not isinstance(output, Coroutine)
            else:
                output = _run_async(tool, arguments)
        except BaseException as error:  # whatever a function raises is the model's to know
            output = tool.failed(f"{type(error).__name__}: {error}")
        done(output)

    threading.Thread(target=run, name=f"claude-batch-tool-{tool.name}", daemon=True).start()


def _run_async(tool: Tool, arguments: bytes) -> ToolOutput:
    work = tool.run(arguments)
    assert isinstance(work, Coroutine)
    future = _loop.submit(asyncio.wait_for(work, tool.timeout))
    try:
        return future.result(tool.timeout + 1.0)
    except TimeoutError:
        if not future.done():
            _loop.abandon()
        return tool.failed(timed_out(tool))


def no_such_tool(name: str, tools: Tools) -> ToolOutput:
    """What the model is told that calls a tool which there is not."""
    known = ", ".join(sorted(tools))
    return msgspec.json.encode(f"there is no tool {name!r}; there are: {known}"), True


def timed_out(tool: Tool) -> str:
    """What the model is told where a function took too long."""
    return f"the tool {tool.name} gave no result within {tool.timeout:g} seconds"
