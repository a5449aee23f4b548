"""Conversations: run the tools that an answer calls, and queue the next turn for a batch.

All progress follows from the ledger. A tool call is recorded before it starts and when its result
exists; a turn is queued once, from the answer that it follows. So after a crash, the next driver
continues from there, and a tool with a recorded result never runs again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.states import RequestState
from claude_batch.ledger import conversations, transitions
from claude_batch.ledger.conversations import NextTurn, Stop, ToolResult
from claude_batch.ledger.processes import is_alive
from claude_batch.ledger.store import Ledger, Record, Seat, Transaction
from claude_batch.lifecycle.tool_runner import (
    Tool,
    ToolOutput,
    Tools,
    Workbench,
    no_such_tool,
    run_tool,
    timed_out,
)
from claude_batch.wire.encoding import ITEM_OVERHEAD
from claude_batch.wire.limits import MAX_BODY_BYTES
from claude_batch.wire.messages import message_of_line
from claude_batch.wire.turns import (
    Outcome,
    ToolUse,
    after_pause,
    after_rejection,
    after_tools,
    correction,
    declared_tools,
    schema_problem,
    tool_uses,
)

_log = logging.getLogger(__name__)

TOOLS_AT_ONCE = 16
"""Most tool functions that run at the same time."""

PAGE = 1000
"""Number of conversations that are examined in one transaction."""

CHUNK_TURNS = 4000
CHUNK_BYTES = 32 << 20
"""Most turns, and most bytes of params, that are queued in one transaction."""

RESTS_PER_LIST = 5
"""Pause after a listing of all conversations, as a multiple of the time that it took."""

LOOKS_ELSEWHERE = 5.0
"""Seconds between two checks of conversations whose tools run in another process."""

_Call = tuple[int, int, str]
"""Request, sending and the API's id of a tool call."""


@dataclass(slots=True)
class _Standing:
    """State of a conversation between two turns, as far as this process handles it."""

    row: Record
    state: Literal["ready", "running", "elsewhere"]
    since: float = 0.0
    problem: str | None = None
    """What is wrong with its answer, if the model must correct it."""
    missing: set[str] = field(default_factory=set[str])
    """Ids of tool calls without a result."""


@dataclass(slots=True)
class _Verdicts:
    """Findings of one listing, to be written together."""

    ends: list[tuple[int, int, RequestState]] = field(
        default_factory=list[tuple[int, int, RequestState]]
    )
    stops: list[tuple[int, int, Stop, str]] = field(
        default_factory=list[tuple[int, int, Stop, str]]
    )


