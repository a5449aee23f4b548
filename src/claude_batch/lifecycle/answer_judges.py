"""Judges of answers: the caller's types and functions, in this process or in another one.

Such a function may itself ask claude-batch, and the answer that it then waits for may have to be
judged too. So conversations go on while it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias
from weakref import WeakSet

from claude_batch.core.outcome import Disposition
from claude_batch.ledger import conversations
from claude_batch.ledger.conversations import Verdict
from claude_batch.ledger.store import Record, Transaction
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.lifecycle.threads import DaemonThreads
from claude_batch.lifecycle.tool_runner import ASKING_AT_ONCE, Workbench, asking
from claude_batch.wire.conversation import Check
from claude_batch.wire.messages import message_of_line

_log = logging.getLogger(__name__)

Judging: TypeAlias = "Future[str | None]"
"""The verdict on an answer: its fault, or None. It is pending while the function runs."""

JUDGE_PATIENCE = 60.0
"""Seconds that a driver waits for another process to judge an answer, since it saw the answer or
since that process last judged one of the run."""

VERDICTS_EVERY = 1.0
"""Seconds after which a process that judges many answers stores what it has."""

LONGEST_JUDGING = 30.0
SHORT_JUDGING = 1.0
"""Seconds after which the others no longer wait for a function, because it may hang; the short time
is for a run of which a function hangs already."""


def needs_verdict(row: Record) -> bool:
    """Return whether a conversation stands at an answer that is not judged yet."""
    return row.disposition == Disposition.FINAL and not row.judged and not row.cancelled


class AnswerJudges(DriverPart):
    """The judges of one workspace's answers. Not thread-safe."""

    def __init__(
        self, context: DriverContext, workbench: Workbench, wake: Callable[[], None]
    ) -> None:
        """Set up the judges; ``wake`` is called as in `JudgeThreads`."""
        super().__init__(context)
        self._workbench = workbench
        self._process = workbench.process
        self.threads: JudgeThreads = JudgeThreads(wake)
        self._judging: dict[tuple[int, int], Judging] = {}
        """Verdicts that another process waits for, and that are not there yet."""
        self._seen: dict[str, float] = {}
        """When a living process was last seen to judge answers of a run, by the present listing."""

    def forget_others(self) -> None:
        """Look for the judges of other processes anew, because a listing begins."""
        self._seen.clear()

    def find_others(self, tx: Transaction, page: list[Record]) -> None:
        """Find out which runs have answers that other processes judge."""
        asked = {row.run_id for row in page if needs_verdict(row)} - self._seen.keys()
        if not asked:
            return
        self._seen |= dict.fromkeys(asked, float("-inf"))
        for each in conversations.judges_of(tx, asked):
            if each.process != self._process and self._ledger.is_alive(each.process):
                self._seen[each.run_id] = max(self._seen[each.run_id], each.seen)

    def are_elsewhere(self, row: Record, since: float | None) -> bool:
        """Return whether an answer has to wait for the verdict of another process.

        ``since`` is when it began to wait, if it does already.
        """
        if not needs_verdict(row) or self._workbench.judges(row.run_id):
            return False
        seen = self._seen[row.run_id]
        if seen == float("-inf"):
            return False
        waited = 0.0 if since is None else time.monotonic() - since
        # Such a process may be unable to judge: it hangs, or its engine has stopped. If the clock
        # was set back meanwhile, the time since it was seen is negative.
        return min(waited, abs(self._ledger.now() - seen)) < JUDGE_PATIENCE

    def judge_for_driver(self, page: list[Record]) -> None:
        """Judge the answers that only this process has a function for."""
        verdicts: list[Verdict] = []
        begun = time.monotonic()
        for row in page:
            if not (self._workbench.judges(row.run_id) and needs_verdict(row)):
                continue
            verdict = self._judging.pop((row.seq, row.answered_by), None)
            if verdict is None:
                # Not in the listing's transaction: the caller's function may take its time.
                with self._ledger.read() as tx:
                    turn = conversations.turn_of(tx, row.seq, row.answered_by)
                if turn is None:  # the run was removed meanwhile
                    continue
                check = Check(turn[0], message_of_line(turn[1]))
                verdict = self.begin(row, check)
            if verdict is not None and (not verdict.done() or self.is_void(verdict)):
                self._judging[row.seq, row.answered_by] = verdict
            elif verdict is not None:
                problem = verdict.result()
                verdicts.append(Verdict(row.seq, row.answered_by, row.run_id, problem))
            if verdicts and time.monotonic() > begun + VERDICTS_EVERY:
                self._store(verdicts)
                begun = time.monotonic()
        self._store(verdicts)

    def _store(self, verdicts: list[Verdict]) -> None:
        if verdicts:
            with self._ledger.write() as tx:
                conversations.add_verdicts(
                    tx, verdicts, process=self._process, now=self._ledger.now()
                )
            verdicts.clear()

    def has_function(self, row: Record) -> bool:
        """Return whether a caller in this process supplied a function that judges the answer."""
        return self._workbench.judge_of(row.run_id, row.position) is not None

    def begin(self, row: Record, check: Check) -> Judging | None:
        """Judge an answer; return None if too many functions wait for claude-batch."""
        judge = partial(self._judge, row.run_id, row.position, check)
        if self.has_function(row):
            return self.threads.begin(judge, row.run_id)
        verdict: Judging = Future()
        verdict.set_result(judge())
        return verdict

    def is_void(self, verdict: Judging) -> bool:
        """Return whether a function may have failed only because this process ends.

        Its answer is checked again by the next process.
        """
        ends = self._stopping() or self._workbench.is_closing
        return ends and self.threads.has_asked(verdict)

    def _judge(self, run_id: str, position: int, check: Check) -> str | None:
        try:
            return check.problem(self._workbench.judge_of(run_id, position))
        except BaseException as error:
            # The answer is billed, so it is returned unchecked rather than lost.
            _log.warning("an answer cannot be validated: %s: %s", type(error).__name__, error)
            return None


