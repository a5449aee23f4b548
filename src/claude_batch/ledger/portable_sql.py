"""SQL that the ledger's modules share, and that each of its backends understands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

from claude_batch.ledger.schema import lanes, meta, requests

# ``upsert(table)`` is an INSERT with ON CONFLICT, a clause that PostgreSQL and SQLite write alike.

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


def count_rows(tx: Connection, of: FromClause, *where: ColumnElement[bool]) -> int:
    """Return the number of rows of a table, or of joined tables."""
    return tx.scalar(select(func.count()).select_from(of).where(*where)) or 0


def of_workspace(lane_id: ColumnElement[int], workspace: Any) -> ColumnElement[bool]:
    """Return the condition for a lane, or that of a request or batch, of a workspace."""
    return lane_id.in_(
        select(lanes.c.id).where(lanes.c.workspace_id == workspace).scalar_subquery()
    )


def total(values: Any) -> Any:
    """Return the sum of a column; 0 without rows."""
    return func.coalesce(func.sum(values), 0)


def count_if(condition: Any) -> Any:
    """Return the number of rows for which a condition holds."""
    return total(case((condition, 1), else_=0))


def insert_one(tx: Connection, table: Table, **values: Any) -> int:
    """Insert a row; return its number."""
    key: Any = tx.execute(insert(table).values(**values)).inserted_primary_key
    return int(key[0])


def update_row(tx: Connection, table: Table, row: int | str, **values: Any) -> None:
    """Change the row of a table that has this id."""
    tx.execute(update(table).where(table.c.id == row).values(**values))


def in_chunks(values: Iterable[_T], size: int = 500) -> Iterator[list[_T]]:
    """Yield lists that fit into an IN list, because SQLite limits the values of a statement."""
    them = iter(values)
    while chunk := list(islice(them, size)):
        yield chunk


def among(
    tx: Connection, query: Select[*_Ts], column: ColumnElement[Any], values: Iterable[Any]
) -> Iterator[Row[*_Ts]]:
    """Yield a query's rows with one of these values in a column."""
    for some in in_chunks(values):
        yield from tx.execute(query.where(column.in_(some))).all()


# Metadata -----------------------------------------------------------------------------------------


_META = select(meta.c.value).where(meta.c.name == bindparam("name"))


def meta_value(tx: Connection, name: str) -> str | None:
    """Return a value of the ledger's metadata; None if it is not set."""
    return tx.scalar(_META, {"name": name})


def meta_number(tx: Connection, name: str) -> int:
    """Return a whole number of the ledger's metadata; 0 if it is not set."""
    return int(meta_value(tx, name) or 0)


_VALUE = bindparam("value", type_=String)
_PUT_META = (
    upsert(meta)
    .values(name=bindparam("name"), value=_VALUE)
    .on_conflict_do_update(index_elements=["name"], set_={"value": _VALUE})
)


def put_meta(tx: Connection, name: str, value: str | int) -> None:
    """Set a value of the ledger's metadata."""
    tx.execute(_PUT_META, {"name": name, "value": str(value)})


def drop_meta(tx: Connection, name: str) -> None:
    """Remove a value of the ledger's metadata."""
    tx.execute(delete(meta).where(meta.c.name == name))


# Order of completion ------------------------------------------------------------------------------


def finished_after(after: tuple[int, int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions for requests that finished after ``(finished, seq)``, in their order.

    Two, for two statements, because an index finds the beginning of each. Of both at once, it would
    read everything before, and a large batch has one stamp for thousands of requests.
    """
    stamp, seq = after
    same = and_(requests.c.finished == stamp, requests.c.seq > seq)
    return same, requests.c.finished > stamp


# Functions ----------------------------------------------------------------------------------------


class contains(GenericFunction[bool]):  # noqa: N801 - a function of SQL
    """Whether bytes contain other bytes."""

    type: TypeEngine[bool] = Boolean()
    inherit_cache: bool | None = True


@compiles(contains)
def _contains(element: contains, compiler: SQLCompiler, **how: Any) -> str:
    return f"(instr({compiler.process(element.clauses, **how)}) > 0)"
