"""The settings that `ClaudeBatchProvider` accepts as keywords, and their owners.

They take the same precedence as command line options: above environment variables and an actor's
YAML.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypedDict

from claude_batch.core.batch_processing import SETTINGS, resolve_mode
from claude_batch.core.settings import Scope

_Duration = str | float | int

_Dollars = Decimal | str | float | int


class LiveKeywords(TypedDict, total=False):
    """Settings that also apply to an actor without ``batch_processing``."""

    live_retry: Literal["safe", "always"] | None
    retry_on: str | Sequence[str | int] | None
    max_turns: int | None
    validation_attempts: int | None


class RunKeywords(LiveKeywords, total=False):
    """Settings of a run, which a single call may have too; each call can decide for itself.

    `claude_batch.core.settings` explains each of them. None means that the provider's keywords, the
    environment, the actor or the default decides. A test compares names and types with the settings
    table.
    """

    linger: _Duration | None
    max_linger: _Duration | None
    max_requests: int | None
    parallel_batches: int | None
    poll_interval: _Duration | None
    max_poll_interval: _Duration | None
    max_wait: _Duration | None
    on_timeout: Literal["park", "cancel"] | None
    max_attempts: int | None
    mode: Literal["batch", "live", "auto"] | None
    auto_threshold: int | None
    live_concurrency: int | None
    deadline: _Duration | datetime | None
    deadline_margin: _Duration | None
    fallback: Literal["live", "none"] | None
    budget_usd: _Dollars | None
    actor_budget_usd: _Dollars | None
    turn_linger: _Duration | None
    preflight: bool | Literal["auto"] | None
    cache: Literal["off", "auto"] | None
    prime: bool | None
    reuse: bool | None
    dedupe: bool | None
    failure_ttl: _Duration | None
    on_disconnect: Literal["keep", "drop"] | None


class CallKeywords(RunKeywords, total=False):
    """Settings of one call or run."""

    budget: _Dollars | None
    """Another name of `budget_usd`, as on the command line."""


class SettingKeywords(RunKeywords, total=False):
    """Settings of a run and of a ledger."""

    settling: _Duration | None
    arm_window: _Duration | None
    lookback: _Duration | None
    not_found_after: _Duration | None
    missing_after: _Duration | None
    on_unknown: Literal["wait", "resubmit"] | None
    resubmit_after: _Duration | None
    exclusive_workspace: bool | None
    probe_interval: _Duration | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    batches_per_hour: int | None
    prices: str | os.PathLike[str] | None
    allow_tools_from_ledger: bool | None
    daily_budget_usd: _Dollars | None
    heartbeat: _Duration | None
    take_over: _Duration | None


_FORMAT = "the format of answers is `output_format=` of respond, respond_all, run and submit"
_OPTIONS = "parameters of the Messages API go into `options=` of make_actor or an ActorRequest"
_REQUEST = "it belongs to a request: pass an ActorRequest"
_NAMED_ELSEWHERE: Final = {
    "citations": _REQUEST,
    "documents": _REQUEST,
    "messages": _REQUEST,
    "output_format": _FORMAT,
    "output_type": _FORMAT,
    "response_format": _FORMAT,
    "response_model": _FORMAT,
    "text_format": _FORMAT,
    "stop_sequences": _OPTIONS,
    "temperature": _OPTIONS,
    "thinking": _OPTIONS,
    "top_p": _OPTIONS,
    "system": "the system prompt is `system_prompt=` of make_actor",
    "timeout": "the longest wait is `max_wait=`",
    "max_retries": "the number of attempts is `max_attempts=`",
    "max_cost": "the most that a run may cost is `budget_usd=`",
}
"""Names that the SDK and other libraries use, and what takes their place."""


def meant_setting(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name for which an unknown one probably stands; empty if there is none.

    A non-empty hint begins with a semicolon.
    """
    if (hint := _NAMED_ELSEWHERE.get(name)) is not None:
        return f"; {hint}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def mode_keywords(
    settings: LiveKeywords, known: type[LiveKeywords] = SettingKeywords
) -> dict[str, Any]:
    """Return the given settings of a run, durations in seconds.

    Raises ``TypeError`` for a name that is not in ``known``, and `ActorConfigurationError` for an
    unusable value: here, not at the first request.
    """
    for name in settings:
        if name not in known.__annotations__:
            raise TypeError(
                f"there is no setting {name!r}{meant_setting(name, known.__annotations__)}"
            )
    named = dict(settings)
    if (budget := named.pop("budget", None)) is not None:
        if named.get("budget_usd") is not None:
            raise TypeError("`budget` and `budget_usd` are one setting; pass one of them")
        named["budget_usd"] = budget
    given = _given(named, "run")
    mode = resolve_mode(True, given)
    return {name: getattr(mode, name) for name in given}


def ledger_keywords(settings: SettingKeywords) -> dict[str, Any]:
    """Return the given settings of a ledger, unchanged."""
    return _given(settings, "ledger")


def _given(settings: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if value is not None and SETTINGS[name].scope == scope
    }
