"""Status of a run: states, batches, what it waits for, and how to change that."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.quantities import count_of, format_time, roughly
from claude_batch.core.settings import from_environment, naming_ledger
from claude_batch.core.states import (
    AT_API,
    IN_FLIGHT,
    UNSUCCESSFUL,
    BatchState,
    RequestState,
    RunState,
)
from claude_batch.core.terminal import encodable
from claude_batch.ledger import (
    conversations,
    live_calls,
    page_queries,
    queries,
    run_deadlines,
    unknown_batches,
    workspaces,
)
from claude_batch.ledger.page_queries import RunMark
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.ledger.submissions import INTERRUPTED
from claude_batch.lifecycle.budget_holds import Held, held_of
from claude_batch.lifecycle.deadline_driver import margin_of, outcome_of
from claude_batch.lifecycle.live_answers import unanswered_words
from claude_batch.lifecycle.reconciliation import is_doubted
from claude_batch.wire.connection import DEFAULT_BASE_URL
from claude_batch.wire.limits import RESULTS_KEPT_DAYS, WARN_FROM_DAY

# Status -------------------------------------------------------------------------------------------

_PARKED = (RunState.PARKED, RunState.UNKNOWN, RunState.CANCELLING)
"""States in which a run without a driver needs only a process to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """One batch of a run. Times are seconds since the epoch (UTC)."""

    batch_id: str | None
    """The API's id; None until it has accepted the batch."""
    state: BatchState
    requests: int
    """Requests in the batch, those of other runs included."""
    submitted: float | None
    ended: float | None
    next_check: float | None
    note: str | None
    """The batch's last error in words, or that somebody else canceled it."""
    unknown_since: float | None = None
    """Time since which it is unknown whether the API accepted it; None if that is known."""
    settled: bool = False
    """For an unknown batch: True if the API's list has settled, so no new candidate can appear."""
    decided: bool = False
    """For an unknown batch: True if its requests of the run were sent again or given up."""
    candidates: int = 0
    """Number of batches at the API that may match an unknown one."""
    missing: int = 0
    """Results missing from the last complete fetch of an ended batch; it is fetched again."""
    missing_since: float | None = None
    """Time of the first complete fetch with missing results, by the API's clock."""
    missing_until: float | None = None
    """Time when the missing results are given up as lost, by the API's clock."""


DECIDED: Final = "decided: its requests were sent again or given up"
"""The note of an unknown batch that none of the run's requests waits for."""


def is_undecided(batch: BatchStatus) -> bool:
    """Return whether requests of the run wait until it is known if the API accepted the batch."""
    return batch.state is BatchState.UNKNOWN and not batch.decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The reason why sending has stopped."""

    reason: str
    error_type: str | None
    message: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The deadline of a run, and what happens when it is near."""

    at: float
    """Seconds since the epoch (UTC)."""
    margin: float
    """Seconds before the deadline after which nothing more goes into batches.

    The value is set or learned. It is the one used when the run was withdrawn, or the current one.
    """
    fallback: str
    """``live``: unanswered requests go live then. ``none``: they expire."""
    withdrawn: float | None
    """Time when the run was withdrawn from batches; None before."""
    outcome: str | None
    """``met``, or ``missed`` with the reason; None while it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Status of a run. Times are seconds since the epoch (UTC)."""

    run_id: str
    state: RunState
    """The run's state; `RunState` documents which state counts if several apply."""
    actor: str
    label: str | None
    kind: str
    """``run``, or ``calls`` for the single calls of one process."""
    created: float
    delivered: float | None
    output: str | None
    total: int
    counts: dict[RequestState, int]
    """Number of requests by state, without empty states."""
    batches: tuple[BatchStatus, ...]
    halt: Halt | None
    waiting_for: str
    """The reason why the run waits and the remedy, in words; empty for a finished run."""
    strange_lines: int
    """Result lines of its batches that are not valid results; the ledger keeps them."""
    mode: str = "batch"
    """``batch``, ``live`` or ``auto``, as submitted."""
    deadline: Deadline | None = None
    held: Held | None = None
    """Requests that do not fit into a budget, and the budget that holds them."""
    waiting_since: float | None = None
    """Time since which it waits for that; None for a finished run."""
    read: float | None = field(default=None, compare=False)
    """The ledger's time at which this was read. `to_dict` leaves it out."""

    @property
    def finished(self) -> bool:
        """Return True if every request has its final state."""
        return sum(n for state, n in self.counts.items() if state.is_final) == self.total

    @property
    def failed(self) -> int:
        """Return the number of requests that ended in a state other than ``succeeded``."""
        return sum(n for state, n in self.counts.items() if state in UNSUCCESSFUL)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        del values["read"]
        values["counts"] = {str(state): count for state, count in self.counts.items()}
        values["held"] = None if self.held is None else self.held._asdict()
        return values


