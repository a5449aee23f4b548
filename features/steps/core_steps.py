"""Steps for the core room: durations, settings, errors, states, ids."""

from __future__ import annotations

import inspect
import os
import pickle
import random
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from behave import then, use_step_matcher
from behave.runner import Context
from platformdirs import user_data_path, user_state_path
from tables import equals, rule

from claude_batch.core import errors, ledger_location, settings
from claude_batch.core.ids import new_incarnation, new_request_id, new_run_id
from claude_batch.core.quantities import format_duration, parse_duration
from claude_batch.core.states import RequestState

use_step_matcher("parse")


@rule("durations are read")
def _(text: str) -> float:
    return parse_duration(text)


@rule("durations in Python are read")
def _(value: Any) -> float:
    return parse_duration(timedelta(**value) if isinstance(value, dict) else value)


@rule("durations are written")
def _(seconds: float) -> str:
    return format_duration(seconds)


@then("2000 durations from 1 ms to 30 days survive writing and reading")
def _(context: Context) -> None:
    draw = random.Random(7)
    for number in range(2000):
        seconds = draw.choice((0.001, 1.0, 60.0, 3600.0, 0.37)) * draw.randrange(1, 720)
        seconds = round(seconds, 6)
        text = format_duration(seconds)
        assert parse_duration(text) == seconds, (number, seconds, text)


# --- settings -------------------------------------------------------------------------------------


def _checked(resolve: Callable[[], Any]) -> Any:
    try:
        return resolve()
    except errors.ActorConfigurationError as error:
        assert "pydantic" not in str(error), error
        raise


@rule("an actor's settings are resolved")
def _(
    keywords: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    yaml: dict[str, str] | None = None,
) -> Any:
    configured = settings.BatchProcessingMode(**yaml) if yaml else True
    return _checked(lambda: settings.resolve_mode(configured, keywords or {}, environment or {}))


@then("an actor's settings without any source are")
def _(context: Context) -> None:
    mode = settings.resolve_mode(environ={})
    for row in context.table:
        assert equals(getattr(mode, row["setting"]), row["value"]), (row, mode)
    assert {row["setting"] for row in context.table} == {*settings.BatchProcessingMode.model_fields}


@rule("a ledger's settings are resolved")
def _(
    keywords: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> settings.LedgerSettings:
    given = {"settling": None, **(keywords or {})}
    return _checked(lambda: settings.resolve_ledger_settings(given, environment or {}))


def _environment(variables: dict[str, str] | None) -> None:
    """Give the process these variables alone, of those that name a place."""
    for name in ("CLAUDE_BATCH_LEDGER", "CLAUDE_BATCH_STATE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(variables or {})


@rule("the default ledger is found")
def _(argument: str | None, environment: dict[str, str] | None) -> str:
    _environment(environment)
    found = ledger_location.default_ledger(argument)
    folder = str(user_data_path("claude-batch", appauthor=False))
    return found.replace(folder, "<the user's data>")


@rule("the default state directory is found")
def _(environment: dict[str, str] | None) -> str:
    _environment(environment)
    folder = str(user_state_path("claude-batch", appauthor=False))
    return str(ledger_location.default_state_dir()).replace(folder, "<the user's state>")


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


@rule("a configuration error reads")
def _(source: str | None, line: Any) -> dict[str, str]:
    return {"message": str(errors.ActorConfigurationError("wrong", source=source, line=line))}


@rule("the error for an unknown provider reads")
def _(name: str, known: list[str]) -> dict[str, str]:
    return {"message": str(errors.ProviderNotFoundError(name, tuple(known)))}


@rule("the error of a refused request reads")
def _(key: str | None) -> dict[str, str]:
    return {"message": str(errors.InvalidRequestError("wrong", key=key))}


# --- states and ids -------------------------------------------------------------------------------


@then('the request states that are not final are "{names}"')
def _(context: Context, names: str) -> None:
    assert [state.value for state in RequestState if not state.is_final] == names.split(", ")


_NEW_IDS: dict[str, Callable[[], str]] = {
    "request": new_request_id,
    "run": new_run_id,
    "incarnation": new_incarnation,
}


@then("{count:d} new ids are distinct and have the form")
def _(context: Context, count: int) -> None:
    for row in context.table:
        made = [_NEW_IDS[row["id"]]() for _ in range(count)]
        assert all(re.fullmatch(row["form"], one) for one in made), made
        assert len(set(made)) == count, made


@then("request ids are in the order in which they were made")
def _(_: Context) -> None:
    made = [new_request_id() for _ in range(100)]
    assert made == sorted(made), made
