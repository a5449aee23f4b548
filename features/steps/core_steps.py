"""Steps for the core room: durations, settings, errors, states, ids."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import tracemalloc
import uuid
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from typing import Any
from unittest import mock

from behave import use_step_matcher
from behave.runner import Context
from platformdirs import user_data_path, user_state_path
from tables import rule

import claude_batch
from claude_batch.actor.response import ActorResult
from claude_batch.core import errors, settings
from claude_batch.core.batch_processing import BatchProcessingMode, check_environment, resolve_mode
from claude_batch.core.ids import new_incarnation, new_request_ids, new_run_id
from claude_batch.core.quantities import format_duration, parse_duration
from claude_batch.core.states import RequestState
from claude_batch.ledger.stored_results import Members

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


@rule("1 to 719 times a unit is written and read back")
def _(unit: float) -> dict[str, list[float]]:
    times = [round(unit * number, 6) for number in range(1, 720)]
    wrong = [each for each in times if parse_duration(format_duration(each)) != each]
    return {"changed": wrong}


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
    configured = BatchProcessingMode(**yaml) if yaml else True
    with mock.patch.dict(os.environ, environment or {}):
        return _checked(lambda: resolve_mode(configured, keywords or {}))


@rule("a setting without any source is")
def _(context: Context, setting: str) -> Any:
    assert {row["setting"] for row in context.table} == {*BatchProcessingMode.model_fields}
    return getattr(resolve_mode(), setting)


@rule("a ledger's settings are resolved")
def _(
    keywords: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> settings.LedgerSettings:
    given = {"settling": None, **(keywords or {})}
    with mock.patch.dict(os.environ, environment or {}):
        return _checked(lambda: settings.resolve_ledger_settings(given))


def _environment(variables: dict[str, str] | None) -> None:
    """Give the process these variables alone, of those that name a place."""
    for name in ("CLAUDE_BATCH_LEDGER", "CLAUDE_BATCH_STATE_DIR"):
        os.environ.pop(name, None)
    os.environ.update(variables or {})


@rule("the names of environment variables are checked")
def _(environment: dict[str, str]) -> None:
    with mock.patch.dict(os.environ, environment):
        _checked(check_environment)


@rule("the default ledger is found")
def _(argument: str | None, environment: dict[str, str] | None) -> str:
    _environment(environment)
    try:
        found = settings.default_ledger(argument)
    except errors.LedgerError as error:
        assert "secret" not in str(error)
        return str(error)
    folder = str(user_data_path("claude-batch", appauthor=False))
    return found.replace(folder, "<the user's data>")


@rule("the commands of a message name their ledger")
def _(message: str, ledger: str, environment: dict[str, str] | None) -> str:
    _environment(environment)
    return settings.naming_ledger(message, ledger)


@rule("the default state directory is found")
def _(environment: dict[str, str] | None) -> str:
    _environment(environment)
    folder = str(user_state_path("claude-batch", appauthor=False))
    return str(settings.default_state_dir()).replace(folder, "<the user's state>")


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


@rule("the errors of the tree survive pickling")
def _(context: Context, error: str, given: dict[str, Any]) -> dict[str, Any]:
    """Also compare the classes with the tree in the docstring."""
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.ActorError)
    }
    assert set(classes) <= set(claude_batch.__all__)
    assert [row["error"] for row in context.table] == list(_drawn_tree())
    assert set(classes) == set(_drawn_tree())
    parent = None if error == "ActorError" else classes[error].__bases__[0].__name__
    assert _drawn_tree()[error] == parent, (error, parent)
    made = classes[error](**given) if "name" in given else classes[error]("m", **given)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(made, protocol))
        assert type(copy) is type(made)
        assert vars(copy) == vars(made), (vars(copy), vars(made))
        assert str(copy) == str(made)
    return {"under": parent, "says": str(copy)}


@rule("an error and one that is derived from it have types in results")
def _(error: str, given: dict[str, Any]) -> dict[str, Any]:
    own: type[errors.ActorError] = getattr(errors, error)
    results = (
        ActorResult(key=None, position=0, error=made("m", **given)).to_dict()
        for made in (own, type("Own", (own,), {}))
    )
    first, second = (result["error"]["type"] for result in results)
    assert first == second, (first, second)
    return {"type": first}


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


@rule("a state of a request is final")
def _(context: Context, state: str) -> bool:
    assert [row["state"] for row in context.table] == [each.value for each in RequestState]
    return RequestState(state).is_final


_NEW_IDS: dict[str, Callable[[], list[str]]] = {
    "a request": lambda: [new_request_ids(1)[0] for _ in range(100)],
    "requests that are stored together": lambda: new_request_ids(100),
    "a run": lambda: [new_run_id() for _ in range(100)],
    "an incarnation": lambda: [new_incarnation() for _ in range(100)],
}


@rule("a hundred new ids are made")
def _(id: str, form: str) -> dict[str, object]:
    made = _NEW_IDS[id]()
    assert all(re.fullmatch(form, one) for one in made), made
    return {"distinct": len(set(made)), "sorted": made == sorted(made)}


@rule("a batch of rows 1 to 100 without 50, and of row 200, has the row")
def _(id: str) -> int | None:
    together, older = new_request_ids(101), uuid.uuid4().hex
    rows = [(each, row) for row, each in enumerate(together, 1) if row not in (50, 101)]
    asked = {
        "of row 1": together[0],
        "of row 49": together[48],
        "of row 50, which has left": together[49],
        "of row 51": together[50],
        "of row 100": together[99],
        "of row 101, which is in another batch": together[100],
        "of row 200, in the older form": older,
        "of row 91 in capitals": together[90].upper(),
        "of row 1 with an underscore": f"{together[0][:-8]}000_0000",
        "of another request": new_request_ids(1)[0],
    }
    return Members([*rows, (older, 200)]).find(asked[id])


@rule("the row numbers of 100,000 requests take less memory than a megabyte")
def _(stored: str) -> bool:
    size = {"together": 100_000, "a hundred at a time": 100}[stored]
    blocks = (new_request_ids(size) for _ in range(100_000 // size))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        members = Members((each, row) for row, each in enumerate(chain.from_iterable(blocks), 1))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert members.find(new_request_ids(1)[0]) is None
    return used < 1_000_000
