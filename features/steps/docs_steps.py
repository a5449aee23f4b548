"""Steps that try the README's two commands and the example programs."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import programs
from behave import then, when
from behave.runner import Context
from pages import ROOT, page
from tables import rule

import claude_batch as cb

README = page("README.md").text


def first_command() -> str:
    return next(line for line in README.splitlines() if "claude-batch run --sandbox" in line)


# The two commands


@rule("the first lines of the README have a text,")
def _(lines: int, text: str) -> dict[str, bool]:
    return {"found": text in "\n".join(README.splitlines()[:lines])}


@rule("pages have at most so many lines,")
def _(file: str, most: int) -> dict[str, bool]:
    return {"holds": len(page(file).text.splitlines()) <= most}


@then("the README's first command reviews every module, in order")
def _(context: Context) -> None:
    words = shlex.split(first_command().rpartition(" && ")[2])
    assert words[0] == ".venv/bin/claude-batch", words
    reviews = context.tmp / words[words.index("-o") + 1]
    words[words.index("-o") + 1] = str(reviews)
    with contextlib.chdir(ROOT):
        done = programs.run(programs.COMMAND, *words[1:], timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    lines = [json.loads(line) for line in reviews.read_text("utf-8").splitlines()]
    modules = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py"))
    assert [line["id"] for line in lines] == modules
    assert all(line["ok"] and line["text"] for line in lines)


# Example programs


EXAMPLE = """
import runpy, sys
from pathlib import Path
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a file as `python FILE` does."""


def run_example(program: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    name, *words = program.split()
    arguments = [str(ROOT / word) if (ROOT / word).exists() else word for word in words]
    for pattern in [word for word in arguments if "*" in word]:
        at = arguments.index(pattern)
        arguments[at : at + 1] = sorted(map(str, folder.glob(pattern)))
    with contextlib.chdir(folder):
        return programs.run(EXAMPLE, str(ROOT / "examples" / name), *arguments, timeout=120)


@when("the README's reader runs the example {program} twice")
def run_example_twice(context: Context, program: str) -> None:
    assert f"(examples/{program.split()[0]})" in README
    context.runs = [run_example(program) for _ in range(2)]


@when("the README's reader tries the example {program}")
def run_example_once(context: Context, program: str) -> None:
    context.runs = [run_example(program, context.tmp)]


@then('the README\'s reader has seen {count:d} lines like "{pattern}"')
def seen_lines(context: Context, count: int, pattern: str) -> None:
    for done in context.runs:
        assert done.returncode == 0, done.stderr
        printed = done.stdout + done.stderr
        assert len(re.findall(pattern, printed, re.MULTILINE)) == count, printed


@rule("programs have no more lines of code than their originals,")
def _(program: str, original: int) -> dict[str, bool]:
    found = code_lines((ROOT / "examples" / program).read_text("utf-8"))
    return {"holds": found <= original}


def code_lines(source: str) -> int:
    """How many lines hold code: not those of comments and docstrings, and no empty ones."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = [node.body[0] for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    words = {
        line
        for node in first
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for at, line in lines if at not in words and line.split("#")[0].strip())


@then("the programs of examples/{folder} are those that are run above")
@then("the programs of examples/{folder} are those that are run above, and {module}")
def all_examples_run(context: Context, folder: str, module: str = "") -> None:
    steps = [step.name for each in context.feature.walk_scenarios() for step in each.steps]
    words = rf"the example {folder}/(\S+\.py)"
    run = {found[1] for step in steps if (found := re.search(words, step))} | {module} - {""}
    assert run == {path.name for path in (ROOT / "examples" / folder).glob("*.py")}, run


@then("the page of frameworks shows each program, and as many batches as were counted")
def page_of_frameworks(context: Context) -> None:
    shown = page("docs/how-to/frameworks.md")
    programs = {path.name for path in (ROOT / "examples" / "frameworks").glob("*.py")}
    assert programs == {Path(block.title).name for block in shown.blocks}, programs
    played = [each for each in context.feature.walk_scenarios() if "make one batch" in each.name]
    for scenario in played:
        name = re.search(r"prompts of (.+) make", scenario.name)[1]
        row = rf"^\| \[{name}\]\(#[\w-]+\) \| [^|]+ \| 1 \|"
        assert re.search(row, shown.text, re.MULTILINE), name


@rule("the PDFs of invoices are made of their texts")
def _(invoice: str) -> dict[str, bool]:
    folder = ROOT / "examples" / "invoices"
    make = runpy.run_path(str(folder / "make.py"))["pdf_of"]
    text = (folder / f"{invoice}.txt").read_text("utf-8")
    return {"same": (folder / f"{invoice}.pdf").read_bytes() == make(text)}


@then('the README\'s reader is told "{words}" without a traceback')
def told(context: Context, words: str) -> None:
    for done in context.runs:
        assert done.returncode == 1, (done.returncode, done.stdout)
        assert words in done.stderr and "Traceback" not in done.stderr, done.stderr


@rule("the actors of the examples are loaded, and are the same when they are written and read,")
def _(files: str) -> dict[str, Any]:
    """Load the actors as `load_actor` binds them."""
    actors = [actor for path in sorted(ROOT.glob(files)) for actor in cb.ActorLoader.load_all(path)]
    for actor in actors:
        actor.require_answerable()
    again = [cb.ActorLoader.loads(actor.to_yaml()) for actor in actors]
    return {
        "actors": ", ".join(actor.name for actor in actors),
        "same": [each.to_dict() for each in again] == [actor.to_dict() for actor in actors],
    }
