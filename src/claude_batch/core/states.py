"""The states of requests, batches and runs; each value's comment says what is true in it."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["BatchState", "CandidateState", "RequestState", "RunState"]


class RequestState(StrEnum):
    """Where a request stands."""

    QUEUED = "queued"  # stored, in no batch
    HELD = "held"  # waits for another request of its run, whose answer it may share
    PACKED = "packed"  # belongs to a batch that has no outcome for it yet
    CONTINUING = "continuing"  # answered, and its next turn is being prepared
    SUCCEEDED = "succeeded"  # the API answered with a message
    ERRORED = "errored"  # the API (or a check before sending) refused it for good
    CANCELED = "canceled"  # withdrawn before sending, or canceled at the API
    EXPIRED = "expired"  # did not run within the batch's 24 hours, or before its run's deadline
    LOST = "lost"  # it may have been paid for, and has no answer
    REFUSED = "refused"  # the model declined to answer
    WINDOW_EXCEEDED = "window_exceeded"  # the answer ends where the model's context window does
    STOPPED = "stopped"  # it was answered, but its conversation cannot go on to its end
    MALFORMED = "malformed"  # it was answered and paid for, in no form that the API documents

    @property
    def is_final(self) -> bool:
        """True where nothing more will happen to the request by itself."""
        return self not in (
            RequestState.QUEUED,
            RequestState.HELD,
            RequestState.PACKED,
            RequestState.CONTINUING,
        )


class BatchState(StrEnum):
    """Where a batch stands."""

    PACKED = "packed"  # its content is chosen, nothing was sent, or the API said a definite no
    SUBMITTING = "submitting"  # the intent is on disk; a POST may be under way
    IN_PROGRESS = "in_progress"  # the API accepted it and gave it an id
    CANCELING = "canceling"  # the API was asked to cancel it
    ENDED = "ended"  # the API has finished with it; results can be read
    COLLECTED = "collected"  # every result that can be had is in the ledger
    REJECTED = "rejected"  # dissolved: the API refused it for good, its requests went elsewhere
    UNKNOWN = "unknown"  # the POST may have been accepted; never sent again unproven
    LIVE = "live"  # no batch: what holds a run's live calls together, those under way are packed
    UNRESOLVED = "unresolved"  # it can no longer be learned whether the POST was accepted


class CandidateState(StrEnum):
    """Where a batch at the API stands that may be what became of an unknown sending."""

    OPEN = "open"  # it may be ours: its results will tell
    FOREIGN = "foreign"  # proved to be somebody else's
    OURS = "ours"  # a custom_id in its results proved it, or it was adopted without proof
    GONE = "gone"  # deleted, archived or past its results: it can no longer be judged


class RunState(StrEnum):
    """Where a run stands, as ``status`` shows it.

    If several hold for an unfinished run, the first of these counts: ``storing``, ``cancelling``,
    ``halted``, ``unknown``, ``held``, then ``running`` or ``parked``.
    """

    STORING = "storing"  # its requests are being written; nothing of it is packed
    RUNNING = "running"  # some request has no final state, and a process drives the ledger
    PARKED = "parked"  # some request has no final state, and no process drives the ledger
    HELD = "held"  # nothing of it is under way, since no more fits into a budget
    UNKNOWN = "unknown"  # it is unknown whether the API took one of its batches
    HALTED = "halted"  # sending stopped for a reason of the account
    CANCELLING = "cancelling"  # the user cancelled it, and some request has no final state yet
    FINISHED = "finished"  # every request has a final state
    CANCELLED = "cancelled"  # the user cancelled it, and every request has a final state
