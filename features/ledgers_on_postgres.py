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

from claude_batch.ledger import store

VARIABLE = "FEATURES_POSTGRES"

_open: Any = store.open_backend


def url_of(location: str) -> str:
    """Return the URL of the schema that stands for a file."""
    server = os.environ[VARIABLE]
    schema = "l" + hashlib.blake2b(os.path.abspath(location).encode(), digest_size=8).hexdigest()
    return f"{server}{'&' if '?' in server else '?'}schema={schema}"


def _open_there(location: str) -> Any:
    if "://" in location:
        return _open(location)
    path = Path(location).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return _open(url_of(location))


def execute(location: str | Path, statement: str) -> None:
    """Run SQL in the schema that stands for a file, and notify its readers as a commit does."""
    ledger = store.Ledger(str(location))
    try:
        with ledger.write() as tx:
            tx.exec_driver_sql(statement)
    finally:
        ledger.close()


def begin() -> None:
    """Open them there from now on, in commands that are forked from here too."""
    if os.environ[VARIABLE] == "1":
        os.environ[VARIABLE] = postgres_server.shared().url()
    store.open_backend = _open_there
