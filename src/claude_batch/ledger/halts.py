"""Transactions of halting: when a workspace stops sending, and when it resumes."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from claude_batch.ledger.schema import workspaces
from claude_batch.ledger.store import Record

LONGEST_PROBE_WAIT = 3600.0
"""Seconds. A halted workspace with a driver is probed at least this often."""

LONGEST_WAIT = 86400.0
"""Seconds. A planned time further ahead than this was set before the clock jumped back."""


UNPROBED = ("unexplained", "ledger_behind")
"""Halt reasons that no probe can test; only the user can lift them."""


def halt(
    tx: Connection,
    workspace_id: int,
    *,
    reason: str,
    error_type: str | None,
    message: str,
    now: float,
    interval: float,
) -> None:
    """Halt sending for a workspace, store the reason, and plan the next probe.

    ``interval`` is the wait before the first probe in seconds; each refused probe doubles it.
    """
    row = halt_of(tx, workspace_id)
    probes = 0 if row.halted is None else row.probes + 1
    wait = min(interval * 2 ** min(probes, 20), max(interval, LONGEST_PROBE_WAIT))
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(
            halt_reason=reason,
            halt_type=error_type,
            halt_message=message,
            halted=now if row.halted is None else row.halted,
            probes=probes,
            next_probe=None if reason in UNPROBED else now + wait,
        )
    )


def halt_stands(row: Record, now: float) -> bool:
    """Return whether a workspace is halted and no probe of it is due, from its row."""
    if row.halted is None:
        return False
    # A probe planned further ahead than any wait was planned before the clock jumped back.
    return row.next_probe is None or now < row.next_probe <= now + LONGEST_WAIT


def clear_halt(tx: Connection, workspace_id: int) -> None:
    """Let a workspace send again."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(
            halt_reason=None,
            halt_type=None,
            halt_message=None,
            halted=None,
            probes=0,
            next_probe=None,
        )
    )


def ask_probe(tx: Connection, workspace_id: int) -> None:
    """Make a probe of a halted workspace due now.

    The cause is a new process, a new key, or a user's order.
    """
    tx.execute(
        update(workspaces)
        .where(
            workspaces.c.id == workspace_id,
            workspaces.c.halted.is_not(None),
            workspaces.c.halt_reason.not_in(UNPROBED),
        )
        .values(probes=0, next_probe=0.0)
    )


def put_off_probe(tx: Connection, workspace_id: int, *, now: float, interval: float) -> None:
    """Postpone the next probe, because the last one ended without information about the account."""
    row = halt_of(tx, workspace_id)
    if row.halted is not None and row.halt_reason not in UNPROBED:
        halt(
            tx,
            workspace_id,
            reason=row.halt_reason,
            error_type=row.halt_type,
            message=row.halt_message,
            now=now,
            interval=interval,
        )


def accept_unexplained(tx: Connection, workspace_id: int) -> None:
    """Accept the batches that could not be explained, on the user's order."""
    row = halt_of(tx, workspace_id)
    if row.halt_reason == "unexplained":
        clear_halt(tx, workspace_id)
        tx.execute(
            update(workspaces).where(workspaces.c.id == workspace_id).values(explained_until=None)
        )


def halt_of(tx: Connection, workspace_id: int) -> Record:
    """Return the workspace's row, including its halt and wait columns."""
    return tx.execute(select(workspaces).where(workspaces.c.id == workspace_id)).one()


def wait_until(tx: Connection, workspace_id: int, until: float | None, reason: str | None) -> None:
    """Block uploads for a workspace until a time; None lifts the block."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(wait_until=until, wait_reason=reason)
    )