def status_of(ledger: Ledger, run_id: str, *, driven: bool | None = None) -> RunStatus:
    """Return the status of a run by its id, or by a unique prefix of it.

    ``driven``: whether a process drives its workspace, if the caller has that information. Raises
    `RunNotFoundError`.
    """
    with ledger.read() as tx:
        return status_in(ledger, tx, run_id, driven=driven)


def status_in(
    ledger: Ledger,
    tx: Transaction,
    run_id: str,
    *,
    driven: bool | None = None,
    address: str | None = None,
) -> RunStatus:
    """Return the same in a transaction of the caller.

    ``address``: the base URL that the caller uses, or would use; by default the environment's.
    """
    run = require_run(ledger, tx, run_id)
    counts = queries.request_counts(tx, run.id)
    still_open = any(not state.is_final for state in counts)
    workspace = workspaces.workspace_row(tx, run.workspace_id)
    is_here = is_same_address(workspace.base_url, address or address_here())
    if still_open and (driven is None or (address is not None and not is_here)):
        # The caller knows only whether the workspace of its own base URL is driven.
        driven = ledger.has_leader(run.workspace_id)
    batches = _batches(tx, run.id, bool(driven))
    limits = workspaces.limits_of(tx)
    strange = queries.strange_count(tx, run.id)
    deadline = _deadline(tx, run, counts)
    held = held_of(tx, run.id, ledger.now()) if counts.get(RequestState.QUEUED) else None
    turning = _turning_words(ledger, tx, run) if counts.get(RequestState.CONTINUING) else ""
    interrupted = 0
    # ``driven`` may leave this process out, which awaits its own calls before it ends.
    is_left = counts.get(RequestState.PACKED) and not driven
    if is_left and not ledger.has_leader(run.workspace_id):
        interrupted = sum(row.members for row in live_calls.under_way(tx, run.id))
    halt = None
    if workspace.halted is not None:
        halt = Halt(
            reason=workspace.halt_reason,
            error_type=workspace.halt_type,
            message=workspace.halt_message,
            since=workspace.halted,
        )
    moves = counts.get(RequestState.PACKED) or counts.get(RequestState.CONTINUING)
    held_up = held is not None and not moves
    is_unknown = any(map(is_undecided, batches))
    now = ledger.now()
    status = RunStatus(
        run_id=run.id,
        state=_state(run, still_open, halt, is_unknown, held_up, bool(driven)),
        actor=run.actor,
        label=run.label,
        kind=run.kind,
        created=run.created,
        delivered=run.delivered,
        output=run.output,
        total=run.request_count,
        counts=counts,
        batches=batches,
        halt=halt if still_open else None,
        waiting_for="",
        strange_lines=strange,
        mode=run.mode,
        deadline=deadline,
        held=held,
        read=now,
    )
    if not still_open:
        return status
    waiting = _Waiting(
        status=status,
        run=run,
        workspace=workspace,
        limits=limits,
        turning=turning,
        interrupted=interrupted,
        driven=bool(driven),
        is_here=is_here,
        now=now,
    )
    words = naming_ledger(waiting.words(), ledger.location)
    return replace(status, waiting_for=words, waiting_since=waiting.since())