class Continuing:
    """The conversations of one workspace, driven from each turn to the next."""

    def __init__(self, ledger: Ledger, workbench: Workbench, wake: Callable[[], None]) -> None:
        """Set up the driver; ``wake`` is called on the tool's own thread when a tool has ended."""
        self._ledger = ledger
        self._workbench = workbench
        self._process = workbench.process
        self._wake = wake
        self._lock = threading.Lock()
        self._standing: dict[int, _Standing] = {}
        self._to_start: deque[tuple[_Call, ToolUse, str | None]] = deque()
        self._running: dict[_Call, tuple[Tool | None, float]] = {}
        self._finished: deque[ToolResult] = deque()
        self._unwritten: list[ToolResult] = []
        self._listed_until = float("-inf")

    @property
    def running(self) -> int:
        """Number of tools that run here now."""
        return len(self._running)

    def concerns(self, workspace_id: int) -> bool:
        """Return whether there is anything to do or to wait for."""
        if self._standing or self._running:
            return True
        with self._ledger.read() as tx:
            return conversations.is_continuing(tx, workspace_id)

    def look(
        self,
        workspace_id: int,
        seat: Seat | None,
        *,
        starting: bool = True,
        patient: bool = True,
    ) -> float:
        """Do all work that is possible now; return the seconds until the next look at the latest.

        Without a ``seat``, only tools that callers in this process supplied are run.
        ``starting=False`` starts no tool; ``patient=False`` queues every ready turn without waiting
        for others.

        Raises `Deposed` and `LedgerError`.
        """
        # A look that was abandoned with its driver may still be running.
        with self._lock:
            self._note_finished()
            begun = time.monotonic()
            listed = begun >= self._listed_until
            if listed:
                self._list(workspace_id, seat)
                cost = time.monotonic() - begun
                self._listed_until = begun + (RESTS_PER_LIST + 1) * cost if patient else begun
            if starting:
                self._start(seat)
                self._note_finished()
            if seat is not None:
                self._queue_ready(seat, patient)
            return self._rest(listed)

    def _rest(self, listed: bool) -> float:
        now = time.monotonic()
        times = [deadline for _, deadline in self._running.values()]
        times += [
            each.since + each.row.turn_linger
            for each in self._standing.values()
            if each.state == "ready"
        ]
        if not listed:
            # The event that caused this look may have brought something new to list.
            times.append(self._listed_until)
        if any(each.state == "elsewhere" for each in self._standing.values()):
            # No write to the ledger reports that the process of a tool has died, or that this
            # process has received its functions meanwhile.
            times.append(now + LOOKS_ELSEWHERE)
        return max(0.01, min(times) - now) if times else 60.0

    # What there is to do ------------------------------------------------------------------------

    def _list(self, workspace_id: int, seat: Seat | None) -> None:
        seen: set[int] = set()
        after = 0
        while True:
            verdicts = _Verdicts()
            with self._ledger.read() as tx:
                page = conversations.continuing(tx, workspace_id, after=after, limit=PAGE)
                for row in page:
                    seen.add(row.seq)
                    self._consider(tx, row, seat, verdicts)
            if seat is not None:
                self._write(seat, verdicts)
            if len(page) < PAGE:
                break
            after = page[-1].seq
        for seq in self._standing.keys() - seen:
            del self._standing[seq]

    def _write(self, seat: Seat, verdicts: _Verdicts) -> None:
        if not verdicts.ends and not verdicts.stops:
            return
        with self._ledger.write(seat) as tx:
            transitions.end_conversations(tx, verdicts.ends)
            for seq, sending, why, note in verdicts.stops:
                conversations.stop(tx, seq, sending, why, note)
        for seq, *_ in (*verdicts.ends, *verdicts.stops):
            self._standing.pop(seq, None)

    def _consider(
        self, tx: Transaction, row: Record, seat: Seat | None, verdicts: _Verdicts
    ) -> None:
        known = self._standing.get(row.seq)
        if known is not None and known.row.answered_by != row.answered_by:
            known = None
        if row.cancelled:
            verdicts.ends.append((row.seq, row.answered_by, RequestState.CANCELED))
        elif known is not None and known.state != "elsewhere":
            known.row = row  # its row may have changed to live
        elif row.disposition == "tools":
            if seat is not None or self._workbench.was_given(row.run_id):
                self._consider_calls(tx, row, known, verdicts)
        elif seat is None:
            pass
        elif row.disposition == "final":
            self._judge(tx, row, verdicts)
        elif not self._is_over(row, verdicts):
            self._stand(row, "ready")

    def _stand(self, row: Record, state: Literal["ready", "running", "elsewhere"]) -> _Standing:
        standing = self._standing[row.seq] = _Standing(row, state, time.monotonic())
        return standing

    @staticmethod
    def _is_over(row: Record, verdicts: _Verdicts) -> bool:
        """Return whether a conversation has used all its turns; if so, record its stop."""
        if row.turns + 1 < row.max_turns:
            return False
        note = f"answer {row.turns + 1} asks for another turn, but max_turns is {row.max_turns}"
        verdicts.stops.append((row.seq, row.answered_by, Stop.MAX_TURNS, note))
        return True

    def _judge(self, tx: Transaction, row: Record, verdicts: _Verdicts) -> None:
        params, line = conversations.turn_of(tx, row.seq, row.answered_by)
        message = message_of_line(line)
        judge = self._workbench.judge_of(row.run_id)
        try:
            problem = schema_problem(params, message) if judge is None else judge(message)
        except Exception as error:
            # The reader of the answer gets the same error again.
            _log.warning("an answer cannot be validated: %s: %s", type(error).__name__, error)
            problem = None
        if problem is None:
            verdicts.ends.append((row.seq, row.answered_by, RequestState.SUCCEEDED))
        elif row.rejected + 1 >= row.validation_attempts:
            verdicts.stops.append((row.seq, row.answered_by, Stop.INVALID_OUTPUT, problem))
        else:
            self._stand(row, "ready").problem = problem

    def _consider_calls(
        self, tx: Transaction, row: Record, known: _Standing | None, verdicts: _Verdicts
    ) -> None:
        params, line = conversations.turn_of(tx, row.seq, row.answered_by)
        uses = tool_uses(message_of_line(line))
        ours = self._workbench.names_of(row.run_id, row.tools)
        declared = declared_tools(params)
        # If a name is missing, the list of tools in the ledger is damaged, so no owner can be
        # found.
        if not uses or (ours and any(use.name in declared.difference(ours) for use in uses)):
            # The caller's own tools: the caller continues from this answer.
            verdicts.ends.append((row.seq, row.answered_by, RequestState.SUCCEEDED))
            return
        if self._is_over(row, verdicts):
            return
        tools = self._workbench.tools_of(row.run_id, row.tools)
        recorded = conversations.calls_of(tx, row.seq, row.answered_by)
        missing: set[str] = set()
        to_start: list[tuple[_Call, ToolUse, str | None]] = []
        for use in uses:
            call = (row.seq, row.answered_by, use.id)
            there = recorded.get(use.id)
            if there is not None and there.finished is not None:
                continue
            missing.add(use.id)
            # Another driver of this process may run the call, so it counts as alive.
            if tools is None or call in self._workbench.running:
                continue
            if there is None:
                to_start.append((call, use, None))
            elif there.process == self._process or not is_alive(self._ledger, there.process):
                tool = tools.get(use.name)
                if tool is not None and not tool.repeatable:
                    note = (
                        f"the tool {use.name} had started when its process ended, so it may have "
                        "done its work; it is not marked as repeatable, so it was not run again"
                    )
                    verdicts.stops.append((row.seq, row.answered_by, Stop.TOOL_INTERRUPTED, note))
                    return
                to_start.append((call, use, there.process))
        if not missing:
            self._stand(row, "ready")
        elif tools is None:
            if known is None:
                self._stand(row, "elsewhere")
        else:
            self._to_start += to_start
            here = bool(to_start) or any(call[0] == row.seq for call in self._running)
            self._stand(row, "running" if here else "elsewhere").missing = missing

    # Tools --------------------------------------------------------------------------------------

    def _start(self, seat: Seat | None) -> None:
        free = TOOLS_AT_ONCE - len(self._running)
        chosen = [self._to_start.popleft() for _ in range(min(free, len(self._to_start)))]
        if not chosen:
            return
        now = time.time()
        started: list[tuple[_Call, ToolUse]] = []
        with self._ledger.write(seat) as tx:
            for call, use, instead_of in chosen:
                seq, sending, _ = call
                # Another driver of this process may have started it since it was listed.
                may = call not in self._workbench.running and conversations.start_call(
                    tx,
                    seq,
                    sending,
                    use.id,
                    name=use.name,
                    process=self._process,
                    now=now,
                    instead_of=instead_of,
                )
                if may:
                    # Before any other thread can read that it has started.
                    self._workbench.running.add(call)
                    started.append((call, use))
                elif (standing := self._standing.get(seq)) is not None:
                    standing.state = "elsewhere"
        reach(CrashPoint.AFTER_TOOL_STARTED)
        for call, use in started:
            standing = self._standing[call[0]]
            tools: Tools = self._workbench.tools_of(standing.row.run_id, standing.row.tools) or {}
            tool = tools.get(use.name)
            if tool is None:
                self._running[call] = (None, float("inf"))
                self._finished.append(ToolResult(*call, *no_such_tool(use.name, tools)))
                continue
            self._running[call] = (tool, time.monotonic() + tool.timeout)
            run_tool(tool, bytes(use.input), lambda output, call=call: self._tell(call, output))

    def _tell(self, call: _Call, output: ToolOutput) -> None:
        """Store a tool's output in memory and wake the driver. Runs on the tool's own thread."""
        reach(CrashPoint.AFTER_TOOL_RUN)
        self._finished.append(ToolResult(*call, *output))
        self._wake()

    def _note_finished(self) -> None:
        now = time.monotonic()
        for call, (tool, deadline) in self._running.items():
            if tool is not None and now >= deadline + 2.0:
                _log.warning(
                    "%s; it still runs on its thread, and its result is ignored", timed_out(tool)
                )
                self._finished.append(ToolResult(*call, *tool.failed(timed_out(tool))))
        while self._finished:
            self._unwritten.append(self._finished.popleft())
        done: list[ToolResult] = []
        over: set[_Call] = set()
        for result in self._unwritten:
            call = (result.seq, result.sending, result.tool_use_id)
            # A result that arrives after the tool's timeout is dropped.
            if call in self._running and call not in over:
                over.add(call)
                done.append(result)
        if done:
            with self._ledger.write() as tx:
                conversations.finish_calls(tx, done, process=self._process, now=time.time())
            reach(CrashPoint.AFTER_TOOL_RECORDED)
        for call in over:
            del self._running[call]
            self._workbench.running.discard(call)
            standing = self._standing.get(call[0])
            if standing is None or standing.row.answered_by != call[1]:
                continue
            standing.missing.discard(call[2])
            if not standing.missing:
                standing.state, standing.since = "ready", time.monotonic()
        # Only now: results that could not be written are written by the next look.
        self._unwritten.clear()

    # Queueing -----------------------------------------------------------------------------------

    def _queue_ready(self, seat: Seat, patient: bool) -> None:
        ready: dict[str, list[_Standing]] = {}
        busy: set[str] = set()
        for each in self._standing.values():
            if each.state == "ready":
                ready.setdefault(each.row.run_id, []).append(each)
            elif each.state == "running" or each.missing:
                busy.add(each.row.run_id)
        now = time.monotonic()
        for run_id, standings in ready.items():
            oldest = min(each.since for each in standings)
            if patient and run_id in busy and now < oldest + standings[0].row.turn_linger:
                # A live call does not wait for other turns.
                standings = [each for each in standings if each.row.goes_live]
            if standings:
                self._queue(seat, standings)

    def _queue(self, seat: Seat, standings: list[_Standing]) -> None:
        """Queue the next turns of conversations of one run, so that they share batches."""
        chunk: list[NextTurn] = []
        size = 0
        linger: float = standings[0].row.linger
        for position, standing in enumerate(standings, 1):
            turn = self._next_turn(standing)
            if len(turn.body) + ITEM_OVERHEAD + 20 > MAX_BODY_BYTES:
                note = f"its next turn has {len(turn.body):,} bytes, more than a batch can carry"
                with self._ledger.write(seat) as tx:
                    conversations.stop(tx, turn.seq, turn.answered_by, Stop.TOO_LARGE, note)
            else:
                chunk.append(turn)
                size += len(turn.body)
            is_last = position == len(standings)
            if chunk and (is_last or len(chunk) >= CHUNK_TURNS or size >= CHUNK_BYTES):
                reach(CrashPoint.BEFORE_NEXT_TURN)
                with self._ledger.write(seat) as tx:
                    # The first chunks wait for the last one, as single calls wait for others.
                    due = time.time() + (0.0 if is_last else linger)
                    conversations.next_turns(tx, chunk, due=due)
                reach(CrashPoint.AFTER_NEXT_TURN)
                chunk, size = [], 0
        for standing in standings:
            self._standing.pop(standing.row.seq, None)

    def _next_turn(self, standing: _Standing) -> NextTurn:
        row = standing.row
        with self._ledger.read() as tx:
            params, line = conversations.turn_of(tx, row.seq, row.answered_by)
            message = message_of_line(line)
            if standing.problem is not None:
                body = after_rejection(params, message, correction(standing.problem))
            elif row.disposition == "tools":
                recorded = conversations.calls_of(tx, row.seq, row.answered_by)
                body = after_tools(params, message, _outcomes(tool_uses(message), recorded))
            else:
                body = after_pause(params, message)
        return NextTurn(row.seq, row.answered_by, body, standing.problem is not None)


def _outcomes(uses: Iterable[ToolUse], recorded: dict[str, Any]) -> list[Outcome]:
    return [
        Outcome(use.id, recorded[use.id].output, bool(recorded[use.id].is_error)) for use in uses
    ]
