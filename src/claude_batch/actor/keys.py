"""Classify a key of an actor's YAML: known, the host's, or a misspelled known key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, cast

_HOISTED = (
    *("description", "system_prompt", "options", "response_format", "batch_processing"),
    *("documents", "citations", "model_capabilities"),
)
# Fields that may stand in a nested `config` as well as beside it.

LOOSE_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "stop_sequences")
# Messages parameters that hosts write beside `model` instead of in `options`. To carry them without
# sending them would silently change every answer.

_ACTOR_KEYS = (
    *_HOISTED,
    *LOOSE_OPTIONS,
    "config",
    "model",
    "model_id",
    "name",
    "provider",
    "provider_type",
    "type",
    "version",
)
_CONFIG_KEYS = (*_HOISTED, *LOOSE_OPTIONS, "provider", "model", "actor")

MESSAGES_PARAMETERS = (
    *LOOSE_OPTIONS,
    "betas",
    "billing_policy",
    "cache_control",
    "cache_hint",
    "compaction",
    "container",
    "context_hint",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "mcp_servers",
    "metadata",
    "output_config",
    "output_format",
    "service_tier",
    "speed",
    "store",
    "stream",
    "system",
    "thinking",
    "thread",
    "tool_choice",
    "tools",
    "user_profile_id",
    "workspace_id",
)
# `MessageCreateParams` and its beta twin in anthropic 2.11. Other keys pass; the API decides.

_HOST_KEYS = frozenset(
    ("context_view", "edges", "graph", "memory", "mode", "nodes", "routes", "skills", "tools")
)
# The host's own keys: never reported as a misspelling of a known one.

_ALIASES = {
    "batch": "batch_processing",
    "batched": "batch_processing",
    "batching": "batch_processing",
    "batch_mode": "batch_processing",
    "system": "system_prompt",
}
# Too different from the known words for difflib, but too costly to ignore silently.


def key_faults(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield ``(path, message)`` for each key of an ``llm`` actor that looks misspelled."""
    if str(data.get("type", "llm")).strip().lower() != "llm":
        return  # the host's other kinds of actor have keys of their own
    yield from _misspelled(data, (), _ACTOR_KEYS)
    config = data.get("config")
    if isinstance(config, Mapping):
        nested = cast("Mapping[str, Any]", config)
        yield from _misspelled(nested, ("config",), _CONFIG_KEYS)


def _misspelled(
    data: Mapping[str, Any], path: tuple[str, ...], words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for key in data:
        if not isinstance(cast("object", key), str) or key in _ACTOR_KEYS or key in _HOST_KEYS:
            continue
        meant = _ALIASES.get(key.lower()) or close_word(key, words, cutoff=0.8)
        if meant is not None:
            yield (*path, key), f"unknown key `{key}`; did you mean `{meant}`?"


def close_word(key: str, words: tuple[str, ...], *, cutoff: float) -> str | None:
    """Return the known word that ``key`` seems to mean; None for a known or unrelated word."""
    if key in words:
        return None
    found = difflib.get_close_matches(key.lower().replace("-", "_"), words, n=1, cutoff=cutoff)
    return found[0] if found else None


def hoist(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Move the allowed keys of ``config`` to the top level; existing top-level keys win."""
    flat = dict(data)
    config = flat.get("config")
    if not isinstance(config, Mapping):
        return flat, ()
    nested = dict(cast("Mapping[str, Any]", config))
    hoisted = tuple(name for name in _HOISTED if name in nested and name not in flat)
    flat.update((name, nested.pop(name)) for name in hoisted)
    flat["config"] = nested
    return flat, hoisted
