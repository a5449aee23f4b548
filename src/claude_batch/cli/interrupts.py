"""Handle Ctrl-C and SIGTERM at startup: one line and exit code 3, never a traceback.

Python raises `KeyboardInterrupt` anywhere, for example inside an import. There it causes a
traceback, or is lost: Python ignores exceptions in a callback of a weak reference, and imports use
such callbacks. So the process exits at once as long as nothing was begun. This module imports
almost nothing, because its handlers are set before everything else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PARKED = 3
"""`claude_batch.cli.user_messages.Exit.PARKED`, which is not imported yet."""

_NOTHING = "interrupted; nothing was stored or sent"
_KEPT = "interrupted; everything stored before is kept"

_expected = False


def begin() -> None:
    """Set the handlers; the command calls this first."""
    for number in SIGNALS:
        # A parent that ignores a signal (`nohup`, a background job) wants it ignored here too.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def expect_interrupts() -> None:
    """Raise `KeyboardInterrupt` outside of imports from now on, because it is now caught."""
    global _expected
    _expected = True


def _interrupt(_number: int, frame: FrameType | None) -> None:
    if not _expected:
        _leave(_NOTHING)
    elif _is_importing(frame):
        _leave(_KEPT)
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
