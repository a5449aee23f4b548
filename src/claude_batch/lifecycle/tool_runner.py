"""Tools: find the functions that answer tool calls in this process, and run them.

A function runs on a daemon thread, and another one waits for it no longer than its timeout. So a
function that hangs blocks neither the driver nor the exit of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from claude_batch.core.user_functions import described
from claude_batch.lifecycle.threads import EventLoopThread, SharedEventLoop
from claude_batch.wire.conversation import Judge, ToolUse

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

TOOLS_AT_ONCE = 16
"""Most tool functions that run at the same time, unless the process asks for another number."""

ASKING_AT_ONCE = 256
"""Most functions that run beside those, because they wait for answers of claude-batch."""

ToolOutput = tuple[bytes, bool]
"""Content of a tool's result as JSON, and whether it is an error."""


class Tool(Protocol):
    """One function that the model may call."""

    @property
    def name(self) -> str:
        """Name by which the model calls it."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether it may run again after it was interrupted."""
        ...

    @property
    def timeout(self) -> float:
        """Timeout in seconds."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether `run` certainly returns a coroutine; another one may, too."""
        ...

    def run(self, arguments: bytes) -> ToolOutput | Coroutine[Any, Any, ToolOutput]:
        """Call the function with the arguments' JSON; an error is returned as output too."""
        ...

    def failed(self, words: str) -> ToolOutput:
        """Return the output that reports a failure to the model."""
        ...


Tools = Mapping[str, Tool]
"""Functions by the names that the model uses."""


class ToolFinder(Protocol):
    """Finder of the functions that a run of the ledger names."""

    @property
    def offered(self) -> int:
        """Counter that increases when this process offers more functions.

        A search that failed before may then succeed.
        """
        ...

    def find(self, remembered: str) -> Tools:
        """Return the functions that a run names; raise an error if they are missing here."""
        ...


class ConversationSettings(msgspec.Struct, frozen=True):
    """The settings that make the requests of a run conversations."""

    remembered: str | None = None
    """The functions that they may call, as JSON: a list of objects with at least ``name``."""
    tools: Tools | None = None
    """The functions themselves, if the caller has them."""
    judge: Judge | None = None
    """The caller's function that judges answers."""

    def __hash__(self) -> int:
        # By identity: other functions with the same names belong to another run.
        return hash((self.remembered, id(self.tools), id(self.judge)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConversationSettings)
            and self.remembered == other.remembered
            and self.tools is other.tools
            and self.judge is other.judge
        )


class _Named(msgspec.Struct):
    name: str


@lru_cache(maxsize=64)
def _names_in(remembered: str) -> frozenset[str]:
    try:
        return frozenset(each.name for each in msgspec.json.decode(remembered, type=list[_Named]))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return frozenset()


class Workbench:
    """The functions and judges that this process has for the runs of a ledger."""

    def __init__(self, finder: ToolFinder | None = None, process: str = "") -> None:
        """Set up the workbench; ``finder`` finds the functions that a run names.

        ``process`` is the id of this process in the ledger.
        """
        self.process = process
        self._finder = finder
        self._given: dict[str, Tools] = {}
        self._judges: dict[str, Judge] = {}
        self._own_judges: dict[str, Mapping[int, Judge]] = {}
        self.given_runs: deque[str] = deque()
        """The runs, not of single calls, that were given functions and may still need them."""
        self._found: dict[str, Tools] = {}
        self._missing: dict[str, tuple[int, str]] = {}
        """For missing functions: the finder's count at the last search, and the reason."""
        self._warned: set[str] = set()
        self._refused: dict[str, str] = {}
        """The reason by run, for runs whose functions were needed."""
        self.helps: bool = False
        """Whether this process also runs functions for runs that another process drives."""
        self.most_running: int = TOOLS_AT_ONCE
        """Most functions that run here at the same time, in each workspace."""
        self.calls_here: dict[tuple[int, int, str], bool] = {}
        """Calls (request, sending and the API's id) that a driver of this process may have recorded
        as started, and that are not over; whether each one's function has begun. It has not if the
        answer to a COMMIT was lost or there was no thread."""
        self.is_closing: bool = False
        """Whether this process leaves the ledger, and so starts no tool any more."""

    def give(
        self,
        run_id: str,
        tools: Tools | None,
        judge: Judge | None,
        own_judges: Mapping[int, Judge] | None = None,
    ) -> None:
        """Register the functions and the judge that a caller in this process has for a run.

        ``own_judges`` are those of requests that have another one, by position.
        """
        if tools is not None:
            self._given[run_id] = tools
        if judge is not None:
            self._judges[run_id] = judge
        if own_judges:
            self._own_judges[run_id] = own_judges

    def forget(self, run_id: str) -> None:
        """Forget the functions of a run that has ended."""
        for known in (self._given, self._judges, self._own_judges, self._refused):
            known.pop(run_id, None)

    def judge_of(self, run_id: str, position: int) -> Judge | None:
        """Return the judge that a caller in this process supplied for a request, or `None`."""
        own = self._own_judges.get(run_id, {})
        return own.get(position) or self._judges.get(run_id)

    def judges(self, run_id: str) -> bool:
        """Return whether a caller in this process supplied a judge for any request of the run."""
        return run_id in self._judges or run_id in self._own_judges

    @property
    def has_any(self) -> bool:
        """Whether this process runs any function while another process drives."""
        return self.helps or bool(self._given or self._judges or self._own_judges)

    def runs_undriven(self, run_id: str) -> bool:
        """Return whether this process runs a run's functions while another process drives."""
        return self.helps or run_id in self._given

    def names_of(self, run_id: str, remembered: str) -> Collection[str]:
        """Return the names of a run's tools; empty if the ledger's list of them is unreadable."""
        given = self._given.get(run_id)
        return _names_in(remembered) if given is None else given.keys()

    def tools_of(self, run_id: str, remembered: str) -> Tools | None:
        """Return the functions of a run.

        `None` if this process does not have them, or must not import them.
        """
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
        if why not in self._warned:
            self._warned.add(why)
            _log.warning(
                "the tools of %s are not available here: %s. Its conversations wait, and "
                "nothing is lost",
                run_id,
                why,
                extra={"for_people": True},
            )
        return None

    def why_not(self, run_id: str) -> str | None:
        """Return why this process does not run a run's tools;

        `None` if it does or was not asked.
        """
        return None if run_id in self._given else self._refused.get(run_id)


