"""What SQLite says of a ledger it cannot use, in words that name the file and a remedy."""

from __future__ import annotations

import sqlite3
from typing import Any

from claude_batch.core.errors import LedgerError, LedgerFault

__all__ = ["fault_of", "ledger_error"]

_FAULTS: dict[int, LedgerFault] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_IOERR: "full",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}

_REMEDIES: dict[LedgerFault, str] = {
    "full": "What was stored before is kept; make room on the disk or mend it, then the same "
    "command goes on",
    "busy": "What was stored before is kept; another process holds the file, end it and try again",
    "damaged": "It was not changed. Move it away together with its -wal file, put a backup in its "
    "place, then `claude-batch ledger recover`; or name another with --ledger",
    "unusable": "What was stored before is kept; mend the cause, or name another with --ledger",
}


def fault_of(error: BaseException) -> LedgerFault:
    """What an exception of SQLAlchemy's or SQLite's own says is wrong."""
    original: Any = getattr(error, "orig", None) or error
    code = int(getattr(original, "sqlite_errorcode", 0) or 0)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return "damaged"
    # The low byte is the kind; what stands above it tells more than is needed here.
    return _FAULTS.get(code & 0xFF, "unusable")


def ledger_error(location: object, what: str, error: BaseException) -> LedgerError:
    """The error for a ledger that cannot be ``used``, ``read``, ``written`` or the like."""
    fault = fault_of(error)
    words = getattr(error, "orig", None) or error
    return LedgerError(
        f"the ledger {location} cannot be {what}: {words}. {_REMEDIES[fault]}", fault=fault
    )
