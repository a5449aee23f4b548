"""Live calls: for requests that a deadline leaves no time to batch, or that should not wait.

The rule is the same as for batches. A call is on disk before it is sent, and is never repeated
while it may have been answered. `claude_batch.lifecycle.live_answers` decides what its end means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import HaltReason, LedgerError
from claude_batch.core.outcome import Disposition, Outcome, next_step
from claude_batch.core.states import RequestState
from claude_batch.core.user_functions import RequestFault
from claude_batch.ledger import live_calls, queries, transitions, workspaces
from claude_batch.ledger.budgets import BudgetKey
from claude_batch.ledger.charges import any_budget
from claude_batch.ledger.high_water import count_post, note_behind
from claude_batch.ledger.live_calls import Ended, Waiting
from claude_batch.ledger.store import Leader, Transaction
from claude_batch.ledger.stored_results import NewResult, add_results
from claude_batch.lifecycle.budget_room import (
    CallRoom,
    NoRoom,
    NotCounted,
    Reservations,
    bound_of,
    tokens_of_files,
    warn_after,
)
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.lifecycle.event_reports import CallEnd
from claude_batch.lifecycle.live_answers import (
    ACCOUNT,
    NOT_SENT,
    Answers,
    LiveCall,
    outcome_of,
    words_of,
)
from claude_batch.lifecycle.submission import until_stored
from claude_batch.lifecycle.threads import in_a_thread
from claude_batch.wire.batches_client import ApiError, Unreachable
from claude_batch.wire.bounds import TokenBound, Unbounded, may_hold_documents
from claude_batch.wire.encoding import LaneHeaders, asked_of, model_at_beginning
from claude_batch.wire.live_client import (
    LiveAnswer,
    LiveClient,
    OwnLimitWait,
    longest_silence,
)
from claude_batch.wire.pace import MINUTE, NO_LIMITS, CallLog, OwnLimits, Turn
from claude_batch.wire.retry_policy import SENDING

_log = logging.getLogger(__name__)

PAGE = 500
"""Number of waiting requests whose row numbers are read at once."""

MOST = 1000
"""Most concurrent calls, whatever the runs ask for."""

OTHERS_REST = 1.0
"""Seconds between two attempts while the API's limits leave no room, and between two searches for
requests of other runs."""

RESTS_PER_SEARCH = 20
"""Rest after a search for requests of other runs, as a multiple of the time that it took."""

LONGEST_REST = 60.0
"""Longest time in seconds between two checks for waiting requests."""

UNREADABLE_ANSWERS = 3
"""Failed calls in a row, of which the last was answered with a page of a proxy or the like, after
which sending halts: each further call would end its request as lost."""


class _Shares:
    """The concurrent calls to each model, by run.

    Each run stays within its own ``live_concurrency``. Together they stay within the largest of
    those, so a run with a smaller one is not held up by the calls of the others.
    """

    def __init__(self, calls: Iterable[LiveCall]) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._largest: dict[str, int] = {}
        for call in calls:
            self.add(call.request, call.model)

    def add(self, request: Waiting, model: str) -> None:
        """Count one more call."""
        self._counts[request.run_id, model] += 1
        self._largest[model] = max(self._largest.get(model, 0), request.concurrency)

    def is_full(self, request: Waiting, model: str) -> bool:
        """Return whether the request's run has as many calls to the model as it may have."""
        return self._counts[request.run_id, model] >= request.concurrency

    def most(self, request: Waiting, model: str) -> int:
        """Return how many calls to the model there may be if this request is sent."""
        return max(self._largest.get(model, 0), request.concurrency)


_Permits = dict[int, tuple[str, Turn]]
"""Permits of one pass to send requests, by row number: the model, and the turn."""


