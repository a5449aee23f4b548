"""`client` and `http_client`: the SDK's own client, whose Messages calls are answered from batches.

Any code on `AsyncAnthropic` or `Anthropic` is batched without a change: pydantic-ai, instructor,
LangChain, or the caller's own. Code that creates its own SDK client takes an ``http_client``.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.integrations.transport import (
    AsyncBatchTransport,
    BatchTransport,
    async_client,
    sync_client,
)
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.sync_bridge import check_object


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


def http_client(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> httpx2.AsyncClient:
    """Return the ``http_client`` for an `AsyncAnthropic` that other code creates.

    It behaves as `client` does. Without a ``provider``, a base URL and a key that ``settings`` do
    not name are those of the first call. A call with another base URL or key is refused, because
    its batch would be paid for by the first one's account. Closing it closes a provider that it
    created. Raises `ActorConfigurationError`.
    """
    found, owns = _provider(provider, settings)
    transport = AsyncBatchTransport(found, owns=owns)
    # An SDK client takes its timeout from here. None, because a batch may take a day.
    return httpx2.AsyncClient(transport=transport, timeout=None)


def http_client_sync(
    *, provider: ClaudeBatchProvider | None = None, **settings: Any
) -> httpx2.Client:
    """Return an `http_client` for code without an event loop: for an `Anthropic`."""
    found, owns = _provider(provider, settings)
    return httpx2.Client(transport=BatchTransport(found, owns=owns), timeout=None)


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
    check_object("provider", given)
    return given, False
