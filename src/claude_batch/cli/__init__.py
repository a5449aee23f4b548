"""The ``claude-batch`` command. Heavy imports wait until a command needs them."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its exit code (`claude_batch.cli.user_messages`)."""
    import sys

    if sys.platform == "win32":  # the next import fails there
        sys.stderr.write("error: claude-batch needs Linux or macOS; on Windows, use WSL\n")
        sys.exit(2)

    from claude_batch.cli.interrupts import begin, end

    begin()

    import atexit
    import gc
    from io import TextIOWrapper
    from typing import Any, cast

    # A label or an answer can have characters that the user's encoding lacks.
    stdout: object = sys.stdout
    if isinstance(stdout, TextIOWrapper):
        cast("TextIOWrapper[Any]", stdout).reconfigure(errors="backslashreplace")

    # Imports create many permanent objects and hardly any cycle. At its default rate, Python's
    # cycle collector takes a fifth of a short command's time.
    gc.set_threshold(1_000_000, 25, 100)
    # At exit Python collects once more, over all imported modules, only to free memory that the
    # system reclaims anyway: half a second. Frozen objects are skipped. Registered first, so that
    # it runs last; the handlers that close files and the ledger have run by then.
    atexit.register(gc.freeze)

    from claude_batch.cli.app import group

    try:
        group(prog_name="claude-batch")
    finally:
        end()
