"""`Provider`: what a framework may rely on, whoever answers.

A provider is told with each call which actor asks, so that many actors share one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.request import ActorRequest, Requests
from claude_batch.actor.response import ActorResponse, ActorResult

__all__ = ["Provider", "ProviderCapabilities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCapabilities:
    """What can be expected of a provider."""

    batch: bool = False
    """Requests travel in batches: half the price, and up to 24 hours of patience."""
    streaming: bool = False
    """Answers can be had word by word as they are written."""
    sync: bool = False
    """The ``…_sync`` twins work, with and without a running event loop."""
    durable: bool = False
    """What was asked outlives the process: nothing is lost and nothing is paid for twice."""


@runtime_checkable
class Provider(Protocol):
    """Answers the requests of actors. ``isinstance`` checks that the names are there."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def provider_name(self) -> str:
        """The same, under the host's word."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities:
        """What can be expected of it."""
        ...

    async def respond(
        self,
        actor: ActorConfiguration,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """Ask once. Raises an `ActorError` where there is no answer.

        ``keep``: what the provider has stored is sent although the caller leaves before.
        """
        ...

    def respond_all(
        self, actor: ActorConfiguration, requests: Requests, *, ordered: bool = True
    ) -> AsyncIterator[ActorResult]:
        """Ask many, failures included in what it gives; as they complete unless ``ordered``."""
        ...

    def respond_sync(
        self,
        actor: ActorConfiguration,
        request: str | ActorRequest,
        *,
        key: str | None = None,
        keep: bool = False,
    ) -> ActorResponse:
        """`respond`, with or without a running event loop."""
        ...

    def respond_all_sync(
        self,
        actor: ActorConfiguration,
        requests: Iterable[str | ActorRequest],
        *,
        ordered: bool = True,
    ) -> Iterator[ActorResult]:
        """`respond_all`, with or without a running event loop."""
        ...

    def create_chat_model(self, model: str, temperature: float | None = None, **kwargs: Any) -> Any:
        """LangChain's chat model, answered by this provider."""
        ...

    async def aclose(self) -> None:
        """Give back what is held; the provider cannot be asked again."""
        ...

    def close(self) -> None:
        """`aclose`, for callers without an event loop."""
        ...
