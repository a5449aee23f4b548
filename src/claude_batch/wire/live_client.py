"""`LiveClient`: one call of the Messages API, bytes in and bytes out, at a pace shared by all.

It sends once: no retry, no redirect. The outcome is a `LiveAnswer`, which distinguishes a definite
no (nothing was processed, nothing is billed) from an end that may hide a billed answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from weakref import WeakValueDictionary

import httpx2
import msgspec

from claude_batch.core.outcome import Disposition
from claude_batch.core.user_functions import RequestFault, UserFunction
from claude_batch.wire.connection import (
    CONNECT_SECONDS,
    Connection,
    CredentialFault,
    Unreachable,
)
from claude_batch.wire.encoding import LaneHeaders
from claude_batch.wire.error_table import ApiFault, SendVerdict
from claude_batch.wire.inbound import header_word
from claude_batch.wire.messages import (
    DecodedMessage,
    MalformedMessage,
    UnreadableLine,
    decode_message,
    read_malformed,
)
from claude_batch.wire.pace import NO_LIMITS, CallLog, Counted, OwnLimits, Pace, Turn

_MESSAGES = "/v1/messages"

_SHORTEST_SILENCE = 600.0
_SECONDS_PER_TOKEN = 3600.0 / 128_000
# Both are the SDK's: its default timeout, and its expected time for an answer that is not streamed
# (`_calculate_nonstreaming_timeout` in its `_base_client.py`).

_paces: WeakValueDictionary[tuple[str, str, str], Pace] = WeakValueDictionary()
# Kept for as long as the process lives: a new provider continues the count of a closed one.
_logs: dict[tuple[str, str], CallLog] = {}
_paces_lock = threading.Lock()
PACES_KEPT = 1024
"""Most models whose pace a client remembers, because every call may name another model."""


class OwnLimitWait(float):
    """Seconds until the user's own limits, which hold for all models, leave room for a call."""


def log_of(base_url: str, credential: str) -> CallLog:
    """Return the log of this process's calls with a credential, for the user's own limits."""
    name = (base_url, hashlib.sha256(credential.encode()).hexdigest())
    with _paces_lock:
        log = _logs.get(name)
        if log is None:
            log = _logs[name] = CallLog()
        return log


def pace_of(base_url: str, credential: str, model: str) -> Pace:
    """Return the pace of this process's calls to a model with a credential.

    The API's limits are separate for each model, so a model that must wait delays no other.
    """
    name = (base_url, hashlib.sha256(credential.encode()).hexdigest(), model)
    with _paces_lock:
        pace = _paces.get(name)
        if pace is None:
            pace = _paces[name] = Pace()
        return pace


def longest_silence(max_tokens: int) -> float:
    """Return the timeout in seconds of an answer with so many tokens: at least ten minutes."""
    return max(_SHORTEST_SILENCE, max_tokens * _SECONDS_PER_TOKEN)


class _Withheld(Exception):
    """The params of a call may not leave any more."""


class LiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one call: a Message, a malformed one, a fault of the API, or none of them.

    If it is none of them, ``reason`` describes what happened.
    """

    message: DecodedMessage | None = None
    malformed: MalformedMessage | None = None
    """A success that was billed, but is not a Message as the API documents it."""
    raw: bytes = b""
    """Bytes of the Message or of the malformed one, as the API sent them."""
    fault: ApiFault | None = None
    reason: str = ""
    never_left: bool = False
    """Whether not even a connection was made."""
    withheld: bool = False
    """Whether this process did not send it, because it was too late."""
    no_credential: bool = False
    """Whether there was no credential for the call."""
    status: int | None = None
    """HTTP status, or `None` without an answer."""
    request_id: str | None = None
    pause: float = 0.0
    """Seconds for which live calls to the model pause after a refusal."""

    @property
    def is_answered(self) -> bool:
        """Whether the API answered with a Message, or with a success that is malformed."""
        return self.message is not None or self.malformed is not None

    @property
    def may_be_billed(self) -> bool:
        """Whether no answer came, although one may have been made and billed.

        If not, nothing was processed, and a retry cannot be billed twice.
        """
        if self.is_answered:
            return False
        return not (self.never_left if self.fault is None else self.fault.is_not_billed)

    @property
    def is_unreadable(self) -> bool:
        """Whether it is a success that is no Message, such as a page of a proxy."""
        return self.status is not None and self.fault is None and not self.is_answered

    @property
    def request_fault(self) -> RequestFault | None:
        """The error, if it is the request's own: not billed, and no fault of account or rate."""
        fault = self.fault
        if fault is None or fault.account_reason is not None or fault.is_redirect:
            return None
        if fault.verdict in (SendVerdict.UNKNOWN, SendVerdict.WAIT):
            return None
        passing = fault.disposition is Disposition.RETRY
        return RequestFault(
            fault.error_type or f"http_{fault.status}",
            fault.message,
            fault.details,
            fault.status,
            "retry" if passing else "final",
        )