# Threads ------------------------------------------------------------------------------------------


class JudgeThreads:
    """Runs one function after another, and those that wait for claude-batch, or hang, beside them.

    Threads are daemons, because a function that hangs must not keep the process from ending. The
    next process asks the function again.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called, on any thread, when a function has ended that was not waited for."""
        self._wake = wake
        self._thread: DaemonThreads | None = None
        self._waiting: dict[Judging, str] = {}
        """Running functions that no thread waits for any longer, and their runs."""
        self._askers: WeakSet[Judging] = WeakSet()
        self._has_warned = False
        self._may_wait = True
        self._waited_for: threading.Event | None = None
        self.waited: float = 0.0
        """Seconds that `begin` has waited so far."""

    def wait_for_functions(self, wait: bool) -> None:
        """Set whether to wait for functions; `False` also ends a wait on another thread.

        A thread that waits would keep the process from ending.
        """
        self._may_wait = wait
        waited_for = self._waited_for
        if waited_for is not None and not wait:
            waited_for.set()

    def has_asked(self, judging: Judging) -> bool:
        """Return whether a function has asked claude-batch for something."""
        return judging in self._askers

    def begin(self, judge: Callable[[], str | None], run_id: str) -> Judging | None:
        """Run a function; return when it has ended, waits for claude-batch, or takes too long.

        Returns None if too many wait already, if too many of the run hang, or if the process ends.
        """
        if not self._may_wait:
            return None
        hanging = sum(
            run_id == other and judging not in self._askers
            for judging, other in list(self._waiting.items())
        )
        # Runs whose functions hang leave room for those of others.
        if len(self._waiting) >= ASKING_AT_ONCE or hanging >= ASKING_AT_ONCE // 2:
            return None
        asked, goes_on = threading.Event(), threading.Event()

        def on_ask() -> None:
            asked.set()
            goes_on.set()

        def run() -> str | None:
            with asking(on_ask):
                return judge()

        if self._thread is None:
            self._thread = DaemonThreads(1, "claude-batch-judge")
        judging: Judging = self._thread.submit(run)
        judging.add_done_callback(lambda _: goes_on.set())
        patience = SHORT_JUDGING if hanging else LONGEST_JUDGING
        self._waited_for = goes_on
        begun = time.monotonic()
        has_returned = not self._may_wait or goes_on.wait(patience)
        self.waited += time.monotonic() - begun
        if not has_returned and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a function that checks answers has not returned for %g s; other answers are "
                "checked meanwhile, on other threads",
                LONGEST_JUDGING,
                extra={"for_people": True},
            )
        if asked.is_set():
            self._askers.add(judging)
        if not judging.done():
            self._thread.close()
            self._thread = None
            self._waiting[judging] = run_id
            judging.add_done_callback(self._end)
        return judging

    def _end(self, judging: Judging) -> None:
        self._waiting.pop(judging, None)
        self._wake()
