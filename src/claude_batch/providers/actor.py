"""`Actor`: a configuration bound to the provider that answers for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, cast

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.loader import ActorLoader
from claude_batch.actor.request import ActorRequest, Requests, check_requests
from claude_batch.actor.response import ActorResponse, ActorResult
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.providers.protocol import Provider
from claude_batch.providers.registry import ProviderRegistry, default_registry

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from claude_batch.providers.run import Run

__all__ = ["Actor", "load_actor"]


class Actor:
    """One actor, ready to be asked. Costs nothing to make; the provider is shared with others."""

    def __init__(self, configuration: ActorConfiguration, provider: Provider) -> None:
        """Raises `ActorConfigurationError` for an actor that is no ``llm``."""
        configuration.require_answerable()
        self._configuration = configuration
        self._provider = provider
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

    async def respond(
        self, request: str | ActorRequest, *, key: str | None = None
    ) -> ActorResponse:
        """Ask once. Raises an `ActorError` where there is no answer."""
        return await self._provider.respond(self._configuration, request, key=key)

    def respond_sync(self, request: str | ActorRequest, *, key: str | None = None) -> ActorResponse:
        """`respond`, with or without a running event loop."""
        return self._provider.respond_sync(self._configuration, request, key=key)

    def respond_all(
        self, requests: Requests, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        """Ask many; gives every result, failures included; as they complete unless ``ordered``."""
        check_requests(requests)
        return self._provider.respond_all(self._configuration, requests, ordered=ordered)

    def respond_all_sync(
        self, requests: Iterable[str | ActorRequest], *, ordered: bool = True
    ) -> Iterator[ActorResult]:
        """`respond_all`, with or without a running event loop."""
        check_requests(requests)
        return self._provider.respond_all_sync(self._configuration, requests, ordered=ordered)

    async def submit(
        self, requests: Requests, *, label: str | None = None, new: bool = False
    ) -> Run:
        """Store a run and send it; the process may end as soon as this returns.

        ``label`` is for people. The same requests find the run that they made before, unless
        ``new``. Raises `ActorConfigurationError` where the provider has no batches.
        """
        submit = cast("Callable[..., Awaitable[Run]]", self._batched("submit", requests))
        return await submit(self._configuration, requests, label=label, new=new)

    def submit_sync(
        self,
        requests: Iterable[str | ActorRequest],
        *,
        label: str | None = None,
        new: bool = False,
    ) -> Run:
        """`submit`, with or without a running event loop."""
        submit = cast("Callable[..., Run]", self._batched("submit_sync", requests))
        return submit(self._configuration, requests, label=label, new=new)

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


def load_actor(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    registry: ProviderRegistry | None = None,
    **settings: Any,
) -> Actor:
    """Read an actor's YAML and bind it to its provider.

    ``name`` chooses one of several actors in the file. ``settings`` are keywords of the provider
    (``ledger``, ``linger``, ``base_url``, …): they rank above environment and YAML; those that
    concern only batches are no fault for an actor that is answered live. Actors with the same
    settings share a provider, which the last of them to be closed closes. Raises
    `ActorConfigurationError` and `ProviderNotFoundError`.
    """
    configuration = ActorLoader.load(path, name=name)
    found = default_registry if registry is None else registry
    actor = Actor(configuration, found.lend(configuration, **settings))
    actor._registry = found  # pyright: ignore[reportPrivateUsage]
    return actor
