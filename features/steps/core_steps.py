"""Steps for the core room: durations, settings, errors, states, ids."""

from __future__ import annotations

import inspect
import os
import pickle
import random
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

from behave import given, then, use_step_matcher, when
from behave.runner import Context

from claude_batch.core import errors, settings
from claude_batch.core.durations import format_duration, parse_duration
from claude_batch.core.ids import new_incarnation, new_request_id, new_run_id
from claude_batch.core.states import RequestState

use_step_matcher("parse")


def _refusal(value: object) -> str:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{value!r} was read as {seconds} seconds")


@then('the duration "{text}" is {seconds:g} seconds')
def _(context: Context, text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds, parse_duration(text)


@then("the duration values 90, 0.5 and timedelta(minutes=2) are 90, 0.5 and 120 seconds")
def _(context: Context) -> None:
    values = [parse_duration(value) for value in (90, 0.5, timedelta(minutes=2))]
    assert values == [90.0, 0.5, 120.0], values


@then('the duration "{text}" is refused, and the message shows how to write one')
def _(context: Context, text: str) -> None:
    message = _refusal(text)
    assert repr(text) in message and "30s" in message, message


@then('the duration "" is refused, and the message shows how to write one')
def _(context: Context) -> None:
    assert "30s" in _refusal("")


@then("the duration values true, null, infinity, not-a-number and -1 are refused")
def _(context: Context) -> None:
    for value in (True, None, float("inf"), float("nan"), -1):
        assert repr(value) in _refusal(value)


@then('{seconds:g} seconds are written as the duration "{text}"')
def _(context: Context, seconds: float, text: str) -> None:
    assert format_duration(seconds) == text, format_duration(seconds)


@then("2000 durations from 1 ms to 30 days survive writing and reading")
def _(context: Context) -> None:
    draw = random.Random(7)
    for number in range(2000):
        seconds = draw.choice((0.001, 1.0, 60.0, 3600.0, 0.37)) * draw.randrange(1, 720)
        seconds = round(seconds, 6)
        text = format_duration(seconds)
        assert parse_duration(text) == seconds, (number, seconds, text)


# --- settings -------------------------------------------------------------------------------------


def _variables(context: Context) -> dict[str, str]:
    if not hasattr(context, "core_environ"):
        context.core_environ = {}
    return context.core_environ


@given('the core environment variable "{name}" is "{value}"')
def _(context: Context, name: str, value: str) -> None:
    _variables(context)[name] = value


@given('the core environment variable "{name}" is ""')
def _(context: Context, name: str) -> None:
    _variables(context)[name] = ""


def _resolve(context: Context, configured: Any, overrides: dict[str, Any]) -> None:
    context.core_error = context.core_mode = None
    try:
        context.core_mode = settings.resolve_mode(configured, overrides, _variables(context))
    except errors.ActorConfigurationError as error:
        context.core_error = error


use_step_matcher("re")


@when(
    r'the core mode is resolved from YAML "(?P<yaml>.*)" and keyword "(?P<keyword>.*)" for linger'
)
def _(context: Context, yaml: str, keyword: str) -> None:
    configured = settings.BatchProcessingMode(linger=yaml) if yaml else True
    _resolve(context, configured, {"linger": keyword or None})


@when(r'the core mode is resolved with the keywords "(?P<keywords>.*)"')
def _(context: Context, keywords: str) -> None:
    pairs = (pair.partition("=") for pair in keywords.split(",") if pair)
    _resolve(context, True, {name: value for name, _, value in pairs})


use_step_matcher("parse")


@when("the core mode is resolved from nothing")
def _(context: Context) -> None:
    context.core_mode = settings.resolve_mode(environ={})


@when('the core mode is resolved from a YAML maximum of "{maximum}" and a keyword of "{interval}"')
def _(context: Context, maximum: str, interval: str) -> None:
    mode = settings.BatchProcessingMode(poll_interval="1s", max_poll_interval=maximum)
    _resolve(context, mode, {"poll_interval": interval})


@then("the core mode's linger is {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    assert context.core_mode.linger == seconds, context.core_mode


@then("the core mode reads as")
def _(context: Context) -> None:
    expected = dict(context.table[0].items())
    actual = {name: str(getattr(context.core_mode, name)) for name in expected}
    assert actual == expected, actual
    assert set(expected) == set(settings.BatchProcessingMode.model_fields)


@then("the core mode polls every {shortest:g} to {longest:g} seconds")
def _(context: Context, shortest: float, longest: float) -> None:
    mode = context.core_mode
    assert (mode.poll_interval, mode.max_poll_interval) == (shortest, longest), mode


@then('the core error says "{place}" and "{why}"')
def _(context: Context, place: str, why: str) -> None:
    message = str(context.core_error)
    assert message.startswith(f"{place}:") and why in message, message
    assert "pydantic" not in message, message


@when('the core ledger settings are resolved with arm_window "{window}"')
def _(context: Context, window: str) -> None:
    context.core_error = None
    try:
        context.core_ledger = settings.resolve_ledger_settings(
            {"arm_window": window, "settling": None}, _variables(context)
        )
    except errors.ActorConfigurationError as error:
        context.core_error = error


@then(
    "the core ledger settings have settling {settling:g}, arm_window {window:g} "
    "and not_found_after {gone:g}"
)
def _(context: Context, settling: float, window: float, gone: float) -> None:
    found = context.core_ledger
    assert (found.settling, found.arm_window, found.not_found_after) == (settling, window, gone)


@then("the core ledger's workspace is exclusive: {exclusive}")
def _(context: Context, exclusive: str) -> None:
    assert str(context.core_ledger.exclusive_workspace) == exclusive, context.core_ledger


def _with_environ(context: Context, leave_out: str | None = None) -> None:
    """Put the scenario's variables into the process's environment."""
    os.environ.update(_variables(context))
    if leave_out is not None:
        os.environ.pop(leave_out, None)


@then('the core default ledger with argument "{argument}" is "{expected}"')
def _(context: Context, argument: str, expected: str) -> None:
    _with_environ(context)
    assert settings.default_ledger(argument) == expected


@then('the core default ledger is "{expected}"')
def _(context: Context, expected: str) -> None:
    _with_environ(context)
    assert settings.default_ledger() == expected


@then("without CLAUDE_BATCH_LEDGER the core default ledger lies in the user's data directory")
def _(context: Context) -> None:
    from platformdirs import user_data_path

    _with_environ(context, leave_out="CLAUDE_BATCH_LEDGER")
    path = settings.default_ledger()
    assert path == str(user_data_path("claude-batch", appauthor=False) / "ledger.db"), path


@then('the core state directory is "{expected}"')
def _(context: Context, expected: str) -> None:
    _with_environ(context)
    assert str(settings.default_state_dir()) == expected


@then("without CLAUDE_BATCH_STATE_DIR the core state directory is the user's")
def _(context: Context) -> None:
    from platformdirs import user_state_path

    _with_environ(context, leave_out="CLAUDE_BATCH_STATE_DIR")
    expected = user_state_path("claude-batch", appauthor=False)
    assert settings.default_state_dir() == expected


# --- errors ---------------------------------------------------------------------------------------


def _drawn_tree() -> dict[str, str | None]:
    """Each class that the docstring draws, with the one that it is drawn under."""
    parents: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match[1])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        parents[match[2]] = stack[-1][1] if stack else None
        stack.append((depth, match[2]))
    return parents


@then("the error tree in the docstring equals the classes, level by level")
def _(context: Context) -> None:
    actual = {
        name: None if cls is errors.ActorError else cls.__bases__[0].__name__
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.ActorError)
    }
    drawn = _drawn_tree()
    assert drawn == actual, (drawn, actual)
    assert set(actual) <= set(errors.__all__)


