"""Functions that the scenarios have run in a limited process: what a library may do to it."""

from __future__ import annotations

import os
import time


def pid_of(_: bytes) -> bytes:
    """Which process runs this."""
    return str(os.getpid()).encode()


def secrets_of(_: bytes) -> bytes:
    """The names of variables that hold secrets, as far as this process knows them."""
    secret = ("ANTHROPIC_", "CLAUDE_BATCH_", "MY_KEY", "PGPASSWORD")
    names = [name for name in os.environ if name.startswith(secret)]
    return " ".join(names).encode()


def fails(_: bytes) -> bytes:
    """Raises as a library may."""
    raise LookupError("nothing there")


def prints(data: bytes) -> bytes:
    """Writes where the answers go."""
    print("noise", flush=True)
    return data


def dies(_: bytes) -> bytes:
    """Ends at once, as a crash in a library does."""
    os._exit(1)


def eats(_: bytes) -> bytes:
    """Takes more memory than it may."""
    return b"x" * 4_000_000_000


def sleeps(_: bytes) -> bytes:
    """Waits, and uses no time of the processor."""
    time.sleep(60)
    return b""


def burns(_: bytes) -> bytes:
    """Keeps the processor busy."""
    while True:
        pass
