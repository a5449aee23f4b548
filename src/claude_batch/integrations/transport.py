"""Transports for the SDK's client that answer Messages calls from batches.

``POST …/v1/messages`` becomes a request of the provider. Every other endpoint goes to the real API.
The outcome of a request is always a response (`claude_batch.integrations.http_messages`). The one
exception is a timeout that the caller set for the call, which raises the SDK's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final, TypeVar

import anthropic
import httpx2
import msgspec

from claude_batch.core.batch_processing import resolve_mode
from claude_batch.core.errors import (
    ActorConfigurationError,
    BatchRequestError,
    InvalidRequestError,
)
from claude_batch.integrations.http_messages import (
    failure,
    read_call,
    read_failure_ttl,
    read_idempotency_key,
    response_of,
)
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.pending_call import CallOptions
from claude_batch.lifecycle.threads import fork_safe_lock
from claude_batch.lifecycle.waiters import CallFuture, turn_to_begin
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.wire.connection import CredentialFault, check_key

# Transport ----------------------------------------------------------------------------------------

CALLER: Final = "client"
"""The actor's name in the ledger for calls that came through a client."""

_MESSAGES: Final = b"/v1/messages"
_WORKSPACE: Final = "anthropic-workspace-id"


RECEIVED: ContextVar[list[Answer] | None] = ContextVar("received", default=None)
"""A list that the answers to calls of this context are added to.

Whoever sets it acknowledges them (`ClaudeBatchProvider.acknowledge`). Otherwise an answer counts as
taken with the response."""


class _Asked(msgspec.Struct, frozen=True):
    """A call in progress."""

    future: CallFuture
    stream: bool
    patience: float | None
    """The caller's own timeout in seconds; None for no limit."""
    received: list[Answer] | None