def _batches(tx: Transaction, run_id: str, driven: bool) -> tuple[BatchStatus, ...]:
    rows = queries.batches_of_run(tx, run_id)
    unknown = [row.id for row in rows if row.state == BatchState.UNKNOWN]
    candidates, undecided = dict[int, int](), set[int]()
    if unknown:
        candidates = unknown_batches.open_candidates(tx, unknown)
        undecided = {row.id for row in unknown_batches.undecided(tx, run_id)}
    found: list[BatchStatus] = []
    for row in rows:
        state, note, since = BatchState(row.state), row.note or _canceled_elsewhere(row), None
        decided, settled = False, row.settled is not None
        if state is BatchState.UNKNOWN:
            since, decided = row.unknown_since, row.id not in undecided
            note = DECIDED if decided else note
        elif state is BatchState.SUBMITTING and row.armed is not None and not driven:
            # Its process has ended; the next driver records that its outcome is unknown.
            state, note, since, settled = BatchState.UNKNOWN, INTERRUPTED, row.armed, False
        missing = row.missing if state is BatchState.ENDED else None
        found.append(
            BatchStatus(
                batch_id=row.remote_id,
                state=state,
                requests=row.request_count,
                submitted=row.submitted,
                ended=row.ended,
                next_check=row.next_check,
                note=note,
                unknown_since=since,
                settled=settled,
                decided=decided,
                candidates=candidates.get(row.id, 0),
                missing=missing or 0,
                missing_since=None if missing is None else row.missing_since,
                missing_until=None if missing is None else row.missing_until,
            )
        )
    return tuple(found)


def _canceled_elsewhere(row: Any) -> str | None:
    """Describe a batch, given by its row, that somebody else canceled; None for any other."""
    if row.cancel_requested is None and (
        row.state == BatchState.CANCELING
        or (row.counts is not None and json.loads(row.counts).get("canceled"))
    ):
        return "canceled at the API, not by claude-batch"
    return None


def _state(
    run: Any, still_open: bool, halt: Halt | None, is_unknown: bool, held_up: bool, driven: bool
) -> RunState:
    if run.stored is None:
        return RunState.STORING
    if not still_open:
        return RunState.CANCELLED if run.cancelled is not None else RunState.FINISHED
    if run.cancelled is not None:
        return RunState.CANCELLING  # a halt does not affect it, because it sends nothing more
    if halt is not None:
        return RunState.HALTED
    if is_unknown:
        return RunState.UNKNOWN
    if held_up:
        return RunState.HELD
    return RunState.RUNNING if driven else RunState.PARKED


def _deadline(tx: Transaction, run: Any, counts: Mapping[RequestState, int]) -> Deadline | None:
    if run.deadline is None:
        return None
    margin, outcome = run.margin, run.deadline_outcome
    unfinished = sum(n for state, n in counts.items() if not state.is_final)
    if outcome is None and not unfinished:
        outcome = outcome_of(tx, run)  # no process has looked since it ended
    if margin is None:
        margin = margin_of(run, unfinished, run_deadlines.experience(tx, run.workspace_id))
    return Deadline(
        at=run.deadline,
        margin=margin,
        fallback=run.fallback,
        withdrawn=run.past_margin,
        outcome=outcome,
    )


def at_limit(states: Iterable[str], parallel_batches: int | None) -> bool:
    """Return whether as many batches are at the API as ``parallel_batches`` allows."""
    if parallel_batches is None:
        return False
    sent = [state for state in states if state in IN_FLIGHT and state != BatchState.SUBMITTING]
    return len(sent) >= parallel_batches


