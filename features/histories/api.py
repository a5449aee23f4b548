"""The simulated API: what it accepted, what it tells of it, and everything that goes wrong there.

`SimulatedApi` is the one truth of a history; `SimulatedClient` stands where a driver has its
`claude_batch.wire.batches_client.BatchesClient`. A create counts only when the whole body was
received, so the tail that is held back matters here as it does on the wire.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from claude_batch.wire.batches_client import (
    ApiError,
    BatchesClient,
    BatchPage,
    Outage,
    RemoteBatch,
    RequestCounts,
    Unreachable,
)
from claude_batch.wire.encoding import LaneHeaders
from claude_batch.wire.error_table import ApiFault
from claude_batch.wire.pace import CallLog
from histories.clock import Clock
from histories.live_api import LivePlan, SimulatedLive

__all__ = [
    "OUTCOMES",
    "WORKSPACE",
    "Crash",
    "CreatePlan",
    "Remote",
    "SimulatedApi",
    "SimulatedClient",
]

WORKSPACE = "wrkspc_model"
MODEL = "claude-haiku-4-5"
COST = 5500
"""Nano-dollars of each answer: one token in and two out, in a batch."""
OUTCOMES = ("succeeded", "overloaded", "invalid", "credit", "expired", "canceled")
"""How a request may end; three of them are errors: a passing one, a final one, the account's."""

_COUNTED = {"overloaded": "errored", "invalid": "errored", "credit": "errored"}
_ERRORS = {
    "overloaded": ("overloaded_error", "Overloaded"),
    "invalid": ("invalid_request_error", "max_tokens: too many"),
    "credit": ("invalid_request_error", "Your credit balance is too low"),
}
_CUSTOM_ID = re.compile(rb'"custom_id":"([^"]*)"')


class Crash(BaseException):
    """The process dies here."""


@dataclass(slots=True)
class CreatePlan:
    """What becomes of the next create."""

    kind: str = "accept"
    """``accept``, ``lose``, ``html``, ``refuse``, ``drop``, ``connect`` or ``die``."""
    accepted: bool = True
    """Whether it is accepted, where the answer does not tell."""
    status: int = 500
    from_api: bool = True
    named: int | None = None
    account: bool = False
    early: bool = False
    """Answered before the body was read."""
    accept_after: float = 0.0
    list_after: float = 0.0
    silent: float = 0.0
    """Seconds in which all of its counts are 0."""
    pause: str | None = None
    """Where the call is held up until somebody wakes it: ``before``, ``tail``, ``after``."""


