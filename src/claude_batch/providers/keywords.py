"""The settings that `ClaudeBatchProvider` accepts as keywords, and their owners.

They take the same precedence as command line options: above environment variables and an actor's
YAML.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypedDict, get_args

from claude_batch.core.batch_processing import SETTINGS, means_daily_budget, resolve_mode
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
_OPTIONS = (
    "parameters of the Messages API go into `options=` of make_actor or an ActorRequest, or "
    "`options` of the actor's file"
)
_SYSTEM = "the system prompt is `system_prompt=` of make_actor, or a key of the actor's file"
_BUDGET = "the most that a run may cost is `budget_usd=`"
_ATTEMPTS = "the number of attempts is `max_attempts=`"
_NAMED_ELSEWHERE: Final = {
    **{
        name: "it belongs to load_actor, make_actor and ClaudeBatchProvider"
        for name in (
            *SettingKeywords.__annotations__,
            "ledger",
            "base_url",
            "api_key",
            "api_key_env",
        )
        if name not in RunKeywords.__annotations__
    },
    **{
        name: f"it belongs to a request: pass an ActorRequest with `{name}=`"
        for name in ("citations", "context", "documents", "messages")
    },
    "output_format": _FORMAT,
    "output_type": _FORMAT,
    "response_format": _FORMAT,
    "response_model": _FORMAT,
    "text_format": _FORMAT,
    "stop_sequences": _OPTIONS,
    "temperature": _OPTIONS,
    "thinking": _OPTIONS,
    "tool_choice": _OPTIONS,
    "top_k": _OPTIONS,
    "top_p": _OPTIONS,
    "options": _OPTIONS,
    "max_tokens": "the most tokens of an answer are `max_tokens=` of make_actor, or one of the "
    "`options` of an ActorRequest or of the actor's file",
    "model": "the model is set in make_actor, in the actor's file, or in an ActorRequest with "
    "`model=`",
    "tools": "functions are `tools=` of load_actor, make_actor and Actor; definitions alone go "
    "into `options`",
    "instructions": _SYSTEM,
    "system": _SYSTEM,
    "system_message": _SYSTEM,
    "system_prompt": _SYSTEM,
    "batch_processing": "it belongs to make_actor, or into the actor's file",
    "batch_size": "the most requests of a batch are `max_requests=`",
    "batch": 'requests travel in batches with `mode="batch"`',
    "live": 'requests are sent live with `mode="live"`',
    "id": "the id of a request is `key=` of respond or of an ActorRequest",
    "key": "it belongs to respond, or to an ActorRequest",
    "keep": "it belongs to respond",
    "label": "it belongs to run and submit",
    "new": "it belongs to respond_all, run and submit",
    "ordered": "it belongs to respond_all, run and Run.results",
    "progress": "it belongs to respond_all, run, Run.wait and Run.results",
    "results_dir": "it belongs to respond_all, run and submit",
    "timeout": "the longest wait is `max_wait=`",
    "max_retries": _ATTEMPTS,
    "max_retry": f"{_ATTEMPTS}, and of ClaudeProvider `max_retries=`",
    "retries": f"{_ATTEMPTS}, and of ClaudeProvider `max_retries=`",
    "budget": _BUDGET,
    "max_cost": _BUDGET,
    "callbacks": "functions that receive events are `observers=` of load_actor and make_actor",
    "max_workers": "batches need none, and the most calls at once of live ones are "
    "`live_concurrency=`",
    "return_exceptions": "it belongs to asyncio.gather; respond_all returns each failure as a "
    "result, with `error`",
}
"""Names that belong to another call, or to the SDK and other libraries, and what to use."""

_NEAR = 0.66
"""Least similarity of a mistyped name; that of a swap in a name of three letters."""


def meant_setting(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name for which an unknown one probably stands; empty if there is none.

    A non-empty hint begins with a semicolon.
    """
    from claude_batch.actor.configuration import MESSAGES_PARAMETERS

    if (hint := _NAMED_ELSEWHERE.get(name)) is not None:
        return f"; {hint}"
    if name in MESSAGES_PARAMETERS:
        return f"; {_OPTIONS}"
    known, typed = tuple(known), name.lower()
    if means_daily_budget(typed):
        typed = "daily_budget_usd"
    near = difflib.get_close_matches(typed, (*known, *_NAMED_ELSEWHERE), n=1, cutoff=_NEAR)
    near = near or [each for each in known if each.startswith(f"{typed}_")]
    if len(near) != 1:
        return ""
    [meant] = near
    hint = "" if meant in known else f" ({_NAMED_ELSEWHERE[meant]})"
    return f"; did you mean {meant!r}?{hint}"


def parameters_of(function: Callable[..., object]) -> list[str]:
    """Return the keywords that a function accepts by name, those of its ``**settings`` included."""
    names: list[str] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (keywords,) = get_args(parameter.annotation)  # ``Unpack`` of a TypedDict
            names += keywords.__annotations__
        else:
            names.append(name)
    return names


def mode_keywords(
    settings: LiveKeywords,
    known: type[LiveKeywords] = SettingKeywords,
    of: Callable[..., object] | None = None,
) -> dict[str, Any]:
    """Return the given settings of a run, durations in seconds.

    ``of`` is the function that received them; its parameters may be meant by an unknown name.
    Raises ``TypeError`` for a name that is not in ``known``, and `ActorConfigurationError` for an
    unusable value: here, not at the first request.
    """
    for name in settings:
        if name not in known.__annotations__:
            names = known.__annotations__ if of is None else parameters_of(of)
            raise TypeError(f"there is no setting {name!r}{meant_setting(name, names)}")
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
