"""`Actor`: a configuration bound to the provider that answers for it."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast, overload

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.output import OutputFormat, output_format_of
from claude_batch.actor.request import ActorRequest, Requests, check_requests
from claude_batch.actor.response import ActorResponse, ActorResult, OutputJudge, OutputT
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.providers.closable import Closing
from claude_batch.providers.protocol import Provider
from claude_batch.providers.registry import ProviderRegistry, default_registry
from claude_batch.providers.run_context import RunContext

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from claude_batch.providers.run import Run

__all__ = ["Actor", "load_actor"]

_SHAPES_KEPT = 64
"""Output formats of an actor whose encoding is remembered."""


class Actor(Closing):
    """One actor, ready to be asked. Costs nothing to make; the provider is shared with others."""

    def __init__(
        self,
        configuration: ActorConfiguration,
        provider: Provider,
        *,
        tools: Iterable[Callable[..., Any]] = (),
    ) -> None:
        """``tools`` are functions that the model may call, beside those that the YAML names.

        Raises `ActorConfigurationError` for an actor that is no ``llm``, and for a tool that
        cannot be imported or is none.
        """
        configuration.require_answerable()
        if functions := tuple(tools):
            configuration = configuration.with_tools(functions)
        _ = configuration.toolset  # a fault in it is told here, not at the first request
        self._configuration = configuration
        self._provider = provider
        self._shapes: dict[object, ActorConfiguration] = {}
        self._registry: ProviderRegistry | None = None
        """Whom the provider is given back to; None where it is not the actor's to close."""
        self._closing = threading.Lock()

    def close(self) -> None:
        """Close the provider, where `load_actor` made it and no other actor has it too.

        Batches go on at the API, and the next process collects them. A provider that was given to
        ``Actor`` stays open: close it yourself.
        """
        with self._closing:
            registry, self._registry = self._registry, None
        if registry is not None and registry.give_back(self._provider):
            self._provider.close()

    @property
    def configuration(self) -> ActorConfiguration:
        """What its YAML says."""
        return self._configuration

    @property
    def provider(self) -> Provider:
        """Who answers."""
        return self._provider

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return self._configuration.name

    @overload
    async def respond(
        self, request: str | ActorRequest, *, key: str | None = None, keep: bool = False
    ) -> ActorResponse: ...
    @overload
    async def respond(
        self,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[OutputT],
    ) -> ActorResponse[OutputT]: ...
    async def respond(
        self,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[Any] | None = None,
    ) -> ActorResponse[Any]:
        """Ask once. Raises an `ActorError` where there is no answer.

        Cancelling the call withdraws a request that is not sent yet, and it costs nothing; with
        ``keep``, or a ``key``, the request is sent all the same.

        ``output_format``: a Pydantic model, or another type that Pydantic validates. The answer is
        asked for in its JSON schema, and `ActorResponse.parsed_output` is the object. Raises
        `InvalidRequestError` for a schema that the API cannot take, before anything is sent, and
        `OutputValidationError` for an answer that is not of the shape.
        """
        actor, output = self._shaped(output_format)
        response = await self._provider.respond(actor, request, key=key, **_kept(keep))
        return _read(response, output)

    @overload
    def respond_sync(
        self, request: str | ActorRequest, *, key: str | None = None, keep: bool = False
    ) -> ActorResponse: ...
    @overload
    def respond_sync(
        self,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[OutputT],
    ) -> ActorResponse[OutputT]: ...
    def respond_sync(
        self,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
        output_format: type[Any] | None = None,
    ) -> ActorResponse[Any]:
        """`respond`, with or without a running event loop."""
        actor, output = self._shaped(output_format)
        response = self._provider.respond_sync(actor, request, key=key, **_kept(keep))
        return _read(response, output)

    @overload
    def respond_all(
        self, requests: Requests, *, ordered: bool = True, new: bool = False
    ) -> AsyncIterator[ActorResult]: ...
    @overload
    def respond_all(
        self,
        requests: Requests,
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[OutputT],
    ) -> AsyncIterator[ActorResult[OutputT]]: ...
    def respond_all(
        self,
        requests: Requests,
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[Any] | None = None,
    ) -> AsyncIterator[ActorResult[Any]]:
        """Ask many; gives every result, failures included; as they complete unless ``ordered``.

        In batches, the same requests asked again find the run that they made before, unless
        ``new``: its answers are given again at no cost (`ActorResult.reused`), and what failed for
        a passing reason is asked again. `run` gives the run itself. ``output_format`` as in
        `respond`; an answer that is not of the shape is a failed result.
        """
        check_requests(requests)
        actor, output = self._shaped(output_format)
        results: AsyncIterator[ActorResult]
        if self._asks_anew(new):
            respond_all = cast(
                "Callable[..., AsyncIterator[ActorResult]]", self._provider.respond_all
            )
            results = respond_all(actor, requests, ordered=ordered, new=True)
        else:
            results = self._provider.respond_all(actor, requests, ordered=ordered)
        return results if output is None else _read_all(results, output)

    @overload
    def respond_all_sync(
        self, requests: Iterable[str | ActorRequest], *, ordered: bool = True, new: bool = False
    ) -> Iterator[ActorResult]: ...
    @overload
    def respond_all_sync(
        self,
        requests: Iterable[str | ActorRequest],
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[OutputT],
    ) -> Iterator[ActorResult[OutputT]]: ...
    def respond_all_sync(
        self,
        requests: Iterable[str | ActorRequest],
        *,
        ordered: bool = True,
        new: bool = False,
        output_format: type[Any] | None = None,
    ) -> Iterator[ActorResult[Any]]:
        """`respond_all`, with or without a running event loop."""
        check_requests(requests)
        actor, output = self._shaped(output_format)
        results: Iterator[ActorResult]
        if self._asks_anew(new):
            respond_all = cast(
                "Callable[..., Iterator[ActorResult]]", self._provider.respond_all_sync
            )
            results = respond_all(actor, requests, ordered=ordered, new=True)
        else:
            results = self._provider.respond_all_sync(actor, requests, ordered=ordered)
        if output is None:
            return results
        return (result.with_output(output) for result in results)

    async def submit(
        self,
        requests: Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output_format: type[Any] | None = None,
    ) -> Run:
        """Store a run and send it; the process may end as soon as this returns.

        ``label`` is for people. The same requests find the run that they made before, unless
        ``new``; if it has ended, what failed in it for a passing reason (expired, canceled,
        overload, …) is asked again, and a log record says so. ``output_format`` as in `respond`:
        the run's `results` read its answers, and another process gives it to them again. Raises
        `ActorConfigurationError` where the provider has no batches.
        """
        submit = cast("Callable[..., Awaitable[Run]]", self._batched("submit", requests))
        actor, output = self._shaped(output_format)
        run = await submit(actor, requests, label=label, new=new)
        if output is not None:
            run.output = output
        return run

    def submit_sync(
        self,
        requests: Iterable[str | ActorRequest],
        *,
        label: str | None = None,
        new: bool = False,
        output_format: type[Any] | None = None,
    ) -> Run:
        """`submit`, with or without a running event loop."""
        submit = cast("Callable[..., Run]", self._batched("submit_sync", requests))
        actor, output = self._shaped(output_format)
        run = submit(actor, requests, label=label, new=new)
        if output is not None:
            run.output = output
        return run

    def run(
        self,
        requests: Requests,
        *,
        label: str | None = None,
        new: bool = False,
        output_format: type[Any] | None = None,
        ordered: bool = True,
    ) -> RunContext:
        """`submit` as a block: ``async with actor.run(requests) as run:``, or ``with``.

        The block has the `Run`: its id, `progress`, `results`, `wait`, `retry_failed`, `cancel`.
        To iterate over it gives its results, in input order unless ``ordered`` is False. Leaving
        the block never cancels. Raises what `submit` raises, on entering.
        """
        self._batched("submit", requests)
        plain = cast(
            "Iterable[str | ActorRequest]", requests
        )  # an asynchronous one for `async with`

        def prepared(run: Run) -> Run:
            run.ordered = ordered
            return run

        async def submit() -> Run:
            run = self.submit(requests, label=label, new=new, output_format=output_format)
            return prepared(await run)

        def submit_sync() -> Run:
            run = self.submit_sync(plain, label=label, new=new, output_format=output_format)
            return prepared(run)

        return RunContext(submit, submit_sync)

    def _asks_anew(self, new: bool) -> bool:
        """Whether the provider must be told ``new``: one that keeps nothing asks anew anyway."""
        return new and self._provider.capabilities.durable

    def _shaped(
        self, output_format: type[Any] | None
    ) -> tuple[ActorConfiguration, OutputFormat[Any] | None]:
        """Whom to ask, and what reads the answers."""
        if output_format is None:
            return self._configuration, None
        output = output_format_of(output_format)
        # The same object each time, since what its requests share is encoded once for each.
        shaped = self._shapes.get(output.kind)
        if shaped is None:
            shaped = self._configuration.with_response_schema(output.schema, OutputJudge(output))
            if len(self._shapes) < _SHAPES_KEPT:
                shaped = self._shapes.setdefault(output.kind, shaped)
        return shaped, output

    def _batched(self, method: str, requests: object) -> object:
        check_requests(requests)
        found: object = getattr(self._provider, method, None)
        if found is None:
            raise ActorConfigurationError(
                f"actor {self.name} is answered by {self._provider.name!r}, which keeps no runs; "
                "write `batch_processing: true` in its YAML to submit"
            )
        return found

    def __repr__(self) -> str:
        return f"Actor({self.name!r}, provider={self._provider.name!r})"


