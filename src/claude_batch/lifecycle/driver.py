"""The driver of one workspace: the process that holds the leader lock packs, submits and collects.

One process at a time drives a workspace of a ledger. Two things ensure that. The leader lock is
released when its holder dies. An epoch in the ledger (`Leader`) excludes a former holder that wakes
up later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import LedgerError, first_cause
from claude_batch.core.quantities import roughly
from claude_batch.ledger import (
    batch_contents,
    cancellations,
    collected_batches,
    held_requests,
    submissions,
    workspaces,
)
from claude_batch.ledger.backends.backend import Weakness
from claude_batch.ledger.charges import any_budget
from claude_batch.ledger.high_water import Mark, is_known, note_behind, posts_of
from claude_batch.ledger.store import Deposed, Leader, ServerChanged, Transaction
from claude_batch.lifecycle.collection import Collection
from claude_batch.lifecycle.contact import Contact
from claude_batch.lifecycle.conversation_loop import LAST_LOOK, ConversationLoop
from claude_batch.lifecycle.deadline_driver import Deadlines
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.lifecycle.ended_processes import note_interrupted
from claude_batch.lifecycle.live_driver import LiveCalls
from claude_batch.lifecycle.packer import pack_due, reserve_due
from claude_batch.lifecycle.polling import Polling
from claude_batch.lifecycle.reconciliation import Reconciliation
from claude_batch.lifecycle.submission import ANSWER_SECONDS, KeyRefused, Submission
from claude_batch.lifecycle.threads import in_a_thread, sleep_or_wake
from claude_batch.lifecycle.tool_runner import Workbench
from claude_batch.wire.retry_policy import CONTACT, LONGEST_WAIT

_log = logging.getLogger(__name__)

LEADER_LOCK_RETRY = 0.5
"""Seconds between two attempts to take a leader lock that another process holds."""

FAULT_WARNINGS_APART = 20.0
"""Minimum seconds between two warnings that the ledger's server is lost or full."""

RESTS_PER_LOOK = 20
LONGEST_REST = 1.0
"""Limits of the pause after a pass that found nothing to send.

It is `RESTS_PER_LOOK` times as long as the pass, and at most `LONGEST_REST` seconds."""

_SAME_PAUSE = 60.0
"""Seconds by which the end of a pause may move while it is computed again."""

CHECKPOINTS_APART = 1.0
"""Minimum seconds between two checkpoints of the ledger's log."""

LONGEST_SLEEP = 60.0
"""Longest time in seconds between two passes, whatever the clock shows."""


_MOVED = (
    "is on another server than before, or on a standby that was promoted, or was restored, and may "
    "have forgotten its last sendings"
)
_UNFINISHED = "may have forgotten sendings, because its recovery has not ended yet"


