"""Progress display of a waiting command, and the format of costs."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from claude_batch.cli.user_messages import cell, say
from claude_batch.core.quantities import count_of, decimal_usd, format_duration, roughly, write_usd
from claude_batch.core.states import BatchState

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.status import Status
    from rich.table import Table

    from claude_batch.providers.cost_report import CostReport, CostShare
    from claude_batch.providers.status import BatchStatus, Progress, RunStatus


# Cost lines ---------------------------------------------------------------------------------------


def dollars(nano: int) -> str:
    """Return ``$1.23``, or as many digits as a small sum needs; exact sums are in --json."""
    sum_ = abs(nano)
    places = 2 if sum_ >= 10_000_000_000 else 4 if sum_ >= 10_000_000 else 6
    return f"{'-' if nano < 0 else ''}${decimal_usd(sum_, places, separator=',')}"


def cost_line(report: CostReport) -> str:
    """Return a run's cost in one line."""
    total, words = report.total, [f"cost {cost_words(report.total)}"]
    if total.live_cost:
        words.append(f"live {dollars(total.live_cost)}, {saved_words(total)}")
    words.append(token_words(total))
    if report.first_answer is not None and report.last_answer is not None:
        words.append(
            f"answers after {duration(report.first_answer)} to {duration(report.last_answer)}"
        )
    if report.total.reused_answers:
        words.append(f"{count_of(report.total.reused_answers, 'answer')} reused")
    if report.unpriced:
        words.append(unpriced_words(report))
    return "; ".join(words)


def cost_words(share: CostShare) -> str:
    if share.unpriced_answers and share.unpriced_answers == share.results["succeeded"]:
        return "unknown"
    return dollars(share.cost) + (" plus unpriced answers" if share.unpriced_answers else "")


def saved_words(share: CostShare) -> str:
    words = f"saved {dollars(share.saved_by_batch)} by batch"
    if share.saved_by_cache:
        words += f" and {dollars(share.saved_by_cache)} by cache"
    return words


def cache_line(share: CostShare) -> str | None:
    """Return the prompt cache's savings for a run, or None if it was not used."""
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    if not (tokens.cache_read or written):
        return None
    saved = share.saved_by_cache
    what = (
        f"saved {dollars(saved)}" if saved >= 0 else f"cost {dollars(-saved)} more than without it"
    )
    return f"prompt cache: {tokens.cache_read:,} tokens read, {written:,} written; {what}"


def token_words(share: CostShare) -> str:
    tokens = share.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    words = f"tokens: {tokens.input:,} in, {tokens.output:,} out"
    if tokens.cache_read or written:
        words += f", cache {tokens.cache_read:,} read and {written:,} written"
    if share.web_searches:
        words += f"; {count_of(share.web_searches, 'web search', 'web searches')}"
    return words


def unpriced_words(report: CostReport) -> str:
    models = ", ".join(
        f"{count:,} of {model or 'no model'}" for model, count in report.unpriced.items()
    )
    return f"answers without a price: {models} (name one with --prices)"


def duration(seconds: float) -> str:
    return format_duration(max(1, round(seconds)))


# Display ------------------------------------------------------------------------------------------

LINES_APART = 1.0
"""Minimum seconds between two plain lines."""

WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""

SHOWN_BATCHES = 20

BAR_WIDTH = 30

_TIMES = re.compile(r"\b\d+(?:\.\d+)?(?:ms|[smhd])\b")


class Display(Protocol):
    """Shows a run's status on every call of `show`."""

    def show(self, status: RunStatus, trouble: str = "", progress: Progress | None = None) -> None:
        """Show the run's current status; ``trouble`` is the obstacle, if any."""
        ...


@contextmanager
def display() -> Generator[Display]:
    """Return a display on standard error."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield _Table(live)


@contextmanager
def storing() -> Generator[Callable[[int], None]]:
    """Yield a callback that shows the number of stored requests on standard error.

    It may be called often, and prints at most once a second.
    """
    shown = time.monotonic()
    live = contextlib.ExitStack()
    status: Status | None = None

    def show(count: int) -> None:
        nonlocal shown, status
        now = time.monotonic()
        if now - shown < LINES_APART:
            return
        shown = now
        words = f"{count:,} requests are stored so far"
        if sys.stderr is None or not sys.stderr.isatty():
            say(words)
        elif status is not None:
            status.update(words)
        else:
            from rich.console import Console

            status = live.enter_context(Console(stderr=True).status(words))

    with live:
        yield show


class _Lines:
    """Plain lines: only changes, at a limited rate."""

    def __init__(self) -> None:
        self._last = ""
        self._shown = float("-inf")

    def show(self, status: RunStatus, trouble: str = "", progress: Progress | None = None) -> None:
        line = f"{status.run_id} {status.state}: {counts_line(status)}"
        if progress is not None:
            line = ", ".join((line, *progress_words(progress)))
        if words := trouble or status.waiting_for:
            line += f" ({words})"
        now = time.monotonic()
        # The passage of time alone is not a change.
        timeless = _TIMES.sub("", line)
        if timeless != self._last and now - self._shown >= LINES_APART:
            self._last, self._shown = timeless, now
            say(line)


class _Table:
    """A progress bar and a table, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, status: RunStatus, trouble: str = "", progress: Progress | None = None) -> None:
        bar = [] if progress is None else [_bar(status, progress)]
        self._live.update(run_details(status, trouble, bar))


