"""Random histories: what people do, what goes wrong at the API, when, and in which order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from claude_batch.actor.request import ActorRequest
from claude_batch.core import crash_points
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import cancellations, deliveries, workspaces
from claude_batch.ledger.enqueue import NewRun
from claude_batch.ledger.retries import StillCancelling, send_missing
from claude_batch.lifecycle.budget_room import Reservations
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.ended_processes import settle_interrupted
from claude_batch.lifecycle.pending_call import Call, CallOptions
from claude_batch.lifecycle.waiters import CallFuture
from claude_batch.money.prices import prices_of
from claude_batch.providers.cost_report import set_budget
from claude_batch.providers.reruns import decide_unknown
from claude_batch.providers.run_writer import RunWriter
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders, parse_custom_id
from histories.api import MODEL, OUTCOMES, Crash, CreatePlan, Remote, SimulatedApi
from histories.clock import Clock, installed
from histories.process import Process, copy_of, in_memory
from histories.verdict import Verdict, Violation

__all__ = ["LifecycleMachine"]

ENOUGH = 4 * 86400.0
"""Seconds in which everything must have come to its end once nothing goes wrong any more."""

RESERVED = 70_000
"""Nano-dollars, a little more than a request reserves."""
ALL_MONEY = 10**15
WITNESSES = 9
"""Requests of somebody else's batch: more than any of ours has, so that nobody takes it for one."""

_ELSEWHERE = ("deliver", "migration", "file", "pruning")
POINTS = [point for point in CrashPoint if not any(word in point for word in _ELSEWHERE)]
PICK = st.integers(0, 30)
STEPS = [1.0, 10.0, 31.0, 310.0, 1000.0, 4000.0, 90000.0]
JUMPS = [-40 * 86400.0, -86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0, 40 * 86400.0]

MODES = st.builds(
    BatchProcessingMode,
    linger=st.sampled_from([0.0, 2.0]),
    max_requests=st.integers(1, 4),
    max_attempts=st.integers(1, 3),
    parallel_batches=st.sampled_from([None, None, None, 1, 2]),
)
SETTLING = [10.0, 100.0, 900.0]
SETTINGS = st.builds(
    LedgerSettings,
    settling=st.sampled_from(SETTLING),
    lookback=st.sampled_from([5.0, 600.0]),
    not_found_after=st.sampled_from([100.0, 86400.0]),
    missing_after=st.sampled_from([100.0, 86400.0]),
    on_unknown=st.sampled_from(["wait", "wait", "wait", "resubmit"]),
    resubmit_after=st.sampled_from([5.0, 3600.0]),
    exclusive_workspace=st.booleans(),
)
STREAMS = [
    "cut",
    "short",
    "missing",
    "garbled",
    "double",
    "foreign",
    "contradict",
    "contradict_alone",
    "pause",
]

LASTING = ["short", "missing", "contradict_alone"]
"""What may go wrong with every fetch of a batch's results."""

READS = st.lists(
    st.sampled_from(["pause", "pause", "unreachable", "500", "429", "401", "404"]), max_size=3
)


def plans(settling: float) -> st.SearchStrategy[CreatePlan]:
    """What may become of a create, as far as it is not one of the gaps that nobody can close."""
    late = st.sampled_from([0.0, settling / 2, settling - 3.0])
    accepted = st.builds(
        lambda kind, late, listed, silent, pause: CreatePlan(
            kind=kind,
            # An answer tells of what was accepted by then.
            accept_after=0.0 if kind in ("accept", "die") or listed else late,
            list_after=late if listed and kind != "accept" else 0.0,
            silent=silent,
            pause=pause,
        ),
        st.sampled_from(["accept", "lose", "lose", "html", "die"]),
        late,
        st.booleans(),
        st.sampled_from([0.0, 0.0, 100.0, 2000.0]),
        st.sampled_from([None, None, None, "before", "tail", "after"]),
    )
    not_accepted = st.builds(
        CreatePlan,
        kind=st.sampled_from(["lose", "html", "drop", "connect", "die"]),
        accepted=st.just(False),
        pause=st.sampled_from([None, None, "before", "tail", "after"]),
    )
    refused = st.builds(
        CreatePlan,
        kind=st.just("refuse"),
        accepted=st.booleans(),
        status=st.sampled_from([307, 400, 400, 400, 401, 402, 403, 404, 413, 429, 500, 529]),
        from_api=st.sampled_from([True, True, False]),
        named=st.one_of(st.none(), st.integers(0, 5)),
        account=st.sampled_from([False, False, True]),
        early=st.sampled_from([False, False, True]),
    )
    return st.one_of(accepted, not_accepted, refused)