@dataclass(slots=True)
class Remote:
    """A batch at the API."""

    id: str
    created: float
    listed: float
    ids: list[str]
    ours: bool
    workspace: str
    silent_until: float = 0.0
    status: str = "in_progress"
    ended: float | None = None
    outcomes: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    archived: bool = False
    hidden_until: float = 0.0
    """Until then it answers 404 when asked for."""
    streams: deque[tuple[str, int]] = field(default_factory=deque)
    """What goes wrong with the next fetches of its results, and where."""
    lasting: tuple[str, int] | None = None
    """What goes wrong with every other fetch."""
    messages: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What a success of a request has instead of a plain answer's fields, by its `custom_id`."""
    omitted: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When fetches ended properly without a readable line of a request, by its `custom_id`."""

    def line(self, identifier: str, outcome: str | None = None) -> bytes:
        """The result line of one of its requests."""
        outcome = outcome or self.outcomes[identifier]
        result: dict[str, Any] = {"type": _COUNTED.get(outcome, outcome)}
        if outcome == "succeeded":
            usage = {"input_tokens": 1, "output_tokens": 2}
            plain = {"id": "msg", "model": MODEL, "content": [], "usage": usage}
            result["message"] = {**plain, **self.messages.get(identifier, {})}
        elif outcome in _ERRORS:
            kind, message = _ERRORS[outcome]
            result["error"] = {"type": "error", "error": {"type": kind, "message": message}}
        return json.dumps({"custom_id": identifier, "result": result}).encode() + b"\n"


class SimulatedApi:
    """The API of one history."""

    def __init__(self, clock: Clock, page: int) -> None:
        self.clock = clock
        self.page = page
        """Batches in a page of the list, at most."""
        self.remotes: list[Remote] = []
        self.plans: deque[CreatePlan] = deque()
        self.live_plans: deque[LivePlan] = deque()
        self.read_faults: deque[str] = deque()
        self.violations: list[str] = []
        self.uploaded: set[str] = set()
        """Every `custom_id` of which a byte has left."""
        self.params: dict[str, dict[str, Any]] = {}
        """What was asked under every `custom_id` of a body that came whole."""
        self.blamed: set[str] = set()
        """The `custom_id`s of uploads that were refused or broke: their requests may fail."""
        self.on_create: Callable[[list[str]], None] = lambda ids: None
        """Told of each body that came whole, before it is judged."""
        self.on_accept: Callable[[Remote], None] = lambda remote: None
        self.on_live: Callable[[bytes, LivePlan], None] = lambda params, plan: None
        """Told of each live call that reached the API."""
        self.on_cancel: Callable[[Remote], None] = lambda remote: None
        self.is_missed: Callable[[str], bool] = lambda remote_id: False
        """Whether the ledger has noted that a batch was not found at the last look."""
        self.leading: SimulatedClient | None = None
        """The client of the process that drives now."""
        self.on_pause: asyncio.Future[None] | None = None
        self.paused: dict[asyncio.Task[Any], list[asyncio.Future[None]]] = {}
        """The passes that are held up in calls, with what lets each call go on."""

    # The world -----------------------------------------------------------------------------

    def add(
        self, ids: list[str], plan: CreatePlan, *, ours: bool, workspace: str = WORKSPACE
    ) -> Remote:
        now = self.clock.server
        remote = Remote(
            id=f"msgbatch_{len(self.remotes):04d}",
            created=now + plan.accept_after,
            listed=now + plan.accept_after + plan.list_after,
            ids=ids,
            ours=ours,
            workspace=workspace,
            silent_until=now + plan.accept_after + plan.silent,
        )
        self.remotes.append(remote)
        if ours:
            self.on_accept(remote)
        return remote

    def exists(self, remote: Remote) -> bool:
        return not remote.deleted and remote.created <= self.clock.server

    def end(self, remote: Remote, outcomes: list[str]) -> None:
        """End a batch; ``outcomes`` are taken in turn."""
        canceling = remote.status == "canceling"
        for place, identifier in enumerate(remote.ids):
            outcome = outcomes[place % len(outcomes)]
            if outcome == "canceled" and not canceling:
                outcome = "succeeded"
            remote.outcomes[identifier] = outcome
        remote.status, remote.ended = "ended", self.clock.server

    async def pause(self) -> None:
        """Hold the call up until `wake`."""
        task = PASS.get()
        gates = self.paused.setdefault(task, [])
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gates.append(gate)
        if self.on_pause is not None and not self.on_pause.done():
            self.on_pause.set_result(None)
        try:
            await gate
        finally:
            gates.remove(gate)
            if not gates and self.paused.get(task) is gates:
                del self.paused[task]

    def wake(self) -> None:
        """Let go on what is held up."""
        for gates in self.paused.values():
            for gate in gates:
                gate.set_result(None)
        self.paused = {}

    # What it tells -------------------------------------------------------------------------

    def find(self, remote_id: str) -> Remote | None:
        for remote in self.remotes:
            if remote.id == remote_id:
                shown = self.exists(remote) and remote.hidden_until <= self.clock.server
                return remote if shown else None
        return None

    def show(self, remote: Remote) -> RemoteBatch:
        counts: Counter[str] = Counter()
        if remote.status == "ended":
            counts.update(_COUNTED.get(o, o) for o in remote.outcomes.values())
        elif remote.silent_until <= self.clock.server:
            counts["processing"] = len(remote.ids)
        return RemoteBatch(
            id=remote.id,
            processing_status=remote.status,
            request_counts=RequestCounts(**counts),
            created_at=_iso(remote.created),
            ended_at=None if remote.ended is None else _iso(remote.ended),
            archived_at=_iso(self.clock.server) if remote.archived else None,
        )

    def listing(self, workspace: str, after_id: str | None, limit: int) -> BatchPage:
        now = self.clock.server
        there = (remote for remote in self.remotes if remote.workspace == workspace)
        shown = [remote for remote in there if self.exists(remote) and remote.listed <= now]
        shown.sort(key=lambda remote: (remote.created, remote.id), reverse=True)
        if after_id is not None:
            place = next((n for n, r in enumerate(shown) if r.id == after_id), len(shown))
            shown = shown[place + 1 :]
        size = min(limit, self.page)
        page = [self.show(remote) for remote in shown[:size]]
        return BatchPage(page, len(shown) > size, page[-1].id if page else None)


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def fault(status: int, kind: str | None, message: str, *, after: float | None = None) -> ApiFault:
    return ApiFault(
        status=status,
        error_type=kind,
        message=message,
        details=None,
        request_id=None if kind is None else "req_model",
        retry_after=after,
        location="https://elsewhere.invalid/" if 300 <= status < 400 else None,
    )


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


PASS: ContextVar[asyncio.Task[Any]] = ContextVar("PASS")
"""The pass that makes a call, perhaps in another task: it fetches several results at once."""


class SimulatedClient(BatchesClient):
    """The client of one process: every call is one try, and time goes on a little with each."""

    def __init__(self, api: SimulatedApi, workspace: str = WORKSPACE) -> None:
        # Nothing of the real one is wanted but its type.
        self._api = api
        self.outage = Outage(self.base_url)
        self._key_of = workspace
        self.credential = f"a key of {workspace}"
        self.workspace: str | None = None
        self.clock_offset: float = 0.0
        self.steady_since: float = -math.inf

    base_url = "https://api.model.invalid/"  # type: ignore[assignment]
    credential = ""  # type: ignore[assignment]

    def server_now(self) -> float:
        return self._api.clock.time() + self.clock_offset

    async def close(self) -> None: ...

    def live(self, *, concurrency: int, log: CallLog | None = None) -> SimulatedLive:
        return SimulatedLive(self._api)

    def _answered(self) -> None:
        # The Date header has whole seconds.
        self.workspace = self._key_of
        self.clock_offset = float(int(self._api.clock.server)) - self._api.clock.time()

    async def _read_call(self, remote_id: str = "") -> None:
        self._api.clock.advance(0.02)
        kind = self._api.read_faults.popleft() if self._api.read_faults else None
        if kind == "404" and self._api.is_missed(remote_id):
            kind = None  # one that passes; two that are far enough apart would not
        if kind == "die":
            raise Crash("while a call was answered")
        if kind == "pause":
            await self._api.pause()
        elif kind == "unreachable":
            raise Unreachable("no answer")
        elif kind is not None:
            self._answered()
            status = int(kind)
            raise ApiError(fault(status, _TYPES[status], "refused"))
        self._answered()

    async def list_page(self, *, after_id: str | None = None, limit: int = 1000) -> BatchPage:
        await self._read_call()
        return self._api.listing(self._key_of, after_id, limit)

    def _known(self, remote_id: str) -> Remote:
        remote = self._api.find(remote_id)
        if remote is None or remote.workspace != self._key_of:
            raise ApiError(fault(404, "not_found_error", "no such batch"))
        return remote

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        await self._read_call(batch_id)
        return self._api.show(self._known(batch_id))

    async def cancel(self, batch_id: str) -> RemoteBatch:
        await self._read_call(batch_id)
        remote = self._known(batch_id)
        self._api.on_cancel(remote)
        if remote.status == "ended":
            raise ApiError(fault(400, "invalid_request_error", "it has ended"))
        remote.status = "canceling"
        return self._api.show(remote)

    @asynccontextmanager
    async def results(self, batch_id: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        await self._read_call(batch_id)
        remote = self._known(batch_id)
        if remote.status != "ended" or remote.archived:
            raise ApiError(fault(404, "not_found_error", "no results"))
        yield self._stream(remote)

    async def _stream(self, remote: Remote) -> AsyncIterator[bytes]:
        usual = remote.lasting or ("whole", 0)
        kind, place = remote.streams.popleft() if remote.streams else usual
        ids = list(remote.ids)
        at = place % len(ids)
        told: set[str] = set()
        for number, identifier in enumerate(ids[at:] + ids[:at]):
            line, here = remote.line(identifier), number == len(ids) // 2
            if kind in ("cut", "short") and here:
                if kind == "short":
                    break
                yield line[: len(line) // 2]
                raise Unreachable("the results stream broke")
            if kind == "foreign" and here:
                yield remote.line(identifier, "invalid").replace(identifier.encode(), b"theirs")
            if kind == "pause" and here:
                await self._api.pause()
            if kind == "missing" and here:
                continue
            if kind == "garbled" and here:
                yield b'{"custom_id": ' + line[:20] + b"\n"
                continue
            if (
                kind.startswith("contradict")
                and here
                and remote.outcomes[identifier] == "succeeded"
            ):
                yield remote.line(identifier, "overloaded")
                if kind == "contradict_alone":
                    continue
            if kind == "double":
                yield line
            yield line
            told.add(identifier)
        for identifier in set(ids) - told:
            remote.omitted[identifier].append(self._api.clock.server)

    # Creating ------------------------------------------------------------------------------

    async def create(
        self, body: AsyncIterator[bytes], length: int, headers: LaneHeaders
    ) -> RemoteBatch:
        api = self._api
        api.clock.advance(0.02)
        plan = api.plans.popleft() if api.plans else CreatePlan()
        if plan.kind == "connect":
            raise Unreachable("refused", never_connected=True)
        if plan.pause == "before":
            await api.pause()
        received = bytearray()
        async for chunk in body:
            received += chunk
            ids = [found.decode() for found in _CUSTOM_ID.findall(bytes(received))]
            if len(received) > length:
                if api.leading is self:
                    api.violations.append(f"a body is longer than the {length} bytes declared")
                raise Unreachable("too much data for the declared content-length")
            if plan.kind == "drop":
                api.blamed.update(ids)
                self._once(ids)
                raise Unreachable("the connection broke")
            if plan.kind == "refuse" and plan.early:
                self._once(ids)
                raise self._refuse(plan, ids)
            if plan.pause == "tail" and not received.endswith(b"]}"):
                await api.pause()
        if len(received) != length:
            api.violations.append(f"{len(received)} bytes came, {length} were declared")
        ids = self._judge(bytes(received))
        api.on_create(ids)
        answer = self._decide(plan, ids)
        if plan.pause == "after":
            await api.pause()
        if plan.kind == "die":
            raise Crash("while the answer was waited for")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _once(self, ids: list[str]) -> None:
        if again := self._api.uploaded.intersection(ids):
            self._api.violations.append(f"sent twice under the same custom_id: {again}")
        self._api.uploaded.update(ids)

    def _judge(self, body: bytes) -> list[str]:
        try:
            requests = json.loads(body)["requests"]
            ids = [str(request["custom_id"]) for request in requests]
            self._api.params.update(zip(ids, (r["params"] for r in requests), strict=True))
        except (ValueError, KeyError, TypeError) as error:
            self._api.violations.append(f"a body is not valid: {error}")
            return []
        if not ids or len(set(ids)) != len(ids):
            self._api.violations.append(f"a body holds nothing, or a request twice: {ids}")
        self._once(ids)
        return ids

    def _decide(self, plan: CreatePlan, ids: list[str]) -> RemoteBatch | ApiError | Unreachable:
        api = self._api
        if plan.kind == "refuse" and not self._may_hide(plan):
            return self._refuse(plan, ids)
        remote = None
        if plan.accepted or plan.kind == "accept":
            remote = api.add(ids, plan, ours=True, workspace=self._key_of)
        if plan.kind == "accept":
            assert remote is not None
            self._answered()
            return api.show(remote)
        if plan.kind == "refuse":
            return self._refuse(plan, ids)
        return Unreachable(plan.kind)

    @staticmethod
    def _may_hide(plan: CreatePlan) -> bool:
        """Whether an answer of this kind may stand for a create that was accepted."""
        if plan.early or plan.status == 413 or 300 <= plan.status < 400:
            return False
        return (plan.status >= 500 and plan.status != 529) or not plan.from_api

    def _refuse(self, plan: CreatePlan, ids: list[str]) -> ApiError:
        message = "refused"
        if plan.status in (400, 413):
            self._api.blamed.update(ids)
        if plan.status == 400 and plan.account:
            message = "Your credit balance is too low"
        elif plan.status == 400 and plan.named is not None:
            message = f"requests.{plan.named % max(1, len(ids))}.params: no"
        kind = _TYPES.get(plan.status) if plan.from_api else None
        after = 60.0 if plan.status == 429 else None
        self._answered()
        return ApiError(fault(plan.status, kind, message, after=after))