class _Desk:
    """The common part of both transports, without the waiting. Thread-safe."""

    def __init__(self, provider: ClaudeBatchProvider, *, owns: bool) -> None:
        """``owns``: nobody else has the provider, and closing the transport closes it too."""
        self._provider = provider
        self._owns = owns
        self._mode = resolve_mode(True, provider.overrides)
        self._defaults = dict(provider.default_options)
        # A header of the SDK's, not a part of the body.
        self._user_profile: str | None = self._defaults.pop("user_profile_id", None)
        self._place: tuple[str, str, int | None, bytes] | None = None
        self._credential: str | None = None
        self._workspace: str | None = None
        self._lock = fork_safe_lock(self, "_lock")

    def bind(self, base_url: httpx2.URL, headers: Mapping[str, object]) -> None:
        """Store the target URL and the payer of the client's Messages calls."""
        path = base_url.raw_path.rstrip(b"/") + _MESSAGES
        self._place = (base_url.scheme, base_url.host, base_url.port, path)
        given = httpx2.Headers({k: v for k, v in headers.items() if isinstance(v, str)})
        self._credential, self._workspace = _credential(given), given.get(_WORKSPACE)

    @staticmethod
    def takes(request: httpx2.Request) -> bool:
        """Return True for a call that is answered from a batch."""
        path = request.url.raw_path.partition(b"?")[0]
        return request.method == "POST" and path.endswith(_MESSAGES)

    def ask(
        self, request: httpx2.Request, body: bytes, future: CallFuture
    ) -> _Asked | httpx2.Response:
        """Pass a call to the provider, or return a response if that is not possible."""
        try:
            self._check_target(request)
            headers = request.headers
            encoded, stream = read_call(
                body, headers, defaults=self._defaults, user_profile=self._user_profile
            )
            failure_ttl = read_failure_ttl(headers, self._mode.failure_ttl)
            received = RECEIVED.get()
            options = CallOptions(
                actor=CALLER,
                key=read_idempotency_key(headers),
                mode=self._mode,
                failure_ttl=failure_ttl,
                acknowledges=received is not None,
            )
            self._provider.call(encoded, options, future)
        except Exception as error:
            return _unread(failure(error))
        timeout: Mapping[str, float | None] = request.extensions.get("timeout") or {}
        return _Asked(future, stream, timeout.get("read"), received)

    def respond(self, asked: _Asked) -> httpx2.Response:
        """Return the response to a call whose future is done."""
        try:
            answer = asked.future.result()
            if asked.received is not None:
                asked.received.append(answer)
            # Others go by the setting, whatever this call has asked for.
            response = response_of(answer, stream=asked.stream, failure_ttl=self._mode.failure_ttl)
            return _unread(response)
        except Exception as error:
            return _unread(failure(error))

    def leave(self, future: CallFuture) -> None:
        """Leave a call whose caller was cancelled or interrupted."""
        if not future.leave("drop" if self._mode.on_disconnect == "drop" else "withdraw"):
            future.give_back()

    def timed_out(self, asked: _Asked, request: httpx2.Request) -> httpx2.Response:
        """Leave a call whose caller's timeout has passed.

        The SDK repeats a call after the timeout that this raises, and the repeated call takes over
        the request. A dropped request must not be repeated, so the response then is an error.
        """
        drops = self._mode.on_disconnect == "drop"
        if not asked.future.leave("drop" if drops else "keep"):
            return self.respond(asked)
        words = f"no answer within the call's own timeout of {asked.patience:g} s; the request "
        if drops:
            dropped = BatchRequestError(f"{words}was dropped", outcome="canceled")
            return _unread(failure(dropped))
        raise httpx2.ReadTimeout(
            f"{words}stays in the ledger, and its answer will be stored there", request=request
        )

    def _bind_to_provider(self, first: httpx2.Request) -> None:
        """Bind to the provider's target and payer.

        A provider of the client alone that names none takes those of the first call.
        """
        nowhere = httpx2.Client(transport=_NOWHERE)
        sdk = _sdk_client(anthropic.Anthropic, self._provider, nowhere)
        if self._owns:
            path = first.url.raw_path.partition(b"?")[0].removesuffix(_MESSAGES)
            base_url = str(first.url.copy_with(raw_path=path))
            # The token of a profile expires, and its provider looks it up again by itself.
            key = _credential(first.headers) if sdk.credentials is None else None
            self._provider.suggest_credentials(base_url, key)
            sdk = _sdk_client(anthropic.Anthropic, self._provider, nowhere)
        self.bind(sdk.base_url, sdk.default_headers)

    def _check_target(self, request: httpx2.Request) -> None:
        with self._lock:
            if self._place is None:
                self._bind_to_provider(request)
        url = request.url
        place = (url.scheme, url.host, url.port, url.raw_path.partition(b"?")[0])
        if place != self._place:
            raise InvalidRequestError(
                "this client has another base URL than the provider that answers it; create "
                "another one: client(base_url=…) or http_client(base_url=…)"
            )
        key, workspace = _credential(request.headers), request.headers.get(_WORKSPACE)
        # Credentials that the SDK fetches itself are not in a header yet: nothing to compare.
        other_key = self._credential is not None and key != self._credential
        if other_key or workspace != self._workspace:
            raise InvalidRequestError(
                f"this call has another {'API key' if other_key else _WORKSPACE} than the provider "
                "that answers it, whose account would pay for it; create another client for it: "
                "client(api_key=…) or http_client(api_key=…)"
            )


def _unread(response: httpx2.Response) -> httpx2.Response:
    """Return a response as one from the network, whose body the client still has to read.

    httpx2 measures `elapsed` when the body has been read, and not if it was there from the start.
    """
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx2.ByteStream(response.content),
    )


