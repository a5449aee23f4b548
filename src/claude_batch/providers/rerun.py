"""Report what a run holds when it is submitted again, and what is retried."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from claude_batch.core.plurals import count_of, tally
from claude_batch.ledger.retries import Rerun

_log = logging.getLogger(__name__)


def report_rerun(run_id: str, rerun: Rerun) -> None:
    """Log `rerun_line`: as a warning if anything of the run has failed, else as information."""
    troubled = rerun.queued or rerun.failed or rerun.lost or rerun.unknown or rerun.cancelling
    level = logging.WARNING if troubled else logging.INFO
    _log.log(level, "%s", rerun_line(run_id, rerun), extra={"for_people": True})


def rerun_line(run_id: str, rerun: Rerun) -> str:
    """Return one line: answers in the ledger, requests that are retried, and those that are not."""
    answers = f"{count_of(rerun.answered, 'answer')} from the ledger{_when(rerun)}"
    parts: list[str] = []
    if rerun.cancelling:
        left = count_of(rerun.unfinished, "request has", "requests have")
        parts.append(
            f"{run_id} was cancelled, and {left} not ended yet; when its batches have ended, the "
            "requests that did not run are sent again"
        )
    elif rerun.unfinished:
        parts.append(
            f"{run_id} has the same requests and is unfinished, so it is continued: {answers}"
        )
        parts.append(count_of(rerun.unfinished, "request is open", "requests are open"))
    elif rerun.queued:
        asked = count_of(
            sum(rerun.queued.values()),
            "failed request is sent again",
            "failed requests are sent again",
        )
        parts += [f"{run_id}: {answers}", f"{asked} ({tally(rerun.queued)})"]
    else:
        parts.append(f"{run_id} has the same requests and is finished: {answers}")
    if rerun.failed:
        failures = count_of(
            sum(rerun.failed.values()),
            "failed request is not sent again",
            "failed requests are not sent again",
        )
        parts.append(f"{failures} ({tally(rerun.failed)})")
    if doubtful := rerun.lost + rerun.unknown:
        words = count_of(
            doubtful,
            "request may have been paid for and is not sent again",
            "requests may have been paid for and are not sent again",
        )
        parts.append(f"{words} (decide with: claude-batch unknown {run_id} --resubmit)")
    line = ", ".join(parts)
    if not rerun.queued and not rerun.unfinished:
        line += "; delivered again at no cost. To make a new run: --new (new=True)"
    return line


def _when(rerun: Rerun) -> str:
    """Return when the answers came, in UTC to the minute; "" if there is none."""
    if not rerun.answered or rerun.first is None or rerun.last is None:
        return ""
    first, last = _minute(rerun.first), _minute(rerun.last)
    return f" (answered {last} UTC)" if first == last else f" (answered {first} to {last} UTC)"


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
