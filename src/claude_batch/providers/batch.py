"""`ClaudeBatchProvider`: answers an actor's requests through Anthropic's Message Batches API."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest, RequestEncoders, check_requests
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.durations import parse_duration
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.settings import (
    BatchProcessingMode,
    LedgerSettings,
    default_ledger,
    from_environment,
    resolve_ledger_settings,
    resolve_mode,
)
from claude_batch.ledger import delivery, reading
from claude_batch.ledger.delivery import Outstanding
from claude_batch.ledger.digests import index_answers
from claude_batch.ledger.reading import Answer
from claude_batch.lifecycle.doors import Door
from claude_batch.lifecycle.driver import Contact
from claude_batch.lifecycle.engine import Engine
from claude_batch.money.prices import prices_of
from claude_batch.providers.entrance import Entered, Entrance, find_credentials
from claude_batch.providers.keywords import SettingKeywords, ledger_keywords, mode_keywords
from claude_batch.providers.mapping import response_of
from claude_batch.providers.preflight import Preflight
from claude_batch.providers.protocol import ProviderCapabilities
from claude_batch.providers.pruning import Pruned, prune
from claude_batch.providers.run import Run
from claude_batch.providers.storing import RunWriter
from claude_batch.providers.uploading import Uploads
from claude_batch.wire.encoding import EncodedRequest

if TYPE_CHECKING:
    from langchain_anthropic import ChatAnthropic

__all__ = ["ClaudeBatchProvider", "open_run"]

_Requests = Iterable[str | ActorRequest] | AsyncIterable[str | ActorRequest]


class ClaudeBatchProvider:
    """Submits to ``/v1/messages/batches``, polls, and maps results, for any number of callers.

    All providers of a process that name the same ledger share one engine: their requests travel
    in shared batches. Nothing is opened before the first use. Keywords rank with the command line,
    above environment variables and an actor's YAML.
    """

    name: str = "claude-batch"
    provider_name: str = "claude-batch"
    capabilities: ProviderCapabilities = ProviderCapabilities(
        batch=True, streaming=False, sync=True, durable=True
    )

    def __init__(
        self,
        *,
        ledger: str | os.PathLike[str] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        default_options: Mapping[str, Any] | None = None,
        drive: bool = True,
        **settings: Unpack[SettingKeywords],
    ) -> None:
        """``default_options`` are Messages parameters for requests that do not set them.

        ``api_key_env`` names the environment variable that holds the key (``ANTHROPIC_API_KEY``).
        ``settings`` are those of `claude_batch.core.settings`, of the batch mode and of the ledger.
        ``drive=False`` stores and reads only: another process, or `advance`, sends and polls.
        Raises `ActorConfigurationError` for a value that cannot be used.
        """
        self._location = default_ledger(ledger)
        self._base_url = base_url or from_environment("base_url")
        self._api_key = api_key
        self._api_key_env = api_key_env or from_environment("api_key_env")
        self.default_options: dict[str, Any] = dict(default_options or {})
        """Messages parameters for requests that do not set them."""
        self._drive = drive
        self.overrides: dict[str, Any] = mode_keywords(settings)
        """The settings given as keywords, durations in seconds."""
        ledger_settings = resolve_ledger_settings(ledger_keywords(settings))
        prices_of(ledger_settings.prices)  # a fault in the file is told here too
        self._entrance = Entrance(self._location, ledger_settings, self.credentials, drive=drive)
        self._encoders = RequestEncoders(self.default_options)

    # Opening and closing ---------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after `close`: it answers no more."""
        return self._entrance.closed

    @property
    def ledger(self) -> str:
        """The ledger's path or URL."""
        return self._location

    @property
    def settings(self) -> LedgerSettings:
        """The settings of the ledger, as keywords and environment give them."""
        return self._entrance.settings

    def credentials(self) -> dict[str, str]:
        """``base_url`` and ``api_key`` for a client of the SDK; what is not set it finds itself.

        Raises `ActorConfigurationError` where ``api_key_env`` names a variable that is not set.
        """
        return find_credentials(self._base_url, self._api_key, self._api_key_env)

    # For this room only; both wait while the first use opens the ledger.

    @property
    def _engine(self) -> Engine:
        return self._entrance.engine()

    def _door(self) -> Door:
        return self._entrance.door()

    def opening(self) -> Future[Entered]:
        """Open the ledger, where it is not open yet, without blocking whoever asks."""
        return self._entrance.opening()

    def close(self) -> None:
        """Give the engine back. The last provider of a ledger parks what is not finished: batches
        go on at the API, and the next process collects them."""
        self._entrance.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Single calls ----------------------------------------------------------------------------

    async def respond(
        self, actor: ActorConfiguration, request: str | ActorRequest, *, key: str | None = None
    ) -> ActorResponse:
        """Ask once. Concurrent calls of any task, thread and loop share batches.

        Raises `InvalidRequestError` before anything is stored, `BatchRequestError` for the API's
        own errors, `BatchTimeoutError` after ``max_wait``, `AccountHaltedError` at once when
        sending halts (the request stays queued). ``key`` joins an earlier call of the same actor.
        """
        return response_of(await asyncio.wrap_future(self._ask(actor, request, key)))

    def respond_sync(
        self, actor: ActorConfiguration, request: str | ActorRequest, *, key: str | None = None
    ) -> ActorResponse:
        """`respond`, with or without a running event loop."""
        return response_of(self._ask(actor, request, key).result())

    def _ask(
        self, actor: ActorConfiguration, request: str | ActorRequest, key: str | None
    ) -> Future[Answer]:
        asked = ActorRequest.of(request, key=key)
        encoded = self._encoders.of(actor).encode(asked)
        return self.call(encoded, actor=actor.name, key=asked.key, mode=self._mode(actor))

    def call(
        self,
        encoded: EncodedRequest,
        *,
        actor: str,
        key: str | None = None,
        mode: BatchProcessingMode | None = None,
    ) -> Future[Answer]:
        """Ask with encoded params: the entrance for integrations that need no actor.

        Never blocks: the first call opens the ledger on a thread of its own.
        """
        future: Future[Answer] = Future()
        chosen = mode or resolve_mode(True, self.overrides)

        def store(engine: Engine, door: Door) -> None:
            engine.call(door, encoded, future, actor=actor, key=key, mode=chosen)

        def ask(opening: Future[Entered]) -> None:
            try:
                engine, door = opening.result()
                if chosen.reuse:
                    # What was answered since the last look is looked at on a thread of its own.
                    looked = engine.read(lambda: index_answers(engine.ledger))
                    looked.add_done_callback(lambda _: store(engine, door))
                else:
                    store(engine, door)
            except Exception as error:
                with contextlib.suppress(InvalidStateError):  # the caller has gone
                    future.set_exception(error)

        self._entrance.opening().add_done_callback(ask)
        return future

    def _mode(self, actor: ActorConfiguration) -> BatchProcessingMode:
        return resolve_mode(actor.batch_processing or True, self.overrides)

    # Runs ------------------------------------------------------------------------------------

    async def respond_all(
        self, actor: ActorConfiguration, requests: _Requests, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        """Ask many at once, as one run; gives every result, failures included.

        The same requests asked again go on with the same run.
        """
        run = await self._store(actor, requests)
        async for result in run.results(ordered=ordered):
            yield result

    def respond_all_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[str | ActorRequest],
        *,
        ordered: bool = True,
    ) -> Iterator[ActorResult]:
        """`respond_all`, with or without a running event loop."""
        run = self._store_sync(actor, requests)
        yield from run.results_sync(ordered=ordered)

    async def submit(
        self,
        actor: ActorConfiguration,
        requests: _Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
    ) -> Run:
        """Store a run and send it; returns once every batch that the API's queue admits is taken.

        The process may end then: any process that opens the run goes on. The same requests find
        the run they made before, unless ``new``. Raises `InvalidRequestError` for the first
        request that would be refused, with nothing sent, and `AccountHaltedError`.
        """
        run = await self._store(actor, requests, label=label, new=new, output=output)
        await run.wait_until_sent()
        return run

    def submit_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[str | ActorRequest],
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
    ) -> Run:
        """`submit`, with or without a running event loop."""
        run = self._store_sync(actor, requests, label=label, new=new, output=output)
        run.wait_until_sent_sync()
        return run

    def store(
        self,
        actor: ActorConfiguration,
        requests: Iterable[str | ActorRequest],
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
        on_invalid: Callable[[InvalidRequestError], None] | None = None,
        on_stored: Callable[[int], None] | None = None,
        spare_single: bool = False,
    ) -> Run:
        """Store a run without waiting for its sending; what drives the ledger sends it.

        ``on_invalid`` is told of each request that is left out because it would be refused; without
        it the first one raises, with nothing stored. ``on_stored`` is told, again and again, how
        many requests are stored by now. ``spare_single``: what the API dislikes in one request's
        own messages does not refuse the run.
        """
        return self._store_sync(
            actor,
            requests,
            label=label,
            new=new,
            output=output,
            on_invalid=on_invalid,
            on_stored=on_stored,
            spare_single=spare_single,
        )

    def _writer(
        self,
        actor: ActorConfiguration,
        label: str | None,
        output: str | None,
        on_stored: Callable[[int], None] | None = None,
        *,
        spare_single: bool = False,
    ) -> RunWriter:
        door, mode = self._door(), self._mode(actor)
        encoder = self._encoders.of(actor)
        identity = b"\n".join(
            (
                door.client.base_url.encode(),
                actor.digest_fields(),
                repr(sorted(self.default_options.items())).encode(),
            )
        )
        uploads = Uploads(self._engine, door) if self._drive else None
        writer = RunWriter(
            self._engine.ledger,
            partial(encoder.encode, placing=None if uploads is None else uploads.place),
            workspace_id=door.workspace_id,
            actor=actor.name,
            identity=identity,
            mode=mode,
            label=label,
            output=output,
            process=self._engine.process,
            on_stored=on_stored,
            preflight=self._preflight(door, mode, spare_single=spare_single),
        )
        if uploads is not None:
            uploads.run_id = writer.run_id
        return writer

    def _preflight(
        self, door: Door, mode: BatchProcessingMode, *, spare_single: bool
    ) -> Preflight | None:
        if mode.preflight is False or (mode.preflight == "auto" and not self._drive):
            return None  # who only stores has nothing to do with the API
        return Preflight(
            door.client.count_tokens,
            self._engine.do,
            always=mode.preflight is True,
            spare_single=spare_single,
        )

    async def _store(
        self,
        actor: ActorConfiguration,
        requests: _Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
    ) -> Run:
        check_requests(requests)
        engine, _ = await asyncio.wrap_future(self._entrance.opening())
        writer = await asyncio.to_thread(self._writer, actor, label, output)

        async def add_slowly(request: ActorRequest) -> None:
            # Files are read, and some are uploaded.
            await asyncio.wrap_future(engine.read(lambda: writer.add(request)))

        slow = bool(actor.documents)
        try:
            # Encoded on this thread, where the caller's iterator belongs; stored on another.
            if isinstance(requests, AsyncIterable):
                async for given in requests:
                    request = ActorRequest.of(given)
                    if slow or request.documents:
                        await add_slowly(request)
                    else:
                        writer.add(request)
                    if writer.is_full:
                        await asyncio.wrap_future(engine.read(writer.flush))
            else:
                for given in requests:
                    request = ActorRequest.of(given)
                    if slow or request.documents:
                        await add_slowly(request)
                    else:
                        writer.add(request)
                    if writer.is_full:
                        await asyncio.wrap_future(engine.read(writer.flush))
            run_id, _ = await asyncio.wrap_future(engine.read(lambda: writer.finish(new=new)))
        except BaseException:
            await asyncio.shield(asyncio.to_thread(writer.abort))
            raise
        engine.wake()
        return await asyncio.wrap_future(engine.read(lambda: Run(self, run_id)))

    def _store_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[str | ActorRequest],
        *,
        label: str | None = None,
        new: bool = False,
        output: str | None = None,
        on_invalid: Callable[[InvalidRequestError], None] | None = None,
        on_stored: Callable[[int], None] | None = None,
        spare_single: bool = False,
    ) -> Run:
        check_requests(requests)
        writer = self._writer(actor, label, output, on_stored, spare_single=spare_single)
        try:
            for request in requests:
                try:
                    writer.add(ActorRequest.of(request))
                except InvalidRequestError as error:
                    if on_invalid is None:
                        raise
                    on_invalid(error)
                if writer.is_full:
                    writer.flush()
            run_id, _ = writer.finish(new=new)
        except BaseException:
            writer.abort()
            raise
        self._engine.wake()
        return Run(self, run_id)

    @property
    def contact(self) -> Contact:
        """Whether the API has answered this process yet, and what went wrong where it has not."""
        return self._door().driver.contact

    @property
    def drives(self) -> bool:
        """True where this process drives the ledger, or takes its seat as soon as it is free."""
        return self._drive and self._entrance.entered is not None

    @property
    def version(self) -> int:
        """Rises with every change of the ledger that this process has seen."""
        return self._engine.version

    @property
    def address(self) -> str:
        """The API's base URL in use."""
        return self._door().client.base_url

    def answers(self, run_id: str) -> Iterator[Answer]:
        """A run's requests in order, as the ledger holds them, undecoded: for output files."""
        return reading.answers_by_position(self._engine.ledger, run_id)

    def outstanding(self) -> list[Outstanding]:
        """The runs that are unfinished, or whose output is not written yet; oldest first."""
        with self._engine.ledger.read() as tx:
            return delivery.outstanding_runs(tx)

    def open_run(self, run_id: str) -> Run:
        """A run of this ledger by its id; raises `RunNotFoundError`."""
        return Run(self, run_id)

    def resume(self) -> None:
        """Drive the ledger, lifting a halt of this key's workspace."""
        self._door()
        self._engine.resume()

    def advance_sync(self) -> bool:
        """One pass over everything that is due; False where another process drives."""
        return self._engine.advance(self._door()).result()

    def prune(
        self, *, older_than: str | float = "30d", runs: Sequence[str] = (), dry_run: bool = False
    ) -> Pruned:
        """Remove runs that were delivered so long ago from the ledger, or just ``runs`` by id.

        Uploaded documents that no other run names are deleted at the API. What is unfinished,
        undelivered or unknown stays; what is removed is asked, and paid for, anew when it is asked
        again. Waits. Raises `RunNotFoundError`, and `InvalidRequestError` for one of ``runs`` that
        must stay, with nothing removed.
        """
        seconds = parse_duration(older_than)
        return prune(self._engine, self._door, older_than=seconds, run_ids=runs, dry_run=dry_run)

    def create_chat_model(
        self, model: str, temperature: float | None = None, **kwargs: Any
    ) -> ChatAnthropic:
        """LangChain's ``ChatAnthropic``, answered from batches (extra ``langchain``).

        Raises `InvalidRequestError` for a ``temperature`` that the model does not take.
        """
        from claude_batch.integrations.langchain import create_chat_model

        return create_chat_model(self, model, temperature=temperature, **kwargs)


def open_run(run_id: str, *, ledger: str | os.PathLike[str] | None = None, **settings: Any) -> Run:
    """A run by its id, in any process, on any day; needs no YAML.

    ``settings`` are those of `ClaudeBatchProvider`, which closing the run closes. Raises
    `RunNotFoundError`.
    """
    provider = ClaudeBatchProvider(ledger=ledger, **settings)
    try:
        return Run(provider, run_id, owns_provider=True)
    except BaseException:
        provider.close()
        raise
