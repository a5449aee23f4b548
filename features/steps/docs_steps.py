"""Steps that try what the documents say: commands, code, tables and links."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from staging import start_api

import claude_batch as cb
from claude_batch.core.durations import parse_duration
from claude_batch.core.settings import ENVIRONMENT_PREFIX, LedgerSettings
from claude_batch.providers.keywords import SettingKeywords

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
ANSWER = re.compile(r"^Sandbox answer", re.MULTILINE)


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(found) > 3, found
    return found


def blocks(language: str) -> Iterator[tuple[int, str]]:
    """The README's fenced blocks of a language, each with the number of its first line."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    for block in found:
        yield README.count("\n", 0, block.start(1)) + 1, block[1]


def section(title: str) -> str:
    """What stands under a heading of the README, up to the next of the same level."""
    return section_of(README, title)


def section_of(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title!r}"
    return found[1]


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


def help_of(*command: str) -> str:
    done = command_line(*command, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


# The two commands


@then("the README's first {count:d} lines hold the command that runs the main job")
def holds_main_job(context: Context, count: int) -> None:
    assert first_command() in README.splitlines()[:count]


@then("the README's first {count:d} lines hold the command that runs all tests")
def holds_tests(context: Context, count: int) -> None:
    lines = README.splitlines()[:count]
    assert any(re.fullmatch(r"python3 -m venv \.venv && .*\.venv/bin/nox", line) for line in lines)


@then("the README's commands install extras that the package has")
def extras_exist(context: Context) -> None:
    wanted = set(re.findall(r"'(?:\.|claude-batch)\[(\w+)\]'", README))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"sandbox", "dev"} <= wanted <= set(project["optional-dependencies"]), wanted


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


# Python


def quick() -> None:
    # The defaults are meant for hours; a test has none.
    os.environ["CLAUDE_BATCH_LINGER"] = "100ms"
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"


@given("the README's reader has a key and a server")
def reader(context: Context) -> None:
    start_api(context)
    quick()


@given("the README's reader has a server, and a key that it refuses")
def refused_reader(context: Context) -> None:
    start_api(context)
    quick()
    os.environ["ANTHROPIC_API_KEY"] = "sk-ant-invalid"


async def run_blocks() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, source in blocks("python"):
        # Padded, so that a traceback names the README's own lines.
        padded = "\n" * (line - 1) + source
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(padded, "README.md", "exec", flags=flags, dont_inherit=True)
        waiting = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await waiting


@when("the README's Python blocks are run in order, as one program")
def run_python(context: Context) -> None:
    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
        asyncio.run(run_blocks())
    context.printed = printed.getvalue()


@then("the README's Python has printed answers")
def printed_answers(context: Context) -> None:
    assert "Sandbox answer" in context.printed, context.printed
    prints = sum(source.count("print(") for _, source in blocks("python"))
    lines = len(context.printed.splitlines())
    # Two of three handlers are for errors that do not happen here; loops print more than once.
    assert lines >= prints - 2, (lines, prints, context.printed)


@then("the README's reader has paid for no request twice")
def paid_once(context: Context) -> None:
    bill = context.api.billing_summary()
    assert bill["paid"] == bill["distinct_params"] - bill["outcomes"]["errored"] > 0, bill
    assert bill["paid_more_than_once"] == bill["processed_more_than_once"] == 0, bill


def run_example(program: str) -> subprocess.CompletedProcess[str]:
    name, *arguments = program.split()
    return subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


@when("the README's reader runs the example {program} twice")
def run_example_twice(context: Context, program: str) -> None:
    assert f"(examples/{program.split()[0]})" in README
    context.runs = [run_example(program) for _ in range(2)]


@when("the README's reader tries the example {program}")
def run_example_once(context: Context, program: str) -> None:
    context.runs = [run_example(program)]


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
    assert context.api.billing_summary()["paid"] == count
    paid_once(context)


@then('the README\'s reader is told "{words}" without a traceback')
def told(context: Context, words: str) -> None:
    for done in context.runs:
        assert done.returncode == 1, (done.returncode, done.stdout)
        assert words in done.stderr and "Traceback" not in done.stderr, done.stderr


# YAML


@then("the README's YAML blocks are actors")
def yaml_blocks(context: Context) -> None:
    loaded = [cb.ActorLoader.loads(text, f"README.md:{line}") for line, text in blocks("yaml")]
    assert len(loaded) == 2 and all(actor.batch_mode is not None for actor in loaded), loaded


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


@then("the README's YAML shows every key of batch_processing with its default")
def yaml_defaults(context: Context) -> None:
    mode = cb.ActorLoader.loads(next(blocks("yaml"))[1]).batch_mode
    assert mode is not None
    assert mode.model_fields_set == set(cb.BatchProcessingMode.model_fields)
    assert mode == cb.BatchProcessingMode()


# Settings


def settings_table() -> dict[str, tuple[str, str]]:
    """Environment variable → flag ("" for none) and default, as the README's table has them."""
    rows = re.findall(
        rf"^\| (?:`(--[\w-]+)` )?\| `({ENVIRONMENT_PREFIX}\w+)` \| ([^|]*?) \|",
        section("Settings"),
        re.MULTILINE,
    )
    assert rows
    return {variable: (flag, default) for flag, variable, default in rows}


def defaults() -> dict[str, Any]:
    """The settings that have a default of their own, by their names in Python."""
    mode, ledger = cb.BatchProcessingMode(), LedgerSettings()
    return {**dict(mode), **{field.name: getattr(ledger, field.name) for field in fields(ledger)}}


