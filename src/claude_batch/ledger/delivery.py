"""Delivery: whether a run's results have reached their reader."""

from __future__ import annotations

from sqlalchemy import Connection, update

from claude_batch.ledger.schema import runs

__all__ = ["mark_delivered", "set_output"]


def mark_delivered(tx: Connection, run_id: str, now: float) -> None:
    """The run's output has been renamed into place and flushed, or was read by its caller."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(delivered=now))


def set_output(tx: Connection, run_id: str, output: str | None) -> None:
    """Where the command that goes on with the run was told to write."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(output=output))
