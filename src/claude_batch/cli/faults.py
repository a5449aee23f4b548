"""What a person gave the command line that it cannot use, and how a person is told anything."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import click

__all__ = ["BadInput", "BadOutput", "say", "telling_notices"]


class BadInput(Exception):
    """An input that cannot be used; the message names file, line and item."""


class BadOutput(Exception):
    """An output that cannot be written."""


def say(message: str) -> None:
    """Tell the person: on standard error, since standard output may be the results."""
    click.echo(message, err=True)


class _Notices(logging.Handler):
    """Says the records that are marked as being for people; the rest is a program's to handle."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "for_people", False):
            say(record.getMessage())


@contextmanager
def telling_notices() -> Generator[None]:
    """While the block lasts, what the ledger and the engine must tell people is said."""
    handler, logger = _Notices(), logging.getLogger("claude_batch")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
