"""Lines about costs, tables of runs, and what is shown while a run is stored."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from claude_batch.cli.user_messages import say
from claude_batch.core.quantities import count_of, dollars, roughly
from claude_batch.core.terminal import cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table

    from claude_batch.ledger.backends.backend import Worker
    from claude_batch.providers.cost_report import CostReport, CostShare
    from claude_batch.providers.progress import Progress
    from claude_batch.providers.status import RunStatus


# Cost lines ---------------------------------------------------------------------------------------


def cost_line(report: CostReport) -> str:
    """Return a run's cost in one line."""
    total, words = report.total, [f"cost {cost_words(report.total)}"]
    if total.live_cost:
        words.append(f"live {dollars(total.live_cost)}, {saved_words(total)}")
    words.append(token_words(total))
    if report.first_answer is not None and report.last_answer is not None:
        first, last = duration(report.first_answer), duration(report.last_answer)
        words.append(f"answers after {first}" + (f" to {last}" if last != first else ""))
    if report.total.reused_answers:
        words.append(f"{count_of(report.total.reused_answers, 'answer')} reused")
    words += unpriced_words(report)
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


def unpriced_words(report: CostReport) -> list[str]:
    """Return why answers have no cost, as a line for each reason."""
    words: list[str] = []
    if report.unpriced:
        models = ", ".join(
            f"{count:,} of {model or 'no model'}" for model, count in report.unpriced.items()
        )
        words.append(f"answers without a price: {models} (name one with --prices)")
    if report.unreadable_usage:
        answers = count_of(report.unreadable_usage, "answer")
        words.append(f"{answers} of unknown cost, because the usage cannot be read")
    return words


def duration(seconds: float) -> str:
    return roughly(max(1, seconds))


# Display ------------------------------------------------------------------------------------------

LINES_APART = 1.0
"""Minimum seconds between two plain lines."""

WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


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


def worker_line(worker: Worker) -> str:
    """Describe a process that uses a ledger on a server."""
    drives = ", ".join(map(str, worker.drives))
    return (
        f"worker {worker.process} on {worker.host}, pid {worker.pid}, heartbeat "
        f"{roughly(worker.seconds_since_heartbeat)} ago: "
        + (f"drives workspace {drives}" if drives else "waits")
    )


def progress_lines(progress: Progress) -> tuple[str, ...]:
    """Return `progress_words` as one line, or an empty tuple if there are none."""
    from claude_batch.providers.progress import progress_words

    words = ", ".join(progress_words(progress))
    return (words,) if words else ()


def runs_table(statuses: list[RunStatus]) -> Table:
    """Return a table with one run per line."""
    from rich.table import Table

    from claude_batch.providers.progress import ago, counts_line

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
            ago(status.created, now),
            cell(counts_line(status)),
            cell(output),
        )
    return table
