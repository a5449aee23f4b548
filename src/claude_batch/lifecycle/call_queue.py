"""The single calls of an engine: queued, stored together, awaited and withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from claude_batch.core.errors import ActorError, EngineStoppedError, LedgerError
from claude_batch.core.quantities import count_of
from claude_batch.ledger import cancellations, queries, single_calls, workspaces
from claude_batch.ledger.budgets import BudgetKey
from claude_batch.ledger.single_calls import UNSENT, StoredCall
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.api_sessions import (
    TAKEOVER,
    ApiSession,
    closed_error,
    closed_words,
    halted_error,
    timed_out_error,
    trouble_of,
)
from claude_batch.lifecycle.budget_holds import Held, held_error, held_of
from claude_batch.lifecycle.budget_room import Reservations, bound_of, tokens_of_files
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.notices import Noticing
from claude_batch.lifecycle.observers import Observers
from claude_batch.lifecycle.pending_call import Call, CallOptions, without_repeated
from claude_batch.lifecycle.threads import EventLoopThread, in_a_thread
from claude_batch.lifecycle.tool_runner import ConversationSettings, Workbench
from claude_batch.lifecycle.waiters import CallFuture, Waiter, Waiting
from claude_batch.money.prices import Prices
from claude_batch.wire.encoding import EncodedRequest

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode

_log = logging.getLogger(__name__)

NOTES_AFTER = 0.5
"""Seconds until delivered answers are marked as taken, so that one flush to disk covers many."""

RUNS_AT_ONCE = 100
"""Number of runs that no call joins any more of which one statement finds those that have ended."""


class Owner(Protocol):
    """The engine, as its calls use it."""

    ledger: Ledger
    workbench: Workbench
    observers: Observers
    noticing: Noticing

    @property
    def process(self) -> str: ...
    @property
    def failure(self) -> ActorError | None: ...
    def wake(self) -> None: ...
    def wake_drivers(self) -> None: ...
    def notify_callers(self) -> None: ...


class CallQueue:
    """The single calls of an engine.

    `add`, `acknowledge`, `watch`, `cancel` and `run_of` are thread-safe. All else belongs to the
    engine's loop.
    """

    def __init__(
        self,
        engine: Owner,
        loop: EventLoopThread,
        sessions: Mapping[tuple[str, str], ApiSession],
        prices: Prices,
    ) -> None:
        """``loop`` and ``sessions`` are the engine's."""
        self._engine = engine
        self._ledger = engine.ledger
        self._loop = loop
        self._sessions = sessions
        self._inbox: deque[Call] = deque()
        self._reading = asyncio.Lock()  # one at a time, because reading takes processor time
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone_callers: deque[Waiter] = deque()
        self._receipts: deque[tuple[int, bool, bool]] = deque()
        """Of requests with answers: whether its caller has it, and whether equal calls get it."""
        self._is_planned = False
        self._prices = prices
        self._store = CallStore(self._ledger, engine.process, self.acknowledge, prices)
        self._notes_planned = False
        self._groups = SmallGroups()
        self._waiting = Waiting(
            self._ledger,
            self.acknowledge,
            self._store.gone,
            self._time_out,
        )

    # Calls -----------------------------------------------------------------------------------

    def add(
        self,
        session: ApiSession,
        encoded: EncodedRequest,
        future: CallFuture,
        options: CallOptions,
        trace: str | None = None,
    ) -> None:
        """Store a single request, and set ``future`` to its answer. Never blocks.

        If the caller cancels the future, a request that is not sent yet is withdrawn, unless it has
        a key or its ``keep`` is set. ``trace`` is the caller's ``traceparent``, if there is one.
        """
        future.acknowledges = options.acknowledges
        future.repeats = options.failure_ttl is not None
        self._queue(Call(session, encoded, options, self._ledger.now(), future, trace))

    def _queue(self, call: Call) -> None:
        with self._loop.gate:
            if not self._loop.closed:
                self._inbox.append(call)
                self._plan()
                return
        _fail([call], self._closed())

    def _plan(self) -> None:
        """Let the engine do soon what callers have asked for, what many have asked together."""
        if not self._is_planned:
            try:
                # Set first: the engine may begin, and reset it, before the next line.
                self._is_planned = True
                self._loop.soon(self._flush)
            except BaseException:  # of a signal handler
                self._is_planned = False
                raise

    def _closed(self) -> EngineStoppedError:
        return EngineStoppedError(closed_words(self._ledger.location))

    async def _read_documents(self, call: Call) -> None:
        """Bound a call with documents for its budget, on a thread."""
        async with self._reading:
            if call.options.stays or not call.future.is_withdrawn:
                files = tokens_of_files(self._ledger)
                call.bound = await in_a_thread(bound_of, call.encoded.params, files)

    async def _count_for(self, calls: Sequence[Call]) -> None:
        """Count what was sent before the budgets that these calls bring, on a thread."""
        of: list[BudgetKey] = [("actor", call.options.actor) for call in calls]
        reservations = Reservations(self._ledger, self._prices, self._ledger.now())
        await in_a_thread(reservations.count_under_way, list(set(of)))
        for call in calls:
            call.countings += 1

    def _queue_after(self, work: Coroutine[Any, Any, None], calls: Sequence[Call]) -> None:
        """Queue calls again once a coroutine has ended; end them if it fails."""

        async def queue() -> None:
            try:
                await work
            except asyncio.CancelledError:
                _fail(calls, self._closed())
                raise
            except Exception as error:
                _fail(calls, _not_stored(error))
                return
            for call in calls:
                self._queue(call)

        task = asyncio.get_running_loop().create_task(queue())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def acknowledge(self, seq: int, taken: bool, failed: bool) -> None:
        """Record whether an answer reached its caller; if it did not, it becomes an orphan.

        ``failed``: it is a failure that equal calls get again.
        """
        self._receipts.append((seq, taken, failed))
        self._plan()

    def watch(self, call: StoredCall, mode: BatchProcessingMode, future: CallFuture) -> None:
        """Set ``future`` to the answer of a stored call, beside the callers that wait for it."""
        future.acknowledges = True
        self._loop.soon(self._add_watcher, call, mode, future)

    def _add_watcher(self, call: StoredCall, mode: BatchProcessingMode, future: CallFuture) -> None:
        # The request stays, and its answer untaken, whatever this watcher does.
        waiter = Waiter(future, call.seq, call.run_id, None, mode, keeps=True, watches=True)
        try:
            self._waiting.watch(waiter, seconds=mode.longest_wait(self._ledger.now()))
        except LedgerError as error:
            future.settle(error)
        future.stored(call.seq)
        future.on_leave(self._gone, waiter)

    def cancel(self, seq: int) -> Future[None]:
        """Cancel a call even if it is sent; its callers get that outcome. Raises `LedgerError`."""

        async def cancel() -> None:
            with self._ledger.write() as tx:
                cancellations.cancel_requests(tx, [seq], self._ledger.now())
            self._engine.wake()
            self._engine.notify_callers()

        return self._loop.run(cancel())

    def run_of(
        self,
        session: ApiSession,
        actor: str,
        mode: BatchProcessingMode,
        conversation: ConversationSettings | None,
    ) -> Future[str]:
        """Return the id of the run that holds such calls and stores their documents."""

        async def find() -> str:
            return self._store.run_of(session, actor, mode, conversation)

        return self._loop.run(find())

    def _flush(self) -> None:
        """Do what callers have asked for since the last flush, in one transaction and one fsync."""
        asked: list[Call] = []
        while self._inbox:
            asked.append(self._inbox.popleft())
        # First, so that a new call can take over a request that was let go before it.
        self._waiting.leave_closed_loops(call.future for call in asked)
        self.remove_departed()
        calls = [call for call in asked if call.options.stays or not call.future.is_withdrawn]
        if not calls:
            self._note_farewells()
            return
        if self._engine.failure is not None:
            _fail(calls, self._engine.failure)
            return
        try:
            calls = without_repeated(calls)
            flush = self._store.store(calls)
        except Exception as error:
            _fail(calls, _not_stored(error))
            self.plan_notes()
            return
        for call in flush.unread:
            self._queue_after(self._read_documents(call), [call])
        if uncounted := flush.uncounted:
            self._queue_after(self._count_for(uncounted), uncounted)
        added = flush.waiting
        batched = [call.encoded.params for call, _ in added if call.options.mode.mode == "batch"]
        self._groups.begin(batched, alone=not self._waiting)
        gone = self._gone  # one object for all of them
        for call, waiter in added:
            if (conversation := call.options.conversation) is not None:
                self._engine.workbench.give(waiter.run_id, conversation.tools, conversation.judge)
            until = call.begun + waiter.mode.longest_wait(call.begun)
            self._waiting.add(waiter, seconds=until - self._ledger.now(), since=flush.since)
            call.future.stored(waiter.seq)
            call.future.on_leave(gone, waiter)
        # Not before the waiters are there: an error here ends their waits.
        flush.report(self._engine.observers)
        self._engine.noticing.follow(flush.bounded)
        self._forget_runs()
        self._engine.wake_drivers()
        self._engine.notify_callers()
        self._engine.noticing.plan()  # a budget may hold them from the start

    def _forget_runs(self) -> None:
        """Forget the functions of runs that no call joins any more, once they have ended.

        A program may give each call functions of its own. A later call that joins such a run after
        all brings its functions again.
        """
        left = self._store.left_runs
        if len(left) < RUNS_AT_ONCE:
            return
        some = [left.popleft() for _ in range(RUNS_AT_ONCE)]
        with contextlib.suppress(LedgerError), self._ledger.read() as tx:
            open_runs = queries.unfinished_runs(tx, some)
            ended = [run_id for run_id in some if run_id not in open_runs]
            some = list(open_runs)
            for run_id in ended:
                self._engine.workbench.forget(run_id)
        left.extend(some)

    # Answers and errors ----------------------------------------------------------------------

    def fail(self, failure: ActorError) -> None:
        """Fail the callers of all calls, because the engine has stopped."""
        self._waiting.fail(self._waiting.all(), lambda _: failure)

    def deliver(self) -> None:
        """Deliver every new answer, and fail the callers whose workspace is halted.

        Raises `LedgerError`.
        """
        waited = bool(self._waiting)
        self._waiting.deliver()
        if waited and not self._waiting:
            self._groups.end()
        self._fail_halted()

    def _fail_halted(self) -> None:
        for session in self._sessions.values() if self._waiting else ():
            with self._ledger.read() as tx:
                row = workspaces.workspace_row(tx, session.workspace_id)
            now = self._ledger.now()
            if not workspaces.halt_stands(row, now):
                continue
            if session.may_lift_halt(row, now):
                asyncio.get_running_loop().call_later(TAKEOVER, self._engine.notify_callers)
            else:
                waiters = self._waiting.of(session)
                self._waiting.fail(
                    waiters,
                    lambda each, row=row: halted_error(row, each.run_id, self._ledger.location),
                )

    def runs(self) -> list[str]:
        """Return the runs whose calls somebody waits for."""
        return self._waiting.runs()

    def end_held(self, run_id: str, held: Held) -> None:
        """Fail the callers of a run that a budget holds for good."""
        # First the answers that arrived since the budget was checked. The others are unsent.
        self._waiting.deliver()
        waiters = [waiter for waiter in self._waiting.all() if waiter.run_id == run_id]
        self._waiting.fail(
            waiters, lambda waiter: held_error(waiter.run_id, held, self._ledger.location)
        )

    def fail_closed(self, session: ApiSession | None = None) -> None:
        """Fail the callers of a session, or all, because the provider is closed."""
        waiters = self._waiting.all() if session is None else self._waiting.of(session)
        self._waiting.fail(waiters, lambda each: closed_error(each.run_id, self._ledger.location))

    def _time_out(self, waiters: Sequence[Waiter]) -> None:
        try:
            self._give_up(waiters)
        except LedgerError as error:
            failure = error
            self._waiting.fail(waiters, lambda _: failure)

    def _give_up(self, waiters: Sequence[Waiter]) -> None:
        """End waits whose time is over, and cancel the requests of those that want it.

        A request is not cancelled while another caller waits for it.
        """
        cancelling = {
            each.seq for each in waiters if each.mode.on_timeout == "cancel" and not each.watches
        }
        shared = self._waiting.wanted_by_others(waiters)
        if cancelling - shared:
            with self._ledger.write() as tx:
                shared |= single_calls.taken_over(tx, cancelling, self._engine.process)
                cancellations.cancel_requests(tx, cancelling - shared, self._ledger.now())
            self._engine.wake()
        with self._ledger.read() as tx:
            places = single_calls.places_of(tx, [each.seq for each in waiters])
            # Once for each run, because thousands of calls of one run may time out together.
            troubles = {
                key: trouble_of(tx, *key) for key in {(w.run_id, w.workspace) for w in waiters}
            }
            now = self._ledger.now()
            unsent = {w.run_id for w in waiters if places.get(w.seq, UNSENT).is_unsent}
            held = {run_id: held_of(tx, run_id, now) for run_id in unsent}

        def error(waiter: Waiter) -> ActorError:
            place = places.get(waiter.seq, UNSENT)
            holds = held[waiter.run_id] if place.is_unsent else None
            return timed_out_error(
                waiter.run_id,
                self._ledger.location,
                place,
                waiter.mode,
                shared=waiter.seq in shared,
                held="" if holds is None else holds.describe(waiter.run_id),
                trouble=troubles[waiter.run_id, waiter.workspace],
            )

        self._waiting.fail(waiters, error)

    # Callers that leave ----------------------------------------------------------------------

    def _gone(self, waiter: Waiter) -> None:
        """Queue a caller that has left for removal. Runs on the thread that ended the wait."""
        self._gone_callers.append(waiter)
        self._plan()

    def remove_departed(self) -> None:
        """Remove the callers that have left from the waiters, and note what the others got."""
        # First, so that a caller which asks or leaves after this plans another flush.
        self._is_planned = False
        while self._gone_callers:
            self._waiting.leave(self._gone_callers.popleft())
        while self._receipts:
            seq, taken, failed = self._receipts.popleft()
            if taken:
                self._store.taken(seq, failed)
            else:
                self._store.gone(seq, "keep")

    def _note_farewells(self) -> None:
        if self._store.has_left:
            # At once, because a driver may be about to pack these requests.
            self.note()
        else:
            self.plan_notes()

    def plan_notes(self) -> None:
        """Schedule one write that marks many answers as taken and many calls as let go."""
        if self._store.has_notes and not self._notes_planned:
            self._notes_planned = True
            asyncio.get_running_loop().call_later(NOTES_AFTER, self.note)

    def note(self) -> None:
        """Write which answers were taken, and which calls were let go."""
        self._notes_planned = False
        if self._store.has_notes:
            withdrawing = self._store.has_left
            try:
                self._store.note()
                if withdrawing:
                    # The withdrawn calls may have freed room in a budget for held requests.
                    self._engine.wake_drivers()
            except LedgerError as error:
                # An answer that is not marked as taken costs nothing when it is requested again.
                _log.warning("delivered answers could not be recorded: %s", error)