class _Waiting(msgspec.Struct, kw_only=True):
    """An unfinished run, and what it may wait for."""

    status: RunStatus
    """All but what it waits for."""
    run: Any
    workspace: Any
    limits: workspaces.Limits
    turning: str
    """What its conversations between two turns wait for; empty if there are none."""
    interrupted: int
    """Number of live calls whose process has ended; the next driver marks them as lost."""
    driven: bool
    is_here: bool
    """Whether its base URL is the one that is used here."""
    now: float

    def words(self) -> str:
        """Return everything that it waits for; what stops the whole run comes first."""
        found = (*self._stops(), *self._sending(), *self._at_api(), *self._live(), *self._others())
        return "; ".join(found) or "queued; it will be sent automatically"

    def since(self) -> float:
        """Return the time since which the run waits for its present cause."""
        if self.run.stored is None:
            return float(self.run.created)
        if self.status.state is RunState.HALTED:
            return float(self.workspace.halted)
        since = [
            batch.unknown_since if is_undecided(batch) else batch.submitted
            for batch in self.status.batches
            if batch.state in (*AT_API, BatchState.SUBMITTING) or is_undecided(batch)
        ]
        return min((each for each in since if each is not None), default=float(self.run.created))

    def _stops(self) -> Iterator[str]:
        if self.status.state is RunState.CANCELLING:
            yield (
                "the run was cancelled: what the API has of it ends soon, and the results so far "
                "are kept"
            )
        if self.status.state is RunState.HALTED:
            reason = self.workspace.halt_reason
            words = f"sending is halted ({reason}): {self.workspace.halt_message}"
            if reason != "ledger_behind":  # whose message names the command
                words += f"; fix the cause, then run `{workspaces.remedy_of(reason)}`"
            yield words
            yield self._probe_words()
        if self.status.held is not None:
            yield self.status.held.describe(self.run.id)

    def _sending(self) -> Iterator[str]:
        if unknown := list(filter(is_undecided, self.status.batches)):
            yield self._unknown_words(unknown)
        if self.interrupted:
            calls = count_of(self.interrupted, "live call")
            yield f"{calls} may have been billed when the process ended; see `claude-batch unknown`"
        if sent := sum(batch.state is BatchState.SUBMITTING for batch in self.status.batches):
            yield f"{count_of(sent, 'batch', 'batches')} being sent"
        left = (self.workspace.wait_until or 0) - self.now
        if left <= 0:
            return
        why = self.workspace.wait_reason
        if why == workspaces.PER_HOUR:
            # `resume` alone would pause too, because the limit is stored in the ledger.
            why += (
                " allows no more batches in this hour "
                f"(`claude-batch resume {self.run.id} --batches-per-hour 0` lifts the limit)"
            )
        yield f"sending pauses for {roughly(max(1, left))} more: {why}"

    def _at_api(self) -> Iterator[str]:
        at_api = [batch for batch in self.status.batches if batch.state in AT_API]
        if whole := [batch for batch in at_api if not batch.missing]:
            yield self._at_api_words(whole)
        if incomplete := [batch for batch in at_api if batch.missing]:
            yield self._missing_words(incomplete)
        most = self.run.parallel_batches
        if self._has(RequestState.QUEUED) and at_limit(
            [each.state for each in self.status.batches], most
        ):
            yield (
                "its queued requests wait until a batch has ended: parallel_batches allows "
                f"{count_of(most, 'batch', 'batches')} at once"
            )
        age = max((self.now - (batch.submitted or self.now) for batch in at_api), default=0) / 86400
        if age >= WARN_FROM_DAY:
            left = max(0, int(RESULTS_KEPT_DAYS - age))
            yield (
                f"the API keeps results for {RESULTS_KEPT_DAYS} days: "
                f"{count_of(left, 'day is', 'days are')} left to fetch them"
            )

    def _live(self) -> Iterator[str]:
        live = [each for each in self.status.batches if live_calls.groups_live_calls(each.state)]
        unknown = self.status.state is RunState.UNKNOWN
        sends = self.status.state is RunState.RUNNING or (unknown and self.driven)
        if not live or not self._has(RequestState.QUEUED) or not sends:
            return
        has_own = self.limits.requests_per_minute or self.limits.tokens_per_minute
        own = " and your own" if has_own else ""
        yield f"live calls are sent as fast as the API's limits{own} allow"
        if live[-1].note:
            yield unanswered_words(live[-1].note)

    def _others(self) -> Iterator[str]:
        if self.status.deadline is not None:
            yield self._deadline_words(self.status.deadline)
        if self.status.state is RunState.STORING:
            yield (
                "its requests are still being stored, and none is sent before all are stored; if "
                "the process ends before that, the run is removed"
            )
        if self._has(RequestState.HELD):
            count = count_of(self.status.counts[RequestState.HELD], "request is", "requests are")
            yield f"{count} held until other requests of the run have ended"
        if self.turning:
            yield self.turning
        if not self.driven and self.status.state in _PARKED:
            yield self._undriven_words()

    def _probe_words(self) -> str:
        workspace = self.workspace
        age = roughly(self.now - workspace.halted)
        if workspace.next_probe is None:
            return (
                f"halted for {age}, until you run `{workspaces.remedy_of(workspace.halt_reason)}`"
            )
        left = workspace.next_probe - self.now
        when = f"in {roughly(max(1, left))}" if left > 0 else "next"
        return f"halted for {age}; the driver tries one request {when}"

    def _unknown_words(self, unknown: list[BatchStatus]) -> str:
        count = sum(batch.requests for batch in unknown)
        since = min(batch.unknown_since or self.now for batch in unknown)
        age = roughly(max(1, self.now - since))
        candidates = sum(batch.candidates for batch in unknown)
        if is_doubted(unknown[0].note):
            what = ""
        elif any(not batch.settled for batch in unknown):
            what = "the API's list of batches is watched until `settling` has passed"
        elif candidates:
            batches = count_of(candidates, "batch", "batches")
            what = f"{batches} may be it; the results show it when they arrive"
        else:
            what = "the decision follows at once"
        return (
            f"it is unknown whether the API accepted {count_of(len(unknown), 'batch', 'batches')} "
            f"with {count_of(count, 'request')}, "
            f"for {age} ({unknown[0].note}){what and f': {what}'}; see `claude-batch unknown`"
        )

    def _at_api_words(self, at_api: list[BatchStatus]) -> str:
        age = roughly(self.now - min(batch.submitted or self.now for batch in at_api))
        count = count_of(len(at_api), "batch", "batches")
        words = f"{count} at the API for {age} (most end within an hour, all within 24 hours)"
        if (left := self._until_check(at_api)) is not None:
            words += f"; next check in {roughly(max(1, left))}"
        if notes := [batch.note for batch in at_api if batch.note]:
            words += f"; the last check: {notes[0]}"
        return words

    def _missing_words(self, incomplete: list[BatchStatus]) -> str:
        first = incomplete[0]
        if len(incomplete) == 1:
            words = f"{first.missing:,} of {first.requests:,} results of batch {first.batch_id}"
        else:
            count = sum(batch.missing for batch in incomplete)
            words = f"{count:,} results of {len(incomplete)} batches"
        since = min(batch.missing_since or self.now for batch in incomplete)
        until = max(batch.missing_until or self.now for batch in incomplete)
        words += (
            f" have been missing since {format_time(since)}; they are fetched again until "
            f"{format_time(until)} by the API's clock"
        )
        if (left := self._until_check(incomplete)) is not None:
            words += f", next in {roughly(max(1, left))}"
        return words

    def _until_check(self, batches: list[BatchStatus]) -> float | None:
        """Return the seconds until the next check of some batches; None if no check is planned."""
        checks = [batch.next_check for batch in batches if batch.next_check is not None]
        if not self.driven or not checks or min(checks) <= self.now:
            return None
        return min(checks) - self.now

    def _deadline_words(self, deadline: Deadline) -> str:
        if deadline.outcome is not None:
            return f"its deadline was {deadline.outcome}"
        words = f"its deadline is in {roughly(max(1, deadline.at - self.now))}"
        end = "is sent live" if deadline.fallback == "live" else "expires"
        what = f"every request that did not run {end}"
        if deadline.withdrawn is not None:
            return f"{words}: nothing more goes into batches, and {what}"
        left = roughly(max(1, deadline.at - deadline.margin - self.now))
        return f"{words}: unfinished batches are canceled in {left}, and {what}"

    def _undriven_words(self) -> str:
        if self.is_here:
            return "no process drives it; continue with `claude-batch resume`"
        there = self.workspace.base_url.rstrip("/")
        return (
            f"no process drives it, and it belongs to another base URL, {there}; continue with "
            f"`claude-batch resume {self.run.id} --base-url {shlex.quote(there)}`"
        )

    def _has(self, state: RequestState) -> bool:
        return bool(self.status.counts.get(state))


