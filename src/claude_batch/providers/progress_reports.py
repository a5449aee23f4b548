"""Reports of a run's progress: the calls of a caller's function, and the progress bar."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import re
import sys
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sized,
)
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from claude_batch.core.errors import ActorConfigurationError, AnswerError, error_type
from claude_batch.core.quantities import count_of, dollars, roughly, write_usd
from claude_batch.core.states import BatchState, RequestState
from claude_batch.core.terminal import ColumnKind, Rows, cell, visible
from claude_batch.core.user_functions import check_takes, is_async
from claude_batch.providers.progress import Progress
from claude_batch.providers.status import BatchStatus, RunStatus
from claude_batch.providers.sync_bridge import Pause

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from claude_batch.actor.response import ActorResult

_log = logging.getLogger(__name__)

# Reports ------------------------------------------------------------------------------------------

_T = TypeVar("_T")

ProgressLike: TypeAlias = bool | Callable[[Progress], object] | None
"""A function that is called with `Progress`, or True for the progress bar."""

Look: TypeAlias = Callable[[], Future[tuple[RunStatus, Progress] | None]]
"""Starts to read the progress of a run; the future has None if it cannot be read."""

INTERVAL = 0.5
"""Minimum seconds between two calls, and between two looks of a waiting caller."""

LONGEST_INTERVAL = 5.0
"""Seconds after which a run is looked at even without a change, because times go on."""

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


class LookRate:
    """Decides when to look at a run again: after a change, at a rate that the looks allow."""

    def __init__(
        self,
        *,
        rests: float = RESTS_PER_LOOK,
        shortest: float = INTERVAL,
        longest: float = LONGEST_INTERVAL,
    ) -> None:
        """Rest ``rests`` times as long as the last look took, within these seconds."""
        self._rests = rests
        self._shortest = shortest
        self._longest = longest
        self._seen = -1
        self._is_first = True
        self._due = self._again = 0.0

    def is_due(self, version: int) -> bool:
        """Return whether to look now; ``version`` is a number that every change increases."""
        now = time.monotonic()
        if now < self._due or (version == self._seen and now < self._again):
            return False
        self._seen, self._again = version, now + LONGEST_INTERVAL
        return True

    def rest(self, looked: float) -> None:
        """Set the time of the next look, after one that took so many seconds."""
        # The first look also estimates the run's cost, which the later ones do not.
        rest = 0.0 if self._is_first else self._rests * looked
        self._is_first = False
        self._due = time.monotonic() + min(max(self._shortest, rest), self._longest)


class Reports:
    """Passes progress on to a caller's function, or to the bar. Never raises an `Exception`."""

    def __init__(self, progress: ProgressLike) -> None:
        check_progress(progress)
        self._progress: ProgressLike = progress
        self._show: Show | None = None
        self._opened = ExitStack()
        # Not more often than plain lines are printed, so that none is left out.
        self._rate = LookRate(shortest=LINES_APART if progress is True else INTERVAL)

    def is_due(self, version: int) -> bool:
        """Return whether to report now; ``version`` is a number that every change increases."""
        return bool(self._progress) and self._rate.is_due(version)

    def rest(self, looked: float) -> None:
        """Set the time of the next report, after a look that took so many seconds."""
        self._rate.rest(looked)

    def report(self, progress: Progress, status: RunStatus | None = None) -> None:
        """Call the function, or draw the bar. The first exception is logged and ends the calls."""
        try:
            if callable(self._progress):
                self._progress(progress)
            elif self._progress:
                if self._show is None:
                    self._show = self._opened.enter_context(display(keep=True))
                self._show(status, progress)
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
        self._outcomes = Counter[str]()
        self._failures = Counter[str]()
        self._completed = self._cost = self._unpriced = 0

    def add(self, result: ActorResult) -> None:
        self._completed += 1
        self._cost += result.cost or 0
        outcome, answered = str(RequestState.SUCCEEDED), True
        if result.error is not None:
            # Late, because commands that only read the ledger do without pydantic.
            from claude_batch.providers.mapping import state_of

            outcome = str(state_of(result.error))
            answered = isinstance(result.error, AnswerError)
            self._failures[outcome if answered else error_type(result.error)] += 1
        self._unpriced += answered and result.cost is None
        self._outcomes[outcome] += 1
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
                failures=dict(self._failures.most_common()),
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


