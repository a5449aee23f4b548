"""The log as an observer: one line for each event, with the event's fields in the record."""

from __future__ import annotations

import logging

from claude_batch.core import events
from claude_batch.core.events import Event
from claude_batch.core.plurals import count_of

LOGGER = "claude_batch.events"
"""Name of the logger for events."""

_LEVELS: dict[type[Event], int] = {
    events.BatchUnknown: logging.WARNING,
    events.UnknownDecided: logging.ERROR,
    events.SendingHalted: logging.ERROR,
    events.RunHeld: logging.WARNING,
}
"""Highest log level of an event by its class; all others are logged at INFO."""

_DECIDED = {
    "assumed": logging.WARNING,
    "resubmitted": logging.WARNING,
    "unresolved": logging.ERROR,
}


class Logbook:
    """An observer that writes each event to the logger ``claude_batch.events``.

    A record's message is for people. Its attributes are the event's name (``event``) and fields,
    for structured formatters.
    """

    def __init__(self) -> None:
        self._log = logging.getLogger(LOGGER)

    def __repr__(self) -> str:
        return "the log"

    def wants(self, kind: type[Event]) -> bool:
        """Return whether the logger's level lets events of a class through."""
        return not kind.on_request and self._log.isEnabledFor(_LEVELS.get(kind, logging.INFO))

    def on_event(self, event: Event) -> None:
        """Write one line."""
        level = _LEVELS.get(type(event), logging.INFO)
        if isinstance(event, events.UnknownDecided):
            level = _DECIDED.get(event.outcome, logging.INFO)
        self._log.log(level, "%s", words_of(event), extra=event.to_dict())


def words_of(event: Event) -> str:
    """Return an event as text for people."""
    match event:
        case events.RequestsQueued():
            return f"{event.run_id}: {_requests(event.requests)} queued ({event.actor})"
        case events.BatchSubmitted():
            return f"batch {event.batch_id}: {_requests(event.requests)} submitted"
        case events.BatchUnknown():
            return (
                f"{_requests(event.requests)}: it is unknown whether the API accepted the batch "
                f"({event.reason}); it is looked for in the API's list of batches before anything "
                "is sent again"
            )
        case events.UnknownDecided():
            return _decided(event)
        case events.BatchEnded():
            counts = ", ".join(f"{count} {state}" for state, count in event.counts.items() if count)
            return f"batch {event.batch_id} has ended: {counts}"
        case events.ResultsCollected():
            return (
                f"batch {event.batch_id}: {event.final} final, "
                f"{event.requests - event.final - event.missing} queued again, "
                f"{event.missing} missing; cost {event.cost / 1e9:f} USD"
            )
        case events.RequestsRetried():
            of = event.run_id or f"batch {event.batch_id}"
            return f"{of}: retrying {_requests(event.requests)} ({event.reason})"
        case events.SendingHalted():
            return f"sending halted ({event.reason}): {event.detail}"
        case events.SendingResumed():
            return f"sending continues (it was halted: {event.reason})"
        case events.RunHeld():
            return f"{event.run_id} is held. {event.reason}"
        case events.RunCancelled():
            return f"{event.run_id} was cancelled"
        case events.RunFinished():
            counts = ", ".join(f"{count} {state}" for state, count in event.counts.items())
            return f"{event.run_id} {event.state}: {counts} of {event.requests}"
        case _:
            return type(event).__name__


def _requests(count: int) -> str:
    return count_of(count, "request")


def _decided(event: events.UnknownDecided) -> str:
    match event.outcome:
        case "found":
            return f"batch {event.batch_id} is the result of a sending with an unknown outcome"
        case "assumed":
            return (
                f"batch {event.batch_id} is adopted as the unknown sending of "
                f"{_requests(event.requests)}, because no other client creates batches in this "
                "workspace"
            )
        case "not_accepted":
            return f"{_requests(event.requests)}: not accepted by the API, sent again"
        case "unresolved":
            return (
                f"{_requests(event.requests)}: it can no longer be learned whether the API "
                "accepted the batch. To send it again: claude-batch unknown RUN --resubmit"
            )
        case _:  # resubmitted
            return (
                f"{_requests(event.requests)}: sent again although it is unknown whether the API "
                "accepted the batch; may be paid for twice (on_unknown: resubmit)"
            )