def address_here() -> str:
    """Return the base URL that a command or a provider uses if none is named."""
    named = from_environment("base_url") or os.environ.get("ANTHROPIC_BASE_URL")
    return named or DEFAULT_BASE_URL


def is_same_address(one: str, other: str) -> bool:
    """Return whether two base URLs are the same but for the way they are written."""
    return _parts_of(one) == _parts_of(other)


def _parts_of(url: str) -> object:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return url
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/"), parts.query


def _turning_words(ledger: Ledger, tx: Transaction, run: Any) -> str:
    continuing = conversations.continuing_counts(tx, run.id)
    words = f"{count_of(continuing.all, 'conversation')} between two turns"
    judges = conversations.judges_of(tx, [run.id]) if continuing.answers else []
    if any(ledger.is_alive(each.process) for each in judges):
        words += (
            f", {continuing.answers} of them waiting for the program that asked to judge the answer"
        )
    if not continuing.tools:
        return words
    words += f", {continuing.tools} of them waiting for their tools"
    calls = conversations.running_calls(tx, run.id)
    if running := {call.request_seq for call in calls if ledger.is_alive(call.process)}:
        # Some process has the functions, so the others only wait for their turn.
        return f"{words} ({len(running)} running now)"
    try:
        functions = [
            each.function or each.name
            for each in msgspec.json.decode(run.tools, type=list[_NamedTool])
        ]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return (
            f"{words}: the ledger's list of tools cannot be read; repeat the program or command "
            "that made the run"
        )
    words += f": the process that drives the run needs {', '.join(functions)}"
    if all(":" in each for each in functions):
        words += (
            "; repeat the program or command that made the run, or, if you trust everybody who "
            f"can write to this ledger, run `claude-batch resume {run.id} "
            "--allow-tools-from-ledger`"
        )
    return words


