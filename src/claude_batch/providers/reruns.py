"""Reruns and retries: which requests are sent again, and which cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from claude_batch.core.batch_processing import SETTINGS
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.quantities import count_of, format_duration, format_time, tally
from claude_batch.core.settings import Kind
from claude_batch.core.states import RequestState
from claude_batch.ledger import queries, retries
from claude_batch.ledger.retries import ON_ORDER, Rerun, Retried
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.recovery import Refetched

# Reruns -------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


def report_rerun(run_id: str, rerun: Rerun) -> None:
    """Log `rerun_line`: as a warning if anything of the run has failed, else as information."""
    troubled = rerun.queued or rerun.failed or rerun.lost or rerun.unknown or rerun.cancelling
    level = logging.WARNING if troubled else logging.INFO
    _log.log(level, "%s", rerun_line(run_id, rerun), extra={"for_people": True})


def report_kept(run_id: str, kept: Mapping[str, tuple[Any, Any]]) -> None:
    """Log the settings that a continued run keeps although others were requested, if any."""
    if not kept:
        return
    words = ", ".join(
        f"{name} {_setting(name, old)} (not {_setting(name, new)})"
        for name, (old, new) in kept.items()
    )
    _log.warning(
        "%s keeps the settings that it began with: %s. To send all its requests again with the "
        "others, which is billed again: --new (new=True)",
        run_id,
        words,
        extra={"for_people": True},
    )


def _setting(name: str, value: Any) -> str:
    if value is None:
        return "unset"
    if name == "deadline":
        return format_time(value)
    return format_duration(value) if SETTINGS[name].kind is Kind.DURATION else str(value)


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


# Retries ------------------------------------------------------------------------------------------

_TYPE = "type="
_MISSING = "missing"


class Only(NamedTuple):
    """Selection of a run's requests to retry."""

    states: frozenset[RequestState] | None
    """Failures with these outcomes; None for all failures."""
    error_types: frozenset[str]
    """Failures with these error types as well."""
    missing: bool
    """Whether to fetch missing results again, and to resend their requests if need be."""


def parse_only(only: Iterable[str] | None) -> Only:
    """Parse the words of ``only`` into a selection.

    They are ``expired``, ``errored``, ``canceled``, ``malformed``, ``missing`` and ``type=…``. None
    means every failure, but nothing that may have been paid for. An empty iterable means nothing,
    because a program may have filtered its list to nothing. Raises `ActorConfigurationError`.
    """
    words: list[object] = []
    if only is not None:
        words += [only] if isinstance(only, str) else only
    states: set[RequestState] = set()
    types: set[str] = set()
    for word in words:
        if word == _MISSING:
            continue
        if isinstance(word, str) and word.startswith(_TYPE) and word != _TYPE:
            types.add(word.removeprefix(_TYPE))
        elif word in [str(state) for state in ON_ORDER]:
            states.add(RequestState(str(word)))
        else:
            raise ActorConfigurationError(
                f"only: {word!r} is unknown; use expired, errored, canceled, malformed, missing, "
                "or type=… with a type of error, such as type=overloaded_error"
            )
    return Only(None if only is None else frozenset(states), frozenset(types), _MISSING in words)


def retry_run(ledger: Ledger, run_id: str, only: Only, refetch: Callable[[], Refetched]) -> Retried:
    """Queue the failed requests of a run again, in one transaction.

    If missing results are selected, ``refetch`` fetches them first. Requests of completely read
    batches whose results are still missing are queued in the same transaction. Raises
    `InvalidRequestError` for single calls and for a run whose cancellation is still in progress,
    and what ``refetch`` raises.
    """
    with ledger.read() as tx:
        if queries.run_row(tx, run_id).kind != "run":
            raise InvalidRequestError(
                f"{run_id} contains single calls; to retry a call, make it again. Nothing was "
                "changed"
            )
    fetched = refetch() if only.missing else Refetched()
    now = ledger.now()
    try:
        with ledger.write() as tx:
            missing = retries.send_missing(tx, run_id, fetched.batches, now=now)
            retried = retries.retry_failed(
                tx, run_id, states=only.states, error_types=only.error_types, now=now
            )
    except retries.StillCancelling:
        raise InvalidRequestError(
            f"{run_id} is being cancelled, and its batches have not ended. Nothing was sent "
            f"again. Wait for them with: claude-batch resume {run_id}"
        ) from None
    return retried._replace(
        queued=retried.queued + missing,
        missing=missing,
        found=fetched.found,
        refused=fetched.refused,
    )
