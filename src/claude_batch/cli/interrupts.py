"""Ctrl-C and SIGTERM while a command begins: one line and exit code 3, never a traceback.

Python raises `KeyboardInterrupt` wherever it is, for example inside an import. There it ends in a
traceback, or is lost (Python ignores what is raised in a callback of a weak reference, and imports
have such). So the process is left at once as long as nothing was begun. This module imports hardly
anything, because its handlers are set before everything else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

__all__ = ["PARKED", "SIGNALS", "begin", "expect_interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PARKED = 3
"""`claude_batch.cli.exits.Exit.PARKED`, which is not imported by then."""

_NOTHING = "interrupted; nothing was stored or sent"
_KEPT = "interrupted; what was stored before is kept"

_expected = False


def begin() -> None:
    """Set the handlers; the first thing that the command does."""
    for number in SIGNALS:
        # Who started the command with a signal ignored (`nohup`, a job in the background) wants so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def expect_interrupts() -> None:
    """From now on `KeyboardInterrupt` is caught: outside of imports it is raised."""
    global _expected
    _expected = True


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if not _expected:
        _leave(_NOTHING)
    elif _is_importing(frame):
        _leave(_KEPT)
    raise KeyboardInterrupt


def _leave(words: str) -> None:
    with suppress(OSError):  # nobody may listen any more
        os.write(2, f"{words}\n".encode())
    os._exit(PARKED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
