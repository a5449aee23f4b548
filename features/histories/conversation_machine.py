"""Random histories of conversations: turns, tools and answers of the wrong form.

`conversation_verdict` judges them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.errors import LedgerError
from claude_batch.core.states import FAILED, RequestState
from claude_batch.ledger.cancellations import cancel_run
from claude_batch.ledger.enqueue import NewRun
from claude_batch.ledger.live_calls import choose
from claude_batch.ledger.retries import StillCancelling, retry_failed
from claude_batch.ledger.store import Deposed, Ledger
from claude_batch.lifecycle import conversation_driver
from claude_batch.lifecycle.answer_judges import JudgeThreads, Judging
from claude_batch.lifecycle.pending_call import CallOptions
from claude_batch.lifecycle.tool_runner import (
    ConversationSettings,
    ToolOutput,
    Tools,
    Workbench,
    run_call,
)
from claude_batch.wire.conversation import ToolUse
from histories.api import MODEL, OUTCOMES
from histories.conversation_verdict import KINDS, TOOLS, ConversationVerdict, ToolRun
from histories.live_api import LivePlan
from histories.live_machine import LIVE, LiveMachine
from histories.live_machine import PLANS as LIVE_PLANS
from histories.machine import MODES, PICK, POINTS
from histories.machine import PLANS as CREATE_PLANS
from histories.process import Process
from histories.restore_machine import dying

__all__ = ["ConversationMachine"]

SPOKEN = st.lists(st.sampled_from(KINDS[:7] * 2 + KINDS), min_size=1, max_size=5)

REMEMBERED = '[{"name":"look"},{"name":"write"}]'
PLANS = st.lists(st.sampled_from(["at once", "later", "error", "no thread"]), max_size=3)
"""What becomes of the tools that are started next."""
WRITES = st.one_of(st.none(), st.none(), st.integers(1, 8))


@dataclass(slots=True)
class Finder:
    """Finds the functions, if the process has them."""

    has_tools: bool
    offered: int = 0

    def find(self, remembered: str) -> Tools:
        if not self.has_tools:
            raise LookupError("this process has no tools")
        return TOOLS

    def offer(self) -> None:
        self.has_tools = True
        self.offered += 1


class ConversationProcess(Process):
    """A process with tools, or without them."""

    def __init__(self, number: int, alive: set[str], has_tools: bool, *of: Any) -> None:
        self.name = f"process-{number}"
        self.finder = Finder(has_tools)
        super().__init__(*of, workbench=Workbench(self.finder, self.name))
        self._alive = alive
        alive.add(self.name)

    def die(self) -> None:
        self._alive.discard(self.name)
        super().die()

    @property
    def is_alive(self) -> bool:
        return self.name in self._alive

    def converse(self, *, starting: bool = True, patient: bool = False) -> None:
        """Do what the conversations wait for."""
        if self._sit():
            self._look(starting=starting, patient=patient)

    def help(self) -> None:
        """Run the tools of a run that another process drives."""
        self._look(starting=True, patient=True)

    def _look(self, *, starting: bool, patient: bool) -> None:
        loop = self.driver._conversations
        loop._loop = self._loop
        try:
            loop._conversations.look(
                self.workspace_id, self.leader, starting=starting, patient=patient
            )
        except Deposed:
            self.was_deposed, self.leader = True, None

    def lose_ledger(self) -> None:
        """Release the leader lock, because the ledger did not answer."""
        self._end_passes()
        self._sitting.close()
        self.leader = None


class ConversationMachine(LiveMachine):
    """A history of conversations, in batches and live, whose tools run in several processes."""

    judge = ConversationVerdict
    verdict: ConversationVerdict
    process: ConversationProcess
    reserved: ClassVar = 2_500_000

    def __init__(self) -> None:
        super().__init__()
        self.alive = {"model"}
        self.begun = 0
        self.tool_plans: deque[str] = deque()
        self.has_tools = True
        self._stack.enter_context(
            patch.object(Ledger, "is_alive", lambda _, process: process in self.alive)
        )
        self._stack.enter_context(patch.object(conversation_driver, "run_call", self._run_call))
        self._stack.enter_context(patch.object(JudgeThreads, "begin", _judge_at_once))
        self._looking: ConversationProcess | None = None

    def _open(self) -> Process:
        self.begun += 1
        return ConversationProcess(
            self.begun, self.alive, self.has_tools, self.loop, self.api, self.path, self.settings
        )

    def _terms(self, mode: BatchProcessingMode) -> BatchProcessingMode:
        n = self.asked
        terms = {
            "max_turns": (4, 6, 2, 5, 3, 6, 1)[n % 7],
            "validation_attempts": (3, 1, 2)[n % 3],
            "turn_linger": (0.0, 40.0)[n % 2],
        }
        return mode.model_copy(update=terms)

    def _new_run(self, mode: BatchProcessingMode, actor: str) -> NewRun:
        run = super()._new_run(self._terms(mode), actor)
        tools = REMEMBERED if self.asked % 9 else None
        converses = self.asked % 11 != 10
        judge = self.process.name if converses and self.asked % 2 else None
        return msgspec.structs.replace(run, converses=converses, tools=tools, judge=judge)

    def _ask_for(self, inputs: Sequence[str], mode: BatchProcessingMode) -> None:
        known, process = len(self.runs), self.process
        super()._ask_for(inputs, mode)
        for run_id in self.runs[known:] if self.asked % 2 else ():
            process.driver._conversations._workbench.give(run_id, None, self.verdict.judge)
            self.verdict.judges[run_id] = process

    def _options(self, mode: BatchProcessingMode) -> CallOptions:
        return msgspec.structs.replace(
            super()._options(self._terms(mode)), conversation=ConversationSettings(REMEMBERED)
        )

    def _params(self) -> str:
        params = {
            "model": MODEL,
            "max_tokens": 2,
            "messages": [{"role": "user", "content": str(self.asked)}],
            "tools": [{"name": "look"}, {"name": "write"}, {"name": "theirs"}],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "string"}}},
        }
        return json.dumps(params, separators=(",", ":"))

    # Tools ---------------------------------------------------------------------------------

    def _run_call(
        self,
        tools: Tools,
        use: ToolUse,
        done: Callable[[ToolOutput], None],
        on_ask: Callable[[], None],
    ) -> None:
        if use.name not in tools:
            run_call(tools, use, done, on_ask)
            return
        plan = self.tool_plans.popleft() if self.tool_plans else "at once"
        if plan == "no thread":
            raise RuntimeError("can't start new thread")
        assert self._looking is not None
        run = ToolRun(self._looking, use, done)
        self.verdict.begin_tool(run)
        if plan != "later":
            self._end_tool(run, is_error=plan == "error")

    def _end_tool(self, run: ToolRun, *, is_error: bool = False) -> None:
        run.ended = True
        outputs = self.verdict.outputs[run.use.id]
        outputs.append((json.dumps(f"result {len(outputs)}").encode(), is_error))
        run.done(outputs[-1])

    @property
    def running(self) -> list[ToolRun]:
        """The functions that run now."""
        return [
            run
            for runs in self.verdict.tool_runs.values()
            for run in runs
            if not run.ended and run.process.is_alive
        ]

    def _look(
        self,
        process: ConversationProcess,
        *,
        starting: bool = True,
        patient: bool = False,
        helps: bool = False,
    ) -> None:
        self._looking = process
        if helps:
            process.help()
        else:
            process.converse(starting=starting, patient=patient)

    def _converse(self, **how: bool) -> None:
        self._act(lambda: self._look(self.process, **how))

    def go_round(self, seconds: float) -> None:
        super().go_round(seconds)
        self._converse()
        self._act(self.process.call)
        self._converse()

    # What happens --------------------------------------------------------------------------

    def talk(self, data: st.DataObject) -> None:
        """Turns are sent, answered and continued."""
        self.verdict.spoken = data.draw(SPOKEN)
        self.tool_plans.clear()
        self.tool_plans.extend(data.draw(PLANS))
        if not self.verdict.is_waiting():
            mode = data.draw(st.one_of(MODES, st.just(LIVE)))
            self._store_run(data.draw(st.integers(1, 4)), mode)
        self.api.plans.clear()
        if data.draw(st.booleans()):
            self.api.plans.extend(data.draw(CREATE_PLANS[self.settings.settling]))
        seconds = data.draw(st.sampled_from([3.0, 61.0, 400.0]))
        for _ in range(data.draw(st.integers(1, 3))):
            self.clock.advance(seconds)
            self._act(self.process.send)
            outcomes = data.draw(st.sampled_from([["succeeded"], ["succeeded"], OUTCOMES]))
            for remote in self._there("in_progress", "canceling"):
                self.api.end(remote, list(outcomes))
            self.go_round(seconds)

    talk_one = rule(data=st.data())(talk)
    talk_another = rule(data=st.data())(talk)
    talk_more = rule(data=st.data())(talk)

    def converse(
        self,
        plans: list[str],
        seconds: float,
        starting: bool,
        patient: bool,
        point: CrashPoint | None,
        writes: int | None,
        fails: bool,
    ) -> None:
        """Conversations are looked at; the process may die, or its ledger not answer."""
        self.tool_plans.clear()
        self.tool_plans.extend(plans)
        self.clock.advance(seconds)
        self.crash_at = point
        with self._disturbed(writes, fails=fails):
            self._converse(starting=starting, patient=patient)

    CONVERSING: ClassVar = {
        "plans": PLANS,
        "seconds": st.sampled_from([1.0, 31.0, 61.0]),
        "starting": st.sampled_from([True, True, False]),
        "patient": st.booleans(),
        "point": st.one_of(
            st.none(), st.sampled_from([p for p in POINTS if "tool" in p or "turn" in p])
        ),
        "writes": WRITES,
        "fails": st.booleans(),
    }
    converse_once = rule(**CONVERSING)(converse)
    converse_again = rule(**CONVERSING)(converse)

    @contextmanager
    def _disturbed(self, writes: int | None, *, fails: bool = False) -> Generator[None]:
        """Let the process die, or its ledger fail, with one of the commits of this block."""
        process = self.process
        try:
            with dying(process, writes, _no_answer if fails else None):
                yield
        except LedgerError:
            process.lose_ledger()

    @rule(
        what=st.sampled_from(["send", "poll", "call"]), writes=st.integers(1, 8), plans=LIVE_PLANS
    )
    def die_at_a_commit(self, what: str, writes: int, plans: list[LivePlan]) -> None:
        """A pass in which the process dies before or after a commit."""
        self.api.live_plans.clear()
        self.api.live_plans.extend(plans)
        self.clock.advance(61.0)
        with self._disturbed(writes):
            self._act(getattr(self.process, what))

    @precondition(lambda self: self.running)
    @rule(pick=PICK, is_error=st.booleans(), look=st.booleans())
    def end_tool(self, pick: int, is_error: bool, look: bool) -> None:
        """A function returns, in whatever process it runs."""
        run = self.running[pick % len(self.running)]
        if run.process is not self.process:
            self._end_elsewhere(run)
            return
        self._act(lambda: self._end_tool(run, is_error=is_error))
        if look:
            self._converse()

    def _end_elsewhere(self, run: ToolRun) -> None:
        self.crash_at = None
        self._end_tool(run)
        self._help(run.process)

    @precondition(lambda self: self.retired)
    @rule(pick=PICK, plans=PLANS)
    def help(self, pick: int, plans: list[str]) -> None:
        """A process that does not drive runs tools."""
        self.tool_plans.clear()
        self.tool_plans.extend(plans)
        self._help(self.retired[pick % len(self.retired)])

    def _help(self, process: Process) -> None:
        assert isinstance(process, ConversationProcess)
        # A planned crash is of the process that drives.
        self.crash_at = None
        process.driver._conversations._workbench.helps = True
        process.was_deposed = False
        self.verdict.begin_judging()
        self._look(process, helps=True)
        if not process.was_deposed:
            self.verdict.end_judging()

    @rule()
    def lose_tools(self) -> None:
        """The next processes have no functions, until somebody names them."""
        self.has_tools = False
        self._bury()

    @precondition(lambda self: not self.has_tools)
    @rule()
    def name_tools(self) -> None:
        self.has_tools = True
        self.process.finder.offer()

    @rule(kind=st.sampled_from(["look", "write", "both"]), batch=st.booleans(), plans=PLANS)
    def interrupt_tools(self, kind: str, batch: bool, plans: list[str]) -> None:
        """A process dies while its tools run, and the next one goes on."""
        self.verdict.spoken = [kind, "final"]
        self._store_run(2, BatchProcessingMode(linger=0.0) if batch else LIVE)
        self.api.plans.clear()
        self.api.live_plans.clear()
        self.tool_plans.clear()
        self.tool_plans.extend(["later"] * 4)
        self._act(self.process.send)
        for remote in self._there("in_progress", "canceling"):
            self.api.end(remote, ["succeeded"])
        self.go_round(61.0)
        self.tool_plans.clear()
        self.tool_plans.extend(plans)
        self._bury()
        self._converse()

    @rule(batch=st.booleans(), seconds=st.sampled_from([3.0, 61.0]), looks=st.sampled_from([0, 3]))
    def judge_elsewhere(self, batch: bool, seconds: float, looks: int) -> None:
        """A process has the function for answers that come while another one drives."""
        self.verdict.spoken = ["doubted", "doubted", "final"]
        self.asked += self.asked % 2  # the number is odd with one more request, so there is a judge
        asking = self.process
        self._store_run(1, BatchProcessingMode(linger=0.0) if batch else LIVE)
        self.api.plans.clear()
        self.api.live_plans.clear()
        self._retire()
        self._act(self.process.send)
        for remote in self._there("in_progress", "canceling"):
            self.api.end(remote, ["succeeded"])
        self.go_round(3.0)
        for _ in range(looks if asking in self.retired else 0):
            self._help(asking)
        self.go_round(seconds)

    @precondition(lambda self: self.verdict.between_turns())
    @rule(pick=PICK, again=st.booleans())
    def cancel_between_turns(self, pick: int, again: bool) -> None:
        """A run is cancelled while an answer of it asks for more; perhaps it is retried."""
        runs = self.verdict.between_turns()
        run_id = runs[pick % len(runs)]
        with self.process.ledger.write() as tx:
            cancel_run(tx, run_id, self.clock.time())
        self.verdict.cancelled_runs.add(run_id)
        self.verdict.note_cancelled()
        self._converse()
        if again:
            self._retry(run_id, FAILED)

    def retry(self, pick: int, states: Collection[RequestState] | None) -> None:
        """What has failed of a run is asked again."""
        runs = self._failed_runs()
        self._retry(runs[pick % len(runs)], states)

    RETRYING: ClassVar = {"pick": PICK, "states": st.sampled_from([None, FAILED])}
    _if_failed = precondition(lambda self: self._failed_runs())
    retry_once = _if_failed(rule(**RETRYING)(retry))
    retry_again = _if_failed(rule(**RETRYING)(retry))

    def _retry(self, run_id: str, states: Collection[RequestState] | None) -> None:
        failed = self.verdict.failed(run_id)
        with suppress(StillCancelling), self.process.ledger.write() as tx:
            retry_failed(tx, run_id, states=states, error_types=(), now=self.clock.time())
        self.verdict.retry(run_id, failed)

    def _failed_runs(self) -> list[str]:
        return [run_id for run_id in self.runs if self.verdict.failed(run_id)]

    @precondition(lambda self: self.runs)
    @rule(pick=PICK)
    def go_live(self, pick: int) -> None:
        """The next turns of a run that waits go to the live API."""
        run_id = self.runs[pick % len(self.runs)]
        lanes = self.verdict.rows(
            # Not of a run whose storing was cut off, of which nothing is sent.
            "SELECT DISTINCT lane_id FROM requests WHERE run_id = ? AND state = 'queued' "
            "AND run_id IN (SELECT id FROM runs WHERE stored IS NOT NULL)",
            run_id,
        )
        with self.process.ledger.write() as tx:
            for row in lanes:
                choose(tx, row["lane_id"], [run_id])

    def _finish(self) -> None:
        self.verdict.spoken = ["final"]
        self.crash_at = None
        self.tool_plans.clear()
        self.name_tools()
        for run in self.running:
            if run.process is self.process:
                self._end_tool(run)
            else:
                self._end_elsewhere(run)
        # What a process has noted as begun, and could not begin, is left to it as long as it lives.
        for process in self.retired:
            self._help(process)
            if process.was_deposed:  # it has noticed only now that it does not drive
                self._help(process)
        super()._finish()


def _no_answer(_: str) -> LedgerError:
    return LedgerError("no answer", fault="unreachable")


def _judge_at_once(_: JudgeThreads, judge: Callable[[], str | None], run_id: str) -> Judging:
    verdict: Judging = Future()
    verdict.set_result(judge())
    return verdict
