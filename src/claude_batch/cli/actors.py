"""`claude-batch actors`: work with actors' YAML files. Needs no key and no ledger."""

from __future__ import annotations

import click

from claude_batch.cli.exits import Exit
from claude_batch.cli.user_messages import say, tell


@click.group("actors")
def actors_group() -> None:
    """Work with actors' YAML files."""


@actors_group.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate_command(files: tuple[str, ...]) -> None:
    """Check actors' files; exit with 0 if all are valid, else with 2.

    Every error is reported with its line and remedy.
    """
    from claude_batch.actor.loader import ActorLoader

    code = Exit.OK
    for file in files:
        faults = ActorLoader.check(file)
        for fault in faults:
            say(str(fault))
        if faults:
            code = Exit.USAGE
        else:
            tell(f"{file}: fine")
    raise SystemExit(code)
