"""Waiting for a run: until it is sent, until it has ended, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from claude_batch.core.errors import BatchTimeoutError
from claude_batch.core.states import AT_API, UNDER_WAY, BatchState
from claude_batch.ledger import conversations, enqueue, queries, unknown_batches, workspaces
from claude_batch.lifecycle.api_sessions import (
    TAKEOVER,
    halted_error,
    other_key_error,
    run_timed_out_error,
    trouble_of,
)
from claude_batch.lifecycle.budget_holds import held_error, held_of
from claude_batch.lifecycle.engine import Engine, RunWatch
from claude_batch.providers.engine_access import EngineAccess
from claude_batch.providers.status import at_limit
from claude_batch.providers.sync_bridge import Pause

RESTS_PER_LOOK = 20
LONGEST_REST = 1.0
"""Maximum pause in seconds between two ledger queries of a waiting caller.

Otherwise the pause is ``RESTS_PER_LOOK`` times as long as the last query took.
"""

CANCEL_GRACE = 600.0
"""Seconds that a run which timed out with ``on_timeout: cancel`` waits for its batches to end.

A run whose time has passed while the machine slept is waited for as long.
"""

SLEEP = 60.0
"""Seconds by which the ledger's clock must gain on the monotonic clock if the machine has slept."""

_T = TypeVar("_T")

_SENT = (BatchState.SUBMITTING, *AT_API)


