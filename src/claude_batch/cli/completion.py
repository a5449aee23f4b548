"""`claude-batch completion`, and what the shell offers at Tab: files, runs and ids of requests."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.existing_ledger import is_there
from claude_batch.cli.user_messages import print_line
from claude_batch.core.ledger_location import default_ledger

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from claude_batch.ledger.store import Ledger

MOST = 50
"""Runs, and ids of requests, that are offered at once."""

# Shells split words at some characters and interpret others, and a script inserts an id as it is: a
# key may be `$(command)`.
_SAFE = re.compile(r"[\w./][\w./-]*")


def complete_files(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Let the shell complete the name of a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def complete_folders(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Let the shell complete the name of a folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


def complete_runs(
    context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Complete the id of a run, the newest first."""

    def find(ledger: Ledger) -> list[str]:
        from claude_batch.ledger.queries import recent_runs

        with ledger.read() as tx:
            return [row.id for row in recent_runs(tx, MOST)]

    return _from_ledger(context, typed, find)


def complete_requests(
    context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """Complete the id of a request of the run that was typed before."""

    def find(ledger: Ledger) -> list[str]:
        from claude_batch.ledger.page_queries import keys_of
        from claude_batch.providers.status import require_run

        with ledger.read() as tx:
            run = require_run(ledger, tx, context.params["run_id"])
            return keys_of(tx, run.id, typed, MOST)

    return _from_ledger(context, typed, find)


def _from_ledger(
    context: click.Context, typed: str, find: Callable[[Ledger], list[str]]
) -> list[CompletionItem[str]]:
    """Return the words of the ledger that can be typed. Never raises an `Exception`."""
    from click.shell_completion import CompletionItem

    # A message would be written into the line that is being typed.
    logging.disable()
    words: list[str] = []
    with suppress(Exception):
        from claude_batch.ledger.store import Ledger

        location = default_ledger(context.params.get("ledger"))
        if is_there(location):
            with closing(Ledger(location)) as ledger:
                words = find(ledger)
    logging.disable(logging.NOTSET)
    return [
        CompletionItem(word)
        for word in words
        if word.startswith(typed) and _SAFE.fullmatch(word) is not None
    ]


run_argument: Callable[..., Any] = click.argument(
    "run_id", metavar="RUN", shell_complete=complete_runs
)

optional_run_argument: Callable[..., Any] = click.argument(
    "run_id", metavar="[RUN]", required=False, shell_complete=complete_runs
)


# Command ------------------------------------------------------------------------------------------


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes this command in bash (4.4 or later), zsh or fish.

    \b
    bash  claude-batch completion bash > ~/.local/share/bash-completion/completions/claude-batch
    zsh   claude-batch completion zsh > FOLDER/_claude-batch, with FOLDER in $fpath
    fish  claude-batch completion fish > ~/.config/fish/completions/claude-batch.fish
    """
    from click.shell_completion import get_completion_class

    group = context.find_root()
    script = get_completion_class(shell)
    assert script is not None
    name = "claude-batch"
    print_line(script(group.command, {}, name, "_CLAUDE_BATCH_COMPLETE").source())
