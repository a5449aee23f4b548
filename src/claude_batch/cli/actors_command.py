"""``actors``: check actors' YAML files."""

from __future__ import annotations

from collections.abc import Iterator

import click

from claude_batch.cli.completion import complete_files
from claude_batch.cli.exits import Exit
from claude_batch.cli.user_messages import print_line, say


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
