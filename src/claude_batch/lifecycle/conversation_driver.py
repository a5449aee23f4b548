"""Conversations of the ledger: do what `claude_batch.wire.conversation.converse` asks for.

All progress follows from the ledger. A tool call is recorded before it starts and when its result
exists; a turn is queued once, from the answer that it follows. So after a crash, the next driver
continues from there, and a tool with a recorded result never runs again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Literal

import msgspec

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.outcome import Disposition
from claude_batch.core.states import RequestState, Stop
from claude_batch.ledger import conversations, transitions, workspaces
from claude_batch.ledger.conversations import ToolResult
from claude_batch.ledger.high_water import count_post, note_behind
from claude_batch.ledger.store import Leader, Record, Transaction
from claude_batch.lifecycle.answer_judges import AnswerJudges, Judging, needs_verdict
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.lifecycle.tool_runner import (
    ASKING_AT_ONCE,
    ToolOutput,
    Workbench,
    run_call,
)
from claude_batch.wire.conversation import (
    Answer,
    Check,
    End,
    Interrupted,
    NextTurn,
    Step,
    Terms,
    ToolCalls,
    ToolOutcome,
    ToolUse,
    converse,
)
from claude_batch.wire.encoding import ITEM_OVERHEAD
from claude_batch.wire.limits import MAX_BODY_BYTES
from claude_batch.wire.messages import message_of_line

_log = logging.getLogger(__name__)

PAGE = 1000
"""Number of conversations that are examined in one transaction."""

CHUNK_TURNS = 4000
CHUNK_BYTES = 32 << 20
"""Most turns, and most bytes of params, that are queued in one transaction."""

RESTS_PER_LIST = 5
"""Pause after a listing of all conversations, as a multiple of the time that it took."""

LOOKS_ELSEWHERE = 5.0
"""Seconds between two checks of conversations that another process has to act on."""

START_AGAIN = 1.0
"""Seconds between two attempts to start a tool if the system has no more threads."""

LONGEST_SLEEP = 60.0
"""Longest time in seconds between two checks of conversations."""

_Call = tuple[int, int, str]
"""Request, sending and the API's id of a tool call."""


class _Standing(msgspec.Struct):
    """State of a conversation between two turns, as far as this process handles it."""

    row: Record
    since: float
    state: Literal["ready", "running", "judging", "elsewhere", "judged elsewhere"] = "ready"
    problem: str | None = None
    """What is wrong with its answer, if the model must correct it."""
    judging: Judging | None = None
    """While ``judging``: the pending verdict, or None if the function could not begin yet."""
    missing: set[str] = set()
    """Ids of tool calls without a result."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process has to act before this one can go on."""
        return self.state in ("elsewhere", "judged elsewhere")


_Ends = list[tuple[Record, End]]


