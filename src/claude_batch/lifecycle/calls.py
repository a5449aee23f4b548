"""Single calls: stored in groups, joined by their keys, and held in runs of their process.

The calls that a process makes with the same actor, mode, workspace, conversation settings and label
form a run of kind ``calls``. So they are counted, shown and timed out by the same rules as a file.
With a relative deadline, only calls within a twentieth of it share a run.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import ActorError, InvalidRequestError, KeyConflictError, LedgerError
from claude_batch.core.events import RequestsQueued, RequestsRetried
from claude_batch.core.ids import new_request_ids
from claude_batch.core.quantities import count_of, tally
from claude_batch.core.states import FAILED
from claude_batch.ledger import (
    budgets,
    cancellations,
    enqueue,
    held_requests,
    queries,
    retries,
    run_deadlines,
    single_calls,
)
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.held_requests import Failure
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.single_calls import NewCall, Orphan, Tried
from claude_batch.ledger.store import Ledger, Record, Transaction
from claude_batch.ledger.uploaded_files import file_tokens
from claude_batch.lifecycle.budget_room import (
    COUNTINGS,
    bound_of,
    limits_of,
    reserve_call,
    today,
)
from claude_batch.lifecycle.observers import Observers
from claude_batch.lifecycle.pending_call import (
    Call,
    CallGroup,
    digest_of_call,
    identity_of,
)
from claude_batch.lifecycle.tool_runner import ConversationSettings
from claude_batch.lifecycle.waiters import Departure, Note, Waiter
from claude_batch.money.prices import Prices, prices_of
from claude_batch.wire.bounds import may_hold_documents
from claude_batch.wire.encoding import LaneHeaders

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode
    from claude_batch.lifecycle.api_sessions import ApiSession

_log = logging.getLogger(__name__)

RUNS_KEPT = 1000
"""Groups of calls whose run is remembered; calls may each have a deadline of their own.

The next call of a forgotten group begins another run."""

RETRY_WINDOW = 660.0
"""Seconds after an answer was written during which a client's retry may want it again.

An SDK waits 600 s for a byte by default, and then at most some seconds before it repeats a call."""

SHARED_DEADLINE = 0.05
"""Fraction of a call's deadline during which later calls join its run."""


class _CallsRun(msgspec.Struct):
    run_id: str
    next_position: int = 0
    until: float = float("inf")
    """Calls that begin later go into another run, because this run has a deadline."""


def _is_within(seconds: float, since: float, now: float) -> bool:
    """Return whether less than so many seconds have passed; False if the clock has jumped back."""
    return 0 <= now - since < seconds


class _Earlier(msgspec.Struct):
    """Earlier requests that calls of one transaction may join, or whose failures they get."""

    failures: Mapping[tuple[int, str, bytes], list[Failure]]
    """By lane, actor and digest of the params."""
    orphans: dict[tuple[int, bytes], deque[Orphan]]
    """By lane and digest; an equal call may take over each of them once."""
    tried: list[Tried]
    """Those that the retries of clients' calls may join."""


