"""``POST /v1/messages``: a call that is held until the ledger has its answer.

Until ``hold`` seconds have passed, nothing is sent: a failure has its true status, and an SDK
raises the error that the API's status means. Then the status 200 is sent, and signs of life keep
the connection from being dropped. A failure after that ends a stream with the API's ``error``
event. For a call without streaming, no such event exists: the connection is aborted, the client
repeats the call, and the repeated call gets the true status at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import httpx2
import msgspec
from starlette.types import Receive, Scope, Send

from claude_batch.core.errors import ActorError
from claude_batch.core.states import RequestState
from claude_batch.gateway.access import Caller, Refusal, ending
from claude_batch.gateway.exchanges import (
    CHUNK,
    PING,
    SPACE,
    Aborted,
    Exchange,
    HeldCall,
    digest_of,
    in_chunks,
)
from claude_batch.gateway.gateway_options import GatewayOptions
from claude_batch.gateway.gateway_state import Gateway
from claude_batch.gateway.request_routes import send_accepted
from claude_batch.integrations.http_messages import (
    MessagesCall,
    events_of,
    failure,
    in_one_line,
    origin_headers,
    read_call,
    response_of,
)
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.pending_call import CallOptions
from claude_batch.wire.messages import message_of_line

_LARGE: Final = 256 * 1024
"""Bytes above which a body is encoded on another thread, so that other calls do not wait for it."""

_CLAUDE_CODE: Final = "claude-cli/"
"""Beginning of Claude Code's User-Agent."""

_STORING: Final = 5.0
"""Seconds in which the ledger says whether a retry takes over a request."""

_UNBUFFERED: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
"""Headers that ask proxies to pass on each byte as it comes."""

_STREAM: Final = {"content-type": "text/event-stream; charset=utf-8", **_UNBUFFERED}


