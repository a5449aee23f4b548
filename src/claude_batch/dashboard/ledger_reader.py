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
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import add
from typing import Final, NamedTuple

import msgspec

from claude_batch.core.errors import BudgetScope, LedgerError
from claude_batch.ledger import page_queries, queries
from claude_batch.ledger.deliveries import open_run_ids
from claude_batch.ledger.page_queries import TIME_STEPS, TOKEN_STEPS, BatchMark, ResultSums, RunMark
from claude_batch.ledger.store import Ledger, Record, Watch
from claude_batch.providers.cost_report import BudgetStatus, budget_statuses
from claude_batch.providers.reruns import UnknownSending, unknown_sendings
from claude_batch.providers.status import RunStatus, find_run_id, status_of

# Sums ---------------------------------------------------------------------------------------------


class Total(NamedTuple):
    """Sums over answers. Costs are in nano-dollars."""

    results: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    unpriced: int = 0
    """Number of answers whose cost is unknown; the sums leave them out."""
    cost: int = 0
    live_cost: int = 0
    uncached_cost: int = 0

    @property
    def saved_by_batch(self) -> int:
        """What the same answers would have cost more without batches."""
        return self.live_cost - self.cost

    @property
    def saved_by_cache(self) -> int:
        """What they would have cost more without a prompt cache; negative if it did not pay."""
        return self.uncached_cost - self.cost


class Cell(NamedTuple):
    """Sums over alike results of one run."""

    actor: str
    sums: ResultSums


_Alike = tuple[int | None, str | None, str, str | None]
"""The day, model, outcome and error type that results share."""


def _merged(one: ResultSums, other: ResultSums) -> ResultSums:
    """Return the sums over both of two sets of alike results."""
    return one._replace(
        results=one.results + other.results,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
        unpriced=one.unpriced + other.unpriced,
        cost=one.cost + other.cost,
        live_cost=one.live_cost + other.live_cost,
        uncached_cost=one.uncached_cost + other.uncached_cost,
        by_tokens=tuple(map(add, one.by_tokens, other.by_tokens)),
        by_time=tuple(map(add, one.by_time, other.by_time)),
    )


class CostCells:
    """The sums of all answers so far, from which a page adds up what it shows.

    Those of collected batches are merged, because a run may have thousands of them. Those of live
    calls can change, so they are kept by their batch.
    """

    def __init__(
        self,
        of_run: Mapping[str, dict[_Alike, Cell]] | None = None,
        of_live: Mapping[int, Sequence[Cell]] | None = None,
    ) -> None:
        self._of_run: dict[str, dict[_Alike, Cell]] = dict(of_run or {})
        self._of_live: dict[int, Sequence[Cell]] = dict(of_live or {})

    def copy(self) -> CostCells:
        """Return a copy that can change while pages read this one."""
        return CostCells(self._of_run, self._of_live)

    def add(self, sums: Iterable[ResultSums], actors: Mapping[str, str]) -> None:
        """Add the sums of collected batches."""
        changed: dict[str, dict[_Alike, Cell]] = {}
        for each in sums:
            run_id = each.run_id
            if run_id not in changed:
                changed[run_id] = dict(self._of_run.get(run_id, {}))
            alike = (each.day, each.model, each.outcome, each.error_type)
            known = changed[run_id].get(alike)
            all_ = each if known is None else _merged(known.sums, each)
            changed[run_id][alike] = Cell(actors.get(run_id, ""), all_)
        self._of_run.update(changed)

    def put_live(
        self, batch_id: int, sums: Iterable[ResultSums], actors: Mapping[str, str]
    ) -> None:
        """Store the sums of live calls, in place of earlier ones."""
        self._of_live[batch_id] = [Cell(actors.get(each.run_id, ""), each) for each in sums]

    def __len__(self) -> int:
        """Return the number of cells."""
        return sum(1 for _ in self.cells())

    def without_others(self, run_ids: Collection[str]) -> CostCells:
        """Return the sums of these runs; the same object if there are no others."""
        if self._of_run.keys() <= set(run_ids):
            return self
        return CostCells(
            {run_id: cells for run_id, cells in self._of_run.items() if run_id in run_ids},
            {
                batch_id: [cell for cell in cells if cell.sums.run_id in run_ids]
                for batch_id, cells in self._of_live.items()
            },
        )

    def cells(self, run_id: str | None = None) -> Iterable[Cell]:
        """Return all cells, or those of a run."""
        if run_id is None:
            yield from (cell for cells in self._of_run.values() for cell in cells.values())
        else:
            yield from self._of_run.get(run_id, {}).values()
        for cells in self._of_live.values():
            yield from (cell for cell in cells if run_id is None or cell.sums.run_id == run_id)

    def total(self, run_id: str | None = None, since: int = 0) -> Total:
        """Return the total of a run or of all, from a day on."""
        return total_of(
            cell for cell in self.cells(run_id) if not since or (cell.sums.day or 0) >= since
        )

    def by(self, key: Callable[[Cell], str | int | None]) -> dict[str | int | None, Total]:
        """Return the totals of groups."""
        groups: defaultdict[str | int | None, list[Cell]] = defaultdict(list)
        for cell in self.cells():
            groups[key(cell)].append(cell)
        return {name: total_of(cells) for name, cells in groups.items()}

    def distributions(self, run_id: str) -> tuple[list[int], list[int]]:
        """Return how many of a run's answers are in each of `TOKEN_STEPS` and of `TIME_STEPS`."""
        tokens, seconds = [0] * len(TOKEN_STEPS), [0] * len(TIME_STEPS)
        for cell in self.cells(run_id):
            if cell.sums.outcome == "succeeded":
                tokens = [a + b for a, b in zip(tokens, cell.sums.by_tokens, strict=True)]
                seconds = [a + b for a, b in zip(seconds, cell.sums.by_time, strict=True)]
        return tokens, seconds


