"""Events: what happens between request and answer, reported to observers.

A closed set of frozen records. Most events are about a batch or a run of any size, so that a
million requests make a few dozen events. Events about single requests, and measurements, are
created only for an observer that requests them (`Observer.wants`).

Events are notifications; the ledger is the source of truth. An event is sent after the transaction
that it reports, at most once, by the process that made the transaction. If that process dies in
between, the event is lost.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from claude_batch.core.errors import BudgetScope
from claude_batch.core.states import RunState

__all__ = [
    "AnsweredRequest",
    "BatchCanceled",
    "BatchEnded",
    "BatchSubmitted",
    "BatchUnknown",
    "CallsAnswered",
    "Event",
    "Observer",
    "ObserverLike",
    "QueueMeasured",
    "RequestsAnswered",
    "RequestsQueued",
    "RequestsRetried",
    "ResultsCollected",
    "RunCancelled",
    "RunFinished",
    "RunHeld",
    "SendingHalted",
    "SendingResumed",
    "UnknownDecided",
    "UnknownOutcome",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of all events. Times are seconds since the epoch (UTC)."""

    ledger: str
    """The ledger's path or URL."""
    workspace: str | None = None
    """The API's id of the workspace; None until the API has sent it."""
    at: float = field(default_factory=time.time)
    """When the event was created."""

    on_request: ClassVar[bool] = False
    """True for events that are created only for an observer whose ``wants`` requests them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields unchanged, with the name of the event first."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"event": type(self).__name__, **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsQueued(Event):
    """Requests of a run are stored, and wait to be sent."""

    run_id: str
    actor: str
    requests: int
    kind: Literal["run", "calls"]
    """``calls``: single calls of this process, which share a separate run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfBatch(Event):
    batch: int
    """The ledger's own number of the batch, because the API's id is unknown until acceptance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSubmitted(_OfBatch):
    """The API has accepted a batch."""

    batch_id: str
    requests: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUnknown(_OfBatch):
    """It is unknown whether the API accepted a batch.

    The batch is searched for, and not sent again before its outcome is decided.
    """

    requests: int
    reason: str


UnknownOutcome = Literal["found", "assumed", "not_accepted", "unresolved", "resubmitted"]
"""``found`` by a custom_id in its results. ``assumed``, because no other client creates batches
there. ``not_accepted``: sent again. ``unresolved``: the outcome can no longer be learned.
``resubmitted``: certainty took too long, so it may be billed twice (``on_unknown: resubmit``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDecided(_OfBatch):
    """The outcome of an unknown batch was decided."""

    requests: int
    outcome: UnknownOutcome
    batch_id: str | None = None
    """The API's id, if the batch was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCanceled(_OfBatch):
    """A batch was canceled at the API, in the Console or by another program, and not by this one.

    Requests that have run keep their answers; the others end as canceled, and are not billed.
    """

    batch_id: str
    requests: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded(_OfBatch):
    """The API has finished with a batch; its results are fetched next."""

    batch_id: str
    requests: int
    counts: Mapping[str, int]
    """The API's own counts: ``succeeded``, ``errored``, ``canceled``, ``expired``,
    ``processing``. Empty if a gateway omits them.
    """
    submitted: float | None
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCollected(_OfBatch):
    """All available results of a batch are in the ledger, and its requests are judged."""

    batch_id: str
    requests: int
    run_ids: tuple[str, ...]
    outcomes: Mapping[str, int]
    """Results by outcome, all included: ``succeeded``, ``errored``, ``expired``, ``canceled``."""
    errors: Mapping[str, int]
    """Results without success, by the API's error type, else by their outcome."""
    final: int
    """Number of requests with a result that are final now."""
    missing: int
    """Number of requests without any result."""
    models: Mapping[str, int]
    """Number of answers by the model that produced them."""
    input_tokens: int
    """Tokens at the full input price, without cached ones. The next fields count other
    categories.
    """
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int
    """Nano-dollars (10⁻⁹ USD) of the answers whose price is known."""
    unpriced: int
    """Number of answers that no sum includes, because the price of their model is unknown."""
    submitted: float | None
    ended: float | None
    traces: tuple[str, ...] = ()
    """The W3C ``traceparent`` values of the callers, if an observer carried any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsAnswered(Event):
    """Live calls have ended, a few at a time, and their outcomes are in the ledger.

    Created only for an observer whose ``wants`` requests it.
    """

    requests: int
    run_ids: tuple[str, ...]
    outcomes: Mapping[str, int]
    """As in `ResultsCollected`, like the fields below; ``lost`` counts calls without an answer."""
    errors: Mapping[str, int]
    models: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int
    unpriced: int

    on_request: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsRetried(Event):
    """Requests wait to be sent again."""

    requests: int
    reason: Literal["passing", "account", "missing", "order"]
    """A transient (``passing``) failure; a problem of the ``account``, which does not count as an
    attempt; a result that is ``missing`` and was not billed; the user's ``order``.
    """
    run_id: str | None = None
    """The run, if all requests belong to one."""
    batch_id: str | None = None
    """The batch that the requests come from, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingHalted(Event):
    """Sending stopped for a reason of the account; no request is marked as failed for it."""

    reason: str
    error_type: str | None
    detail: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingResumed(Event):
    """A halt is over."""

    reason: str
    """The reason of the halt."""
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeld(Event):
    """Nothing of a run is under way, and its waiting requests do not fit into a budget.

    Sent once for each budget that holds the run, and again if a changed budget still holds it.
    """

    run_id: str
    scope: BudgetScope
    """The budget's scope: the ``run``, its ``actor``, or the ``day``."""
    requests: int
    """Number of waiting requests."""
    reason: str
    """In words: the budget that holds them, and a change that would release them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled(Event):
    """A run was cancelled; requests that the API already has may still be answered."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """Every request of a run has its final state."""

    run_id: str
    state: RunState
    """``finished``, or ``cancelled``."""
    actor: str
    requests: int
    counts: Mapping[str, int]
    """Number of requests by state; empty states are left out."""
    asked: float
    """When the run was created."""


class AnsweredRequest(NamedTuple):
    """One attempt of a request, in `RequestsAnswered`."""

    run_id: str
    key: str | None
    position: int
    attempt: int
    outcome: str
    error_type: str | None
    request_model: str | None
    """The requested model, if it is easy to determine."""
    model: str | None
    """The model that answered."""
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int | None
    """Nano-dollars; None without an answer or a price."""
    asked: float
    """When the request was stored."""
    trace: str | None
    """The caller's W3C ``traceparent``, if an observer carried one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsAnswered(_OfBatch):
    """Some results of a collected batch, one by one; follows its `ResultsCollected`.

    Also results of live calls, with `CallsAnswered`. Created only for an observer whose ``wants``
    requests it.
    """

    batch_id: str | None
    """The API's id of the batch; None for live calls."""
    actor: str
    answers: tuple[AnsweredRequest, ...]
    submitted: float | None
    ended: float | None

    on_request: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMeasured(Event):
    """Queue length of a workspace, sent by its driver every few seconds while it drives.

    Created only for an observer whose ``wants`` requests it.
    """

    queued: int
    """Number of requests that are not in a batch at the API yet."""
    at_api: int
    """Number of requests in batches that the API has, or may have."""
    batches: int
    """Number of batches that the API has, or may have."""
    oldest_batch: float
    """Age of the oldest of these batches in seconds; 0 if there is none."""

    on_request: ClassVar[bool] = True


class Observer(Protocol):
    """Interface of an observer. A callable that takes an `Event` works as well.

    Two more methods are optional. ``wants(kind) -> bool`` gets a class of events. Without it, an
    observer receives every event except those created on request. ``carry() -> str | None`` is
    called when a call or a run begins, in its caller's context. The ``traceparent`` that it returns
    is stored with the requests and is part of their events.

    Both are plain methods that must return at once. ``on_event`` may take its time, and may be an
    ``async def``.
    """

    def on_event(self, event: Event, /) -> Awaitable[None] | None:
        """Handle one event. Called on the observer's own thread, one event after the other.

        A returned awaitable is awaited there, on an event loop that only this observer uses.
        """
        ...


ObserverLike: TypeAlias = Observer | Callable[[Event], object]