class Flush(msgspec.Struct):
    """Results of one transaction for the calls that it stores."""

    runs: dict[CallGroup, _CallsRun] = {}
    lanes: dict[tuple[int, LaneHeaders], int] = {}
    identifiers: list[str] = []
    """Ids of the new requests."""
    taken_over: list[int] = []
    """Requests whose callers went away, and for which calls wait now."""
    stored: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])
    """New calls by run and actor."""
    retried: list[tuple[str, str]] = []
    """The run and the cause of failure of calls that failed before and are retried."""
    bounded: set[str] = set()
    """Runs whose new calls must fit into a budget."""
    waiting: list[tuple[Call, Waiter]] = []
    since: int = 0
    """Stamp of the ledger before the transaction; the requests that calls wait for end later."""
    done: list[tuple[Call, Answer | ActorError]] = []
    given_failures: list[tuple[Call, Answer]] = []
    """Calls that get the failure of an equal one."""
    rejoined: list[int] = []
    """Requests that the retry of a client's call has joined."""
    unjoined: list[Call] = []
    """Calls that want an orphan only, and for which there is none."""
    unread: list[Call] = []
    """Calls that are not stored, because a budget has to bound their documents first.

    That takes too long for a transaction, and for the engine's loop."""
    uncounted: list[Call] = []
    """Calls that are not stored, because their budget has not counted what was sent before it."""

    def report(self, observers: Observers) -> None:
        """Report to observers what has been queued, by run."""
        for (run_id, actor), count in self.stored.items():
            observers.report(
                RequestsQueued(
                    ledger=observers.ledger,
                    run_id=run_id,
                    actor=actor,
                    requests=count,
                    kind="calls",
                )
            )
        for run_id, count in Counter(run_id for run_id, _ in self.retried).items():
            observers.report(
                RequestsRetried(
                    ledger=observers.ledger, requests=count, reason="order", run_id=run_id
                )
            )


class _Notes(msgspec.Struct):
    """What the next transaction writes about requests, by their row numbers."""

    taken: list[int] = []
    failed: list[int] = []
    """Those taken that are failures which equal calls get again."""
    let_go: list[int] = []
    in_doubt: list[str] = []
    """Ids of requests that may be stored, although their callers got an error."""
    left: list[int] = []
    """Withdrawn if they are not sent."""
    dropped: list[int] = []
    """Those left that are cancelled even if they are sent."""


def _until(mode: BatchProcessingMode, now: float) -> float:
    """Return the time until which calls share a run: with a deadline, a twentieth of it.

    Later calls of the run have that much less time, and share batches with the first.
    """
    if not isinstance(mode.deadline, float):
        return float("inf")
    return now + mode.deadline * SHARED_DEADLINE


