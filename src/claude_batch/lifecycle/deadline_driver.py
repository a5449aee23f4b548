"""Deadlines: when to withdraw requests from batches, so that there is time for live calls.

A run with a deadline has batches of its own. A margin before the deadline, the run is withdrawn:
unsent requests are packed no more, batches at the API are cancelled, and their finished results are
collected as always. Only requests that never left, or that the API reports as not run, go to the
live API; with ``fallback: none`` they end ``expired``. A request that may have been accepted or
billed waits for certainty beyond any deadline, so that nothing is sent both ways.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.quantities import count_of, format_duration, roughly
from claude_batch.core.states import AT_API, BatchState, RequestState
from claude_batch.ledger import cost_sums, queries, run_deadlines, workspaces
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.run_deadlines import Experience
from claude_batch.ledger.store import Leader, Ledger, Record, Transaction

_log = logging.getLogger(__name__)

CANCEL_SECONDS = 300.0
"""Seconds for a cancelled batch to end and be collected, until the ledger has measured one."""

CALL_SECONDS = 20.0
"""Seconds for one live call, until the ledger has measured one."""

SHORTEST_MARGIN = 60.0
"""Minimum seconds of a learned margin."""

RESTS_PER_LOOK = 50
"""Pause between two looks at a run, as a multiple of the time that a look takes."""

PAST_REST = 1.0
"""Minimum seconds between two looks at a run that is past its margin."""

LONGEST_REST = 60.0
"""Maximum seconds between two looks at a run."""


def margin_of(run: Record, unfinished: int, seen: Experience) -> float:
    """Return the seconds before its deadline at which a run is withdrawn from batches.

    This is the configured margin. Otherwise it is the time for a cancelled batch to end plus the
    live calls of all unfinished requests, as measured by the ledger, plus a fifth. It is at least a
    minute, and at most half of the run's whole time, so that batches have a chance.
    """
    if run.deadline_margin is not None:
        return run.deadline_margin
    cancel = CANCEL_SECONDS if seen.cancel_seconds is None else seen.cancel_seconds
    call = seen.live_seconds
    if call is None:
        call = CALL_SECONDS / run.live_concurrency
    learned = max(SHORTEST_MARGIN, 1.2 * (cancel + unfinished * call))
    return min(learned, max(0.0, run.deadline - run.created) / 2)


def outcome_of(tx: Transaction, run: Record) -> str:
    """Return ``met``, or ``missed`` with the reason, for a run of which every request has ended."""
    if run.past_margin is not None and run.fallback == "none":
        counts = queries.request_counts(tx, run.id)
        reasons = [
            f"{count_of(counts[state], 'request')} {words}"
            for state, words in (
                (RequestState.EXPIRED, "did not run before it"),
                (RequestState.LOST, "may have run, but no answer came before it"),
            )
            if counts.get(state)
        ]
        if reasons:
            return f"missed: {'; '.join(reasons)}"
    last = cost_sums.answer_times(tx, run.id)[1]
    if last is None or last <= run.deadline:
        return "met"
    return f"missed by {_words(last - run.deadline)}: {_why_late(run)}"


def _why_late(run: Record) -> str:
    """Return why a deadline passed before the run was withdrawn from batches."""
    if run.deadline - run.created < PAST_REST:
        return "it left no time"
    margin = run.deadline_margin
    if margin is not None and margin < PAST_REST:
        return f"deadline_margin ({format_duration(margin)}) left no time before it"
    return "no process drove the ledger when it came near"


class _Looked(NamedTuple):
    """What came of a look at one run."""

    changed: bool
    wait: float
    """Seconds until the next look, which may be put off."""
    latest: float = math.inf
    """Seconds until the margin or the deadline, beyond which it may not be put off."""


class Deadlines:
    """The watcher of one workspace's deadlines."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next: dict[str, float] = {}

    def look(self, leader: Leader, now: float) -> tuple[bool, float]:
        """Do what the deadlines require by now.

        Returns whether anything has changed, and the seconds until the next look.
        """
        with self._ledger.read() as tx:
            found = run_deadlines.open_deadlines(tx, leader.workspace_id)
        changed, rest = False, LONGEST_REST
        planned = self._next
        self._next = {run.id: planned[run.id] for run in found if run.id in planned}
        for run in found:
            begun = time.monotonic()
            is_over = run.deadline_outcome is None and run.deadline <= now
            if is_over or self._next.get(run.id, begun) <= begun:
                looked = self._look_at(leader, run, now)
                changed = changed or looked.changed
                # Deadlines use the wall clock, which may jump; pauses use the monotonic clock.
                took = time.monotonic() - begun
                # Bounded, because a look may have waited for another writer of the ledger.
                pause = min(max(looked.wait, RESTS_PER_LOOK * took), LONGEST_REST)
                self._next[run.id] = begun + min(pause, looked.latest)
            rest = min(rest, max(0.0, self._next[run.id] - begun))
        return changed, rest

    def _look_at(self, leader: Leader, run: Record, now: float) -> _Looked:
        """Do what one run's deadline requires."""
        with self._ledger.read() as tx:
            unfinished = queries.unfinished(tx, run.id)
            outcome = None if unfinished else outcome_of(tx, run)
            seen = run_deadlines.experience(tx, leader.workspace_id)
        if outcome is not None:
            with self._ledger.write(leader) as tx:
                self._conclude(tx, run, outcome, closed=now)
            return _Looked(True, 0.0)
        if run.past_margin is None:
            margin = margin_of(run, unfinished, seen)
            left = run.deadline - margin - now
            if left > 0:
                # The run may turn out to need more time, or less, so look again before then.
                return _Looked(False, min(left, max(PAST_REST, left / 4)), left)
            self._withdraw(leader, run, margin, unfinished, now)
            left = run.deadline - now
            return _Looked(True, PAST_REST, left) if left > 0 else _Looked(True, 0.0)
        return self._go_on(leader, run, now)

    def _withdraw(
        self, leader: Leader, run: Record, margin: float, unfinished: int, now: float
    ) -> None:
        with self._ledger.write(leader) as tx:
            run_deadlines.pass_margin(tx, run, margin=margin, now=now)
            if run.fallback == "none":
                run_deadlines.end_queued(tx, run.id)
            if now >= run.deadline:
                self._conclude(tx, run, f"missed: {_why_late(run)}")
        reach(CrashPoint.AFTER_MARGIN)
        what = (
            "every request that did not run is sent live"
            if run.fallback == "live"
            else "every request that did not run expires"
        )
        _log.warning(
            "%s: its deadline is in %s and %s unfinished; nothing more goes into batches, and %s",
            run.id,
            _words(max(0.0, run.deadline - now)),
            count_of(unfinished, "request is", "requests are"),
            what,
        )

    def _go_on(self, leader: Leader, run: Record, now: float) -> _Looked:
        """Handle what comes back of a withdrawn run, and report if its deadline has passed."""
        changed = False
        with self._ledger.read() as tx:
            standing = queries.standing(tx, run.id)
            state = workspaces.workspace_row(tx, leader.workspace_id)
        unsent = (RequestState.PACKED, BatchState.PACKED) in standing
        ends = run.fallback == "none" and (RequestState.QUEUED, "") in standing
        if unsent or ends:
            with self._ledger.write(leader) as tx:
                # For example, a batch that the API has refused since the margin began.
                run_deadlines.withdraw(tx, run.id, now)
                if run.fallback == "none":
                    run_deadlines.end_queued(tx, run.id)
                standing = queries.standing(tx, run.id)
            changed = True
        left = run.deadline - now
        # If nothing is left, the next look concludes by what the requests came to.
        if left <= 0 and run.deadline_outcome is None and standing:
            halted = state.halt_message if state.halted else None
            reason = missed_because(standing, halted, run.fallback)
            with self._ledger.write(leader) as tx:
                self._conclude(tx, run, f"missed: {reason}")
            changed = True
        return _Looked(changed, PAST_REST, left if left > 0 else math.inf)

    def _conclude(
        self, tx: Transaction, run: Record, outcome: str, *, closed: float | None = None
    ) -> None:
        run_deadlines.conclude(tx, run.id, outcome, closed=closed)
        if run.deadline_outcome is None:
            level = logging.INFO if outcome == "met" else logging.WARNING
            _log.log(level, "%s: its deadline was %s", run.id, outcome)


