"""Transactions of halting: when a workspace stops sending, and what makes it send again."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from claude_batch.ledger.schema import workspaces
from claude_batch.ledger.store import Record

__all__ = [
    "accept_unexplained",
    "ask_probe",
    "clear_halt",
    "halt",
    "halt_of",
    "halt_stands",
    "put_off_probe",
    "wait_until",
]

LONGEST_PROBE_WAIT = 3600.0
"""Seconds; a halted workspace is probed at least this often while somebody drives it."""

LONGEST_WAIT = 86400.0
"""Seconds; whoever waits longer than this does so because the clock jumped."""


UNPROBED = ("unexplained", "ledger_behind")
"""Reasons of a halt that no probe can test: only the user's word lifts them."""


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
    """Stop sending for a workspace, say why, and plan the next probe.

    ``interval`` is the wait before the first probe in seconds; each refused one doubles it.
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
    """Whether a workspace is halted and no probe of it is due, from its row."""
    if row.halted is None:
        return False
    # One planned further ahead than any wait was planned before the clock jumped back.
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
    """Probe a halted workspace at once: there is a new process, a new key, or the user's word."""
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
    """A probe ended without telling anything of the account: the next one comes later."""
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
    """The user says that the batches which nobody could explain are in order."""
    row = halt_of(tx, workspace_id)
    if row.halt_reason == "unexplained":
        clear_halt(tx, workspace_id)
        tx.execute(
            update(workspaces).where(workspaces.c.id == workspace_id).values(explained_until=None)
        )


def halt_of(tx: Connection, workspace_id: int) -> Record:
    """The workspace's row: halt and wait columns included."""
    return tx.execute(select(workspaces).where(workspaces.c.id == workspace_id)).one()


def wait_until(tx: Connection, workspace_id: int, until: float | None, reason: str | None) -> None:
    """Upload nothing for a workspace before a time; None lifts it."""
    tx.execute(
        update(workspaces)
        .where(workspaces.c.id == workspace_id)
        .values(wait_until=until, wait_reason=reason)
    )
