"""All ledgers of a process share the SQL that SQLAlchemy has compiled for them.

A program opens one ledger and compiles each statement once. Each scenario makes ledgers, and each
command that it runs opens one again: compiling for every one of them was a sixth of all CPU.
"""

from __future__ import annotations

from typing import Any

from claude_batch.ledger.store import Ledger

_connect: Any = Ledger._connect
_shared: dict[str, Any] = {}


def _connect_and_share(ledger: Ledger, location: str) -> Any:
    engine = _connect(ledger, location)
    engine.dialect = _shared.setdefault("dialect", engine.dialect)
    engine._compiled_cache = _shared.setdefault("compiled", engine._compiled_cache)
    return engine


def share() -> None:
    """Share it from now on."""
    Ledger._connect = _connect_and_share  # type: ignore[method-assign]
