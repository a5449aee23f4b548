"""Capabilities of Anthropic's models: one table, each row with its source.

The table refuses only what is known to be refused. A model without a row (a new one, or a name of a
gateway or of another platform) is assumed to have every capability, because the API decides.

Sources of the rows:

- (a) https://platform.claude.com/docs/en/build-with-claude/structured-outputs, "Structured outputs
  are generally available": Opus 4.6, Sonnet 4.6, Sonnet 4.5, Opus 4.5 and Haiku 4.5, with the
  announcement of the beta (structured-outputs-2025-11-13) for Sonnet 4.5 and Opus 4.1.
- (b) The model profiles of pydantic-ai 2.68 (`supports_json_schema_output`), which follow (a).
- (c) The models that (a) and (b) leave out: all of them are older than the feature.

The SDK reports the same at run time (`GET /v1/models`, `capabilities.structured_outputs`, anthropic
2.12). It is not queried, because a check must not need the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Capability = Literal["structured_outputs"]
"""A capability that can be checked, under the SDK's name for it (`ModelCapabilities`)."""

CAPABILITIES: Final[tuple[Capability, ...]] = get_args(Capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of one model. The defaults apply to models that are not in the table."""

    structured_outputs: bool = True
    """Support for ``output_config.format`` with a JSON schema, and for ``strict`` tools."""


_UNKNOWN: Final = Capabilities()
_OLDER: Final = Capabilities(structured_outputs=False)
_NEWER: Final = Capabilities(structured_outputs=True)

_MODELS: Final[Mapping[str, Capabilities]] = {
    "claude-instant": _OLDER,  # (c)
    "claude-2.0": _OLDER,  # (c)
    "claude-2.1": _OLDER,  # (c)
    "claude-3": _OLDER,  # (c): 3, 3.5 and 3.7
    "claude-opus-4-0": _OLDER,  # (c)
    "claude-opus-4-20250514": _OLDER,  # (c)
    "claude-sonnet-4-0": _OLDER,  # (c)
    "claude-sonnet-4-20250514": _OLDER,  # (c)
    "claude-opus-4-1": _NEWER,  # (a) in the beta, (b)
    "claude-opus-4-5": _NEWER,  # (a), (b)
    "claude-opus-4-6": _NEWER,  # (a), (b)
    "claude-opus-4-7": _NEWER,  # (b)
    "claude-opus-4-8": _NEWER,  # (b)
    "claude-opus-5": _NEWER,  # (b), 5.5 included
    "claude-sonnet-4-5": _NEWER,  # (a), (b)
    "claude-sonnet-4-6": _NEWER,  # (a), (b)
    "claude-sonnet-5": _NEWER,  # (b), 5.5 included
    "claude-haiku-4-5": _NEWER,  # (a), (b)
    "claude-haiku-5-5": _NEWER,  # (b)
    "claude-fable-5": _NEWER,  # (b), 5.1 and 5.2 included
    "claude-mythos-5": _NEWER,  # (b), 5.1 and 5.2 included
}
"""A row applies to its name, and to names that continue it after a hyphen (a version, a date)."""


def capabilities_of(model: str) -> Capabilities:
    """Return the capabilities of a model from the table; an unknown model has all of them."""
    name = model
    while name not in _MODELS:
        name, hyphen, _ = name.rpartition("-")
        if not hyphen:
            return _UNKNOWN
    return _MODELS[name]


def has_capability(
    model: str, capability: Capability, overrides: Mapping[str, bool] | None = None
) -> bool:
    """Return whether a model has a capability; ``overrides`` take precedence over the table."""
    own = None if overrides is None else overrides.get(capability)
    if own is not None:
        return own
    return bool(getattr(capabilities_of(model), capability))