def _examples() -> list[errors.ActorError]:
    return [
        errors.ActorError("m"),
        errors.ActorConfigurationError("m", source="a.yaml", line=3),
        errors.ProviderNotFoundError("x", ("a", "b")),
        errors.InvalidRequestError("m", key="k"),
        errors.MiddlewareError("m", middleware="M", stage="after_response", key="k"),
        errors.KeyConflictError("m", key="k"),
        errors.PreflightError("m", key="k", error_type="t"),
        errors.AccountHaltedError("m", reason="billing", error_type="billing_error"),
        errors.BatchTimeoutError("m", run_id="run-1", batch_ids=("b",)),
        errors.BudgetExceededError(
            "m", scope="run", budget_usd=Decimal(2), needed_usd=Decimal("0.5"), run_id="run-1"
        ),
        errors.BatchRequestError(
            "m",
            outcome="errored",
            error_type="t",
            error_message="w",
            request_id="req",
            batch_id="b",
        ),
        errors.MissingResultError("m", batch_id="b"),
        errors.SubmissionUnknownError("m"),
        errors.LiveRequestError("m", status=529, error_type="overloaded_error", request_id="req"),
        errors.AnswerError("m", text="t", stop_reason="refusal", batch_id="b"),
        errors.OutputValidationError(
            "m", text="t", stop_reason="max_tokens", batch_id="b", problem="p"
        ),
        errors.MalformedAnswerError("m", raw=b"{", batch_id="b", problem="p"),
        errors.AnswerRefusedError("m", text="t", response="r"),
        errors.ContextWindowExceededError("m", text="t", response="r"),
        errors.ConversationStoppedError("m", text="t", response="r"),
        errors.TurnLimitError("m", text="t", response="r"),
        errors.ToolInterruptedError("m", text="t", response="r"),
        errors.RunNotFoundError("m"),
        errors.LedgerError("m"),
        errors.EngineStoppedError("m"),
    ]


