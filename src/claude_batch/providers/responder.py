"""Single calls of a provider: encoded, stored, awaited, and passed through its middleware."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import msgspec

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.output import OutputFormat
from claude_batch.actor.request import ActorRequest, RequestEncoder, RequestEncoders, json_context
from claude_batch.actor.response import (
    ActorResponse,
    ActorResult,
    judge_of,
    output_of,
    read_as,
)
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import ActorError, MiddlewareError
from claude_batch.core.settings import check_arguments
from claude_batch.ledger.held_requests import index_answers
from claude_batch.ledger.queries import Answer
from claude_batch.lifecycle.api_sessions import ApiSession
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.observers import Carriers
from claude_batch.lifecycle.pending_call import CallOptions
from claude_batch.lifecycle.tool_runner import ConversationSettings, check_blocking, note_asking
from claude_batch.lifecycle.waiters import CallFuture
from claude_batch.providers.engine_access import EngineAccess, Entered
from claude_batch.providers.keywords import CallKeywords
from claude_batch.providers.mapping import response_of
from claude_batch.providers.middleware_runner import MiddlewareRunner, failed_result, wait_on_a_loop
from claude_batch.providers.run_writer import deadline_fault
from claude_batch.wire.encoding import EncodedRequest

Beside: TypeAlias = tuple[OutputFormat[Any] | None, Any]
"""The type that parses an answer, and the context of the caller."""
NOTHING_BESIDE: Beside = (None, None)


ModeOf: TypeAlias = Callable[[ActorConfiguration, CallKeywords | None], BatchProcessingMode]
"""Merges an actor's settings with the provider's and those of a call or run."""


class _Common(NamedTuple):
    """The parts that all calls of an actor share if they have no settings of their own."""

    encoder: RequestEncoder
    mode: BatchProcessingMode
    conversation: ConversationSettings


class ProviderPart:
    """A part of a provider, with what its calls and its runs need."""

    def __init__(
        self,
        engine_access: EngineAccess,
        encoders: RequestEncoders,
        mode_of: ModeOf,
        carriers: Carriers,
        middleware: MiddlewareRunner,
    ) -> None:
        """``engine_access`` is the provider itself."""
        self._engine_access = engine_access
        self._encoders = encoders
        self._mode_of = mode_of
        self._carriers = carriers
        self._middleware = middleware
        self._drive = engine_access.may_drive


class Responder(ProviderPart):
    """Makes the single calls of one provider. Thread-safe."""

    @cached_property
    def _common(self) -> dict[int, tuple[ActorConfiguration, _Common]]:
        return {}

    def _in_common(self, actor: ActorConfiguration) -> _Common:
        """Return what all calls of an actor without settings of their own share, made once."""
        # By identity, as in `RequestEncoders`.
        known = self._common.get(id(actor))
        if known is None or known[0] is not actor:
            if len(self._common) >= RequestEncoders.KEPT:
                self._common.clear()
            mode = self._mode_of(actor, None)
            common = _Common(self._encoders.of(actor), mode, conversation_settings_of(actor))
            known = self._common[id(actor)] = (actor, common)
        return known[1]

    async def respond(
        self, actor: ActorConfiguration, asked: ActorRequest, keep: bool, settings: CallKeywords
    ) -> ActorResponse:
        """Send one request and await its answer, for a provider with middleware."""
        runner, future = self._middleware, CallFuture()
        try:
            asked = await runner.before_request(actor.name, asked)
            self.ask(actor, asked, keep, settings, future)
            await future.on_loop()
            answer = future.result()
        except ActorError as error:
            await runner.finish(actor.name, [failed_result(asked, error)])
            raise
        except BaseException:
            future.cancel()
            raise
        with self._acknowledged(answer):
            result = self._result(answer, asked)
            result = await runner.after_response(actor.name, result, _kept(answer))
            result = result.with_output(output_of(actor, asked))
            await runner.finish(actor.name, [result])
            return result.unwrap()

    def answered(self, answer: Answer, beside: Beside) -> ActorResponse:
        """Return the response of a call that is done, or raise its error, without middleware."""
        output, context = beside
        if output is None:
            return self._response(answer, context)
        with self._acknowledged(answer):
            return read_as(self._response(answer, context), output)

    def respond_sync(
        self, actor: ActorConfiguration, asked: ActorRequest, keep: bool, settings: CallKeywords
    ) -> ActorResponse:
        """Send one request and wait for its answer on this thread; Ctrl-C withdraws it."""
        check_blocking(self._in_common(actor).conversation.tools)
        runner, future = self._middleware, CallFuture()
        try:
            if runner:
                asked = wait_on_a_loop(runner.before_request(actor.name, asked))
            self.ask(actor, asked, keep, settings, future)
            future.wait()
            answer = future.result()
        except ActorError as error:
            if runner:
                runner.finish_sync(actor.name, [failed_result(asked, error)])
            raise
        except BaseException:
            future.cancel()
            raise
        if not runner:
            return self.answered(answer, (output_of(actor, asked), asked.context))
        with self._acknowledged(answer):
            result = self._result(answer, asked)
            result = wait_on_a_loop(runner.after_response(actor.name, result, _kept(answer)))
            result = result.with_output(output_of(actor, asked))
            runner.finish_sync(actor.name, [result])
            return result.unwrap()

    def _response(self, answer: Answer, context: Any) -> ActorResponse:
        response = response_of(answer, self._engine_access.ledger)
        return response if context is None else response.with_context(context)

    def _result(self, answer: Answer, asked: ActorRequest) -> ActorResult:
        try:
            response = self._response(answer, asked.context)
        except ActorError as error:
            return failed_result(asked, error)
        answered, context = response.answered, asked.context
        return ActorResult(
            key=asked.key, position=0, response=response, answered=answered, context=context
        )

    @contextlib.contextmanager
    def _acknowledged(self, answer: Answer) -> Generator[None]:
        """Mark an answer as delivered once the block has ended, or raises the answer's own error.

        Any other exception keeps the answer for the same call, which must not pay for it again.
        """
        try:
            yield
        except BaseException as error:
            own = isinstance(error, ActorError) and not isinstance(error, MiddlewareError)
            self.acknowledge(answer, taken=own)
            raise
        self.acknowledge(answer, taken=True)

    def acknowledge(self, answer: Answer, *, taken: bool, failed: bool = False) -> None:
        """Record whether an answer reached its caller; ``failed``: equal calls get it again."""
        if (entered := self._engine_access.entered) is not None:
            entered.engine.calls.acknowledge(answer.seq, taken, failed)

    def ask(
        self,
        actor: ActorConfiguration,
        asked: ActorRequest,
        keep: bool,
        settings: CallKeywords,
        future: CallFuture,
    ) -> None:
        """Queue a call for one request; its caller cancels ``future`` if anything interrupts it."""
        check_arguments(bool, keep=keep)
        encoder, mode, conversation = self._in_common(actor)
        if settings:
            mode = self._mode_of(actor, settings)
        output = output_of(actor, asked)
        if output is not None and asked.output_format is not None:
            conversation = msgspec.structs.replace(conversation, judge=judge_of(output))
        alone = any(settings.get(name) is not None for name in ("budget_usd", "budget"))

        encoded: EncodedRequest | Callable[[Engine, ApiSession], EncodedRequest]
        if self._drive and encoder.has_documents(asked):

            def placed(engine: Engine, session: ApiSession) -> EncodedRequest:
                """Upload the documents where that pays, and encode the request."""
                if alone:
                    # No other call of its run could use an uploaded document again.
                    return encoder.encode(asked)
                return self._engine_access.documents.encode(
                    engine,
                    session,
                    lambda placing: encoder.encode(asked, placing),
                    actor=actor.name,
                    mode=mode,
                    conversation=conversation,
                )

            encoded = placed
        else:
            encoded = encoder.encode(asked)
        options = CallOptions(
            actor=actor.name,
            key=asked.key,
            mode=mode,
            conversation=conversation,
            keep=keep,
            acknowledges=output is not None or bool(self._middleware),
            context=None if asked.context is None else json_context(asked.context),
            alone=alone,
        )
        self.store(encoded, options, future)

    def store(
        self,
        encoded: EncodedRequest | Callable[[Engine, ApiSession], EncodedRequest],
        options: CallOptions,
        future: CallFuture,
    ) -> None:
        """Queue a call."""
        mode = options.mode
        # A live call is answered at once, and needs no deadline. Any other would be sent live at
        # the full price, because its deadline is missed from the beginning.
        if mode.mode != "live" and (fault := deadline_fault(mode, time.time())) is not None:
            future.settle(fault)
            return
        # Read here, because the caller's own context is active here.
        trace = self._carriers.carried()
        note_asking()
        entered = self._engine_access.entered
        if entered is None or mode.reuse or not isinstance(encoded, EncodedRequest):
            self._store_later(encoded, future, options, trace)
            return
        with _settling(future):
            entered.engine.calls.add(entered.session, encoded, future, options, trace)

    def _store_later(
        self,
        encoded: EncodedRequest | Callable[[Engine, ApiSession], EncodedRequest],
        future: CallFuture,
        options: CallOptions,
        trace: str | None,
    ) -> None:
        """Queue a call once the provider has entered the ledger, and the request is encoded."""
        reuse = options.mode.reuse

        def prepare(engine: Engine, session: ApiSession) -> EncodedRequest:
            if reuse:
                index_answers(engine.ledger)  # what was answered since the last look
            return encoded if isinstance(encoded, EncodedRequest) else encoded(engine, session)

        def ask(opening: Future[Entered]) -> None:
            if future.is_withdrawn and not options.stays:
                return  # nothing of it was stored
            if isinstance(failure := opening.exception(), Exception):
                future.settle(failure)  # not raised, because many calls have the same object
                return
            with _settling(future):
                engine, session = opening.result()
                if isinstance(encoded, EncodedRequest) and not reuse:
                    engine.calls.add(session, encoded, future, options, trace)
                    return

                def prepared(done: Future[EncodedRequest]) -> None:
                    with _settling(future):
                        engine.calls.add(session, done.result(), future, options, trace)

                on_thread = engine.read if isinstance(encoded, EncodedRequest) else engine.encode
                on_thread(lambda: prepare(engine, session)).add_done_callback(prepared)

        self._engine_access.opening().add_done_callback(ask)


def conversation_settings_of(actor: ActorConfiguration) -> ConversationSettings:
    """Return how an actor's conversations continue. Raises `ActorConfigurationError`."""
    toolset = actor.toolset
    if toolset is None:
        return ConversationSettings(judge=actor.judge)
    return ConversationSettings(toolset.remembered, toolset.tools, actor.judge)


def _kept(answer: Answer) -> str:
    """Describe what is safe when middleware fails on a call's answer."""
    again = "the same call returns it" if answer.key is None else "the same key returns it"
    return f"the answer was billed and is kept in the ledger: {again}, at no cost"


@contextlib.contextmanager
def _settling(caller: CallFuture) -> Generator[None]:
    """Pass an exception in the block to the caller, unless it has left."""
    try:
        yield
    except Exception as error:
        caller.settle(error)