def missed_because(
    standing: Mapping[tuple[str, str], int], halted: str | None, fallback: str
) -> str:
    """Return why a run missed its deadline, from the states of its unfinished requests."""
    unknown = (BatchState.SUBMITTING, BatchState.UNKNOWN)
    live = tuple(filter(groups_live_calls, BatchState))
    reasons: list[str] = []
    if halted is not None:
        reasons.append(f"sending is halted ({halted})")
    for states, words in (
        (AT_API, "in batches that were canceled and have not ended"),
        (unknown, "sent, but it is not known yet whether the API accepted them"),
        ((BatchState.PACKED,), "waiting to be withdrawn"),
        (live, "in a live call"),
        (("",), "waiting for a live call" if fallback == "live" else "did not run before it"),
    ):
        count = sum(
            number
            for (state, of_batch), number in standing.items()
            if of_batch in states and state != RequestState.CONTINUING
        )
        if count:
            reasons.append(f"{count_of(count, 'request')} {words}")
    between = sum(n for (state, _), n in standing.items() if state == RequestState.CONTINUING)
    if between:
        reasons.append(f"{count_of(between, 'conversation')} between two turns")
    return "; ".join(reasons)


def _words(seconds: float) -> str:
    return format_duration(round(seconds, 1)) if seconds < 10 else roughly(seconds)
