"""`ClaudeProvider`: answers at once, through the live Messages API, at the full price.

Calls run on the provider's own event loop, in a thread that starts with the first call. So one
client with its connections serves every calling thread and event loop, and the sync methods work
whether or not a loop runs. The request rate adapts to the API's answers, and is shared by every
provider of the process that has the same key (`claude_batch.wire.pace`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import logging
import os
import time
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import msgspec

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.middleware import TIMEOUT, PostProcessor
from claude_batch.actor.request import (
    ActorRequest,
    RequestEncoders,
    RequestLike,
    Requests,
    check_requests,
)
from claude_batch.actor.response import (
    ActorResponse,
    ActorResult,
    judge_of,
    output_of,
)
from claude_batch.core.batch_processing import (
    SETTINGS,
    BatchProcessingMode,
    check_environment,
    resolve_mode,
)
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorConfigurationError,
    ActorError,
    HaltReason,
    InvalidRequestError,
    LiveRequestError,
    MalformedAnswerError,
    for_one_caller,
)
from claude_batch.core.outcome import Disposition
from claude_batch.core.quantities import parse_duration
from claude_batch.core.settings import check_arguments, from_environment, read_count, url_text
from claude_batch.core.user_functions import Classifier, PaceStrategy, UserFunctions
from claude_batch.lifecycle.threads import (
    EventLoopThread,
    LoopFuture,
    fork_safe_lock,
    in_own_thread,
    wait_for,
)
from claude_batch.lifecycle.tool_runner import check_blocking
from claude_batch.money.prices import prices_of
from claude_batch.providers.keywords import LiveKeywords, mode_keywords
from claude_batch.providers.live_conversation import converse_live
from claude_batch.providers.middleware_runner import (
    LOST_WITH_IT,
    MiddlewareRunner,
    failed_result,
    request_or_error,
)
from claude_batch.providers.protocol import ProviderCapabilities
from claude_batch.providers.sync_bridge import Closing, each_of
from claude_batch.wire.encoding import LaneHeaders, asked_of
from claude_batch.wire.error_table import ApiFault, account_reason
from claude_batch.wire.retry_policy import LIVE_CALL

if TYPE_CHECKING:
    from claude_batch.providers.estimation import Estimation
    from claude_batch.wire.live_client import LiveAnswer, LiveClient

_log = logging.getLogger(__name__)

# Provider -----------------------------------------------------------------------------------------

_T = TypeVar("_T")

Ask = Callable[[ActorConfiguration, ActorRequest], Awaitable[ActorResponse]]
"""Makes one call, on any event loop of the caller."""

_END: Any = object()
"""End of the requests. Not ``None``, which a caller's iterable may yield by mistake."""

_CLOSED = "the provider was closed while it waited for an answer"