TIMEOUT_GRACE = 2.0
"""Seconds after a function's timeout in which its own result still counts."""


_loop = SharedEventLoop("claude-batch-tools")
"""One event loop for all asynchronous tools, so that they can share objects bound to it."""


def check_blocking(tools: Tools | None) -> None:
    """Raise `ActorConfigurationError` if waiting for a conversation would block its own tools.

    That is so in an asynchronous tool, if ``tools``, those of the conversation, have one too.
    """
    if tools and any(tool.is_async for tool in tools.values()):
        _loop.check_blocking()


def in_asynchronous_tool() -> bool:
    """Return whether the caller runs on the event loop of the asynchronous tools."""
    return _loop.is_current


_on_ask: ContextVar[Callable[[], None] | None] = ContextVar("on_ask", default=None)
"""In a tool's function, or one that judges: what is called when it asks claude-batch."""


def note_asking() -> None:
    """Note that the caller, if it is such a function, waits for an answer of claude-batch."""
    if (on_ask := _on_ask.get()) is not None:
        on_ask()


@contextlib.contextmanager
def asking(on_ask: Callable[[], None]) -> Generator[None]:
    """Call ``on_ask``, on any thread, each time the block asks claude-batch for something."""
    token = _on_ask.set(on_ask)
    try:
        yield
    finally:
        _on_ask.reset(token)


def run_call(
    tools: Tools,
    use: ToolUse,
    done: Callable[[ToolOutput], None],
    on_ask: Callable[[], None] | None = None,
) -> None:
    """Run the function that a call names; ``done`` receives its output once, on another thread.

    If there is no such function, ``done`` is called at once, with an error for the model.
    ``on_ask`` is called, on any thread, each time the function asks claude-batch for something.

    Raises ``RuntimeError`` if the system has no more threads; the function has not begun then.
    """
    tool = tools.get(use.name)
    if tool is None:
        known = ", ".join(sorted(tools))
        done((msgspec.json.encode(f"there is no tool {use.name!r}; there are: {known}"), True))
        return
    arguments = bytes(use.input)
    future: Future[Any] = Future()
    # All threads that it needs start first: a function that has none must not be reported as failed
    # to the model, which would answer in a turn that is paid for.
    go = threading.Event()
    if tool.is_async:
        _loop.start()
    else:
        _start(tool, lambda: _run_into(future, go, tool, arguments, on_ask))
    try:
        _start(tool, lambda: done(_output(tool, future, arguments, on_ask)))
    except BaseException:
        future.cancel()
        raise
    finally:
        go.set()


def _start(tool: Tool, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=f"claude-batch-tool-{tool.name}", daemon=True).start()


def _output(
    tool: Tool, future: Future[Any], arguments: bytes, on_ask: Callable[[], None] | None
) -> ToolOutput:
    """Return a function's output, or an error if it raises or exceeds its timeout.

    ``future`` is that of `_run_into` if the function is not asynchronous.
    """
    output: ToolOutput | Coroutine[Any, Any, ToolOutput]
    loop: EventLoopThread | None = None
    _on_ask.set(on_ask)  # a coroutine runs in a copy of this thread's context
    try:
        if tool.is_async:
            output = tool.run(arguments)
        else:
            output = future.result(tool.timeout + TIMEOUT_GRACE)
        if isinstance(output, Coroutine):
            loop, future = _loop.begin(asyncio.wait_for(_noted(tool.name, output), tool.timeout))
            return future.result(tool.timeout + TIMEOUT_GRACE)
        return output
    except TimeoutError:
        words = f"the tool {tool.name} returned no result within {tool.timeout:g} seconds"
        if not future.done() and loop is not None:
            begun = ", ".join(sorted({*_on_loop.values()}))
            words += f": the event loop of the asynchronous tools is blocked; on it run: {begun}"
            _log.warning("%s", words)
            _loop.abandon(loop)
        elif not future.done():
            _log.warning("%s; it still runs on its thread, and its result is ignored", words)
        return tool.failed(words)
    except BaseException as error:  # any exception is reported to the model
        return tool.failed(described(error))


_on_loop: dict[int, str] = {}
"""The names of the asynchronous tools that have begun, by the ids of their coroutines."""


async def _noted(name: str, work: Coroutine[Any, Any, _T]) -> _T:
    _on_loop[id(work)] = name
    try:
        return await work
    finally:
        del _on_loop[id(work)]


def _run_into(
    future: Future[Any],
    go: threading.Event,
    tool: Tool,
    arguments: bytes,
    on_ask: Callable[[], None] | None,
) -> None:
    """Run a function once it may ``go``, unless the future is cancelled by then."""
    go.wait()
    if not future.set_running_or_notify_cancel():
        return
    _on_ask.set(on_ask)
    try:
        output = tool.run(arguments)
    except BaseException as error:
        output = tool.failed(described(error))
    future.set_result(output)