class Conversations(DriverPart):
    """The conversations of one workspace, driven from each turn to the next."""

    def __init__(
        self, context: DriverContext, workbench: Workbench, wake: Callable[[], None]
    ) -> None:
        """Set up the driver; ``wake`` is called on the tool's own thread when a tool has ended."""
        super().__init__(context)
        self._workbench = workbench
        self._process = workbench.process
        self._wake = wake
        self._lock = threading.Lock()
        self.judges: AnswerJudges = AnswerJudges(context, workbench, wake)
        self._standing: dict[int, _Standing] = {}
        self._to_judge: list[_Standing] = []
        """Conversations of the present page whose answers a caller's function has to judge."""
        self._to_start: deque[tuple[_Call, ToolUse, str | None]] = deque()
        self._running: set[_Call] = set()
        self._asking: set[_Call] = set()
        """Running calls whose functions have asked claude-batch. They do not count as running,
        because what they wait for may be a conversation whose tools have to run."""
        self._asking_lock = threading.Lock()
        self._askers: set[str] = set()
        """Names of the tools whose functions have asked claude-batch."""
        self._finished: deque[ToolResult] = deque()
        self._here: set[_Call] = set()
        """`Workbench.calls_here` before the present read transaction began."""
        self._listed_until = float("-inf")

    @property
    def running(self) -> int:
        """Number of tools that run here now."""
        return len(self._running)

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way, which another one would wait for."""
        return self._lock.locked()

    def concerns(self, workspace_id: int) -> bool:
        """Return whether there is anything to do or to wait for."""
        if self._standing or self._running:
            return True
        with self._ledger.read() as tx:
            return conversations.is_continuing(tx, workspace_id)

    def look(
        self,
        workspace_id: int,
        leader: Leader | None,
        *,
        starting: bool = True,
        patient: bool = True,
    ) -> float:
        """Do all work that is possible now; return the seconds until the next look at the latest.

        Without a ``leader``, only the functions run that callers in this process supplied, or all
        tools that it has if it helps.
        ``starting=False`` starts no tool; ``patient=False`` queues every ready turn without waiting
        for others.

        Raises `Deposed` and `LedgerError`.
        """
        # A look that was abandoned with its driver may still be running.
        with self._lock:
            self._note_finished()
            if self._is_behind(workspace_id):
                return LOOKS_ELSEWHERE
            begun = time.monotonic()
            listed = begun >= self._listed_until
            if listed:
                waited = self.judges.threads.waited
                self._list(workspace_id, leader)
                now = time.monotonic()
                # The caller's functions took their own time, not that of the ledger.
                cost = now - begun - (self.judges.threads.waited - waited)
                self._listed_until = now + RESTS_PER_LIST * cost if patient else begun
            if starting and not self._workbench.is_closing:
                self._start(leader)
                self._note_finished()
            if leader is not None:
                self._queue_ready(leader, patient)
            return self._rest(listed)

    def _is_behind(self, workspace_id: int) -> bool:
        """Return whether the ledger may have forgotten tool calls and turns."""
        with self._ledger.read() as tx:
            return workspaces.workspace_row(tx, workspace_id).behind is not None

    def _rest(self, listed: bool) -> float:
        now = time.monotonic()
        times = [
            each.since + each.row.turn_linger
            for each in self._standing.values()
            if each.state == "ready"
        ]
        if not listed:
            # The event that caused this look may have brought something new to list.
            times.append(self._listed_until)
        if self._to_start and not self._running:
            times.append(now + START_AGAIN)
        if any(each.is_elsewhere for each in self._standing.values()):
            # No write to the ledger reports that the other process has died, or that this one has
            # received its functions meanwhile.
            times.append(now + LOOKS_ELSEWHERE)
        return max(0.01, min(times) - now) if times else LONGEST_SLEEP

    # What there is to do ------------------------------------------------------------------------

    def _list(self, workspace_id: int, leader: Leader | None) -> None:
        seen: set[int] = set()
        after = 0
        self.judges.forget_others()
        while True:
            ends: _Ends = []
            self._to_judge.clear()
            with self._read() as tx:
                page = conversations.continuing(tx, workspace_id, after=after, limit=PAGE)
                if leader is not None:
                    self.judges.find_others(tx, page)
                for row in page:
                    seen.add(row.seq)
                    self._consider(tx, row, leader, ends)
            if leader is None:
                self.judges.judge_for_driver(page)
                # A driver without the functions cannot see which of them may run again.
                ends = [each for each in ends if each[1].is_by_interruption]
            for standing in self._to_judge:
                self._judge(standing, ends)
            self._end(leader, ends)
            if len(page) < PAGE:
                break
            after = page[-1].seq
        for seq in self._standing.keys() - seen:
            del self._standing[seq]
        self._to_start = deque(each for each in self._to_start if self._still_stands(each[0]))

    @contextlib.contextmanager
    def _read(self) -> Generator[Transaction]:
        # Before the transaction: a call that ends meanwhile still seems to run in it.
        self._here = set(self._workbench.calls_here)
        with self._ledger.read() as tx:
            yield tx

    def _still_stands(self, call: _Call) -> bool:
        """Return whether a call is of the answer that its conversation stands at."""
        standing = self._standing.get(call[0])
        return standing is not None and standing.row.answered_by == call[1]

    def _consider(self, tx: Transaction, row: Record, leader: Leader | None, ends: _Ends) -> None:
        known = self._standing.get(row.seq)
        if known is not None and known.row.answered_by != row.answered_by:
            known = None
        since = None if known is None else known.since
        calls_tools = row.disposition == Disposition.TOOLS
        helps = calls_tools and self._workbench.runs_undriven(row.run_id)
        if row.cancelled:
            # An answer that asks for nothing more is kept, as in any cancelled run. Its reader
            # judges it.
            is_last = row.disposition == Disposition.FINAL
            ends.append((row, End(RequestState.SUCCEEDED if is_last else RequestState.CANCELED)))
        elif known is not None and not known.is_elsewhere:
            known.row = row  # its row may have changed to live
            if known.state == "judging" and (known.judging is None or known.judging.done()):
                self._enter(tx, known, ends)
        elif leader is not None and self.judges.are_elsewhere(row, since):
            begun = time.monotonic() if since is None else since
            self._standing[row.seq] = _Standing(row, begun, "judged elsewhere")
        elif leader is not None or helps:
            self._enter(tx, _Standing(row, time.monotonic()), ends)

    def _enter(self, tx: Transaction, standing: _Standing, ends: _Ends) -> None:
        row = standing.row
        # A paused turn has nothing to run or to judge, so its texts are read only to queue it.
        paused = row.disposition == Disposition.PAUSED
        if standing.judging is None and needs_verdict(row) and self.judges.has_function(row):
            # Not in the listing's transaction: the caller's function may take its time.
            standing.state = "judging"
            self._standing[row.seq] = standing
            self._to_judge.append(standing)
            return
        step = None if paused else self._follow(tx, standing)
        if isinstance(step, End):
            ends.append((row, step))
        else:
            self._standing[row.seq] = standing

    def _judge(self, standing: _Standing, ends: _Ends) -> None:
        """Let the caller's function judge an answer, outside any transaction."""
        row = standing.row
        with self._read() as tx:
            step = self._follow(tx, standing)
        if isinstance(step, Check):
            standing.judging = self.judges.begin(row, step)
            if standing.judging is not None and standing.judging.done():
                with self._read() as tx:
                    step = self._follow(tx, standing)
        if isinstance(step, End):
            ends.append((row, step))

    def _end(self, leader: Leader | None, ends: _Ends) -> None:
        if not ends:
            return
        with self._ledger.write(leader) as tx:
            transitions.end_conversations(
                tx, [(row.seq, row.answered_by, end.state) for row, end in ends if not end.stopped]
            )
            for row, end in ends:
                if end.stopped:
                    conversations.stop(tx, row.seq, row.answered_by, end.stopped, end.note)
        for row, _ in ends:
            self._standing.pop(row.seq, None)

    def _follow(self, tx: Transaction, standing: _Standing) -> Step | None:
        """Enter a conversation where it stands, and return what follows.

        `ToolCalls` are returned only if results are missing, and `Check` only if there is no
        verdict yet; ``standing`` then has their state. Returns `None` if the run was removed.
        """
        row = standing.row
        turn = conversations.turn_of(tx, row.seq, row.answered_by)
        if turn is None:
            return None
        params, line = turn
        tools = None if row.tools is None else self._workbench.names_of(row.run_id, row.tools)
        most_bytes = MAX_BODY_BYTES - ITEM_OVERHEAD - 20
        flow = converse(
            params,
            Terms(
                row.max_turns,
                row.validation_attempts,
                tools,
                most_bytes,
                is_forgotten=row.stopped == Stop.TURNS_FORGOTTEN,
            ),
            answer=Answer(Disposition(row.disposition), message_of_line(line)),
            turns=row.turns,
            rejected=row.rejected,
        )
        step = next(flow)
        if isinstance(step, Check):
            # Judged once, because the caller's judge may decide differently the second time.
            if standing.problem is None and row.judged:
                standing.problem = row.problem
            elif standing.problem is None:
                verdict = standing.judging
                if verdict is None and not self.judges.has_function(row):
                    verdict = self.judges.begin(row, step)
                if verdict is None or not verdict.done() or self.judges.is_void(verdict):
                    standing.state, standing.judging = "judging", verdict
                    return step
                standing.state, standing.judging = "ready", None
                standing.problem = verdict.result()
            return flow.send(standing.problem)
        if isinstance(step, ToolCalls):
            outcomes = self._outcomes(tx, standing, step.uses)
            if outcomes is not None:
                return flow.send(outcomes)
        return step

    def _outcomes(
        self, tx: Transaction, standing: _Standing, uses: list[ToolUse]
    ) -> list[ToolOutcome] | Interrupted | None:
        """Return the results of an answer's calls from the ledger.

        If some are missing, returns `None`, and those that can run here are to be started.
        """
        row = standing.row
        tools = self._workbench.tools_of(row.run_id, row.tools)
        recorded = conversations.calls_of(tx, row.seq, row.answered_by)
        outcomes: list[ToolOutcome] = []
        missing: set[str] = set()
        to_start: list[tuple[_Call, ToolUse, str | None]] = []
        for use in uses:
            call = (row.seq, row.answered_by, use.id)
            there = recorded.get(use.id)
            if there is not None and there.finished is not None:
                outcomes.append(ToolOutcome(use.id, there.output, bool(there.is_error)))
                continue
            missing.add(use.id)
            # Another driver of this process may run the call, so it counts as alive.
            if tools is None or self._workbench.calls_here.get(call):
                continue
            if there is None or call in self._here:
                to_start.append((call, use, None))
            elif there.process == self._process or not self._ledger.is_alive(there.process):
                tool = tools.get(use.name)
                if tool is not None and not tool.repeatable:
                    return Interrupted(use.name, there.process == conversations.FORGOTTEN)
                to_start.append((call, use, there.process))
        if not missing:
            return outcomes
        standing.state = "elsewhere"
        if tools is not None:
            self._to_start += to_start
            standing.missing = missing
            if to_start or any(call[0] == row.seq for call in self._running):
                standing.state = "running"
        return None

    # Tools --------------------------------------------------------------------------------------

    def _start(self, leader: Leader | None) -> None:
        chosen = self._next_calls()
        if not chosen:
            return
        started: list[tuple[_Call, ToolUse]] = []
        number = 0
        try:
            with self._ledger.write(leader) as tx:
                for call, use, instead_of in chosen:
                    if self._may_start(tx, call, use, instead_of):
                        # Before any other thread can read that it has started.
                        self._workbench.calls_here[call] = True
                        started.append((call, use))
                    elif (standing := self._standing.get(call[0])) is not None:
                        standing.state = "elsewhere"
                if any(self._runs_once(call, use) for call, use in started):
                    number = count_post(tx)
            at = self._client.server_now()
            is_counted = not number or self._high_water.raise_to(number, sending=True, at=at)
        except BaseException:
            self._start_later(chosen, started)
            raise
        if not is_counted:
            self._start_later(chosen, started)
            _log.warning("no tool was started, because another copy of this ledger was used")
            with self._ledger.write(leader) as tx:
                note_behind(tx, at)
            return
        reach(CrashPoint.AFTER_TOOL_STARTED)
        for place, (call, use) in enumerate(started):
            row = self._standing[call[0]].row
            tools = self._workbench.tools_of(row.run_id, row.tools) or {}
            self._running.add(call)
            try:
                run_call(
                    tools,
                    use,
                    lambda output, call=call: self._report(call, output),
                    lambda call=call, name=use.name: self._note_asking(call, name),
                )
            except RuntimeError as error:  # the system has no more threads
                _log.warning("a tool could not be started, and is tried again: %s", error)
                left = started[place:]
                self._start_later([(call, use, None) for call, use in left], left)
                return

    def _start_later(
        self,
        chosen: list[tuple[_Call, ToolUse, str | None]],
        started: list[tuple[_Call, ToolUse]],
    ) -> None:
        """Put calls back whose functions have not begun, although some may be noted as started."""
        calls = {call for call, _ in started}
        self._running -= calls
        self._workbench.calls_here |= dict.fromkeys(calls, False)
        self._to_start.extendleft(reversed(chosen))

    def _runs_once(self, call: _Call, use: ToolUse) -> bool:
        """Return whether a call must not run again in a ledger that is restored from a copy."""
        row = self._standing[call[0]].row
        tool = (self._workbench.tools_of(row.run_id, row.tools) or {}).get(use.name)
        return tool is not None and not tool.repeatable

    def _next_calls(self) -> list[tuple[_Call, ToolUse, str | None]]:
        """Take the calls that may start now, in their order."""
        free = self._workbench.most_running - len(self._running) + len(self._asking)
        more_askers = ASKING_AT_ONCE - len(self._asking)
        chosen: list[tuple[_Call, ToolUse, str | None]] = []
        left: deque[tuple[_Call, ToolUse, str | None]] = deque()
        while self._to_start and len(chosen) < free:
            each = self._to_start.popleft()
            if each[1].name not in self._askers:
                chosen.append(each)
            elif more_askers > 0:
                more_askers -= 1
                chosen.append(each)
            else:
                left.append(each)
        self._to_start.extendleft(reversed(left))
        return chosen

    def _note_asking(self, call: _Call, name: str) -> None:
        """Let another call start beside one that asks claude-batch. Runs on any thread."""
        with self._asking_lock:
            if call in self._asking or call not in self._running:
                return  # after its timeout, a call does not run any more
            self._askers.add(name)
            self._asking.add(call)
        self._wake()

    def _may_start(
        self, tx: Transaction, call: _Call, use: ToolUse, instead_of: str | None
    ) -> bool:
        """Note that a tool call starts here; return False if it must not start."""
        # Another driver of this process may have started it since it was listed.
        has_begun = self._workbench.calls_here.get(call)
        if has_begun:
            return False
        before = [instead_of] if has_begun is None else [instead_of, self._process]
        return any(
            conversations.start_call(
                tx,
                *call,
                name=use.name,
                process=self._process,
                now=self._ledger.now(),
                instead_of=process,
            )
            for process in before
        )

    def _report(self, call: _Call, output: ToolOutput) -> None:
        """Store a tool's output in memory and wake the driver. Runs on the tool's own thread."""
        reach(CrashPoint.AFTER_TOOL_RUN)
        self._finished.append(ToolResult(*call, *output))
        self._wake()

    def _note_finished(self) -> None:
        # Other threads append to it meanwhile.
        done = [self._finished[place] for place in range(len(self._finished))]
        if not done:
            return
        cut_off = {place for place, result in enumerate(done) if self._was_cut_off(result)}
        whole = [result for place, result in enumerate(done) if place not in cut_off]
        if whole:
            with self._ledger.write() as tx:
                conversations.finish_calls(tx, whole, process=self._process, now=self._ledger.now())
            reach(CrashPoint.AFTER_TOOL_RECORDED)
        for place, result in enumerate(done):
            # Only now: results that could not be written are written by the next look.
            self._finished.popleft()
            call = (result.seq, result.sending, result.tool_use_id)
            with self._asking_lock:
                self._running.discard(call)
                self._asking.discard(call)
            if place in cut_off:
                continue  # in the ledger it runs here until this process has ended
            self._workbench.calls_here.pop(call, None)
            standing = self._standing.get(result.seq)
            if standing is None or standing.row.answered_by != result.sending:
                continue
            standing.missing.discard(result.tool_use_id)
            if not standing.missing:
                standing.state, standing.since = "ready", time.monotonic()

    def _was_cut_off(self, result: ToolResult) -> bool:
        """Return whether a function may have failed only because this process ends.

        Its error is no answer for the model. Like any tool that was interrupted, it runs again in
        the next process if it is repeatable.
        """
        call = (result.seq, result.sending, result.tool_use_id)
        return bool(result.is_error) and self._workbench.is_closing and call in self._asking

    # Queueing -----------------------------------------------------------------------------------

    def _queue_ready(self, leader: Leader, patient: bool) -> None:
        ready: dict[str, list[_Standing]] = {}
        busy: set[str] = set()
        for each in self._standing.values():
            if each.state == "ready":
                ready.setdefault(each.row.run_id, []).append(each)
            elif each.state in ("running", "judging", "judged elsewhere") or each.missing:
                busy.add(each.row.run_id)
        now = time.monotonic()
        for run_id, standings in ready.items():
            oldest = min(each.since for each in standings)
            if patient and run_id in busy and now < oldest + standings[0].row.turn_linger:
                # A live call does not wait for other turns.
                standings = [each for each in standings if each.row.goes_live]
            if standings:
                self._queue(leader, standings)

    def _queue(self, leader: Leader, standings: list[_Standing]) -> None:
        """Queue the next turns of conversations of one run, so that they share batches."""
        chunk: list[conversations.NextTurn] = []
        ends: _Ends = []
        size = 0
        linger: float = standings[0].row.linger
        for position, standing in enumerate(standings, 1):
            row = standing.row
            with self._read() as tx:
                step = self._follow(tx, standing)
            if isinstance(step, NextTurn):
                body = step.params
                chunk.append(conversations.NextTurn(row.seq, row.answered_by, body, step.rejects))
                size += len(body)
            elif isinstance(step, End):
                ends.append((row, step))
            is_last = position == len(standings)
            if chunk and (is_last or len(chunk) >= CHUNK_TURNS or size >= CHUNK_BYTES):
                reach(CrashPoint.BEFORE_NEXT_TURN)
                with self._ledger.write(leader) as tx:
                    # The first chunks wait for the last one, as single calls wait for others.
                    due = self._ledger.now() + (0.0 if is_last else linger)
                    conversations.next_turns(tx, chunk, due=due)
                reach(CrashPoint.AFTER_NEXT_TURN)
                chunk, size = [], 0
        self._end(leader, ends)
        for standing in standings:
            if standing.state == "ready":
                self._standing.pop(standing.row.seq, None)
