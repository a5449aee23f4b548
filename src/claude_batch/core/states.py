"""The states of requests, batches and runs, and the one decision about what follows an outcome.

The comment of each state defines it. Batches, live calls, late result lines and conversations
differ in how they learn an outcome. What happens to the request then is decided by `next_step`,
without I/O, and written by `claude_batch.ledger.transitions`. docs/explanation/architecture.md
prints it as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

# States -------------------------------------------------------------------------------------------


class RequestState(StrEnum):
    """The state of a request."""

    QUEUED = "queued"  # stored, in no batch
    HELD = "held"  # waits for another request of its run, whose answer it may share
    PACKED = "packed"  # belongs to a batch that has no outcome for it yet
    CONTINUING = "continuing"  # answered, and its next turn is being prepared
    SUCCEEDED = "succeeded"  # the API answered with a message
    ERRORED = "errored"  # permanently rejected by the API or by a check before sending
    CANCELED = "canceled"  # withdrawn before sending, or canceled at the API
    EXPIRED = "expired"  # did not run within the batch's 24 hours, or before its run's deadline
    LOST = "lost"  # may have been billed, and has no answer
    REFUSED = "refused"  # the model declined to answer
    WINDOW_EXCEEDED = "window_exceeded"  # the answer filled the model's context window
    STOPPED = "stopped"  # was answered, but its conversation cannot continue to its end
    MALFORMED = "malformed"  # was answered and billed, in an undocumented format

    @property
    def is_final(self) -> bool:
        """True if no further step follows automatically."""
        return self not in OPEN


OPEN: Final = (
    RequestState.QUEUED,
    RequestState.HELD,
    RequestState.PACKED,
    RequestState.CONTINUING,
)
"""States of a request that has no outcome yet."""


class BatchState(StrEnum):
    """The state of a batch."""

    PACKED = "packed"  # its content is chosen; nothing was sent, or the API certainly refused it
    SUBMITTING = "submitting"  # the intent is on disk; a POST may be under way
    IN_PROGRESS = "in_progress"  # the API accepted it and assigned an id
    CANCELING = "canceling"  # the API was asked to cancel it
    ENDED = "ended"  # the API has finished with it; results can be read
    COLLECTED = "collected"  # every available result is in the ledger
    REJECTED = "rejected"  # dissolved: refused permanently by the API, its requests moved elsewhere
    UNKNOWN = "unknown"  # the POST may have been accepted; never sent again without proof
    LIVE = "live"  # not an API batch: groups a run's live calls; those under way are packed
    UNRESOLVED = "unresolved"  # it can no longer be learned whether the POST was accepted


UNDER_WAY: Final = (
    BatchState.PACKED,
    BatchState.SUBMITTING,
    BatchState.IN_PROGRESS,
    BatchState.CANCELING,
    BatchState.ENDED,
    BatchState.UNKNOWN,
)
"""States of a batch whose requests wait for their outcome."""


IN_FLIGHT: Final = (
    BatchState.SUBMITTING,
    BatchState.IN_PROGRESS,
    BatchState.CANCELING,
    BatchState.UNKNOWN,
)
"""States of a batch that the API may be processing."""


class CandidateState(StrEnum):
    """The state of an API batch that may be the result of a POST with an unknown outcome."""

    OPEN = "open"  # it may be ours; its results will decide
    FOREIGN = "foreign"  # proved to be another client's
    OURS = "ours"  # a custom_id in its results proved it, or it was adopted without proof
    GONE = "gone"  # deleted, archived or its results expired: it can no longer be judged


class Stop(StrEnum):
    """Why a conversation cannot continue."""

    MAX_TURNS = "max_turns"  # the last answer allowed asks for another turn
    TOOL_INTERRUPTED = "tool_interrupted"  # a tool may have run without recording its result
    INVALID_OUTPUT = "invalid_output"  # no answer matched the response format
    TOO_LARGE = "too_large"  # it exceeds what a batch can carry


class RunState(StrEnum):
    """The state of a run, as ``status`` shows it.

    If several states apply to an unfinished run, the first of these counts: ``storing``,
    ``cancelling``, ``halted``, ``unknown``, ``held``, then ``running`` or ``parked``.
    """

    STORING = "storing"  # its requests are being stored; none is packed
    RUNNING = "running"  # some request has no final state, and a process drives the ledger
    PARKED = "parked"  # some request has no final state, and no process drives the ledger
    HELD = "held"  # nothing of it is under way, because no request fits into a budget
    UNKNOWN = "unknown"  # it is unknown whether the API accepted one of its batches
    HALTED = "halted"  # sending stopped for a reason of the account
    CANCELLING = "cancelling"  # the user cancelled it, and some request has no final state yet
    FINISHED = "finished"  # every request has a final state
    CANCELLED = "cancelled"  # the user cancelled it, and every request has a final state


# What follows an outcome --------------------------------------------------------------------------


class Outcome(StrEnum):
    """How one sending of a request ended, as far as the ledger knows."""

    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    CANCELED = "canceled"
    EXPIRED = "expired"
    MISSING = "missing"  # no result came, although the batch has ended
    NOT_SENT = "not_sent"  # the request certainly did not reach the API


class Disposition(StrEnum):
    """What a result asks for. Stored beside each result in the ledger."""

    FINAL = "final"
    RETRY = "retry"  # a passing error
    ACCOUNT = "account"  # an error of the account: sending halts
    # Successes that need more than delivery:
    PAUSED = "paused"  # `pause_turn`
    TOOLS = "tools"  # `tool_use`
    REFUSED = "refused"  # `refusal`
    WINDOW_EXCEEDED = "window_exceeded"  # `model_context_window_exceeded`
    MALFORMED = "malformed"  # billed, but not in a format that the API documents
    UNDOCUMENTED = "undocumented"  # of an outcome that the API does not document: perhaps billed


def with_retry_on(disposition: Disposition, error_type: str, retry_on: str | None) -> Disposition:
    """Return what an error asks for if the user wants some types of errors retried.

    ``retry_on`` are these types, separated by commas.
    """
    if disposition is Disposition.FINAL and retry_on and error_type in retry_on.split(", "):
        return Disposition.RETRY
    return disposition


@dataclass(frozen=True, slots=True)
class Standing:
    """The facts about a request and its run that the decision depends on."""

    may_retry: bool = True
    """Neither the request nor its run was cancelled, and the result is not a late one."""
    attempts_left: bool = True
    """Another attempt is allowed after this one."""
    past_margin: bool = False
    """The deadline of the run is so near that nothing goes into another batch."""
    contradicted: bool = False
    """The API counts more successes than the results show, so this failure may be one of them."""
    may_be_paid: bool = True
    """A request without a result may have been processed and billed."""
    converses: bool = False
    """The run continues conversations by itself."""
    has_tools: bool = False
    """The run has Python functions for its tools."""
    checks_format: bool = False
    """The run asks again if an answer does not match its format."""


Reason: TypeAlias = Literal["passing", "account", "missing"]


class Next(NamedTuple):
    """What happens to the request."""

    state: RequestState
    counts: bool = True
    """Whether the sending uses up one of the request's attempts."""
    retried: Reason | None = None
    """Why the request is sent again; `None` if it is not."""


