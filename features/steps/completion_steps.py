"""Steps of what shells are told when Tab is pressed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import programs
from behave import then
from behave.runner import Context
from tables import rule

from claude_batch.cli.app import group
from claude_batch.cli.options import (
    complete_files,
    complete_folders,
    complete_requests,
    complete_runs,
)

TOOLS = str(Path(sys.executable).parent)
COMMAND = "from claude_batch.cli import main; main()"


def _typed(context: Context, text: str) -> list[str]:
    """The words of a line; the last one is being typed."""
    words = ["claude-batch", *text.replace("RUN", context.run_id).split()]
    begins_a_word = words[-1] == context.run_id or words[-1].startswith(("-o", "--results"))
    return [*words, ""] if begins_a_word else words


def _run(words: list[str], **variables: str) -> str:
    path = os.pathsep.join([TOOLS, os.environ["PATH"]])
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, **variables},
    )
    assert done.returncode == 0 and not done.stderr, (words, done)
    return done.stdout


def _offered(context: Context, shell: str, words: list[str]) -> list[str]:
    number = words[-1] if shell == "fish" else str(len(words) - 1)
    asks = {
        "COMP_WORDS": "\n".join(words) if shell == "bash" else " ".join(words),
        "COMP_CWORD": number,
        "_CLAUDE_BATCH_COMPLETE": f"{shell}_complete",
    }
    done = programs.run(COMMAND, env={**os.environ, **asks})
    assert done.returncode == 0 and not done.stderr, (words, done)
    told = done.stdout
    if shell == "zsh":  # the type, the word and its help, each in a line
        lines = told.rstrip("\n").split("\n")
        told = "\n".join(map(",".join, zip(lines[::3], lines[1::3], strict=False)))
    kinds = (line.split("\t")[0].split(",", 1) for line in told.split("\n") if line)
    return [word if kind == "plain" else f"({kind})" for kind, word in kinds]


@then("the Tab key offers in {shell}")
def _(context: Context, shell: str) -> None:
    for row in context.table:
        found = _offered(context, shell, _typed(context, row["typed"]))
        expected = row["offered"].replace("RUN", context.run_id)
        assert ", ".join(found) == expected, (row["typed"], found)


# Source the script and complete the arguments. A shell completes only within its line editor, so
# bash and zsh call the function of the script with the editor replaced. Fish has a command for it.
PROGRAMS = {
    "bash": """
        compopt() { COMPREPLY=('(files)'); }
        source ./script
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _claude_batch_completion claude-batch
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { [[ "$*" == "_claude_batch_completion claude-batch" ]] || exit 1; }
        compadd() { print -l -- ${(P)@[-1]}; }
        _describe() { print -l -- ${${(P)3}%%:*}; }
        _path_files() { print "(files)"; }
        source ./script
        words=("$@"); CURRENT=$#
        _claude_batch_completion
    """,
    "fish": """
        source ./script
        for found in (complete --do-complete (string join " " $argv))
            set --local word (string split --fields 1 \\t $found)
            test -e $word; and echo "(files)"; or echo $word
        end
    """,
}
QUICK = {"bash": ["--norc"], "zsh": ["--no-rcs"], "fish": ["--no-config"]}


@then("the script for {shell} completes, if this machine has the shell")
def _(context: Context, shell: str) -> None:
    if shutil.which(shell) is None:
        context.scenario.skip(f"this machine has no {shell}")
        return
    Path("script").write_text(_run(["claude-batch", "completion", shell]))
    named = [] if shell == "fish" else [shell]  # `$0`
    for row in context.table:
        words = _typed(context, row["typed"])
        printed = _run([shell, *QUICK[shell], "-c", PROGRAMS[shell], *named, *words])
        assert printed.splitlines() == row["words"].split(", "), (row["typed"], printed)
    assert not Path("broken").exists()


COMPLETERS = {
    complete_files: "files",
    complete_folders: "folders",
    complete_runs: "runs",
    complete_requests: "requests",
}


@rule("what the help calls by a name is completed in every command")
def _(name: str) -> dict[str, str]:
    found = set[str]()
    for _, command in _commands(group, "claude-batch"):
        for parameter in command.params:
            if re.sub(r"^\[ACTOR\] |[\[\].]", "", parameter.metavar or "") != name:
                continue
            by_type = "folders" if name == "DIR" else "files"
            completer = parameter._custom_shell_complete  # type: ignore[attr-defined]
            is_path = completer is None and isinstance(parameter.type, click.Path)
            found.add(by_type if is_path else COMPLETERS.get(completer, "nothing"))
    return {"as": ", ".join(sorted(found))}


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(each, f"{path} {name}")
