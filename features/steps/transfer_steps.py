"""Steps of a ledger that moves from a file to a PostgreSQL server."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest import mock

import psycopg
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from filelock import FileLock
from postgres_server import PASSWORD
from sqlalchemy import delete

from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint
from claude_batch.core.errors import LedgerError
from claude_batch.ledger.schema import metadata, requests
from claude_batch.ledger.store import Ledger

ITS_OWN = ("incarnation", "former_incarnations", "moved_to", "moved_as", "server")
"""Metadata in which a ledger and the file that it came from differ."""


@then('the server has each row of "{name}"')
def _(context: Context, name: str) -> None:
    with (
        closing(sqlite3.connect(name)) as file,
        psycopg.connect(context.postgres.url()) as server,
    ):
        server.execute("SET search_path TO claude_batch")
        for table in metadata.sorted_tables:
            columns = ", ".join(column.name for column in table.columns)
            query = f"SELECT {columns} FROM {table.name}"
            here, there = (sorted(map(repr, rows(query, db))) for db in (file, server))
            assert here == there, (table.name, here, there)


def rows(query: str, database: Any) -> list[tuple[Any, ...]]:
    found = database.execute(query).fetchall()
    return [
        # SQLite stores a boolean as a number.
        tuple(int(value) if isinstance(value, bool) else value for value in row)
        for row in found
        if row[0] not in ITS_OWN
    ]


@given('a process that drives "{name}"')
def _(context: Context, name: str) -> None:
    """Hold the leader lock, as a driver does; a lock of this process excludes its own others."""
    lock = FileLock(f"{context.tmp / name}.seat-1")
    lock.acquire()
    context.add_cleanup(lock.release)
    context.pid = os.getpid()


@given('a process has "{name}" open')
def _(context: Context, name: str) -> None:
    context.open = Ledger(name)
    context.add_cleanup(context.open.close)


@when("that process writes before the end of the command: {words}")
def _(context: Context, words: str) -> None:
    refusals: list[str] = []

    def write() -> None:
        try:
            with context.open.write() as tx:
                tx.execute(delete(requests))
        except LedgerError as error:
            refusals.append(str(error))

    writer = threading.Thread(target=write)

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.AFTER_ARRIVING:
            writer.start()
            writer.join(0.3)
            assert writer.is_alive()

    with mock.patch.object(crash_points, "on_reach", reached):
        command(context, words)
    writer.join(20)
    assert "was moved to" in "".join(refusals), refusals


def begins_there(context: Context) -> None:
    command(context, "run actor.yaml more.jsonl -o there.jsonl")


def creates_a_table(context: Context) -> None:
    context.postgres.execute("CREATE SCHEMA claude_batch; CREATE TABLE claude_batch.mine (id int)")


def moves_another(context: Context) -> None:
    command(context, "run actor.yaml more.jsonl -o other-out.jsonl --ledger other.db")
    context.execute_steps("When a command's process dies at after_arriving: ledger copy other.db")


def changes_a_key(_: Context) -> None:
    with closing(sqlite3.connect("ledger.db")) as file, file:
        file.execute("UPDATE requests SET key = 'a' || char(0) || 'b' WHERE seq = 1")


def lengthens_a_name(_: Context) -> None:
    with closing(sqlite3.connect("ledger.db")) as file, file:
        file.execute("UPDATE runs SET actor = printf('%.3000c', 'n')")


TROUBLES: dict[str, tuple[str | None, Callable[[Context], None]]] = {
    "it is in use": (None, begins_there),
    "it is another program's": (None, creates_a_table),
    "another file arrives": (None, moves_another),
    "it is not UTF-8": ("that of a database in LATIN1", lambda _: None),
    "it is a standby": (None, lambda context: context.execute_steps("Given a standby of it")),
    "nobody listens": ("postgresql://claude:PASSWORD@127.0.0.1:1/db", lambda _: None),
    "it is a file": ("other.db", lambda _: None),
    "a key has a NUL": (None, changes_a_key),
    "a name is too long": (None, lengthens_a_name),
}


@given("a ledger has trouble there: {trouble}")
def _(context: Context, trouble: str) -> None:
    url, begin = TROUBLES[trouble]
    where = url or "that of the server"
    context.execute_steps(f"Given the ledger's URL is {where}")
    begin(context)
    if trouble == "it is a standby":
        os.environ["CLAUDE_BATCH_LEDGER"] = context.standby.url()
    assert trouble != "nobody listens" or PASSWORD in os.environ["CLAUDE_BATCH_LEDGER"]