_LOST: Final = Next(RequestState.LOST)
RETRIED: Final = (Disposition.RETRY, Disposition.ACCOUNT)
"""Failures that do not concern the request itself, so that sending it again may succeed."""
_NOT_RUN: Final = (Outcome.CANCELED, Outcome.EXPIRED)


def next_step(outcome: Outcome, disposition: Disposition, standing: Standing) -> Next:
    """Return what follows an outcome of a request."""
    at = standing
    if outcome is Outcome.NOT_SENT:
        state = RequestState.QUEUED if at.may_retry else RequestState.CANCELED
        return Next(state, counts=False)
    if outcome is Outcome.SUCCEEDED:
        return Next(_after_success(disposition, at))
    can_repeat = at.may_retry and at.attempts_left
    if outcome is Outcome.MISSING:
        if can_repeat and not at.may_be_paid:
            return Next(RequestState.QUEUED, retried="missing")
        return _LOST
    if at.contradicted:
        # The failure may hide a success that was billed, so it is not sent again.
        return _LOST if disposition in RETRIED else Next(RequestState(outcome))
    if outcome in _NOT_RUN and at.past_margin and at.may_retry:
        return Next(RequestState.QUEUED, counts=False, retried="passing")
    if disposition is Disposition.ACCOUNT and at.may_retry:
        return Next(RequestState.QUEUED, counts=False, retried="account")
    if disposition is Disposition.RETRY and can_repeat:
        return Next(RequestState.QUEUED, retried="passing")
    return Next(RequestState(outcome))


def _after_success(asks: Disposition, at: Standing) -> RequestState:
    if asks in (Disposition.MALFORMED, Disposition.UNDOCUMENTED):
        return RequestState.MALFORMED
    if not at.converses:
        return RequestState.SUCCEEDED
    if asks in (Disposition.REFUSED, Disposition.WINDOW_EXCEEDED):
        return RequestState(asks)
    if (
        asks is Disposition.PAUSED
        or (asks is Disposition.TOOLS and at.has_tools)
        or (asks is Disposition.FINAL and at.checks_format)
    ):
        return RequestState.CONTINUING
    return RequestState.SUCCEEDED