@then("the README's environment variables are those that the code reads")
def environment_variables(context: Context) -> None:
    package = Path(str(cb.__file__)).parent
    sources = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    read = set(re.findall(r'from_environment\("(\w+)"', sources)) | set(defaults())
    assert set(settings_table()) == {ENVIRONMENT_PREFIX + name.upper() for name in read}
    named = set(re.findall(rf"\b{ENVIRONMENT_PREFIX}[A-Z_]*[A-Z]\b", README))
    assert named <= set(settings_table()), named - set(settings_table())


@then("the README's settings have the defaults of the code")
def settings_defaults(context: Context) -> None:
    table = settings_table()
    for name, value in defaults().items():
        _, shown = table[ENVIRONMENT_PREFIX + name.upper()]
        read: Any = {"true": True, "false": False}.get(shown, shown)
        if value is None:
            read = shown or None
        elif not isinstance(value, str | bool):
            read = parse_duration(shown)
        assert read == value, f"{name}: the README says {shown}, the code {value}"


@then("the README's settings are keywords of Python under the same names")
def keywords(context: Context) -> None:
    known = {
        *inspect.signature(cb.ClaudeBatchProvider).parameters,
        *SettingKeywords.__annotations__,
    }
    names = {variable.removeprefix(ENVIRONMENT_PREFIX).lower() for variable in settings_table()}
    assert names - known == {"state_dir"}, names - known


# The command line


@then("the README's commands are those of claude-batch")
def commands(context: Context) -> None:
    shown = set(re.findall(r"^(?:\S*/)?claude-batch ([a-z]+)", README, re.MULTILINE))
    listed = help_of().rpartition("Commands:")[2]
    assert shown == set(re.findall(r"^  ([a-z]+)\b", listed, re.MULTILINE)), (shown, listed)


@then("the README's flags are taken by claude-batch run")
def flags(context: Context) -> None:
    text = section("Settings")
    shown = set(re.findall(r"`(--[a-z-]+)", text)) - {"--help"}
    taken = set(re.findall(r"--[a-z-]+", help_of("run")))
    assert shown <= taken, shown - taken
    for variable, (flag, _) in settings_table().items():
        name = "--" + variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
        # A flag shows its unit by itself: `--budget USD`.
        name = name.removesuffix("-usd")
        assert flag == (name if name in taken else ""), f"{variable} has the flag {name}"


@then("the README's exit codes are those that claude-batch lists")
def exit_codes(context: Context) -> None:
    shown = re.findall(r"^\| (\d) \|", section("Settings"), re.MULTILINE)
    words = help_of()
    told = words[words.lower().index("exit code") :]
    told = re.split(r"^(?:Options|Commands):", told, flags=re.MULTILINE)[0]
    assert shown == sorted(set(re.findall(r"\b\d\b", told))) == list("01234"), (shown, told)
    meanings = re.findall(r"^\| (\d \| .+) \|$", section("Settings"), re.MULTILINE)
    listed = " ".join(told.split())
    for meaning in meanings:
        assert meaning.replace(" | ", " ") in listed, (meaning, listed)
    assert "Where several hold, the highest counts." in " ".join(section("Settings").split())
    assert "Where several hold, the highest counts." in listed, listed


# All documents


@then("the documents' relative links point to files")
def links(context: Context) -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in documents()
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))
        if not re.match(r"https?://|#", target)
        and not (path.parent / target.partition("#")[0]).exists()
    ]
    assert not broken, broken


@then("the documents name no path of anybody's machine")
def no_machine_paths(context: Context) -> None:
    machine = re.compile(r"(?<![\w.~])/(?:work|tmp|home|root|Users|private|opt|mnt)/")
    shown = [*documents(), *(ROOT / "examples").rglob("*.*")]
    found = [path.name for path in shown if machine.search(path.read_text("utf-8"))]
    assert not found, found


@then("the documents' guarantees name scenarios of the features they link to")
def guarantees(context: Context) -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    cited = re.findall(r"\]\(\.\./(features/[\w/]+\.feature)\):((?:\s+“[^”]+”[;.,]?)+)", text)
    assert len(cited) > 10, cited
    assert len(cited) == text.count(".feature)"), "a link to a feature without scenarios"
    for feature, names in cited:
        source = (ROOT / feature).read_text("utf-8")
        known = re.findall(r"^\s*Scenario(?: Outline)?: (.+?)\s*$", source, re.MULTILINE)
        for name in re.findall(r"“([^”]+)”", names):
            # An outline's name may end in a placeholder, which a promise does not repeat.
            plain = " ".join(name.split())
            assert any(each.startswith(plain) for each in known), f"{feature}: no {plain!r}"


# The picture


def architecture(title: str) -> str:
    return section_of((ROOT / "docs" / "architecture.md").read_text("utf-8"), title)


@then("the documents' table of rooms lists every package")
def rooms(context: Context) -> None:
    shown = set(re.findall(r"^\| `(\w+)/` \|", architecture("Rooms"), re.MULTILINE))
    package = Path(str(cb.__file__)).parent
    assert shown == {path.parent.name for path in package.glob("*/__init__.py")}, shown


@then("the documents' tables are those of the ledger")
def ledger_tables(context: Context) -> None:
    from claude_batch.ledger.schema import metadata

    text = architecture("The ledger")
    shown = {
        name
        for cell in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    }
    assert shown == set(metadata.tables), shown ^ set(metadata.tables)


@then("the documents' states are those of the code")
def states(context: Context) -> None:
    shown = set(re.findall(r"`([a-z_]+)`", architecture("States")))
    kinds = (cb.RequestState, cb.BatchState, cb.RunState)
    known = {state.value for kind in kinds for state in kind}
    assert shown == known, shown ^ known
