"""Steps that run or check each block of code on each page.

Python and transcripts (`console`) are run. A shell command is read by the parser of `claude-batch`,
YAML is loaded, JSON is read, and a picture must name what exists.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import csv
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import yaml
from behave import given, then
from behave.runner import Context
from click.testing import CliRunner, Result
from pages import ROOT, Block, page, pages
from staging import start_api, until
from tables import rule

import claude_batch as cb
from claude_batch.cli.app import group
from claude_batch.money.prices import prices_of
from claude_batch.sandbox.fault_plan import load_plan

PLAYED = ("python", "console")
"""Languages whose blocks are run; `CHECKS` has the others."""

SANDBOX_URL = "http://127.0.0.1:8765"
"""Where `claude-batch sandbox` listens by default, as a transcript shows it."""


def _is_played(block: Block, language: str) -> bool:
    """Whether a block is run as its page shows it; the program of an example has its own tests."""
    return block.language == language and not block.title.startswith("examples/")


# Python


def _as_dspy_reads_it(params: dict[str, Any]) -> str | None:
    asked_by_dspy = "[[ ## " in str(params)
    return "[[ ## answer ## ]]\nA knot.\n[[ ## completed ## ]]" if asked_by_dspy else None


@given("a reader with a key and a server")
def reader(context: Context) -> None:
    start_api(context, responder=_as_dspy_reads_it)
    # These look at the network, and keep answers of earlier tests.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["DSPY_CACHEDIR"] = str(context.tmp / "dspy")
    os.environ["HOME"] = str(context.tmp)
    # The defaults are meant for hours; a test has none.
    os.environ["CLAUDE_BATCH_LINGER"] = "100ms"
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"


@then("the Python of {name}, run in order as one program, prints what it says")
def run_python(context: Context, name: str) -> None:
    said = io.StringIO()
    blocks = [block for block in page(name).blocks if _is_played(block, "python")]
    assert blocks, f"{name} has no Python"
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(said):
        asyncio.run(_run(blocks))
    handled = sum(_handled(block.code) for block in blocks)
    prints = sum(block.code.count("print(") for block in blocks)
    lines = len(said.getvalue().splitlines())
    # Of several handlers one is reached at most; loops print more than once.
    assert lines >= max(1, prints - handled), (lines, prints, handled, said.getvalue())
    # Not counted above, because a handler is reached only if the block before it raises.
    shown = [each for block in blocks for each in _MESSAGE.findall(block.code)]
    printed = said.getvalue().splitlines()
    lost = [each for each in shown if not any(_matches(each, line) for line in printed)]
    assert not lost, (lost, said.getvalue())


_MESSAGE = re.compile(r"print\(error\)  # (.+)")
"""A print of an error, and its message as a comment; `…` stands for anything."""


async def _run(blocks: list[Block]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        # Padded, so that a traceback names the page's own lines.
        padded = "\n" * (block.line - 1) + block.code
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(padded, block.page, "exec", flags=flags, dont_inherit=True)
        waiting = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await waiting


def _handled(source: str) -> int:
    """How many `print` calls stand in exception handlers and functions."""
    kinds = (ast.ExceptHandler, ast.FunctionDef)
    inner = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return sum(ast.unparse(node).count("print(") for node in inner)


@then("the reader has paid for no request twice")
@then("the reader has paid for {count:d} requests, none twice")
def paid_once(context: Context, count: int | None = None) -> None:
    bill = context.api.billing_summary()
    assert bill["paid_more_than_once"] == bill["processed_more_than_once"] == 0, bill
    if count is not None:
        assert bill["paid"] == count == bill["distinct_params"] - bill["outcomes"]["errored"], bill


# Transcripts


@then("the transcripts of {name}, played in order, are what the commands print")
def transcripts_hold(context: Context, name: str) -> None:
    blocks = [each for each in page(name).blocks if each.language == "console"]
    assert blocks, f"{name} has no transcript"
    folder = Path(tempfile.mkdtemp(dir=context.tmp))
    for kept in ("examples", "src"):
        (folder / kept).symlink_to(ROOT / kept)
    for block in page(name).blocks:
        if block.title:
            (folder / block.title).write_text(block.code, "utf-8")
    steps = [step for block in blocks for step in _steps_of(block)]
    url = SANDBOX_URL
    for step in [step for step in steps if step.command.startswith("claude-batch sandbox")]:
        url = _serve(context, step, folder)
        steps.remove(step)
    wrong = [
        f"{step.place}: $ {step.command}\nshown:\n{step.output}\nprinted:\n{printed}"
        for step, printed in zip(steps, _play(steps, folder, url), strict=True)
        if not _matches(step.output, printed)
    ]
    assert not wrong, "\n\n".join(wrong)


class Step:
    """A command of a transcript, and what it prints."""

    def __init__(self, block: Block, command: str, output: str) -> None:
        self.place = block.place
        self.command = command
        self.output = output


def _steps_of(block: Block) -> Iterator[Step]:
    assert block.code.startswith("$ "), f"{block.place}: a transcript begins with `$ `"
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Step(block, command, output.rstrip("\n"))


def _environment(folder: Path) -> dict[str, str]:
    tools = str(Path(sys.executable).parent)
    path = os.pathsep.join([tools, os.environ.get("PATH", "")])
    # Rich breaks lines at the width of the terminal, which there is none of.
    return {**os.environ, "PATH": path, "COLUMNS": "200", "HOME": str(folder)}


def _serve(context: Context, step: Step, folder: Path) -> str:
    """Start the sandbox of a transcript on a free port; returns its address."""
    words = [*shlex.split(step.command), "--port", "0"]
    log = folder / "sandbox.log"
    with log.open("w") as stream:
        process = subprocess.Popen(words, stdout=stream, cwd=folder, env=_environment(folder))

    def end() -> None:
        process.terminate()
        process.wait(30)

    context.add_cleanup(end)
    said = until(lambda: log.read_text().strip())
    assert said.startswith("sandbox listening on http://"), said
    url = said.rpartition(" ")[2]
    assert _matches(step.output, said.replace(url, SANDBOX_URL)), (step.place, said)
    return url


def _play(steps: list[Step], folder: Path, url: str) -> list[str]:
    """Run the commands in one shell; returns what each printed, on both streams."""
    script = "".join(
        f"{step.command.replace(SANDBOX_URL, url)}\nprintf '\\036'\n" for step in steps
    )
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=_environment(folder),
        timeout=240,
    )
    printed = done.stdout.replace(url, SANDBOX_URL).split("\036")[:-1]
    assert len(printed) == len(steps), done.stdout
    return printed


def _matches(expected: str, printed: str) -> bool:
    """Whether a transcript's output is what was printed; `…` stands for anything."""
    parts = (re.escape(part) for part in expected.split("…"))
    return re.fullmatch(".*".join(parts), printed.strip("\n"), re.DOTALL) is not None


