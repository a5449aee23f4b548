"""The models that the sandbox knows, with their limits and capabilities.

A model is known by the shape of its name, so that tests with the models of tomorrow work:
`claude-`, then a family and a version (`claude-haiku-4-5`) or, as in older names, a version and a
family (`claude-3-5-haiku`), and optionally a date or `latest`. A name of another shape is an
unknown model, as a typing mistake is for the API (`claude-haiku-4.5`, `gpt-5`).

Sources: https://platform.claude.com/docs/en/about-claude/models, the names in the SDK's type
`Model`, and the model profiles of pydantic-ai 2.68 and langchain-anthropic 1.7.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LISTED = (
    *("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"),
    "claude-haiku-4-5-20251001",
)
"""Models that `GET /v1/models` lists; every other known name is answered too."""

_SHAPE = re.compile(
    r"claude-(?:[a-z]+(?:-\d{1,2}){1,2}|[a-z]+-preview|\d(?:-\d)?-[a-z]+"  # opus-4-5, 3-5-haiku
    r"|[12](?:\.\d)?|instant-1(?:\.\d)?)"
    r"(?:-latest|-100k|-\d{8})?"
)

_ID_OF = {
    "claude-haiku-4-5": "claude-haiku-4-5-20251001",
    "claude-sonnet-4-5": "claude-sonnet-4-5-20250929",
    "claude-opus-4-5": "claude-opus-4-5-20251101",
    "claude-opus-4-1": "claude-opus-4-1-20250805",
    "claude-opus-4-0": "claude-opus-4-20250514",
    "claude-sonnet-4-0": "claude-sonnet-4-20250514",
    "claude-3-7-sonnet-latest": "claude-3-7-sonnet-20250219",
    "claude-3-5-sonnet-latest": "claude-3-5-sonnet-20241022",
    "claude-3-5-haiku-latest": "claude-3-5-haiku-20241022",
    "claude-3-opus-latest": "claude-3-opus-20240229",
}
"""Ids of aliases. Since version 4.6, ids have no date, and a name is its own id."""

# All others are prefixes of ids.

_MAX_TOKENS = {
    "claude-1": 4_096,
    "claude-2": 4_096,
    "claude-instant": 4_096,
    "claude-3-7": 64_000,
    "claude-3-5": 8_192,
    "claude-3": 4_096,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-2025": 32_000,
    "claude-opus-4-5": 64_000,
    "claude-sonnet-4-2025": 64_000,
    "claude-sonnet-4-5": 64_000,
    "claude-haiku-4-5": 64_000,
}
_NEWER_MAX_TOKENS = 128_000
_LONG_MAX_TOKENS = 300_000
_LONG_INPUT_TOKENS = 1_000_000

SAMPLING_FREE_VERSION = "2026-10-21"
"""The `anthropic-version` from which `temperature`, `top_p` and `top_k` are rejected."""
LONG_OUTPUT_BETA = "output-300k-2026-03-24"
LONG_CONTEXT_BETA = "context-1m-2025-08-07"

_OLDER = (
    *("claude-1", "claude-2", "claude-3", "claude-instant", "claude-haiku-4"),
    *("claude-sonnet-4-2025", "claude-sonnet-4-5"),
    *("claude-opus-4-1", "claude-opus-4-2025", "claude-opus-4-5"),
)
"""Models from before adaptive thinking, with a context of 200,000 tokens."""

_BUDGETED = ("claude-opus-4-6", "claude-sonnet-4-6", "claude-mythos-preview")
"""Newer models that still take a budget of thinking tokens."""

_THINKS_IF_ASKED = ("claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-6")
_THINKS_ALWAYS = ("claude-fable-", "claude-mythos-", "claude-opus-5-5")
_TAKES_NO_DISABLED = (*_THINKS_ALWAYS, "claude-sonnet-5-5")
_TAKES_NO_FORCED_TOOL = (
    *("claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2"),
    *("claude-opus-5-5", "claude-sonnet-5-5"),
)
_TAKES_NO_SAMPLING = (
    *("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5"),
    *("claude-haiku-5-5", "claude-fable-5", "claude-mythos-5"),
)
_TAKES_ONE_SAMPLING = (
    *("claude-opus-4-1", "claude-opus-4-5", "claude-opus-4-6", "claude-sonnet-4-5"),
    *("claude-sonnet-4-6", "claude-haiku-4-5"),
)
_WIDENED = ("claude-sonnet-4-2025", "claude-sonnet-4-5")
_LONG_OUTPUT = ("claude-opus-", "claude-sonnet-", "claude-haiku-5-5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model."""

    id: str
    """Dated id for an alias; answers name it."""
    max_tokens: int
    """Highest `max_tokens` without a beta."""
    max_long_tokens: int
    """The same with the beta for long output, in a batch."""
    max_input_tokens: int
    max_long_input_tokens: int
    """The same with the beta for long context."""
    newer: bool
    """Whether it knows adaptive thinking, and reports how many of its tokens were thoughts."""
    takes_budget: bool
    """Whether `thinking` may be `enabled`."""
    takes_disabled: bool
    """Whether `thinking` may be `disabled`."""
    thinks_unasked: bool
    """Whether it thinks if `thinking` is not given."""
    takes_sampling: bool
    """Whether it accepts `temperature`, `top_p` and `top_k`, under the version that has them."""
    takes_both_samplings: bool
    """Whether it accepts `temperature` and `top_p` in one request."""
    takes_forced_tool: bool
    """Whether `tool_choice` may be `any` or `tool`."""


@lru_cache(maxsize=1000)
def model_named(name: str) -> Model | None:
    """Return the model of an id or alias, or `None` for a name of unknown shape."""
    if _SHAPE.fullmatch(name) is None:
        return None
    known = _ID_OF.get(name, name)
    newer = not known.startswith(_OLDER)
    limits = (most for start, most in _MAX_TOKENS.items() if known.startswith(start))
    max_tokens = next(limits, _NEWER_MAX_TOKENS)
    long_output = newer and known.startswith(_LONG_OUTPUT)
    max_input_tokens = _LONG_INPUT_TOKENS if newer else 200_000
    return Model(
        id=known,
        max_tokens=max_tokens,
        max_long_tokens=_LONG_MAX_TOKENS if long_output else max_tokens,
        max_input_tokens=max_input_tokens,
        max_long_input_tokens=(
            _LONG_INPUT_TOKENS if known.startswith(_WIDENED) else max_input_tokens
        ),
        newer=newer,
        takes_budget=not newer or known.startswith(_BUDGETED),
        takes_disabled=not known.startswith(_TAKES_NO_DISABLED),
        thinks_unasked=newer and not known.startswith(_THINKS_IF_ASKED),
        takes_sampling=not known.startswith(_TAKES_NO_SAMPLING),
        takes_both_samplings=not known.startswith(_TAKES_ONE_SAMPLING),
        takes_forced_tool=not known.startswith(_TAKES_NO_FORCED_TOOL),
    )
