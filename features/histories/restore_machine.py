"""Random histories of a ledger that is restored from earlier copies, and recovered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import ledgers_on_postgres
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger.high_water import HighWater
from claude_batch.lifecycle.calls import CallStore
from claude_batch.lifecycle.recovery import Recovered, is_whole
from claude_batch.wire.encoding import parse_custom_id
from histories.api import COST, OUTCOMES, WORKSPACE, Crash, CreatePlan, Remote, SimulatedApi
from histories.live_api import LivePlan
from histories.live_machine import LIVE, PLANS, LiveMachine, LiveVerdict
from histories.machine import PICK, STEPS, WITNESSES
from histories.process import Process

__all__ = ["RestoreMachine", "dying"]

OTHER = "wrkspc_other"
MOST_COPIES = 3

READS = st.lists(
    st.sampled_from(["die", "pause", "unreachable", "500", "429", "401", "404", None]), max_size=6
)


class Copy(NamedTuple):
    """An earlier copy of the ledger, and what the judge and its users knew then."""

    path: Path
    mark: bytes | None
    is_behind: bool
    known: dict[str, Any]
    runs: list[str]
    calls: list[int]


class RestoreVerdict(LiveVerdict):
    """The judge of a ledger that forgets: what the API knows stays so."""

    _FORGOTTEN: ClassVar = ("_seen", "_stamp", "withdrawn", "removed", "budget", "is_lowered")

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        super().__init__(api, path, settings)
        self.is_whole = True
        """Whether the ledger has all that was sent."""
        self._strangers: set[str] = set()
        """Requests that were stored after the copy was made, and sent."""
        self._ever_strangers: set[str] = set()
        """Those of all copies so far, of which a later copy does not know that it lacks them."""
        self._canceled_before: set[str] = set()
        """The requests that were canceled when the copy was made."""
        self._given_up: set[str] = set()
        """Those that were cancelled since, before the ledger could know that they had been asked
        live."""
        self._had_requests: dict[str, bool] = {}
        self._copied: set[int] = set()
        """The workspaces that something was stored for in the copy, by their row numbers."""
        """Whether something was stored in a workspace when it was recovered, by workspace.

        If not, the answers to what was forgotten are only reported."""
        self._reported: set[str] = set()
        """Batches that are only reported; or not found, if the copy does not know their workspace,
        and its key is used before it recovers. No later recovery looks so far back."""
        self._allowed: int | None = 0
        """What was accounted for when the ledger was whole again, which no budget can prevent. None
        if it is not known yet."""

    def known(self) -> dict[str, Any]:
        """What a copy of the ledger has, too."""
        return {name: deepcopy(getattr(self, name)) for name in self._FORGOTTEN}

    def restore(self, known: dict[str, Any]) -> None:
        """The ledger was replaced by a copy of this time."""
        for name, value in known.items():
            setattr(self, name, deepcopy(value))
        self.is_whole = False
        self._had_requests.clear()
        self._intended.clear()
        self.reopen()
        # An upload that broke before its end was counted nowhere, and its numbers are given again.
        accepted = [i for remote in self._api.remotes if remote.ours for i in remote.ids]
        self._api.uploaded.intersection_update(accepted)
        self._highest = {}
        for request, incarnation, sending in filter(None, map(parse_custom_id, accepted)):
            counted = request + incarnation
            self._highest[counted] = max(sending, self._highest.get(counted, 0))
        # Of what was deleted at the API, the copy may have seen nothing: nobody can close this gap.
        for request, sent in self.sendings.items():
            self.ordered.update((request, n) for n, remote in sent.items() if remote.deleted)
        stored = {row["id"] for row in self.rows("SELECT id FROM requests")}
        asked = self.sendings.keys() | self.bills.keys()
        self._canceled_before = self._canceled()
        self._strangers = asked - stored - (self.removed - self._ever_strangers)
        self._ever_strangers |= self._strangers
        self.removed |= self._strangers
        self._copied = {row["workspace_id"] for row in self.rows("SELECT workspace_id FROM lanes")}
        there = self._used_workspaces()
        if None not in there:  # else it is the workspace of either key
            forgotten = self.forgotten()
            self._reported.update(each.id for each in forgotten if each.workspace not in there)
        self.interrupt()

    def recovering(self) -> None:
        """The ledger loses what it may have forgotten to have asked live."""
        if not self.is_whole:
            self._given_up |= self._canceled() - self._canceled_before
        rows = self.rows(
            "SELECT r.id FROM requests r JOIN runs u ON u.id = r.run_id "
            "WHERE r.finished IS NULL AND u.live IS NOT NULL"
        )
        self.interrupted.update(row["id"] for row in rows)

    def has_recovered(self) -> None:
        """A recovery has ended, or broken off."""

    def _canceled(self) -> set[str]:
        return {row["id"] for row in self.rows("SELECT id FROM requests WHERE state = 'canceled'")}

    def _used_workspaces(self) -> set[str | None]:
        """The names of the workspaces that something is stored for; None for one without a name."""
        named = "SELECT name FROM workspaces w JOIN lanes l ON l.workspace_id = w.id"
        return {row["name"] for row in self.rows(named)}

    def recovered_one(self, workspace: str) -> None:
        """The workspace of one key is said to be recovered.

        One that was first used after the copy is not behind, and is left alone.
        """
        names = {row["id"]: row["name"] for row in self.rows("SELECT id, name FROM workspaces")}
        copied = {names.get(number, workspace) for number in self._copied}  # else it was merged
        is_used = workspace in copied & self._used_workspaces()
        self._had_requests.setdefault(workspace, is_used)
        if not self._had_requests[workspace]:
            there = [remote.id for remote in self.forgotten() if remote.workspace == workspace]
            self._reported.update(there)

    def recovered(self) -> None:
        """The ledger is said to be recovered, for all keys.

        Also one that is recovered on order, although it is whole, may lose live calls, which may
        have been paid for.
        """
        self.is_whole = True
        self._allowed = self.sent_cost()

    def workspaces(self) -> int:
        return len(self.rows("SELECT id FROM workspaces"))

    def is_behind(self) -> bool:
        """Whether the ledger knows that it has forgotten something."""
        return bool(self.rows("SELECT 1 FROM workspaces WHERE behind IS NOT NULL"))

    def forgotten(self) -> list[Remote]:
        """The batches at the API that the ledger does not have."""
        known = {row["remote_id"] for row in self.rows("SELECT remote_id FROM batches")}
        return [remote for remote in self._api.remotes if remote.id not in known]

    def _create(self, ids: list[str]) -> None:
        super()._create(ids)
        # The copy may have a batch of another workspace in this state.
        behind = self.rows(
            "SELECT w.id FROM workspaces w JOIN lanes l ON l.workspace_id = w.id JOIN requests r "
            "ON r.lane_id = l.id WHERE r.id = ? AND w.behind IS NOT NULL",
            ids[0][:32],
        )
        if behind:
            self._say(f"{ids} were sent before the ledger was recovered")

    def _accept(self, remote: Remote) -> None:
        for identifier in remote.ids:
            if parts := parse_custom_id(identifier):
                earlier = self.sendings[parts[0]].get(parts[2])
                if earlier is not None and (parts[0], parts[2]) not in self.ordered:
                    self._say(f"{identifier} has the number of a sending in {earlier.id}")
        super()._accept(remote)

    def _check_budget(self) -> None:
        # What lost calls may have cost can leave no room for what is packed; it is not sent then.
        if self.rows("SELECT 1 FROM charges WHERE doubt > 0"):
            self.is_lowered = True
        if self._allowed is None:
            self._allowed = self.sent_cost()
        if self.is_whole and self._allowed is not None:
            super()._check_budget()

    def account_anew(self) -> None:
        """A budget begins, or changes; what was sent before may be more than it allows."""
        self._allowed = None

    def allowed(self) -> int:
        return max(super().allowed(), self._allowed or 0)

    def _billed(self) -> int:
        # What strangers have cost counts for the day alone: their actor is not known. What was
        # deleted after the copy was made can be found nowhere.
        gone = {remote.id for remote in self.forgotten() if remote.deleted}
        live = sum(self.bills[request] for request in self._strangers | self._given_up)
        batches = COST * sum(
            outcome == "succeeded" and (remote.id in gone or identifier[:32] in self._strangers)
            for remote in self._api.remotes
            if remote.ours
            for identifier, outcome in remote.outcomes.items()
        )
        return super()._billed() - live - batches

    def is_quiet(self) -> bool:
        return self.is_whole and not self.is_behind() and super().is_quiet()

    def conclude(self) -> None:
        named = "SELECT value FROM meta WHERE name IN ('incarnation', 'former_incarnations')"
        known = {word for row in self.rows(named) for word in row["value"].split()}
        for remote in self.forgotten():
            requests = {identifier[:32] for identifier in remote.ids}
            is_readable = not remote.deleted and self._had_requests.get(remote.workspace)
            # One that was given after the copy, and that no mark has, names nobody's ledger.
            is_ours = any(parts[1] in known for parts in map(parse_custom_id, remote.ids) if parts)
            is_expected = is_readable and is_ours and remote.id not in self._reported
            if requests & self._strangers and is_expected:
                self._say(f"{remote.id} was not found, which answers {requests}")
        super().conclude()


class RestoreMachine(LiveMachine):
    """A history of a ledger that is copied, restored and recovered, with keys of two workspaces."""

    judge = RestoreVerdict
    verdict: RestoreVerdict

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.copied = 0
        self.here = WORKSPACE
        self.is_ending = False
        self.copies_calls = False
        """Whether a copy is made while the next live calls are in progress."""
        self.parked: tuple[Process, CallStore] | None = None
        """The process with the other key, and what stores its calls."""

    def _processes(self) -> list[Process]:
        return [*super()._processes(), *([self.parked[0]] if self.parked else [])]

    def _open(self) -> Process:
        return Process(self.loop, self.api, self.path, self.settings, self.here)

    def _end_all(self) -> None:
        """Every process ends, as it must before the ledger's file is replaced or recovered."""
        self.verdict.interrupt()
        for process in self._processes():
            process.die()
        self.retired.clear()
        self.parked = None

    def _set_budget(self, amount: int) -> None:
        super()._set_budget(amount)
        self.verdict.account_anew()

    @property
    def _mark(self) -> Path:
        return HighWater(self.process.ledger).path

    def _store_run(self, count: int, mode: BatchProcessingMode) -> None:
        super()._store_run(count, mode)
        if not self.copies:
            self.back_up()

    @rule()
    def back_up(self) -> None:
        self.copied += 1
        path = self.path.with_name(f"copy-{self.copied}.db")
        if ledgers_on_postgres.VARIABLE in os.environ:
            ledgers_on_postgres.dump(self.path, path)
        else:
            self.process.ledger.backup(path)
        mark = self._mark.read_bytes() if self._mark.exists() else None
        known, is_behind = self.verdict.known(), self.verdict.is_behind()
        copy = Copy(path, mark, is_behind, known, list(self.runs), list(self.calls))
        self.copies.append(copy)
        del self.copies[1 : 1 - MOST_COPIES]  # the oldest knows least, and stays

    def _reach(self, point: CrashPoint) -> None:
        if point is CrashPoint.AFTER_LIVE_CLAIM and self.copies_calls:
            self.copies_calls = False
            self.back_up()
        super()._reach(point)

    @rule(
        count=st.integers(1, 3),
        plans=PLANS,
        in_progress=st.booleans(),
        mark=st.sampled_from(["kept", "lost", "restored"]),
    )
    def forget_calls(self, count: int, plans: list[LivePlan], in_progress: bool, mark: str) -> None:
        """Live calls are made after a copy was, or while they are in progress in it."""
        self._store_run(count, LIVE)
        self.copies_calls = in_progress
        if not in_progress:
            self.back_up()
        # No list shows a batch that the API accepts later to a copy that is recovered at once.
        self.api.plans.clear()
        self.call_on(plans, 61.0)
        self._restore(-1, mark)
        self._recover([])

    def restore(self, pick: int, mark: str, data: st.DataObject) -> None:
        """Something is sent, and forgotten."""
        if data.draw(st.booleans()):
            self.send(data)
            if data.draw(st.booleans()):
                self.go_round(31.0)
        self._restore(pick, mark)

    # Written twice: without it, such a history is like the others.
    MARKS: ClassVar = st.sampled_from(["kept", "kept", "kept", "lost", "restored"])
    restore_one = rule(pick=PICK, mark=MARKS, data=st.data())(restore)
    restore_another = rule(pick=PICK, mark=MARKS, data=st.data())(restore)

    def _restore(self, pick: int, mark: str) -> None:
        """The ledger is replaced by an earlier copy; so may be its mark, or be lost."""
        copy = self.copies[pick % len(self.copies)]
        of_ledger = self._mark
        self._end_all()
        self.verdict.close()
        if ledgers_on_postgres.VARIABLE in os.environ:
            ledgers_on_postgres.restore(self.path, copy.path)
        else:
            for end in ("", "-wal", "-shm"):
                Path(f"{self.path}{end}").unlink(missing_ok=True)
            shutil.copyfile(copy.path, self.path)
        if mark == "lost" or (mark == "restored" and copy.mark is None):
            of_ledger.unlink(missing_ok=True)
        elif mark == "restored" and copy.mark is not None:
            of_ledger.write_bytes(copy.mark)
        self.verdict.restore(copy.known)
        self.runs, self.calls = list(copy.runs), list(copy.calls)
        self.process = self._start()
        if mark != "kept":
            # Nothing shows that the ledger is behind, so somebody must say so before it is used.
            self._recover([], even_if_whole=True)
        elif is_whole(self.process.ledger):
            self.verdict.recovered()

    def recover(
        self,
        reads: list[str],
        seconds: float,
        even_if_whole: bool,
        writes: int | None,
        outcomes: list[str],
    ) -> None:
        """The ledger is recovered; calls may fail, and the process may die after some commits.

        With ``outcomes``, all batches end so, and the recovery is repeated until it has ended.
        """
        self.clock.advance(seconds)
        self._recover(reads, even_if_whole=even_if_whole, writes=writes)
        if not outcomes:
            return
        for remote in self._there("in_progress", "canceling"):
            self.api.end(remote, outcomes)
        self.clock.advance(self.settings.settling)
        for _ in range(2 * self.verdict.workspaces()):
            if self.verdict.is_behind():
                self._recover([])
            if self.verdict.workspaces() > 1:
                self.take_other_key()

    RECOVERING: ClassVar = {
        "reads": READS,
        "seconds": st.sampled_from(STEPS),
        "even_if_whole": st.sampled_from([False, False, False, True]),
        "writes": st.one_of(st.none(), st.none(), st.integers(1, 12)),
        "outcomes": st.lists(st.sampled_from(OUTCOMES), max_size=3),
    }
    _if_behind = precondition(lambda self: not self.verdict.is_whole or self.verdict.is_behind())
    recover_once = _if_behind(rule(**RECOVERING)(recover))
    recover_again = _if_behind(rule(**RECOVERING)(recover))
    recover_for_nothing = rule(**RECOVERING)(recover)

    def _recover(
        self,
        reads: list[str],
        *,
        even_if_whole: bool = False,
        writes: int | None = None,
    ) -> None:
        self._end_all()
        self.api.read_faults.clear()
        self.api.read_faults.extend(reads)
        if even_if_whole or not self.verdict.is_whole or self.verdict.is_behind():
            self.verdict.recovering()
        process = self._open()
        found: Recovered | None = None
        try:
            with dying(process, writes):
                found = process.recover(even_if_whole=even_if_whole)
        except Crash:
            pass
        finally:
            process.die()
            self.api.read_faults.clear()
            self.verdict.has_recovered()
        self.process = self._start()
        if found is not None and (found.done or found.was_whole):
            self.verdict.recovered_one(self.here)
            if not found.elsewhere:
                self.verdict.recovered()

    @rule()
    def take_other_key(self) -> None:
        """The process with the key of another workspace goes on; this one has a rest."""
        parked, self.parked = self.parked, (self.process, self.call_store)
        self.here = OTHER if self.here == WORKSPACE else WORKSPACE
        if parked is None:
            self.process = self._start()
        else:
            self.process, self.call_store = parked
            self._act(self.process.go_on)

    def _incomplete_runs(self) -> list[str]:
        # Only the key of a run's workspace can fetch its results.
        mine = self.verdict.rows(
            "SELECT id FROM runs WHERE workspace_id = ?", self.process.workspace_id
        )
        here = {row["id"] for row in mine}
        return [run_id for run_id in super()._incomplete_runs() if run_id in here]

    def go_round(self, seconds: float) -> None:
        if self.is_ending:
            if not self.verdict.is_whole or self.verdict.is_behind():
                self._recover([])
            super().go_round(seconds)
            if self.verdict.workspaces() == 1:
                return
            self.take_other_key()
            if self.verdict.is_behind():
                self._recover([])
        super().go_round(seconds)

    def _finish(self) -> None:
        self.is_ending = True
        witnesses = [f"other-{n}" for n in range(WITNESSES)]
        self.api.add(witnesses, CreatePlan(), ours=False, workspace=OTHER)
        for remote in self.verdict.forgotten():
            # Otherwise nothing would be sent before somebody orders it.
            remote.archived = False
        super()._finish()


@contextmanager
def dying(
    process: Process, writes: int | None, error: Callable[[str], BaseException] | None = None
) -> Generator[None]:
    """Let a process die with its commits of this number: 1 before the first, 2 after it, …

    With ``error``, that is raised instead, and the process lives.
    """
    if writes is None:
        yield
        return
    write, left = process.ledger.write, writes

    def count(words: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise (error or Crash)(words)

    @contextmanager
    def counted(*args: Any, **more: Any) -> Generator[Any]:
        with write(*args, **more) as tx:
            yield tx
            count("before a commit")
        count("after a commit")

    process.ledger.write = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        del process.ledger.write
