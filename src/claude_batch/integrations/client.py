"""`client`: the SDK's own client, whose Messages calls are answered from batches.

Any code on `AsyncAnthropic` or `Anthropic` is batched without a change: pydantic-ai, instructor,
LangChain, or one's own.
"""

from __future__ import annotations

from typing import Any

import anthropic

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.integrations.sdk_clients import async_client, sync_client
from claude_batch.providers.batch import ClaudeBatchProvider

__all__ = ["client", "client_sync"]


def client(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> anthropic.AsyncAnthropic:
    """An `AsyncAnthropic` whose every ``messages.create`` is batched, streams included.

    ``settings`` are those of `ClaudeBatchProvider`; or give an existing ``provider``. Calls wait as
    long as a batch takes (at most ``max_wait``), unless a call sets a ``timeout`` itself; its
    request stays in the ledger then. Failures raise the SDK's own exceptions, and are not asked
    again by it. Every other endpoint is the real API's. Closing the client closes a provider that
    it made. Raises `ActorConfigurationError`.
    """
    found, owns = _provider(provider, settings)
    return async_client(found, owns=owns)


def client_sync(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> anthropic.Anthropic:
    """`client` for code without an event loop: an `Anthropic`, whose calls block their thread."""
    found, owns = _provider(provider, settings)
    return sync_client(found, owns=owns)


def _provider(
    given: ClaudeBatchProvider | None, settings: dict[str, Any]
) -> tuple[ClaudeBatchProvider, bool]:
    if given is None:
        return ClaudeBatchProvider(**settings), True
    if settings:
        raise ActorConfigurationError(
            f"{', '.join(settings)}: a provider was given, which has its own settings; "
            "give either a provider or settings"
        )
    return given, False
