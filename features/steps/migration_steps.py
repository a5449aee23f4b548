"""Steps of migrations: ledgers of older versions, as files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from behave import given, then, when
from behave.runner import Context
from tables import rule

import claude_batch as cb
from claude_batch.ledger import budgets, submissions
from claude_batch.ledger.store import Leader, Ledger
from claude_batch.lifecycle.packer import pack_due

SOURCES = str(Path(str(cb.__file__)).parents[1])
LEDGERS = Path(__file__).parents[1] / "ledger"

A_RUN = """
INSERT INTO meta VALUES ('incarnation', 'aabbccdd'),
    ('salt', '00112233445566778899aabbccddeeff'), ('stamp', '0');
INSERT INTO workspaces (id, base_url, epoch) VALUES (1, 'http://127.0.0.1:9/', 4);
INSERT INTO lanes VALUES (1, 1, '2023-06-01', '', '');
INSERT INTO runs (id, kind, digest, actor, workspace_id, created, stored, request_count, linger,
    max_requests, poll_interval, max_poll_interval, max_wait, on_timeout, max_attempts)
    VALUES ('run-aaaaaaaaaa', 'run', 'd1', 'tests/one', 1, 1.0, 2.0, 1, 2.0,
    100000, 30.0, 300.0, 93600.0, 'park', 3);
INSERT INTO requests (seq, id, run_id, position, lane_id, size, state, due, created, cancelled,
    attempts, sendings) VALUES (1, '0123456789abcdef0123456789abcdef', 'run-aaaaaaaaaa', 0, 1, 2,
    'queued', 1.0, 1.0, 0, 0, 0);
