"""Progress of a run: its numbers, the calls of a caller's function, and the progress bar."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import re
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
    Sized,
)
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from statistics import median
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from claude_batch.core.errors import ActorConfigurationError, error_type
from claude_batch.core.quantities import (
    count_of,
    dollars,
    roughly,
    usd,
    write_usd,
)
from claude_batch.core.states import IN_FLIGHT, OPEN_AT_API, BatchState, RequestState, RunState
from claude_batch.core.terminal import ColumnKind, Rows, cell, visible
from claude_batch.core.user_functions import check_takes, is_async
from claude_batch.ledger import budgets, cost_sums, queries, workspaces
from claude_batch.ledger.live_calls import groups_live_calls
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.providers.status import BatchStatus, RunStatus, is_undecided
from claude_batch.providers.sync_bridge import Pause

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table

    from claude_batch.actor.response import ActorResult
    from claude_batch.money.prices import Prices

_log = logging.getLogger(__name__)

# Progress -----------------------------------------------------------------------------------------

PAST_BATCHES = 50
"""Number of a workspace's newest batches that predict how long one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run at one moment."""

    done: float
    """Share of the requests that have their final state, from 0 to 1."""
    completed: int = 0
    """Number of requests that have their final state."""
    total: int | None = None
    """Number of requests; None if a live call's requests are still being read."""
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    """Number of requests by their final state: ``succeeded``, ``errored``, ``expired``, …"""
    cost: int
    """Nano-dollars (10⁻⁹ USD) of the collected batches, as far as prices are known."""
    unpriced: int
    """Number of answers that `cost` leaves out, because their model has no known price."""
    budget: int | None
    """The run's budget in nano-dollars; None for a run without its own budget."""
    expected_cost: int | None = None
    """Estimated cost of the whole run in nano-dollars: `cost`, and an estimate of the rest.

    None if a model has no known price, and for live calls without a ledger.
    """
    failures: dict[str, int]
    """Failed requests by the API's error type, else by state; the most frequent first."""
    expected_end: float | None
    """Expected end from the durations of recent batches (seconds since the epoch).

    None if no prediction is possible: no batch has ended yet, no process drives the ledger, or
    something blocks the run.
    """
    read: float | None = field(default=None, compare=False)
    """The ledger's time at which this was read; None without a ledger. `to_dict` leaves it out."""

    @property
    def cost_usd(self) -> Decimal:
        """`cost` in dollars, exactly."""
        return usd(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``…_usd`` are dollars."""
        values = asdict(self)
        del values["read"]
        for name in ("cost", "budget", "expected_cost"):
            values[f"{name}_usd"] = None if values[name] is None else values[name] / 1e9
        return values


class ProgressReader:
    """Reads a run's progress repeatedly; a collected batch's cost is added up only once."""

    def __init__(self, ledger: Ledger, run_id: str, prices: Prices | None = None) -> None:
        """``prices`` are for `Progress.expected_cost`, which is None without them."""
        self._ledger = ledger
        self._run_id = run_id
        self._prices = prices
        self._costs: dict[int, tuple[int, int]] = {}
        self._lost = 0
        self._failed = 0
        self._failures: dict[str, int] = {}
        self._estimate: int | None = None
        self._is_estimated = False

    def read(self, status: RunStatus) -> Progress:
        """Return the progress of a run, given its current status."""
        found = self._ledger.query(lambda tx: self.read_in(tx, status))
        if found.unpriced:
            return found
        return replace(
            found, expected_cost=self._expected_cost(status, found.cost, found.completed)
        )

    def read_in(self, tx: Transaction, status: RunStatus) -> Progress:
        """Return the same in a transaction of the caller, without the expected cost of a rest."""
        lost = status.counts.get(RequestState.LOST, 0)
        if lost != self._lost:
            # Results were found since, in batches that were collected before.
            self._costs.clear()
            self._lost = lost
        new = [
            batch_id
            for batch_id, is_complete in cost_sums.batches_with_results(tx, self._run_id)
            if batch_id not in self._costs or not is_complete
        ]
        self._costs |= cost_sums.costs_in_batches(tx, self._run_id, new)
        if status.failed != self._failed:
            self._failed = status.failed
            self._failures = cost_sums.failures(tx, self._run_id)
        budget = budgets.amounts(tx, self._run_id, status.actor).get("run")
        now = self._ledger.now()
        outcomes = {str(state): n for state, n in status.counts.items() if state.is_final}
        completed = sum(outcomes.values())
        cost = sum(cost for cost, _ in self._costs.values())
        unpriced = sum(unpriced for _, unpriced in self._costs.values())
        return Progress(
            done=completed / status.total if status.total else 0.0,
            completed=completed,
            total=status.total,
            outcomes=outcomes,
            cost=cost,
            unpriced=unpriced,
            budget=budget,
            expected_cost=cost if completed == status.total and not unpriced else None,
            failures=self._failures,
            expected_end=run_end(tx, status, now=now),
            read=now,
        )

    def _expected_cost(self, status: RunStatus, cost: int, completed: int) -> int | None:
        left = status.total - completed
        if not left:
            return cost
        if self._prices is None:
            return None
        if not self._is_estimated:
            from claude_batch.providers.estimation import expected_cost

            # Once, because it reads requests and the usage of earlier answers.
            self._is_estimated = True
            self._estimate = expected_cost(
                self._ledger,
                self._run_id,
                status.total,
                actor=status.actor,
                mode=status.mode,
                prices=self._prices,
            )
        if self._estimate is None:
            return None
        return cost + self._estimate * left // status.total


def run_end(tx: Transaction, status: RunStatus, *, now: float) -> float | None:
    """Return when a run may end, from the seconds that past batches took, or None.

    If ``parallel_batches`` limits the run, its further batches are expected one after another.
    ``now``: the ledger's time.
    """
    if status.state is not RunState.RUNNING:
        return None
    row = queries.run_row(tx, status.run_id)
    took = queries.past_durations(tx, row.workspace_id, PAST_BATCHES)
    paused_until = workspaces.workspace_row(tx, row.workspace_id).wait_until
    parallel_batches = row.parallel_batches
    states = [batch.state for batch in status.batches]
    goes_live = status.mode == "live" or any(map(groups_live_calls, states))
    if goes_live or any(map(is_undecided, status.batches)):
        # Past batches do not predict how long live calls take.
        return None
    at_api = [
        batch.submitted
        for batch in status.batches
        if batch.state in OPEN_AT_API and batch.submitted is not None
    ]
    queued = status.counts.get(RequestState.QUEUED, 0)
    rounds, has_room = 0, True
    if queued and parallel_batches is not None and status.batches:
        size = max(1, *(batch.requests for batch in status.batches))
        under_way = sum(state in IN_FLIGHT or state is BatchState.PACKED for state in states)
        room = max(0, parallel_batches - under_way)
        rounds = math.ceil(max(0, math.ceil(queued / size) - room) / parallel_batches)
        has_room = room > 0
    waits = BatchState.PACKED in states or (queued > 0 and has_room)
    pause = max(0.0, (paused_until or 0.0) - now)
    return expected_end(at_api, waits=waits, took=took, now=now, rounds=rounds, pause=pause)


def expected_end(
    submitted: Iterable[float],
    *,
    waits: bool,
    took: Sequence[float],
    now: float,
    rounds: int = 0,
    pause: float = 0.0,
) -> float | None:
    """Return when the last batch may end, from the seconds that past ones took, or None.

    A batch is expected to take the median of those that took longer than its present age.
    ``waits``: whether more is still to be sent, for which a batch is expected that begins after a
    ``pause`` of so many seconds.
    ``rounds``: how many more batches follow one after another, once these have ended.
    """
    ends: list[float] = [now]
    starts = list(submitted) + ([now + pause] if waits else [])
    for start in starts:
        longer = [seconds for seconds in took if seconds > now - start]
        if not longer:
            return None
        ends.append(start + median(longer))
    if not rounds:
        return max(ends)
    return max(ends) + rounds * median(took) if took else None


# Reports ------------------------------------------------------------------------------------------

_T = TypeVar("_T")

ProgressLike: TypeAlias = bool | Callable[[Progress], object] | None
"""A function that is called with `Progress`, or True for the progress bar."""

Look: TypeAlias = Callable[[], Future[tuple[RunStatus, Progress] | None]]
"""Starts to read the progress of a run; the future has None if it cannot be read."""

INTERVAL = 0.5
"""Minimum seconds between two calls, and between two looks of a waiting caller."""

LONGEST_INTERVAL = 5.0
"""Seconds after which progress is reported even without a change, because times go on."""

RESTS_PER_LOOK = 20
"""Counting a large run is expensive: the pause after it, relative to how long it took."""


def check_progress(progress: object) -> None:
    """Raise `ActorConfigurationError` if a ``progress=`` cannot be called with a `Progress`."""
    if progress is None or isinstance(progress, bool):
        return
    if not callable(progress):
        raise ActorConfigurationError(
            f"progress: {progress!r} is not a function; pass a function that takes a `Progress`, "
            "or True for the progress bar"
        )
    if is_async(progress):
        raise ActorConfigurationError(
            f"progress: {progress!r} is an `async def`, and nothing awaits it; pass a plain "
            "function, which may start a task"
        )
    try:
        check_takes("progress", progress, "progress")
    except TypeError as error:
        raise ActorConfigurationError(str(error)) from None


class Reports:
    """Passes progress on to a caller's function, or to the bar. Never raises an `Exception`."""

    def __init__(self, progress: ProgressLike) -> None:
        check_progress(progress)
        self._progress: ProgressLike = progress
        self._display: Display | None = None
        self._opened = ExitStack()
        self._seen = -1
        self._is_first = True
        self._due = self._again = 0.0

    def is_due(self, version: int) -> bool:
        """Return whether to report now; ``version`` is a number that every change increases."""
        now = time.monotonic()
        if not self._progress or now < self._due or (version == self._seen and now < self._again):
            return False
        self._seen, self._again = version, now + LONGEST_INTERVAL
        return True

    def rest(self, looked: float) -> None:
        """Set the time of the next report, after a look that took so many seconds."""
        # The first look also estimates the run's cost, which the later ones do not.
        rest = 0.0 if self._is_first else RESTS_PER_LOOK * looked
        self._is_first = False
        self._due = time.monotonic() + min(max(INTERVAL, rest), LONGEST_INTERVAL)

    def report(self, progress: Progress, status: RunStatus | None = None) -> None:
        """Call the function, or draw the bar. The first exception is logged and ends the calls."""
        try:
            if callable(self._progress):
                self._progress(progress)
            elif self._progress:
                if self._display is None:
                    self._display = self._opened.enter_context(display(keep=True))
                self._display.show(status, "", progress)
        except Exception:
            _log.exception(
                "the progress function %r failed; it is not called again, and the run continues",
                self._progress,
            )
            self._progress = None

    def close(self) -> None:
        """Leave the bar as it is."""
        with contextlib.suppress(Exception):
            self._opened.close()


def reported(
    work: Generator[Pause | _T, Any, None],
    progress: ProgressLike,
    look: Look,
    version: Callable[[], int],
) -> Generator[Pause | _T, Any, None]:
    """Take the steps of ``work``; report the run's progress between them, and when they end.

    If the caller leaves before the end, there is no last report.
    """
    reports = Reports(progress)
    value: Any = None
    try:
        while True:
            try:
                step = work.send(value)
            except Exception as error:  # StopIteration, if all went well
                ended = error
                break
            if isinstance(step, Pause) and step.seconds is not None:
                # A pause with a limit may end early: its caller looks again.
                step = Pause(step.future, min(step.seconds, INTERVAL))
            value = yield step
            if reports.is_due(version()):
                yield from _look(reports, look)
        yield from _look(reports, look)
    finally:
        reports.close()
        work.close()
    if not isinstance(ended, StopIteration):
        raise ended


def _look(reports: Reports, look: Look) -> Generator[Pause, Any, None]:
    begun = time.monotonic()
    try:
        reading = look()
    except Exception:  # the engine has ended, which the work itself reports
        return
    if (found := (yield Pause(reading))) is not None:
        status, progress = found
        reports.report(progress, status)
    reports.rest(time.monotonic() - begun)


class _Count:
    """Counts the results of a provider without a ledger, and reports the progress."""

    def __init__(self, requests: object, progress: ProgressLike) -> None:
        self._reports = Reports(progress)
        self._total = len(requests) if isinstance(requests, Sized) else None
        self._outcomes: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._completed = self._cost = self._unpriced = 0

    def add(self, result: ActorResult) -> None:
        self._completed += 1
        if result.error is not None:
            outcome, kind = str(RequestState.ERRORED), error_type(result.error)
            self._failures[kind] = self._failures.get(kind, 0) + 1
        else:
            outcome = str(RequestState.SUCCEEDED)
            cost = None if result.response is None else result.response.cost
            self._cost += cost or 0
            self._unpriced += cost is None
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        if self._reports.is_due(self._completed):
            self._report()
            self._reports.rest(0.0)

    def end(self) -> None:
        self._total = self._completed
        self._report()

    def _report(self) -> None:
        self._reports.report(
            Progress(
                done=self._completed / self._total if self._total else 0.0,
                completed=self._completed,
                total=self._total,
                outcomes=dict(self._outcomes),
                cost=self._cost,
                unpriced=self._unpriced,
                budget=None,
                failures=dict(sorted(self._failures.items(), key=lambda each: -each[1])),
                expected_end=None,
            )
        )

    def close(self) -> None:
        self._reports.close()


async def counted(
    results: AsyncIterator[ActorResult], requests: object, progress: ProgressLike
) -> AsyncIterator[ActorResult]:
    """Yield results of a provider without a ledger, and report how many there are."""
    count = _Count(requests, progress)
    try:
        async for result in results:
            count.add(result)
            yield result
        count.end()
    finally:
        count.close()
        # If the caller ends the iteration, end the provider's at once too.
        if isinstance(results, AsyncGenerator):
            await cast("AsyncGenerator[ActorResult]", results).aclose()


def counted_sync(
    results: Iterator[ActorResult], requests: object, progress: ProgressLike
) -> Iterator[ActorResult]:
    """Run `counted` synchronously."""
    count = _Count(requests, progress)
    try:
        for result in results:
            count.add(result)
            yield result
        count.end()
    finally:
        count.close()


# Display ------------------------------------------------------------------------------------------

LINES_APART = 1.0
"""Minimum seconds between two plain lines."""

SHOWN_BATCHES = 20

BAR_WIDTH = 30

_NOTEBOOK_WIDTH = 100

_TIMES = re.compile(
    r"(?:; next check in |, about )?\b\d+(?:\.\d+)?(?:ms|[smhd])\b(?: \d+[mh]\b)?(?: left)?"
    r"| \(request-id [^)]*\)"
)


class Display(Protocol):
    """Shows a run's status on every call of `show`."""

    def show(
        self, status: RunStatus | None, trouble: str = "", progress: Progress | None = None
    ) -> None:
        """Show the current status of a run, and its progress.

        ``trouble`` is the obstacle, if any. ``status`` is None for live calls without a ledger.
        """
        ...


@contextmanager
def display(*, keep: bool = False) -> Generator[Display]:
    """Return a display in the notebook's cell, or on standard error.

    ``keep`` leaves what was drawn last on the terminal.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal and "IPython" not in sys.modules:
        yield _Lines()  # without `rich`, whose import takes as long as storing a thousand requests
        return
    from rich.console import Console

    stream = cast("IO[str]", sys.stderr)
    unbreakable = cast("IO[str]", _Unbreakable(stream)) if is_terminal else None
    console = Console(stderr=True, file=unbreakable)
    if console.is_jupyter:
        yield _Cell()
    elif not is_terminal or console.is_dumb_terminal:  # it has no cursor, so nothing is redrawn
        yield _Lines()
    else:
        from rich.live import Live

        with Live(console=console, refresh_per_second=4, transient=not keep) as live:
            yield _Table(live)


class _Unbreakable:
    """A terminal that may be closed while it is drawn on: the work continues without it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Lines:
    """Plain lines: only changes, at a limited rate."""

    def __init__(self) -> None:
        self._last = ""
        self._shown = float("-inf")

    def show(
        self, status: RunStatus | None, trouble: str = "", progress: Progress | None = None
    ) -> None:
        if status is None:
            line = "" if progress is None else _bar_words(progress)
        else:
            line = status_line(status, trouble, progress)
        now = time.monotonic()
        timeless = without_times(line)
        is_last = progress is not None and progress.done == 1.0
        if timeless != self._last and (is_last or now - self._shown >= LINES_APART):
            self._last, self._shown = timeless, now
            if sys.stderr is not None:
                with contextlib.suppress(OSError):  # the work continues even if nobody reads it
                    print(visible(line), file=sys.stderr, flush=True)


def status_line(status: RunStatus, trouble: str = "", progress: Progress | None = None) -> str:
    """Return a run's status as one line."""
    line = f"{status.run_id} {status.state}: {counts_line(status)}"
    if progress is not None:
        line = ", ".join((line, *progress_words(progress)))
    if words := trouble or status.waiting_for:
        line += f" ({words})"
    return line


def without_times(line: str) -> str:
    """Return a line without durations and request ids, because a repetition is not a change."""
    return _TIMES.sub("", line)


class _Table:
    """A progress bar and a table, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(
        self, status: RunStatus | None, trouble: str = "", progress: Progress | None = None
    ) -> None:
        self._live.update(_drawn(status, trouble, progress))


class _Cell:
    """The same in the output of a notebook's cell; unlike `rich.live`, without ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(
        self, status: RunStatus | None, trouble: str = "", progress: Progress | None = None
    ) -> None:
        from rich.console import Console
        from rich.jupyter import JUPYTER_HTML_FORMAT, JupyterRenderable

        console = Console(
            record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False
        )
        console.print(_drawn(status, trouble, progress))
        html = console.export_html(inline_styles=True, code_format=JUPYTER_HTML_FORMAT, clear=False)
        drawn = JupyterRenderable(html, console.export_text())
        if self._handle is None:
            shell = importlib.import_module("IPython.display")
            self._handle = shell.display(drawn, display_id=True)
        else:
            self._handle.update(drawn)