class RunWaiter:
    """Waits for a run, in steps that do not block (see `Pause`)."""

    def __init__(
        self,
        engine_access: EngineAccess,
        run: Any,
        settings: Mapping[str, Any],
        *,
        cancel: Callable[[], None],
        again: bool,
    ) -> None:
        """Set up the wait for a run, given its row; ``settings`` count instead of the run's own.

        ``cancel`` cancels the run if ``on_timeout`` is ``cancel``. ``again``: requests were queued
        again, so that the time limit begins now.
        """
        self._engine_access = engine_access
        self._run_id = str(run.id)
        self._max_wait: float = settings.get("max_wait", run.max_wait)
        # Counted from enqueueing, across restarts. Once it has passed, a process that opens the run
        # again (``resume``) waits for the same duration again.
        self._deadline: float = run.created + self._max_wait
        if again or self._deadline <= self._engine.ledger.now():
            self.restart()
        self._offset = self._clock_offset()
        self._on_timeout: str = settings.get("on_timeout", run.on_timeout)
        self._cancel = cancel
        self._intervals = settings.get("poll_interval"), settings.get("max_poll_interval")
        self._may_lift = False

    @property
    def _engine(self) -> Engine:
        return self._engine_access.engine()

    def _clock_offset(self) -> float:
        """Return how far the ledger's clock is ahead of the monotonic one, which stops in sleep."""
        return self._engine.ledger.now() - time.monotonic()

    @property
    def _location(self) -> str:
        return self._engine.ledger.location

    def restart(self) -> None:
        """Restart the time limit, because requests were queued again."""
        self._deadline = self._engine.ledger.now() + self._max_wait

    def begin(self) -> Wait:
        """Begin to wait for what one caller wants of the run."""
        return Wait(self, self._engine_access, self._run_id)

    def until_final(self) -> Generator[Pause | None, Any, None]:
        """Wait until every request of the run has its final state."""
        wait = self.begin()
        yield from wait.until(self._followed, lambda left: not left)
        if wait.cancelled_at is not None:
            raise self._timed_out((), 0)

    def _followed(self) -> int:
        """Return what `unfinished` does, and have the run's end reported."""
        if left := self.unfinished():
            self._engine.noticing.follow([self._run_id])
        return left

    def until_sent(self) -> Generator[Pause | None, Any, None]:
        """Wait until the API has every batch of the run that its queue admits.

        Returns earlier if no process drives the run and this one must not, if the API cannot be
        reached or asks to wait, or if the time limit has passed.
        """
        while True:
            version = self._engine.version
            self._engine.check()
            unsent, workspace, held, driven = yield Pause(self._engine.look(self._sending))
            if unsent <= held:
                return
            if self._is_halted(workspace):
                raise halted_error(workspace, self._run_id, self._location)
            if not driven or self._engine.ledger.now() >= self._deadline:
                return
            _, session = yield Pause(self._engine_access.opening())
            if (
                workspace.wait_until or 0
            ) > self._engine.ledger.now() or session.driver.contact.failures:
                return
            yield Pause(self._engine.change_after(version), 1.0)

    def unfinished(self) -> int:
        """Return how many requests of the run have no final state yet."""
        with self._engine.ledger.read() as tx:
            return queries.unfinished(tx, self._run_id)

    def _sending(self) -> tuple[int, Any, int, bool]:
        """Return the number of unsent requests, the workspace, and how many of them must wait.

        The last item is whether this process or another one drives the run, or is about to.
        """
        own = self._untried()
        with self._engine.ledger.read() as tx:
            row = queries.run_row(tx, self._run_id)
            unsent = queries.unsent(tx, self._run_id)
            held = held_of(tx, self._run_id, self._engine.ledger.now())
            waits = 0 if held is None else held.requests
            if row.parallel_batches is not None:
                states = [batch.state for batch in queries.batches_of_run(tx, self._run_id)]
                if at_limit(states, row.parallel_batches):
                    waits = unsent
            here = workspaces.present_workspace(tx, own or row.workspace_id)
            workspace = workspaces.workspace_row(tx, here)
        driven = self._engine_access.drives or self._engine.ledger.has_leader(row.workspace_id)
        return unsent, workspace, waits, driven

    def _untried(self) -> int | None:
        """Return the workspace of our own key while the key is untried, else None.

        Until then, the errors of an earlier key do not matter. Call this before reading the ledger,
        so that the ledger data is not older.
        """
        session = self._engine_access.session()
        own = session.workspace_id
        return own if self._engine_access.drives and not session.driver.contact.made else None

    def _check_hope(self) -> int:
        """Return how many requests are unknown; raise if the run needs its user to go on.

        It needs another key and no process with that key drives it, or its workspace is halted and
        the API has none of its batches, or only another budget would release it.
        """
        session = self._engine_access.session()
        # Before the ledger is read: the contact may link the run's workspace and the session's.
        made = session.driver.contact.made
        own = session.workspace_id
        with self._engine.ledger.read() as tx:
            row = queries.run_row(tx, self._run_id)
            # Not the batches themselves: a run may have a thousand.
            counts = queries.requests_of_batches(tx, self._run_id)
            theirs = workspaces.workspace_row(tx, row.workspace_id)
            own = workspaces.present_workspace(tx, own)
            ours = theirs if theirs.id == own else workspaces.workspace_row(tx, own)
            under_way = any(state in UNDER_WAY for state in counts)
            unknown = 0
            if BatchState.UNKNOWN in counts:  # requests that were sent again do not wait for it
                undecided = unknown_batches.undecided(tx, self._run_id)
                unknown = sum(each.members for each in undecided)
            held = None if under_way else held_of(tx, self._run_id, self._engine.ledger.now())
            if held is not None and conversations.continuing_counts(tx, self._run_id).all:
                held = None  # a conversation still continues
        # While our own key is untried, the errors of an earlier key do not matter.
        workspace = ours if self._engine_access.drives and not made else theirs
        is_other = self._engine_access.drives and made and theirs.id != ours.id
        is_refused = self._engine_access.drives and session.driver.contact.refused
        if is_other or is_refused:
            undriven = not self._engine.ledger.has_leader(theirs.id)
            if is_other and undriven:
                raise other_key_error(self._run_id, self._location, theirs, ours)
            is_refused = is_refused and undriven
        # With a refused key, nobody asks the API for the run's batches.
        at_api = any(state in _SENT for state in counts) and not is_refused
        if self._is_halted(workspace) and not at_api:
            cancelled = row.cancelled is not None
            raise halted_error(workspace, self._run_id, self._location, cancelled=cancelled)
        if held is not None and held.for_good:
            raise held_error(self._run_id, held, self._location)
        return unknown

    def _is_halted(self, workspace: Any) -> bool:
        """Return whether sending is halted, and no driver of this process is about to go on."""
        now = self._engine.ledger.now()
        self._may_lift = self._engine_access.session().may_lift_halt(workspace, now)
        return workspaces.halt_stands(workspace, now) and not self._may_lift

    def _left_behind(self) -> tuple[tuple[str, ...], str]:
        """Return the ids of the run's batches at the API, and its trouble."""
        session = self._engine_access.session()
        with self._engine.ledger.read() as tx:
            batches = queries.batches_of_run(tx, self._run_id)
            trouble = trouble_of(tx, self._run_id, session)
        sent = (each.remote_id for each in batches if each.state in _SENT and each.remote_id)
        return tuple(sent), trouble

    def patience(self, cancelled_at: float | None) -> float:
        """Return the seconds that are left; ``cancelled_at``: when the wait cancelled the run."""
        until = self._deadline if cancelled_at is None else cancelled_at + CANCEL_GRACE
        left = max(0.0, until - self._engine.ledger.now())
        return min(left, TAKEOVER) if self._may_lift else left

    def check(self, cancelled_at: float | None) -> Generator[Pause | Any, Any, float | None]:
        """Raise if the wait cannot succeed, or took too long; return when it cancelled the run."""
        if self._intervals != (None, None):
            yield Pause(self._engine.read(partial(self._poll_as_asked, *self._intervals)))
            self._intervals = None, None
        unknown = yield Pause(self._engine.look(self._check_hope))
        before, self._offset = self._offset, self._clock_offset()
        if self._offset - before > SLEEP:
            # The batches may have ended long ago, and no process has looked.
            self._deadline = max(self._deadline, self._engine.ledger.now() + CANCEL_GRACE)
        if self._engine.ledger.now() < self._deadline:
            return None
        if self._on_timeout == "cancel":
            if cancelled_at is None:
                yield Pause(self._engine.read(self._cancel))
                return self._engine.ledger.now()
            if self._engine.ledger.now() < cancelled_at + CANCEL_GRACE:
                return cancelled_at
        batch_ids, trouble = yield Pause(self._engine.look(self._left_behind))
        raise self._timed_out(batch_ids, unknown, trouble)

    def _poll_as_asked(self, shortest: float | None, longest: float | None) -> None:
        ledger = self._engine.ledger
        ledger.apply(
            lambda tx: enqueue.poll_every(tx, self._run_id, shortest, longest, ledger.now())
        )
        self._engine.wake()

    def _timed_out(
        self, batch_ids: tuple[str, ...], unknown: int, trouble: str = ""
    ) -> BatchTimeoutError:
        return run_timed_out_error(
            self._run_id,
            self._location,
            batch_ids,
            unknown,
            max_wait=self._max_wait,
            cancelled=self._on_timeout == "cancel",
            trouble=trouble,
        )


