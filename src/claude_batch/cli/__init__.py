"""The ``claude-batch`` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code (`claude_batch.cli.exits`)."""
    from claude_batch.cli.interrupts import begin

    begin()

    import atexit
    import gc

    # Imports and a stream of flat rows make many objects and hardly a cycle: Python's search for
    # cycles, at its usual rate, takes a fifth of the whole command's time.
    gc.set_threshold(50_000, 25, 100)
    # When it ends Python searches everything once more, all imported modules included, only to
    # give back memory that the system takes back anyway: half a second. What is frozen is spared.
    # Registered first, so that it runs last; what closes files and the ledger has run by then.
    atexit.register(gc.freeze)

    from claude_batch.cli.app import group

    group(prog_name="claude-batch")
