"""What a sandbox holds: accepted batches and how their requests end, uploaded files, and the clock.

Nothing runs in the background. Due work is processed when a call needs the state, in the order in
which it fell due. So a test sees the same history however often it polls.

A request ends by validation, by a directive anywhere in its params (docs/how-to/sandbox.md), or by
the fault plan. Directives about turns are in `.answers`. An ending is stored only if it is not the
ordinary success, so a large batch of ordinary requests needs little memory.

A file belongs to a workspace. Its content is kept after deletion, for batches that were processed
before. Before API version 2026-10-21, the endpoints and `file` sources need a beta.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from .answers import Answer, answer, is_turn_directive, refusal, respond, turn
from .api_errors import ApiError, as_api_error, decoded, error_named
from .content_blocks import IMAGES, blocks_of, inner_blocks
from .fault_plan import PLANNED_OUTCOMES, FaultPlan
from .sandbox_settings import Responder, SandboxSettings
from .token_usage import CACHE_MARK, NO_CACHE, CacheUse, PromptCache, Usage, params_sha256
from .validation import (
    FILES_VERSION,
    VERSIONS,
    CallContext,
    Entry,
    Request,
    check_create,
    check_params,
)

# Files --------------------------------------------------------------------------------------------

FILES_BETA = "files-api-2025-04-14"
FILE_MARK = b'"file_id"'
_EXAMPLE_FILE = ("example.txt", "text/plain", b"Example data", "2026-01-01T00:00:00.000000+00:00")


@dataclass(slots=True)
class StoredFile:
    """One uploaded file."""

    id: str
    workspace: str
    filename: str
    mime_type: str
    data: bytes
    created_at: str
    downloadable: bool = False
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the API's file object."""
        return {
            "id": self.id,
            "type": "file",
            "filename": self.filename,
            "mime_type": self.mime_type,
            "size_bytes": len(self.data),
            "created_at": self.created_at,
            "downloadable": self.downloadable,
            "expires_at": None,
        }


class Files:
    """All files, of all workspaces."""

    def __init__(self, *, any_id: bool = False) -> None:
        self.any_id: bool = any_id
        self._all: dict[str, StoredFile] = {}

    def add(
        self, workspace: str, filename: str, mime_type: str, data: bytes, created_at: str
    ) -> StoredFile:
        """Store a file."""
        file_id = f"file_{uuid.uuid4().hex[:24]}"
        stored = StoredFile(file_id, workspace, filename, mime_type, data, created_at)
        self._all[file_id] = stored
        return stored

    def find(self, file_id: str, workspace: str) -> StoredFile:
        """Return the file of this id in this workspace; raises `ApiError` (404).

        With the setting `any_id`, an unknown id returns an example, which is not stored.
        """
        stored = self._all.get(file_id)
        if stored is None or stored.deleted or stored.workspace != workspace:
            if self.any_id:
                return StoredFile(file_id, workspace, *_EXAMPLE_FILE, downloadable=True)
            raise ApiError("not_found_error", f"File not found: {file_id}")
        return stored

    def of(self, workspace: str) -> list[StoredFile]:
        """Return a workspace's files that were not deleted, newest first."""
        stored = reversed(self._all.values())
        return [each for each in stored if each.workspace == workspace and not each.deleted]

    def put_into(self, request: Request, context: CallContext, *, processed: bool = False) -> None:
        """Replace file sources by the files' content; raises `ApiError`.

        ``processed``: the request was valid before, so a file that was deleted since is no error.
        """

        def content(source: Any, block_type: Any, where: str) -> Any:
            fields = cast(dict[str, Any], source) if isinstance(source, dict) else {}
            if fields.get("type") != "file":
                return cast(Any, source)
            file_id = str(fields.get("file_id"))
            known = self._all.get(file_id) if processed else None
            if known is None:
                need_beta(context, where)
                known = self.find(file_id, context.workspace)
                _check_kind(block_type, known, where)
            return _source(known)

        for position, message in enumerate(request.messages):
            for number, block in enumerate(blocks_of(message)):
                where = f"messages.{position}.content.{number}"
                block.source = content(block.source, block.type, f"{where}.source")
                for path, inner in inner_blocks(block):
                    if "source" in inner:
                        own = f"{where}.{path}.source"
                        inner["source"] = content(inner["source"], inner.get("type"), own)


def _check_kind(block_type: Any, stored: StoredFile, where: str) -> None:
    kind = stored.mime_type
    fits = kind in IMAGES if block_type == "image" else kind in ("application/pdf", "text/plain")
    if not fits:
        raise ApiError(
            "invalid_request_error",
            f"{where}: a file of type {kind} cannot be the source of a block of type {block_type}",
        )


def _source(stored: StoredFile) -> dict[str, Any]:
    source = {"media_type": stored.mime_type, "file_id": stored.id}
    if stored.mime_type == "text/plain":
        return {**source, "type": "text", "data": stored.data.decode("utf-8", "replace")}
    return {**source, "type": "base64", "data": stored.data}


