"""Leader lock files beside a ledger: one lock for the driver of each workspace."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.locks import file_lock, take


def seat_file(ledger: Path, workspace_id: int) -> Path:
    """Return the path of a workspace's leader lock."""
    return ledger.with_name(f"{ledger.name}.seat-{workspace_id}")


def seat_files(ledger: Path) -> list[Path]:
    """Return the leader locks taken since a ledger was first created at this path."""
    path = ledger.expanduser().resolve()
    prefix = f"{path.name}.seat-"
    return sorted(found for found in path.parent.iterdir() if found.name.startswith(prefix))


@contextmanager
def every_seat(ledger: Path, workspace_ids: Iterable[int], why: str) -> Generator[None]:
    """Hold every leader lock while the block runs, so that no process drives meanwhile.

    Raises `LedgerError` with a message that ends in ``why`` if a process drives.
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