@then("every error class of the tree survives pickling")
def _(context: Context) -> None:
    examples = _examples()
    assert {type(error).__name__ for error in examples} == set(_drawn_tree())
    for error in examples:
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert type(copy) is type(error)
            assert str(copy) == str(error)
            assert vars(copy) == vars(error), (vars(copy), vars(error))


@then('a configuration error at file "{source}" and line {line:d} reads "{text}"')
def _(context: Context, source: str, line: int, text: str) -> None:
    assert str(errors.ActorConfigurationError("wrong", source=source, line=line)) == text


@then('a configuration error at file "{source}" without a line reads "{text}"')
def _(context: Context, source: str, text: str) -> None:
    assert str(errors.ActorConfigurationError("wrong", source=source)) == text


@then('a configuration error at line {line:d} without a file reads "{text}"')
def _(context: Context, line: int, text: str) -> None:
    assert str(errors.ActorConfigurationError("wrong", line=line)) == text


@then('a configuration error without a place reads "{text}"')
def _(context: Context, text: str) -> None:
    assert str(errors.ActorConfigurationError("wrong")) == text


use_step_matcher("re")


@then(r'the error for provider "(?P<name>.*)" among "(?P<known>.*)" says "(?P<text>.*)"')
def _(context: Context, name: str, known: str, text: str) -> None:
    error = errors.ProviderNotFoundError(name, tuple(filter(None, known.split(", "))))
    assert repr(name) in str(error) and text in str(error), error


use_step_matcher("parse")


@then('the refusal of request "{key}" reads "{text}"')
def _(context: Context, key: str, text: str) -> None:
    assert str(errors.InvalidRequestError("wrong", key=key)) == text


@then('the refusal of a request without a key reads "{text}"')
def _(context: Context, text: str) -> None:
    assert str(errors.InvalidRequestError("wrong")) == text


# --- states and ids -------------------------------------------------------------------------------


@then('the request states that are not final are "{names}"')
def _(context: Context, names: str) -> None:
    assert [state.value for state in RequestState if not state.is_final] == names.split(", ")


def _check_ids(made: list[str]) -> None:
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made), made
    assert len(set(made)) == len(made)
    assert made == sorted(made)


@then("100 new request ids are 32 hex digits, distinct and in order")
def _(context: Context) -> None:
    _check_ids([new_request_id() for _ in range(100)])


@then("100 new run ids are distinct, and people can type them")
def _(context: Context) -> None:
    made = [new_run_id() for _ in range(100)]
    assert all(re.fullmatch(r"run-[0-9a-hjkmnp-tv-z]{10}", one) for one in made), made
    assert len(set(made)) == 100


@then("an incarnation is 8 hex digits, and two differ")
def _(context: Context) -> None:
    first, second = new_incarnation(), new_incarnation()
    assert re.fullmatch(r"[0-9a-f]{8}", first) and first != second