def need_beta(context: CallContext, what: str) -> None:
    """Raise `ApiError` (400) if files are used without their beta."""
    if context.version < FILES_VERSION and FILES_BETA not in context.betas:
        raise ApiError(
            "invalid_request_error",
            f"{what}: files need the beta {FILES_BETA} before version {FILES_VERSION}",
        )


# Endings ------------------------------------------------------------------------------------------

DIRECTIVE_MARK = b"[[sandbox:"
TOOLS_MARK = b'"tools"'
RESULT_MARK = b'"tool_result"'
"""In the next request of a thread (`thread.type: continue`), which does not repeat its tools."""
_DIRECTIVE = re.compile(rb"\[\[sandbox:([a-z_:0-9]+)\]\]")


@dataclass(slots=True)
class Ending:
    """How a request ends."""

    outcome: str
    """`succeeded`, `errored`, `canceled` or `expired`."""
    error: ApiError | None = None
    answer: Answer | None = None
    """The answer, if it is not the default answer of the params."""
    cache: CacheUse = NO_CACHE


SUCCEEDED = Ending("succeeded")
"""The success with the default answer, which is not stored."""
CANCELED = Ending("canceled")
EXPIRED = Ending("expired")


class Endings:
    """Decides endings; stores the `once` directives that were used, and the prompt cache."""

    def __init__(
        self, responder: Responder | None, seed: int, files: Files, *, uses_tools: bool = False
    ) -> None:
        self.files = files
        self.responder = responder
        self.uses_tools = uses_tools
        self.seed = seed
        self.plan: FaultPlan = FaultPlan()
        self.cache: PromptCache = PromptCache()
        self._once: set[tuple[str, str]] = set()

    def looks_at(self, body: bytes) -> bool:
        """Return whether any request of this body may end by more than its own validity."""
        return (
            self.responder is not None
            or (self.uses_tools and (TOOLS_MARK in body or RESULT_MARK in body))
            or self.plan.about_requests
            or DIRECTIVE_MARK in body
            or CACHE_MARK in body
            or FILE_MARK in body
        )

    def decide(self, raw: bytes, custom_id: str | None, context: CallContext, now: float) -> Ending:
        """Return the ending of one request. Counts as processing."""
        try:
            wanted = self._requested(raw, custom_id)
            # A live message cannot expire or be canceled: it is answered.
            if wanted.outcome == "errored" or (wanted.outcome != "succeeded" and context.batch):
                return wanted
            request = check_params(raw, context)
            if FILE_MARK in raw:
                self.files.put_into(request, context)
            made = wanted.answer
            if made is None and self.responder is not None:
                made = respond(self.responder, raw, request.params)
            if made is None and (self.uses_tools or DIRECTIVE_MARK in raw):
                made = turn(raw, request, self.seed, uses_tools=self.uses_tools)
            cache = NO_CACHE
            if CACHE_MARK in raw:
                params = decoded(msgspec.json.decode, raw)
                cache = self.cache.use(context.workspace, params, now)
        except ApiError as error:
            return Ending("errored", error=error)
        if made is None and cache is NO_CACHE:
            return SUCCEEDED
        return Ending("succeeded", answer=made, cache=cache)

    def _requested(self, raw: bytes, custom_id: str | None) -> Ending:
        """Return the ending that a directive or the plan asks for; by default a success."""
        directed = self._directed(raw) if DIRECTIVE_MARK in raw else SUCCEEDED
        if not self.plan.about_requests:
            return directed
        rule = self.plan.ending(custom_id, raw.decode("utf-8", "replace"), params_sha256(raw))
        if rule is None or directed is not SUCCEEDED:
            return directed
        if rule.error is None:
            return _ending(rule.outcome, ApiError("api_error"))
        error = ApiError(rule.error.type, rule.error.message, details=rule.error.details)
        return Ending("errored", error=error)

    def _directed(self, raw: bytes) -> Ending:
        for match in _DIRECTIVE.finditer(raw):
            words = match[1].decode().split(":")
            once = len(words) > 1 and words[-1] == "once"
            if once:
                words.pop()
                key = (match[1].decode(), params_sha256(raw))
                if key in self._once:
                    continue
                self._once.add(key)
            outcome = words[0]
            if is_turn_directive(match[0]):
                continue
            error = error_named(words[1] if len(words) > 1 else "api_error")
            if outcome not in PLANNED_OUTCOMES or error is None or len(words) > 2:
                raise ApiError(
                    "invalid_request_error", f"unknown directive {match[0].decode()} in the prompt"
                )
            return _ending(outcome, error)
        return SUCCEEDED


def _ending(outcome: str, error: ApiError) -> Ending:
    if outcome == "refused":
        return Ending("succeeded", answer=refusal())
    return Ending(outcome, error=error if outcome == "errored" else None)


