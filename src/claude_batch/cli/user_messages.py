"""What a person gave the command line that it cannot use, and how a person is told anything."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from claude_batch.cli.terminal import encodable, visible, visible_json
from claude_batch.lifecycle.logbook import LOGGER

__all__ = [
    "BadInput",
    "BadOutput",
    "forget_stdout",
    "on_terminal",
    "require_stdout",
    "say",
    "tell",
    "tell_json",
    "telling_notices",
    "unwritable",
]


class BadInput(Exception):
    """An input that cannot be used; the message names file, line and item."""


class BadOutput(Exception):
    """An output that cannot be written."""


def say(message: str) -> None:
    """Tell the person: on standard error, since standard output may be the results."""
    with suppress(OSError):  # whoever stopped listening still wants the work done
        click.echo(visible(message), err=True)


class _Notices(logging.Handler):
    """Says the records that are marked as being for people; the rest is a program's to handle."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "for_people", False):
            say(record.getMessage())


@contextmanager
def telling_notices() -> Generator[None]:
    """While the block lasts, what the ledger and the engine must tell people is said."""
    handler, logger = _Notices(), logging.getLogger("claude_batch")
    events = logging.getLogger(LOGGER)
    levels = logger.level, events.level
    if logger.getEffectiveLevel() > logging.INFO:
        # None of the events is for people: what nobody reads shall not be summed up.
        events.setLevel(events.getEffectiveLevel())
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        events.setLevel(levels[1])


def tell(text: str) -> None:
    """Print to standard output; quietly nothing where its reader has gone, or never was.

    On a terminal steering characters are made visible; a file or a pipe gets them as they are.
    Raises `BadOutput` where it cannot be written for another reason.
    """
    _print(visible(text) if on_terminal() else encodable(text))


def tell_json(value: object) -> None:
    """Print a value as indented JSON. Raises as `tell` does."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    _print(visible_json(text) if on_terminal() else text)


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _print(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> BadOutput:
    """What is said of a standard output that cannot be written."""
    forget_stdout()
    return BadOutput(f"standard output: cannot be written: {error.strerror}")


def require_stdout() -> None:
    """Raise `BadOutput` where standard output is closed, as by ``>&-``."""
    if sys.stdout is None:
        raise BadOutput("standard output is closed: there is nothing to write to")


def forget_stdout() -> None:
    """Let what is left for standard output go nowhere: Python would complain of it at its end."""
    with suppress(io.UnsupportedOperation, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
