"""Tables in features: a function works out each row, and one generic step compares.

    @rule("durations are read")
    def _(text: str) -> float:
        return parse_duration(text)

serves the step "Then durations are read as follows", with a column `text` and one for the result.
A parameter takes the column of its name (or `context`), by its type: a text as it stands, a number,
a `bool` written yes or no, anything else as JSON. The other columns are what the function returns:
its value, or the values of its fields or keys. A column `error` holds words of the error that it
raises; an empty cell there means that it raises none. In a text, … stands for any words.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from behave.model import Row
from behave.runner import Context
from pydantic import BaseModel

from claude_batch.core.errors import ActorError

Function = Callable[..., Any]

_RULES: dict[str, Function] = {}
_MISSING = object()
_PLAIN = (str, bytes, int, float, list, type(None), Enum)
"""Types of values that have no columns of their own."""


def rule(sentence: str) -> Callable[[Function], Function]:
    """Register the function behind the step "Then SENTENCE as follows"."""

    def register(function: Function) -> Function:
        # Behave runs a module of steps that another one has imported a second time.
        known = _RULES.setdefault(sentence, function)
        assert _line(known) == _line(function), f"two functions for: {sentence}"
        return function

    return register


def _line(function: Function) -> tuple[str, int]:
    code = function.__code__
    return Path(code.co_filename).name, code.co_firstlineno


def check(context: Context, sentence: str) -> None:
    """Compare each row of the step's table with what the rule's function returns."""
    function = _RULES[sentence]
    types = get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "context"]
    wrong: list[str] = []
    for row in context.table:
        cells = {heading.replace(" ", "_"): row[heading] for heading in row.headings}
        given = {name: _read(cells[name], types[name]) for name in names if name in cells}
        if "context" in types:
            given["context"] = context
        expected = {name: cell for name, cell in cells.items() if name not in names}
        assert expected, f"no column for what the function returns: {row.headings}"
        wrong += [f"{_shown(row)}: {problem}" for problem in _problems(function, given, expected)]
    assert not wrong, "\n".join(wrong)


def _problems(function: Function, given: dict[str, Any], expected: dict[str, str]) -> list[str]:
    words = expected.pop("error", None)
    try:
        result = function(**given)
    except (ActorError, TypeError, ValueError) as error:
        if not words:
            return [f"it raised {error!r}"]
        return [] if _fits(f"…{words}…", str(error)) else [f"the error says: {error}"]
    if words:
        return [f"it raised nothing, and returned {result!r}"]
    found = {name: _value(result, name, alone=len(expected) == 1) for name in expected}
    return [
        f"{name} is {found[name]!r}"
        for name, cell in expected.items()
        if not equals(found[name], cell)
    ]


def _read(cell: str, kind: Any) -> Any:
    if kind is str:
        return cell
    if kind in (int, float):
        return kind(cell.replace(",", ""))
    if kind is bool:
        assert cell in ("yes", "no"), cell
        return cell == "yes"
    if kind == (str | None):
        return cell or None
    return json.loads(cell) if cell else None


def _value(result: Any, name: str, *, alone: bool) -> Any:
    if isinstance(result, Mapping):
        found = result.get(name, _MISSING)
    elif isinstance(result, _PLAIN):
        found = _MISSING
    else:
        found = getattr(result, name, _MISSING)
    if found is not _MISSING:
        return found
    assert alone, f"{result!r} has no {name}"
    return result


def equals(found: Any, cell: str) -> bool:
    """Whether a cell of a table is this value, written down."""
    if found is None:
        return cell in ("", "nothing", "none", "null")
    if isinstance(found, bool):
        return cell == ("yes" if found else "no")
    if isinstance(found, Enum):
        return cell in (found.name, str(found.value))
    if isinstance(found, int | float):
        try:
            return float(cell.replace(",", "")) == found
        except ValueError:
            return False
    if isinstance(found, str):
        return _fits(cell, found)
    if isinstance(found, BaseModel):
        found = found.model_dump(mode="json")
    try:
        return json.loads(cell) == json.loads(msgspec.json.encode(found))
    except ValueError:
        return cell == str(found)


def _fits(cell: str, text: str) -> bool:
    parts = (re.escape(part) for part in cell.split("…"))
    return re.fullmatch(".*".join(parts), text, re.DOTALL) is not None


def _shown(row: Row) -> str:
    return " | ".join(cell[:60] for cell in row.cells)


def check_fields(context: Context, whole: Any) -> None:
    """Compare a table of `field` and `value` with a value's fields.

    A field is a path such as `usage.cost` or `content.0.text`, a value is JSON, in whose texts …
    stands for any words; an error is its name and its words. An empty cell means that there is no
    such field.
    """
    for row in context.table:
        found, cell = _reached(whole, row["field"]), row["value"]
        if isinstance(found, BaseException):
            found = f"{type(found).__name__}: {found}"
        if not cell:
            assert found is _MISSING, (row["field"], found)
            continue
        expected = json.loads(cell)
        if isinstance(found, bytes):
            found = found.decode("utf-8", "replace")
        if isinstance(expected, str) and isinstance(found, str):
            assert _fits(expected, found), (row["field"], found)
        else:
            assert found == expected, (row["field"], found)


def check_rows(context: Context, items: Iterable[Any], *, in_any_order: bool = False) -> None:
    """Compare a table with things: a row is a thing, and a heading is a path as above.

    An error is written as `Kind: words`, a model as Python shows it, and … is any value that is.
    """
    rows = [row.cells for row in context.table]
    left = [[_reached_or_error(item, path) for path in context.table.headings] for item in items]
    assert len(left) == len(rows), left
    for cells in rows:
        fits = [all(map(_is_written, values, cells)) for values in left]
        assert any(fits) if in_any_order else fits[0], (cells, left)
        del left[fits.index(True)]


def _reached_or_error(whole: Any, path: str) -> Any:
    try:
        return _reached(whole, path)
    except ActorError as error:
        return error


def _is_written(found: Any, cell: str) -> bool:
    if found is _MISSING or found is None:
        return not cell
    if isinstance(found, BaseException):
        found = f"{type(found).__name__}: {found}"
    if isinstance(found, BaseModel):
        found = repr(found)
    return cell == "…" or equals(found, cell)


def reached(whole: Any, path: str) -> Any:
    """Return what a path of attributes, keys and positions leads to; None if it leads nowhere."""
    found = _reached(whole, path)
    return None if found is _MISSING else found


def _reached(whole: Any, path: str) -> Any:
    found = whole
    for name in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(name, _MISSING)
        elif isinstance(found, list | tuple) and name.isdecimal():
            found = dict(enumerate(found)).get(int(name), _MISSING)
        else:
            found = getattr(found, name, _MISSING)
            found = found() if inspect.ismethod(found) else found
    return found
