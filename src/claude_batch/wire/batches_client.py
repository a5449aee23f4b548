"""`BatchesClient`: the batch endpoints, bytes in and bytes out.

Redirects are not followed, because they would carry the key to another host. ``results_url`` is
never followed either: the documented path on the configured host is read instead. Calls that are
safe to repeat are retried here. Every call has a total deadline, and answers are checked as
described in `claude_batch.wire.inbound`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import httpx2
import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
)

from claude_batch.core.quantities import roughly
from claude_batch.wire.connection import (
    CONNECT_SECONDS,
    MOST_BODY_BYTES,
    Connection,
    Unreachable,
)
from claude_batch.wire.encoding import LaneHeaders
from claude_batch.wire.error_table import ApiFault
from claude_batch.wire.inbound import (
    Count,
    RemoteId,
    check_id,
    header_word,
    iso_time,
    server_time,
)
from claude_batch.wire.limits import LIST_PAGE
from claude_batch.wire.live_client import LiveClient
from claude_batch.wire.pace import CallLog
from claude_batch.wire.retry_policy import READING

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

CALL_SECONDS = 300.0
"""Total timeout in seconds of a call whose answer is read whole; silence ends it much earlier."""

SLOWEST_BYTES = 16 * 1024
"""Bytes a second below which a stream or an upload counts as stalled."""

LONGEST_LINE = 256 * 1024 * 1024
"""Bytes of a line of results at which its stream counts as broken. Those of a whole batch's body,
and more than an answer can have."""

LONGEST_RESULTS_WAIT = 8.0
"""Longest wait in seconds that an answer may ask for before `BatchesClient.results` is repeated.

The caller plans a longer one, because the results of other batches may be there."""

OUTAGE_SECONDS = 60.0
"""Seconds without any answer of the API before the log reports it."""

OUTAGE_LINES_APART = 3600.0
"""Seconds between two lines of the log about the same outage."""

NOT_READY_SECONDS = 600.0
"""Seconds without an answer after which a server should get no calls: fewer would refuse calls that
can wait. Before the first answer, one failure is enough, because the base URL may be wrong."""

_NOT_READY_FAILURES = 3
"""Failures in a row that this takes, because two may be short faults ten minutes apart."""

_OUTAGE_ENDS = 900.0
"""Seconds without a call after which a server should get calls again: only they prove whether the
outage is over. It is longer than the driver waits between two calls that fail."""

_FOR_PEOPLE = {"for_people": True}

CLOCK_STEP = 60.0
"""Seconds that the machine's clock gains or loses by its monotonic one before it counts as set."""

_AHEAD = time.time() - time.monotonic()
"""The machine's clock minus its monotonic one when the process began. A client that is created
after the clock was set may continue what another client began before."""

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_BATCHES = "/v1/messages/batches"
LIST_PATH = _BATCHES
"""Path of the list of batches, below the base URL."""
_COUNT_TOKENS = "/v1/messages/count_tokens"
_FILES = "/v1/files"


class ApiError(Exception):
    """The API, or a proxy in front of it, answered a call with an error."""

    def __init__(self, fault: ApiFault) -> None:
        super().__init__(fault.describe())
        self.fault = fault


def base_url_advice(base_url: str) -> str:
    """Return what to correct in a base URL below which the API's paths do not exist."""
    # A proxy may mount the API under such a path, so it is only named once it has answered 404.
    found = _ENDS_LIKE_THE_API.search(base_url.rstrip("/"))
    what = "correct" if found is None else f"leave out {found[0]} at the end of"
    return f"{what} the base URL (--base-url, ANTHROPIC_BASE_URL)"


def misplaced_error(error: Exception, base_url: str) -> str:
    """Return an error's words, and for a missing path the base URL if that looks wrong."""
    if not (isinstance(error, ApiError) and error.fault.status == 404):
        return str(error)
    address = base_url.rstrip("/")
    if error.fault.message.startswith("model") or not _ENDS_LIKE_THE_API.search(address):
        return str(error)
    return f"{error}, from {address}; {base_url_advice(base_url)}"


_ENDS_LIKE_THE_API = re.compile(r"/v1(/messages(/batches)?)?$")