class Wait:
    """One wait of a caller: it looks at the ledger until it has seen enough."""

    def __init__(self, waiter: RunWaiter, engine_access: EngineAccess, run_id: str) -> None:
        self._waiter = waiter
        self._engine_access = engine_access
        self._watch = RunWatch(run_id)
        self._version = 0
        self._looked = 0.0
        self.cancelled_at: float | None = None
        """When the wait has cancelled the run, because it took too long; None before."""

    def until(
        self, look: Callable[[], _T], is_enough: Callable[[_T], bool]
    ) -> Generator[Pause | Any, Any, _T]:
        """Return what a look at the ledger has found once it is enough.

        Between two looks, waits for a change of the run. Raises what `RunWaiter.check` raises.
        """
        while True:
            engine = self._engine_access.engine()
            self._version = engine.version
            begun = time.monotonic()
            found = yield Pause(engine.look(look))
            self._looked = time.monotonic() - begun
            if is_enough(found):
                return found
            engine.check()
            yield Pause(self._engine_access.opening())
            self.cancelled_at = yield from self._waiter.check(self.cancelled_at)
            yield from self.rest(self._waiter.patience(self.cancelled_at))

    def rest(self, longest: float) -> Generator[Pause, Any, None]:
        """Wait until the run may have changed since the last look, or so many seconds.

        Looking at a large run is expensive, and with a thousand small batches every batch is a
        change. So the wait takes at least a multiple of the time of the look.
        """
        yield Pause(Future(), min(LONGEST_REST, RESTS_PER_LOOK * self._looked))
        engine = self._engine_access.engine()
        yield Pause(engine.run_change_after(self._watch, self._version), longest)
