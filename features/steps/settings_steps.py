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
from behave import then
from behave.runner import Context
from pages import agreement
from tables import rule

from claude_batch.cli.app import group
from claude_batch.core.batch_processing import SETTINGS
from claude_batch.core.settings import Kind, Setting
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


@then('in a copy of the pages the settings\' tables that say "{wrong}" for "{right}" are rewritten')
def _(context: Context, wrong: str, right: str) -> None:
    copy = copied(context.tmp)
    page = copy / PAGE
    text = page.read_text("utf-8")
    assert text.count(right) == 2, text
    page.write_text(text.replace(right, wrong), "utf-8")
    assert written(copy) == f"wrote {page}\n"
    assert page.read_text("utf-8") == text


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


@rule("a command's flags, compared with the table's groups, are")
def _(command: str, groups: str) -> dict[str, list[Any]]:
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
    return {
        "missing": sorted(expected.items() - taken.items()),
        "unknown": sorted(taken.items() - expected.items()),
    }
