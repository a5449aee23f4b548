"""The one decision about what follows the outcome of a request.

Batches, live calls, late result lines and conversations differ in how they learn an outcome. What
happens to the request then is decided by `next_step`, without I/O, and written by
`claude_batch.ledger.transitions`. docs/explanation/architecture.md prints it as a table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from claude_batch.core.states import RequestState


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


class Standing(msgspec.Struct, frozen=True):
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
        # The failure may hide a success that was billed. Every other final state can be sent again
        # by a retry, which takes it as not billed.
        return _LOST
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