class MessagesRoute:
    """The route as an ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        headers: dict[str, str] = scope["state"]["headers"]
        caller: Caller = scope["state"]["caller"]
        metrics = self._gateway.metrics
        try:
            options = self._gateway.option_reader.read(headers)
            exchange, stream = await self._enter(caller, headers, options, receive)
            with self._gateway.hold(scope, receive, send) as call:
                await self._hold(call, exchange, stream, headers, options)
        except Refusal as refusal:
            metrics.call_refused(refusal.status)
            raise
        except ActorError as error:
            metrics.call_refused(failure(error).status_code)
            raise

    async def _enter(
        self, caller: Caller, headers: dict[str, str], options: GatewayOptions, receive: Receive
    ) -> tuple[Exchange, bool]:
        """Store a call or join it to an earlier one; return where it waits, and if as a stream."""
        gateway = self._gateway
        async with gateway.bodies.read(headers, receive) as body:
            read = partial(
                read_call,
                body,
                headers,
                defaults=gateway.defaults,
                user_profile=gateway.user_profile,
            )
            asked: MessagesCall
            asked = await asyncio.to_thread(read) if len(body) > _LARGE else read()
            del body, read
        digest = digest_of(caller, asked.encoded)
        failed = gateway.exchanges.failure(digest, options)
        if failed is not None:
            return failed, asked.stream
        if options.key is None and not options.new and not options.retries:
            await gateway.exchanges.departure(digest)
        if gateway.is_ending:
            raise ending()
        departure = "drop" if options.mode.on_disconnect == "drop" else "withdraw"

        def ask(*, orphan_only: bool = False) -> Exchange:
            options_of_call = CallOptions(
                actor=caller.actor,
                key=options.key,
                mode=options.mode,
                failure_ttl=options.failure_ttl,
                acknowledges=True,
                label=options.label,
                alone=options.has_budget,
                tenant=caller.name,
                new=options.new,
                retries=options.retries,
                orphan_only=orphan_only,
            )
            future = gateway.provider.call(asked.encoded, options_of_call)
            return Exchange(future, digest, departure, gateway.acknowledge, options.retries)

        if options.key is None and options.retries:
            found = await self._tried(digest, options, ask)
            if found is not None:
                return found, asked.stream
        exchange = ask()
        gateway.exchanges.add(exchange)
        return exchange, asked.stream

    async def _tried(
        self, digest: bytes, options: GatewayOptions, ask: Callable[..., Exchange]
    ) -> Exchange | None:
        """Return the exchange that a retry joins if an equal call seems to wait.

        That call may be another one. So a request that no caller waits for comes first: its answer
        would be paid for and stay untaken. A ``new`` call is excepted, because such a request may
        be older than its first try.
        """
        gateway = self._gateway
        exchanges = gateway.exchanges
        # The oldest may have been there before a new call was made.
        find = partial(exchanges.of_retry, digest, options.retries, newest=options.new)
        if find() is None:
            return None
        if not options.new:
            orphan = ask(orphan_only=True)
            try:
                await orphan.wait_until_stored(_STORING)
            except TimeoutError:
                orphan.future.leave("withdraw")
            # Without either there is no orphan, or the ledger cannot be asked.
            if not orphan.is_done or orphan.answer is not None:
                exchanges.add(orphan)
                return orphan
        found = find()
        if found is not None:
            found.retries = options.retries
            gateway.metrics.joined("retry")
        return found

    async def _hold(
        self,
        call: HeldCall,
        exchange: Exchange,
        stream: bool,
        headers: dict[str, str],
        options: GatewayOptions,
    ) -> None:
        """Answer a call once its request has an outcome.

        A call that does not want to be held gets the address of its request instead, if there is
        no outcome within ``options.wait``.
        """
        gateway = self._gateway
        exchange.join(call)
        request_id: str | None = None
        try:
            if options.respond_async:
                request_id = await self._store(exchange, options)
                await call.wait(options.wait)
            elif not await call.wait(gateway.settings.hold):
                await self._keep_alive(call, exchange, stream, headers)
            if call.is_gone:
                return
            if exchange.is_done:
                await self._answer(call, exchange, stream, options)
            elif request_id is not None:
                await send_accepted(call, request_id, "queued", gateway.poll_interval)
            elif call.has_begun:
                raise Aborted
            else:
                raise ending()
        finally:
            if call.has_begun or call.is_gone:  # otherwise it is counted as refused
                gateway.metrics.call_ended(call, stream)
            # The caller may have the address of its request, and ask for the answer later.
            if exchange.leave(call, keep=request_id is not None or gateway.is_ending):
                gateway.exchanges.remove(exchange)
                if exchange.future.joined is not None:
                    gateway.metrics.joined(exchange.future.joined)

    async def _store(self, exchange: Exchange, options: GatewayOptions) -> str:
        """Return the id of the request once it is stored.

        Raises the error of a request that cannot be stored, and `Refusal` if storing takes long.
        """
        patience = self._gateway.settings.hold
        try:
            await exchange.wait_until_stored(patience)
        except TimeoutError:
            what_next = (
                "It is withdrawn; repeat the call"
                if options.key is None
                else "It may be stored and sent later; repeat the call with its Idempotency-Key"
            )
            words = f"the ledger did not store the call within {patience:g} s. {what_next}"
            raise Refusal(503, words, is_overload=True) from None
        if exchange.request_id is None:
            exchange.future.result()  # which raises why
            raise AssertionError("an answer without a request")
        return exchange.request_id

    async def _keep_alive(
        self, call: HeldCall, exchange: Exchange, stream: bool, headers: dict[str, str]
    ) -> None:
        """Begin the response, and send signs of life until the call is woken."""
        settings = self._gateway.settings
        interval, sign = settings.ping, PING if stream else SPACE
        if headers.get("user-agent", "").startswith(_CLAUDE_CODE):
            interval = max(interval, settings.claude_code_ping)
        begun = _STREAM if stream else {"content-type": "application/json", **_UNBUFFERED}
        await call.begin(200, {**begun, **exchange.origin})
        await call.send_some(sign)
        while not await call.wait(interval):
            await call.send_some(sign)

    async def _answer(
        self, call: HeldCall, exchange: Exchange, stream: bool, options: GatewayOptions
    ) -> None:
        answer = exchange.answer
        if stream and answer is not None and answer.state is RequestState.SUCCEEDED:
            pieces = _events(answer)
            if pieces is not None:
                if not call.has_begun:
                    found = origin_headers(answer.batch_id, answer)
                    await call.begin(200, {**_STREAM, **found, **exchange.origin})
                await call.finish(pieces)
                if call.is_whole:
                    exchange.acknowledge(taken=True)
                return
        response = await self._response(exchange)
        if not call.has_begun:
            headers = {**response.headers, **exchange.origin}
            await call.send_whole(response.status_code, headers, response.content)
        elif response.status_code == 200:
            await call.finish(in_chunks(response.content))
        elif stream:
            await call.finish([b"event: error\ndata: %b\n\n" % in_one_line(response.content)])
        else:
            # The client repeats the call, and then gets this failure.
            exchange.acknowledge(taken=True)
            self._gateway.exchanges.note_failure(exchange, options)
            raise Aborted
        if call.is_whole:
            exchange.acknowledge(taken=True)

    async def _response(self, exchange: Exchange) -> httpx2.Response:
        ttl = self._gateway.failure_ttl

        def make() -> httpx2.Response:
            try:
                return response_of(exchange.future.result(), stream=False, failure_ttl=ttl)
            except Exception as error:
                return failure(error)

        answer = exchange.answer
        if answer is not None and len(answer.raw or b"") > _LARGE:
            return await asyncio.to_thread(make)
        return make()


def _events(answer: Answer) -> Iterator[bytes] | None:
    """Return the events of a succeeded request, or None if its message cannot be read."""
    assert answer.raw is not None
    try:
        events = events_of(message_of_line(answer.raw))
    except (msgspec.DecodeError, ActorError):
        return None
    return _joined(events)


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that a short answer is one write."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
