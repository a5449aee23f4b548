"""Runs of a provider: passed through its middleware, encoded, stored and ready to be sent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from functools import partial
from typing import TypeAlias, cast

import msgspec

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import (
    ActorRequest,
    KeyedPrompt,
    RequestLike,
    Requests,
    check_requests,
    check_synchronous,
    is_unicode,
)
from claude_batch.actor.response import ActorResult, output_of
from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.settings import check_arguments
from claude_batch.ledger import queries, workspaces
from claude_batch.ledger.deliveries import AS_NAMED, Displaced, Forms
from claude_batch.ledger.enqueue import NewRun
from claude_batch.lifecycle.tool_runner import check_blocking
from claude_batch.providers.document_upload import Uploads
from claude_batch.providers.estimation import Estimate, stored_estimate
from claude_batch.providers.keywords import CallKeywords
from claude_batch.providers.middleware_runner import (
    REQUESTS_AT_ONCE,
    Prepared,
    request_or_error,
)
from claude_batch.providers.preflight import Preflight
from claude_batch.providers.responder import ProviderPart, conversation_settings_of
from claude_batch.providers.run import Run
from claude_batch.providers.run_writer import RunWriter, run_identity
from claude_batch.providers.sync_bridge import clean_up, each_of, in_worker_thread

_Ready: TypeAlias = str | KeyedPrompt | Prepared
"""A request as it is added to a run, or the error that refuses it."""

ADDRESSES = 4
"""Base URLs at which the same run is looked for, because each costs a digest of all requests."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's options for one run, beside its requests and settings.

    `ClaudeBatchProvider.store` explains most of them.
    """

    label: str | None = None
    new: bool = False
    output: str | None = None
    forms: Forms = AS_NAMED
    run_key: str | None = None
    spare_single: bool = False
    estimate_all: bool = False
    send_meanwhile: bool = True
    refused: list[ActorResult] | None = None
    """Receives the failed result of each request whose middleware fails; without it, such a request
    raises."""
    on_invalid: Callable[[InvalidRequestError], None] | None = None
    on_stored: Callable[[int], None] | None = None
    on_estimate: Callable[[Estimate], None] | None = None
    on_kept: Callable[[str], None] | None = None
    on_displaced: Callable[[Displaced], None] | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidRequestError` for a label or a path that cannot be stored.

        Raises `ActorConfigurationError` for a ``new`` that is neither True nor False.
        """
        check_arguments(bool, new=self.new)
        label = cast("object", self.label)
        if label is not None and not isinstance(label, str):
            raise InvalidRequestError(f"the label must be a text, not {type(label).__name__}")
        if label is not None and not is_unicode(label):
            raise InvalidRequestError(
                f"the label {label!r} has a lone surrogate, which cannot be stored; give another"
            )
        _check_path("output", self.output)
        _check_path("results_dir", self.forms.results_dir)


def _check_path(name: str, path: object) -> None:
    """Raise `InvalidRequestError` for a path of a run's answers that the ledger cannot store.

    It stores absolute paths, so the name of the current directory counts too.
    """
    if path is None:
        return
    if not isinstance(path, str) or not path:
        raise InvalidRequestError(f"{name} must be a path as a text, not {path!r:.100}")
    if "\0" in path or not is_unicode(os.path.abspath(path)):
        raise InvalidRequestError(
            f"{name}: the path {path!r} cannot be stored, because it or the current directory is "
            "not UTF-8, or because it has a NUL character; give another"
        )


