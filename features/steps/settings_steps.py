"""Steps that compare what is derived from the table of settings, or declared besides, with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_type_hints

import click
from behave import given, then, when
from behave.runner import Context
from pages import agreement

from claude_batch.cli.app import group
from claude_batch.core.settings import SETTINGS, Kind, Setting
from claude_batch.providers.keywords import SettingKeywords

ROOT = Path(__file__).resolve().parents[2]
PAGE = "reference/settings.md"


def copied(into: Path) -> Path:
    folder = into / "docs"
    shutil.copytree(ROOT / "docs", folder)
    return folder


def written(folder: Path) -> str:
    """What the command that writes the tables prints: the pages that it changed."""
    command = [sys.executable, str(ROOT / ".ci" / "settings_tables.py"), str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@agreement("the tables of settings")
def up_to_date() -> None:
    with TemporaryDirectory() as folder:
        assert written(copied(Path(folder))) == "", "run `python .ci/settings_tables.py`"


@given('a copy of the pages whose settings\' tables say "{wrong}" for "{right}"')
def changed(context: Context, wrong: str, right: str) -> None:
    context.copy = copied(context.tmp)
    page = context.copy / PAGE
    text = page.read_text("utf-8")
    assert text.count(right) == 2, text
    page.write_text(text.replace(right, wrong), "utf-8")


@when("the settings' tables are written into the copy")
def restore(context: Context) -> None:
    assert written(context.copy) == f"wrote {context.copy / PAGE}\n"


@then("the copy's settings' tables are those of the pages")
def restored(context: Context) -> None:
    assert (context.copy / PAGE).read_text("utf-8") == (ROOT / "docs" / PAGE).read_text("utf-8")


def keyword_type(setting: Setting) -> Any:
    """The type that a keyword for the setting has."""
    number = str | float | int
    types: dict[Kind, Any] = {
        Kind.DURATION: number,
        Kind.DEADLINE: number | datetime,
        Kind.DOLLARS: number | Decimal,
        Kind.CHOICE: Literal[setting.choices],
        Kind.COUNT: int,
        Kind.SWITCH: bool | Literal[setting.choices] if setting.choices else bool,
        Kind.ERROR_TYPES: str | Sequence[str | int],
        Kind.TEXT: str | os.PathLike[str],
    }
    return types[setting.kind] | None


@agreement("the keywords of settings and their types")
def keywords() -> None:
    expected = {
        name: keyword_type(setting)
        for name, setting in SETTINGS.items()
        if setting.scope != "provider"
    }
    declared = get_type_hints(SettingKeywords)
    assert set(declared) == set(expected), set(declared) ^ set(expected)
    for name, annotation in expected.items():
        assert declared[name] == annotation, (name, declared[name], annotation)


@then('the settings\' flags of "{command}" are the table\'s for "{groups}"')
def flags(context: Context, command: str, groups: str) -> None:
    taken = {
        str(parameter.envvar): tuple(parameter.opts + parameter.secondary_opts)
        for parameter in group.commands[command].params
        if isinstance(parameter, click.Option) and parameter.envvar
    }
    taken.pop("CLAUDE_BATCH_DOCUMENTS_ROOT", None)  # of the input, and no provider's
    expected = {
        setting.variable: setting.flags
        for setting in SETTINGS.values()
        if setting.flag is not None and setting.flag.commands in groups.split("; ")
    }
    assert taken == expected, (taken, expected)
