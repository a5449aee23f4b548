"""The files beside a ledger that say who drives its workspaces: one lock for each."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.locks import file_lock, take

__all__ = ["every_seat", "seat_file", "seat_files"]


def seat_file(ledger: Path, workspace_id: int) -> Path:
    """Where the lock of a workspace's seat lies."""
    return ledger.with_name(f"{ledger.name}.seat-{workspace_id}")


def seat_files(ledger: Path) -> list[Path]:
    """The seats that somebody has sat in since a ledger was first made at this path."""
    path = ledger.expanduser().resolve()
    prefix = f"{path.name}.seat-"
    return sorted(found for found in path.parent.iterdir() if found.name.startswith(prefix))


@contextmanager
def every_seat(ledger: Path, workspace_ids: Iterable[int], why: str) -> Generator[None]:
    """Hold every seat while the block lasts, so that nobody drives meanwhile.

    Raises `LedgerError`, that ends in ``why``, where a process drives.
    """
    with ExitStack() as stack:
        for workspace_id in workspace_ids:
            lock = file_lock(seat_file(ledger, workspace_id))
            if not take(lock, ledger):
                raise LedgerError(
                    f"another process drives the ledger {ledger}; end it first: {why}",
                    fault="busy",
                )
            stack.callback(lock.release)
        yield
