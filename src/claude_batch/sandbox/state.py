"""The batches of a sandbox and its clock: accepted batches, their ends, processed requests.

Nothing runs in the background. Due work is processed when a call needs the state, in the order in
which it fell due. So a test sees the same history however often it polls.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .api_errors import ApiError
from .endings import CANCELED, EXPIRED, Ending, Endings
from .sandbox_settings import SandboxSettings
from .validation import TOO_DEEP, VERSIONS, CallContext, Entry, check_create, check_params

OUTCOMES = ("succeeded", "errored", "canceled", "expired")
_SLICE = 250
"""Requests processed before other calls get their turn."""

_EXAMPLE = (
    b'{"requests":[{"custom_id":"my-custom-id-1","params":{"model":"claude-haiku-4-5",'
    b'"max_tokens":1024,"messages":[{"role":"user","content":"Hello, world"}]}}]}'
)
_EXAMPLE_CONTEXT = CallContext(batch=True, version=VERSIONS[-1], betas=frozenset())


LAST_TIME = 221_845_392_000.0
"""The year 9000, in seconds since 1970: expiry and archiving come later, and need a date too."""

IMPOSSIBLE_TIME = "the clock must stay between the years 1970 and 9000"


class Clock:
    """Server time: steady between changes of its offset, whatever the machine's clock does."""

    def __init__(self, offset: float) -> None:
        """Raises `ValueError` for an offset that leads out of the calendar."""
        self.offset = offset
        self._started = time.time() - time.monotonic()
        if not self.is_possible:
            raise ValueError(f"clock_offset: {IMPOSSIBLE_TIME}")

    @property
    def is_possible(self) -> bool:
        """Return whether each time that the sandbox computes has a date."""
        return 0 <= self.now() <= LAST_TIME

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._started + time.monotonic() + self.offset

    def timestamp(self) -> str:
        """Return the same as RFC 3339, as the API writes times."""
        return str(timestamp(self.now()))


def timestamp(at: float | None) -> str | None:
    """Return RFC 3339 with microseconds and `+00:00`, as the API writes times."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


@dataclass(slots=True, eq=False)
class Batch:
    """One accepted batch; its requests are kept after deletion, for billing."""

    id: str
    ordinal: int
    workspace: str
    context: CallContext
    entries: list[Entry]
    looked_at: bool
    """Whether requests may end by more than their validity (directives, plan, cache, responder)."""
    cites: bool
    """Whether any request may have citations."""
    names_json: bool
    """Whether any request may ask for an answer in JSON."""
    created_at: float
    natural_end: float
    expires_at: float
    due: float
    listed_at: float
    """Time from which the list shows it."""
    cancel_at: float | None = None
    ended_at: float | None = None
    deleted: bool = False
    processed: int = 0
    """Number of requests processed; the others were canceled or expired."""
    endings: dict[int, Ending] = field(default_factory=dict[int, Ending])
    """Endings other than plain success, by position."""
    counts: Counter[str] = field(default_factory=Counter[str])
    hashes: list[str] | None = None
    """SHA-256 of each request's params, once the billing has been read."""

    def ending(self, position: int) -> Ending | None:
        """Return the ending of the request at `position` of an ended batch; `None` for success."""
        if position >= self.processed:
            return EXPIRED if self.cancel_at is None else CANCELED
        return self.endings.get(position)

    def outcomes(self) -> Counter[str]:
        """Return the outcomes of the requests that were processed so far."""
        counts = Counter(ending.outcome for ending in self.endings.values())
        counts["succeeded"] += self.processed - len(self.endings)
        return counts


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """One live message that was processed."""

    message_id: str
    raw: bytes
    outcome: str
    error_type: str | None
    usage: dict[str, Any] | None
    processed_at: float