class RunStorage(ProviderPart):
    """Stores the runs of one provider. Thread-safe."""

    async def store(
        self,
        actor: ActorConfiguration,
        requests: Requests,
        settings: CallKeywords,
        options: StoreOptions,
    ) -> Run | None:
        """Store a run; return None if it has no requests and ``refused`` is given."""
        check_requests(requests)
        engine, _ = await asyncio.wrap_future(self._engine_access.opening())
        mode = self._mode_of(actor, settings)
        with self._holding(mode, requests, options):
            writer = await self._writer_beside(actor, mode, options)
            try:
                async with aclosing(self._prepared(actor, requests)) as them:
                    async for prepared in them:
                        # Encoded on this thread, the iterator's own; other threads read files,
                        # bound documents for a budget, and store requests.
                        add = partial(_add, writer, prepared, options)
                        if _blocks(actor, writer, prepared):
                            await asyncio.wrap_future(engine.encode(add))
                        else:
                            add()
                        if writer.is_full:
                            await asyncio.wrap_future(engine.read(writer.flush))
                # Not on this thread, because the call runs the observers' code.
                finish = partial(self._finish, actor, writer, options)
                return await asyncio.wrap_future(engine.read(finish))
            except BaseException as error:
                await clean_up(error, partial(_abandon, writer, options))
                raise

    def store_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[RequestLike],
        settings: CallKeywords,
        options: StoreOptions,
    ) -> Run | None:
        """Run `store` on this thread; Ctrl-C ends it."""
        check_synchronous(requests)
        check_blocking(conversation_settings_of(actor).tools)
        mode = self._mode_of(actor, settings)
        with self._holding(mode, requests, options):
            writer = self._writer(actor, mode, options)
            try:
                for prepared in self._prepared_sync(actor, requests):
                    _add(writer, prepared, options)
                    if writer.is_full:
                        writer.flush()
                return self._finish(actor, writer, options)
            except BaseException:
                _abandon(writer, options)
                raise

    def _holding(
        self, mode: BatchProcessingMode, requests: object, options: StoreOptions
    ) -> AbstractContextManager[None]:
        """Return a block in which nothing is sent, if a run with a budget is stored in it.

        The run may turn out to be an earlier one, which gets the budget only then. Requests that
        are computed one by one may wait for answers, so that sending must go on.
        """
        listed = isinstance(requests, Sequence) and not self._middleware
        if mode.budget is None or (options.send_meanwhile and not listed):
            return nullcontext()
        return self._engine_access.engine().sending_held()

    async def _writer_beside(
        self, actor: ActorConfiguration, mode: BatchProcessingMode, options: StoreOptions
    ) -> RunWriter:
        """Return the writer of a new run; delete the run if the caller leaves meanwhile."""
        made: list[RunWriter] = []
        is_left = False

        def abandon() -> None:
            with suppress(IndexError):  # whoever takes it abandons it
                _abandon(made.pop(), options)

        def make() -> RunWriter:
            writer = self._writer(actor, mode, options)
            made.append(writer)
            if is_left:
                abandon()
            return writer

        try:
            return await in_worker_thread(make)
        except BaseException as error:
            is_left = True
            await clean_up(error, abandon)
            raise

    def _writer(
        self, actor: ActorConfiguration, mode: BatchProcessingMode, options: StoreOptions
    ) -> RunWriter:
        session, engine = self._engine_access.session(), self._engine_access.engine()
        encoder, conversation = self._encoders.of(actor), conversation_settings_of(actor)
        uploads = Uploads(engine, session) if self._drive else None
        always = mode.preflight is True
        preflight = None  # a process that only stores has no contact with the API
        if always or (mode.preflight == "auto" and self._drive):
            spare_single = options.spare_single
            preflight = Preflight(engine, session, always=always, spare_single=spare_single)
        here = session.client.base_url

        def identity(address: str) -> bytes:
            return run_identity(address, actor, self._encoders.default_options, options.run_key)

        # An earlier version stored runs under the base URL with a slash.
        had_slash = engine.ledger.query(lambda tx: workspaces.has_former_spelling(tx, here))
        spellings = [here, f"{here}/"] if had_slash else [here]
        addresses = engine.ledger.query(lambda tx: queries.addresses(tx, ADDRESSES))
        asked = NewRun(
            kind="run",
            actor=actor.name,
            workspace_id=session.workspace_id,
            mode=mode,
            created=engine.ledger.now(),
            label=options.label,
            output=options.output,
            forms=options.forms,
            trace=self._carriers.carried(),
            process=engine.process,
            converses=True,
            tools=conversation.remembered,
        )
        writer = RunWriter(
            engine.ledger,
            partial(encoder.encode, placing=None if uploads is None else uploads.place),
            asked,
            identities=[identity(each) for each in spellings],
            elsewhere={
                each: identity(each) for each in addresses if each not in (here, f"{here}/")
            },
            refused=options.refused,
            on_stored=options.on_stored,
            preflight=preflight,
            prices=self._engine_access.prices,
            workbench=engine.workbench,
            conversation=conversation,
            drives=self._drive,
        )
        if uploads is not None:
            uploads.run_id = writer.run_id
        return writer

    async def _prepared(
        self, actor: ActorConfiguration, requests: Requests
    ) -> AsyncGenerator[_Ready]:
        """Yield requests as the middleware returns them, or the error of each that fails."""
        runner = self._middleware
        if not runner:
            async for given in each_of(requests):
                yield _request_of(given)
            return
        waiting: list[ActorRequest | InvalidRequestError] = []
        async for given in each_of(requests):
            waiting.append(request_or_error(given))
            if len(waiting) >= REQUESTS_AT_ONCE:
                for prepared in await runner.before_all(actor.name, waiting):
                    yield prepared
                waiting = []
        if waiting:
            for prepared in await runner.before_all(actor.name, waiting):
                yield prepared

    def _prepared_sync(
        self, actor: ActorConfiguration, requests: Iterable[RequestLike]
    ) -> Iterator[_Ready]:
        if self._middleware:
            return self._middleware.before_all_sync(actor.name, requests)
        return map(_request_of, requests)

    def _finish(
        self, actor: ActorConfiguration, writer: RunWriter, options: StoreOptions
    ) -> Run | None:
        """Make what was written a run that is sent, and notify everybody. Blocks."""
        if options.on_estimate is not None:
            whole_run = (range(writer.count), writer.asked.mode)
            places, mode = whole_run if options.new else writer.to_send()
            if places:
                prices = self._engine_access.prices
                options.on_estimate(
                    stored_estimate(writer, prices, places, mode, whole=options.estimate_all)
                )
        run_id = writer.finish(new=options.new)
        if run_id is None:
            return None
        with self._engine_access.open_for(run_id):
            writer.report(self._engine_access.engine(), run_id)
            if options.on_displaced is not None:
                for each in writer.displaced.values():
                    options.on_displaced(each)
            run = Run(
                self._engine_access,
                run_id,
                middleware=self._middleware,
                stamp=writer.stamp,
                rerun=writer.rerun,
                beside=writer.beside,
            )
            run.output = output_of(actor)
            return run


