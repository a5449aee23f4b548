"""The API's limits and names, and its models' capabilities; each with its source.

A model is refused only what it is known to refuse. A model without an entry (a new one, or a name
of a gateway or of another platform) is assumed to have every capability, because the API decides.

Structured outputs are missing in the models that are older than the feature: those that neither
https://platform.claude.com/docs/en/build-with-claude/structured-outputs ("Structured outputs are
generally available", and the announcement of the beta structured-outputs-2025-11-13) nor the model
profiles of pydantic-ai 2.68 (`supports_json_schema_output`) name.

The SDK reports the same at run time (`GET /v1/models`, `capabilities.structured_outputs`, anthropic
2.12). It is not queried, because a check must not need the network.

Source of the limits, unless a line names another:
https://platform.claude.com/docs/en/build-with-claude/batch-processing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

# Models -------------------------------------------------------------------------------------------

Capability = Literal["structured_outputs"]
"""A capability that can be checked, under the SDK's name for it (`ModelCapabilities`)."""

CAPABILITIES: Final[tuple[Capability, ...]] = get_args(Capability)


_WITHOUT_STRUCTURED_OUTPUTS: Final = frozenset(
    {
        "claude-instant",
        "claude-2.0",
        "claude-2.1",
        "claude-3",  # 3, 3.5 and 3.7
        "claude-opus-4-0",
        "claude-opus-4-20250514",
        "claude-sonnet-4-0",
        "claude-sonnet-4-20250514",
    }
)
"""Models that refuse ``output_config.format`` with a JSON schema, and ``strict`` tools.

A name also stands for those that continue it after a hyphen (a version, a date)."""


def has_capability(
    model: str, capability: Capability, overrides: Mapping[str, bool] | None = None
) -> bool:
    """Return whether a model has a capability; ``overrides`` take precedence over the table.

    A model that is not in the table has all of them.
    """
    own = None if overrides is None else overrides.get(capability)
    if own is not None:
        return own
    parts = model.split("-")
    names = ("-".join(parts[:end]) for end in range(1, len(parts) + 1))
    return _WITHOUT_STRUCTURED_OUTPUTS.isdisjoint(names)


def _of_beginning(model: str, table: Mapping[str, int], otherwise: int) -> int:
    found = (value for beginning, value in table.items() if model.startswith(beginning))
    return next(found, otherwise)


# Limits -------------------------------------------------------------------------------------------

MAX_REQUESTS = 100_000
"""Most requests in one batch."""

MAX_BODY_BYTES = 256_000_000
"""Most bytes of one create call's body, including the envelope ("256 MB")."""

LIST_PAGE = 1000
"""Most batches in one page of the list (the API's ``limit`` is 1 to 1000)."""

SHORTEST_LIST_PAGE = 20
"""Batches in one page of the list if a call names no ``limit``."""

RESULTS_KEPT_DAYS = 29
"""Days from ``created_at`` in which results can be read."""

WARN_FROM_DAY = 25
"""Age in days from which users are warned that a batch's results will expire; our own choice."""

API_VERSION = "2026-10-21"
"""The ``anthropic-version`` that anthropic SDK 2.x sends (its ``_constants.py``)."""

SAMPLING_API_VERSION = "2023-06-01"
"""The ``anthropic-version`` that still accepts sampling parameters."""

SAMPLING_PARAMETERS = ("temperature", "top_p", "top_k")
"""Parameters that were removed from the API in version 2026-10-21."""

REFUSED_IN_BATCH = ("speed", "store", "cache_hint", "context_hint")
"""Messages parameters that a batch refuses with any value.

``stream: true`` and ``max_tokens: 0`` are refused for their values."""

_NEWEST = (
    *("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5"),
    *("claude-haiku-5-5", "claude-fable-5", "claude-mythos-5"),
)
"""Models that take no sampling parameters and think adaptively only.

The entries are prefixes of names; a model that is not in the table passes."""
# Source: the model profiles of pydantic-ai 2.68 (`anthropic_disallows_sampling_settings`,
# `anthropic_disallows_budget_thinking`), which follow
# https://platform.claude.com/docs/en/about-claude/models and
# https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking; and recordings of the API
# ("thinking.type.enabled" is not supported for this model).


def takes_sampling(model: str) -> bool:
    """Return False for models that refuse `SAMPLING_PARAMETERS` under every API version."""
    return not model.startswith(_NEWEST)


_TAKE_ONE_SAMPLING = (
    *("claude-opus-4-1", "claude-opus-4-5", "claude-opus-4-6", "claude-sonnet-4-5"),
    *("claude-sonnet-4-6", "claude-haiku-4-5"),
)
# Source: https://platform.claude.com/docs/en/about-claude/models/migration-guide ("Update sampling
# parameters"), and the API's error about it. The entries are prefixes of names.


def takes_both_samplings(model: str) -> bool:
    """Return False for models that refuse ``temperature`` together with ``top_p``."""
    return not model.startswith(_TAKE_ONE_SAMPLING)


LEAST_THINKING_BUDGET = 1024
"""Smallest ``budget_tokens`` (`ThinkingConfigEnabledParam` in anthropic 2.12)."""


_NEWER = ("claude-opus-4-6", "claude-sonnet-4-6", *_NEWEST)
# Source: the API's error (`does not support assistant message prefill`), and
# https://platform.claude.com/docs/en/about-claude/models/migration-guide.


