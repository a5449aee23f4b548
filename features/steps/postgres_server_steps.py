"""Steps of a private PostgreSQL server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import postgres_server
import psycopg
from behave import given, then, when
from behave.runner import Context
from postgres_server import PostgresServer
from staging import until

STARTS_ONE = """
from postgres_server import PostgresServer
server = PostgresServer()
print(server.port, server.folder, flush=True)
input()
"""


@given("a PostgreSQL server")
def _(context: Context) -> None:
    context.postgres = PostgresServer()
    context.add_cleanup(context.postgres.close)


@given("a {kind} with a table of marks")
def _(context: Context, kind: str) -> None:
    if kind == "schema":
        context.url = context.postgres.url(schema=context.postgres.create_schema())
    else:
        context.url = context.postgres.url(context.postgres.create_database())
    with psycopg.connect(context.url) as connection:
        connection.execute("CREATE TABLE marks (number int PRIMARY KEY)")


@when("mark {number:d} is committed")
@then("mark {number:d} is committed")
def _(context: Context, number: int) -> None:
    with psycopg.connect(context.url) as connection:
        connection.execute("INSERT INTO marks VALUES (%s)", [number])


@then("the marks are {numbers}")
@then("there are no marks")
def _(context: Context, numbers: str = "") -> None:
    assert marks(context) == numbers, marks(context)


def marks(context: Context) -> str:
    with psycopg.connect(context.url) as connection:
        rows = connection.execute("SELECT number FROM marks ORDER BY 1").fetchall()
    return ", ".join(str(number) for (number,) in rows)


@when('the PostgreSQL server is restarted "{mode}"')
def _(context: Context, mode: postgres_server.Mode) -> None:
    context.postgres.restart(mode)


@when("the PostgreSQL server {does:w}")
def _(context: Context, does: str) -> None:
    if does == "starts":
        context.postgres.start()
    else:
        assert does == "ends", does
        context.postgres.stop("immediate")


@given("the server runs: {sql}")
def _(context: Context, sql: str) -> None:
    context.postgres.execute(sql)


@given("a standby of it")
def _(context: Context) -> None:
    context.standby = context.postgres.standby()
    context.add_cleanup(context.standby.close)


@given("the server's settings are {settings}")
def _(context: Context, settings: str) -> None:
    if "standby" in context:
        context.postgres.wait_for_standby(context.standby)
    for name, value in json.loads(settings).items():
        context.postgres.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    context.postgres.execute("SELECT pg_reload_conf()")
    wanted = json.loads(settings).items()
    until(lambda: all(context.postgres.execute(f"SHOW {name}") == [(v,)] for name, v in wanted))


@given("the standby has everything and is detached")
@when("the standby has everything and is detached")
def _(context: Context) -> None:
    context.postgres.wait_for_standby(context.standby)
    context.standby.detach()


@when("the PostgreSQL server crashes, and the standby is promoted")
def _(context: Context) -> None:
    old, context.postgres = context.postgres, context.standby
    old.stop("immediate")
    context.standby.promote()
    context.url = context.url.replace(f":{old.port}/", f":{context.standby.port}/")


@then("a server and its folder are gone when the process that started it is killed")
def _(context: Context) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(postgres_server.__file__).parent)},
    )
    context.add_cleanup(starter.communicate)
    assert starter.stdout is not None
    port, folder = starter.stdout.readline().split()
    assert listens(int(port))
    starter.send_signal(signal.SIGKILL)
    until(lambda: not listens(int(port)) and not Path(folder).exists(), 20)


def listens(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://any@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError as error:
        # Where the server refuses the unknown user, it lives.
        return "does not exist" in str(error)
    return True
