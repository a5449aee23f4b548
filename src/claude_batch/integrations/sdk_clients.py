"""SDK clients over a transport that answers Messages calls from batches."""

from __future__ import annotations

import anthropic
import httpx2

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.integrations.transport import AsyncBatchTransport, BatchCaller, BatchTransport


def async_client(provider: BatchCaller, *, owns: bool) -> anthropic.AsyncAnthropic:
    """Return an `AsyncAnthropic` that ``provider`` answers.

    ``owns``: closing the client also closes the provider. Raises `ActorConfigurationError` if the
    credentials cannot be used.
    """
    transport = AsyncBatchTransport(provider, owns=owns)
    given = provider.credentials()
    try:
        sdk = anthropic.AsyncAnthropic(
            base_url=given.get("base_url"),
            api_key=given.get("api_key"),
            # With any value but its default, the SDK does not require streaming for a large
            # `max_tokens`; None, because a batch may take a day.
            timeout=None,
            http_client=httpx2.AsyncClient(transport=transport, timeout=None),
        )
    except anthropic.AnthropicError as error:
        raise ActorConfigurationError(f"the credentials cannot be used: {error}") from None
    transport.bind(sdk.base_url, sdk.default_headers)
    return sdk


def sync_client(provider: BatchCaller, *, owns: bool) -> anthropic.Anthropic:
    """Return an `Anthropic` that ``provider`` answers, like `async_client`."""
    transport = BatchTransport(provider, owns=owns)
    given = provider.credentials()
    try:
        sdk = anthropic.Anthropic(
            base_url=given.get("base_url"),
            api_key=given.get("api_key"),
            timeout=None,
            http_client=httpx2.Client(transport=transport, timeout=None),
        )
    except anthropic.AnthropicError as error:
        raise ActorConfigurationError(f"the credentials cannot be used: {error}") from None
    transport.bind(sdk.base_url, sdk.default_headers)
    return sdk