# Shell commands that are run

PREPARED = {
    "reviewer.yaml": "examples/actors/reviewer.yaml",
    "explainer.yaml": "examples/actors/reviewer.yaml",
    "extractor.yaml": "examples/actors/extractor.yaml",
    "contract.pdf": "examples/invoices/harbour.pdf",
    "inv/1.pdf": "examples/invoices/harbour.pdf",
    "inv/2.pdf": "examples/invoices/sails.pdf",
}
"""Files that the pages' commands name, and the examples that stand for them."""

ENDS = {0, 1, 3}
"""Exit codes of a command that the command line has understood: 2 is wrong usage."""


@then("the commands of {name} are understood, and do what they say")
def commands_hold(context: Context, name: str) -> None:
    folder = Path(tempfile.mkdtemp(dir=context.tmp))
    for kept in ("examples", "src"):
        (folder / kept).symlink_to(ROOT / kept)
    (folder / "inv").mkdir()
    for path, example in PREPARED.items():
        (folder / path).write_bytes((ROOT / example).read_bytes())
    failing = "[[sandbox:errored:overloaded_error]] fail"
    for path in ("prompts.jsonl", "questions.jsonl"):
        (folder / path).write_text(f'"Name a knot."\n"{failing}"\n', "utf-8")
    (folder / "names.csv").write_text("prompt\nAnna\n", "utf-8")
    for block in page(name).blocks:
        if block.language in {"csv", "yaml"} and block.title:
            (folder / block.title).write_text(block.code, "utf-8")
    ended: list[tuple[str, list[str], Result]] = []
    with contextlib.chdir(folder):
        first = _invoke(["run", "reviewer.yaml", "prompts.jsonl", "-o", "first.jsonl"])
        run = re.search(r"run-\w+", first.output)
        assert run, first.output
        for block in page(name).blocks:
            if block.language == "bash":
                runnable = _runnable(block, run[0])
                ended += [(block.place, words, _invoke(words)) for words in runnable]
    assert ended, f"{name} has no command that is run"
    wrong = [
        f"{place}: claude-batch {shlex.join(words)}: {done.exit_code}\n{done.output}"
        for place, words, done in ended
        if done.exit_code not in ENDS
        or "This is a bug" in done.output
        or not isinstance(done.exception, SystemExit | None)
    ]
    assert not wrong, "\n".join(wrong)


