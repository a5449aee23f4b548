"""The state machine: what may happen, in any order, and what must hold after each step."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import event, select

from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.ids import new_request_id
from claude_batch.core.settings import BatchProcessingMode, LedgerSettings
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import collecting, enqueue, halting, schema, sending
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.store import Deposed, Ledger, Seat
from claude_batch.lifecycle.driver import Driver
from claude_batch.providers.unknown import decide_unknown
from histories.api import RETRYABLE, PromiseBroken, SimulatedApi, SimulatedClient

UNKNOWN = ("accept and lose", "lose", "accept and 500", "gateway")
CREATES = (
    *UNKNOWN, *UNKNOWN, "accept", "accept", "not connected", "break",
    "400", "400 named", "402", "404", "413", "429", "529",
)  # fmt: skip
FETCHES = ("shuffled", "doubled", "missing", "garbage", "contradicting", "broken", "short", "404")
OUTCOMES = ("succeeded", "succeeded", "succeeded", "expired", "invalid_request_error", *RETRYABLE)
POINTS = [
    point
    for point in CrashPoint
    if point.name.startswith(("BEFORE_", "AFTER_", "DURING_", "BETWEEN_"))
    and "FILE" not in point.name
    and "PRUNING" not in point.name
]
FINAL_WAIT = 3600.0


class Killed(BaseException):
    """What a SIGKILL is to the code that it meets."""


class Process:
    """One process: a ledger opened, a driver made, a seat taken. Dies without a word."""

    def __init__(self, machine: Histories) -> None:
        self.machine = machine
        self.ledger = Ledger(str(machine.folder / "ledger.db"))
        _relax(self.ledger)
        self.client = SimulatedClient(machine.api)
        self.driver = Driver(self.ledger, self.client, machine.settings, lambda: None)  # type: ignore[arg-type]
        self.posting: asyncio.Task[Any] | None = None
        machine.run(self.driver._make_contact())
        with self.ledger.write() as tx:
            seat = Seat(self.driver.workspace_id, sending.take_seat(tx, self.driver.workspace_id))
            self.driver._settle_interrupted(tx, seat)
        self.seat = seat

    def die(self) -> None:
        if self.posting is not None:
            self.posting.cancel()
            self.machine.run(asyncio.wait([self.posting]))
        self.ledger.close()


def _relax(ledger: Ledger) -> None:
    # No machine is switched off here: what a process has written survives it without a flush.
    @event.listens_for(ledger._engine, "connect")
    def _(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")


class Histories(RuleBasedStateMachine):
    """Everything that may happen to a ledger, its processes and the API."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        shared = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(
            prefix="claude-batch-history-", dir=shared if shared.is_dir() else None
        )
        self.folder = Path(self._folder.name)
        self.api = SimulatedApi()
        self.skew = 0.0
        self.patches = [mock.patch("time.time", lambda: self.api.now + self.skew)]
        state = {"CLAUDE_BATCH_STATE_DIR": str(self.folder / "state")}
        self.patches.append(mock.patch.dict(os.environ, state))
        for patch in self.patches:
            patch.start()
        self.cancelled: set[str] = set()
        self.lossy = False
        self.paused: list[Process] = []

    def teardown(self) -> None:
        try:
            self.end_well()
        finally:
            crash_points.on_reach = None
            for process in [*self.paused, self.process]:
                process.die()
            self.loop.close()
            for patch in self.patches:
                patch.stop()
            self._folder.cleanup()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(
        settling=st.sampled_from([0.0, 60.0, 900.0]),
        exclusive=st.sampled_from([False, False, False, True]),
        not_found_after=st.sampled_from([3600.0, 86400.0]),
    )
    def begin(self, settling: float, exclusive: bool, not_found_after: float) -> None:
        self.settings = LedgerSettings(
            settling=settling,
            exclusive_workspace=exclusive,
            not_found_after=not_found_after,
            probe_interval=60.0,
        )
        self.process = Process(self)

    # What callers do

    def store(self, count: int, limit: int) -> str:
        mode = BatchProcessingMode(max_requests=limit, poll_interval=30, max_poll_interval=300)
        now = time.time()
        with self.process.ledger.write() as tx:
            workspace = self.process.driver.workspace_id
            lane = enqueue.ensure_lane(tx, workspace, "2026-10-21", "", "")
            run_id = enqueue.begin_run(
                tx,
                NewRun(kind="run", actor="t/a", workspace_id=workspace, mode=mode, created=now),
            )
            new = [
                NewRequest(new_request_id(), n, None, lane, b'{"n":%d}' % n) for n in range(count)
            ]
            enqueue.add_requests(tx, run_id, new, created=now, due=now)
            enqueue.finish_storing(tx, run_id, digest=run_id, stored=now)
        return run_id

    @rule(run_id=runs)
    def cancel(self, run_id: str) -> None:
        with self.process.ledger.write() as tx:
            collecting.cancel_run(tx, run_id, time.time())
        self.cancelled.add(run_id)

    @rule(run_id=runs, resubmit=st.booleans())
    def decide(self, run_id: str, resubmit: bool) -> None:
        if resubmit:
            self.api.ordered |= set(self._ids(schema.requests.c.run_id == run_id))
        self.lossy = True
        decide_unknown(self.process.ledger, run_id, resubmit=resubmit)

    @rule()
    def resume(self) -> None:
        with self.process.ledger.write() as tx:
            halting.accept_unexplained(tx, self.process.driver.workspace_id)
            halting.ask_probe(tx, self.process.driver.workspace_id)

    # What the API and others do

    @rule(what=st.sampled_from(["500", "unreachable"]))
    def a_list_will_fail(self, what: str) -> None:
        self.api.lists.append(what)

    @rule()
    def a_batch_will_not_be_found_once(self) -> None:
        self.api.retrieves.append("404")

    @rule(delay=st.sampled_from([0.0, 30.0]), blind=st.sampled_from([0.0, 120.0]))
    def the_list_is_slow(self, delay: float, blind: float) -> None:
        self.api.list_delay = min(delay, self.settings.settling / 2)
        self.api.blind = blind

    @rule(count=st.integers(1, 5))
    def somebody_else_makes_a_batch(self, count: int) -> None:
        number = len(self.api.batches)
        self.api.accept([f"theirs-{number}-{n}" for n in range(count)], ours=False)

    @rule(which=st.integers(0, 9), outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=1))
    def a_batch_ends(self, which: int, outcomes: list[str]) -> None:
        running = [batch for batch in self.api.batches.values() if batch.ended is None]
        if running:
            self.api.end(running[which % len(running)], outcomes)

    @rule(which=st.integers(0, 9))
    def an_ended_batch_is_deleted(self, which: int) -> None:
        ended = [b for b in self.api.batches.values() if b.ended is not None and not b.deleted]
        if ended:
            ended[which % len(ended)].deleted = True
            self.lossy = True

    @rule(seconds=st.sampled_from([1.0, 31.0, 400.0, 1000.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.api.now += seconds

    @rule(skew=st.sampled_from([0.0, -90_000.0, 5000.0, 200_000.0]))
    def the_clock_jumps(self, skew: float) -> None:
        self.skew = skew

    # What processes do

    def _do(self, work: Any) -> None:
        try:
            self.run(work)
        except Killed:
            crash_points.on_reach = None
            self.process.die()
            self.process = Process(self)

    @precondition(lambda self: self.process.posting is None)
    @rule(
        target=runs,
        count=st.integers(1, 5),
        limit=st.sampled_from([2, 3, 100_000]),
        create=st.sampled_from(CREATES),
        later=st.sampled_from([0.0, 31.0, 1000.0]),
        outcomes=st.none() | st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=4),
        fetch=st.sampled_from(FETCHES),
    )
    def a_run_is_stored_and_worked_on(
        self,
        count: int,
        limit: int,
        create: str,
        later: float,
        outcomes: list[str] | None,
        fetch: str,
    ) -> str:
        """The main way through, as far as the other rules have left it open."""
        run_id = self.store(count, limit)
        self.api.creates[:] = [create]
        self._send()
        self._send()
        self.work(later, outcomes, fetch)
        return run_id

    @rule(
        later=st.sampled_from([0.0, 31.0, 1000.0]),
        outcomes=st.none() | st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=4),
        fetch=st.sampled_from(FETCHES),
    )
    def work(self, later: float, outcomes: list[str] | None, fetch: str) -> None:
        """Time passes, what runs may end, and whatever is due is looked at and sent."""
        self.api.now += later
        self.poll()
        if outcomes is not None:
            for batch in self.api.batches.values():
                if batch.ended is None:
                    self.api.end(batch, outcomes)
        self.api.now += 301
        self.api.fetches[:] = [fetch]
        self.poll()
        self._send()

    def _send(self) -> None:
        if self.process.posting is None:
            self._do(self.process.driver._send_pass(self.process.seat))

    def poll(self) -> None:
        self._do(self.process.driver._poll_pass(self.process.seat))

    @rule(point=st.sampled_from(POINTS), nth=st.integers(1, 3))
    def die_at(self, point: CrashPoint, nth: int) -> None:
        left = nth

        def reached(here: CrashPoint) -> None:
            nonlocal left
            if here is point:
                left -= 1
                if left == 0:
                    raise Killed

        crash_points.on_reach = reached

    @rule()
    def another_process_takes_over(self) -> None:
        """The old one is paused, not dead: it will write no more, whenever it wakes."""
        self.paused.append(self.process)
        self.process = Process(self)

    @precondition(lambda self: self.process.posting is None and not self.paused)
    @rule()
    def a_process_is_paused_while_its_post_is_answered(self) -> None:
        process = self.process
        process.client.held = asyncio.Event()

        async def until_it_waits() -> None:
            process.posting = asyncio.ensure_future(process.driver._send_pass(process.seat))
            waiting = asyncio.ensure_future(process.client.holding.wait())
            await asyncio.wait({process.posting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

        crash_points.on_reach = None
        self.run(until_it_waits())
        self.another_process_takes_over()

    @precondition(lambda self: bool(self.paused))
    @rule()
    def a_paused_process_wakes(self) -> None:
        process = self.paused.pop()
        before = self._rows()
        crash_points.on_reach = None
        try:
            if process.posting is not None:
                assert process.client.held is not None
                process.client.held.set()
                posting, process.posting = process.posting, None
                self.run(posting)
            self.run(process.driver._poll_pass(process.seat))
            self.run(process.driver._send_pass(process.seat))
        except Deposed:
            pass
        if self._rows() != before:
            raise PromiseBroken("a process that was deposed has changed the ledger")
        process.die()

    # What must hold

    def _rows(self) -> list[Any]:
        with self.process.ledger.read() as tx:
            return [
                *tx.execute(select(schema.requests)).all(),
                *tx.execute(select(schema.batches)).all(),
                *tx.execute(select(schema.results)).all(),
            ]

    def _ids(self, where: Any) -> list[str]:
        with self.process.ledger.read() as tx:
            return list(tx.scalars(select(schema.requests.c.id).where(where)))

    @invariant()
    def the_ledger_is_sound(self) -> None:
        if not hasattr(self, "process"):
            return
        with self.process.ledger.read() as tx:
            requests = tx.execute(select(schema.requests)).all()
            batches = {row.id: row for row in tx.execute(select(schema.batches)).all()}
            results = tx.execute(select(schema.results)).all()
        carried: Counter[int] = Counter()
        for row in requests:
            state = RequestState(row.state)
            assert state.is_final == (row.finished is not None), row
            assert (state is not RequestState.QUEUED) or row.batch_id is None, row
            if state is RequestState.PACKED:
                carried[row.batch_id] += 1
                assert batches[row.batch_id].state in _CARRYING, (row, batches[row.batch_id])
        for row in batches.values():
            if row.state in (BatchState.PACKED, BatchState.SUBMITTING):
                assert carried[row.id] == row.request_count > 0, (row, carried[row.id])
            if row.remote_id is not None and row.adopted != "assumed":
                assert self.api.batches[row.remote_id].ours, row
        ids = {row.seq: row.id for row in requests}
        for row in results:
            assert f'"{ids[row.request_seq]}'.encode() in row.raw, row

    def end_well(self) -> None:
        """Nothing goes wrong any more, and time passes: then every request has its end."""
        if not hasattr(self, "process"):
            return
        crash_points.on_reach = None
        api = self.api
        for faults in (api.creates, api.lists, api.fetches, api.retrieves):
            faults.clear()
        api.list_delay = api.blind = 0.0
        while self.paused:
            self.a_paused_process_wakes()
        # A batch that is gone counts as gone only while another one of the workspace can be seen.
        api.accept(["theirs-at-last"], ours=False)
        for _round in range(60):
            self.resume()
            passes = 0
            while self.run(self.process.driver._send_pass(self.process.seat)) == 0.0:
                passes += 1
                if passes > 500:
                    raise PromiseBroken("sending does not come to rest")
            for batch in api.batches.values():
                if batch.ended is None:
                    api.end(batch, ["succeeded"])
            api.now += FINAL_WAIT
            self.run(self.process.driver._poll_pass(self.process.seat))
            if not self._open():
                break
        self.the_ledger_is_sound()
        if self._open():
            raise PromiseBroken(f"some requests have no end: {self._open()}")
        self._nothing_is_lost()

    def _open(self) -> list[str]:
        return self._ids(schema.requests.c.finished.is_(None))

    def _nothing_is_lost(self) -> None:
        paid: set[str] = {
            custom_id[:32]
            for batch in self.api.batches.values()
            # After three whole streams without it a line is missing for good.
            if batch.ours and not batch.deleted and batch.gaps < 3
            for custom_id, outcome in batch.outcomes.items()
            if outcome == "succeeded"
        }
        with self.process.ledger.read() as tx:
            rows = tx.execute(select(schema.requests)).all()
        for row in rows:
            if row.id in paid and row.state != RequestState.SUCCEEDED and not self.lossy:
                raise PromiseBroken(f"{row.id} was paid for, and is {row.state}")
            if row.state == RequestState.CANCELED and row.run_id not in self.cancelled:
                raise PromiseBroken(f"{row.id} was canceled by nobody")


_CARRYING = (
    BatchState.PACKED,
    BatchState.SUBMITTING,
    BatchState.UNKNOWN,
    BatchState.IN_PROGRESS,
    BatchState.CANCELING,
    BatchState.ENDED,
)