Show: TypeAlias = Callable[[RunStatus | None, Progress | None], None]
"""Shows the current status of a run, and its progress. Live calls without a ledger have no status.
"""


@contextmanager
def display(*, keep: bool = False) -> Generator[Show]:
    """Yield what shows a run in the notebook's cell, or on standard error.

    ``keep`` leaves what was drawn last on the terminal.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal and "IPython" not in sys.modules:
        # Without `rich`, whose import takes as long as storing a thousand requests.
        yield _Lines().show
        return
    from rich.console import Console

    stream = cast("IO[str]", sys.stderr)
    unbreakable = cast("IO[str]", _Unbreakable(stream)) if is_terminal else None
    console = Console(stderr=True, file=unbreakable)
    if console.is_jupyter:
        yield _Cell().show
    elif not is_terminal or console.is_dumb_terminal:  # it has no cursor, so nothing is redrawn
        yield _Lines().show
    else:
        from rich.live import Live

        with Live(console=console, refresh_per_second=4, transient=not keep) as live:
            yield lambda status, progress: live.update(_drawn(status, progress))


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

    def show(self, status: RunStatus | None, progress: Progress | None) -> None:
        if status is None:
            line = "" if progress is None else _bar_words(progress)
        else:
            line = status_line(status, progress)
        now = time.monotonic()
        timeless = without_times(line)
        is_last = progress is not None and progress.done == 1.0
        if timeless != self._last and (is_last or now - self._shown >= LINES_APART):
            self._last, self._shown = timeless, now
            if sys.stderr is not None:
                with contextlib.suppress(OSError):  # the work continues even if nobody reads it
                    print(visible(line), file=sys.stderr, flush=True)


def status_line(status: RunStatus, progress: Progress | None = None) -> str:
    """Return a run's status as one line."""
    line = f"{status.run_id} {status.state}: {counts_line(status)}"
    if progress is not None:
        line = ", ".join((line, *progress_words(progress)))
    if status.waiting_for:
        line += f" ({status.waiting_for})"
    return line


def without_times(line: str) -> str:
    """Return a line without durations and request ids, because a repetition is not a change."""
    return _TIMES.sub("", line)


class _Cell:
    """A progress bar and a table in a notebook's cell; unlike `rich.live`, without ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, status: RunStatus | None, progress: Progress | None) -> None:
        from rich.console import Console
        from rich.jupyter import JUPYTER_HTML_FORMAT, JupyterRenderable

        console = Console(
            record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False
        )
        console.print(_drawn(status, progress))
        html = console.export_html(inline_styles=True, code_format=JUPYTER_HTML_FORMAT, clear=False)
        drawn = JupyterRenderable(html, console.export_text())
        if self._handle is None:
            shell = importlib.import_module("IPython.display")
            self._handle = shell.display(drawn, display_id=True)
        else:
            self._handle.update(drawn)


def _drawn(status: RunStatus | None, progress: Progress | None) -> RenderableType:
    bar = [] if progress is None else [_bar(progress)]
    if status is None:
        return bar[0] if bar else ""
    return run_details(status, bar)


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
    status: RunStatus,
    more: Iterable[str | RenderableType] = (),
    completed: Callable[[str], str] = str,
) -> Group:
    """Return a run's states, what it waits for, ``more`` lines, and its batches.

    ``completed`` adds flags to the commands in a line.
    """
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
                command = completed(f"`claude-batch resume {status.run_id}`")
                written = f" (not written yet; write it with {command})"
        lines.append(f"output: {status.output}{written}")
    if status.waiting_for:
        lines.append(f"waiting for: {status.waiting_for}")
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
