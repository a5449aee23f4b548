"""Token usage of one answer, as the API's ``usage`` object reports it."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one answer, under the API's own names."""

    input_tokens: int = 0
    """Tokens read at the full input price, without cached ones."""
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
    """Searches by the API's web search tool, which have a separate fee."""
    service_tier: str | None = None
    """``batch`` for an answer at the batch price."""
    inference_geo: str | None = None
    """Where the model ran; ``us`` has a separate price. None if the API does not report it."""
    speed: str | None = None
    """``fast`` for a live answer requested at a higher speed and price."""