class LiveCalls(DriverPart):
    """The live calls of one workspace, as many at once as their runs allow."""

    def __init__(
        self,
        context: DriverContext,
        *,
        changed: Callable[[], None],
    ) -> None:
        """Set up the calls; ``changed`` is called whenever requests have ended."""
        super().__init__(context)
        self._unsent: tuple[Leader, list[LiveCall]] | None = None
        """The calls that a failed claim may have stored, and the leader at that time."""
        self._changed = changed
        self._answers = Answers(context.ledger.incarnation, context.prices)
        self._live_client: LiveClient | None = None
        self._page: deque[tuple[int, str]] = deque()
        """The oldest waiting requests, each with its run, and some of runs that need not wait."""
        self._models: dict[int, str | None] = {}
        """Models of the page's requests, read only if a run waits for one of its models."""
        self._next_search = 0.0
        self._calls: dict[asyncio.Task[LiveAnswer], LiveCall] = {}
        self._unread: set[int] = set()
        """Row numbers of calls whose documents must be read, because a budget has to bound them."""
        self._bounds: dict[tuple[str, int], TokenBound | Unbounded] = {}
        """Bounds of calls that were read, by request id and bytes of the params.

        The next turn of a conversation has more bytes, because it adds to its params."""
        self._reading: asyncio.Task[None] | None = None
        self._held: dict[str, int] = {}
        """Nano-dollars left, by run, for runs with requests that do not fit into their budgets."""
        self._keeps = False
        """Whether a run of the page keeps room for next turns. These have to come first."""
        self._held_before: set[str] = set()
        self._limits = NO_LIMITS
        self._log = CallLog()
        self._answered = 0
        self._failures = 0
        self._not_before = 0.0
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Check for waiting requests now."""
        self._wake.set()

    @property
    def under_way(self) -> int:
        """Return how many calls are under way in this process."""
        return len(self._calls)

    async def run(self, leader: Leader) -> None:
        """Make calls until the driver stops, and await those in progress. Raises `Deposed`."""
        await self._work(leader, until_idle=False)

    async def drain(self, leader: Leader) -> bool:
        """Make calls until no waiting call may be sent now; return whether any was answered."""
        before = self._answered
        await self._work(leader, until_idle=True)
        return self._answered > before

    async def _work(self, leader: Leader, *, until_idle: bool) -> None:
        try:
            self._read_log(leader)
            while True:
                self._wake.clear()
                rest = LONGEST_REST if self._stopping() else await self._send(leader)
                self._read_documents()
                is_reading = self._reading is not None and not self._stopping()
                if not (self._calls or is_reading) and (self._stopping() or (until_idle and rest)):
                    return
                await self._observe(rest)
                # Any event that ended the wait may have freed room for the held requests. A pass
                # that only follows at once goes on with the requests behind them.
                is_event = rest > 0 or any(task.done() for task in self._calls)
                await self._collect(leader)
                if is_event or self._wake.is_set():
                    self._held.clear()
        except (Exception, asyncio.CancelledError):
            # No other process can store the answers in progress, and they are paid for. Only a
            # cancellation during this wait ends it.
            while self._calls and self._is_leader(leader, unless_known=True):
                await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
                await self._collect(leader)
            raise
        finally:
            reading = [] if self._reading is None else [self._reading]
            self._reading = None
            # Only if the leader lock is lost, or the process ends: the calls are lost with it.
            for task in (*self._calls, *reading):
                task.cancel()
            await asyncio.gather(*self._calls, *reading, return_exceptions=True)
            self._calls.clear()
            self._unread.clear()
            self._bounds.clear()
            self._page.clear()
            self._models.clear()
            # A later pass reads the budgets again, because they may have been raised.
            self._held.clear()
            if self._live_client is not None:
                self._live_client.leave()
                self._live_client = None

    def _is_leader(self, leader: Leader, *, unless_known: bool) -> bool:
        """Return whether no other process drives; ``unless_known`` if the ledger does not say."""
        try:
            with self._ledger.read() as tx:
                return workspaces.workspace_row(tx, leader.workspace_id).epoch == leader.epoch
        except LedgerError:
            return unless_known

    def _may_leave(self, leader: Leader, claimed: float) -> bool:
        """Return whether a call may be sent that was claimed then.

        A process that was stopped since may have been taken for dead, and its calls may have been
        sent again on order.
        """
        in_time = 0 <= self._ledger.now() - claimed <= self._settings.arm_window
        return in_time or self._is_leader(leader, unless_known=False)

    def _read_log(self, leader: Leader) -> None:
        """Continue the count of the last driver, which may have been another process."""
        with self._ledger.read() as tx:
            calls = workspaces.recent_calls(tx, leader.workspace_id)
        # From the wall clock, which all processes share, to one that does not jump. An age that a
        # jump has made impossible becomes a possible one.
        past, now = self._ledger.now(), time.monotonic()
        self._log = CallLog(
            (now - min(max(past - at, 0.0), MINUTE), count, tokens) for at, count, tokens in calls
        )

    def _keep_log(self, tx: Transaction, leader: Leader) -> None:
        if self._limits.any:
            ahead = self._ledger.now() - time.monotonic()
            calls = self._log.entries(time.monotonic())
            workspaces.keep_recent_calls(
                tx,
                leader.workspace_id,
                [(at + ahead, count, tokens) for at, count, tokens in calls],
            )

    def _read_documents(self) -> None:
        """Bound the calls that may hold documents, one after another beside the calls."""
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            reading.result()  # raises what it raised
        if self._unread and self._reading is None:
            self._reading = asyncio.create_task(self._bound_unread())

    async def _bound_unread(self) -> None:
        files = tokens_of_files(self._ledger)
        while self._unread and not self._stopping():
            seq = next(iter(self._unread))
            with self._ledger.read() as tx:
                waiting = live_calls.request(tx, seq)
            if waiting is not None:
                bound = await in_a_thread(bound_of, waiting.body, files)
                self._bounds[waiting.id, len(waiting.body)] = bound
            self._unread.discard(seq)
            self._wake.set()

    def _known_bound(self, waiting: Waiting) -> TokenBound | Unbounded | None:
        """Return the bound of a call that was read before; None if it must be read."""
        return self._bounds.get((waiting.id, len(waiting.body)))

    def _must_be_read(self, room: CallRoom, waiting: Waiting) -> bool:
        may_be_slow = room.bounded and may_hold_documents(waiting.body)
        return may_be_slow and self._known_bound(waiting) is None

    async def _observe(self, seconds: float) -> None:
        """Wait until a call has ended, or for so many seconds."""
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            reading = [] if self._reading is None else [self._reading]
            await asyncio.wait(
                [woken, *self._calls, *reading],
                timeout=min(seconds, LONGEST_REST),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            woken.cancel()

    # Sending -------------------------------------------------------------------------------------

    async def _send(self, leader: Leader) -> float:
        """Send as many calls as allowed; return the seconds until the next check."""
        if self._holders:
            return LONGEST_REST
        now = self._ledger.now()
        with self._ledger.read() as tx:
            if self._keeps:
                self._page.clear()
            if not self._page:
                self._models.clear()
                self._page.extend(
                    live_calls.waiting(tx, leader.workspace_id, PAGE, room=self._held)
                )
            if not self._page:
                return LONGEST_REST
            state = workspaces.workspace_row(tx, leader.workspace_id)
            limits = workspaces.limits_of(tx)
        if state.behind is not None:
            return LONGEST_REST
        if workspaces.halt_stands(state, now):
            return LONGEST_REST if state.next_probe is None else state.next_probe - now
        if self._not_before - time.monotonic() > 0:
            return self._not_before - time.monotonic()
        self._limits = OwnLimits(limits.requests_per_minute, limits.tokens_per_minute)
        # While the account is halted or a server fails, send one call as a probe. Each failing call
        # may be billed without an answer.
        most = MOST if state.halted is None and not self._failures else 1
        counted = await self._count_for_budgets(leader, now)
        held = dict(self._held)
        permits: _Permits = {}
        try:
            rest = self._ask_for(permits, leader, most, counted)
            if permits and not self._leave(leader, permits, counted, state.halted):
                rest = 0.0
        finally:
            # All clients of a key and model count them, so a permit that is lost is missing there.
            for model, turn in permits.values():
                self._client_of_calls().unused(turn, model)
        await self._report_held(leader, self._held.keys() - held.keys(), now)
        if self._held != held:
            # Smaller requests may fit, also some that are not in this page.
            self._page.clear()
            return 0.0
        return rest if self._page else LONGEST_REST

    async def _count_for_budgets(self, leader: Leader, now: float) -> Collection[BudgetKey]:
        """Count work that was sent before its budget existed, before more is sent.

        Returns the budgets of the runs of this page.
        """
        with self._ledger.read() as tx:
            if not any_budget(tx):
                return ()
            runs = queries.actors_of_runs(tx, {run_id for _, run_id in self._page})
        reservations = Reservations(self._ledger, self._prices, now, leader)
        return await in_a_thread(reservations.count_for_runs, list(runs.items()))

    async def _report_held(self, leader: Leader, run_ids: Collection[str], now: float) -> None:
        """Store what each request of held runs reserves, for the run's status and the next pass."""
        reservations = Reservations(self._ledger, self._prices, now, leader)
        for run_id in run_ids:
            anew = run_id not in self._held_before
            self._held_before.add(run_id)
            if await in_a_thread(reservations.reserve_held_calls, run_id, anew=anew):
                self._changed()

    def _client_of_calls(self) -> LiveClient:
        if self._live_client is None:
            self._live_client = self._client.live(concurrency=MOST, log=self._log)
        self._live_client.limits, self._live_client.strategy = self._limits, self._functions.pace
        return self._live_client

    def _ask_for(
        self, permits: _Permits, leader: Leader, most: int, counted: Collection[BudgetKey]
    ) -> float:
        """Get permits for the first requests; return the seconds until the next one may be sent.

        Requests with a budget that is not in ``counted`` wait for the next pass, which counts it.
        """
        rest = LONGEST_REST
        seen: set[int] = set()
        paused: set[tuple[str, str | None]] = set()  # models of runs that may not be asked now
        left: list[tuple[int, str]] = []
        client, shares = self._client_of_calls(), _Shares(self._calls.values())
        with self._ledger.read() as tx:
            room = CallRoom(tx, self._prices, self._ledger.now(), counted)
            while len(self._calls) + len(permits) < most:
                if not self._page and not self._search_others(tx, leader, paused):
                    break
                seq, run_id = self._page.popleft()
                if paused and (run_id, self._model_of(tx, seq)) in paused:
                    left.append((seq, run_id))
                    continue
                skipped = seq in seen or seq in self._unread
                waiting = None if skipped else live_calls.request(tx, seq)
                seen.add(seq)
                if waiting is None:
                    continue
                if self._must_be_read(room, waiting):
                    self._unread.add(seq)
                    continue
                try:
                    bound = self._known_bound(waiting)
                    room.reserve(run_id, waiting.actor, waiting.body, bound)
                except NotCounted:
                    # The next pass counts it, and follows at once.
                    left.append((seq, run_id))
                    rest = 0.0
                    break
                except NoRoom as error:
                    # Other requests of the run wait too, unless they are known to be small
                    # enough.
                    self._held[error.run_id] = error.left
                    self._leave_out(tx, error)
                    continue
                model, tokens = asked_of(waiting.body)
                found = OTHERS_REST
                if not shares.is_full(waiting, model):
                    at_once = min(most, shares.most(waiting, model))
                    found = client.try_turn(model, len(waiting.body), tokens, at_once)
                if isinstance(found, Turn):
                    permits[seq] = model, found
                    shares.add(waiting, model)
                    continue
                left.append((seq, run_id))
                # The API's limits are separate for each model, and so is `live_concurrency`.
                paused.add((run_id, model))
                self._models[seq] = model
                # If calls of others must end first, check again soon.
                rest = min(rest, found, OTHERS_REST)
                if isinstance(found, OwnLimitWait):
                    break
            self._keeps = bool(room.kept)
        self._page.extendleft(reversed(left))
        return rest

    def _leave_out(self, tx: Transaction, held: NoRoom) -> None:
        """Remove requests of a held run from the page, apart from those that are known to fit."""
        of_run = [seq for seq, run_id in self._page if run_id == held.run_id]
        gone = set(of_run) - live_calls.fitting(tx, of_run, held.left)
        if gone:
            self._page = deque(each for each in self._page if each[0] not in gone)

    def _model_of(self, tx: Transaction, seq: int) -> str | None:
        """Return the model of a request of this page, whose params may be large."""
        if seq not in self._models:
            unknown = {seq, *(each for each, _ in self._page if each not in self._models)}
            for each, beginning in live_calls.beginnings(tx, unknown).items():
                self._models[each] = model_at_beginning(beginning)
        return self._models.get(seq)

    def _search_others(
        self, tx: Transaction, leader: Leader, paused: Collection[tuple[str, str | None]]
    ) -> bool:
        """Continue with requests of other runs than the paused ones; return whether there are any.

        They wait behind those, perhaps behind many thousands.
        """
        begun = time.monotonic()
        if not paused or begun < self._next_search:
            return False
        runs = {run_id for run_id, _ in paused}
        self._page.extend(
            live_calls.waiting(tx, leader.workspace_id, PAGE, room=self._held, without=runs)
        )
        now = time.monotonic()
        self._next_search = now + max(OTHERS_REST, RESTS_PER_SEARCH * (now - begun))
        return bool(self._page)

    def _leave(
        self,
        leader: Leader,
        permits: _Permits,
        counted: Collection[BudgetKey],
        halted: float | None,
    ) -> bool:
        """Claim and send these requests, unless sending was halted since the pass began.

        ``halted`` is when the halt began that the pass has read. Returns False if some wait for the
        next pass, because a halt has begun or ended, or a budget has just appeared.
        """
        claimed: list[LiveCall] = []
        later: list[tuple[int, str]] = []
        begun = self._ledger.now()
        try:
            with self._ledger.write(leader) as tx:
                now = self._ledger.now()
                room = CallRoom(tx, self._prices, now, counted)
                halt = workspaces.workspace_row(tx, leader.workspace_id)
                for seq, (model, _) in permits.items():
                    asked = live_calls.request(tx, seq)
                    if asked is None or self._must_be_read(room, asked):
                        continue
                    if halt.halted != halted:
                        later.append((seq, asked.run_id))
                        continue
                    try:
                        # A claimed call is about to be paid for.
                        bound = self._known_bound(asked)
                        reserve = room.reserve(asked.run_id, asked.actor, asked.body, bound)
                    except NotCounted:
                        later.append((seq, asked.run_id))
                        continue
                    except NoRoom as error:
                        self._held[error.run_id] = error.left
                        continue
                    claim = live_calls.claim(tx, asked, now, reserve)
                    claimed.append(LiveCall(asked, *claim, now, self._failures, model, halted))
                number = count_post(tx) if claimed else 0
                self._keep_log(tx, leader)
            at = self._client.server_now()
            if claimed and not self._high_water.raise_to(number, sending=True, at=at):
                self._behind(leader, claimed)
                return True
        except BaseException:
            # The claim may be stored nevertheless, if only the answer of its COMMIT was lost.
            self._unsent = leader, claimed
            raise
        reach(CrashPoint.AFTER_LIVE_CLAIM)
        client = self._client_of_calls()
        for call in claimed:
            asked = call.request
            self._bounds.pop((asked.id, len(asked.body)), None)
            headers = LaneHeaders.of_lane(asked.api_version, asked.betas, asked.user_profile)
            timeout = longest_silence(asked_of(asked.body)[1])
            sent = client.send(
                permits.pop(asked.seq)[1],
                call.model,
                asked.body,
                headers,
                timeout=timeout,
                may_leave=partial(self._may_leave, leader, begun),
            )
            self._calls[asyncio.create_task(sent)] = call
        self._page.extendleft(reversed(later))
        return not later

    def return_unsent(self, tx: Transaction, workspace_id: int) -> None:
        """Queue calls again that this process claimed in its last epoch and certainly did not send.

        Call it with the leader lock of the row, before a new epoch begins. Does nothing if another
        process has driven meanwhile: calls under way may be its own.
        """
        if self._unsent is None:
            return
        former, calls = self._unsent
        last = Leader(workspace_id, workspaces.workspace_row(tx, workspace_id).epoch)
        if former == last:
            for call in calls:
                if _is_under_way(tx, call):
                    self._put_back(tx, call)

    def forget_unsent(self) -> None:
        """Forget those calls, once `return_unsent` is committed."""
        self._unsent = None

    def _put_back(self, tx: Transaction, call: LiveCall) -> None:
        step = next_step(*NOT_SENT, transitions.standing_of(tx, call.request.seq))
        live_calls.put_back(tx, call.request.seq, call.batch_id, step, note=None)

    def _behind(self, leader: Leader, claimed: list[LiveCall]) -> None:
        """Put all claimed requests back, because another copy of this ledger has sent meanwhile."""
        with self._ledger.write(leader) as tx:
            for call in claimed:
                self._put_back(tx, call)
            note_behind(tx, self._client.server_now())
            self.stop_behind(tx, leader.workspace_id)
        self._changed()

    # Answers -------------------------------------------------------------------------------------

    async def _collect(self, leader: Leader) -> None:
        """Store the answers of the calls that have ended, and decide what follows."""
        done = [task for task in self._calls if task.done()]
        if not done:
            return
        reach(CrashPoint.AFTER_LIVE_ANSWER)
        asked: list[tuple[asyncio.Task[LiveAnswer], RequestFault]] = []
        for task in done:
            self._note_outage(task.result())
            fault, retry_on = task.result().request_fault, self._calls[task].request.retry_on
            if fault is not None and (retry_on or self._functions.classify):
                asked.append((task, fault.with_retry_on(retry_on)))
        # Answers that need no decision are stored first: a slow function must not endanger them.
        waiting = {task for task, _ in asked}
        await self._store(leader, {task: None for task in done if task not in waiting})
        if asked:
            found = {task: await self._functions.disposition(fault) for task, fault in asked}
            await self._store(leader, found)

    def _note_outage(self, answer: LiveAnswer) -> None:
        if answer.fault is not None:
            self._client.outage.note(ApiError(answer.fault), live=True)
        elif answer.is_answered:
            self._client.outage.note(None, live=True)
        elif not answer.withheld:
            self._client.outage.note(Unreachable(answer.reason), live=True)

    async def _store(
        self, leader: Leader, done: Mapping[asyncio.Task[LiveAnswer], Disposition | None]
    ) -> None:
        """Store the answers of calls, with what the user's function decided about errors."""
        if not done:
            return
        ended = [
            (self._calls[task], task.result(), disposition) for task, disposition in done.items()
        ]
        noted: tuple[list[CallEnd], list[str]] = [], []

        def note() -> tuple[list[CallEnd], list[str]]:
            nonlocal noted
            with self._ledger.write(leader, anywhere=True) as tx:
                # An earlier try may be stored, if only the answer of its COMMIT was lost. To settle
                # a call again would count its cost twice. Another server may lack the claim.
                found = [each for each in ended if _is_under_way(tx, each[0])]
                if found:
                    noted = self._note(tx, leader, found)
                return noted

        ends, warnings = await until_stored(note, f"{len(ended)} live answers cannot be stored yet")
        for task in done:
            del self._calls[task]
        self._answered += sum(answer.is_answered for _, answer, _ in ended)
        reach(CrashPoint.AFTER_LIVE_RECORD)
        for words in warnings:
            _log.warning("%s", words, extra={"for_people": True})
        self._reporter.called(ends)
        self._changed()

    def _note(
        self,
        tx: Transaction,
        leader: Leader,
        ended: list[tuple[LiveCall, LiveAnswer, Disposition | None]],
    ) -> tuple[list[CallEnd], list[str]]:
        """Store how calls ended; return the same for the observers, and warnings of budgets."""
        now = self._ledger.now()
        final: list[Ended] = []
        noted: set[int] = set()
        call_ends: list[CallEnd] = []
        for call, answer, decided in ended:
            asked, seq = call.request, call.request.seq
            outcome, disposition = outcome_of(answer, asked.retry, decided)
            step = next_step(outcome, disposition, transitions.standing_of(tx, seq))
            state, may_be_paid = step.state, answer.may_be_billed
            is_accounts = (outcome, disposition) == ACCOUNT
            result: NewResult | None = None
            if outcome is Outcome.SUCCEEDED:
                result = self._answers.success(call, answer, now)
                is_malformed = result.disposition == Disposition.MALFORMED
                state = RequestState.MALFORMED if is_malformed else RequestState.SUCCEEDED
                self.lift_halt(tx, leader.workspace_id, probed=call.probed)
            elif answer.status is not None and outcome is not Outcome.NOT_SENT:
                result = self._answers.error(call, answer, disposition, now)
            if outcome is Outcome.MISSING:
                _log.warning(
                    "%s: a live call may have been paid for and has no answer: %s",
                    asked.run_id,
                    words_of(answer),
                )
            if state in (RequestState.QUEUED, RequestState.CANCELED):
                if result is not None:
                    add_results(tx, [result])
                live_calls.put_back(
                    tx, seq, call.batch_id, step, note=words_of(answer), may_be_paid=may_be_paid
                )
                noted.add(call.batch_id)
            else:
                final.append(Ended(call.batch_id, state, result, seq, may_be_paid))
            ends = state.is_final and outcome in (Outcome.SUCCEEDED, Outcome.ERRORED)
            if is_accounts:
                self._halt(tx, leader, answer)
            elif ends and answer.malformed is None:
                self._failures = 0
            elif answer.malformed is not None or may_be_paid or answer.never_left:
                # A refused caller waits as the API asks; a failing server is given time. Calls that
                # were in progress together and fail together count as one failure.
                if call.failures >= self._failures:
                    self._failures += 1
                self._not_before = time.monotonic() + SENDING(self._failures)
                is_enough = call.probed is not None or self._failures >= UNREADABLE_ANSWERS
                if answer.is_unreadable and is_enough:
                    self._halt(tx, leader, answer)
            known = None if outcome is Outcome.MISSING else result
            call_ends.append(CallEnd(asked, call.batch_id, known, state, is_accounts, call.left))
        live_calls.finish(tx, final, now, noted=noted)
        self._keep_log(tx, leader)
        return call_ends, warn_after(tx, {end.batch_id for end in final}, now)

    def _halt(self, tx: Transaction, leader: Leader, answer: LiveAnswer) -> None:
        if answer.fault is not None:
            self.halt(tx, leader.workspace_id, answer.fault)
            return
        reason: HaltReason = "refused" if answer.is_unreadable else "credentials"
        self.stop_sending(tx, leader.workspace_id, answer.reason, reason=reason)


def _is_under_way(tx: Transaction, call: LiveCall) -> bool:
    return live_calls.is_under_way(tx, call.request.seq, call.batch_id, call.sending)