class RequestCounts(msgspec.Struct, frozen=True):
    """``request_counts``: all but ``processing`` stay 0 until the whole batch has ended."""

    processing: Count = 0
    succeeded: Count = 0
    errored: Count = 0
    canceled: Count = 0
    expired: Count = 0

    @property
    def finished(self) -> int:
        """Number of requests that have an outcome."""
        return self.succeeded + self.errored + self.canceled + self.expired

    @property
    def total(self) -> int:
        """Number of requests of the batch; 0 if the API has not counted them yet."""
        return self.processing + self.finished

    def are_final(self, requests: int) -> bool:
        """Return whether they count an outcome for each of a batch's requests."""
        return self.processing == 0 and self.finished >= requests


class RemoteBatch(msgspec.Struct, frozen=True):
    """The API's batch object, with the fields that are used here."""

    id: RemoteId
    processing_status: str
    request_counts: Any = None
    """As sent. A gateway may omit or rewrite it, and the other fields stay readable."""
    created_at: str | None = None
    ended_at: str | None = None
    archived_at: str | None = None

    @property
    def is_canceled(self) -> bool:
        """Whether the batch is being canceled, or has ended with canceled requests."""
        if self.processing_status == "ended":
            return self.counts.canceled > 0
        return self.processing_status == "canceling"

    @property
    def counts(self) -> RequestCounts:
        """``request_counts``; all are 0 if they are absent or not in the API's format."""
        try:
            return msgspec.convert(self.request_counts, RequestCounts, strict=False)
        except msgspec.ValidationError:
            return RequestCounts()

    @property
    def created(self) -> float | None:
        """``created_at`` as seconds since the epoch."""
        return iso_time(self.created_at)

    @property
    def ended(self) -> float | None:
        """``ended_at`` as seconds since the epoch."""
        return iso_time(self.ended_at)


class BatchPage(msgspec.Struct, frozen=True):
    """One page of the list of batches, newest first."""

    data: list[RemoteBatch]
    has_more: bool | None = False
    """Whether there is another page; `None` if the answer does not say so, as behind a gateway.

    Then the next page shows it: only one without entries is the end."""
    last_id: str | None = None
    """Id from which the next page continues. A gateway may omit it, but not the entries."""
    unreadable: Sequence[RemoteBatch] = ()
    """Entries that do not match the API's documentation: their id and age, as far as readable.

    Such a page proves no absence."""


class _StrangeEntry(msgspec.Struct, frozen=True):
    id: RemoteId = ""
    created_at: str | None = None


class _RawPage(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]
    has_more: bool | None = None
    last_id: RemoteId | None = None


class _TokenCount(msgspec.Struct, frozen=True):
    input_tokens: Count


class _RemoteFile(msgspec.Struct, frozen=True):
    id: RemoteId


class _FilePage(msgspec.Struct, frozen=True):
    data: list[_RemoteFile]


class _Silence(msgspec.Struct):
    """The failures of calls of one kind since the last answer to such a call."""

    failures: int = 0
    since: float = 0.0
    last: float = 0.0
    next_line: float = 0.0
    reason: str = ""


class Outage:
    """The time without an answer of the API, in its log and for probes.

    Live calls and others count apart, because a proxy may reach one endpoint and not the other.
    """

    def __init__(self, base_url: str) -> None:
        self._address = base_url.rstrip("/")
        self._has_answered = False
        self._silences = [_Silence(), _Silence()]
        """Of other calls, and of live calls."""

    def note(self, error: ApiError | Unreachable | None, *, live: bool = False) -> None:
        """Note how a call ended; an outage is logged after a minute, and then each hour."""
        now, silence = time.monotonic(), self._silences[live]
        is_answer = error is None or (isinstance(error, ApiError) and error.fault.from_api)
        # Other calls are repeated until they are answered, live calls are not.
        if is_answer or (live and now - silence.last > _OUTAGE_ENDS):
            self._silences[live] = _Silence()
        if is_answer:
            self._has_answered = True
            if silence.failures and silence.next_line > silence.since + OUTAGE_SECONDS:
                _log.info(
                    "%s answers %sagain, after %s",
                    self._address,
                    "live calls " if live else "",
                    roughly(now - silence.since),
                    extra=_FOR_PEOPLE,
                )
            return
        silence = self._silences[live]
        if not silence.failures:
            silence.since, silence.next_line = now, now + OUTAGE_SECONDS
        silence.failures += 1
        silence.last, silence.reason = now, str(error)
        if now >= silence.next_line:
            silence.next_line = now + OUTAGE_LINES_APART
            _log.warning(
                "%s. It has %s for %s; what waits is kept, and it is called again until it answers",
                unreachable_words(self._address, silence.reason),
                "answered no live call" if live else "not answered",
                roughly(now - silence.since),
                extra=_FOR_PEOPLE,
            )

    def why(self) -> str | None:
        """Return why the API is not reached, if it has never answered or not for a while."""
        now = time.monotonic()
        for silence in self._silences:
            lasted = silence.last - silence.since
            is_long = silence.failures >= _NOT_READY_FAILURES and lasted >= NOT_READY_SECONDS
            is_present = silence.failures and now - silence.last <= _OUTAGE_ENDS
            if is_present and (is_long or not self._has_answered):
                return unreachable_words(self._address, silence.reason)
        return None


