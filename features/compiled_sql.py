"""All ledgers of a process share the SQL that SQLAlchemy has compiled for them.

A program opens one ledger and compiles each statement once. Each scenario makes ledgers, and each
command that it runs opens one again: compiling for every one of them was a sixth of all CPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from claude_batch.ledger import store

_shared: dict[str, Any] = {}


def _sharing(opening: Any, location: str) -> Any:
    backend = opening(location)
    engine, kind = backend.engine, type(backend).__name__
    engine.dialect = _shared.setdefault(f"dialect of {kind}", engine.dialect)
    engine._compiled_cache = _shared.setdefault(f"compiled by {kind}", engine._compiled_cache)
    return backend


def share() -> None:
    """Share it from now on."""
    store.open_backend = partial(_sharing, store.open_backend)