def _fail(calls: Iterable[Call], failure: ActorError) -> None:
    for call in calls:
        call.future.settle(failure)


def _not_stored(error: Exception) -> ActorError:
    if isinstance(error, LedgerError):
        return error
    _log.error("calls could not be stored", exc_info=error)
    return EngineStoppedError(f"the request could not be stored: {error}")


# Calls in small groups ----------------------------------------------------------------------------

SMALL_GROUP = 32
"""Most calls of a small group: Python's default executor has no more threads."""

GROUPS_IN_A_ROW = 3
"""Number of small groups, each followed at once by the next one, that causes a warning."""

AT_ONCE = 10.0
"""Seconds from a group's last answer to a call that came because of it."""

_EARLIER_TURN = b'"role":"assistant"'
"""Bytes that the params contain if a call continues a conversation."""


class SmallGroupsWarning(UserWarning):
    """The category of the warning, so that a server can replace its words.

    The calls of a server are made by other programs, which do not call this library.
    """


class SmallGroups(msgspec.Struct):
    """Warns once if a few calls wait together, and the next ones come with their answers.

    That is a loop of awaited calls, or a framework that runs a few calls at a time: a batch for
    each group, one after another. Calls that continue a conversation do not count, because they
    need the answer before them.
    """

    _size: int = 0
    _largest: int = 0
    _in_a_row: int = 0
    _ended: float = float("-inf")
    _warned: bool = False

    def begin(self, calls: Sequence[bytes], *, alone: bool) -> None:
        """Note the params of new calls; ``alone`` if no other call waits."""
        if alone and calls and not self._warned:
            self._count_the_group_before(calls)
        self._size += len(calls)

    def _count_the_group_before(self, calls: Sequence[bytes]) -> None:
        size, self._size = self._size, 0
        if not 0 < size <= SMALL_GROUP or time.monotonic() - self._ended > AT_ONCE:
            self._in_a_row = self._largest = 0
            return
        if all(_EARLIER_TURN in params for params in calls):
            return
        self._in_a_row += 1
        self._largest = max(self._largest, size)
        if self._in_a_row == GROUPS_IN_A_ROW:
            self._warned = True
            _warn(
                f"{count_of(self._in_a_row, 'batch', 'batches')} in a row had at most "
                f"{count_of(self._largest, 'call')} each, and the next calls came with the answers."
                " Such batches run one after another, and each can take an hour. If the calls do "
                "not need each other's answers, make them at the same time: use respond_all, "
                "asyncio.gather or abatch, or raise the framework's concurrency "
                "(docs/how-to/frameworks.md)"
            )

    def end(self) -> None:
        """Note that the last waiting call was answered."""
        self._ended = time.monotonic()


def _warn(words: str) -> None:
    """Issue a Python warning, which is shown even if the program configures no logging."""
    with contextlib.suppress(Warning):  # a filter may turn it into an error: not in this thread
        warnings.warn(words, SmallGroupsWarning, stacklevel=2)