def unreachable_words(base_url: str, reason: str) -> str:
    """Return that a base URL cannot be reached, and what to check."""
    address = base_url.rstrip("/")
    return f"{address} cannot be reached: {reason}. Check the network and the base URL"


class BatchesClient:
    """The batch endpoints of one base URL, with one credential. Belongs to one event loop."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        write_timeout: float = 5.0,
        read_timeout: float = 600.0,
        attempts: int = 4,
    ) -> None:
        """Set up the client for one base URL and credential.

        ``write_timeout`` bounds each write of a body, in seconds. ``attempts`` is the total number
        of tries of a reading call. ``base_url`` and ``api_key`` default as in `Connection`.
        """
        self._attempts = attempts
        self._answer_seconds = read_timeout
        timeout = httpx2.Timeout(read_timeout, connect=CONNECT_SECONDS, write=write_timeout)
        self._connection = Connection(base_url=base_url, api_key=api_key, timeout=timeout)
        self._redaction = self._connection.redaction
        self._read_timeout = httpx2.Timeout(60.0, connect=CONNECT_SECONDS)
        self.outage: Outage = Outage(self._connection.base_url)
        """Whether the reading calls and the live calls are answered."""
        self.workspace: str | None = None
        """``anthropic-workspace-id`` of the last answer that had one."""
        self.clock_offset: float = 0.0
        """Server time minus local time, in seconds, from the last ``Date`` header."""
        self.steady_since: float = -math.inf
        """`server_now` after the machine's clock was set, if no ``Date`` header bridged that.

        Earlier times cannot be subtracted from later ones."""
        self._ahead = _AHEAD

    @property
    def base_url(self) -> str:
        """The base URL in use, with a trailing slash and without a password."""
        return self._connection.base_url

    @property
    def credential(self) -> str:
        """Credential in use, for fingerprinting only; never write it anywhere."""
        return self._connection.credential

    def live(self, *, concurrency: int, log: CallLog | None = None) -> LiveClient:
        """Return a client for live calls with the same credential, over the same connections.

        ``log`` counts its calls against the user's own limits.
        """
        return LiveClient(self._connection, concurrency=concurrency, log=log)

    def server_now(self) -> float:
        """Return the server's time, as seconds since the epoch, from the last ``Date`` header.

        Without such a header, which a proxy may remove, it is the time of this machine.
        """
        now = time.time()
        ahead = now - time.monotonic()
        now += self.clock_offset
        if abs(ahead - self._ahead) > CLOCK_STEP:
            self._ahead, self.steady_since = ahead, now
        return now

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def create(
        self, body: AsyncIterator[bytes], length: int, headers: LaneHeaders
    ) -> RemoteBatch:
        """POST one batch, once: no retry, no redirect. Raises `ApiError` or `Unreachable`.

        ``body`` must yield exactly ``length`` bytes. An exception that ``body`` raises stops the
        upload and is raised again.
        """
        failures: list[Exception] = []

        async def guarded(deadline: asyncio.Timeout) -> AsyncIterator[bytes]:
            try:
                async for chunk in body:
                    yield chunk
            except Exception as error:
                failures.append(error)
                raise
            deadline.reschedule(asyncio.get_running_loop().time() + self._answer_seconds)

        try:
            async with asyncio.timeout(None) as deadline:
                response = await self._connection.send(
                    "POST",
                    _BATCHES,
                    content=guarded(deadline),
                    headers={**headers.as_headers(), "content-length": str(length)},
                )
        except Unreachable as error:
            if failures:
                raise failures[0] from error
            raise
        except TimeoutError:
            seconds = self._answer_seconds
            raise Unreachable(f"no complete answer within {seconds:g} s") from None
        self._note(response.headers)
        if not response.is_success:
            raise ApiError(self._connection.fault_of(response))
        return self._decoded(response, RemoteBatch, f"POST {_BATCHES}")

    async def list_page(self, *, after_id: str | None = None, limit: int = LIST_PAGE) -> BatchPage:
        """Return one page of the list, newest first. Raises `ApiError` or `Unreachable`."""
        query: dict[str, str | int] = {"limit": limit}
        if after_id is not None:
            query["after_id"] = after_id
        page = await self._read("GET", _BATCHES, _RawPage, query=query)
        found: list[RemoteBatch] = []
        unreadable: list[RemoteBatch] = []
        for raw in page.data:
            try:
                found.append(_decode(raw, RemoteBatch))
            except _UNDECODABLE as error:
                _log.warning("an entry of the list of batches is not a batch: %s", error)
                entry = _StrangeEntry()
                with suppress(*_UNDECODABLE):
                    entry = _decode(raw, _StrangeEntry)
                unreadable.append(RemoteBatch(entry.id, "", created_at=entry.created_at))
        last_id = page.last_id or (found[-1].id if found else None)
        has_more = page.has_more
        if has_more is None and not page.data:
            has_more = False
        return BatchPage(found, has_more, last_id, unreadable)

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        """Return the batch in its current state. Raises `ApiError` or `Unreachable`."""
        return self._same(batch_id, await self._read("GET", _path(_BATCHES, batch_id), RemoteBatch))

    async def cancel(self, batch_id: str) -> RemoteBatch:
        """Request a cancellation; a second request is harmless.

        Raises `ApiError` or `Unreachable`.
        """
        path = f"{_path(_BATCHES, batch_id)}/cancel"
        return self._same(batch_id, await self._read("POST", path, RemoteBatch))

    def _same(self, batch_id: str, found: RemoteBatch) -> RemoteBatch:
        if found.id != batch_id:
            raise Unreachable(f"batch {found.id} was returned instead of {batch_id}")
        return found

    async def count_tokens(self, body: bytes, headers: LaneHeaders) -> int:
        """Return the number of input tokens of Messages params; the call is free and not retried.

        Raises `ApiError`, also for params that the API refuses, or `Unreachable`.
        """
        response = await self._answer(
            "POST", _COUNT_TOKENS, content=body, headers=headers.as_headers()
        )
        return self._decoded(response, _TokenCount, f"POST {_COUNT_TOKENS}").input_tokens

    @asynccontextmanager
    async def results(self, batch_id: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Stream the results in pieces of whole lines.

        Raises `ApiError` or `Unreachable`, also midway. The last line of a broken stream is not
        returned. Of a line above `MOST_BODY_BYTES` only the beginning is returned, which cannot be
        decoded, so that the lines after it are not lost with it. A stream below `SLOWEST_BYTES` a
        second for `CALL_SECONDS` counts as broken.
        """
        path = f"{_path(_BATCHES, batch_id)}/results"
        response = await self._retrying(
            lambda: self._answer("GET", path, stream=True), most_asked=LONGEST_RESULTS_WAIT
        )
        try:
            yield self._whole_lines(response)
        finally:
            await response.aclose()

    async def upload_file(self, name: str, data: bytes, media_type: str) -> str:
        """Upload a file and return its id. Raises `ApiError` or `Unreachable`.

        It is retried if its answer was lost. A second file then stays at the API, unused and not
        billed.
        """
        form = {"file": (name, data, media_type)}
        response = await self._retrying(
            lambda: self._answer(
                "POST", _FILES, files=form, extra_seconds=len(data) / SLOWEST_BYTES
            )
        )
        return self._decoded(response, _RemoteFile, f"POST {_FILES}").id

    async def has_file(self, file_id: str) -> bool:
        """Return whether the API has the file in this workspace.

        Raises `ApiError` or `Unreachable`.
        """
        page = await self._read("GET", _FILES, _FilePage, query={"ids[]": file_id})
        return any(each.id == file_id for each in page.data)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; a missing file counts as deleted. Raises as `has_file` does."""
        try:
            await self._read("DELETE", _path(_FILES, file_id), _RemoteFile)
        except ApiError as error:
            if error.fault.status != 404:
                raise

    async def _read(
        self, method: str, path: str, kind: type[_T], *, query: dict[str, str | int] | None = None
    ) -> _T:
        async def call() -> _T:
            return self._decoded(
                await self._answer(method, path, params=query), kind, f"{method} {path}"
            )

        return await self._retrying(call)

    async def _answer(
        self, method: str, path: str, *, extra_seconds: float = 0.0, **sent: Any
    ) -> httpx2.Response:
        """Return a successful response. Raises `ApiError` or `Unreachable`.

        ``extra_seconds`` are added to the timeout. ``sent`` is passed to `Connection.send`.
        """
        seconds = CALL_SECONDS + extra_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._connection.send(
                    method, path, timeout=self._read_timeout, **sent
                )
        except TimeoutError:
            raise Unreachable(f"no complete answer within {seconds:g} s") from None
        if not response.is_success:
            fault = self._connection.fault_of(response)
            if fault.from_api:  # a proxy has a clock of its own
                self._note(response.headers)
            raise ApiError(fault)
        self._note(response.headers)
        return response

    async def _retrying(
        self, call: Callable[[], Awaitable[_T]], *, most_asked: float = math.inf
    ) -> _T:
        # Only for calls that change nothing or, like cancel, change nothing more when repeated.
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(partial(_passes, most_asked)),
            stop=stop_after_attempt(self._attempts),
            wait=_wait,
            reraise=True,
        ):
            with attempt:
                try:
                    found = await call()
                except (ApiError, Unreachable) as error:
                    self.outage.note(error)
                    raise
                self.outage.note(None)
                return found
        raise AssertionError("unreachable")  # pragma: no cover - tenacity reraises

    def _note(self, headers: Mapping[str, str]) -> None:
        workspace = header_word(headers, "anthropic-workspace-id")
        if workspace is not None:
            self.workspace = workspace
        now = server_time(headers)
        if now is not None:
            local = time.time()
            self.clock_offset = now - local
            self._ahead = local - time.monotonic()
            self.steady_since = min(self.steady_since, now)

    async def _whole_lines(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        begun, got = loop.time(), 0
        pending: list[bytes] = []
        held = 0
        try:
            async for chunk in response.aiter_bytes():
                got += len(chunk)
                # This includes the time in which the caller processes earlier chunks, which is
                # short.
                if loop.time() - begun > CALL_SECONDS + got / SLOWEST_BYTES:
                    raise Unreachable(
                        f"the results stream gave {got:,} bytes in {loop.time() - begun:.0f} s"
                    )
                if held > MOST_BODY_BYTES:
                    rest, newline, following = chunk.partition(b"\n")
                    held += len(rest)
                    if held > LONGEST_LINE:
                        raise Unreachable(f"a result has more than {LONGEST_LINE:,} bytes")
                    if not newline:
                        continue
                    chunk = newline + following
                head, newline, tail = chunk.rpartition(b"\n")
                if newline:
                    yield self._redaction.answer(b"".join((*pending, head, newline)))
                    pending, held = [], 0
                pending.append(tail)
                held += len(tail)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            words = self._redaction.reason(error)
            raise Unreachable(f"the results stream broke: {words}") from error
        if held:
            yield self._redaction.answer(b"".join(pending))

    def _decoded(self, response: httpx2.Response, kind: type[_T], call: str) -> _T:
        try:
            return _decode(response.content, kind)
        except _UNDECODABLE:
            words = repr(self._redaction.first_words(response.content))
            raise Unreachable(
                f"{call} was answered with something that is not in the API's format: {words}"
            ) from None


def _decode(body: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    """Decode an answer; some gateways write the number 12 as 12.0 or "12"."""
    return msgspec.json.decode(body, type=kind, strict=False)


def _path(parent: str, name: str) -> str:
    """Return the path of a batch or file.

    Raises `Unreachable` if a foreign ledger's id is invalid.
    """
    try:
        return f"{parent}/{check_id(name)}"
    except ValueError as error:
        raise Unreachable(str(error)) from None


def _passes(most_asked: float, error: BaseException) -> bool:
    if isinstance(error, ApiError):
        return error.fault.passes and (error.fault.retry_after or 0.0) <= most_asked
    return isinstance(error, Unreachable)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.fault.retry_after if isinstance(error, ApiError) else None
    return READING(state.attempt_number, asked)
