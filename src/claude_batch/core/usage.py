"""What one answer used, in tokens, as the API's ``usage`` object reports it."""

from __future__ import annotations

import msgspec

__all__ = ["Usage"]


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one answer, under the API's own names."""

    input_tokens: int = 0
    """Tokens read at the full input price, cached ones not counted."""
    output_tokens: int = 0
    """Tokens written."""
    cache_creation_input_tokens: int = 0
    """Tokens written to the prompt cache, of both lifetimes."""
    cache_read_input_tokens: int = 0
    """Tokens read from the prompt cache."""
    cache_creation_5m_input_tokens: int = 0
    """The part of ``cache_creation_input_tokens`` with a lifetime of five minutes."""
    cache_creation_1h_input_tokens: int = 0
    """The part of ``cache_creation_input_tokens`` with a lifetime of one hour."""
    web_search_requests: int = 0
    """Searches made by the API's web search tool, which cost a fee of their own."""
    service_tier: str | None = None
    """``batch`` for an answer that came at the batch price."""
    inference_geo: str | None = None
    """Where the model ran; ``us`` has a price of its own. None where the API does not tell."""
    speed: str | None = None
    """``fast`` where a live answer was asked for at a higher speed and price."""
