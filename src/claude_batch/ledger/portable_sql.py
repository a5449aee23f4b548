"""SQL that SQLAlchemy leaves to each database, written once for all of the ledger's backends."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

__all__ = ["contains", "json_number", "upsert"]
# ``upsert(table)`` is an INSERT with ON CONFLICT, a clause that PostgreSQL and SQLite write alike.


class contains(GenericFunction[bool]):  # noqa: N801 - a function of SQL
    """Whether bytes contain other bytes."""

    type: TypeEngine[bool] = Boolean()
    inherit_cache: bool | None = True


@compiles(contains)
def _contains(element: contains, compiler: SQLCompiler, **how: Any) -> str:
    return f"(instr({compiler.process(element.clauses, **how)}) > 0)"


class json_number(GenericFunction[int]):  # noqa: N801 - a function of SQL
    """The whole number of a name in a JSON object that is stored as text."""

    type: TypeEngine[int] = BigInteger()
    inherit_cache: bool | None = True


@compiles(json_number)
def _json_number(element: json_number, compiler: SQLCompiler, **how: Any) -> str:
    document, name = (compiler.process(each, **how) for each in element.clauses)
    return f"json_extract({document}, '$.' || {name})"
