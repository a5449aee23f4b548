"""The scenarios' ledgers are schemas of a PostgreSQL server, if ``FEATURES_POSTGRES`` is set.

It is the URL of a server, or 1 for one that is started for the scenarios.

A scenario still names a file: its path becomes the name of the schema, and an empty file at the
path shows that the ledger was created. So the scenarios that are tagged @both_backends run on both.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import postgres_server
import psycopg
from sqlalchemy import make_url

from claude_batch.core import settings
from claude_batch.core.settings import default_ledger, without_password
from claude_batch.ledger import store

VARIABLE = "FEATURES_POSTGRES"

_FOR_PROCESSES = Path(__file__).with_name("on_postgres")
"""Python imports the `sitecustomize` of this folder when it starts."""

_open: Any = store.open_backend


def url_of(location: str) -> str:
    """Return the URL of the schema that stands for a file."""
    server = os.environ[VARIABLE]
    schema = "l" + hashlib.blake2b(os.path.abspath(location).encode(), digest_size=8).hexdigest()
    return f"{server}{'&' if '?' in server else '?'}schema={schema}"


def shown(location: str) -> str:
    """Return how claude-batch shows the ledger that stands for a file."""
    return without_password(url_of(location)) if VARIABLE in os.environ else location


def _open_there(location: str) -> Any:
    if "://" in location:
        return _open(location)
    path = Path(location).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return _open(url_of(location))


def execute(location: str | Path, statement: str) -> int:
    """Run SQL in a ledger, and notify its readers as a commit does; return the number of rows."""
    ledger = store.Ledger(str(location))
    try:
        with ledger.write() as tx:
            return tx.exec_driver_sql(statement).rowcount
    finally:
        ledger.close()


def rows(location: str, query: str) -> list[Any]:
    """Return what a ledger has; nothing as long as it is not made."""
    if not Path(location).exists():
        return []
    backend = store.open_backend(location)
    try:
        with backend.engine.connect() as connection, connection.begin():
            return list(connection.exec_driver_sql(query).fetchall())
    except backend.faults:
        return []
    finally:
        backend.close()


def dump(location: str | Path, target: Path) -> None:
    """Copy a ledger to a file."""
    schema = str(make_url(url_of(str(location))).query["schema"])
    options = ("--format=custom", f"--schema={schema}", f"--file={target}")
    postgres_server.run_client("pg_dump", *options, os.environ[VARIABLE])


def restore(location: str | Path, source: Path) -> None:
    """Put a ledger's copy in its place."""
    schema = str(make_url(url_of(str(location))).query["schema"])
    with psycopg.connect(os.environ[VARIABLE], autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
    options = ("--single-transaction", f"--dbname={os.environ[VARIABLE]}")
    postgres_server.run_client("pg_restore", *options, str(source))


def begin() -> None:
    """Open them there from now on, also in the processes that are started from here."""
    if os.environ[VARIABLE] == "1":
        os.environ[VARIABLE] = postgres_server.shared().url()
    store.open_backend = _open_there
    settings.is_default_ledger = lambda location: location == shown(default_ledger())
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(_FOR_PROCESSES) not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_FOR_PROCESSES), *path)))
