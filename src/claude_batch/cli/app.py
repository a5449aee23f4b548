"""`claude-batch`: the command group, and what completes it in a shell.

All other commands are in modules that are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import click

from claude_batch._version import __version__
from claude_batch.cli.user_messages import (
    EXIT_CODES,
    CommandGroup,
    print_line,
    printing_errors,
    printing_help,
    printing_notices,
)
from claude_batch.core.terminal import visible

_HOMES = {
    "run": "cli.run_command:run_command",
    "submit": "cli.run_command:submit_command",
    "estimate": "cli.run_command:estimate_command",
    "status": "cli.status_command:status_command",
    "show": "cli.status_command:show_command",
    "results": "cli.status_command:results_command",
    "export": "cli.status_command:export_command",
    "cost": "cli.cost:cost_command",
    "budget": "cli.cost:budget_command",
    "cancel": "cli.resume_command:cancel_command",
    "retry": "cli.resume_command:retry_command",
    "unknown": "cli.resume_command:unknown_command",
    "resume": "cli.resume_command:resume_command",
    "advance": "cli.resume_command:advance_command",
    "actors": "cli.doctor_command:actors_group",
    "ledger": "cli.ledger_command:ledger_group",
    "doctor": "cli.doctor_command:doctor_command",
    "gateway": "cli.server_commands:gateway_command",
    "dashboard": "cli.server_commands:dashboard_command",
    "worker": "cli.server_commands:worker_command",
    "completion": "cli.app:completion_command",
    "sandbox": "sandbox.command:sandbox",
}
"""Where each command is, in the order in which people need them."""


_MEANT = {
    "backup": "ledger backup",
    "confirm-key": "ledger confirm-key",
    "copy": "ledger copy",
    "prune": "ledger prune",
    "recover": "ledger recover",
    "validate": "actors validate",
    "continue": "resume",
    "list": "status",
    "ls": "status",
    "stop": "cancel",
    "wait": "resume",
    "watch": "status --watch",
}
"""What a command that does not exist probably means, if its spelling does not show it."""

_MEANT_FLAGS = {
    "--batch-size": "--max-requests",
    "--concurrency": "--live-concurrency",
    "--dry-run": "estimate",
    "--max-budget": "--budget",
    "--max-cost": "--budget",
    "--max-retries": "--max-attempts",
    "--retries": "--max-attempts",
    "--timeout": "--max-wait",
}
"""What a flag that does not exist means, if those of a similar spelling mean something else.

A command is meant in place of `run` and `submit` only.
"""


class _Commands(Mapping[str, click.Command]):
    """The commands. The module of one is imported when it is asked for.

    The flags of most commands need pydantic, and those that read the ledger do not.
    """

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = _HOMES[name].partition(":")
        command: click.Command = getattr(import_module(f"claude_batch.{module}"), attribute)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


@contextmanager
def _shown_safely() -> Generator[None]:
    """Sanitize click's usage errors, which repeat the user's input or a file name.

    A flag of another program is answered with the one that has its meaning.
    """
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # whose message is the help
    except click.UsageError as error:
        if isinstance(error, click.NoSuchOption) and error.ctx is not None:
            meant = _MEANT_FLAGS.get(error.option_name)
            is_command = meant in _HOMES and error.ctx.command.name in ("run", "submit")
            if is_command or any(meant in each.opts for each in error.ctx.command.params):
                hint = f"{error.message} Did you mean {meant!r}?"
                raise click.UsageError(hint, error.ctx) from None
        message = visible(error.format_message())
        if message == error.format_message():
            raise
        raise click.UsageError(message, error.ctx) from None


class _Group(CommandGroup):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _shown_safely(), printing_errors(), printing_help():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _shown_safely(), printing_errors(), printing_notices():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if (meant := _MEANT.get(error.command_name)) is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {meant!r}?", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which people need them


@click.group(
    cls=_Group,
    commands=cast("Any", _Commands()),  # none is added or removed
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="claude-batch")
def group() -> None:
    """Claude at half the price: prompts answered through Anthropic's Message Batches API."""


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script for completion in bash, zsh or fish.

    Completion in bash needs version 4.4 or later.

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
