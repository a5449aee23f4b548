"""The settings that `ClaudeBatchProvider` takes as keywords, and whose they are.

They rank with the command line's flags: above environment variables and an actor's YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict, cast

from claude_batch.core.durations import parse_deadline, parse_duration
from claude_batch.core.settings import BatchProcessingMode, LedgerSettings, resolve_mode

__all__ = ["SettingKeywords", "ledger_keywords", "mode_keywords"]

_Duration = str | float | int

_Dollars = Decimal | str | float | int

_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "linger",
            "poll_interval",
            "max_poll_interval",
            "max_wait",
            "deadline_margin",
            "turn_linger",
        ),
        parse_duration,
    ),
    "deadline": parse_deadline,
}

_OF_MODE = frozenset(BatchProcessingMode.model_fields)
_OF_LEDGER = frozenset(field.name for field in fields(LedgerSettings))


class SettingKeywords(TypedDict, total=False):
    """What can be set: each field is explained where `claude_batch.core.settings` has it.

    None means: as the environment, the actor or the default say.
    """

    # Of `BatchProcessingMode`
    linger: _Duration | None
    max_requests: int | None
    poll_interval: _Duration | None
    max_poll_interval: _Duration | None
    max_wait: _Duration | None
    on_timeout: Literal["park", "cancel"] | None
    max_attempts: int | None
    mode: Literal["batch", "live", "auto"] | None
    auto_threshold: int | None
    live_concurrency: int | None
    live_retry: Literal["safe", "always"] | None
    deadline: _Duration | datetime | None
    deadline_margin: _Duration | None
    fallback: Literal["live", "none"] | None
    budget_usd: _Dollars | None
    actor_budget_usd: _Dollars | None
    max_turns: int | None
    turn_linger: _Duration | None
    validation_attempts: int | None
    preflight: bool | Literal["auto"] | None
    cache: Literal["off", "auto"] | None
    prime: bool | None
    reuse: bool | None
    dedupe: bool | None
    # Of `LedgerSettings`
    settling: _Duration | None
    arm_window: _Duration | None
    lookback: _Duration | None
    not_found_after: _Duration | None
    missing_after: _Duration | None
    on_unknown: Literal["wait", "resubmit"] | None
    resubmit_after: _Duration | None
    exclusive_workspace: bool | None
    probe_interval: _Duration | None
    prices: str | os.PathLike[str] | None
    allow_tools_from_ledger: bool | None
    daily_budget_usd: _Dollars | None


def mode_keywords(settings: SettingKeywords) -> dict[str, Any]:
    """Those of `BatchProcessingMode` that were given, durations in seconds.

    Raises ``TypeError`` for a name that is no setting at all, and `ActorConfigurationError` for a
    value that cannot be used: here, not at the first request.
    """
    given = cast("Mapping[str, Any]", settings)
    for name in given:
        if name not in _OF_MODE | _OF_LEDGER:
            raise TypeError(f"there is no setting {name!r}")
    chosen = _given(given, _OF_MODE)
    resolve_mode(True, chosen)
    return {
        name: _PARSERS[name](value) if name in _PARSERS else value for name, value in chosen.items()
    }


def ledger_keywords(settings: SettingKeywords) -> dict[str, Any]:
    """Those of `LedgerSettings` that were given, as they were given."""
    return _given(cast("Mapping[str, Any]", settings), _OF_LEDGER)


def _given(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names if settings.get(name) is not None}