SERVERS = ("dashboard", "gateway", "sandbox", "worker")
"""Commands that serve until they are ended; features of their own start them."""


def _runnable(block: Block, run: str) -> Iterator[list[str]]:
    """The arguments of its commands of `claude-batch` that come to an end."""
    named = {"run-7k2": run, "RUN": run, "KEY": "1"}
    for line in block.code.replace("\\\n", " ").splitlines():
        for words in _commands(line):
            if Path(words[0]).name != "claude-batch" or words[1] in SERVERS:
                continue
            # features/postgres/copy.feature has the server that it needs.
            if words[1:3] != ["ledger", "copy"]:
                yield [named.get(word, word) for word in words[1:]]


def _invoke(words: list[str]) -> Result:
    return CliRunner().invoke(group, words, prog_name="claude-batch", catch_exceptions=True)


# Completeness


def problems_of(block: Block) -> list[str]:
    """What is wrong with a block that is not run."""
    if block.title.startswith("examples/"):
        same = (ROOT / block.title).read_text("utf-8") == block.code
        return [] if same else [f"it is not the same as {block.title}"]
    if block.language in PLAYED:
        return []  # "the pages with … are those that are run above" says that it is run
    if block.language not in CHECKS:
        return [f"no check for {block.language or 'no language'!r}"]
    try:
        return list(CHECKS[block.language](block))
    except (ValueError, cb.ActorError, yaml.YAMLError) as error:
        return [str(error)]


@then("the pages with {what} are those that are run above")
def all_are_played(context: Context, what: str) -> None:
    language, words = {
        "Python": ("python", r"the Python of (\S+), run"),
        "transcripts": ("console", r"the transcripts of (\S+), played"),
        "commands": ("bash", r"the commands of (\S+) are understood"),
    }[what]
    steps = [step.name for each in context.feature.walk_scenarios() for step in each.steps]
    played = {found[1] for step in steps if (found := re.match(words, step))}
    blocks = [block for each in pages() for block in each.blocks if _is_played(block, language)]
    shown = {each.page for each in blocks if language != "bash" or any(_runnable(each, "RUN"))}
    assert played == shown, played ^ shown


# Shell commands


def _check_shell(block: Block) -> Iterator[str]:
    for line in block.code.replace("\\\n", " ").splitlines():
        for words in _commands(line):
            yield from _check_command(words)
    # A new account has none of the folders that shells look into.
    made = set(re.findall(r"mkdir -p (\S+)", block.code))
    for path in re.findall(r"> (~/\S+)", block.code):
        if os.path.dirname(path) not in made:
            yield f"nothing makes the folder of {path}"


def _commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in lexer:
        if set(word) <= set("();<>|&"):
            redirected = set(word) <= set("<>")
            if not redirected and words:
                yield words
                words = []
        elif redirected:
            redirected = False
        else:
            words.append(word)
    if words:
        yield words


def _check_command(words: list[str]) -> Iterator[str]:
    name, *arguments = words
    match Path(name).name or name, arguments:
        case "claude-batch", _:
            yield from parse_problems(arguments)
        case "pip", ["install", *wanted]:
            yield from _check_extras(wanted)
        case "mkdir", ["-p", _]:
            pass
        case (("python" | "python3"), ["-m", "venv", (".venv" | "/usr/local/lib/claude-batch")]):
            pass
        case (("python" | "python3"), [script, *_]) if script.endswith(".py"):
            if not (ROOT / script).is_file():
                yield f"there is no {script}"
        case "nox", _:
            yield from _check_nox(arguments)
        case "export", assignments:
            for each in assignments:
                variable = each.partition("=")[0]
                if variable not in {*known_variables(), "PYTHONPATH"}:
                    yield f"nothing reads the variable {variable}"
        case "curl", [url, *_]:
            if not re.match(r"\$ANTHROPIC_BASE_URL/(v1|claude-batch/v1)/", url):
                yield f"no check for the address {url}"
        case (("docker" | "kubectl" | "install" | "systemctl" | "journalctl"), _):
            yield from _check_deployed(words)
        case "sudo", ["install", "-d", *_]:
            pass  # it makes the folder that it names
        case "sudo", ["-u", "claude-batch", *command]:
            yield from _check_command(command)
        case ("systemd-sysusers", []) | ("set", ["-a"]):
            pass
        case ".", [path]:
            if not (ROOT / "deploy/systemd" / Path(path).name).is_file():
                yield f"there is no {Path(path).name}"
        case "procrastinate", ["--app=fleet.app", *wanted]:
            # features/postgres/procrastinate.feature runs both.
            if wanted not in (["schema", "--apply"], ["worker"]):
                yield f"no check for {shlex.join(wanted)}"
        case ("apt", ["install", "python3-venv"]) | ("source", [".venv/bin/activate"]):
            pass
        case _:
            yield f"no check for the command {shlex.join(words)}"