def _drawn(status: RunStatus | None, trouble: str, progress: Progress | None) -> RenderableType:
    bar = [] if progress is None else [_bar(progress)]
    if status is None:
        return bar[0] if bar else ""
    return run_details(status, trouble, bar)


def counts_line(status: RunStatus) -> str:
    """Return the counts by state: ``990 succeeded, 10 packed of 1,000``."""
    parts = [f"{count:,} {state}" for state, count in status.counts.items()]
    return f"{', '.join(parts) or 'nothing yet'} of {status.total:,}"


def progress_words(progress: Progress) -> list[str]:
    """List ``99.0 % done``, ``cost so far $0.0123``, ``about 12m left``, ``failed: 3 expired``."""
    # Never rounded up to 100 %.
    share = [f"{math.floor(progress.done * 1000) / 10:.1f} % done"] if progress.done else []
    return share + _cost_and_time(progress)


def _cost_and_time(progress: Progress) -> list[str]:
    words: list[str] = []
    if progress.cost or progress.unpriced or progress.budget is not None:
        unpriced = " plus unpriced answers" if progress.unpriced else ""
        of = "" if progress.budget is None else f" of {write_usd(progress.budget)}"
        words.append(f"cost so far {dollars(progress.cost)}{of}{unpriced}")
    if progress.expected_end is not None:
        words.append(f"about {roughly(max(1, progress.expected_end - _moment(progress)))} left")
    if progress.failures:
        failed = [f"{count:,} {kind}" for kind, count in progress.failures.items()]
        words.append(f"failed: {', '.join(failed)}")
    return words


