"""`client`: the SDK's own client, whose Messages calls are answered from batches.

Any code on `AsyncAnthropic` or `Anthropic` is batched without a change: pydantic-ai, instructor,
LangChain, or the caller's own.
"""

from __future__ import annotations

from typing import Any

import anthropic

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.integrations.transport import async_client, sync_client
from claude_batch.providers.batch import ClaudeBatchProvider


def client(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> anthropic.AsyncAnthropic:
    """Return an `AsyncAnthropic` that batches every ``messages.create``, streams included.

    ``settings`` are those of `ClaudeBatchProvider`; or pass an existing ``provider``. Calls wait as
    long as a batch takes (at most ``max_wait``), unless a call sets its own ``timeout``; after
    that, its request stays in the ledger. Failures raise the SDK's own exceptions, and the SDK does
    not retry them. Every other endpoint goes to the real API. Closing the client closes a provider
    that it created. Raises `ActorConfigurationError`.
    """
    found, owns = _provider(provider, settings)
    return async_client(found, owns=owns)


def client_sync(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> anthropic.Anthropic:
    """Return a `client` for code without an event loop: an `Anthropic` with blocking calls."""
    found, owns = _provider(provider, settings)
    return sync_client(found, owns=owns)


def _provider(
    given: ClaudeBatchProvider | None, settings: dict[str, Any]
) -> tuple[ClaudeBatchProvider, bool]:
    if given is None:
        return ClaudeBatchProvider(**settings), True
    if settings:
        raise ActorConfigurationError(
            f"{', '.join(settings)}: the given provider has its own settings; pass either a "
            "provider or settings"
        )
    return given, False