class LiveClient:
    """A client for live calls over one connection. Belongs to one event loop."""

    def __init__(
        self,
        connection: Connection,
        *,
        concurrency: int,
        log: CallLog | None = None,
        limits: OwnLimits = NO_LIMITS,
        strategy: UserFunction[float] | None = None,
    ) -> None:
        """Set up the client; ``concurrency`` bounds the concurrent calls to each model.

        ``log`` counts the calls of a minute against ``limits``. Default: the process's own log.
        """
        self.strategy: UserFunction[float] | None = strategy
        """The user's `PaceStrategy`."""
        self.limits: OwnLimits = limits
        """The user's own limits; they may be changed at any time."""
        self._connection = connection
        self._log = log_of(self.base_url, connection.credential) if log is None else log
        self._redaction = connection.redaction
        self._concurrency = concurrency
        self._paces: OrderedDict[str, Pace] = OrderedDict()
        # A lock lives as long as a call waits for its turn.
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def base_url(self) -> str:
        """Base URL in use, without a password."""
        return self._connection.base_url

    def pace(self, model: str) -> Pace:
        """Return the pace of calls to a model."""
        pace = self._paces.get(model)
        if pace is None:
            # This client keeps the pace alive for all others, as long as it lives.
            pace = pace_of(self.base_url, self._connection.credential, model)
            self._forget_paces()
            self._paces[model] = pace
            pace.listen(self._some_call_ended)
        self._paces.move_to_end(model)
        return pace

    def _forget_paces(self) -> None:
        """Make room for another pace: forget the one that was not used for longest."""
        if len(self._paces) < PACES_KEPT:
            return
        # A call under way is counted at the pace that it began with.
        idle = (model for model, pace in self._paces.items() if not pace.under_way)
        if (model := next(idle, None)) is not None:
            self._paces.pop(model).unlisten(self._some_call_ended)

    def leave(self) -> None:
        """Stop listening; for a connection that another owner closes."""
        for pace in self._paces.values():
            pace.unlisten(self._some_call_ended)

    async def aclose(self) -> None:
        """Close the connections."""
        self.leave()
        await self._connection.aclose()

    def _some_call_ended(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ended.set)

    async def turn(self, model: str, params_bytes: int, max_tokens: int) -> Turn:
        """Wait for permission to send a call, first come, first served."""
        async with self._queues.setdefault(model, asyncio.Lock()):
            while True:
                self._ended.clear()
                found = self.try_turn(model, params_bytes, max_tokens, self._concurrency)
                if isinstance(found, Turn):
                    return found
                # Python 3.11's `wait_for` may swallow a cancellation that arrives with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(found, 60.0)):
                        await self._ended.wait()

    def try_turn(self, model: str, params_bytes: int, max_tokens: int, most: int) -> Turn | float:
        """Return a permit for a call that may be sent now, or the seconds until the next attempt.

        They are an `OwnLimitWait` if no other call may be sent before, either. ``most`` bounds the
        concurrent calls if it is smaller than ``concurrency``.
        """
        pace = self.pace(model)
        cost = pace.cost_of(params_bytes, max_tokens)
        now = time.monotonic()
        counted = None
        if self.limits.any:
            counted = self._log.take(now, self.limits, params_bytes, max_tokens)
            if not isinstance(counted, Counted):
                return OwnLimitWait(counted)
        found = pace.ask(now, cost, min(most, self._concurrency))
        if counted is not None:
            if isinstance(found, Turn):
                found.counted = counted
            else:
                self._log.give_back(counted)
        return found

    def unused(self, turn: Turn, model: str) -> None:
        """Return a permit whose call is not sent."""
        self.pace(model).unused(turn)
        if turn.counted is not None:
            self._log.give_back(turn.counted)

    async def send(
        self,
        turn: Turn,
        model: str,
        params: bytes,
        headers: LaneHeaders,
        *,
        timeout: float,
        may_leave: Callable[[], bool] = lambda: True,
    ) -> LiveAnswer:
        """POST one request, once, with its permit; ``timeout`` bounds its silence, in seconds.

        ``may_leave`` is asked once the connection is made, just before the params leave. Never
        raises for a network fault. A cancellation returns the permit.
        """
        pace, withheld = self.pace(model), False

        async def body() -> AsyncIterator[bytes]:
            nonlocal withheld
            withheld = not may_leave()
            if withheld:
                raise _Withheld
            yield params

        try:
            # A slow trickle is no silence, so the whole call has a timeout too, which is a little
            # longer.
            async with asyncio.timeout(timeout + CONNECT_SECONDS):
                response = await self._connection.send(
                    "POST",
                    _MESSAGES,
                    content=body(),
                    headers={**headers.as_headers(), "content-length": str(len(params))},
                    timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
                )
        except CredentialFault as error:
            self.unused(turn, model)
            return LiveAnswer(reason=error.reason, never_left=True, no_credential=True)
        except Unreachable as error:
            if withheld:
                self.unused(turn, model)
                words = "the call was not sent in time"
                return LiveAnswer(reason=words, never_left=True, withheld=True)
            pace.failed()
            return LiveAnswer(reason=error.reason, never_left=error.never_connected)
        except TimeoutError:
            pace.failed()
            return LiveAnswer(reason=f"the answer took longer than {timeout:g} s")
        except BaseException:
            pace.failed()
            raise
        if not response.is_success:
            return await self._refused(pace, turn, response)
        status, request_id = response.status_code, header_word(response.headers, "request-id")
        raw = self._redaction.answer(response.content)
        try:
            message = decode_message(response.content)
        except UnreadableLine as error:
            pace.failed()
            malformed = read_malformed(response.content, self._redaction.text(str(error)))
            if malformed is not None:
                return LiveAnswer(
                    malformed=malformed, raw=raw, status=status, request_id=request_id
                )
            words = self._redaction.first_words(response.content)
            return LiveAnswer(
                reason=f"the server answered {status} with something that is not a Message: "
                f"{words!r}; check the base URL",
                status=status,
                request_id=request_id,
            )
        usage = message.usage
        # Cache reads do not count toward any limit.
        given = usage.input_tokens + usage.cache_creation_input_tokens
        pace.answered(
            time.monotonic(),
            turn,
            response.headers,
            input_tokens=given,
            output_tokens=usage.output_tokens,
        )
        if turn.counted is not None:
            self._log.correct(turn.counted, given, usage.output_tokens)
        return LiveAnswer(message=message, raw=raw, status=status, request_id=request_id)

    async def _refused(self, pace: Pace, turn: Turn, response: httpx2.Response) -> LiveAnswer:
        fault = self._connection.fault_of(response)
        now, left = time.monotonic(), 0.0
        if fault.is_refusal:
            begun = pace.refused(now, turn, response.headers, fault.retry_after)
            if begun and self.strategy is not None:
                pause = await self.strategy.ask(begun, fault.retry_after)
                if pause is not None:
                    pace.change_pause(turn, now + pause)
            left = pace.paused_until - now
        elif fault.from_api and fault.status < 500:
            pace.answered(now, turn, response.headers)
        else:
            pace.failed()
        return LiveAnswer(fault=fault, status=fault.status, request_id=fault.request_id, pause=left)


def _after_fork() -> None:
    # A lock that another thread of the parent held is never released in the child.
    global _paces_lock, _paces, _logs
    _paces_lock = threading.Lock()
    _paces = WeakValueDictionary()
    _logs = {}


os.register_at_fork(after_in_child=_after_fork)