INSERT INTO params VALUES (1, x'7b7d');
"""


def sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def version_of(path: Path) -> str:
    return str(sql(path, "SELECT value FROM meta WHERE name = 'schema_version'")[0][0])


@given("a ledger of schema version {version:d} with a run in it")
@given("a ledger of schema version {version:d} with a run in it that says it is of {said:d}")
def _(context: Context, version: int, said: int | None = None) -> None:
    context.path = context.tmp / "old.db"
    schema = (LEDGERS / f"schema-{version}.sql").read_text("utf-8")
    with closing(sqlite3.connect(context.path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(schema + A_RUN)
        connection.execute(
            "INSERT INTO meta VALUES ('schema_version', ?)",
            (str(version if said is None else said),),
        )


@given("an earlier version left in it")
def _(context: Context) -> None:
    with closing(sqlite3.connect(context.path)) as connection, connection:
        connection.executescript(context.text)


@given("budgets have counted of the run's batches:")
def _(context: Context) -> None:
    with closing(sqlite3.connect(context.path)) as connection, connection:
        for number, row in enumerate(context.table, 1):
            if row["state"] == "removed":
                costs = "INSERT INTO removed_costs VALUES ('tests/one', 10, ?)"
                connection.execute(costs, (int(row["spent"]),))
                continue
            connection.execute(
                "INSERT INTO batches (id, lane_id, state, request_count, params_bytes, "
                "poll_interval, max_poll_interval, created, posts, broken_uploads, fetches) "
                "VALUES (?, 1, ?, 1, 2, 30.0, 300.0, 864000.0, 0, 0, 0)",
                (number, row["state"]),
            )
            sums = [int(row[name]) if row[name] else None for name in ("reserved", "spent", "kept")]
            connection.execute(
                "INSERT INTO batch_runs (batch_id, run_id, reserved, spent, kept) "
                "VALUES (?, 'run-aaaaaaaaaa', ?, ?, ?)",
                (number, *sums),
            )


@rule("budgets count of a migrated ledger")
def _(context: Context, scope: str, name: str) -> dict[str, Any]:
    with context.ledger.write() as tx:
        budgets.set_amount(tx, scope, name, 10_000)
        [found] = [each for each in budgets.all_budgets(tx, 10) if each.scope == scope]
        uncounted = sorted(number for number, _ in budgets.uncounted(tx, [(scope, name)], 10))
    sums = {name: getattr(found, name) for name in ("reserved", "spent", "doubt")}
    return {**sums, "uncounted": uncounted}


@given("a disk without room for a copy")
def _(context: Context) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for name in ("os.link", "os.rename"):
        patched = mock.patch(name, side_effect=full)
        patched.start()
        context.add_cleanup(patched.stop)


OPEN = "import sys\nfrom claude_batch.ledger.store import Ledger\nLedger(sys.argv[1]).close()\n"


def process(context: Context, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(context.path)],
        env={**os.environ, "PYTHONPATH": SOURCES}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# Once as root, so that all is imported: what is installed may lie where only root may read.
AS_NOBODY = (
    "import os, sys\nimport claude_batch.ledger.migrations\n"
    "from claude_batch.ledger.store import Ledger\nLedger(sys.argv[1] + '.other').close()\n"
    "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\nLedger(sys.argv[1])"
)


@when("the user nobody opens it")
def _(context: Context) -> None:
    context.errors = process(context, AS_NOBODY).communicate(timeout=60)[1]


@when("two processes of this version open it at once")
def _(context: Context) -> None:
    both = [process(context, OPEN) for _ in range(2)]
    for each in both:
        _, errors = each.communicate(timeout=60)
        assert each.returncode == 0, errors
    context.execute_steps("When it is opened as a ledger")


def shape(path: Path) -> dict[str, Any]:
    """Tables, columns, indexes and foreign keys, whatever the order of columns."""
    found: dict[str, Any] = {}
    for (table,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        indexes = {
            name: (unique, origin, sql(path, f"PRAGMA index_xinfo({name})") and [
                row[2] for row in sql(path, f"PRAGMA index_info({name})")
            ])
            for _, name, unique, origin, _ in sql(path, f"PRAGMA index_list({table})")
        }  # fmt: skip
        found[table] = {
            "columns": sorted(row[1:] for row in sql(path, f"PRAGMA table_info({table})")),
            "keys": sorted(row[2:] for row in sql(path, f"PRAGMA foreign_key_list({table})")),
            "indexes": indexes,
        }
    found["partial"] = sorted(
        " ".join(text.split())
        for (text,) in sql(
            path, "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        )
    )
    return found


@then("it has the tables, columns, indexes and keys of a new ledger")
def _(context: Context) -> None:
    fresh = context.tmp / "fresh.db"
    Ledger(str(fresh)).close()
    migrated, new = shape(context.path), shape(fresh)
    assert set(migrated) == set(new), set(migrated) ^ set(new)
    for name, value in new.items():
        assert migrated[name] == value, (name, migrated[name], value)
    assert version_of(context.path) == version_of(fresh)
    assert sql(context.path, "PRAGMA integrity_check") == [("ok",)]


@then('a new ledger has schema version {version:d}, and its tables have the digest "{digest}"')
def _(context: Context, version: int, digest: str) -> None:
    fresh = context.tmp / "fresh.db"
    Ledger(str(fresh)).close()
    words = json.dumps(shape(fresh), sort_keys=True)
    found = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    assert (version_of(fresh), found) == (str(version), digest), (version_of(fresh), found)


@then("the run is still in it, and can be sent")
def _(context: Context) -> None:
    ledger: Ledger = context.ledger
    assert ledger.incarnation == "aabbccdd"
    with ledger.write() as tx:
        leader = Leader(1, submissions.begin_epoch(tx, 1))
    assert leader.epoch > 4
    [batch_id], _later = pack_due(ledger, leader, 100.0)
    with ledger.write(leader) as tx:
        assert submissions.intend(tx, batch_id, snapshot=[], server_time=0.0, now=1.0) == 1
    assert list(submissions.body_pages(ledger, batch_id)) == [
        [("0123456789abcdef0123456789abcdef", 0, b"{}")]
    ]


@then('a copy of version {version:d} lies beside it as "{name}", the owner\'s alone')
def _(context: Context, version: int, name: str) -> None:
    copy = context.tmp / name
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert version_of(copy) == str(version)
    assert sql(copy, "SELECT id FROM runs") == [("run-aaaaaaaaaa",)]


@then("it is still of version {version:d}, and has {count:d} copy")
@then("it is still of version {version:d}, and has {count:d} copies")
def _(context: Context, version: int, count: int) -> None:
    assert version_of(context.path) == str(version)
    copies = list(context.tmp.glob("old.db.v*"))
    assert len(copies) == count, copies
