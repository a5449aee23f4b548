"""Whether the ledger that a command names exists: a command that reads must not create it."""

from __future__ import annotations

from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.ledger_location import has_ledger, on_server, without_password


def is_there(location: str) -> bool:
    """Return whether there is a ledger, without creating one. Raises `LedgerError`."""
    if not on_server(location):
        return has_ledger(location)
    from claude_batch.ledger.store import exists_on_server

    return exists_on_server(location)


def require_ledger(location: str) -> None:
    """Raise `RunNotFoundError` if there is no ledger; reading must not create one."""
    if not is_there(location):
        raise RunNotFoundError(
            f"there is no ledger at {without_password(location)} yet; `claude-batch run` creates it"
        )
