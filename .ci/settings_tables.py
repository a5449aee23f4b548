"""Writes the tables of settings into the pages, from `claude_batch.core.batch_processing`.

Run `python .ci/settings_tables.py` after a change to a setting. In every page under `docs/` it
replaces what stands between `<!-- settings: NAME -->` and `<!-- end of settings -->`. NAME is a
scope (`provider`, `run`, `ledger`), or `batch_processing` for the YAML with all defaults.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from claude_batch.core import batch_processing as run_settings
from claude_batch.core import settings
from claude_batch.core.batch_processing import SETTINGS
from claude_batch.core.settings import Setting

DOCS = Path(__file__).parents[1] / "docs"
PART = re.compile(r"(<!-- settings: (\w+) -->\n).*?(?=<!-- end of settings -->)", re.DOTALL)


def meanings() -> dict[str, str]:
    """The docstring of each setting: Python keeps it in the source alone."""
    found: dict[str, str] = {}
    sources = inspect.getsource(settings) + inspect.getsource(run_settings)
    for node in ast.walk(ast.parse(sources)):
        if not isinstance(node, ast.ClassDef):
            continue
        for field, words in zip(node.body, node.body[1:], strict=False):
            match field, words:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = re.sub(r"`+", "`", " ".join(text.split())).replace("|", r"\|")
    return found


def row(setting: Setting, meaning: str) -> str:
    """One line of a table."""
    flag, *off = [f"`{flag}`" for flag in setting.flags] or [""]
    if off:
        meaning += f" Also {off[0]}."
    if setting.flag is not None and setting.flag.commands != "all":
        commands = re.sub(r"\w+", r"`\g<0>`", setting.flag.commands)
        meaning += f" Flag of {commands}."
    cells = (f"`{setting.variable}`", setting.written_default, meaning)
    return f"| {flag}".rstrip() + " | " + " | ".join(cells) + " |"


def table(scope: str) -> Iterator[str]:
    """The settings of a scope."""
    words = meanings()
    yield "| flag | environment variable | default | meaning |"
    yield "|---|---|---|---|"
    for name, setting in SETTINGS.items():
        if setting.scope == scope:
            yield row(setting, words[name])


def batch_processing() -> Iterator[str]:
    """All keys with their defaults, as an actor's YAML has them."""
    yield "```yaml"
    yield "batch_processing:"
    for name, setting in SETTINGS.items():
        if setting.scope == "run":
            yield f"  {name}: {setting.written_default or 'null'}"
    yield "```"


def filled(page: str) -> str:
    """A page with its tables of settings as they should be."""

    def part(found: re.Match[str]) -> str:
        name = found[2]
        lines = batch_processing() if name == "batch_processing" else table(name)
        return found[1] + "\n".join(lines) + "\n"

    return PART.sub(part, page)


if __name__ == "__main__":
    for path in (Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS).rglob("*.md"):
        before = path.read_text("utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, "utf-8")
            print(f"wrote {path}")