class Batches:
    """All batches, of all workspaces."""

    def __init__(self, settings: SandboxSettings, endings: Endings, clock: Clock) -> None:
        self.settings = settings
        self.endings = endings
        self.clock = clock
        self.live: list[LiveRecord] = []
        self._all: list[Batch] = []
        self._by_id: dict[str, Batch] = {}
        self._unfinished: dict[str, Batch] = {}
        self._due: list[tuple[float, int, Batch]] = []
        """A heap of future ends; the second number keeps batches from being compared."""
        self._ends = itertools.count()
        self._settling = asyncio.Lock()

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over every batch ever accepted, deleted ones too, oldest first."""
        return iter(self._all)

    def create(
        self,
        entries: list[Entry],
        body: bytes,
        workspace: str,
        context: CallContext,
        listed_after: float = 0.0,
    ) -> Batch:
        """Accept a batch; raises `ApiError` (429) if the queue is full."""
        queued = sum(
            len(batch.entries)
            for batch in self._unfinished.values()
            if batch.workspace == workspace
        )
        if queued + len(entries) > self.settings.queue_limit:
            raise ApiError(
                "rate_limit_error",
                f"This batch would exceed the limit of {self.settings.queue_limit} queued batch "
                f"requests: {queued} are queued.",
            )
        batch_id = f"msgbatch_{uuid.uuid4().hex[:24]}"
        batch = self._new(batch_id, entries, body, workspace, context)
        batch.listed_at += max(listed_after, self.settings.listed_after)
        self._all.append(batch)
        self._by_id[batch.id] = batch
        self._unfinished[batch.id] = batch
        self._ends_at(batch, batch.due)
        return batch

    def _new(
        self,
        batch_id: str,
        entries: list[Entry],
        body: bytes,
        workspace: str,
        context: CallContext,
    ) -> Batch:
        now = self.clock.now()
        natural_end = now + self.settings.latency
        expires_at = now + self.settings.expires_after
        return Batch(
            id=batch_id,
            ordinal=len(self._all),
            workspace=workspace,
            context=context,
            entries=entries,
            looked_at=self.endings.looks_at(body),
            cites=b'"citations"' in body,
            names_json=b"JSON" in body or b"json" in body,
            created_at=now,
            natural_end=natural_end,
            expires_at=expires_at,
            due=min(natural_end, expires_at),
            listed_at=now,
        )

    def _example(self, batch_id: str, workspace: str, *, ended: bool) -> Batch:
        """Return a batch for an id that does not exist; it is not stored."""
        entries = check_create(_EXAMPLE, max_requests=1)
        batch = self._new(batch_id, entries, _EXAMPLE, workspace, _EXAMPLE_CONTEXT)
        if ended:
            batch.ended_at, batch.processed = batch.created_at, 1
            batch.counts["succeeded"] = 1
        return batch

    def _ends_at(self, batch: Batch, due: float) -> None:
        batch.due = due
        heapq.heappush(self._due, (due, next(self._ends), batch))

    def find(self, batch_id: str, workspace: str, *, ended: bool = False) -> Batch:
        """Return the batch of this id in this workspace; raises `ApiError` (404).

        With the setting `any_id`, an unknown id returns an example; ``ended`` says in which state.
        """
        batch = self._by_id.get(batch_id)
        if batch is None or batch.deleted or batch.workspace != workspace:
            if self.settings.any_id:
                return self._example(batch_id, workspace, ended=ended)
            raise ApiError("not_found_error", f"Message Batch {batch_id} not found.")
        return batch

    def cancel(self, batch: Batch) -> None:
        """Start a cancellation; requests processed so far keep their outcome."""
        if batch.ended_at is not None:
            raise ApiError(
                "invalid_request_error",
                f"Message batch {batch.id} has already ended and cannot be canceled.",
            )
        if batch.cancel_at is None:
            now = self.clock.now()
            batch.cancel_at = now
            self._ends_at(batch, now + self.settings.cancel_latency)

    def delete(self, batch: Batch) -> None:
        """Delete a batch that has ended."""
        if batch.ended_at is None:
            raise ApiError(
                "invalid_request_error",
                "In progress batches cannot be deleted. Consider canceling the batch instead.",
            )
        batch.deleted = True

    def archived_at(self, batch: Batch) -> float | None:
        """Return when the results became unreadable, or None."""
        at = batch.created_at + self.settings.results_kept
        ended = batch.ended_at
        return max(at, ended) if ended is not None and at <= self.clock.now() else None

    def page(
        self, workspace: str, limit: int, after_id: str | None, before_id: str | None
    ) -> tuple[list[Batch], bool]:
        """Return the batches next to a cursor, newest first, and whether more follow them."""
        newest = [batch for batch in reversed(self._all) if batch.workspace == workspace]
        now = self.clock.now()
        start = self._position(newest, after_id, "after_id") + 1 if after_id else 0
        stop = self._position(newest, before_id, "before_id") if before_id else len(newest)
        between = newest[start:stop]
        shown = [each for each in between if not each.deleted and each.listed_at <= now]
        backward = before_id and not after_id
        return shown[-limit:] if backward else shown[:limit], len(shown) > limit

    def _position(self, batches: list[Batch], batch_id: str, name: str) -> int:
        for position, batch in enumerate(batches):
            if batch.id == batch_id:
                return position
        if self.settings.any_id:
            return -1 if name == "after_id" else len(batches)
        raise ApiError("invalid_request_error", f"{name}: no message batch {batch_id!r}")

    async def settle(self) -> None:
        """Process everything that is due by now; with live counts, also of batches in progress."""
        async with self._settling:
            while self._due and self._due[0][0] <= self.clock.now():
                due, _, batch = heapq.heappop(self._due)
                # A cancelled batch is in the heap twice; only the entry of its current due time
                # counts.
                if batch.ended_at is None and batch.due == due:
                    await self._end(batch)
            if self.settings.counts == "live":
                for batch in list(self._unfinished.values()):
                    await self._proceed(batch, self.clock.now())
                    batch.counts = batch.outcomes()

    async def _end(self, batch: Batch) -> None:
        """Process as many requests as the time allowed; counts and end become visible at once."""
        await self._proceed(batch, batch.due)
        counts = batch.outcomes()
        unfinished = len(batch.entries) - batch.processed
        counts["expired" if batch.cancel_at is None else "canceled"] += unfinished
        batch.counts = counts
        batch.ended_at = batch.due
        self._unfinished.pop(batch.id, None)  # an example was never stored

    async def _proceed(self, batch: Batch, now: float) -> None:
        """Process the requests whose time came before ``now`` and before a cancellation."""
        stopped = now if batch.cancel_at is None else batch.cancel_at
        wanted = share(len(batch.entries), batch.created_at, stopped, batch.natural_end)
        while batch.processed < wanted:
            start = batch.processed
            batch.processed = min(start + _SLICE, wanted)
            self._process(batch, start, batch.processed)
            await asyncio.sleep(0)

    def _process(self, batch: Batch, start: int, stop: int) -> None:
        context, endings = batch.context, batch.endings
        for position in range(start, stop):
            entry = batch.entries[position]
            try:
                if batch.looked_at or self.endings.plan.about_requests:
                    ending = self.endings.decide(
                        bytes(entry.params), entry.custom_id, context, batch.workspace, batch.due
                    )
                    if ending is not None:
                        endings[position] = ending
                else:
                    check_params(entry.params, context)
            except ApiError as error:
                endings[position] = Ending("errored", error=error)
            except RecursionError:
                # One request must not end the batch of all others.
                error = ApiError("invalid_request_error", TOO_DEEP)
                endings[position] = Ending("errored", error=error)

    def as_json(self, batch: Batch, base_url: str) -> dict[str, Any]:
        """Return the API's batch object; `base_url` is the URL at which the client called."""
        archived = self.archived_at(batch)
        left = 0 if batch.ended_at is not None else len(batch.entries) - batch.counts.total()
        counts = batch.counts
        young = self.clock.now() < batch.created_at + self.settings.counts_after
        if young and batch.ended_at is None:
            left, counts = 0, Counter[str]()
        results_url = f"{base_url}/v1/messages/batches/{batch.id}/results"
        status = "in_progress" if batch.cancel_at is None else "canceling"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status if batch.ended_at is None else "ended",
            "request_counts": {
                "processing": left,
                **{outcome: counts[outcome] for outcome in OUTCOMES},
            },
            "created_at": timestamp(batch.created_at),
            "expires_at": timestamp(batch.expires_at),
            "ended_at": timestamp(batch.ended_at),
            "cancel_initiated_at": timestamp(batch.cancel_at),
            "archived_at": timestamp(archived),
            "results_url": results_url if batch.ended_at is not None and archived is None else None,
        }


def share(total: int, began: float, stopped: float, natural_end: float) -> int:
    """Return how many of `total` requests were processed by `stopped`, at an even pace."""
    if stopped >= natural_end:
        return total
    return int(total * max(stopped - began, 0.0) / (natural_end - began))
