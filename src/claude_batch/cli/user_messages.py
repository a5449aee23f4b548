"""Messages of a command to its user, safe for a terminal; errors and exit codes.

Exit codes, and the errors that map to them, are covered by the version number's guarantees.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from claude_batch.cli.interrupts import complete_words, expect_interrupts, kept_words
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    BadInput,
    EngineStoppedError,
    LedgerError,
)
from claude_batch.core.terminal import encodable, visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Messages -----------------------------------------------------------------------------------------

_EVENTS = "claude_batch.events"
"""The public name of the logger for events. Written here, because the module that logs them imports
asyncio, which help does not need."""


class BadOutput(Exception):
    """An output that cannot be written."""


class UnusableOutput(BadOutput):
    """The same, found out before anything was sent."""


def say(message: str) -> None:
    """Print a message on standard error, because standard output may carry the results."""
    with suppress(OSError):  # the work continues even if nobody reads the messages
        click.echo(visible(message), err=True)


_COMPLETE = "claude_batch.complete"
"""Name of the running command's function for `complete_commands`, in what click keeps for it."""


def complete_commands(complete: Callable[[str], str]) -> None:
    """Pass the library's messages through a function while the current command runs.

    The library names commands without the flags that the user typed.
    """
    click.get_current_context().meta[_COMPLETE] = complete
    complete_words(complete)


def _kept_by_click() -> dict[str, Any]:
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta


def _completed(message: object) -> str:
    complete: Callable[[str], str] = _kept_by_click().get(_COMPLETE, str)
    return complete(str(message))


class _Notices(logging.Handler):
    """Prints the log records that are marked for people; programs handle the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = _kept_by_click()  # which only this thread can ask for

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "for_people", False):
            complete: Callable[[str], str] = self._kept.get(_COMPLETE, str)
            say(complete(record.getMessage()))


@contextmanager
def printing_notices() -> Generator[None]:
    """Print messages of the ledger and the engine for people while the block runs."""
    handler, logger = _Notices(), logging.getLogger("claude_batch")
    events = logging.getLogger(_EVENTS)
    levels = logger.level, events.level
    if logger.getEffectiveLevel() > logging.INFO:
        # Events are for programs. A level stops the logger from formatting records nobody reads.
        events.setLevel(events.getEffectiveLevel())
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        events.setLevel(levels[1])


def print_line(text: str) -> None:
    """Print to standard output; do nothing if its reader has gone, or never existed.

    On a terminal, control characters are escaped; a file or a pipe gets them unchanged. Raises
    `BadOutput` if it cannot be written for another reason.
    """
    _print(visible(text) if on_terminal() else encodable(text))


def print_json(value: object) -> None:
    """Print a value as indented JSON, in UTF-8 as RFC 8259 asks.

    Raises as `print_line` does, and if standard output is closed, because the value is all that
    its reader wants.
    """
    import msgspec

    require_stdout()

    text = msgspec.json.format(msgspec.json.encode(value)).decode()
    _print((visible_json(text) if on_terminal() else text).encode())


def confirmed(words: str, question: str, remedy: str) -> bool:
    """Ask a yes-or-no question on the terminal; the end of the input (Ctrl-D) is a no.

    ``words`` introduce it. Raises `BadInput` with the ``remedy`` if there is no terminal, and
    `KeyboardInterrupt` at Ctrl-C, which click would report with the exit code 1.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"{words}, and there is no terminal to confirm it on. {remedy}")
    try:
        return click.confirm(f"{words}. {question}", err=True)
    except click.Abort as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        click.echo(err=True)  # the terminal is still in the line of the question
        return False


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _print(text: str | bytes) -> None:
    with writing_stdout():
        click.echo(text)


@contextmanager
def writing_stdout() -> Generator[None]:
    """Write to standard output; end the block if its reader has seen enough. Raises `BadOutput`."""
    try:
        yield
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> BadOutput:
    """Return the error for a standard output that cannot be written."""
    forget_stdout()
    return BadOutput(f"standard output: cannot be written: {error.strerror}")


def reader_has_gone() -> bool:
    """Return whether standard output is a pipe that nobody reads any more, or a closed terminal."""
    try:
        waiting = select.poll()
        waiting.register(sys.stdout, 0)
        return bool(waiting.poll(0))
    except (io.UnsupportedOperation, OSError, ValueError):
        return False  # no file of the system