def console() -> Console:
    """Return a console on standard output; wide without a terminal, so that nothing is cut."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> None:
            """Exit quietly: rich would exit with 1, which means failed requests here."""
            raise BrokenPipeError

    return Told(
        width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False, emoji=False
    )


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
    if progress.cost or progress.unpriced:
        unpriced = " plus unpriced answers" if progress.unpriced else ""
        of = "" if progress.budget is None else f" of {write_usd(progress.budget)}"
        words.append(f"cost so far {dollars(progress.cost)}{of}{unpriced}")
    if progress.expected_end is not None:
        words.append(f"about {roughly(progress.expected_end - time.time())} left")
    if progress.failures:
        failed = [f"{count:,} {kind}" for kind, count in progress.failures.items()]
        words.append(f"failed: {', '.join(failed)}")
    return words


def progress_lines(progress: Progress) -> tuple[str, ...]:
    """Return `progress_words` as one line, or an empty tuple if there are none."""
    words = ", ".join(progress_words(progress))
    return (words,) if words else ()


def _bar(status: RunStatus, progress: Progress) -> Table:
    """Return a progress bar with the requests done, cost against budget, and time left."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done = sum(count for state, count in status.counts.items() if state.is_final)
    words = [f"{done:,} of {count_of(status.total, 'request')} done", *_cost_and_time(progress)]
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=max(1, status.total), completed=done, width=BAR_WIDTH),
        cell(", ".join(words)),
    )
    return line


def _ago(then: float | None, now: float) -> str:
    return "" if then is None else format_duration(max(0, round(now - then)))


def _next(batch: BatchStatus, now: float) -> str:
    if batch.next_check is None or batch.state is BatchState.COLLECTED:
        return ""
    return f"in {format_duration(max(0, round(batch.next_check - now)))}"


def run_details(
    status: RunStatus, trouble: str = "", more: Iterable[str | RenderableType] = ()
) -> Group:
    """Return a run's states, what it waits for, ``more`` lines, and its batches."""
    from rich.console import Group

    now = time.time()
    lines = [
        f"{status.run_id} {status.state}: {counts_line(status)}",
        f"asked {_ago(status.created, now)} ago of {status.actor}",
    ]
    if status.label is not None:
        lines.append(f"label: {status.label}")
    if status.output is not None:
        written = "" if status.delivered is not None else " (not written yet)"
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


def _batches_table(status: RunStatus, now: float) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("batch", "state", "requests", "age", "next check", "note"):
        table.add_column(
            column,
            justify="right" if column == "requests" else "left",
            no_wrap=column == "batch",
        )
    for batch in status.batches[-SHOWN_BATCHES:]:
        table.add_row(
            cell(batch.batch_id or "-"),
            cell(str(batch.state)),
            f"{batch.requests:,}",
            _ago(batch.submitted, now),
            _next(batch, now),
            cell(batch.note or ""),
        )
    if len(status.batches) > SHOWN_BATCHES:
        table.caption = f"the newest {SHOWN_BATCHES} of {len(status.batches)}; --json has them all"
    return table


def runs_table(statuses: list[RunStatus]) -> Table:
    """Return a table with one run per line."""
    from rich.table import Table

    now = time.time()
    table = Table()
    for column in ("run", "state", "actor", "label", "age", "requests", "output"):
        table.add_column(column, no_wrap=column == "run")
    for status in statuses:
        output = status.output or ""
        if output and status.delivered is None:
            output += " (not written yet)"
        table.add_row(
            cell(status.run_id),
            cell(str(status.state)),
            cell(status.actor),
            cell(status.label or ""),
            _ago(status.created, now),
            cell(counts_line(status)),
            cell(output),
        )
    return table
