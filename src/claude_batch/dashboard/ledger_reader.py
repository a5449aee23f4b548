"""The one reader of the ledger for all open pages: it notices changes, and keeps what needs a walk.

Counting a large run and adding up its results takes most of a page's time. So one thread does it
for all pages, after a change, and rests for `_RESTS` times as long as that took. What has ended is
read once: the status of a finished run, and the sums of a collected batch. Memory grows with the
runs, and not with their batches.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

import msgspec

from claude_batch.core.errors import BudgetScope, LedgerError
from claude_batch.ledger import page_queries, queries
from claude_batch.ledger.budgets import Budget
from claude_batch.ledger.deliveries import open_run_ids
from claude_batch.ledger.page_queries import (
    TIME_STEPS,
    TOKEN_STEPS,
    BatchMark,
    ResultSums,
    RunMark,
    Total,
)
from claude_batch.ledger.store import Ledger, Record, Watch
from claude_batch.providers.cost_report import read_budgets
from claude_batch.providers.reruns import UnknownSending, unknown_sendings
from claude_batch.providers.status import RunStatus, find_run_id, status_of

# Sums ---------------------------------------------------------------------------------------------


_Group = TypeVar("_Group", bound=Hashable)

_Key = tuple[str, int | None, str | None]
"""The run, day and model that results share."""


def _added(rows: Iterable[Iterable[int]]) -> Iterator[int]:
    """Add up each column."""
    return map(sum, zip(*rows, strict=True))


def total_of(sums: Iterable[ResultSums]) -> Total:
    """Add up the totals."""
    return Total(*_added((Total(), *(each.total for each in sums))))


class CostCells:
    """The sums of all answers so far, from which a page adds up what it shows.

    Those of collected batches are merged, because a run may have thousands of them. Those of live
    calls can change, so they are kept by their batch.
    """

    def __init__(
        self,
        collected: Mapping[_Key, ResultSums] | None = None,
        live: Mapping[int, Sequence[ResultSums]] | None = None,
    ) -> None:
        self._collected: dict[_Key, ResultSums] = dict(collected or {})
        self._live: dict[int, Sequence[ResultSums]] = dict(live or {})

    def __len__(self) -> int:
        """Return the number of cells."""
        return sum(1 for _ in self.cells())

    def with_batches(self, sums: Mapping[BatchMark, Sequence[ResultSums]]) -> CostCells:
        """Return these sums and those of further batches; pages may be reading these."""
        more = CostCells(self._collected, self._live)
        for mark, of_batch in sums.items():
            if mark.is_live:
                more._live[mark.id] = of_batch
                continue
            for each in of_batch:
                key = (each.run_id, each.day, each.model)
                alike = [each]
                if key in more._collected:
                    alike.append(more._collected[key])
                more._collected[key] = each._replace(
                    total=total_of(alike),
                    by_tokens=tuple(_added(cell.by_tokens for cell in alike)),
                    by_time=tuple(_added(cell.by_time for cell in alike)),
                )
        return more

    def of_runs(self, run_ids: Collection[str]) -> CostCells:
        """Return the sums of these runs."""
        return CostCells(
            {key: each for key, each in self._collected.items() if each.run_id in run_ids},
            {
                batch_id: [each for each in of_batch if each.run_id in run_ids]
                for batch_id, of_batch in self._live.items()
            },
        )

    def cells(self, run_id: str | None = None) -> Iterator[ResultSums]:
        """Yield all cells, or those of a run."""
        for each in chain(self._collected.values(), *self._live.values()):
            if run_id is None or each.run_id == run_id:
                yield each

    def total(self, run_id: str | None = None, since: int = 0) -> Total:
        """Return the total of a run or of all, from a day on."""
        return total_of(
            each for each in self.cells(run_id) if not since or (each.day or 0) >= since
        )

    def by(self, key: Callable[[ResultSums], _Group]) -> dict[_Group, Total]:
        """Return the totals of groups."""
        groups: defaultdict[_Group, list[ResultSums]] = defaultdict(list)
        for cell in self.cells():
            groups[key(cell)].append(cell)
        return {name: total_of(cells) for name, cells in groups.items()}

    def distributions(self, run_id: str) -> tuple[list[int], list[int]]:
        """Return how many of a run's answers are in each of `TOKEN_STEPS` and of `TIME_STEPS`."""
        cells = list(self.cells(run_id))
        tokens = _added(([0] * len(TOKEN_STEPS), *(cell.by_tokens for cell in cells)))
        seconds = _added(([0] * len(TIME_STEPS), *(cell.by_time for cell in cells)))
        return list(tokens), list(seconds)


# Reader -------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

NEWEST: Final = 50
"""Runs on the first page."""

_LOOK: Final = 0.5
"""Seconds between two looks for a change, each of which reads one page of the file."""

_AGES: Final = 15.0
"""Seconds after which pages are drawn again without a change, because they show ages."""

_ROLL_CALL: Final = 2.0
"""Seconds between two looks at who lives and drives: the end of a process commits nothing."""