# One request of a run -----------------------------------------------------------------------------


def _request_of(given: RequestLike) -> _Ready:
    """Return a request to encode, or the error that prevents it."""
    try:
        return given if isinstance(given, str) else KeyedPrompt.of(given) or ActorRequest.of(given)
    except InvalidRequestError as error:
        return error


def _blocks(actor: ActorConfiguration, writer: RunWriter, prepared: _Ready) -> bool:
    """Return whether adding a request reads files, or bounds documents for a budget."""
    if actor.documents:
        return True
    return isinstance(prepared, ActorRequest) and (
        bool(prepared.documents) or (writer.is_bounded and prepared.own_prompt is None)
    )


def _add(writer: RunWriter, prepared: _Ready, options: StoreOptions) -> None:
    """Add a request to a run, or refuse it."""
    try:
        if isinstance(prepared, ActorResult):
            writer.refuse(prepared)
        elif isinstance(prepared, InvalidRequestError):
            raise prepared
        else:
            writer.add(prepared)
    except InvalidRequestError as error:
        if options.on_invalid is None:
            raise error.naming(None, writer.position) from None
        options.on_invalid(error)


def _abandon(writer: RunWriter, options: StoreOptions) -> None:
    """Delete what was written of a run that is not stored."""
    if options.on_kept is not None and (kept := writer.kept()) is not None:
        options.on_kept(kept)
    writer.abort()
