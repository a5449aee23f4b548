"""Events: what happens between asking and answering, told to whoever observes.

A closed set of frozen records. Most are of a batch or a run, however many requests it has, so that
a million requests make a few dozen events. Those that are of single requests, or that must be
measured, are made only for an observer that says it wants them (`Observer.wants`).

Events are news, not the truth: that is the ledger's. Each is told after the transaction that it
tells of, at most once, by the process that made it; a process that dies in between tells nothing.
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
    """Something that has happened. Times are seconds since the epoch (UTC)."""

    ledger: str
    """The ledger's path or URL."""
    workspace: str | None = None
    """The API's id of the workspace, as far as the API has told it."""
    at: float = field(default_factory=time.time)
    """When it was told."""

    on_request: ClassVar[bool] = False
    """True for what is made only for an observer whose ``wants`` asks for it."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as they are, with the name of the event first."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"event": type(self).__name__, **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsQueued(Event):
    """Requests of a run are stored, and wait to be sent."""

    run_id: str
    actor: str
    requests: int
    kind: Literal["run", "calls"]
    """``calls``: single calls of this process, which are kept together in a run of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfBatch(Event):
    batch: int
    """The ledger's own number of the batch: the API's id is not known before it has accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSubmitted(_OfBatch):
    """The API has accepted a batch."""

    batch_id: str
    requests: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUnknown(_OfBatch):
    """It is unknown whether the API took a batch; it is looked for, and not sent again before."""

    requests: int
    reason: str


UnknownOutcome = Literal["found", "assumed", "not_accepted", "unresolved", "resubmitted"]
"""``found`` by a custom_id in its results; ``assumed``, since nobody else makes batches there;
``not_accepted``: sent again; ``unresolved``: it cannot be learned any more; ``resubmitted``: it
took too long, and may be paid for twice (``on_unknown: resubmit``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDecided(_OfBatch):
    """What became of an unknown batch."""

    requests: int
    outcome: UnknownOutcome
    batch_id: str | None = None
    """The API's id, where it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded(_OfBatch):
    """The API has finished with a batch; its results are fetched next."""

    batch_id: str
    requests: int
    counts: Mapping[str, int]
    """The API's own: ``succeeded``, ``errored``, ``canceled``, ``expired``, ``processing``."""
    submitted: float | None
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCollected(_OfBatch):
    """Everything that can be had of a batch is in the ledger, and its requests are judged."""

    batch_id: str
    requests: int
    run_ids: tuple[str, ...]
    outcomes: Mapping[str, int]
    """Results by outcome: ``succeeded``, ``errored``, ``expired``, ``canceled``; none left out."""
    errors: Mapping[str, int]
    """Those that are no success, by the API's type of error, else by their outcome."""
    final: int
    """Requests that have their final state now, of those with a result."""
    missing: int
    """Requests without any result."""
    models: Mapping[str, int]
    """Answers by the model that gave them."""
    input_tokens: int
    """Read at the full input price, cached ones not counted; likewise the next, by category."""
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int
    """Nano-dollars (10⁻⁹ USD) of the answers whose price is known."""
    unpriced: int
    """Answers that are in no sum, since the price of their model is not known."""
    submitted: float | None
    ended: float | None
    traces: tuple[str, ...] = ()
    """The W3C ``traceparent`` of those who asked, as far as an observer carried one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsAnswered(Event):
    """Live calls have come to an end, a few at a time, and what came of them is in the ledger.

    Only for an observer whose ``wants`` asks for it.
    """

    requests: int
    run_ids: tuple[str, ...]
    outcomes: Mapping[str, int]
    """As in `ResultsCollected`, likewise what follows; ``lost`` is what has no answer."""
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
    """Requests wait to be sent once more."""

    requests: int
    reason: Literal["passing", "account", "missing", "order"]
    """A ``passing`` failure; a fault of the ``account``, which counts for no attempt; a result that
    is ``missing`` and was not paid for; the user's ``order``."""
    run_id: str | None = None
    """The run, where all are of one."""
    batch_id: str | None = None
    """The batch that they come from, where they come from one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingHalted(Event):
    """Nothing is sent for a reason of the account; nothing is marked failed for it."""

    reason: str
    error_type: str | None
    detail: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingResumed(Event):
    """A halt is over."""

    reason: str
    """Why it was halted."""
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeld(Event):
    """Nothing of a run is under way, and what waits does not fit into a budget.

    Told once for each budget that holds it, and anew where that one was changed and holds it again.
    """

    run_id: str
    scope: BudgetScope
    """Whose budget it is: the ``run``'s, its ``actor``'s, or that of the ``day``."""
    requests: int
    """How many wait."""
    reason: str
    """What holds them and what would change it, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled(Event):
    """A run was cancelled; what the API already has may still be answered."""

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
    """Requests by state; states without any are left out."""
    asked: float
    """When the run was begun."""


class AnsweredRequest(NamedTuple):
    """One attempt of a request, in `RequestsAnswered`."""

    run_id: str
    key: str | None
    position: int
    attempt: int
    outcome: str
    error_type: str | None
    request_model: str | None
    """The model that was asked, where it is easily told."""
    model: str | None
    """The model that answered."""
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int | None
    """Nano-dollars; None where there is no answer, or no price."""
    asked: float
    """When it was stored."""
    trace: str | None
    """The W3C ``traceparent`` of who asked, where an observer carried one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsAnswered(_OfBatch):
    """Some results of a collected batch, one by one; follows its `ResultsCollected`.

    Likewise those of live calls, with `CallsAnswered`. Only for an observer whose ``wants`` asks
    for it.
    """

    batch_id: str | None
    """The API's id of the batch; None for live calls, which are of none."""
    actor: str
    answers: tuple[AnsweredRequest, ...]
    submitted: float | None
    ended: float | None

    on_request: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMeasured(Event):
    """How much waits in a workspace; told by who drives it, every few seconds while it drives.

    Only for an observer whose ``wants`` asks for it.
    """

    queued: int
    """Requests that no batch at the API holds yet."""
    at_api: int
    """Requests in batches that the API has, or may have."""
    batches: int
    """Batches that the API has, or may have."""
    oldest_batch: float
    """Age of the oldest of them in seconds; 0 where there is none."""

    on_request: ClassVar[bool] = True


class Observer(Protocol):
    """What observes. A callable that takes an `Event` serves as well.

    Two methods are looked for besides. ``wants(kind) -> bool``, where ``kind`` is a class of
    events: without it an observer gets every event that is not made on request. ``carry() -> str |
    None`` is called where a call or a run begins, in its caller's own context: the ``traceparent``
    that it returns is kept with the requests and comes back in their events. Both are plain
    methods that return at once; ``on_event`` may take its time, and may be an ``async def``.
    """

    def on_event(self, event: Event, /) -> Awaitable[None] | None:
        """Called on a thread of the observer's own, one event after the other.

        What it returns is awaited there, on an event loop that only this observer has.
        """
        ...


ObserverLike: TypeAlias = Observer | Callable[[Event], object]