_RESTS: Final = 25
"""The rest after an update, as a multiple of its CPU time and of that of the pages drawn since."""

_LONGEST_WAIT: Final = 3.0
"""Seconds that an action waits until pages show it; with a large ledger they may show it later."""

_KEPT: Final = 300
"""Statuses of runs that are kept."""

_SLICE: Final = 1000
_SLICE_RESULTS: Final = 5000
"""Batches and results that are added up between two updates of the pages."""


class Snapshot(msgspec.Struct, frozen=True):
    """What the ledger held at one moment, as far as several pages show it."""

    version: int
    statuses: tuple[RunStatus, ...]
    """The newest runs, newest first."""
    older: tuple[RunStatus, ...]
    """Unfinished runs that are older than these, oldest first; the first `NEWEST`."""
    open_batches: tuple[Record, ...]
    halted: tuple[Record, ...]
    """Workspaces that send nothing."""
    unknown: tuple[UnknownSending, ...]
    budgets: tuple[Budget, ...]
    costs: CostCells
    """Sums of all answers so far."""
    added_up: bool
    """Whether `costs` covers every batch."""
    error: str | None = None
    """Why the ledger could not be read this time; the rest is as it was before."""

    def budget(self, scope: BudgetScope, name: str) -> Budget | None:
        """Return the budget of a run or an actor, if it has one."""
        found = (each for each in self.budgets if (each.scope, each.name) == (scope, name))
        return next(found, None)


class _Known(msgspec.Struct):
    mark: RunMark
    status: RunStatus
    read: int
    """The version of the snapshot for which it was read."""


class _Added:
    """What each batch had when it was added to the sums, in 8 bytes for each."""

    def __init__(self) -> None:
        self._stamps = array("d")

    def put(self, mark: BatchMark) -> None:
        """Note that a batch is in the sums."""
        missing = mark.id + 1 - len(self._stamps)
        if missing > 0:
            self._stamps.extend(array("d", bytes(8 * (missing + 1000))))
        self._stamps[mark.id] = mark.stamp

    def stamp(self, mark: BatchMark) -> float:
        """Return the stamp with which a batch was added; 0 if it was not."""
        return self._stamps[mark.id] if mark.id < len(self._stamps) else 0.0


