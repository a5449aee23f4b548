"""Steps of a proxy that cuts, stalls and swallows, before a private PostgreSQL server."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import random
from collections.abc import Callable

import psycopg
from behave import given, step, then
from behave.runner import Context
from cutting_proxy import CuttingProxy
from tables import rule

WAITS = 0.3
"""Seconds after which a client that has no answer is taken to wait."""


@given("a proxy before the PostgreSQL server")
def _(context: Context) -> None:
    proxy = context.proxy = CuttingProxy(context.postgres.port)
    context.add_cleanup(proxy.close)
    url: str = context.url if "url" in context else context.postgres.url()
    context.through = url.replace(f":{context.postgres.port}/", f":{proxy.port}/")
    os.environ["CLAUDE_BATCH_LEDGER"] = context.through
    context.clients = concurrent.futures.ThreadPoolExecutor()
    # Whoever waits still is freed.
    context.add_cleanup(lambda: (proxy.close(), context.clients.shutdown()))


@then("the fault has happened")
def _(context: Context) -> None:
    assert context.happened.wait(20)


@step("a client reads in the {protocol} protocol, it {sees}")
@step("a client commits mark {number:d} in the {protocol} protocol, it {sees}")
def _(context: Context, protocol: str, sees: str, number: int | None = None) -> None:
    read = "SELECT count(*) FROM marks"
    sql = read if number is None else f"INSERT INTO marks VALUES ({number})"
    run(context, lambda: transact(context.through, protocol, sql), sees)


def transact(url: str, protocol: str, sql: str) -> None:
    if protocol == "simple":
        with psycopg.connect(url) as connection:
            connection.execute(sql.encode())
    elif protocol == "extended":
        with psycopg.connect(url) as connection, connection.pipeline():
            connection.execute(sql.encode())
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            # Only the first transaction sends the words of its statements.
            for statement in ("SELECT 1 FROM marks", sql):
                connection.execute("BEGIN", prepare=True)
                connection.execute(statement.encode(), prepare=True)
                connection.execute("COMMIT", prepare=True)


def run(context: Context, action: Callable[[], None], sees: str) -> None:
    """Run what a client does in a thread of its own, and compare how it ends."""
    context.ends = context.clients.submit(action)
    assert outcome(context, WAITS if sees == "waits" else 20) == sees


def outcome(context: Context, timeout: float) -> str:
    try:
        context.ends.result(timeout)
    except TimeoutError:
        return "waits"
    except psycopg.OperationalError:
        return "loses its connection"
    return "sees success"


@given("a client in a transaction of mark {number:d}")
def _(context: Context, number: int) -> None:
    context.client = psycopg.connect(context.through)
    context.add_cleanup(context.client.close)
    context.client.execute("INSERT INTO marks VALUES (%s)", [number])
    context.ends = None


@step("that client commits, it {sees}")
def _(context: Context, sees: str) -> None:
    run(context, context.client.commit, sees)


@then("that client {sees}")
def _(context: Context, sees: str) -> None:
    if context.ends is None:
        context.ends = context.clients.submit(context.client.commit)
    assert outcome(context, 20) == sees


@step("the proxy is {how}")
def _(context: Context, how: str) -> None:
    proxy = context.proxy
    changes: dict[str, Callable[[], None]] = {
        "cut": proxy.cut,
        "stalled": proxy.stall,
        "restored": proxy.restore,
        "led to the standby": lambda: proxy.redirect(context.standby.port),
    }
    changes[how]()


@step("the next {count:d} connections to the PostgreSQL server are refused: {words}")
def _(context: Context, count: int, words: str) -> None:
    context.proxy.refuse(count, words)


@rule("bytes that the server receives and returns are unchanged")
def _(context: Context, bytes: int) -> bool:
    data = random.Random(17).randbytes(bytes)
    with psycopg.connect(context.through) as connection:
        row = connection.execute("SELECT sha256(%s), %s", [data, data]).fetchone()
    return row == (hashlib.sha256(data).digest(), data)
