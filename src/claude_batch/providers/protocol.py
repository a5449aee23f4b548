"""`Provider`: the interface that an actor may rely on, for any provider; `FullProvider` has more.

Each call names the actor, so that many actors share one provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import RequestLike, Requests
from claude_batch.actor.response import ActorResponse, ActorResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCapabilities:
    """The capabilities of a provider that a caller may rely on."""

    batch: bool = False
    """Requests travel in batches: half the price, and up to 24 hours of latency."""
    streaming: bool = False
    """Answers can be streamed as they are generated."""
    sync: bool = False
    """The ``…_sync`` methods work, with and without a running event loop."""
    durable: bool = False
    """Requests outlive the process: nothing is lost and nothing is paid for twice.

    The methods of such a provider also take the settings of a run as keywords (``mode``,
    ``deadline``, ``budget_usd``, …), for one call.
    """


@runtime_checkable
class Provider(Protocol):
    """Answers the requests of actors: the names that every actor needs.

    ``isinstance`` checks that the names are there.
    """

    @property
    def capabilities(self) -> ProviderCapabilities:
        """The capabilities of this provider that a caller may rely on."""
        ...

    async def respond(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """Send one request and return its response. Raises an `ActorError` if there is no answer.

        `ActorRequest.of` makes an `ActorRequest` of every form of a request.

        ``keep``: a request that the provider has stored is sent even if the caller is cancelled.
        """
        ...

    def respond_all(
        self, actor: ActorConfiguration, requests: Requests, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        """Send many requests and yield their results, failures included.

        Results come in input order, or as they complete if ``ordered`` is False.
        """
        ...

    async def aclose(self) -> None:
        """Release all resources; the provider accepts no more calls."""
        ...

    def close(self) -> None:
        """Run `aclose` for callers without an event loop."""
        ...


@runtime_checkable
class FullProvider(Provider, Protocol):
    """A provider with all that `ClaudeProvider` and `ClaudeBatchProvider` have in common."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def provider_name(self) -> str:
        """The same name, under the host's term."""
        ...

    def respond_sync(
        self,
        actor: ActorConfiguration,
        request: RequestLike,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """Run `respond` synchronously, with or without a running event loop."""
        ...

    def respond_all_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[RequestLike],
        *,
        ordered: bool = True,
    ) -> Iterator[ActorResult]:
        """Run `respond_all` synchronously, with or without a running event loop."""
        ...

    def create_chat_model(self, model: str, temperature: float | None = None, **kwargs: Any) -> Any:
        """Return LangChain's chat model, answered by this provider."""
        ...
