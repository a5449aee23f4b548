"""The output of `claude-batch status`, once or as the ledger changes."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import msgspec

from claude_batch.cli.user_messages import (
    console,
    on_terminal,
    reader_has_gone,
    writing_stdout,
)
from claude_batch.core.quantities import dollars, roughly
from claude_batch.core.terminal import ColumnKind, Rows, encodable, visible
from claude_batch.providers.cost_report import CostReport, CostShare, cost_in
from claude_batch.providers.failure_report import failures_in
from claude_batch.providers.progress import Progress, ProgressReader
from claude_batch.providers.progress_reports import (
    LookRate,
    ago,
    counts_line,
    progress_words,
    run_details,
    status_line,
    without_times,
)
from claude_batch.providers.status import Finished, RunStatus, newest_statuses, status_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from claude_batch.ledger.backends.backend import Worker
    from claude_batch.ledger.store import Ledger


class StatusReport(msgspec.Struct, frozen=True):
    """The statuses of runs at one moment; of a single run also its progress and cost."""

    statuses: tuple[RunStatus, ...]
    now: float
    """The ledger's time."""
    progress: Progress | None = None
    cost: CostReport | None = None
    failures: tuple[str, ...] = ()
    """Of a single run, the lines about its failed requests."""
    workers: tuple[Worker, ...] = ()
    """The living processes, if the ledger is on a server."""
    completed: Callable[[str], str] = str
    """Adds the flags that were typed to the commands in a message."""

    def to_dict(self) -> Any:
        """Return a list of statuses as plain values; of a single run one, with more fields."""
        values = [status.to_dict() for status in self.statuses]
        if self.progress is None or self.cost is None:
            return values
        return {**values[0], "cost": self.cost.to_dict(), "progress": self.progress.to_dict()}

    def draw(self) -> RenderableType:
        """Return what a person sees."""
        workers = [worker_line(each) for each in self.workers]
        if self.progress is None or self.cost is None:
            from rich.console import Group
            from rich.text import Text

            runs = _runs_table(self.statuses, self.now) if self.statuses else Text("no runs yet")
            return Group(runs, *map(Text, workers))
        words = ", ".join(progress_words(self.progress))
        more = (words, *self.failures, _cache_line(self.cost.total), *workers)
        return run_details(self.statuses[0], [line for line in more if line], self.completed)

    def lines(self) -> dict[str, str]:
        """Return a line for each run by its id."""
        return {each.run_id: status_line(each, self.progress) for each in self.statuses}


class StatusReader:
    """Reads the status of a run, or of the newest runs, each time in one transaction."""

    def __init__(
        self, ledger: Ledger, run_id: str | None, completed: Callable[[str], str] = str
    ) -> None:
        """``run_id`` may be a unique prefix of one; None for the newest runs.

        ``completed`` adds the flags that were typed to the commands in a message.
        """
        self._completed = completed
        self._ledger = ledger
        self._run_id = run_id
        self._progress: ProgressReader | None = None
        self._finished: Finished = {}
        """The runs of the last report that were finished."""

    def read(self) -> StatusReport:
        """Return the present report. Raises `RunNotFoundError` and `LedgerError`."""
        workers, now = tuple(self._ledger.workers()), self._ledger.now()
        with self._ledger.read() as tx:
            if self._run_id is None:
                statuses = newest_statuses(self._ledger, tx, finished=self._finished)
                statuses = [self._with_flags(status) for status in statuses]
                return StatusReport(tuple(statuses), now, workers=workers)
            status = self._with_flags(status_in(self._ledger, tx, self._run_id))
            if self._progress is None:
                self._progress = ProgressReader(self._ledger, status.run_id)
            progress = self._progress.read_in(tx, status)
            cost = cost_in(tx, status.run_id, counts=status.counts)
            failures = failures_in(tx, status).details(status.run_id)
        lines = tuple(map(self._completed, failures))
        return StatusReport((status,), now, progress, cost, lines, workers, self._completed)

    def _with_flags(self, status: RunStatus) -> RunStatus:
        return replace(status, waiting_for=self._completed(status.waiting_for))

    def is_over(self, report: StatusReport) -> bool:
        """Return whether nothing more will change by itself."""
        return self._run_id is not None and report.statuses[0].finished


# Lines and tables ---------------------------------------------------------------------------------


_RUN_COLUMNS: tuple[tuple[str, ColumnKind], ...] = (
    ("run", "name"),
    ("state", "text"),
    ("actor", "text"),
    ("label", "text"),
    ("age", "name"),
    ("requests", "text"),
    ("output", "text"),
)


def _runs_table(statuses: Iterable[RunStatus], now: float) -> Rows:
    """Return a table with one run per line."""
    rows: list[tuple[str, ...]] = []
    for status in statuses:
        output = status.output or ""
        if output and status.delivered is None:
            output += " (not written yet)"
        rows.append(
            (
                status.run_id,
                str(status.state),
                status.actor,
                status.label or "",
                ago(status.created, now),
                counts_line(status),
                output,
            )
        )
    return Rows(_RUN_COLUMNS, rows)


def _cache_line(share: CostShare) -> str:
    """Return the prompt cache's savings for a run; "" if it was not used."""
    tokens = share.tokens
    if not (tokens.cache_read or tokens.cache_write):
        return ""
    saved = share.saved_by_cache
    what = (
        f"saved {dollars(saved)}" if saved >= 0 else f"cost {dollars(-saved)} more than without it"
    )
    return (
        f"prompt cache: {tokens.cache_read:,} tokens read, {tokens.cache_write:,} written; {what}"
    )


def worker_line(worker: Worker) -> str:
    """Describe a process that uses a ledger on a server."""
    drives = ", ".join(map(str, worker.drives))
    return (
        f"process {worker.process} on {worker.host}, pid {worker.pid}, heartbeat "
        f"{roughly(worker.seconds_since_heartbeat)} ago: "
        + (f"drives workspace {drives}" if drives else "waits")
    )


# Watching -----------------------------------------------------------------------------------------

_LOOK = 0.5
"""Seconds between two questions whether the ledger has changed, which cost next to nothing."""


def watch_status(ledger: Ledger, reader: StatusReader) -> None:
    """Show the status whenever it changes, until the run ends or the user interrupts.

    A terminal is drawn again in place; elsewhere each line that has changed is printed.
    """
    # Ctrl-C is the usual end of watching.
    with suppress(KeyboardInterrupt), writing_stdout(), ExitStack() as opened:
        watch = opened.enter_context(closing(ledger.watch()))
        show = _display(opened)
        rate, version = LookRate(longest=math.inf), 0
        while not reader_has_gone():
            version += watch.changed()
            if rate.is_due(version):
                began = time.monotonic()
                report = ledger.patiently(reader.read)
                show(report)
                if reader.is_over(report):
                    return
                rate.rest(time.monotonic() - began)
            time.sleep(_LOOK)


def _display(opened: ExitStack) -> Callable[[StatusReport], None]:
    """Return a function that shows a report."""
    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal:
        from rich.live import Live

        live = opened.enter_context(Live(console=screen, auto_refresh=False))
        return lambda report: live.update(report.draw(), refresh=True)
    shown: dict[str, str] = {}
    safe = visible if on_terminal() else encodable

    def print_changes(report: StatusReport) -> None:
        for run_id, line in report.lines().items():
            timeless = without_times(line)
            if shown.get(run_id) != timeless:
                shown[run_id] = timeless
                click.echo(safe(line))

    return print_changes