class LedgerReader:
    """Reads a ledger in a thread of its own, in short transactions. It never drives it."""

    def __init__(self, location: str) -> None:
        """Open the ledger. Raises `LedgerError`."""
        self.ledger: Ledger = Ledger(location)
        self._statuses: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._driven: dict[int, bool] = {}
        self._fleet: dict[str, list[int]] = {}
        self._roll_call = 0.0
        self._costs = CostCells()
        self._added = _Added()
        self._walk: Iterator[BatchMark] | None = None
        self._pruned: str | None = None
        self._spent = 0.0
        """CPU time of updates and pages since the last rest."""
        self._awake = threading.Event()
        self._ready = threading.Event()
        self._wanted: deque[threading.Event] = deque()
        self._ended = False
        self._on_change: Callable[[], None] = lambda: None
        # Versions of a restarted server differ from those that open pages have.
        version = int(time.time() * 1000)
        self._snapshot = Snapshot(version, (), (), (), (), (), (), self._costs, False)
        self._thread = threading.Thread(
            target=self._run, name="claude-batch-dashboard-reader", daemon=True
        )

    def start(self, on_change: Callable[[], None]) -> None:
        """Start to read; ``on_change`` is called in the reader's thread after every update."""
        self._on_change = on_change
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the ledger."""
        self._ended = True
        self._awake.set()
        self.ledger.hurry(0.0)  # it may be waiting for a lost server, and only reads
        if self._thread.is_alive():
            self._thread.join()
        self.ledger.close()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; waits for the first one."""
        self._ready.wait()
        return self._snapshot

    @property
    def version(self) -> int:
        """The version of the newest snapshot."""
        return self._snapshot.version

    def read_again(self) -> None:
        """Read again now, because this process has changed the ledger; wait for it a moment."""
        done = threading.Event()
        self._wanted.append(done)
        self._awake.set()
        done.wait(_LONGEST_WAIT)

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Count the CPU time of a page that is drawn."""
        began = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self._spent += time.thread_time() - began

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run by its id or a prefix of it. Raises `RunNotFoundError`."""
        version = self.version
        run_id = find_run_id(self.ledger, run_id)
        with self._lock:
            known = self._statuses.get(run_id)
        if known is not None and known.read == version:
            return known.status
        with self.ledger.read() as tx:
            mark = page_queries.run_marks(tx, [run_id])[run_id]
        return self._status(run_id, mark, version)

    def _status(self, run_id: str, mark: RunMark, version: int) -> RunStatus:
        with self._lock:
            known = self._statuses.get(run_id)
        if known is None or known.mark != mark or not known.status.finished:
            with self.ledger.read() as tx:
                workspace_id = queries.run_row(tx, run_id).workspace_id
            status = status_of(self.ledger, run_id, driven=self.is_driven(workspace_id))
            if status.finished:
                # A run may have thousands, and no page needs those of a finished one.
                status = replace(status, batches=())
            known = _Known(mark, status, version)
        known.read = version
        with self._lock:
            self._statuses[run_id] = known
            self._statuses.move_to_end(run_id)
            while len(self._statuses) > _KEPT:
                self._statuses.popitem(last=False)
        return known.status

    def is_driven(self, workspace_id: int) -> bool:
        """Return whether a process drives a workspace."""
        # Asked once an update, because the question itself takes the lock for a moment.
        if workspace_id not in self._driven:
            self._driven[workspace_id] = self.ledger.has_leader(workspace_id)
        return self._driven[workspace_id]

    # The thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        watch: Watch | None = None
        due = 0.0
        while not self._ended:
            wanted = len(self._wanted)
            try:
                if watch is None:
                    watch = self.ledger.watch()
                self.ledger.check_place()
                changed = watch.changed() or self._fleet_changed()
                if wanted or changed or not self._snapshot.added_up or time.monotonic() >= due:
                    self._update()
                    due = time.monotonic() + _AGES
            except LedgerError as error:
                self._fail(error)
                due = time.monotonic() + _AGES
            except Exception:
                _log.exception("the dashboard's pages could not be updated")
            self._ready.set()
            for _ in range(wanted):
                self._wanted.popleft().set()
            with self._lock:
                spent, self._spent = self._spent, 0.0
            if self._awake.wait(max(_LOOK, _RESTS * spent)):
                self._awake.clear()
        if watch is not None:
            with suppress(LedgerError):
                watch.close()

    def _fleet_changed(self) -> bool:
        """Return whether other processes live or drive than before; False for a ledger's file."""
        if time.monotonic() < self._roll_call:
            return False
        self._roll_call = time.monotonic() + _ROLL_CALL
        fleet = {each.process: each.drives for each in self.ledger.workers()}
        before, self._fleet = self._fleet, fleet
        return fleet != before

    def _update(self) -> None:
        with self.drawing():
            # A page that is drawn meanwhile has the version before.
            version = self.version + 1
            self.ledger.reopen()
            self._driven.clear()
            with self.ledger.read() as tx:
                rows = queries.recent_runs(tx, NEWEST)
                newest = [row.id for row in rows]
                older = [each for each in open_run_ids(tx) if each not in newest][:NEWEST]
                marks = page_queries.run_marks(tx, [*newest, *older])
                open_batches = tuple(page_queries.open_batches(tx))
                halted = tuple(page_queries.halted_workspaces(tx))
            statuses = {each: self._status(each, mark, version) for each, mark in marks.items()}
            added_up = self._add_up()
            self._snapshot = Snapshot(
                version=version,
                statuses=tuple(statuses[each] for each in newest if each in statuses),
                older=tuple(statuses[each] for each in older if each in statuses),
                open_batches=open_batches,
                halted=halted,
                unknown=tuple(unknown_sendings(self.ledger)),
                budgets=tuple(read_budgets(self.ledger)),
                costs=self._costs,
                added_up=added_up,
            )
        self._ready.set()
        self._on_change()

    def _add_up(self) -> bool:
        """Add up some batches; return whether none is left."""
        begins_now = self._walk is None
        walk, self._walk = self._walk or self._changed_batches(), None
        some: list[BatchMark] = []
        size = 0
        for mark in walk:
            if self._added.stamp(mark) and not mark.is_live:
                # It was collected again. Its sums cannot be told from those of the run's others.
                self._costs, self._added = CostCells(), _Added()
                return False
            some.append(mark)
            size += mark.requests
            if len(some) >= _SLICE or size >= _SLICE_RESULTS:
                self._walk = walk
                break
        if some:
            with self.ledger.read() as tx:
                sums = page_queries.sums_of_results(tx, [mark.id for mark in some])
            self._costs = self._costs.with_batches({mark: sums[mark.id] for mark in some})
            for mark in some:
                self._added.put(mark)
        if self._walk is not None:
            return False
        self._forget_pruned_runs()
        # What was collected meanwhile may stand before the place at which a longer walk went on.
        return begins_now

    def _changed_batches(self) -> Iterator[BatchMark]:
        """Yield the batches whose results are not in the sums."""
        after = 0
        while True:
            with self.ledger.read() as tx:
                marks = page_queries.summable_batches(tx, after, _SLICE)
            if not marks:
                return
            yield from (mark for mark in marks if self._added.stamp(mark) != mark.stamp)
            after = marks[-1].id

    def _forget_pruned_runs(self) -> None:
        with self.ledger.read() as tx:
            pruned = page_queries.last_pruning(tx)
            if pruned == self._pruned:
                return  # reading all runs takes long
            kept = page_queries.kept_runs(tx)
        self._costs = self._costs.of_runs(kept)
        self._pruned = pruned

    def _fail(self, error: LedgerError) -> None:
        if self._snapshot.error == str(error):
            return
        _log.warning("the dashboard cannot read the ledger: %s", error)
        self._snapshot = msgspec.structs.replace(
            self._snapshot, version=self.version + 1, error=str(error)
        )
        self._on_change()