def total_of(cells: Iterable[Cell]) -> Total:
    """Add up cells."""
    numbers = [0] * len(Total._fields)
    for cell in cells:
        sums = cell.sums
        numbers[0] += sums.results
        numbers[1] += sums.results if sums.outcome != "succeeded" else 0
        for place, value in enumerate(sums[6:14], 2):
            numbers[place] += value
    return Total(*numbers)


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
    budgets: tuple[BudgetStatus, ...]
    costs: CostCells
    """Sums of all answers so far."""
    added_up: bool
    """Whether `costs` covers every batch."""
    error: str | None = None
    """Why the ledger could not be read this time; the rest is as it was before."""

    def budget(self, scope: BudgetScope, name: str) -> BudgetStatus | None:
        """Return the budget of a run or an actor, if it has one."""
        found = (each for each in self.budgets if (each.scope, each.name) == (scope, name))
        return next(found, None)


class _Known(msgspec.Struct):
    mark: RunMark | None
    status: RunStatus
    read: int
    """The version of the snapshot for which it was read."""


class _Added:
    """Which batches are in the sums; in 8 bytes for each that is collected."""

    def __init__(self) -> None:
        self._collected = array("d")
        """When the batch with this row id was collected; 0 if it is not in the sums."""
        self._live: dict[int, BatchMark] = {}

    def put(self, mark: BatchMark) -> None:
        """Note that a batch is in the sums."""
        if mark.is_live:
            self._live[mark.id] = mark
            return
        missing = mark.id + 1 - len(self._collected)
        if missing > 0:
            self._collected.extend(array("d", bytes(8 * (missing + 1000))))
        self._collected[mark.id] = mark.collected or -1.0

    def __contains__(self, mark: BatchMark) -> bool:
        """Return whether the batch is in the sums, with the results that it has by now."""
        return self._live.get(mark.id) == mark if mark.is_live else bool(self._when(mark.id))

    def has_changed(self, mark: BatchMark) -> bool:
        """Return whether a batch that is in the sums was collected again."""
        return not mark.is_live and self._when(mark.id) not in (0.0, mark.collected or -1.0)

    def _when(self, batch_id: int) -> float:
        return self._collected[batch_id] if batch_id < len(self._collected) else 0.0


