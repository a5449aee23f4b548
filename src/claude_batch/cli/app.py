"""`claude-batch`: the command group, and `actors`. Each other command has its own module."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import click

from claude_batch._version import __version__
from claude_batch.cli.completion import complete_files, completion_command
from claude_batch.cli.cost import budget_command, cost_command
from claude_batch.cli.dashboard_command import dashboard_command
from claude_batch.cli.doctor_command import doctor_command
from claude_batch.cli.estimate import estimate_command
from claude_batch.cli.exits import EXIT_CODES, Exit, printing_errors
from claude_batch.cli.gateway_command import gateway_command
from claude_batch.cli.ledger_command import ledger_group
from claude_batch.cli.resume_command import (
    advance_command,
    cancel_command,
    resume_command,
    retry_command,
    unknown_command,
)
from claude_batch.cli.run_command import run_command, submit_command
from claude_batch.cli.show_command import show_command
from claude_batch.cli.status_command import export_command, results_command, status_command
from claude_batch.cli.user_messages import print_line, printing_notices, say, unwritable
from claude_batch.cli.worker_command import worker_command
from claude_batch.core.terminal import visible
from claude_batch.sandbox.command import sandbox

# Actors -------------------------------------------------------------------------------------------


@click.group("actors")
def actors_group() -> None:
    """Work with actors' YAML files."""


@actors_group.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
def validate_command(files: tuple[str, ...]) -> None:
    """Check actors' files; exit with 0 if all are valid, else with 2.

    Every error is reported with its line and remedy. A prompt is encoded with each actor as well,
    because its options and documents are read only then.
    """
    from claude_batch.actor.loader import ActorLoader

    code = Exit.OK
    for file in files:
        faults = [str(fault) for fault in ActorLoader.check(file)] or list(_use_faults(file))
        for fault in faults:
            say(fault)
        if faults:
            code = Exit.USAGE
        else:
            print_line(f"{file}: fine")
    raise SystemExit(code)


def _use_faults(file: str) -> Iterator[str]:
    """Yield what would keep the actors of a valid file from being asked."""
    from claude_batch.actor.loader import ActorLoader
    from claude_batch.actor.request import RequestEncoder
    from claude_batch.core.errors import ActorConfigurationError, ActorError, ProviderNotFoundError
    from claude_batch.providers.registry import default_registry

    for actor in ActorLoader.load_all(file):
        if actor.type == "llm":
            try:
                RequestEncoder(actor, batch=actor.batch_mode is not None).encode("A prompt")
            except ActorError as error:
                yield f"{file}: actor {actor.name}: {error}"
    try:
        chosen = ActorLoader.load(file)
    except ActorConfigurationError:
        return  # of several actors, none is the default
    known = default_registry.names()
    if (provider := chosen.resolved_provider) not in known:
        yield f"{file}: actor {chosen.name}: {ProviderNotFoundError(provider, known)}"


# App ----------------------------------------------------------------------------------------------


@contextmanager
def _shown_safely() -> Generator[None]:
    """Sanitize click's usage errors, which repeat the user's input or a file name."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # whose message is the help
    except click.UsageError as error:
        message = visible(error.format_message())
        if message == error.format_message():
            raise
        raise click.UsageError(message, error.ctx) from None


class _Group(click.Group):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _shown_safely(), printing_errors():
            try:
                return super().make_context(*args, **extra)
            except BrokenPipeError:
                raise
            except OSError as error:  # the help, or the version, could not be written
                raise unwritable(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        with _shown_safely(), printing_errors(), printing_notices():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which people need them


@click.group(
    cls=_Group, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="claude-batch")
def group() -> None:
    """Claude at half the price: prompts answered through Anthropic's Message Batches API."""


for _command in (
    run_command,
    submit_command,
    estimate_command,
    status_command,
    show_command,
    results_command,
    export_command,
    cost_command,
    budget_command,
    cancel_command,
    retry_command,
    unknown_command,
    resume_command,
    advance_command,
    actors_group,
    ledger_group,
    doctor_command,
    gateway_command,
    dashboard_command,
    worker_command,
    completion_command,
    sandbox,
):
    group.add_command(_command)
