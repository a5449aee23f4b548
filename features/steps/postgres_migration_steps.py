"""Steps of migrations on a PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from migration_steps import A_RUN, OPEN, SOURCES

from claude_batch.ledger.store import Ledger

LEDGERS = Path(__file__).parents[1] / "postgres"

_AS_ON_A_SERVER = (("x'7b7d'", r"'\x7b7d'"), ("1.0, 1.0, 0, 0, 0", "1.0, 1.0, false, 0, 0"))
"""What PostgreSQL writes differently: bytes, and a Boolean value."""


@given("it is a ledger of schema version {version:d} with a run in it")
def _(context: Context, version: int) -> None:
    rows = A_RUN
    for there, here in _AS_ON_A_SERVER:
        assert rows.count(there) == 1, rows
        rows = rows.replace(there, here)
    context.postgres.execute(
        "CREATE SCHEMA claude_batch; SET search_path TO claude_batch;"
        + (LEDGERS / f"schema-{version}.sql").read_text("utf-8")
        + rows
        + f"INSERT INTO meta VALUES ('schema_version', '{version}');"
    )


@given("a process of the older version that drives it")
def _(context: Context) -> None:
    now = time.time()
    context.postgres.execute(
        f"""SET search_path TO claude_batch;
        INSERT INTO processes VALUES
            ('old', 'elsewhere', 7, '', {int(now)}, {now}, {now + 3600}, '');
        INSERT INTO seats VALUES (1, 'old', 'h', {now});"""
    )


@when("{count:d} processes open the server's ledger at once")
def _(context: Context, count: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, context.url],
            env={**os.environ, "PYTHONPATH": SOURCES},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for each in processes:
        errors = each.communicate(timeout=60)[1]
        assert each.returncode == 0, errors


@then("the server's ledger is still of schema version {version:d}")
def _(context: Context, version: int) -> None:
    found = "SELECT value FROM claude_batch.meta WHERE name = 'schema_version'"
    assert context.postgres.execute(found) == [(str(version),)]
    assert context.postgres.execute("SELECT to_regclass('claude_batch.verdicts')") == [(None,)]


@then("the server's ledger has the tables, columns and indexes of a new one")
def _(context: Context) -> None:
    Ledger(f"{context.url}?schema=fresh").close()
    migrated, new = (_shape(context, schema) for schema in ("claude_batch", "fresh"))
    assert migrated == new, set(migrated) ^ set(new)


def _shape(context: Context, schema: str) -> list[tuple[Any, ...]]:
    columns = context.postgres.execute(
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, column_name",
        (schema,),
    )
    indexes = context.postgres.execute(
        "SELECT indexname, replace(indexdef, %s, '') FROM pg_indexes WHERE schemaname = %s "
        "ORDER BY indexname",
        (f"{schema}.", schema),
    )
    return [*columns, *indexes]


@then("the run is still in the server's ledger, and can be sent")
def _(context: Context) -> None:
    context.ledger = Ledger(context.url)
    context.add_cleanup(context.ledger.close)
    context.execute_steps("Then the run is still in it, and can be sent")