class CallStore:
    """Writer of calls to a ledger. Belongs to the engine's loop."""

    def __init__(
        self, ledger: Ledger, process: str, note: Note, prices: Prices | None = None
    ) -> None:
        """Set up the store; ``process`` is the id of this process in the ledger.

        ``note`` records which of the known answers have reached their callers. ``prices``, by
        default the listed ones, bound the cost of a call if there is a budget.
        """
        self._note_taken = note
        self._prices = prices or prices_of()
        self._ledger = ledger
        self._process = process
        self._runs: dict[CallGroup, _CallsRun] = {}
        self.left_runs: deque[str] = deque()
        """Runs that no new call joins any more, and of which something may still be remembered."""
        self._rejoined: set[int] = set()
        """Requests that the retry of a client's call has joined, until their answers are taken."""
        self._notes = _Notes()

    def taken(self, seq: int, failed: bool = False) -> None:
        """Mark an answer as received by its caller, in the next transaction.

        ``failed``: it is a failure that equal calls get again.
        """
        self._notes.taken.append(seq)
        if failed:
            self._notes.failed.append(seq)

    def gone(self, seq: int, departure: Departure) -> None:
        """Do with the request of callers that are gone as they want, in the next transaction."""
        notes = self._notes
        (notes.let_go if departure == "keep" else notes.left).append(seq)
        if departure == "drop":
            notes.dropped.append(seq)

    @property
    def has_notes(self) -> bool:
        """Whether there are marks to be written."""
        notes = self._notes
        return bool(notes.taken or notes.let_go or notes.left or notes.in_doubt)

    @property
    def has_left(self) -> bool:
        """Whether a call must be withdrawn; this is urgent, because it may be sent."""
        return bool(self._notes.left)

    def note(self) -> None:
        """Write which answers were taken and which calls were let go; withdraw abandoned calls.

        Raises `LedgerError`.
        """
        with self._ledger.write() as tx:
            self._note(tx)
        self._noted()

    def _note(self, tx: Transaction) -> None:
        notes, now = self._notes, self._ledger.now()
        single_calls.mark_taken(tx, notes.taken, now, self._rejoined)
        held_requests.remember_failures(tx, notes.failed, now)
        single_calls.let_go(tx, notes.let_go, self._process)
        stored = single_calls.rows_of(tx, notes.in_doubt)
        single_calls.let_go(tx, stored, self._process)
        single_calls.withdraw(tx, notes.left, self._process)
        others = single_calls.taken_over(tx, notes.dropped, self._process)
        cancellations.cancel_requests(tx, set(notes.dropped) - others, now)

    def _noted(self) -> None:
        notes, self._notes = self._notes, _Notes()
        self._rejoined.difference_update(notes.taken, notes.let_go, notes.left)

    def store(self, calls: Sequence[Call]) -> Flush:
        """Store calls, settle those with a known outcome, and return the others with their waiters.

        Raises `LedgerError`.
        """
        flush = Flush()
        fresh: dict[CallGroup, list[Call]] = {}
        try:
            with self._ledger.write() as tx:
                flush.since = queries.last_stamp(tx)
                # First, so that the following queries see what was taken or let go here.
                self._note(tx)
                self._forget_closed(tx, {call.group for call in calls})
                for call in calls:
                    if call.options.key is not None:
                        # One by one, so that two calls of one flush can share a key.
                        self._store_keyed(tx, call, flush)
                        continue
                    fresh.setdefault(call.group, []).append(call)
                earlier = self._earlier(tx, fresh.values())
                for group, members in fresh.items():
                    new = self._join_earlier(tx, members, earlier, flush)
                    if new:
                        flush.waiting += self._store_group(tx, group, new, flush)
        except LedgerError:
            # They may be stored or taken over, if only the answer of the COMMIT was lost. No caller
            # waits for them, so equal calls take them over.
            self._notes.in_doubt += flush.identifiers
            self._notes.let_go += flush.taken_over
            raise
        self._noted()
        self._rejoined.update(flush.rejoined)
        reach(CrashPoint.AFTER_CALLS_STORED)
        self._remember_runs(flush)
        self._settle(flush)
        _warn(flush)
        return flush

    def _remember_runs(self, flush: Flush) -> None:
        """Let later calls join the runs of the stored ones."""
        for group, run in flush.runs.items():
            if group.alone:
                self.left_runs.append(run.run_id)  # no other call joins it
                continue
            before = self._runs.pop(group, None)
            if before is None and len(self._runs) >= RUNS_KEPT:
                before = self._runs.pop(next(iter(self._runs)))
            if before is not None and before.run_id != run.run_id:
                self.left_runs.append(before.run_id)
            self._runs[group] = run

    def _forget_closed(self, tx: Transaction, groups: Collection[CallGroup]) -> None:
        """Forget the runs of these groups that were cancelled; later calls begin another run."""
        known = {each: self._runs[each].run_id for each in groups if each in self._runs}
        if not known:
            return
        still_open = enqueue.open_for_calls(tx, known.values())
        for group, run_id in known.items():
            if run_id not in still_open:
                del self._runs[group]
                self.left_runs.append(run_id)

    def _joinable(self, group: CallGroup, begun: float) -> _CallsRun | None:
        """Return the run that a call of this group, begun at a time, joins; None if it is new."""
        known = self._runs.get(group)
        return known if known is not None and begun <= known.until else None

    def _settle(self, flush: Flush) -> None:
        """Give the calls whose outcome is known to their callers."""
        for call, outcome in flush.done:
            if isinstance(outcome, Answer):
                call.future.stored(outcome.seq)
            delivered = call.future.settle(outcome, self._note_taken)
            if isinstance(outcome, Answer) and not delivered:
                self.gone(outcome.seq, "keep")
        for call in flush.unjoined:
            call.future.leave("drop")
        for call, failure in flush.given_failures:
            call.future.joined = "failure"
            call.future.stored(failure.seq)
            call.future.settle(failure)

    def _earlier(self, tx: Transaction, groups: Iterable[list[Call]]) -> _Earlier:
        """Return what these calls may join. Usually there is nothing, which costs two look-ups."""
        calls = [call for of in groups for call in of if not call.options.joins_nothing]
        failing = [call for call in calls if call.options.failure_ttl is not None]
        retrying = [c for c in calls if c.options.retries and not c.options.orphan_only]
        return _Earlier(
            self._failures(tx, failing), self._orphans(tx, calls), self._tried(tx, retrying)
        )

    def _failures(
        self, tx: Transaction, calls: Sequence[Call]
    ) -> Mapping[tuple[int, str, bytes], list[Failure]]:
        # A call with a shorter time than the setting makes a failure between the two anew. It is
        # read as well, so that the ledger forgets it and no later call gets it again.
        times = [(c.options.failure_ttl or 0.0, c.options.mode.failure_ttl) for c in calls]
        longest = max(map(max, times), default=0.0)
        if not longest or not held_requests.any_failed_since(tx, self._ledger.now() - longest):
            return {}
        digests = {single_calls.digest_of(call.encoded.params) for call in calls}
        return held_requests.failures(tx, digests)

    def _orphans(
        self, tx: Transaction, calls: Sequence[Call]
    ) -> dict[tuple[int, bytes], deque[Orphan]]:
        found: dict[tuple[int, bytes], deque[Orphan]] = {}
        others = single_calls.other_processes(tx, self._process) if calls else []
        if not others:
            return found
        dead = [p for p in others if p is not None and not self._ledger.is_alive(p)]
        if not dead and None not in others:
            return found
        digests = {digest_of_call(call) for call in calls}
        for orphan in single_calls.orphans(tx, digests, dead, let_go=None in others):
            found.setdefault((orphan.lane_id, orphan.digest), deque()).append(orphan)
        return found

    def _tried(self, tx: Transaction, calls: Sequence[Call]) -> list[Tried]:
        if not calls:
            return []
        since = self._ledger.now() - RETRY_WINDOW
        return single_calls.tried(tx, set(map(digest_of_call, calls)), self._process, since)

    def _join_earlier(
        self, tx: Transaction, calls: list[Call], earlier: _Earlier, flush: Flush
    ) -> list[Call]:
        """Give calls the equal requests that they join; return those that make a new request."""
        new: list[Call] = []
        taken: list[int] = []
        for call in calls:
            if self._repeats_failure(tx, call, earlier, flush):
                continue
            found = self._joined(tx, call, earlier, flush)
            if found is not None:
                taken.append(found.seq)
                if call.options.retries:  # the first retry of another call must not get its answer
                    flush.rejoined.append(found.seq)
                self._join(tx, call, found.seq, found.run_id, flush)
                if isinstance(found, Tried):
                    call.future.joined = "retry"
            elif call.options.orphan_only:
                flush.unjoined.append(call)
            else:
                new.append(call)
        flush.taken_over += taken
        single_calls.take_over(tx, taken, self._process)
        return new

    def _repeats_failure(
        self, tx: Transaction, call: Call, earlier: _Earlier, flush: Flush
    ) -> bool:
        """Give a call the failure of an equal one, if that is recent; forget an older failure."""
        options = call.options
        if options.failure_ttl is None or options.joins_nothing or not earlier.failures:
            return False
        lane_id = self._lane(tx, call.session.workspace_id, call.encoded.headers, flush)
        digest = single_calls.digest_of(call.encoded.params)
        failed = earlier.failures.get((lane_id, options.actor, digest))
        if failed is None:
            return False
        if _is_within(options.failure_ttl, failed[-1].taken, self._ledger.now()):
            answer = queries.answer_of(tx, failed[-1].seq)
            flush.given_failures.append((call, answer._replace(reused=1)))
            return True
        held_requests.forget_failures(tx, {each.seq for each in failed})
        return False

    def _joined(
        self, tx: Transaction, call: Call, earlier: _Earlier, flush: Flush
    ) -> Orphan | Tried | None:
        """Take the request that a call joins: an orphan, or what a client's retry tried before."""
        options = call.options
        if options.joins_nothing or not (earlier.orphans or earlier.tried):
            return None
        lane_id = self._lane(tx, call.session.workspace_id, call.encoded.headers, flush)
        digest = digest_of_call(call)
        if waiting := earlier.orphans.get((lane_id, digest)):
            # The oldest may have been there before a new call was made.
            return waiting.pop() if options.new else waiting.popleft()
        if not options.retries or options.orphan_only:
            return None
        equal = [
            each
            for each in earlier.tried
            if (each.lane_id, each.actor, each.digest) == (lane_id, options.actor, digest)
            and (each.taken is None or not options.new)
        ]
        if options.new:
            equal.reverse()  # the newest first, as for orphans
        found = single_calls.request_of_retry(equal, options.retries)
        if found is not None:
            earlier.tried.remove(found)
        return found

    def _store_keyed(self, tx: Transaction, call: Call, flush: Flush) -> None:
        actor, key = call.options.actor, call.options.key
        assert key is not None
        known = single_calls.find_call(tx, actor, key)
        if known is None:
            if (size := len(key.encode())) > single_calls.LONGEST_CALL_KEY:
                too_long = InvalidRequestError(
                    f"the key of a single call has {size:,} bytes; at most "
                    f"{single_calls.LONGEST_CALL_KEY:,} are possible"
                )
                flush.done.append((call, too_long))
                return
            for pair in self._store_group(tx, call.group, [call], flush):
                single_calls.remember_call(tx, actor, key, pair[1].seq)
                flush.waiting.append(pair)
            return
        if not _asks_the_same(tx, known, call):
            conflict = KeyConflictError(
                f"the actor {actor} already has another request with this key; choose another key",
                key=key,
            )
            flush.done.append((call, conflict))
            return
        self._join(tx, call, known.seq, known.run_id, flush)

    def _join(self, tx: Transaction, call: Call, seq: int, run_id: str, flush: Flush) -> None:
        """Give a call the answer of an earlier request, or let it wait for that request.

        A request that failed for a transient reason is retried, unless that was a moment ago and
        the call repeats failures.
        """
        options = call.options
        call.future.joined = "equal" if options.key is None else "key"
        answer = queries.answer_of(tx, seq)
        ended = answer.answered or 0.0
        repeats = options.failure_ttl is not None and _is_within(
            options.failure_ttl, ended, self._ledger.now()
        )
        if answer.state in FAILED and not repeats:
            failure = retries.retry_call(tx, seq, due=self._ledger.now() + options.mode.linger)
            if failure is not None:
                flush.retried.append((run_id, failure))
                flush.bounded.add(run_id)
                answer = queries.answer_of(tx, seq)
        if answer.state.is_final:
            # The answer was in the ledger before the call was made.
            flush.done.append((call, answer._replace(reused=1)))
        else:
            if (judge := self._judge_of(call.session, options.conversation)) is not None:
                # The process that made the request may have ended.
                workspace_id, now = call.session.workspace_id, self._ledger.now()
                enqueue.add_judge(tx, run_id, judge, workspace_id=workspace_id, now=now)
            flush.waiting.append((call, call.waiter(seq, run_id)))

    def run_of(
        self,
        session: ApiSession,
        actor: str,
        mode: BatchProcessingMode,
        conversation: ConversationSettings | None,
    ) -> str:
        """Return the run that holds, or will hold, such calls of this process.

        Raises `LedgerError`.
        """
        group = CallGroup(session.workspace_id, actor, mode, conversation, None, 0)
        now = self._ledger.now()
        if group in self._runs:
            with self._ledger.read() as tx:
                self._forget_closed(tx, (group,))
        known = self._joinable(group, now)
        if known is None:
            flush = Flush()
            with self._ledger.write() as tx:
                known = self._run(tx, group, session, now, flush)
            self._remember_runs(flush)
        return known.run_id

    def _lane(self, tx: Transaction, workspace_id: int, headers: LaneHeaders, flush: Flush) -> int:
        lane_id = flush.lanes.get((workspace_id, headers))
        if lane_id is None:
            lane_id = enqueue.ensure_lane(tx, workspace_id, *headers.as_lane())
            flush.lanes[workspace_id, headers] = lane_id
        return lane_id

    def _run(
        self,
        tx: Transaction,
        group: CallGroup,
        session: ApiSession,
        begun: float,
        flush: Flush,
    ) -> _CallsRun:
        """Return the run that holds a group's calls in this process; create it if it is new."""
        if (found := flush.runs.get(group)) is not None:
            return found
        workspace_id, actor, mode, conversation, label, _ = group
        known = self._joinable(group, begun)
        if known is not None:
            if mode.deadline is not None:
                run_deadlines.reopen(tx, known.run_id)
            found = copy.copy(known)  # the transaction may fail
        else:
            run = NewRun(
                kind="calls",
                actor=actor,
                workspace_id=workspace_id,
                mode=mode,
                created=begun,
                label=label,
                process=self._process,
                converses=conversation is not None,
                tools=None if conversation is None else conversation.remembered,
                judge=self._judge_of(session, conversation),
            )
            until = _until(mode, self._ledger.now())
            found = _CallsRun(enqueue.begin_run(tx, run), until=until)
        flush.runs[group] = found
        return found

    def _judge_of(
        self, session: ApiSession, conversation: ConversationSettings | None
    ) -> str | None:
        """Return this process if it judges the answers of such calls, whoever drives."""
        judges = conversation is not None and conversation.judge is not None
        return self._process if judges and session.is_driven else None

    def _brings_budget(
        self, tx: Transaction, group: CallGroup, calls: list[Call], flush: Flush
    ) -> bool:
        """Return whether a new run of these calls sets a budget that is still to be counted."""
        actor, amount = group.actor, group.mode.actor_budget
        if amount is None or group in flush.runs:
            return False
        if self._joinable(group, calls[0].begun) is not None:
            return False
        if max(call.countings for call in calls) >= COUNTINGS:
            return False  # the driver counts it before it sends
        if not budgets.is_set_by(tx, "actor", actor, amount):
            return False
        return bool(budgets.uncounted(tx, [("actor", actor)], today(self._ledger.now())))

    def _reserved(
        self, tx: Transaction, group: CallGroup, calls: list[Call], flush: Flush
    ) -> list[tuple[Call, int | None]]:
        """Return the calls with what each reserves.

        A call that exceeds a whole budget is settled with an error. A call with documents is left
        out until its ``bound`` is set.
        """
        run = flush.runs.get(group) or self._joinable(group, calls[0].begun)
        limits = limits_of(tx, None if run is None else run.run_id, group.actor, group.mode)
        if not limits:
            return [(call, None) for call in calls]
        reserved: list[tuple[Call, int | None]] = []
        files = functools.partial(file_tokens, tx)
        for call in calls:
            params, bound = call.encoded.params, call.bound
            if bound is None and may_hold_documents(params):
                flush.unread.append(call)
                continue
            try:
                reserve = reserve_call(
                    self._prices,
                    bound_of(params, files) if bound is None else bound,
                    limits,
                    call.begun,
                    batch=group.mode.mode != "live",
                )
            except ActorError as error:
                flush.done.append((call, error))
            else:
                reserved.append((call, reserve))
        return reserved

    def _store_group(
        self, tx: Transaction, group: CallGroup, calls: list[Call], flush: Flush
    ) -> list[tuple[Call, Waiter]]:
        """Store calls, and return those that are stored with their waiters."""
        if self._brings_budget(tx, group, calls, flush):
            flush.uncounted += calls
            return []
        reserved = self._reserved(tx, group, calls, flush)
        if not reserved:
            return []
        calls = [call for call, _ in reserved]
        run = self._run(tx, group, calls[0].session, calls[0].begun, flush)
        run_id = run.run_id
        new: list[NewRequest] = []
        for identifier, (call, reserve) in zip(
            new_request_ids(len(reserved)), reserved, strict=True
        ):
            lane_id = self._lane(tx, group.workspace_id, call.encoded.headers, flush)
            params = call.encoded.params
            new.append(
                NewRequest(
                    identifier,
                    run.next_position,
                    call.options.key,
                    lane_id,
                    params,
                    reserve=reserve,
                )
            )
            run.next_position += 1
        begun = min(call.begun for call in calls)
        mode = group.mode
        # A disk may have been slow, and the calls that came meanwhile are not stored yet.
        due = self._ledger.now() + mode.linger
        if reserved[0][1] is not None:
            budgets.price_by(tx, self._prices.digest)
            flush.bounded.add(run_id)
        flush.identifiers += [each.id for each in new]
        first = enqueue.add_requests(tx, run_id, new, created=begun, due=due)
        flush.stored[run_id, group.actor] += len(calls)
        stored = list(enumerate(calls, first))
        if mode.reuse:
            digested = [
                (seq, each.lane_id, single_calls.digest_of(identity_of(call)))
                for each, (seq, call) in zip(new, stored, strict=True)
            ]
            held_requests.take_answers(tx, held_requests.answered_calls(tx, digested))
        identified: list[tuple[int, bytes]] = []
        keyless: list[NewCall] = []
        kept: list[tuple[int, bytes]] = []
        for seq, call in stored:
            # The other calls are identified by the digest of their params.
            if call.encoded.identity is not None:
                identified.append((seq, single_calls.digest_of(call.encoded.identity)))
            if call.options.key is None:
                keyless.append(NewCall(seq, digest_of_call(call), self._process))
            if call.options.context is not None:
                kept.append((seq, call.options.context))
        held_requests.add_digests(tx, identified)
        if keyless:
            single_calls.add_calls(tx, keyless)
        if kept:
            enqueue.add_contexts(tx, kept)
        for seq, call in stored:
            if call.trace is not None:
                # A separate write, so that the many calls without a trace cost nothing.
                enqueue.set_trace(tx, seq, call.trace)
        return [(call, call.waiter(seq, run_id)) for seq, call in stored]


def _warn(flush: Flush) -> None:
    """Report the calls that are sent again, and those that get the failure of an equal one."""
    if flush.retried:
        again = count_of(
            len(flush.retried),
            "call that failed before is sent again",
            "calls that failed before are sent again",
        )
        causes = tally(Counter(cause for _, cause in flush.retried))
        _log.warning("%s (%s)", again, causes, extra={"for_people": True})
    if flush.given_failures:
        _log.warning(
            "%s, without a request (failure_ttl)",
            count_of(
                len(flush.given_failures),
                "call gets the failure of an equal call again",
                "calls get the failure of an equal call again",
            ),
        )


def _asks_the_same(tx: Transaction, known: Record, call: Call) -> bool:
    """Return whether a call equals a stored one, however their documents are sent.

    ``known`` is a row of `single_calls.find_call`. The key of the API is not compared.
    """
    encoded = call.encoded
    if LaneHeaders.of_lane(known.api_version, known.betas, known.user_profile) != encoded.headers:
        return False
    if known.body == encoded.params:
        return True
    return encoded.identity is not None and held_requests.digest_in(
        tx, known.seq
    ) == single_calls.digest_of(encoded.identity)
