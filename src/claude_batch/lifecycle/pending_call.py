"""One single call: what its caller wants, before it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from claude_batch.ledger.single_calls import digest_of
from claude_batch.lifecycle.tool_runner import ConversationSettings
from claude_batch.lifecycle.waiters import CallFuture, Waiter
from claude_batch.wire.bounds import TokenBound, Unbounded
from claude_batch.wire.encoding import EncodedRequest, LaneHeaders

if TYPE_CHECKING:
    from claude_batch.core.batch_processing import BatchProcessingMode
    from claude_batch.lifecycle.api_sessions import ApiSession


class CallGroup(NamedTuple):
    """What the calls of one run share."""

    workspace_id: int
    actor: str
    mode: BatchProcessingMode
    conversation: ConversationSettings | None
    label: str | None
    alone: int
    """A number of the call's own if it is alone in its run; 0 otherwise."""


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants of one call, beside its request."""

    actor: str
    mode: BatchProcessingMode
    key: str | None = None
    conversation: ConversationSettings | None = None
    """Conversation settings, or None if the caller wants the API's unchanged answer."""
    keep: bool = False
    """Whether it is sent even if its caller leaves first."""
    acknowledges: bool = False
    """Whether its caller itself reports by `CallQueue.acknowledge` whether it has the answer."""
    context: bytes | None = None
    """What the caller gave beside the request, as JSON."""
    failure_ttl: float | None = None
    """How long ago an equal call may have failed whose failure it gets, in seconds; None if it
    takes part in no such exchange."""
    label: str | None = None
    """The label of its run."""
    alone: bool = False
    """Whether it has a run of its own, because its budget is for it alone."""
    tenant: str = ""
    """Name of the caller, if callers with other names must not share requests with it."""
    new: bool = False
    """Whether it is a request of its own, although an equal one may be waiting to be taken.

    Its retries join it, or get its failure, but take no answer that another caller has."""
    retries: int = 0
    """Which retry of a client's call it is; 0 for a first try."""
    orphan_only: bool = False
    """Whether it makes no request of its own: without an orphan, its future is left unanswered."""

    @property
    def joins_nothing(self) -> bool:
        """Whether it joins no earlier request, and gets no earlier failure."""
        return self.new and not self.retries

    @property
    def stays(self) -> bool:
        """Whether its request stays if the caller leaves before it is sent."""
        return self.keep or self.key is not None


class Call(msgspec.Struct, eq=False):
    """One call that is not stored yet."""

    session: ApiSession
    encoded: EncodedRequest
    options: CallOptions
    begun: float
    """Time of the call in seconds since the epoch; its timeout counts from here."""
    future: CallFuture
    trace: str | None = None
    """The caller's W3C ``traceparent``, if an observer carries one."""
    bound: TokenBound | Unbounded | None = None
    """The bound of its params for a budget, if it was computed before the call is stored."""
    countings: int = 0
    """Number of times that the work sent before its budget was counted."""

    @property
    def group(self) -> CallGroup:
        """What it shares with the other calls of its run."""
        options = self.options
        return CallGroup(
            self.session.workspace_id,
            options.actor,
            options.mode,
            options.conversation,
            options.label,
            id(self) if options.alone else 0,
        )

    def waiter(self, seq: int, run_id: str) -> Waiter:
        """Return the caller as a waiter for a request."""
        options = self.options
        return Waiter(
            self.future,
            seq,
            run_id,
            self.session,
            options.mode,
            options.stays,
        )


def identity_of(call: Call) -> bytes:
    """Return the content that identifies equal requests, however their documents are sent."""
    return call.encoded.params if call.encoded.identity is None else call.encoded.identity


def digest_of_call(call: Call) -> bytes:
    """Return the digest that equal calls share.

    A call whose caller continues the conversation itself never equals one that the driver
    continues.
    """
    body = identity_of(call)
    if call.options.conversation is None:
        body += b"\n" + call.options.tenant.encode()
    return digest_of(body)


def without_repeated(calls: list[Call]) -> list[Call]:
    """Leave out each call whose caller has left, if a later one in the list asks the same.

    A call that is stored would be taken over by the later one. These are not stored yet.
    """
    if not any(call.future.cancelled() for call in calls):
        return calls
    left: dict[tuple[CallGroup, LaneHeaders, bytes], Call] = {}
    kept: dict[int, Call] = {}
    for call in calls:
        if call.options.key is None:
            name = call.group, call.encoded.headers, digest_of_call(call)
            if (earlier := left.pop(name, None)) is not None:
                del kept[id(earlier)]
            if call.future.cancelled():
                left[name] = call
        kept[id(call)] = call
    return list(kept.values())
