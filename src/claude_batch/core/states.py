"""The states of requests, batches and runs.

The comment of each state defines it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


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


FAILED: Final = (RequestState.ERRORED, RequestState.EXPIRED, RequestState.CANCELED)
"""States that may be retried, because the API guarantees that nothing was billed."""


UNSUCCESSFUL: Final = tuple(
    state for state in RequestState if state not in (*OPEN, RequestState.SUCCEEDED)
)
"""Final states of a request that did not succeed. Some of them were answered, and billed."""


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


OPEN_AT_API: Final = (BatchState.IN_PROGRESS, BatchState.CANCELING)
"""States of a batch that the API has accepted and not ended."""


AT_API: Final = (*OPEN_AT_API, BatchState.ENDED)
"""States of a batch that the API has accepted and whose results are not collected."""


IN_FLIGHT: Final = (BatchState.SUBMITTING, *OPEN_AT_API, BatchState.UNKNOWN)
"""States of a batch that the API may be processing."""


UNDER_WAY: Final = (BatchState.PACKED, BatchState.SUBMITTING, *AT_API, BatchState.UNKNOWN)
"""States of a batch whose requests wait for their outcome."""


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
    TURNS_FORGOTTEN = "turns_forgotten"  # the ledger was restored, and lacks earlier turns


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