class Driver(DriverPart):
    """The driver of one workspace with one credential, active while it holds the leader lock."""

    def __init__(
        self,
        context: DriverContext,
        changed: Callable[[], None],
        workbench: Workbench | None = None,
    ) -> None:
        """Set up the driver; ``changed`` is called after each possible change of the ledger.

        ``workbench`` holds the tools of conversations.
        """
        super().__init__(context)
        self._changed = changed
        self.is_leader: bool = False
        """Whether this process holds the leader lock of the workspace."""
        self.led_since: float = 0.0
        """When it last took the leader lock, by the ledger's clock."""
        self.loops_have_ended: Callable[[], object] = lambda: None
        """Called when it delivers no more answers, although running tools may wait for some."""
        self.is_closing: bool = False
        """Whether `stop` was called."""
        self._contact_task: asyncio.Future[float] | None = None
        self._checkpointed = float("-inf")
        self._weakness: Weakness | None = None
        self._released: tuple[int, int] | None = None
        self._pause_logged = 0.0
        self._fault: Exception | None = None
        """Why all loops end, although the leader lock was not lost."""
        self._send_task: asyncio.Task[None] | None = None
        self._poll_task: asyncio.Task[None] | None = None
        self._fetch_task: asyncio.Task[None] | None = None
        self._functions_task: asyncio.Task[None] | None = None
        self._wake_send = asyncio.Event()
        self._wake_poll = asyncio.Event()
        self.contact: Contact = Contact(context, changed)
        self._submission = Submission(context)
        self._polling = Polling(context)
        self._collection = Collection(context)
        self._reconciliation = Reconciliation(context)
        self._deadlines = Deadlines(context.ledger)
        self._live = LiveCalls(context, changed=self._live_changed)
        self._conversations = ConversationLoop(context, workbench, changed=self._turns_changed)

    @property
    def live_calls(self) -> int:
        """Return how many live calls of this process are under way; `stop` lets them end."""
        return self._live.under_way

    @property
    def awaits_answer(self) -> bool:
        """Return whether something is under way here that may be billed, and is not recorded."""
        return self._live.under_way > 0 or self._submission.under_way

    def wake(self) -> None:
        """Check for work now, because something was queued, cancelled or resumed."""
        self._wake_send.set()
        self._wake_poll.set()
        self._live.wake()
        self._conversations.wake()

    def _live_changed(self) -> None:
        self._changed()
        self._wake_poll.set()
        self._wake_send.set()  # the ended calls may have held other requests back
        self._conversations.wake()

    def _turns_changed(self) -> None:
        self._changed()
        self._wake_send.set()
        self._live.wake()

    def stop(self) -> None:
        """End soon; an upload in progress is aborted while that is still a definite no."""
        self.is_closing = True
        self._leave()

    def _leave(self) -> None:
        self._context.is_leaving = True
        self.wake()
        # Results can be fetched again, but the outcome of a POST in progress must be known first.
        if self._poll_task is not None:
            self._poll_task.cancel()
        if self._contact_task is not None:
            self._contact_task.cancel()
        if self._submission.under_way:
            self._submission.give_up_soon()
        elif self._send_task is not None:
            self._send_task.cancel()

    async def run(self) -> None:
        """Drive until `stop`; take the leader lock whenever it is free.

        If the ledger's server is lost or full, the driver releases the lock, because its last write
        may or may not be stored. It then begins again like any other driver.
        """
        warned = float("-inf")
        while not self.is_closing:
            try:
                await self._drive_until_left()
            except* LedgerError as errors:
                error = first_cause(errors)
                if not (isinstance(error, LedgerError) and self._ledger.outlasts(error)):
                    raise
                if time.monotonic() - warned > FAULT_WARNINGS_APART:
                    _log.warning("%s", error, extra={"for_people": True})
                    warned = time.monotonic()
                self._wake_poll.clear()
                await self._sleep(self._wake_poll, LEADER_LOCK_RETRY)
        if self._functions_task is not None:
            # It may be about to start a tool, which would then be interrupted. A judge may hang.
            await asyncio.wait([self._functions_task], timeout=LAST_LOOK)
        helping = [task for task in (self._fetch_task, self._functions_task) if task is not None]
        for task in helping:
            task.cancel()
        await asyncio.gather(*helping, return_exceptions=True)
        self.loops_have_ended()
        await self._conversations.let_tools_end()

    async def _drive_until_left(self) -> None:
        refusals, pause = 0, 0.0
        while not self._stopping():
            if pause:
                # Another process with a key that works may take the leader lock meanwhile.
                await self._rest(pause)
                pause = 0.0
            try:
                self._contact_task = asyncio.ensure_future(self.contact.make())
                rest = await self._contact_task
            except asyncio.CancelledError:
                if self._stopping():
                    break
                raise
            finally:
                self._contact_task = None
            if rest:
                await self._rest(rest)
                continue
            # Cleared before the pass; an old wake-up would otherwise make this a busy loop.
            self._wake_poll.clear()
            with self._hold_leader_lock() as leader:
                if leader is None:
                    self._fetch_offered()
                    self._run_own_functions()
                    await self._sleep(self._wake_poll, LEADER_LOCK_RETRY)
                    continue
                begun = time.monotonic()
                try:
                    with self._ledger.write(leader) as tx:
                        # The process that held the lock may have released it for its refused key.
                        self.contact.lift_halt_of_other_key(tx, self.workspace_id)
                    await self._drive(leader)
                except* ServerChanged:
                    _log.warning(
                        "the ledger %s is on another server now; it is checked for lost sendings "
                        "before anything is sent",
                        self._ledger.location,
                    )
                except* Deposed:
                    _log.warning("another process drives this ledger; waiting until it ends")
                except* KeyRefused:
                    # Another process may have a key that works, so let it take the leader lock.
                    refusals = 1 if time.monotonic() - begun > LONGEST_SLEEP else refusals + 1
                    pause = CONTACT(refusals)

    def _run_own_functions(self) -> None:
        """Run the tools and judges of this process, beside the attempts to take the leader lock."""
        if self._functions_task is not None:
            if not self._functions_task.done():
                return
            ended, self._functions_task = self._functions_task, None
            ended.result()  # raises what it raised, once
        self._functions_task = asyncio.create_task(self._conversations.run_own_functions())

    def _fetch_offered(self) -> None:
        """Fetch a batch that the driver has offered, beside the attempts to take its lock."""
        if self._fetch_task is not None and not self._fetch_task.done():
            return
        claim = self._ledger.fetches.claim(self.workspace_id)
        if claim is not None:
            self._fetch_task = asyncio.create_task(self._collection.fetch_for_driver(claim))
            self._fetch_task.add_done_callback(lambda _: self._wake_poll.set())

    async def advance(self) -> bool:
        """Make one pass over all due work; False means that another process holds the lock."""
        if await self.contact.make():
            return True
        try:
            try:
                return await self._pass()
            except ServerChanged:
                return await self._pass()  # which compares the servers first
        except Deposed:
            return False  # it was stopped for so long that another process goes on

    async def _pass(self) -> bool:
        with self._hold_leader_lock() as leader:
            if leader is None:
                return False
            await self._poll_pass(leader)
            await self._conversations.finish(leader)
            # If the key is refused, the halt is in the ledger; what else is due goes on.
            with contextlib.suppress(KeyRefused):
                while await self._send_pass(leader) == 0.0 and not self._stopping():
                    pass
            await self._poll_pass(leader)
            await self._conversations.finish(leader)
            # Live answers arrive at once, and may need another turn.
            while await self._live.drain(leader):
                await self._conversations.finish(leader)
            self._look_at_deadlines(leader)
        return True

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt despite changes in the ledger, unless the halt is lifted."""
        end = time.monotonic() + seconds
        was_halted = self.contact.is_halted()
        while not self._stopping() and time.monotonic() < end:
            self._wake_poll.clear()
            await self._sleep(self._wake_poll, end - time.monotonic())
            if was_halted and not self.contact.is_halted():
                return

    @contextlib.contextmanager
    def _hold_leader_lock(self) -> Generator[Leader | None]:
        """Hold the leader lock inside the block; yields `None` if another process holds it."""
        lock = self._ledger.leader_lock(self.workspace_id)
        if not lock.take():
            yield None
            return
        try:
            at = self._client.server_now()
            mark = self._high_water.look(at)
            leader, unknown = None, []
            with self._ledger.write() as tx:
                # Before a merge, which ends the calls that the row's last driver left.
                self._live.return_unsent(tx, self.workspace_id)
                # Asked in this transaction, because another process may merge the row until then.
                here = self.contact.row_to_drive(tx)
                if here == self.workspace_id:
                    self._compare(tx, mark, here, at)
                    leader = Leader(here, submissions.begin_epoch(tx, here))
                    unknown = note_interrupted(tx, here)
            self._live.forget_unsent()
            if leader is None:
                self._context.workspace_id = here
                yield None
                return
            for row in unknown:
                self._reporter.unknown(row, submissions.INTERRUPTED)
            self._warn_of_weakness()
            self._changed()
            self.is_leader, self.led_since = True, self._ledger.now()
            yield leader
        finally:
            self.is_leader = False
            lock.release()

    def _compare(self, tx: Transaction, mark: Mark | None, workspace_id: int, at: float) -> None:
        """Stop sending if the ledger may have forgotten a POST; ``at`` is the API's time.

        That is the case if its mark, read before, counts POSTs that the ledger lacks, or if the
        ledger is on another server.
        """
        moved = self._ledger.has_moved(tx)
        known = is_known(mark, self._ledger.incarnations, posts_of(tx))
        if moved or not known:
            # A copy that was made within a recovery has forgotten what was sent after it, too.
            note_behind(tx, at, anew=moved)
        if workspaces.workspace_row(tx, workspace_id).behind is not None:
            self.stop_behind(tx, workspace_id, _MOVED if moved else _UNFINISHED if known else "")

    def _warn_of_weakness(self) -> None:
        """Warn once of a server that may forget what was committed."""
        before, self._weakness = self._weakness, self._ledger.weakness()
        if self._weakness is not None and self._weakness != before:
            _log.warning(
                "the ledger %s may lose sendings: %s. %s",
                self._ledger.location,
                *self._weakness,
                extra={"for_people": True},
            )

    async def _drive(self, leader: Leader) -> None:
        task = asyncio.current_task()
        assert task is not None, "a driver runs in a task"
        cancelling = task.cancelling()
        try:
            async with asyncio.TaskGroup() as group:
                self._send_task = group.create_task(self._end_all_at_fault(self._send_loop, leader))
                self._poll_task = group.create_task(self._end_all_at_fault(self._poll_loop, leader))
                group.create_task(self._end_all_at_fault(self._live.run, leader))
                group.create_task(self._end_all_at_fault(self._conversations.run, leader))
        except BaseExceptionGroup:
            # A group that has failed leaves its own request to cancel this task (CPython issue
            # 116720). Before Python 3.11.3, the next time-out would then end the driver.
            while task.cancelling() > cancelling:
                task.uncancel()
            raise
        finally:
            fault, self._fault = self._fault, None
            self._context.is_leaving = self.is_closing
        if fault is not None:
            raise fault

    async def _end_all_at_fault(
        self, loop: Callable[[Leader], Awaitable[None]], leader: Leader
    ) -> None:
        """Run a loop; if it meets a fault, end all loops, but never during a POST or live calls."""
        try:
            await loop(leader)
        except (LedgerError, ServerChanged, KeyRefused) as error:
            self._fault = self._fault or error
            self._leave()
        except Deposed:
            # The others are cancelled now. The next driver needs the API's id from a POST's answer.
            sending = self._send_task
            is_other = sending is not asyncio.current_task()
            if sending is not None and is_other and self._submission.under_way:
                self._submission.give_up_soon()
                await asyncio.wait([sending], timeout=ANSWER_SECONDS + 1.0)
            raise

    async def _send_loop(self, leader: Leader) -> None:
        while not self._stopping():
            self._wake_send.clear()
            begun = time.monotonic()
            rest = await self._send_pass(leader)
            if rest:
                # While a million requests are being stored, every pass is expensive.
                await asyncio.sleep(min(LONGEST_REST, RESTS_PER_LOOK * (time.monotonic() - begun)))
            await self._sleep(self._wake_send, rest)

    async def _poll_loop(self, leader: Leader) -> None:
        while not self._stopping():
            self._wake_poll.clear()
            await self._sleep(self._wake_poll, await self._poll_pass(leader))

    async def _send_pass(self, leader: Leader) -> float:
        """Pack what is due and send one batch; return the seconds until the next pass."""
        if self._holders or not self._is_in_place(leader):
            return LONGEST_SLEEP
        now = self._ledger.now()
        with self._ledger.read() as tx:
            # Checked here too, because a driver that waits for a batch writes nothing.
            self._ledger.check_server(tx)
            state = workspaces.workspace_row(tx, leader.workspace_id)
            if state.epoch != leader.epoch:
                raise Deposed
            pause = self._pause(tx, leader)
            bounded = any_budget(tx)
        if state.behind is not None:
            return LONGEST_SLEEP
        self._release_held(leader)
        self._withdraw_cancelled(leader)
        if workspaces.halt_stands(state, now):
            return LONGEST_SLEEP if state.next_probe is None else state.next_probe - now
        # A clock that jumped, or a machine that slept, may have passed a deadline unseen.
        self._look_at_deadlines(leader)
        costs: dict[int, int] = {}
        if bounded:
            costs = await in_a_thread(reserve_due, self._ledger, leader, now, self._prices)
        packed, next_due = pack_due(
            self._ledger, leader, now, not_before=now + pause if pause else None, costs=costs
        )
        if packed:
            self._changed()
        self._live.wake()  # a few requests may have been moved to the live API
        rest = LONGEST_SLEEP if next_due is None else max(0.0, next_due - self._ledger.now())
        if pause and (next_due == now + pause or self._has_packed(leader)):
            self._note_pause(leader, state, now + pause)
            return min(pause, rest)
        # A longer wait was planned before the clock jumped. A pause for `batches_per_hour` is only
        # noted for the status, and has just been computed again.
        is_asked = state.wait_reason != workspaces.PER_HOUR
        if is_asked and state.wait_until and 0 < state.wait_until - now <= LONGEST_WAIT:
            return min(state.wait_until - now, rest)
        if pause:
            return rest
        batch_id = self._next_batch(leader, probe=state.halted is not None)
        if batch_id is None:
            return rest
        try:
            await self._submission.send(leader, batch_id)
        except KeyRefused as refused:
            self._withdraw_cancelled(leader)  # no further pass does
            self.contact.lose(may_only_list=refused.for_batch)
            raise
        finally:
            self._changed()
            self._wake_poll.set()
        return 0.0

    def _is_in_place(self, leader: Leader) -> bool:
        """Return whether the ledger's file is still the one that this process has opened.

        If not, nothing more is sent from it, but what it waits for is collected first. Then raises
        `LedgerError`, so that another process can drive the new file.
        """
        try:
            self._ledger.check_place()
        except LedgerError:
            with self._ledger.read() as tx:
                due = collected_batches.next_check_of(tx, leader.workspace_id, self._ledger.now())
            if due is None and not self._live.under_way:
                raise
            return False
        return True

    def _release_held(self, leader: Leader) -> None:
        """Release requests that waited for other requests."""
        with self._ledger.read() as tx:
            if not held_requests.any_held(tx, leader.workspace_id):
                return
            stamp = held_requests.stamp_of(tx)
            if stamp == self._released:
                return  # nothing has ended since the last pass
        with self._ledger.write(leader) as tx:
            released = held_requests.release(tx, leader.workspace_id, self._ledger.now())
        if released:
            reach(CrashPoint.AFTER_RELEASE)
            self._changed()
        else:
            self._released = stamp

    def _withdraw_cancelled(self, leader: Leader) -> None:
        """End the requests of refused batches that were cancelled while they were posted."""
        with self._ledger.read() as tx:
            found = cancellations.cancelled_unsent(tx, leader.workspace_id)
        if not found:
            return
        with self._ledger.write(leader) as tx:
            for batch_id in found:
                batch_contents.withdraw_cancelled(tx, batch_id)
        self._changed()

    def _pause(self, tx: Transaction, leader: Leader) -> float:
        """Return the seconds until ``batches_per_hour`` allows one more batch.

        Requests stay in the queue meanwhile, so that they share the next batch.
        """
        limit = workspaces.limits_of(tx).batches_per_hour
        if limit is None:
            return 0.0
        return workspaces.next_place(tx, leader.workspace_id, limit, self._client.server_now())

    def _has_packed(self, leader: Leader) -> bool:
        with self._ledger.read() as tx:
            return batch_contents.next_packed(tx, leader.workspace_id) is not None

    def _note_pause(self, leader: Leader, state: Any, until: float) -> None:
        """Store that sending pauses for ``batches_per_hour``, for the status of the runs.

        A pause is also logged once: a caller that waits for a single call sees no status.
        """
        if until > self._pause_logged + _SAME_PAUSE:
            self._pause_logged = until
            _log.warning(
                "sending pauses for %s: %s allows no more batches in this hour; 0 lifts the limit",
                roughly(until - self._ledger.now()),
                workspaces.PER_HOUR,
                extra={"for_people": True},
            )
        if state.wait_until is not None and state.wait_until > until - 1.0:
            return
        with self._ledger.write(leader) as tx:
            workspaces.wait_until(tx, leader.workspace_id, until, workspaces.PER_HOUR)
        self._changed()

    def _next_batch(self, leader: Leader, *, probe: bool) -> int | None:
        if probe:
            # One request probes whether the account works again; all others wait for its outcome.
            with self._ledger.write(leader) as tx:
                return batch_contents.probe(tx, leader.workspace_id, self._ledger.now())
        while True:
            with self._ledger.read() as tx:
                batch_id = batch_contents.next_packed(tx, leader.workspace_id)
            if batch_id is not None or not self._submission.refusals.go_on(leader):
                return batch_id

    async def _poll_pass(self, leader: Leader) -> float:
        """Cancel, check and collect what is due; return the seconds until the next pass."""
        again = self._look_at_deadlines(leader)
        fetched_elsewhere = False
        # A pass follows each sending, and usually no batch is due then.
        if self._until_due(leader) == 0.0:
            await self._observe(leader)
            fetched_elsewhere = await self._collect(leader)
            # The collected results may have ended a run, or left work for the live API.
            again = self._look_at_deadlines(leader)
        again = min(again, self._reporter.measure(leader.workspace_id))
        # If the process that fetches a batch dies, nothing is written that would wake this one.
        due = LEADER_LOCK_RETRY if fetched_elsewhere else self._until_due(leader)
        return min(again, self._keep_log_short(), due)

    def _until_due(self, leader: Leader) -> float:
        """Return the seconds until a batch at the API is due; without one, `LONGEST_SLEEP`."""
        now = self._ledger.now()
        with self._ledger.read() as tx:
            due = collected_batches.next_check_of(tx, leader.workspace_id, now)
        return LONGEST_SLEEP if due is None else max(0.0, due - now)

    async def _observe(self, leader: Leader) -> None:
        """Cancel what the user cancelled, and learn which batches exist and have ended."""
        await self._polling.cancel_requested(leader)
        await self._polling.check_due(leader, self._ledger.now())
        if await self._reconciliation.reconcile(leader, self._ledger.now()):
            self._changed()
            self._wake_send.set()

    async def _collect(self, leader: Leader) -> bool:
        """Collect the batches that have ended; return whether another process fetches some."""
        with self._ledger.read() as tx:
            ended = collected_batches.ended_batches(tx, leader.workspace_id, self._ledger.now())
        return await self._collection.collect_all(leader, ended, collected=self._have_collected)

    def _have_collected(self) -> None:
        self._changed()
        self._live.wake()
        self._conversations.wake()
        self._wake_send.set()
        self._keep_log_short()

    def _look_at_deadlines(self, leader: Leader) -> float:
        changed, again = self._deadlines.look(leader, self._ledger.now())
        if changed:
            self._changed()
            self._live.wake()
            self._wake_poll.set()
        return again

    def _keep_log_short(self) -> float:
        """Checkpoint a long log into the ledger's file; return the seconds until the next check."""
        since = time.monotonic() - self._checkpointed
        if since < CHECKPOINTS_APART:
            # The log file keeps its size after a checkpoint, so each pass would cause another one.
            return CHECKPOINTS_APART - since
        if self._ledger.checkpoint():
            self._checkpointed = time.monotonic()
        return LONGEST_SLEEP

    async def _sleep(self, wake: asyncio.Event, seconds: float) -> None:
        if not self._stopping():
            await sleep_or_wake(wake, min(seconds, LONGEST_SLEEP))
