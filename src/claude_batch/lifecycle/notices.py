"""What is noticed from outside: events that only the ledger shows, and calls in small groups.

The events are halts, and runs that are held or finish. A driver of this or another process, or the
user, writes such a change. `Noticing` reports it after a change of the ledger, and reads nothing if
no observer is interested.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from claude_batch.core.errors import LedgerError
from claude_batch.core.events import RunFinished, RunHeld, SendingHalted, SendingResumed
from claude_batch.core.quantities import count_of
from claude_batch.core.states import RequestState, RunState
from claude_batch.ledger import queries, workspaces
from claude_batch.ledger.charges import any_budget
from claude_batch.ledger.store import Ledger, Record, Transaction, now_in
from claude_batch.lifecycle.budget_room import held_of
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.observers import Observers

# Events -------------------------------------------------------------------------------------------

SOON = 0.05
RESTS_PER_LOOK = 20
"""Limits of the time from a change to the next look.

It is at least `SOON` seconds, and at least `RESTS_PER_LOOK` times as long as the last look."""


class Noticing:
    """Finds and reports changes. Belongs to the engine's loop; only `follow` is thread-safe."""

    def __init__(
        self, ledger: Ledger, observers: Observers, doors: Callable[[], Iterable[Door]]
    ) -> None:
        self._ledger = ledger
        self._observers = observers
        self._doors = doors
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
        if self._planned or not (self._runs or self._observers.wants(SendingHalted)):
            return
        self._planned = True
        rest = max(SOON, RESTS_PER_LOOK * self._took)
        asyncio.get_running_loop().call_later(rest, self._look_later)

    def _look_later(self) -> None:
        self._planned = False
        with contextlib.suppress(LedgerError):  # the driver reports it to the callers
            self.look()

    def look_once_more(self) -> None:
        """Report what is not reported yet, at the end."""
        with contextlib.suppress(LedgerError):
            self.look()

    def look(self) -> None:
        """Look now, and report changes. Raises `LedgerError`."""
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
            # Usually no observer is interested. A caller that waits for a run follows it anew.
            self._runs.clear()
            return
        for run_id in list(self._runs):
            self._look_at_run(run_id, holds=holds)

    def _look_at_halt(self, door: Door) -> None:
        with self._ledger.read() as tx:
            row = workspaces.workspace_row(tx, door.workspace_id)
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
                    detail=row.halt_message,
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
            stamp = queries.last_endings(tx, [run_id])[run_id]
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
        if held is not None:
            counts = queries.request_counts(tx, run.id)
            if counts.get(RequestState.PACKED) or counts.get(RequestState.CONTINUING):
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
                    reason=held.describe(run.id),
                )
            )


# Calls in small groups ----------------------------------------------------------------------------

SMALL_GROUP = 32
"""At most so many calls are a small group: Python's default executor has no more threads."""

GROUPS_IN_A_ROW = 3
"""So many small groups, each followed at once by the next one, are worth a warning."""

AT_ONCE = 10.0
"""Seconds from a group's last answer to a call that came because of it."""

_EARLIER_TURN = b'"role":"assistant"'
"""What the params of a call hold that continues a conversation."""


@dataclass(slots=True)
class SmallGroups:
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
    """Warn as Python does of code that should be changed, which a program without a log shows."""
    with contextlib.suppress(Warning):  # a filter may turn it into an error: not in this thread
        warnings.warn(words, stacklevel=2)
