"""What a person gave the command line that it cannot use, and how a person is told anything."""

from __future__ import annotations

import click

__all__ = ["BadInput", "BadOutput", "say"]


class BadInput(Exception):
    """An input that cannot be used; the message names file, line and item."""


class BadOutput(Exception):
    """An output that cannot be written."""


def say(message: str) -> None:
    """Tell the person: on standard error, since standard output may be the results."""
    click.echo(message, err=True)
