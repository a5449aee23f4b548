"""A simulated API and its client, in memory: what was accepted is on a bill that never lies.

The client has the interface of `claude_batch.wire.client.BatchesClient`. It reads a body to its
end before anything is accepted, so the held-back tail decides here as it does on the wire.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from claude_batch.wire.client import (
    ApiError,
    BatchPage,
    CreateAnswer,
    RemoteBatch,
    RequestCounts,
    Unreachable,
)
from claude_batch.wire.encoding import LaneHeaders
from claude_batch.wire.errors import STATUS_OF_TYPE, ApiFault

WORKSPACE = "wrkspc_histories"
RETRYABLE = ("overloaded_error", "api_error", "timeout_error", "rate_limit_error")


class PromiseBroken(AssertionError):
    """The invariant that all of this is about does not hold."""


def fault(status: int, message: str = "simulated", *, from_api: bool = True) -> ApiFault:
    """An error answer."""
    types = {code: name for name, code in STATUS_OF_TYPE.items()}
    return ApiFault(
        status=status,
        error_type=types.get(status, "api_error") if from_api else None,
        message=message,
        details=None,
        request_id="req_1" if from_api else None,
        retry_after=None,
    )


@dataclass(slots=True)
class Accepted:
    """A batch that the API has accepted."""

    id: str
    created: float
    custom_ids: list[str]
    listed_from: float
    blind_until: float
    ours: bool
    ended: float | None = None
    deleted: bool = False
    cancelled: bool = False
    gaps: int = 0
    """Fetches that ended like a whole stream, and were none."""
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    """By ``custom_id``: succeeded, canceled, expired, or the type of an error."""


@dataclass(slots=True)
class SimulatedApi:
    """The server: its clock, its batches, and what goes wrong next."""

    now: float = 1_800_000_000.0
    batches: dict[str, Accepted] = field(default_factory=dict[str, Accepted])
    seen: set[str] = field(default_factory=set[str])
    ordered: set[str] = field(default_factory=set[str])
    """Requests that the user has ordered to be sent again, whatever it costs."""
    creates: list[str] = field(default_factory=list[str])
    lists: list[str] = field(default_factory=list[str])
    fetches: list[str] = field(default_factory=list[str])
    retrieves: list[str] = field(default_factory=list[str])
    list_delay: float = 0.0
    blind: float = 0.0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def accept(self, custom_ids: list[str], *, ours: bool) -> Accepted:
        """Accept a batch; raises `PromiseBroken` where that pays for something twice."""
        if ours:
            for custom_id in custom_ids:
                if custom_id in self.seen:
                    raise PromiseBroken(f"{custom_id} was sent twice")
                self.seen.add(custom_id)
                self._check(custom_id)
        batch = Accepted(
            f"msgbatch_{next(self._numbers):04d}",
            self.now,
            custom_ids,
            self.now + self.list_delay,
            self.now + self.blind,
            ours,
        )
        self.batches[batch.id] = batch
        return batch

    def _check(self, custom_id: str) -> None:
        request = custom_id[:32]
        if request in self.ordered:
            return
        for batch in self.batches.values():
            for earlier in batch.custom_ids if batch.ours else ():
                if earlier[:32] != request:
                    continue
                if batch.ended is None:
                    raise PromiseBroken(f"{custom_id} was sent while {earlier} was running")
                if batch.outcomes[earlier] == "succeeded":
                    raise PromiseBroken(f"{custom_id} was sent after {earlier} had succeeded")

    def end(self, batch: Accepted, outcomes: list[str]) -> None:
        """End a batch: each request has the outcome of its place."""
        batch.ended = self.now
        for number, custom_id in enumerate(batch.custom_ids):
            outcome = outcomes[number % len(outcomes)]
            batch.outcomes[custom_id] = "canceled" if batch.cancelled else outcome

    def shown(self, batch: Accepted) -> RemoteBatch:
        """The batch as the API shows it now."""
        kinds = list(batch.outcomes.values())
        errored = [k for k in kinds if k not in ("succeeded", "canceled", "expired")]
        counts = RequestCounts(processing=len(batch.custom_ids))
        if batch.ended is not None:
            counts = RequestCounts(
                succeeded=kinds.count("succeeded"),
                errored=len(errored),
                canceled=kinds.count("canceled"),
                expired=kinds.count("expired"),
            )
        elif self.now < batch.blind_until:
            counts = RequestCounts()
        status = "canceling" if batch.cancelled else "in_progress"
        return RemoteBatch(
            id=batch.id,
            processing_status="ended" if batch.ended is not None else status,
            request_counts=counts,
            created_at=datetime.fromtimestamp(batch.created, UTC).isoformat(),
            ended_at=None
            if batch.ended is None
            else datetime.fromtimestamp(batch.ended, UTC).isoformat(),
        )

    def lines(self, batch: Accepted) -> list[bytes]:
        """The results of an ended batch."""
        return [_line(custom_id, outcome) for custom_id, outcome in batch.outcomes.items()]


def _line(custom_id: str, outcome: str) -> bytes:
    result: dict[str, Any] = {"type": outcome}
    if outcome == "succeeded":
        usage = {"input_tokens": 1, "output_tokens": 1}
        result["message"] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "simulated",
            "content": [{"type": "text", "text": custom_id}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
    elif outcome not in ("canceled", "expired"):
        error = {"type": outcome, "message": "simulated"}
        result = {"type": "errored", "error": {"type": "error", "error": error}}
    return json.dumps({"custom_id": custom_id, "result": result}).encode()


class SimulatedClient:
    """What a driver holds in its hand in place of a `BatchesClient`."""

    base_url = "http://simulated/"
    credential = "sk-simulated"
    has_credential = True

    def __init__(self, api: SimulatedApi) -> None:
        self._api = api
        self.workspace: str | None = WORKSPACE
        self.held: asyncio.Event | None = None
        """While it is set to an event, answers of creates wait for it."""
        self.holding = asyncio.Event()
        """Set once an answer waits."""

    def server_now(self) -> float:
        return self._api.now

    async def close(self) -> None: ...

    async def create(
        self, body: AsyncIterator[bytes], length: int, headers: LaneHeaders
    ) -> CreateAnswer:
        api = self._api
        what = api.creates.pop(0) if api.creates else "accept"
        if what == "not connected":
            return CreateAnswer(reason="refused", never_connected=True)
        received = bytearray()
        async for chunk in body:
            if what == "break" and received:
                return CreateAnswer(reason="the connection broke")
            received += chunk
            if what == "break" and not received.endswith(b"]}"):
                return CreateAnswer(reason="the connection broke")
        if len(received) != length:
            raise PromiseBroken(f"{len(received)} bytes in place of {length}")
        requests = json.loads(received)["requests"]
        custom_ids = [request["custom_id"] for request in requests]
        answer = self._answer(what, custom_ids)
        if self.held is not None:
            self.holding.set()
            await self.held.wait()
        return answer

    def _answer(self, what: str, custom_ids: list[str]) -> CreateAnswer:
        api = self._api
        if what.isdigit():
            return CreateAnswer(fault=fault(int(what)), server_time=api.now)
        if what == "400 named":
            named = fault(400, "requests.0: not valid")
            return CreateAnswer(fault=named, server_time=api.now)
        if what == "lose":
            return CreateAnswer(reason="the connection was lost")
        if what == "gateway":
            return CreateAnswer(fault=fault(502, from_api=False), server_time=api.now)
        batch = api.accept(custom_ids, ours=True)
        if what == "accept and lose":
            return CreateAnswer(reason="the connection was lost")
        if what == "accept and 500":
            return CreateAnswer(fault=fault(500), server_time=api.now)
        return CreateAnswer(batch=api.shown(batch), server_time=api.now)

    async def list_page(self, *, after_id: str | None = None, limit: int = 1000) -> BatchPage:
        api = self._api
        what = api.lists.pop(0) if api.lists else ""
        if what == "500":
            raise ApiError(fault(500))
        if what == "unreachable":
            raise Unreachable("simulated")
        visible = [
            batch
            for batch in reversed(api.batches.values())
            if not batch.deleted and batch.listed_from <= api.now
        ]
        # Pages of three, so that walks have several.
        start = 0
        if after_id is not None:
            start = next(n for n, batch in enumerate(visible) if batch.id == after_id) + 1
        page = visible[start : start + min(limit, 3)]
        return BatchPage(
            data=[api.shown(batch) for batch in page],
            has_more=start + len(page) < len(visible),
            last_id=page[-1].id if page else None,
        )

    def _found(self, batch_id: str) -> Accepted:
        batch = self._api.batches[batch_id]
        if batch.deleted:
            raise ApiError(fault(404))
        return batch

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        api = self._api
        if api.retrieves and api.retrieves.pop(0) == "404":
            raise ApiError(fault(404))
        return api.shown(self._found(batch_id))

    async def cancel(self, batch_id: str) -> RemoteBatch:
        batch = self._found(batch_id)
        if not batch.ours:
            raise PromiseBroken(f"{batch_id} is somebody else's, and was cancelled")
        if batch.ended is not None:
            raise ApiError(fault(400, "it has ended"))
        batch.cancelled = True
        return self._api.shown(batch)

    @asynccontextmanager
    async def results(self, batch_id: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        api = self._api
        what = api.fetches.pop(0) if api.fetches else ""
        batch = self._found(batch_id)
        if what == "404" or batch.ended is None:
            raise ApiError(fault(404))
        batch.gaps += what in ("missing", "garbage", "short")
        yield self._stream(api.lines(batch), what)

    async def _stream(self, lines: list[bytes], what: str) -> AsyncIterator[bytes]:
        if what == "shuffled":
            lines = lines[::-1]
        elif what == "doubled":
            lines = lines + lines
        elif what == "missing":
            lines = lines[1:]
        elif what == "garbage":
            lines = [b'{"custom_id": ', *lines[1:]]
        elif what == "contradicting":
            lines = [_line(json.loads(lines[0])["custom_id"], "expired"), *lines]
        for line in lines[: len(lines) // 2]:
            yield line + b"\n"
        if what == "broken":
            yield lines[len(lines) // 2][:20]
            raise Unreachable("the results stream broke")
        if what != "short":
            yield b"\n".join(lines[len(lines) // 2 :])
