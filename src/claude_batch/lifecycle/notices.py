"""Notices of the engine: halts, and runs that are held, go on or finish.

A driver of this or another process, or the user, writes them. `Noticing` reports them as events,
and reads nothing if no observer is interested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from claude_batch.core.errors import LedgerError
from claude_batch.core.events import RunFinished, RunHeld, SendingHalted, SendingResumed
from claude_batch.core.settings import naming_ledger
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger import queries, workspaces
from claude_batch.ledger.charges import any_budget
from claude_batch.ledger.store import Ledger, Record, Transaction, now_in
from claude_batch.lifecycle.api_sessions import ApiSession
from claude_batch.lifecycle.budget_holds import Held, held_of
from claude_batch.lifecycle.observers import Observers

SOON = 0.05
RESTS_PER_LOOK = 20
"""Limits of the time from a change to the next look.

It is at least `SOON` seconds, and at least `RESTS_PER_LOOK` times as long as the last look."""

RUNS_AT_ONCE = 100
"""Most runs of waiting callers that one look examines, because calls may have one run each."""


class Noticing:
    """Finds and reports changes. Belongs to the engine's loop; only `follow` is thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        observers: Observers,
        sessions: Mapping[tuple[str, str], ApiSession],
        waited_for: Callable[[], Sequence[str]],
        end_held: Callable[[str, Held], None],
    ) -> None:
        """Set up; ``waited_for`` returns the runs of callers that wait for single calls.

        ``end_held`` is called with such a run if only another budget can release its calls.
        """
        self._ledger = ledger
        self._observers = observers
        self._sessions = sessions
        self._waited_for = waited_for
        self._end_held = end_held
        self._next_waited = 0
        self._runs: set[str] = set()
        self._halts: dict[int, tuple[str, float]] = {}
        # Stamp of the reported end, by run: after a retry a run finishes again.
        self._reported: dict[str, int] = {}
        # Scope, name and amount of the last reported budget, by held run.
        self._held: dict[str, tuple[str, str, int]] = {}
        self._planned = False
        self._took = 0.0

    def follow(self, run_ids: Iterable[str]) -> None:
        """Report when these runs are held or finish, even if they already have."""
        if self._observers.wants(RunFinished) or self._observers.wants(RunHeld):
            self._runs.update(run_ids)

    def plan(self) -> None:
        """Schedule one look for many changes."""
        if self._planned or not (
            self._runs or self._observers.wants(SendingHalted) or self._waited_for()
        ):
            return
        self._planned = True
        rest = max(SOON, RESTS_PER_LOOK * self._took)
        asyncio.get_running_loop().call_later(rest, self.look_quietly)

    def look_quietly(self) -> None:
        """Look now, as planned or at the end; an error of the ledger changes nothing."""
        self._planned = False
        with contextlib.suppress(LedgerError):  # the driver reports it to the callers
            self.look()

    def look(self) -> None:
        """Look now, and report changes. Raises `LedgerError`."""
        begun = time.monotonic()
        if self._observers.wants(SendingHalted):
            for session in self._sessions.values():
                self._look_at_halt(session)
        if self._runs:
            self._look_at_runs()
        self._look_at_calls()
        self._took = time.monotonic() - begun

    def _look_at_runs(self) -> None:
        holds = False
        if self._observers.wants(RunHeld):
            with self._ledger.read() as tx:
                holds = any_budget(tx)
        if not holds and not self._observers.wants(RunFinished):
            # Usually no observer is interested. A caller that waits for a run follows it anew.
            self._runs.clear()
            return
        for run_id in list(self._runs):
            self._look_at_run(run_id, holds=holds)

    def _look_at_calls(self) -> None:
        """End the waits for calls that a budget holds for good, as `Run.wait` ends."""
        if not (waited_for := self._waited_for()):
            return
        begin, self._next_waited = self._next_waited, 0
        with self._ledger.read() as tx:
            if not any_budget(tx):
                return
            now, end = now_in(tx), begin + RUNS_AT_ONCE
            found = {each: stuck_by(tx, each, now) for each in waited_for[begin:end]}
        for run_id, held in found.items():
            if held is not None and held.for_good:
                self._end_held(run_id, held)
        if end < len(waited_for):
            self._next_waited = end
            asyncio.get_running_loop().call_later(SOON, self.plan)

    def _look_at_halt(self, session: ApiSession) -> None:
        with self._ledger.read() as tx:
            row = workspaces.workspace_row(tx, session.workspace_id)
        before = self._halts.get(row.id)
        now = None if row.halted is None else (str(row.halt_reason), float(row.halted))
        if before == now:
            return
        if now is not None:
            self._halts[row.id] = now
            self._observers.report(
                SendingHalted(
                    ledger=self._observers.ledger,
                    workspace=row.name,
                    reason=now[0],
                    error_type=row.halt_type,
                    detail=naming_ledger(row.halt_message or "", self._ledger.location),
                    since=now[1],
                )
            )
        else:
            reason, since = self._halts.pop(row.id)
            self._observers.report(
                SendingResumed(
                    ledger=self._observers.ledger,
                    workspace=row.name,
                    reason=reason,
                    since=since,
                )
            )

    def _look_at_run(self, run_id: str, *, holds: bool) -> None:
        with self._ledger.read() as tx:
            run = queries.find_run(tx, run_id)
            if run is None:  # it was removed meanwhile
                self._runs.discard(run_id)
                return
            if queries.unfinished(tx, run_id):
                if holds:
                    self._look_at_budget(tx, run)
                return
            counts = queries.request_counts(tx, run_id)
            stamp = queries.last_ending(tx, run_id)
            workspace = workspaces.workspace_row(tx, run.workspace_id)
        self._runs.discard(run_id)
        self._held.pop(run_id, None)
        if run.kind != "run" or self._reported.get(run_id) == stamp:
            return
        self._reported[run_id] = stamp
        self._observers.report(
            RunFinished(
                ledger=self._observers.ledger,
                workspace=workspace.name,
                run_id=run_id,
                state=RunState.FINISHED if run.cancelled is None else RunState.CANCELLED,
                actor=run.actor,
                requests=run.request_count,
                counts={str(state): count for state, count in counts.items()},
                asked=run.created,
            )
        )

    def _look_at_budget(self, tx: Transaction, run: Record) -> None:
        held = held_of(tx, run.id, now_in(tx))
        if held is not None and _is_under_way(tx, run.id):
            return  # work in progress may free room
        before = self._held.pop(run.id, None)
        if held is None:
            return
        now = self._held[run.id] = (held.scope, held.name, held.amount)
        if now != before:
            self._observers.report(
                RunHeld(
                    ledger=self._observers.ledger,
                    workspace=workspaces.workspace_row(tx, run.workspace_id).name,
                    run_id=run.id,
                    scope=held.scope,
                    requests=held.requests,
                    reason=naming_ledger(held.describe(run.id), self._ledger.location),
                )
            )


def _is_under_way(tx: Transaction, run_id: str) -> bool:
    counts = queries.request_counts(tx, run_id)
    return bool(counts.get(RequestState.PACKED) or counts.get(RequestState.CONTINUING))


def stuck_by(tx: Transaction, run_id: str, now: float) -> Held | None:
    """Return what holds a run of which nothing is under way; None if it can go on by itself."""
    if queries.find_run(tx, run_id) is None:  # it was removed meanwhile
        return None
    held = held_of(tx, run_id, now)
    return None if held is None or _is_under_way(tx, run_id) else held
