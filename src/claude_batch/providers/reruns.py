"""Send failed and lost requests again, and report what a rerun does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from claude_batch.core.batch_processing import SETTINGS
from claude_batch.core.errors import ActorConfigurationError, InvalidRequestError
from claude_batch.core.quantities import count_of, format_duration, format_time, tally
from claude_batch.core.settings import Kind, naming_ledger
from claude_batch.core.states import BatchState, CandidateState, RequestState
from claude_batch.ledger import live_calls, queries, retries, run_deadlines, unknown_batches
from claude_batch.ledger.retries import ON_ORDER, Rerun, Retried
from claude_batch.ledger.store import Ledger, Record, now_in
from claude_batch.ledger.submissions import INTERRUPTED
from claude_batch.lifecycle.ended_processes import interrupted_workspaces, settle_interrupted
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
    if isinstance(value, bool):
        return str(value).lower()
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
        parts.append(f"{words} (decide with: `claude-batch unknown {run_id} --resubmit`)")
    line = ", ".join(parts)
    if not rerun.queued and not rerun.unfinished:
        line += "; the answers are given again at no cost. To make a new run: --new (new=True)"
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

PAST_MARGIN = "has reached the margin before its deadline, and sends nothing with `fallback: none`"
"""Why a run sends nothing more until all its requests have ended."""

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
    `InvalidRequestError` for single calls, for a run whose cancellation is still in progress or
    whose deadline would end the requests unsent, and what ``refetch`` raises.
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
    except (retries.StillCancelling, retries.SendsNothing) as error:
        wait = naming_ledger(f"`claude-batch resume {run_id}`", ledger.location)
        why = (
            "is being cancelled, and its requests have not ended"
            if isinstance(error, retries.StillCancelling)
            else f"{PAST_MARGIN} before its open requests have ended"
        )
        raise InvalidRequestError(
            f"{run_id} {why}. Nothing was sent again. Wait for them with: {wait}"
        ) from None
    return retried._replace(
        queued=retried.queued + missing,
        missing=missing,
        found=fetched.found,
        refused=fetched.refused,
    )


# Unknown submissions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A batch at the API that may match an unknown submission."""

    batch_id: str
    state: CandidateState
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSending:
    """Requests of a run for which it is unknown whether the API accepted them.

    Times are seconds since the epoch (UTC).
    """

    run_id: str
    requests: int
    since: float | None
    reason: str | None
    """The outcome of the submission, in words."""
    settled: bool
    """True if no new candidate can appear; False if it can no longer be determined."""
    lost: bool
    """True if the requests have ended without an answer, and may have been paid for."""
    candidates: tuple[Candidate, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def unknown_sendings(ledger: Ledger, run_id: str | None = None) -> list[UnknownSending]:
    """Return the unknown submissions and lost requests of a run, or of all runs."""
    found: list[UnknownSending] = []
    undriven = interrupted_workspaces(ledger)
    with ledger.read() as tx:
        for row in unknown_batches.undecided(tx, run_id, undriven=undriven):
            is_noted = row.state == BatchState.UNKNOWN
            candidates = tuple(
                Candidate(batch_id=c.remote_id, state=CandidateState(c.state), note=c.note)
                for c in unknown_batches.candidates_of(tx, row.id)
                if c.state != CandidateState.FOREIGN
            )
            found.append(
                UnknownSending(
                    run_id=row.run_id,
                    requests=row.members,
                    since=row.unknown_since if is_noted else row.armed,
                    reason=row.note if is_noted else INTERRUPTED,
                    settled=is_noted and row.settled is not None,
                    lost=False,
                    candidates=candidates,
                )
            )
        found += [
            _lost(row, "no usable answer came")
            for row in unknown_batches.runs_with_lost(tx, run_id)
        ]
        found += [
            _lost(row, "its process ended during live calls")
            for row in live_calls.under_way(tx, run_id)
            if row.workspace_id in undriven
        ]
    return found


def fetchable_lost(ledger: Ledger, run_ids: Iterable[str]) -> dict[str, int]:
    """Return how many lost requests of each run have a batch whose results can be fetched again."""
    with ledger.read() as tx:
        return {run_id: unknown_batches.fetchable_lost(tx, run_id) for run_id in run_ids}


def _lost(row: Record, reason: str) -> UnknownSending:
    return UnknownSending(
        run_id=row.run_id,
        requests=row.members,
        since=None,
        reason=reason,
        settled=True,
        lost=True,
    )


class Decision(NamedTuple):
    """What `decide_unknown` has done."""

    requests: int
    """Number of requests that are queued again, or have ended as lost."""
    refusal: str = ""
    """Why requests were not queued again; follows the run's id in a sentence."""
    undecided: bool = False
    """With a refusal: whether giving up ends requests of the run; its open ones end by themselves
    otherwise."""


def decide_unknown(ledger: Ledger, run_id: str, *, resubmit: bool) -> Decision:
    """Send a run's unknown and lost requests again, or end the unknown ones as lost.

    Sending them again may pay for them twice. Nothing is sent while a cancellation of the run is in
    progress, or if its deadline would end its open requests unsent.
    """
    settle_interrupted(ledger)
    with ledger.write() as tx:
        undecided = unknown_batches.undecided(tx, run_id)
        if not resubmit:
            ended = (unknown_batches.give_up(tx, row.id, run_id=run_id) for row in undecided)
            return Decision(sum(ended))
        run, now = queries.run_row(tx, run_id), now_in(tx)
        why = ""
        if queries.unfinished(tx, run_id):
            if run.cancelled is not None:
                why = "was cancelled, and its batches have not ended"
            elif run_deadlines.stops_sending(tx, run_id, now):
                why = PAST_MARGIN
        if why:
            has_some = undecided or unknown_batches.runs_with_lost(tx, run_id)
            return Decision(0, why, bool(undecided)) if has_some else Decision(0)
        queued = [unknown_batches.resubmit(tx, row.id, now=now, run_id=run_id) for row in undecided]
        return Decision(sum(queued) + unknown_batches.resubmit_lost(tx, run_id, now))