class _NamedTool(msgspec.Struct):
    name: str
    function: str | None


_NAMED = 3
"""How many of the runs that one prefix matches a message names."""


def find_run_id(ledger: Ledger, run_id: str) -> str:
    """Return the full id of a run from a prefix of it. Raises `RunNotFoundError`."""
    with ledger.read() as tx:
        return str(require_run(ledger, tx, run_id).id)


def require_run(ledger: Ledger, tx: Transaction, run_id: object) -> Any:
    """Return a run by its id or a unique prefix of it. Raises `RunNotFoundError`."""
    if not isinstance(run_id, str):
        raise RunNotFoundError(f"{run_id!r} is not the id of a run, which is a str")
    # The bytes of an argument may be no text.
    found = queries.runs_called(tx, encodable(run_id), limit=_NAMED + 1)
    if not found:
        lists = naming_ledger("`claude-batch status` lists what it has", ledger.location)
        raise RunNotFoundError(f"the ledger {ledger.location} has no run {run_id!r}; {lists}")
    if len(found) > 1:
        names = ", ".join(each.id for each in found[:_NAMED])
        more = ", …" if len(found) > _NAMED else ""
        raise RunNotFoundError(
            f"several runs begin with {run_id!r}: {names}{more}. Give more characters of the id"
        )
    return found[0]


Finished = dict[str, tuple[RunMark, RunStatus]]
"""Statuses of finished runs by id, with the marks for which they hold."""


NEWEST_RUNS: Final = 50
"""Runs that `newest_statuses` returns."""


def newest_statuses(
    ledger: Ledger, tx: Transaction, *, finished: Finished | None = None
) -> list[RunStatus]:
    """Return the statuses of the newest runs, newest first.

    A caller that asks again and again gives the same ``finished`` each time, so that the requests
    of a finished run are counted once.
    """
    rows = queries.recent_runs(tx, NEWEST_RUNS)
    marks = {} if finished is None else page_queries.run_marks(tx, [row.id for row in rows])
    known, driven = finished or {}, dict[int, bool]()
    found: list[RunStatus] = []
    for row in rows:
        mark, status = known.get(row.id, (None, None))
        if status is None or mark != marks[row.id]:
            if row.workspace_id not in driven:
                driven[row.workspace_id] = ledger.has_leader(row.workspace_id)
            status = status_in(ledger, tx, row.id, driven=driven[row.workspace_id])
        found.append(status)
    if finished is not None:
        finished.clear()
        finished.update(
            {each.run_id: (marks[each.run_id], each) for each in found if each.finished}
        )
    return found