def answer_and_usage(request: Request, ending: Ending, seed: int) -> tuple[Answer, Usage]:
    """Return the message of a request that succeeded, and its usage."""
    given = ending.answer or answer(request, seed)
    return given, ending.cache.of(request.input_tokens, given.output_tokens)


# Batches and their clock --------------------------------------------------------------------------

OUTCOMES = ("succeeded", "errored", "canceled", "expired")
_NAMES_JSON = re.compile(rb"json", re.IGNORECASE)
_SLICE = 250
"""Requests processed before other calls get their turn."""

_EXAMPLE = (
    b'{"requests":[{"custom_id":"my-custom-id-1","params":{"model":"claude-haiku-4-5",'
    b'"max_tokens":1024,"messages":[{"role":"user","content":"Hello, world"}]}}]}'
)


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
    """Endings other than `SUCCEEDED`, by position."""
    counts: Counter[str] = field(default_factory=Counter[str])
    hashes: list[str] | None = None
    """SHA-256 of each request's params, once the billing has been read."""

    def ending(self, position: int) -> Ending:
        """Return the ending of the request at `position` of an ended batch."""
        if position >= self.processed:
            return EXPIRED if self.cancel_at is None else CANCELED
        return self.endings.get(position, SUCCEEDED)

    def fail(self, position: int, error: Exception) -> None:
        """End a request as errored that had succeeded, because no answer can be made for it."""
        self.endings[position] = self.errored(position, error)
        self.counts.subtract(["succeeded"])
        self.counts.update(["errored"])

    def errored(self, position: int, error: Exception) -> Ending:
        """Return the ending of a request that raised this exception."""
        where = f"request {position} of batch {self.id}"
        return Ending("errored", error=as_api_error(error, where))

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
        context: CallContext,
        listed_after: float = 0.0,
    ) -> Batch:
        """Accept a batch; raises `ApiError` (429) if the queue is full."""
        queued = sum(
            len(batch.entries)
            for batch in self._unfinished.values()
            if batch.context.workspace == context.workspace
        )
        if queued + len(entries) > self.settings.queue_limit:
            raise ApiError(
                "rate_limit_error",
                f"This batch would exceed the limit of {self.settings.queue_limit} queued batch "
                f"requests: {queued} are queued.",
            )
        batch_id = f"msgbatch_{uuid.uuid4().hex[:24]}"
        batch = self._new(batch_id, entries, body, context)
        batch.listed_at += max(listed_after, self.settings.listed_after)
        self._all.append(batch)
        self._by_id[batch.id] = batch
        self._unfinished[batch.id] = batch
        self._ends_at(batch, batch.due)
        return batch

    def _new(self, batch_id: str, entries: list[Entry], body: bytes, context: CallContext) -> Batch:
        now = self.clock.now()
        natural_end = now + self.settings.latency
        expires_at = now + self.settings.expires_after
        return Batch(
            id=batch_id,
            ordinal=len(self._all),
            context=context,
            entries=entries,
            looked_at=self.endings.looks_at(body),
            cites=b'"citations"' in body,
            names_json=_NAMES_JSON.search(body) is not None,
            created_at=now,
            natural_end=natural_end,
            expires_at=expires_at,
            due=min(natural_end, expires_at),
            listed_at=now,
        )

    def _example(self, batch_id: str, workspace: str, *, ended: bool) -> Batch:
        """Return a batch for an id that does not exist; it is not stored."""
        entries = check_create(_EXAMPLE, max_requests=1)
        context = CallContext(
            workspace=workspace, batch=True, version=VERSIONS[-1], betas=frozenset()
        )
        batch = self._new(batch_id, entries, _EXAMPLE, context)
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
        if batch is None or batch.deleted or batch.context.workspace != workspace:
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
        newest = [each for each in reversed(self._all) if each.context.workspace == workspace]
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
                if batch.ended_at is not None or batch.due != due:
                    continue
                try:
                    await self._end(batch)
                finally:
                    if batch.ended_at is None:
                        # The call was cancelled, or failed: the next one ends the batch.
                        self._ends_at(batch, batch.due)
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
            stop = min(batch.processed + _SLICE, wanted)
            self._process(batch, batch.processed, stop)
            batch.processed = stop
            await asyncio.sleep(0)

    def _process(self, batch: Batch, start: int, stop: int) -> None:
        context, endings = batch.context, batch.endings
        for position in range(start, stop):
            entry = batch.entries[position]
            try:
                if batch.looked_at or self.endings.plan.about_requests:
                    ending = self.endings.decide(
                        bytes(entry.params), entry.custom_id, context, batch.due
                    )
                    if ending is not SUCCEEDED:
                        endings[position] = ending
                else:
                    check_params(entry.params, context)
            except Exception as error:  # one request must not end the batch of all others
                endings[position] = batch.errored(position, error)

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
    if stopped <= began:  # the clock was set back
        return 0
    return int(total * (stopped - began) / (natural_end - began))