PLANS = {s: st.lists(plans(s), min_size=1, max_size=3) for s in SETTLING}


class LifecycleMachine(RuleBasedStateMachine):
    """One history: a ledger, an API, and at most one process that drives at a time."""

    template: Path
    """An empty ledger to copy."""

    judge: ClassVar[type[Verdict]] = Verdict
    reserved: ClassVar[int] = RESERVED
    modes: ClassVar[st.SearchStrategy[BatchProcessingMode]] = MODES
    """The settings of runs that are stored because there is nothing to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.clock = Clock()
        self._stack.enter_context(installed(self.clock))
        folder = Path(self._stack.enter_context(in_memory()))
        os.environ["CLAUDE_BATCH_STATE_DIR"] = str(folder / "state")
        self.path = folder / "ledger.db"
        copy_of(self.template, self.path)
        self.loop = asyncio.new_event_loop()
        self.runs: list[str] = []
        self.calls: list[int] = []
        self.retired: list[Process] = []
        self.asked = 0
        self.crash_at: CrashPoint | None = None
        self.broken = False
        crash_points.on_reach = self._reach

    @initialize(
        settings=SETTINGS,
        page=st.sampled_from([2, 1000]),
        count=st.integers(1, 6),
        mode=MODES,
        budget=st.sampled_from([0, 0, 1, 2, 4, 8]),
    )
    def begin(
        self,
        settings: LedgerSettings,
        page: int,
        count: int,
        mode: BatchProcessingMode,
        budget: int,
    ) -> None:
        self.settings = settings
        self.api = SimulatedApi(self.clock, page)
        self.verdict = self.judge(self.api, self.path, settings)
        self.process = self._start()
        if budget:
            self._set_budget(budget * self.reserved)
        self._store_run(count, mode)

    def _start(self) -> Process:
        process = self._open()
        self.call_store = CallStore(process.ledger, "model", lambda *_: None)
        return process

    def _open(self) -> Process:
        return Process(self.loop, self.api, self.path, self.settings)

    def _reach(self, point: CrashPoint) -> None:
        if point is CrashPoint.AFTER_INTENT:
            self.verdict.intended()
        if point is self.crash_at:
            self.crash_at = None
            raise Crash(point)

    def _act(self, what: Callable[[], object]) -> None:
        """Do something in the process that drives; it may die of it."""
        try:
            what()
        except Crash:
            self._bury()
        if self.process.was_deposed:
            raise Violation("the process that took the leader lock last was deposed")

    def _bury(self) -> None:
        self.process.die()
        self.process = self._start()

    # What people do ------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), mode=MODES, calls=st.booleans())
    def store(self, count: int, mode: BatchProcessingMode, calls: bool) -> None:
        if calls:
            self._store_calls(mode, min(count, 2))
        else:
            self._store_run(count, mode)

    def _store_run(self, count: int, mode: BatchProcessingMode) -> None:
        self._ask_for(self._new_inputs(count), mode)

    def _new_inputs(self, count: int) -> list[str]:
        inputs: list[str] = []
        for _ in range(count):
            self.asked += 1
            inputs.append(self._params())
        return inputs

    def _ask_for(self, inputs: Sequence[str], mode: BatchProcessingMode) -> None:
        def store() -> None:
            writer = RunWriter(
                self.process.ledger,
                lambda request: EncodedRequest(str(request.prompt).encode(), LaneHeaders()),
                self._new_run(mode, self._actor_of(inputs)),
                identities=[self._identity_of(inputs)],
            )
            # Known before it is whole: whoever dies in between may have stored all of it.
            self.runs.append(writer.run_id)
            for each in inputs:
                writer.add(ActorRequest(each))
            writer.finish()

        self._act(store)

    def _new_run(self, mode: BatchProcessingMode, actor: str) -> NewRun:
        return NewRun(
            kind="run",
            actor=actor,
            workspace_id=self.process.workspace_id,
            mode=mode,
            created=self.process.ledger.now(),
        )

    def _params(self) -> str:
        return f'{{"model":"{MODEL}","max_tokens":2,"n":{self.asked}}}'

    def _actor_of(self, inputs: Sequence[str]) -> str:
        return "model"

    def _identity_of(self, inputs: Sequence[str]) -> bytes:
        return b""

    def _store_calls(self, mode: BatchProcessingMode, count: int) -> None:
        def store() -> None:
            calls: list[Call] = []
            for params in self._new_inputs(count):
                encoded = EncodedRequest(params.encode(), LaneHeaders())
                now = self.clock.time()
                calls.append(Call(self.process, encoded, self._options(mode), now, CallFuture()))
            stored = self.call_store.store(calls).waiting
            self.calls += [waiter.seq for _, waiter in stored]

        self._act(store)

    def _options(self, mode: BatchProcessingMode) -> CallOptions:
        return CallOptions(actor="model", mode=mode)

    @rule(pick=PICK, single=st.sampled_from([True, True, False]))
    def cancel(self, pick: int, single: bool) -> None:
        with self.process.ledger.write() as tx:
            if single and self.calls:
                cancellations.cancel_requests(
                    tx, [self.calls[pick % len(self.calls)]], self.clock.time()
                )
            elif not single:
                run_id = self.runs[pick % len(self.runs)]
                cancellations.cancel_run(tx, run_id, self.clock.time())
                self.verdict.cancelled_runs.add(run_id)

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, count=st.integers(1, 3))
    def leave(self, pick: int, count: int) -> None:
        """Callers leave: what was not sent is withdrawn, and what was is an orphan."""
        waiting = self.calls[pick % len(self.calls) :][:count]
        self.verdict.leave(waiting)
        for seq in waiting:
            self.call_store.gone(seq, "withdraw")
        self.call_store.note()
        self.verdict.left(waiting)

    @precondition(lambda self: self.verdict.is_halted())
    @rule()
    def resume(self) -> None:
        with self.process.ledger.write() as tx:
            workspaces.accept_unexplained(tx, self.process.workspace_id)
            workspaces.ask_probe(tx, self.process.workspace_id)

    @precondition(lambda self: self._undecided_runs())
    @rule(pick=PICK, resubmit=st.booleans())
    def decide(self, pick: int, resubmit: bool) -> None:
        # The lock by which a command sees whether anybody drives is none here.
        ledger = self.process.ledger
        with patch.object(ledger, "has_leader", lambda _: self.process.leader is not None):
            settle_interrupted(ledger)
            runs = self._undecided_runs()
            run_id = runs[pick % len(runs)]
            if resubmit:
                self.verdict.order_again(run_id)
            else:
                self.verdict.given_up.update(self.verdict.undecided(run_id))
            decide_unknown(self.process.ledger, run_id, resubmit=resubmit)

    @precondition(lambda self: self._incomplete_runs())
    @rule(pick=PICK, resend=st.booleans(), heals=st.booleans())
    def fetch_again(self, pick: int, resend: bool, heals: bool) -> None:
        """Somebody orders what is missing to be fetched, and perhaps to be sent again."""
        runs = self._incomplete_runs()
        run_id = runs[pick % len(runs)]
        process = self.process
        if heals:
            for remote in self.api.remotes:
                remote.lasting = None

        def send(batch_ids: list[int]) -> None:
            if not resend:
                return
            self.verdict.order_missing(run_id, batch_ids)
            with suppress(StillCancelling), process.ledger.write() as tx:
                send_missing(tx, run_id, batch_ids, now=self.clock.time())

        # A line of failure may have hidden a success.
        found = self.verdict.hidden(run_id) - self.verdict.reopened
        self.verdict.reopened |= found
        self._act(lambda: process.refetch(run_id, send))
        self.verdict.check()
        self.verdict.reopened -= found

    def _incomplete_runs(self) -> list[str]:
        rows = self.verdict.rows("SELECT id FROM runs WHERE kind = 'run' ORDER BY rowid")
        return [row["id"] for row in rows if self.verdict.lacking(row["id"])]

    def _undecided_runs(self) -> list[str]:
        rows = self.verdict.rows("SELECT id FROM runs ORDER BY rowid")
        return [row["id"] for row in rows if self.verdict.undecided(row["id"])]

    @precondition(lambda self: self.verdict.budget)
    @rule()
    def raise_budget(self) -> None:
        self._set_budget(self.verdict.budget + 2 * self.reserved)

    @precondition(lambda self: self.verdict.budget and not self.verdict.is_lowered)
    @rule()
    def lower_budget(self) -> None:
        """Nothing that is packed fits any more."""
        if sent := self.verdict.sent_cost():
            self.verdict.is_lowered = True
            self._set_budget(sent)

    @precondition(lambda self: not self.verdict.budget)
    @rule()
    def begin_a_budget(self) -> None:
        """Of a ledger with a history: what was spent and what is under way fits into it."""
        self._set_budget(self.asked * 9 * self.reserved)

    @precondition(lambda self: self.verdict.budget)
    @rule()
    def end_the_budget(self) -> None:
        set_budget(self.process.ledger, "actor", "model", None, prices_of())
        self.verdict.budget = 0

    def _set_budget(self, amount: int) -> None:
        set_budget(self.process.ledger, "actor", "model", amount, prices_of())
        self.verdict.budget = amount

    @precondition(lambda self: self.verdict.removable())
    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        """A finished run is removed from the ledger; its batches may hold requests of others."""
        runs = self.verdict.removable()
        run_id = runs[pick % len(runs)]
        self.verdict.removed.update(self.verdict.requests_of(run_id))
        ledger = self.process.ledger
        # As `prune` does, because what may have been billed cannot be bounded without the requests.
        Reservations(ledger, prices_of(), ledger.now()).count_under_way([("run", run_id)])
        with ledger.write() as tx:
            kept = deliveries.begin_pruning(tx, run_id, "a process")
            assert kept is None, kept
            while deliveries.remove_some(tx, run_id).more:
                pass

    # Time and passes -----------------------------------------------------------------------

    def go_round(self, seconds: float) -> None:
        """As a driver does that is left alone."""
        self.clock.advance(seconds)
        self._act(self.process.poll)
        self._act(self.process.send)
        self._act(self.process.poll)

    def send(self, data: st.DataObject) -> None:
        """A sending of which something becomes; there is something to be sent."""
        if not self.verdict.is_waiting():
            self._store_run(data.draw(st.integers(1, 6)), data.draw(self.modes))
        self.api.plans.clear()
        self.api.plans.extend(data.draw(PLANS[self.settings.settling]))
        self.clock.advance(data.draw(st.sampled_from([3.0, 61.0, 400.0])))
        self._act(self.process.send)

    # Written twice: what is most of a history is chosen more often.
    send_one = rule(data=st.data())(send)
    send_another = rule(data=st.data())(send)

    def live(
        self, seconds: float, pick: int, outcomes: list[str], streams: list[tuple[str, int]]
    ) -> None:
        """Time goes by, batches end, and the driver goes round."""
        there = self._there("in_progress", "canceling")
        if there and outcomes:
            for remote in there if pick % 2 else [there[pick % len(there)]]:
                self.api.end(remote, outcomes)
                remote.streams.extend(streams)
        self.go_round(seconds)

    LIVING: ClassVar = {
        "seconds": st.sampled_from(STEPS),
        "pick": PICK,
        "outcomes": st.lists(st.sampled_from(OUTCOMES), max_size=4),
        "streams": st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 5)), max_size=4),
    }
    live_on = rule(**LIVING)(live)
    live_longer = rule(**LIVING)(live)

    def lack(
        self,
        pick: int,
        outcomes: list[str],
        fault: tuple[str, int],
        seconds: float,
        rounds: int,
        heals: bool,
    ) -> None:
        """A batch ends, and some of its results stay missing, fetch after fetch."""
        there = self._there("in_progress")
        remote = there[pick % len(there)]
        self.api.end(remote, outcomes)
        remote.lasting = fault
        for _ in range(rounds):
            self.go_round(seconds)
        if heals:
            remote.lasting = None

    LACKING: ClassVar = {
        "pick": PICK,
        "outcomes": st.lists(st.sampled_from(OUTCOMES[:3]), min_size=1, max_size=2),
        "fault": st.tuples(st.sampled_from(LASTING), st.integers(0, 5)),
        "seconds": st.sampled_from([31.0, 400.0, 4000.0, 30000.0, 90000.0]),
        "rounds": st.integers(1, 6),
        "heals": st.booleans(),
    }
    _ended_by_it = precondition(lambda self: self._there("in_progress"))
    lack_some = _ended_by_it(rule(**LACKING)(lack))
    lack_again = _ended_by_it(rule(**LACKING)(lack))

    @rule(
        seconds=st.sampled_from(STEPS),
        point=st.one_of(st.none(), st.sampled_from(POINTS)),
        reads=READS,
        poll=st.booleans(),
    )
    def stumble(
        self, seconds: float, point: CrashPoint | None, reads: list[str], poll: bool
    ) -> None:
        """A pass in which calls fail or the process dies."""
        self.crash_at = point
        self.api.read_faults.clear()
        self.api.read_faults.extend(reads)
        self.clock.advance(seconds)
        self._act(self.process.poll if poll else self.process.send)

    # Processes -----------------------------------------------------------------------------

    @rule(over=st.booleans())
    def change_process(self, over: bool) -> None:
        """The process dies; or another one takes the leader lock without its knowledge."""
        if not over:
            self._bury()
            return
        self._retire()
        self._act(self.process.poll)

    def _retire(self) -> None:
        self.process.is_retired = True
        self.retired.append(self.process)
        self.process = self._start()

    @precondition(lambda self: self.retired)
    @rule(pick=PICK, send=st.booleans())
    def wake_retired(self, pick: int, send: bool) -> None:
        """A process that was deposed goes on where it was."""
        process = self.retired[pick % len(self.retired)]
        self._wake_all()
        try:
            (process.send if send else process.poll)()
        except Crash:
            process.die()
        if process.was_deposed or process.leader is None:
            self._forget(process)

    def _forget(self, process: Process) -> None:
        if process in self.retired:
            self.retired.remove(process)
            process.die()

    @precondition(lambda self: self.api.paused)
    @rule()
    def wake(self) -> None:
        self._wake_all()

    def _wake_all(self) -> None:
        self.api.wake()
        for process in list(self.retired):
            try:
                process.go_on()
            except Crash:
                self._forget(process)
        self._act(self.process.go_on)

    # The API -------------------------------------------------------------------------------

    @rule(pick=PICK, silent=st.sampled_from([0.0, 100.0, 2000.0]), ours=st.booleans())
    def foreign_batch(self, pick: int, silent: float, ours: bool) -> None:
        """Somebody else's, perhaps of another ledger that makes custom_ids like ours."""
        unknown = self.verdict.unknown()
        count = unknown[-1]["request_count"] if unknown and pick % 3 else 1 + pick % 4
        number = len(self.api.remotes)
        ids = [
            f"{number:016x}{n:016x}-{'0' * 8}-0001" if ours else f"f{number}-{n}"
            for n in range(count)
        ]
        self.api.add(ids, CreatePlan(silent=silent), ours=False)

    def _there(self, *states: str) -> list[Remote]:
        return [r for r in self.api.remotes if self.api.exists(r) and r.status in states]

    @rule(kind=st.sampled_from(["jump", "hide", "delete", "archive"]), pick=PICK)
    def disturb(self, kind: str, pick: int) -> None:
        """The wall clock is set; or a batch cannot be found, for a while or for ever."""
        if kind == "jump":
            self.clock.skew += JUMPS[pick % len(JUMPS)]
        elif kind == "hide":
            self._hide(pick)
        elif there := self._noticed():
            remote = there[pick % len(there)]
            remote.deleted, remote.archived = kind == "delete", kind == "archive"

    def _hide(self, pick: int) -> None:
        """It answers 404 for a while, shorter than what counts as gone, once it was seen again."""
        there = self._there("in_progress", "canceling", "ended")
        if not there:
            return
        remote = there[pick % len(there)]
        if remote.hidden_until < self.clock.server and not self.verdict.is_missed(remote.id):
            part = 0.3 if pick % 2 else 0.9
            remote.hidden_until = self.clock.server + part * self.settings.not_found_after - 5.0

    def _noticed(self) -> list[Remote]:
        # A batch that is deleted before its sender has listed it leaves no trace.
        there = [r for r in self._there("ended") if not r.ours or self._is_seen(r)]
        return [r for r in there if not r.deleted and not r.archived]

    def _is_seen(self, remote: Remote) -> bool:
        parts = parse_custom_id(remote.ids[0])
        assert parts is not None
        mine = (
            "SELECT batch_id FROM requests WHERE id = ? UNION SELECT f.batch_id FROM "
            "former_members f JOIN requests r ON r.seq = f.request_seq WHERE r.id = ?"
        )
        rows = self.verdict.rows(
            "SELECT 1 FROM batches WHERE remote_id = ? UNION "
            f"SELECT 1 FROM candidates WHERE remote_id = ? AND batch_id IN ({mine})",
            remote.id, remote.id, parts[0], parts[0],
        )  # fmt: skip
        return bool(rows)

    # Judging -------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "verdict"):
            return
        try:
            self.verdict.check()
        except Violation:
            self._tell()
            raise

    def _tell(self) -> None:
        self.broken = True
        note(f"at {self.clock.server}, by the wall clock {self.clock.time()}")
        note(self.verdict.describe())

    def teardown(self) -> None:
        try:
            if hasattr(self, "verdict") and not self.broken:
                try:
                    self._finish()
                except Violation:
                    self._tell()
                    raise
        finally:
            crash_points.on_reach = None
            if hasattr(self, "process"):
                for process in self._processes():
                    process.die()
                self.verdict.close()
            self.loop.close()
            self._stack.close()

    def _processes(self) -> list[Process]:
        return [*self.retired, self.process]

    def _finish(self) -> None:
        """Nothing goes wrong any more, time goes by, and all must come to its end."""
        self.crash_at = None
        self.api.plans.clear()
        self.api.read_faults.clear()
        for remote in self.api.remotes:
            remote.streams.clear()
            remote.lasting = None
            remote.hidden_until = remote.silent_until = 0.0
        while self.api.paused:
            self._wake_all()
        end = self.clock.server + ENOUGH
        step = 10.0
        if self.verdict.budget:
            self._set_budget(ALL_MONEY)
        # What was deleted counts as gone only where something else can be seen.
        self.api.add([f"witness-{n}" for n in range(WITNESSES)], CreatePlan(), ours=False)
        while not self.verdict.is_quiet():
            if self.clock.server > end:
                raise Violation("it does not come to its end")
            self.resume()
            for remote in self._there("in_progress", "canceling"):
                self.api.end(remote, ["canceled" if remote.status == "canceling" else "succeeded"])
            self.go_round(step)
            self.verdict.check()
            step = min(step * 1.5, 4000.0)
        self.verdict.conclude()