class _Pace(msgspec.Struct):
    """CPU time spent since the last update."""

    spent: float = 0.0
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def add(self, seconds: float) -> None:
        with self.lock:
            self.spent += seconds

    def take(self) -> float:
        with self.lock:
            spent, self.spent = self.spent, 0.0
            return spent


class LedgerReader:
    """Reads a ledger in a thread of its own, in short transactions. It never drives it."""

    def __init__(self, location: str) -> None:
        """Open the ledger. Raises `LedgerError`."""
        self.ledger: Ledger = Ledger(location)
        # Versions of a restarted server differ from those that open pages have.
        self._version = int(time.time() * 1000)
        self._statuses: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._driven: dict[int, bool] = {}
        self._fleet: dict[str, list[int]] = {}
        self._roll_call = 0.0
        self._costs = CostCells()
        self._added = _Added()
        self._left: deque[BatchMark] = deque()
        self._walked = 0
        self._pruned: str | None = None
        self._pace = _Pace()
        self._awake = threading.Event()
        self._ready = threading.Event()
        self._wanted: deque[threading.Event] = deque()
        self._ended = False
        self._on_change: Callable[[], None] = lambda: None
        self._snapshot = Snapshot(self._version, (), (), (), (), (), (), self._costs, False)
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
        return self._version

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
            self._pace.add(time.thread_time() - began)

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run by its id or a prefix of it. Raises `RunNotFoundError`."""
        version = self._version
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
            if self._awake.wait(max(_LOOK, _RESTS * self._pace.take())):
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
            # Published with the snapshot: a page that is drawn meanwhile has the one before.
            version = self._version + 1
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
                budgets=tuple(budget_statuses(self.ledger)),
                costs=self._costs,
                added_up=added_up,
            )
            self._version = version
        self._ready.set()
        self._on_change()

    def _add_up(self) -> bool:
        """Add up some batches; return whether none is left."""
        is_whole, is_at_end = not self._walked, False
        some: list[BatchMark] = []
        size = 0
        while len(some) < _SLICE and size < _SLICE_RESULTS:
            if not self._left:
                with self.ledger.read() as tx:
                    marks = page_queries.summable_batches(tx, self._walked, _SLICE)
                if any(self._added.has_changed(mark) for mark in marks):
                    # Its sums cannot be told from those of the run's other batches.
                    self._costs, self._added, self._walked = CostCells(), _Added(), 0
                    return False
                self._walked = marks[-1].id if marks else 0
                self._left.extend(mark for mark in marks if mark not in self._added)
                if not marks:
                    is_at_end = True
                    break
                continue
            mark = self._left.popleft()
            some.append(mark)
            size += mark.requests
        if some:
            self._add(some)
        if is_at_end:
            self._forget_pruned_runs()
        # What was collected meanwhile may stand before the place at which a longer walk went on.
        return is_whole and is_at_end

    def _forget_pruned_runs(self) -> None:
        with self.ledger.read() as tx:
            pruned = page_queries.last_pruning(tx)
            if pruned == self._pruned:
                return  # reading all runs takes long
            kept = page_queries.kept_runs(tx)
        self._costs = self._costs.without_others(kept)
        self._pruned = pruned

    def _add(self, marks: list[BatchMark]) -> None:
        with self.ledger.read() as tx:
            sums = page_queries.sums_of_results(tx, [mark.id for mark in marks])
            run_ids = {each.run_id for alike in sums.values() for each in alike}
            names = queries.actors_of_runs(tx, run_ids)
        costs = self._costs.copy()
        costs.add((each for mark in marks if not mark.is_live for each in sums[mark.id]), names)
        for mark in marks:
            if mark.is_live:
                costs.put_live(mark.id, sums[mark.id], names)
            self._added.put(mark)
        self._costs = costs

    def _fail(self, error: LedgerError) -> None:
        if self._snapshot.error == str(error):
            return
        _log.warning("the dashboard cannot read the ledger: %s", error)
        version = self._version + 1
        self._snapshot = msgspec.structs.replace(self._snapshot, version=version, error=str(error))
        self._version = version
        self._on_change()