def _kept(keep: bool) -> dict[str, bool]:
    # A provider of somebody else's, which knows nothing of it, is not troubled with the default.
    return {"keep": True} if keep else {}


def _read(response: ActorResponse, output: OutputFormat[Any] | None) -> ActorResponse:
    if output is None:
        return response
    read = response.with_output(output)
    read.validate()
    return read


async def _read_all(
    results: AsyncIterator[ActorResult], output: OutputFormat[Any]
) -> AsyncIterator[ActorResult]:
    try:
        async for result in results:
            yield result.with_output(output)
    finally:
        # Who ends the iteration ends the provider's too, at once.
        if isinstance(results, AsyncGenerator):
            await cast("AsyncGenerator[ActorResult]", results).aclose()


def load_actor(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    registry: ProviderRegistry | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    **settings: Any,
) -> Actor:
    """Read an actor's YAML and bind it to its provider.

    ``name`` chooses one of several actors in the file. ``tools`` are functions that the model may
    call, beside those that the file names as ``module:function``. ``settings`` are keywords of the
    provider (``ledger``, ``linger``, ``base_url``, …): they rank above environment and YAML; those
    that concern only batches are no fault for an actor that is answered live. Actors with the same
    settings share a provider, which the last of them to be closed closes. Raises
    `ActorConfigurationError` and `ProviderNotFoundError`.
    """
    configuration = ActorLoader.load(path, name=name)
    found = default_registry if registry is None else registry
    if functions := tuple(tools):
        configuration = configuration.with_tools(functions)
    _ = configuration.toolset  # before a provider is lent
    actor = Actor(configuration, found.lend(configuration, **settings))
    actor._registry = found  # pyright: ignore[reportPrivateUsage]
    return actor
