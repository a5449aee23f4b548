"""Events that show in the ledger alone: halts that begin and end, runs that are held or finish.

Whoever does it (a driver here, one of another process, the user who cancels) writes it down; here
it is noticed after a change, and told. Nothing is looked at where nobody wants to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

from claude_batch.core.errors import LedgerError
from claude_batch.core.events import RunFinished, RunHeld, SendingHalted, SendingResumed
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger import halts, queries
from claude_batch.ledger.budgets import any_budget
from claude_batch.ledger.store import Ledger, Record, Transaction
from claude_batch.lifecycle.budget_room import held_of
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.observers import Observers

__all__ = ["Noticing"]

SOON = 0.05
RESTS_PER_LOOK = 20
"""Seconds from a change to the look at it, at least; where looks take long, that many times as
long as the last one took."""


class Noticing:
    """Belongs to the engine's loop; only `follow` is called from elsewhere."""

    def __init__(
        self, ledger: Ledger, observers: Observers, doors: Callable[[], Iterable[Door]]
    ) -> None:
        self._ledger = ledger
        self._observers = observers
        self._doors = doors
        self._runs: set[str] = set()
        self._halts: dict[int, tuple[str, float]] = {}
        # The stamp at which a run that was told had finished: after a retry it finishes anew.
        self._told: dict[str, int] = {}
        # What held a run when that was told last: its scope, name and sum.
        self._held: dict[str, tuple[str, str, int]] = {}
        self._planned = False
        self._took = 0.0

    def follow(self, run_ids: Iterable[str]) -> None:
        """Tell when these runs are held, and when they finish, also where they have already."""
        if self._observers.wants(RunFinished) or self._observers.wants(RunHeld):
            self._runs.update(run_ids)

    def plan(self) -> None:
        """Something has changed: look soon, and once for many changes."""
        if self._planned or not (self._runs or self._observers.wants(SendingHalted)):
            return
        self._planned = True
        rest = max(SOON, RESTS_PER_LOOK * self._took)
        asyncio.get_running_loop().call_later(rest, self._look_later)

    def _look_later(self) -> None:
        self._planned = False
        with contextlib.suppress(LedgerError):  # told to those who wait, by whoever drives
            self.look()

    def look_once_more(self) -> None:
        """The end: tell what is not told yet."""
        with contextlib.suppress(LedgerError):
            self.look()

    def look(self) -> None:
        """Look now, and tell what is new. Raises `LedgerError`."""
        begun = time.monotonic()
        if self._observers.wants(SendingHalted):
            for door in self._doors():
                self._look_at_halt(door)
        if self._runs:
            self._look_at_runs()
        self._took = time.monotonic() - begun

    def _look_at_runs(self) -> None:
        holds = False
        if self._observers.wants(RunHeld):
            with self._ledger.read() as tx:
                holds = any_budget(tx)
        if not holds and not self._observers.wants(RunFinished):
            # Mostly nobody wants to know more of a run. Who waits for one lets it be followed anew.
            self._runs.clear()
            return
        for run_id in list(self._runs):
            self._look_at_run(run_id, holds=holds)

    def _look_at_halt(self, door: Door) -> None:
        with self._ledger.read() as tx:
            row = halts.halt_of(tx, door.workspace_id)
        before = self._halts.get(row.id)
        now = None if row.halted is None else (str(row.halt_reason), float(row.halted))
        if before == now:
            return
        if now is not None:
            self._halts[row.id] = now
            self._observers.tell(
                SendingHalted(
                    ledger=self._observers.ledger,
                    workspace=row.name,
                    reason=now[0],
                    error_type=row.halt_type,
                    detail=row.halt_message,
                    since=now[1],
                )
            )
        else:
            reason, since = self._halts.pop(row.id)
            self._observers.tell(
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
            stamp = queries.finished_at(tx, run_id)
            workspace = queries.workspace_row(tx, run.workspace_id)
        self._runs.discard(run_id)
        self._held.pop(run_id, None)
        if run.kind != "run" or self._told.get(run_id) == stamp:
            return
        self._told[run_id] = stamp
        self._observers.tell(
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
        held = held_of(tx, run.id, time.time())
        if held is not None:
            counts = queries.request_counts(tx, run.id)
            if counts.get(RequestState.PACKED) or counts.get(RequestState.CONTINUING):
                return  # what is under way may make room
        before = self._held.pop(run.id, None)
        if held is None:
            return
        now = self._held[run.id] = (held.scope, held.name, held.amount)
        if now != before:
            self._observers.tell(
                RunHeld(
                    ledger=self._observers.ledger,
                    workspace=queries.workspace_row(tx, run.workspace_id).name,
                    run_id=run.id,
                    scope=held.scope,
                    requests=held.requests,
                    reason=held.describe(run.id),
                )
            )