class ClaudeProvider(Closing):
    """The live Messages API, for actors without ``batch_processing``.

    Nothing is opened before the first call. Usable from any number of threads and event loops.
    """

    name = "claude"
    provider_name = "claude"
    capabilities: ProviderCapabilities = ProviderCapabilities(sync=True)

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        concurrency: int = 8,
        timeout: str | float | None = None,
        max_retries: int = 2,
        refusal_patience: str | float = 600.0,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        prices: str | os.PathLike[str] | None = None,
        default_options: Mapping[str, Any] | None = None,
        middleware: Iterable[object] = (),
        middleware_timeout: str | float = TIMEOUT,
        classify: Classifier | None = None,
        pace: PaceStrategy | None = None,
        post_process: PostProcessor | None = None,
        post_process_timeout: str | float = TIMEOUT,
        **settings: Unpack[LiveKeywords],
    ) -> None:
        """Configure the provider; nothing is opened yet.

        ``base_url`` and ``api_key`` default to the SDK's environment. ``api_key_env`` names another
        variable for the key. ``concurrency`` limits the concurrent calls per model; the API's own
        rate limits may allow fewer. ``timeout``, a duration, limits the time without any data in
        one call. The default is ten minutes, or, if that is longer, one hour per 128,000 tokens of
        ``max_tokens``. ``max_retries`` limits the retries of a call after a transient error; 0
        disables all retries. ``live_retry`` selects the errors: ``safe`` (the default) retries only
        if nothing was processed, such as after a failed connection; ``always`` also retries after a
        500, a timeout or a broken connection, so an answer may be paid for twice. After a 429 or
        529, all calls wait together, for at most ``refusal_patience`` (a duration).
        ``requests_per_minute`` and ``tokens_per_minute`` limit the calls in any minute, counted
        together for all providers of the process that have a limit and the same key; the tokens of
        a call are estimated first, and corrected by its answer. ``prices`` is a
        file of custom prices, which take precedence over the built-in ones. ``default_options`` are
        Messages parameters for requests that do not set them. ``max_turns`` and
        ``validation_attempts`` are as in `BatchProcessingMode`. ``middleware`` (see `Middleware`)
        changes requests and responses, and ``middleware_timeout``, a duration, limits each
        ``after_response`` call. ``classify`` (see `Classifier`) decides which errors are retried,
        and ``pace`` (see `PaceStrategy`) how long all calls pause after a refusal. ``post_process``
        (see `PostProcessor`) receives each result, for ``post_process_timeout`` at most. Raises
        `ActorConfigurationError`.
        """
        self._concurrency = _read("concurrency", concurrency, partial(read_count, least=1))
        self._max_retries = _read("max_retries", max_retries, partial(read_count, least=0))
        self._timeout = None if timeout is None else _read("timeout", timeout, parse_duration)
        self._refusal_patience = _read("refusal_patience", refusal_patience, parse_duration)
        self._limits = (
            _own_limit("requests_per_minute", requests_per_minute),
            _own_limit("tokens_per_minute", tokens_per_minute),
        )
        check_environment()
        base_url = url_text(base_url)
        check_arguments(base_url=base_url, api_key=api_key, api_key_env=api_key_env)
        _warn_of_budgets()
        self._settings = mode_keywords(settings, LiveKeywords, ClaudeProvider)
        self._base_url = base_url or from_environment("base_url")
        self._api_key = api_key
        self._api_key_env = api_key_env or from_environment("api_key_env")
        self._prices = prices_of(prices or from_environment("prices"))
        self._functions = UserFunctions.of(classify, pace)
        self._encoders = RequestEncoders(default_options, batch=False)
        self.middleware: MiddlewareRunner = MiddlewareRunner(
            middleware, middleware_timeout, post_process, post_process_timeout
        )
        """The middleware for requests and responses."""
        self._lock = fork_safe_lock(self, "_lock")
        self._thread: EventLoopThread | None = None
        self._live: LiveClient | None = None
        self._closed = False

    # Opening and closing --------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Return True after `close`."""
        return self._closed

    def close(self) -> None:
        """Close the connections; calls in progress are cancelled. Closing again does nothing."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            live, self._live = self._live, None
        if thread is None or not thread.alive:
            return

        async def last() -> None:
            await thread.end_the_rest()
            if live is not None:
                await live.aclose()

        thread.close(last)

    # Single calls ---------------------------------------------------------------------------------

    async def respond(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """Send one request. Cancelling the caller cancels the call.

        ``keep`` has no effect, because live calls are not stored in a ledger.

        Raises `ActorConfigurationError` if the actor has a budget, which only a
        `ClaudeBatchProvider` keeps, `InvalidRequestError` before anything is sent,
        `AccountHaltedError` if the account is at fault (credentials, billing, permission, spend
        limit), `MiddlewareError`, an `AnswerError` for an answer that is paid for but unusable
        (`MalformedAnswerError` has its bytes), and `LiveRequestError` for every other failure.
        """
        asked = ActorRequest.of(request, key=key)
        result = await self._result(_Many(actor), asked, 0, self._ask_elsewhere)
        return result.unwrap()

    def respond_sync(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """Run `respond` synchronously, with or without an event loop (a running one is blocked)."""
        asked = ActorRequest.of(request, key=key)
        _check_blocking(actor)
        result = self._result(_Many(actor), asked, 0, self._ask)
        return wait_for(self._start(result, blocks=True)).unwrap()

    # Many calls -----------------------------------------------------------------------------------

    async def respond_all(
        self, actor: ActorConfiguration, requests: Requests, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        """Send many requests and yield every result, failures included.

        ``requests`` is read as results are consumed: at most ``concurrency`` requests are sent and
        not yet yielded. Once the account is at fault, nothing more is sent, and every remaining
        request fails with that `AccountHaltedError`. Ending the iteration cancels the calls in
        progress. An exception of ``requests`` is raised after the results of the calls in progress.
        """
        check_requests(requests)
        many = _Many(actor)
        window: list[asyncio.Future[ActorResult]] = []
        room = asyncio.Semaphore(self._concurrency)
        # The next calls to yield, in order or as they end; None once all requests are read.
        news: asyncio.Queue[asyncio.Future[ActorResult] | None] = asyncio.Queue()

        async def read() -> None:
            # In one task, because a timeout or a task group in the source belongs to its task.
            async with aclosing(each_of(requests)) as source:
                await room.acquire()
                async for request in source:
                    call = self._begin(many, request)
                    window.append(call)
                    if ordered:
                        news.put_nowait(call)
                    else:
                        call.add_done_callback(news.put_nowait)
                    await room.acquire()

        reading = asyncio.ensure_future(read())
        reading.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while window or not reading.done():
                if (call := await news.get()) is not None:
                    result = await call
                    window.remove(call)
                    yield result
                    room.release()
            reading.result()
        finally:
            for left in [*window, reading]:
                left.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def respond_all_sync(
        self, actor: ActorConfiguration, requests: Requests, *, ordered: bool = True
    ) -> Iterator[ActorResult]:
        """Run `respond_all` synchronously, with or without a running event loop.

        A plain iterable is read in the calling thread, an asynchronous one on the provider's loop.
        """
        check_requests(requests)
        _check_blocking(actor)
        many = _Many(actor)
        source = self._as_sync(requests) if isinstance(requests, AsyncIterable) else iter(requests)
        window: deque[LoopFuture[ActorResult]] = deque()
        exhausted, fault = False, None
        try:
            while True:
                while not exhausted and len(window) < self._concurrency:
                    try:
                        request = next(source, _END)
                    except Exception as error:
                        request, fault = _END, error
                    if request is _END:
                        exhausted = True
                    else:
                        window.append(self._start(self._next(many, request), blocks=True))
                if not window:
                    if fault is not None:
                        raise fault
                    return
                if ordered:
                    done = window[0]
                else:
                    finished, _ = concurrent.futures.wait(
                        window, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    done = next(each for each in window if each in finished)
                result = wait_for(done)
                window.remove(done)
                yield result
        finally:
            for left in window:
                left.cancel()

    def _as_sync(self, requests: AsyncIterable[RequestLike]) -> Iterator[RequestLike]:
        source = aiter(requests)

        async def pull() -> RequestLike:
            return await anext(source, _END)

        while (request := wait_for(self._start(pull(), blocks=True))) is not _END:
            yield request

    def create_chat_model(self, model: str, temperature: float | None = None, **kwargs: Any) -> Any:
        """Return LangChain's ``ChatAnthropic``, on this provider's server and key (an extra).

        LangChain's own retries are off unless ``max_retries`` is given or ``live_retry`` is
        ``always``, because LangChain also retries after a 500, which may have been billed.
        """
        integration = importlib.import_module("claude_batch.integrations.langchain")
        if resolve_mode(True, self._settings).live_retry == "safe":
            kwargs.setdefault("max_retries", 0)
        return integration.create_live_chat_model(
            model,
            temperature=temperature,
            base_url=self._base_url,
            api_key=self._key(),
            **kwargs,
        )

    def estimation(self, actor: ActorConfiguration) -> Estimation:
        """Return an empty estimate for requests of an actor, at live prices."""
        from claude_batch.providers.engine_access import find_credentials
        from claude_batch.providers.estimation import Estimation

        return Estimation(
            self._encoders.of(actor),
            resolve_mode(True, {**self._settings, "mode": "live"}),
            self._prices,
            actor=actor,
            ledger=None,
            credentials=lambda: find_credentials(self._base_url, self._api_key, self._api_key_env),
        )

    # One call -------------------------------------------------------------------------------------

    def _start(self, call: Coroutine[Any, Any, _T], *, blocks: bool = False) -> LoopFuture[_T]:
        """Start a call on the provider's own loop; ``blocks``: the caller waits on its thread."""
        try:
            with self._lock:
                if self._closed:
                    raise ActorConfigurationError(
                        "the provider is closed; create a new one with cb.ClaudeProvider()"
                    )
                if self._thread is None or not self._thread.alive:
                    # Not alive: a fork left the thread and the sockets with the parent process.
                    self._thread, self._live = EventLoopThread("claude-live", closed=_CLOSED), None
                thread = self._thread
                if blocks:
                    thread.check_blocking()
        except BaseException:
            call.close()
            raise
        return thread.run(call)

    def _begin(self, many: _Many, request: RequestLike) -> asyncio.Future[ActorResult]:
        """Start a call from an event loop, on which its middleware is awaited."""
        if self.middleware:
            return asyncio.ensure_future(self._next(many, request, self._ask_elsewhere))
        return asyncio.wrap_future(self._start(self._next(many, request)))

    def _next(
        self, many: _Many, given: RequestLike, ask: Ask | None = None
    ) -> Coroutine[Any, Any, ActorResult]:
        """Return the next call of many, with the request as it is now."""
        position, many.count = many.count, many.count + 1
        return self._result(many, request_or_error(given), position, ask or self._ask)

    async def _result(
        self, many: _Many, request: ActorRequest | InvalidRequestError, position: int, ask: Ask
    ) -> ActorResult:
        """Make a call, and pass its result to the user's function, if there is one."""
        if isinstance(request, InvalidRequestError):
            result = ActorResult(key=request.key, position=position, error=request)
        elif many.halt is not None:
            # Not raised: its traceback would hold all remaining requests.
            result = failed_result(request, for_one_caller(many.halt), position)
        else:
            result = await self._outcome(many, request, position, ask)
        await self.middleware.finish(many.actor.name, [result])
        return result

    async def _outcome(
        self, many: _Many, request: ActorRequest, position: int, ask: Ask
    ) -> ActorResult:
        """Make a call through the middleware, which is called in the current context."""
        actor, asked = many.actor, request
        try:
            if self.middleware:
                asked = await self.middleware.before_request(actor.name, asked)
            response = await ask(actor, asked)
            output = output_of(actor, asked)
        except ActorError as error:
            if isinstance(error, AccountHaltedError):
                many.halt = for_one_caller(error)
                many.halt.cost = None  # which is this request's own
            return failed_result(asked, error, position)
        result = ActorResult(
            key=request.key,
            position=position,
            response=response,
            answered=response.answered,
            context=asked.context,
        )
        if self.middleware:
            result = await self.middleware.after_response(actor.name, result, LOST_WITH_IT)
        if output is not None:
            # A validator may take its time, or make calls of the same provider, as a judge may.
            result = await in_own_thread(partial(result.with_output, output), daemon=True)
        return result

    async def _ask_elsewhere(self, actor: ActorConfiguration, asked: ActorRequest) -> ActorResponse:
        """Make a call on the provider's own loop, from another loop."""
        return await asyncio.wrap_future(self._start(self._ask(actor, asked)))

    async def _ask(self, actor: ActorConfiguration, asked: ActorRequest) -> ActorResponse:
        """Make a call; runs on the provider's own loop."""
        encoded = self._encoders.of(actor).encode(asked)
        model, most = asked_of(encoded.params)
        mode = resolve_mode(True, self._settings)

        async def ask(body: bytes) -> ActorResponse:
            return await self._call(model, most, body, encoded.headers, mode)

        output = asked.output
        judge = actor.judge if output is None else judge_of(output)
        answer = await converse_live(actor, encoded.params, ask, mode, judge)
        return answer if asked.context is None else answer.with_context(asked.context)

    async def _call(
        self,
        model: str,
        max_tokens: int,
        params: bytes,
        headers: LaneHeaders,
        mode: BatchProcessingMode,
    ) -> ActorResponse:
        """Run one turn: repeat the call until it is answered, or nothing allows another attempt.

        After a refusal for the rate, ``refusal_patience`` allows it, after another passing error
        ``max_retries``, and after a call that may have been billed only ``live_retry: always``.
        """
        from claude_batch.wire.live_client import longest_silence

        live, retry = self._client(), mode.live_retry
        timeout = longest_silence(max_tokens) if self._timeout is None else self._timeout
        # The time in the queue before the first refusal does not count.
        refused: float | None = None
        failures = 0
        while True:
            turn = await live.turn(model, len(params), max_tokens)
            answer = await live.send(turn, model, params, headers, timeout=timeout)
            if answer.message is not None:
                break
            if answer.malformed is not None:
                raise MalformedAnswerError(
                    f"{live.base_url} answered {answer.status}, but not in the API's format: "
                    f"{answer.malformed.problem}. The answer was billed; its bytes are in `raw` "
                    "of this error. Check the proxies and gateways between you and the API",
                    raw=answer.raw,
                    problem=answer.malformed.problem,
                )
            fault = answer.fault
            if retry == "safe" and answer.may_be_billed:
                again = False
            elif self._max_retries and fault is not None and fault.is_refusal:
                # All calls wait until the rate limit has passed; this call goes first afterwards.
                now = time.monotonic()
                refused = refused or now
                again = now - refused < self._refusal_patience
            else:
                passes = await self._passes(answer, mode.retry_on)
                again = passes and failures < self._max_retries
                if again:
                    failures += 1
                    await asyncio.sleep(LIVE_CALL(failures, fault and fault.retry_after))
            if not again:
                raise self._translated(answer, live.base_url, retry)
        now = time.time()
        charge = self._prices.charge(
            answer.message.model, answer.message.usage, batch=False, at=now
        )
        cost = None if charge is None else charge.cost
        return ActorResponse(answer.raw, cost=cost, answered=now)

    async def _passes(self, answer: LiveAnswer, retry_on: str | None) -> bool:
        """Return whether a call that failed may be answered later, as the user decides, if asked.

        Raises `AccountHaltedError` if the user takes the account for the cause.
        """
        fault, own = answer.fault, answer.request_fault
        if own is not None and (retry_on or self._functions.classify):
            decided = await self._functions.disposition(own.with_retry_on(retry_on))
            if decided is Disposition.ACCOUNT and fault is not None:
                raise AccountHaltedError(
                    fault.describe(), reason="refused", error_type=fault.error_type
                )
            return decided is Disposition.RETRY
        if fault is None:
            return answer.status is None and not answer.no_credential
        if _account_reason(fault) is not None:
            return False  # a spend limit is a 429, but does not pass within a retry's wait
        return fault.passes or fault.disposition is Disposition.RETRY

    # The client -----------------------------------------------------------------------------------

    def _key(self) -> str | None:
        if self._api_key is not None or self._api_key_env is None:
            return self._api_key
        key = os.environ.get(self._api_key_env)
        if not key:
            raise AccountHaltedError(
                f"no API key: the variable {self._api_key_env} is not set", reason="credentials"
            )
        return key

    def _client(self) -> LiveClient:
        # Only called on the provider's own loop, so two calls cannot create two clients.
        if self._live is None:
            from claude_batch.wire.connection import Connection, CredentialFault
            from claude_batch.wire.live_client import LiveClient
            from claude_batch.wire.pace import OwnLimits

            try:
                connection = Connection(base_url=self._base_url, api_key=self._key())
            except CredentialFault as error:
                raise AccountHaltedError(
                    f"no usable API key: {error}", reason="credentials"
                ) from None
            if not connection.credential:
                raise AccountHaltedError(
                    "no API key: set ANTHROPIC_API_KEY, or give api_key=…", reason="credentials"
                )
            self._live = LiveClient(
                connection,
                concurrency=self._concurrency,
                limits=OwnLimits(*self._limits),
                strategy=self._functions.pace,
            )
        return self._live

    def _translated(
        self, answer: LiveAnswer, base_url: str, retry: Literal["safe", "always"]
    ) -> ActorError:
        fault = answer.fault
        doubt = ""
        if answer.may_be_billed:
            doubt = "; the call may have been processed and billed"
            if retry == "safe":
                doubt += ", so it was not retried (set `live_retry: always` to retry it)"
        if answer.no_credential:
            return AccountHaltedError(f"no API key: {answer.reason}", reason="credentials")
        if fault is None:
            words = answer.reason
            if answer.status is None:
                words = f"no answer from {base_url}: {words}"
            return LiveRequestError(
                words + doubt,
                status=answer.status,
                request_id=answer.request_id,
                may_be_billed=answer.may_be_billed,
            )
        words = fault.describe()
        if fault.location is not None:
            words = f"{words} (a redirect, which is not followed; check the base URL)"
        if fault.is_redirect:
            # Every other call would get the same error.
            return AccountHaltedError(words, reason="refused")
        reason = _account_reason(fault)
        if reason is not None:
            return AccountHaltedError(words, reason=reason, error_type=fault.error_type)
        return LiveRequestError(
            words + doubt,
            status=fault.status,
            error_type=fault.error_type,
            request_id=fault.request_id,
            may_be_billed=answer.may_be_billed,
        )


