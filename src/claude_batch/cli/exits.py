"""Exit codes and the errors that map to them: covered by the version number's guarantees."""

from __future__ import annotations

import os
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum

import click

from claude_batch.cli.interrupts import expect_interrupts
from claude_batch.cli.user_messages import BadInput, BadOutput, forget_stdout, say
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    EngineStoppedError,
    LedgerError,
)


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
  3  parked, timed out or held by a budget; continue with the same command or `claude-batch resume`
  4  sending was halted by the account or for a restored ledger; nothing was marked failed
If several apply, the highest counts."""

DEBUG = "CLAUDE_BATCH_DEBUG"
"""Environment variable that makes unexpected errors show their traceback."""


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
        say("interrupted; everything stored before is kept")
        raise SystemExit(Exit.PARKED) from None
    except BrokenPipeError:
        forget_stdout()
        raise SystemExit(Exit.PARKED) from None
    except BadInput as error:
        say(f"error: {error}. Nothing was sent")
        raise SystemExit(Exit.USAGE) from None
    except AccountHaltedError as error:
        say(f"halted: {error}")
        raise SystemExit(Exit.HALTED) from None
    except EngineStoppedError as error:
        say(f"error: {error}")
        raise SystemExit(Exit.PARKED) from None
    except LedgerError as error:
        say(f"error: {error}")
        raise SystemExit(Exit.PARKED if error.passes else Exit.USAGE) from None
    except (BadOutput, ActorError) as error:
        say(f"error: {error}")
        raise SystemExit(Exit.USAGE) from None
    except Exception as error:
        if os.environ.get(DEBUG):
            say(traceback.format_exc().rstrip())
        say(
            f"error: {type(error).__name__}: {error}. This is a bug in claude-batch. Everything "
            f"stored is kept in the ledger. Set {DEBUG}=1 to see the traceback"
        )
        raise SystemExit(Exit.PARKED) from None