def takes_prefill(model: str) -> bool:
    """Return False for models that refuse messages which end with the assistant's own."""
    return not model.startswith(_NEWER)


LEAST_THINKING_TOP_P = 0.95
"""Smallest ``top_p`` together with ``thinking``."""


def takes_thinking_budget(model: str) -> bool:
    """Return False for models that refuse ``thinking`` of the type ``enabled``."""
    return not model.startswith(_NEWEST)


LONG_OUTPUT_BETA = "output-300k-2026-03-24"
MAX_LONG_OUTPUT_TOKENS = 300_000
"""Highest ``max_tokens`` with that beta, in batches only.

It applies to Opus and Sonnet from 4.6 on, and to Haiku 5.5."""

MAX_OUTPUT_TOKENS = 128_000
"""Highest ``max_tokens`` of every newer model, and of models that are not in the table."""

_SHORTER_OUTPUT = {
    "claude-3-haiku": 4_096,
    "claude-3-5-": 8_192,
    "claude-opus-4-0": 32_000,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-2025": 32_000,
    "claude-opus-4-5": 64_000,
    "claude-sonnet-4-0": 64_000,
    "claude-sonnet-4-2025": 64_000,
    "claude-sonnet-4-5": 64_000,
    "claude-haiku-4-5": 64_000,
}
# Source: the model profiles of langchain-anthropic 1.7 (from models.dev) and, for the oldest
# models, https://platform.claude.com/docs/en/about-claude/models. The keys are prefixes of names.

_LONG_OUTPUT = (
    *("claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-opus-5"),
    *("claude-sonnet-4-6", "claude-sonnet-5", "claude-haiku-5-5"),
)

MAX_PDF_PAGES = 600
"""Most pages of all PDFs of one request.

Source: https://platform.claude.com/docs/en/build-with-claude/pdf-support"""

_MAX_PDF_PAGES_OF_SMALL = 100
_SMALL_CONTEXT = (
    *("claude-2", "claude-3", "claude-haiku-4-5", "claude-sonnet-4-0", "claude-sonnet-4-2025"),
    *("claude-sonnet-4-5", "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2025"),
    "claude-opus-4-5",
)
# Source: the same page, for models with a context of 200,000 tokens. These models are listed in
# genai-prices 0.2.3 (`context_window`). The entries are prefixes of names.


def takes_adaptive_thinking(model: str) -> bool:
    """Return False for models from before it, all of which have the small context."""
    return not model.startswith(_SMALL_CONTEXT)


LONGEST_WINDOW = 1_000_000
"""Tokens of the longest context window of any model ("Context windows")."""

_SMALL_WINDOW = 200_000
_WIDENED = ("claude-sonnet-4-0", "claude-sonnet-4-2025", "claude-sonnet-4-5")
# The beta context-1m-2025-08-07 gives these a million tokens. Params do not show it.


LONGEST_MODEL_NAME = 256
"""Most characters of a model's name; names of models have about 30."""

LONGEST_BETAS = 2000
"""Most characters of all betas of a request. An index of PostgreSQL holds 2,700 bytes."""


def longest_window(model: str) -> int:
    """Return the most tokens of context that a model can have, with or without a beta."""
    is_small = model.startswith(_SMALL_CONTEXT) and not model.startswith(_WIDENED)
    return _SMALL_WINDOW if is_small else LONGEST_WINDOW


def max_pdf_pages(model: str) -> int:
    """Return the most pages that the PDFs of one request may have together."""
    return _MAX_PDF_PAGES_OF_SMALL if model.startswith(_SMALL_CONTEXT) else MAX_PDF_PAGES


MAX_CACHE_POINTS = 4
"""Most ``cache_control`` marks in one request.

Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching"""

_LEAST_CACHED = {
    "claude-opus-4-5": 4096,
    "claude-opus-4-6": 4096,
    "claude-haiku-4-5": 4096,
    "claude-sonnet-4-6": 2048,
    "claude-3-5-haiku": 2048,
    "claude-3-haiku": 2048,
}
# Source: the same page ("Cache limitations"). The keys are prefixes of names.


def least_cached_tokens(model: str) -> int:
    """Return the fewest tokens of a prefix that the API caches.

    1024 for a model that is not in the table; a mark on a prefix that is too short has no effect.
    """
    return _of_beginning(model, _LEAST_CACHED, 1024)


_TAKE_NO_FORCED_TOOLS = (
    *("claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2"),
    *("claude-opus-5-5", "claude-sonnet-5-5"),
)
# Source: the model profiles of pydantic-ai 2.68 (`supports_forced_tool_choice`).


def max_output_tokens(model: str) -> int:
    """Return the highest ``max_tokens`` without a beta."""
    return _of_beginning(model, _SHORTER_OUTPUT, MAX_OUTPUT_TOKENS)


def takes_long_output(model: str) -> bool:
    """Return whether `LONG_OUTPUT_BETA` raises the model's limit."""
    return model.startswith(_LONG_OUTPUT)


def takes_forced_tools(model: str) -> bool:
    """Return False for models that refuse ``tool_choice`` of ``any`` and ``tool``."""
    return not model.startswith(_TAKE_NO_FORCED_TOOLS)