def _check_deployed(words: list[str]) -> Iterator[str]:
    """Its files must exist, and a command inside a container is read as any other."""
    for path in words:
        file = re.sub(r"^deployment/claude-batch-(\w+)$", r"deploy/kubernetes/\1.yaml", path)
        file = re.sub(r"^(claude-batch-\w+\.(service|timer))$", r"deploy/systemd/\1", file)
        if file.startswith(("deploy/", "examples/")) and not (ROOT / file).exists():
            yield f"there is no {path}"
    image = ["claude-batch"] if words[:2] == ["docker", "run"] else []
    for before in ("worker", "gateway", "--", *image):
        if before in words and words[-1] != before:
            inside = words[words.index(before) + 1 :]
            yield from parse_problems(inside[inside[0] == "claude-batch" :])
            return


def parse_problems(arguments: list[str]) -> Iterator[str]:
    """What the parser of `claude-batch` finds wrong with a command line; nothing is run."""
    command: click.Command = group
    # A command keeps the help option of its first context, which decides whether it has `-h`.
    context = click.Context(group, info_name="claude-batch", **group.context_settings)
    words = list(arguments)
    if words in (["--help"], ["--version"]):
        return
    while isinstance(command, click.Group):
        name = words.pop(0) if words else ""
        if name not in command.commands:
            yield f"there is no command {name!r} in `claude-batch {shlex.join(arguments)}`"
            return
        command = command.commands[name]
        context = click.Context(command, info_name=name, parent=context)
    if words == ["--help"]:
        return
    try:
        command.make_context(command.name, words, parent=context.parent)
    except click.ClickException as error:
        yield f"claude-batch {shlex.join(arguments)}: {error.format_message()}"


def _check_extras(wanted: list[str]) -> Iterator[str]:
    extras = _project()["optional-dependencies"]
    tools = {line.partition(">=")[0] for line in extras["dev"]}
    for each in wanted:
        found = re.fullmatch(r"\.(?:\[([\w,]+)\])?", each)
        if each == "-e" or each in tools:
            continue
        if each.startswith("claude-batch"):
            yield f"{each} is on no registry: it is installed in a copy of the repository"
        elif not found:
            yield f"{each} is not this package"
        elif found[1] and not set(found[1].split(",")) <= set(extras):
            yield f"the package has no extra {found[1]}"


@cache
def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _check_nox(arguments: list[str]) -> Iterator[str]:
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    ours, _, theirs = " ".join(arguments).partition(" -- ")
    for name in ours.removeprefix("-s").split():
        if name not in sessions:
            yield f"nox has no session {name}"
    for path in theirs.split():
        if re.match(r"features|robot", path) and not (ROOT / path).exists():
            yield f"there is no {path}"


@cache
def known_variables() -> set[str]:
    """Environment variables that the package's sources, its settings or an example name."""
    package = Path(str(cb.__file__)).parent
    sources = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    named = set(re.findall(r"\b(?:ANTHROPIC|CLAUDE_BATCH)_[A-Z_]+\b", sources))
    read = re.findall(r'from_environment\("(\w+)"', sources)
    flags = {str(each.envvar) for each in _parameters() if each.envvar}
    modes = {f"CLAUDE_BATCH_{name.upper()}" for name in cb.BatchProcessingMode.model_fields}
    examples = "".join(path.read_text("utf-8") for path in ROOT.glob("examples/**/*.py"))
    named |= set(re.findall(r'os\.environ\["(\w+)"\]', examples))
    return named | flags | modes | {f"CLAUDE_BATCH_{name.upper()}" for name in read}


def _parameters() -> Iterator[click.Parameter]:
    waiting: list[click.Command] = [group]
    while waiting:
        command = waiting.pop()
        yield from command.params
        if isinstance(command, click.Group):
            waiting += command.commands.values()


# Other languages


def _check_cron(block: Block) -> Iterator[str]:
    keys = re.findall(r"^CLAUDE_BATCH_API_KEY_ENV=(\w+)$", block.code, re.MULTILINE)
    for line in block.code.splitlines():
        if re.match(r"\s*(#|$)", line) or re.fullmatch(r"(PATH|HOME|MAILTO)=\S+", line):
            continue
        if assignment := re.fullmatch(r"(\w+)=\S+", line):
            if assignment[1] not in {*known_variables(), *keys}:
                yield f"nothing reads the variable {assignment[1]}"
            continue
        found = re.fullmatch(r"((?:[\d*/,-]+\s+){5})(.+)", line)
        if not found:
            yield f"not a line of a crontab: {line}"
            continue
        for words in _commands(found[2]):
            yield from _check_command(words)