def _bar_words(progress: Progress) -> str:
    if progress.total is None:
        done = f"{count_of(progress.completed, 'request')} done"
    else:
        done = f"{progress.completed:,} of {count_of(progress.total, 'request')} done"
    return ", ".join((done, *_cost_and_time(progress)))


def _bar(progress: Progress) -> Table:
    """Return a progress bar with the requests done, cost against budget, and time left."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    line = Table.grid(padding=(0, 1))
    line.add_column()
    line.add_column(overflow="fold")
    total = None if progress.total is None else max(1, progress.total)
    line.add_row(
        ProgressBar(total=total, completed=progress.completed, width=BAR_WIDTH),
        cell(_bar_words(progress)),
    )
    return line


def _moment(of: RunStatus | Progress) -> float:
    """Return the time to which ages count: the ledger's, which may differ from this machine's."""
    return time.time() if of.read is None else of.read


def ago(then: float | None, now: float) -> str:
    """Return the age of a moment, or an empty text for None."""
    return "" if then is None else roughly(now - then)


def _next(batch: BatchStatus, now: float) -> str:
    if batch.next_check is None or batch.state is BatchState.COLLECTED:
        return ""
    left = batch.next_check - now
    return f"in {roughly(max(1, left))}" if left > 0 else "now"


def run_details(
    status: RunStatus, trouble: str = "", more: Iterable[str | RenderableType] = ()
) -> Group:
    """Return a run's states, what it waits for, ``more`` lines, and its batches."""
    from rich.console import Group

    now = _moment(status)
    lines = [
        f"{status.run_id} {status.state}: {counts_line(status)}",
        f"actor {status.actor}, submitted {ago(status.created, now)} ago",
    ]
    if status.label is not None:
        lines.append(f"label: {status.label}")
    if status.output is not None:
        written = ""
        if status.delivered is None:
            # A worker that finishes a run does not write its output: it may be another machine's.
            written = " (not written yet)"
            if status.finished:
                command = f"`claude-batch resume {status.run_id}`"
                written = f" (not written yet; write it with {command})"
        lines.append(f"output: {status.output}{written}")
    if words := trouble or status.waiting_for:
        lines.append(f"waiting for: {words}")
    elif status.deadline is not None and status.deadline.outcome is not None:
        lines.append(f"its deadline was {status.deadline.outcome}")
    if status.strange_lines:
        strange = count_of(
            status.strange_lines,
            "line of its results cannot be read",
            "lines of its results cannot be read",
        )
        lines.append(f"{strange}; kept in the ledger")
    shown = (cell(line) if isinstance(line, str) else line for line in (*lines, *more))
    return Group(*shown, _batches_table(status, now))


_BATCH_COLUMNS: tuple[tuple[str, ColumnKind], ...] = (
    ("batch", "name"),
    ("state", "name"),
    ("requests", "number"),
    ("age", "name"),
    ("next check", "name"),
    ("note", "text"),
)


def _batches_table(status: RunStatus, now: float) -> Rows:
    rows = [
        (
            batch.batch_id or "-",
            str(batch.state),
            f"{batch.requests:,}",
            ago(batch.submitted, now),
            _next(batch, now),
            batch.note or "",
        )
        for batch in status.batches[-SHOWN_BATCHES:]
    ]
    caption = ""
    if len(status.batches) > SHOWN_BATCHES:
        caption = f"the newest {SHOWN_BATCHES} of {len(status.batches)}; --json has them all"
    return Rows(_BATCH_COLUMNS, rows, caption)
