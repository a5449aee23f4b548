"""What the judge reads of a ledger, past the package: rows of SQLite or of PostgreSQL."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import ledgers_on_postgres
import psycopg
from sqlalchemy.engine import make_url

__all__ = ["Row", "Rows", "open_rows"]


class Row(Protocol):
    """Values by their columns' names and by their places, as in `sqlite3.Row`."""

    def __getitem__(self, at: str | int) -> Any: ...
    def __iter__(self) -> Any: ...
    def keys(self) -> list[str]: ...


class Rows(Protocol):
    """A connection of its own, which sees what was committed."""

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Row]: ...
    def close(self) -> None: ...


def open_rows(path: Path) -> Rows:
    """Open the ledger that the package keeps for a path."""
    on_server = ledgers_on_postgres.VARIABLE in os.environ
    return _PostgresRows(ledgers_on_postgres.url_of(str(path))) if on_server else _SqliteRows(path)


class _SqliteRows:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        self._db.close()


class _PostgresRow(tuple[Any, ...]):
    names: list[str]

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self.names.index(at) if isinstance(at, str) else at)

    def keys(self) -> list[str]:
        return self.names


def _named(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _PostgresRow]:
    names = [column.name for column in cursor.description or ()]
    # A class for each statement is cheaper than names in each row.
    return type("_PostgresRow", (_PostgresRow,), {"names": names})


class _PostgresRows:
    """The same statements: ``?`` and ``?1`` become psycopg's parameters."""

    def __init__(self, location: str) -> None:
        url = make_url(location)
        schema = str(url.query["schema"])
        plain = url.difference_update_query(["schema"]).set(drivername="postgresql")
        self._schema = schema
        self._db = psycopg.connect(
            plain.render_as_string(hide_password=False),
            options=f"-c search_path={schema}",
            autocommit=True,
            row_factory=_named,
        )

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        # Rows have no number here: those of runs are in the order of their times.
        sql = re.sub(r"\b(u\.)?rowid\b", r"\1created", sql)
        places = iter(range(1, len(values) + 1))
        sql = re.sub(r"\?(\d*)", lambda found: f"%(p{found[1] or next(places)})s", sql)
        return self._db.execute(sql, {f"p{n}": each for n, each in enumerate(values, 1)}).fetchall()

    def close(self) -> None:
        self._db.execute(f'DROP SCHEMA "{self._schema}" CASCADE')
        self._db.close()