def _check_yaml(block: Block) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (block.title or "actor.yaml")
        # The settings alone are an actor's once a model stands beside them.
        model = "model: claude-haiku-4-5\n" if block.code.startswith("batch_processing:") else ""
        path.write_text(model + block.code, "utf-8")
        if path.name == "prices.yaml":
            prices_of(path)
            return
        for actor in cb.ActorLoader.load_all(path):
            if actor.batch_mode is None:
                yield f"{actor.name} does not use batches"


def _check_json(block: Block) -> Iterator[str]:
    value = json.loads(block.code)
    if isinstance(value, dict) and "rules" in value:
        load_plan(value)  # raises a ValueError that names what is wrong
    yield from ()


def _check_json_lines(block: Block) -> Iterator[str]:
    """Lines of output have only fields that the reference describes; others can be sent."""
    described = set(re.findall(r"^\| `(\w+)` \|", _output_section(), re.MULTILINE))
    for line in block.code.splitlines():
        value = json.loads(line)
        if isinstance(value, dict) and "ok" in value:
            if not set(value) <= described:
                yield f"not in the reference of output lines: {set(value) - described}"
        else:
            cb.ActorRequest.of(value)


def _output_section() -> str:
    return page("docs/reference/input-output.md").section("Output lines")


def _check_csv(block: Block) -> Iterator[str]:
    rows = list(csv.reader(io.StringIO(block.code)))
    if "prompt" not in rows[0]:
        yield "there is no column of prompts"
    if any(len(row) != len(rows[0]) for row in rows):
        yield "its rows differ in length"


_MERMAID_NODE = r"(\w+)(?:\[+\(?\"[^\"]+\"\)?\]+|\(\"[^\"]+\"\)|\{\"[^\"]+\"\})?"
_MERMAID_LINE = re.compile(
    rf"\s*{_MERMAID_NODE}(?:\s*(?:-->|-\.->)(?:\|\"[^\"]+\"\|)?\s*{_MERMAID_NODE})*\s*"
)


def _check_mermaid(block: Block) -> Iterator[str]:
    """A flowchart in the few forms that the pages use, whose code names exist."""
    first, *lines = block.code.splitlines()
    if not re.fullmatch(r"flowchart (LR|TB)", first):
        yield f"not the first line of a flowchart: {first}"
    for line in lines:
        if not _MERMAID_LINE.fullmatch(line) and not re.fullmatch(
            r"\s*(subgraph \w+\[\"[^\"]+\"\]|end)", line
        ):
            yield f"not a line of a flowchart: {line}"
    yield from _check_names(block)


def _check_names(block: Block) -> Iterator[str]:
    """Names of code in a picture or a message are names of the package."""
    words = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", block.code)
    words += re.findall(r"\b([a-z_]+)\(\)", block.code)
    for word in sorted(set(words)):
        if not re.search(rf"\b{word}\b", _sources()):
            yield f"the package has nothing that is called {word}"
    for flag in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", block.code))):
        if not any(flag in (*each.opts, *each.secondary_opts) for each in _parameters()):
            yield f"no command has the flag {flag}"


@cache
def _sources() -> str:
    package = Path(str(cb.__file__)).parent
    return "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))


def _check_sql(block: Block) -> Iterator[str]:
    # `features/postgres/scale.feature` runs it on a server.
    if block.page != "docs/explanation/scale.md":
        yield "no scenario runs the SQL of this page"


CHECKS: dict[str, Callable[[Block], Iterable[str]]] = {
    "bash": _check_shell,
    "cron": _check_cron,
    "csv": _check_csv,
    "json": _check_json,
    "jsonl": _check_json_lines,
    "mermaid": _check_mermaid,
    "sql": _check_sql,
    "text": _check_names,
    "yaml": _check_yaml,
}


@rule("what was printed fits a transcript")
def _(printed: str, shown: str) -> dict[str, bool]:
    lines = printed.replace("\\n", "\n"), shown.replace("\\n", "\n")
    return {"fits": _matches(lines[1], lines[0])}


@rule("blocks of a page are checked")
def _(language: str, code: str) -> dict[str, str]:
    title = "examples/review.py" if "as an example" in code else ""
    block = Block("a page", 1, language, title, f"{code}\n")
    return {"problem": "\n".join(problems_of(block))}
