"""Steps that try the README's two commands and the example programs."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from pages import ROOT, page
from staging import start_api

import claude_batch as cb

README = page("README.md").text
ANSWER = re.compile(r"^Sandbox answer", re.MULTILINE)


def first_command() -> str:
    return next(line for line in README.splitlines() if "claude-batch run --sandbox" in line)


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "claude_batch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


# The two commands


@then("the README's first {count:d} lines hold the command that runs {what}")
def holds_command(context: Context, count: int, what: str) -> None:
    lines = README.splitlines()[:count]
    if what == "the main job":
        assert first_command() in lines
        return
    assert what == "all tests", what
    assert any(re.fullmatch(r"python3 -m venv \.venv && .*\.venv/bin/nox", line) for line in lines)


@then("the README has at most {count:d} lines")
def is_short(context: Context, count: int) -> None:
    assert len(README.splitlines()) <= count, len(README.splitlines())


@when("the README's first command is run")
def run_first_command(context: Context) -> None:
    words = shlex.split(first_command().rpartition(" && ")[2])
    assert words[0] == ".venv/bin/claude-batch", words
    context.reviews = context.tmp / words[words.index("-o") + 1]
    words[words.index("-o") + 1] = str(context.reviews)
    context.done = command_line(*words[1:])


@then("the README's first command has ended with exit code {code:d}")
def ended_with(context: Context, code: int) -> None:
    done = context.done
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)


@then("the README's first command has reviewed every module, in order")
def reviewed_all(context: Context) -> None:
    lines = [json.loads(line) for line in context.reviews.read_text("utf-8").splitlines()]
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    assert {line["id"] for line in lines} == modules and len(lines) == len(modules)
    assert [line["id"] for line in lines] == sorted(modules)
    assert all(line["ok"] and line["text"] for line in lines)


# Example programs


@given("the README's reader has a server, and a key that it refuses")
def refused_reader(context: Context) -> None:
    start_api(context)
    os.environ["CLAUDE_BATCH_LINGER"] = "100ms"
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"
    os.environ["ANTHROPIC_API_KEY"] = "sk-ant-invalid"


def run_example(program: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    name, *words = program.split()
    arguments = [str(ROOT / word) if (ROOT / word).exists() else word for word in words]
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@given("a folder of {count:d} invoices, one page each")
def folder_of_invoices(context: Context, count: int) -> None:
    pdf_of = runpy.run_path(str(ROOT / "examples" / "invoices" / "make.py"))["pdf_of"]
    context.invoices = [context.tmp / f"invoice_{number:03d}.pdf" for number in range(count)]
    for number, path in enumerate(context.invoices):
        path.write_bytes(pdf_of(f"INVOICE {number}\nTestCorp\nOne service: $10\nTOTAL $10"))


def _as_dspy_reads_it(params: dict[str, Any]) -> str | None:
    asked_by_dspy = "[[ ## " in str(params)
    return "[[ ## answer ## ]]\nA knot.\n[[ ## completed ## ]]" if asked_by_dspy else None


@given("a framework's user with a key and a server")
def framework_user(context: Context) -> None:
    start_api(context, responder=_as_dspy_reads_it)
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "100ms"
    # These look at the network, and keep answers of earlier tests.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["DSPY_CACHEDIR"] = str(context.tmp / "dspy")
    os.environ["HOME"] = str(context.tmp)


@when("the README's reader runs the example {program} twice")
def run_example_twice(context: Context, program: str) -> None:
    assert f"(examples/{program.split()[0]})" in README
    context.runs = [run_example(program) for _ in range(2)]


@when("the README's reader tries the example {program}")
def run_example_once(context: Context, program: str) -> None:
    if "INVOICES" in program:
        program = program.replace("INVOICES", " ".join(map(str, context.invoices)))
    context.runs = [run_example(program, context.tmp)]


@then('the README\'s reader has seen {count:d} lines like "{pattern}"')
def seen_lines(context: Context, count: int, pattern: str) -> None:
    for done in context.runs:
        assert done.returncode == 0, done.stderr
        printed = done.stdout + done.stderr
        assert len(re.findall(pattern, printed, re.MULTILINE)) == count, printed


@then("the example {program} has at most {count:d} lines of code")
def is_no_longer(context: Context, program: str, count: int) -> None:
    source = (ROOT / "examples" / program.split()[0]).read_text("utf-8")
    found = code_lines(source)
    assert found <= count, found


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


@then("the README's reader has seen {count:d} answers each time")
def seen(context: Context, count: int) -> None:
    for done in context.runs:
        assert done.returncode == 0, done.stderr
        assert len(ANSWER.findall(done.stdout)) == count, done.stdout


@then('the README\'s reader has seen the invoices "{names}" as objects')
def seen_invoices(context: Context, names: str) -> None:
    [done] = context.runs
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^(\S+): \d{4}-\d\d-\d\d \d+\.\d\d EUR", done.stdout, re.MULTILINE)
    assert told == names.split(", "), done.stdout


@then(
    "the README's reader has seen {count:d} questions answered in {turns:d} turns each, with what "
    "the almanac says"
)
def seen_research(context: Context, count: int, turns: int) -> None:
    [done] = context.runs
    assert done.returncode == 0, done.stderr
    told = re.findall(
        r"^\w+ \((\d+) turns\): .*\"depth\":.*high water at", done.stdout, re.MULTILINE
    )
    assert told == [str(turns)] * count, done.stdout


@then("the README's reader has seen what each of their {count:d} fields rests on")
def seen_citations(context: Context, count: int) -> None:
    [done] = context.runs
    told = re.findall(r"^  (\w+): (\S+), page 1$", done.stdout, re.MULTILINE)
    invoices = Counter(name for _, name in told)
    assert len(invoices) == 3 and set(invoices.values()) == {count}, done.stdout


@then("making the invoices anew changes none of them")
def made_invoices(context: Context) -> None:
    folder = ROOT / "examples" / "invoices"
    make = runpy.run_path(str(folder / "make.py"))["pdf_of"]
    texts = sorted(folder.glob("*.txt"))
    assert len(texts) == 3
    for path in texts:
        assert path.with_suffix(".pdf").read_bytes() == make(path.read_text("utf-8")), path


@then("the README's reader has seen {count:d} verdicts and the score each time")
def seen_verdicts(context: Context, count: int) -> None:
    for done in context.runs:
        assert done.returncode == 0, done.stderr
        told = re.findall(r"^\w+: (right|wrong) \(", done.stdout, re.MULTILINE)
        assert len(told) == count, done.stdout
        right = told.count("right")
        assert f"{right} of {count} right, 0 without a verdict" in done.stdout, done.stdout


@then("the README's reader has paid for {count:d} requests, none twice")
def paid_for(context: Context, count: int) -> None:
    bill = context.api.billing_summary()
    assert bill["paid"] == count == bill["distinct_params"] - bill["outcomes"]["errored"], bill
    assert bill["paid_more_than_once"] == bill["processed_more_than_once"] == 0, bill


@then('the README\'s reader is told "{words}" without a traceback')
def told(context: Context, words: str) -> None:
    for done in context.runs:
        assert done.returncode == 1, (done.returncode, done.stdout)
        assert words in done.stderr and "Traceback" not in done.stderr, done.stderr


@then("the documents' example actors can be loaded, each of them")
def example_actors(context: Context) -> None:
    found = sorted((ROOT / "examples").glob("*/*.yaml"))
    assert {path.name for path in found} >= {"nested.yaml", "reviewer.yaml"}
    for path in found:
        for actor in cb.ActorLoader.load_all(path):
            actor.require_answerable()
            # As `load_actor` binds it; a round trip keeps what was written.
            again = cb.ActorLoader.loads(actor.to_yaml())
            assert again.to_dict() == actor.to_dict()