def _warn_of_budgets() -> None:
    """Warn if the environment sets a budget, because a provider without a ledger has none."""
    set_ones = [name for name in SETTINGS if "budget" in name and from_environment(name)]
    if set_ones:
        _log.warning(
            "%s: not applied to ClaudeProvider, which has no ledger and counts no costs; "
            'ClaudeBatchProvider makes live calls under a budget with mode="live"',
            " and ".join(SETTINGS[name].variable for name in set_ones),
        )


def _own_limit(name: str, given: int | None) -> int | None:
    value, where = given, name
    if value is None:
        value, where = from_environment(name), SETTINGS[name].variable
    return None if value is None else _read(where, value, SETTINGS[name].read) or None


def _read(setting: str, value: Any, read: Callable[[Any], _T]) -> _T:
    """Return the value of a setting. Raises `ActorConfigurationError`, which names the setting."""
    try:
        return read(value)
    except ValueError as error:
        raise ActorConfigurationError(f"{setting}: {error}") from None


class _Many(msgspec.Struct):
    """The calls of one `respond_all`, or a single call."""

    actor: ActorConfiguration
    count: int = 0
    """Number of the calls that were begun."""
    halt: AccountHaltedError | None = None
    """What has ended all of them, if anything."""

    def __post_init__(self) -> None:
        self.actor.refuse_budget(ClaudeProvider.name)


def _check_blocking(actor: ActorConfiguration) -> None:
    toolset = actor.toolset
    check_blocking(None if toolset is None else toolset.tools)


def _account_reason(fault: ApiFault) -> HaltReason | None:
    # A gateway's 401 counts too: without a ledger, the next call would only get the same answer.
    return account_reason(fault.status, fault.error_type, fault.message, fault.details)
