"""Handle Ctrl-C, SIGTERM and SIGHUP at startup: one line and exit code 3, never a traceback.

Python raises `KeyboardInterrupt` anywhere, for example inside an import. There it causes a
traceback, or is lost: Python ignores exceptions in a callback of a weak reference, and imports use
such callbacks. So the process exits at once as long as nothing was begun. This module imports
almost nothing, because its handlers are set before everything else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when the terminal is closed, or its connection breaks."""

PARKED = 3
"""`claude_batch.cli.user_messages.Exit.PARKED`, which is not imported yet."""

_NOTHING = "interrupted; nothing was stored or sent"
_KEPT = "interrupted; everything stored before is kept. To go on, repeat the command"
_KEPT_NEW = (
    "interrupted; everything stored before is kept. `claude-batch status` lists the run if it was "
    "stored; then continue it with `claude-batch resume`, otherwise repeat the command"
)

_expected = False
_kept = _KEPT


def begin() -> None:
    """Set the handlers; the command calls this first."""
    global _kept
    if "--new" in sys.argv:
        _kept = _KEPT_NEW  # repeated, it would make a second run
    for number in SIGNALS:
        # A parent that ignores a signal (`nohup`, a background job) wants it ignored here too.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def end() -> None:
    """Let signals end the process from now on; the command calls this last.

    Python's exit handlers would print a traceback of the exception, and go on.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def expect_interrupts() -> None:
    """Raise `KeyboardInterrupt` outside of imports from now on, because it is now caught."""
    global _expected
    _expected = True


def complete_words(complete: Callable[[str], str]) -> None:
    """Pass `kept_words` through a function, which adds the flags that the user typed."""
    global _kept
    _kept = complete(_kept)


def kept_words() -> str:
    """Return the message of an interrupted command that may have stored something."""
    return _kept


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if not _expected:
        _leave(_NOTHING)
    elif _is_importing(frame):
        _leave(_kept)
    raise KeyboardInterrupt


def _leave(words: str) -> None:
    with suppress(OSError):  # the reader may be gone
        os.write(2, f"{words}\n".encode())
    os._exit(PARKED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
