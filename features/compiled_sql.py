"""All ledgers of a process share the SQL that SQLAlchemy has compiled for them.

A program opens one ledger and compiles each statement once. Each scenario makes ledgers, and each
command that it runs opens one again: compiling for every one of them was a sixth of all CPU. Forked
processes share what was compiled before the fork.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, MetaData, event

from claude_batch.ledger import store
from claude_batch.ledger.schema import metadata

_shared: dict[str, Any] = {}

_create_all: Any = MetaData.create_all


def _sharing(opening: Any, location: str) -> Any:
    backend = opening(location)
    engine, kind = backend.engine, type(backend).__name__
    engine.dialect = _shared.setdefault(f"dialect of {kind}", engine.dialect)
    engine._compiled_cache = _shared.setdefault(f"compiled by {kind}", engine._compiled_cache)
    return backend


def _create(made: MetaData, tx: Connection, *arguments: Any, **more: Any) -> None:
    """Create tables, those of a new ledger with the SQL that created the first one's.

    SQLAlchemy keeps no compiled DDL, and compiling it took two thirds of a new ledger's time.
    """
    if made is not metadata or "tables" in more or arguments or _has_tables(tx):
        _create_all(made, tx, *arguments, **more)
        return
    name = tx.dialect.name
    statements: list[str] | None = _shared.get(f"tables on {name}")
    if statements is None:
        statements = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.lstrip().startswith("CREATE"):
                statements.append(statement)

        event.listen(tx, "before_cursor_execute", note)
        try:
            _create_all(made, tx, *arguments, **more)
        finally:
            event.remove(tx, "before_cursor_execute", note)
        _shared[f"tables on {name}"] = statements
        return
    driver: Any = tx.connection.driver_connection
    # psycopg takes all of them in one round trip.
    for each in statements if name == "sqlite" else [";".join(statements)]:
        driver.execute(each)


def _has_tables(tx: Connection) -> bool:
    if tx.dialect.name == "sqlite":
        return bool(tx.exec_driver_sql("SELECT 1 FROM sqlite_master").first())
    return bool(tx.exec_driver_sql("SELECT to_regclass('meta') IS NOT NULL").scalar())


def share() -> None:
    """Share it from now on."""
    opening: Any = store.open_backend

    def open_sharing(location: str) -> Any:
        return _sharing(opening, location)

    store.open_backend = open_sharing
    MetaData.create_all = _create  # type: ignore[method-assign]