def require_stdout() -> None:
    """Raise `BadOutput` if standard output is closed, as by ``>&-``."""
    if sys.stdout is None:
        raise BadOutput("standard output is closed: there is nothing to write to")


def forget_stdout() -> None:
    """Discard what is left for standard output, because Python would report it at exit."""
    with suppress(io.UnsupportedOperation, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def console() -> Console:
    """Return a console on standard output; wide without a terminal, so that nothing is cut."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> None:
            """Exit quietly: rich would exit with 1, which means failed requests here."""
            raise BrokenPipeError

    return Told(
        width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False, emoji=False
    )


def print_drawn(what: RenderableType) -> None:
    """Print a table on standard output. Raises `BadOutput`."""
    require_stdout()
    with writing_stdout():
        console().print(what)


class _Parsed(click.Command):
    """A command, whose help may be cut short by its reader or by a full disk."""

    def __init__(self, command: click.Command) -> None:
        super().__init__(command.name)
        self._command = command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with printing_help():
            return self._command.make_context(*args, **extra)


class CommandGroup(click.Group):
    """A group that prints the help of each of its commands as `printing_help` describes."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Implement click's hook."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else _Parsed(command), rest


@contextmanager
def printing_help() -> Generator[None]:
    """Print help, or the version, while a command line is parsed.

    Exits with 0 if its reader has seen enough. Raises `BadOutput` if it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        forget_stdout()
        raise SystemExit(Exit.OK) from None
    except OSError as error:
        raise unwritable(error) from None


# Exit codes ---------------------------------------------------------------------------------------


class Exit(IntEnum):
    """If several apply, the highest counts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PARKED = 3
    HALTED = 4


EXIT_CODES = """\b
Exit codes:
  0  every request succeeded
  1  some requests failed
  2  bad usage, input, output or ledger; nothing was sent, or everything is kept
  3  parked, timed out or held by a budget; continue with `claude-batch resume`
  4  sending was halted by the account or for a restored ledger; nothing was marked failed
If several apply, the highest counts."""

DEBUG = "CLAUDE_BATCH_DEBUG"
"""Environment variable that makes unexpected errors show their traceback."""


def _lack_behind(error: Exception) -> str:
    """Return what this machine lacks, if an error comes from that; else an empty string."""
    if isinstance(error, ModuleNotFoundError) and error.name in ("_sqlite3", "_ssl"):
        return f"this Python was built without its module {error.name[1:]}; use another Python"
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the current directory was deleted; change to another one"
    return ""


@contextmanager
def printing_errors() -> Generator[None]:
    """Turn every error of the block into one message and an exit code, without a traceback."""
    expect_interrupts()
    try:
        yield
    except (click.UsageError, click.exceptions.Exit, click.Abort):
        raise  # click prints these itself, `--help` of a command among them
    except click.ClickException as error:
        # click's own code for it is 1, which means failed requests here.
        raise click.UsageError(error.format_message()) from None
    except KeyboardInterrupt:
        say(kept_words())
        raise SystemExit(Exit.PARKED) from None
    except BrokenPipeError:
        forget_stdout()
        raise SystemExit(Exit.PARKED) from None
    except (BadInput, UnusableOutput) as error:
        say(f"error: {error}. Nothing was sent")
        raise SystemExit(Exit.USAGE) from None
    except AccountHaltedError as error:
        say(f"halted: {_completed(error)}")
        raise SystemExit(Exit.HALTED) from None
    except (BadOutput, ActorError) as error:
        say(f"error: {_completed(error)}")
        passes = isinstance(error, EngineStoppedError)
        passes = passes or (isinstance(error, LedgerError) and error.passes)
        raise SystemExit(Exit.PARKED if passes else Exit.USAGE) from None
    except Exception as error:
        if os.environ.get(DEBUG):
            say(traceback.format_exc().rstrip())
        if lack := _lack_behind(error):
            say(f"error: {lack}. Everything stored is kept in the ledger")
            raise SystemExit(Exit.USAGE) from None
        say(
            f"error: {type(error).__name__}: {error}. This is a bug in claude-batch. Everything "
            f"stored is kept in the ledger. Set {DEBUG}=1 to see the traceback"
        )
        raise SystemExit(Exit.PARKED) from None