def _credential(headers: httpx2.Headers) -> str | None:
    """Return the API key or token of a call; both headers may carry either."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return headers.get("x-api-key") or (token if scheme.lower() == "bearer" else None)


def _with_live_timeout(request: httpx2.Request) -> httpx2.Request:
    # The client has no timeout, because of batches; live endpoints keep the SDK's.
    timeout: Mapping[str, float | None] = request.extensions.get("timeout") or {}
    if timeout.get("read") is None:
        live = anthropic.DEFAULT_TIMEOUT.as_dict()
        request.extensions = {**request.extensions, "timeout": live}
    return request


class AsyncBatchTransport(_Desk, httpx2.AsyncBaseTransport):
    """For `anthropic.AsyncAnthropic`."""

    _live: httpx2.AsyncClient | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Implement httpx2's hook."""
        if not self.takes(request):
            if self._live is None:
                # The SDK's own client, for the proxies of the environment and its socket options.
                self._live = anthropic.DefaultAsyncHttpxClient()
            return await self._live.send(
                _with_live_timeout(request), stream=True, auth=None, follow_redirects=False
            )
        if (turn := turn_to_begin()) is not None:
            await turn
        body, future = await request.aread(), CallFuture()
        try:
            asked = self.ask(request, body, future)
            if isinstance(asked, httpx2.Response):
                return asked
            done = await future.wait_on_loop(asked.patience)
        except BaseException:
            self.leave(future)
            raise
        if not done:
            return self.timed_out(asked, request)
        return self.respond(asked)

    async def aclose(self) -> None:
        """Implement httpx2's hook."""
        try:
            if self._live is not None:
                # Raises if its connections belong to an event loop that is closed.
                await self._live.aclose()
        finally:
            if self._owns:
                await self._provider.aclose()


class BatchTransport(_Desk, httpx2.BaseTransport):
    """For `anthropic.Anthropic`."""

    _live: httpx2.Client | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Implement httpx2's hook."""
        if not self.takes(request):
            with self._lock:
                if self._live is None:
                    self._live = anthropic.DefaultHttpxClient()
            return self._live.send(
                _with_live_timeout(request), stream=True, auth=None, follow_redirects=False
            )
        body, future = request.read(), CallFuture()
        try:
            asked = self.ask(request, body, future)
            if isinstance(asked, httpx2.Response):
                return asked
            done = future.wait(asked.patience)
        except BaseException:  # Ctrl-C
            self.leave(future)
            raise
        if not done:
            return self.timed_out(asked, request)
        return self.respond(asked)

    def close(self) -> None:
        """Implement httpx2's hook."""
        try:
            if self._live is not None:
                self._live.close()
        finally:
            if self._owns:
                self._provider.close()


# SDK clients --------------------------------------------------------------------------------------

_Sdk = TypeVar("_Sdk", anthropic.Anthropic, anthropic.AsyncAnthropic)

_NOWHERE: Final = httpx2.MockTransport(lambda _: httpx2.Response(500))
"""For an SDK client that only looks up credentials. Other transports load certificates."""


def _sdk_client(
    made: Callable[..., _Sdk],
    provider: ClaudeBatchProvider,
    http: httpx2.Client | httpx2.AsyncClient,
) -> _Sdk:
    """Return an SDK client with a provider's credentials.

    Raises `ActorConfigurationError` if they cannot be used.
    """
    given = provider.credentials()
    try:
        if "api_key" in given:
            check_key(given["api_key"])
        sdk = made(
            base_url=given.get("base_url"),
            api_key=given.get("api_key"),
            # With any value but its default, the SDK does not require streaming for a large
            # `max_tokens`; None, because a batch may take a day.
            timeout=None,
            http_client=http,
        )
        check_key(sdk.api_key or sdk.auth_token or "")
    except (anthropic.AnthropicError, CredentialFault) as error:
        raise ActorConfigurationError(f"the credentials cannot be used: {error}") from None
    return sdk


def async_client(provider: ClaudeBatchProvider, *, owns: bool) -> anthropic.AsyncAnthropic:
    """Return an `AsyncAnthropic` that ``provider`` answers.

    ``owns``: closing the client also closes the provider. Raises `ActorConfigurationError` if the
    credentials cannot be used.
    """
    transport = AsyncBatchTransport(provider, owns=owns)
    http = httpx2.AsyncClient(transport=transport, timeout=None)
    sdk = _sdk_client(anthropic.AsyncAnthropic, provider, http)
    transport.bind(sdk.base_url, sdk.default_headers)
    return sdk


def sync_client(provider: ClaudeBatchProvider, *, owns: bool) -> anthropic.Anthropic:
    """Return an `Anthropic` that ``provider`` answers, like `async_client`."""
    transport = BatchTransport(provider, owns=owns)
    http = httpx2.Client(transport=transport, timeout=None)
    sdk = _sdk_client(anthropic.Anthropic, provider, http)
    transport.bind(sdk.base_url, sdk.default_headers)
    return sdk
