"""Steps of a ledger on a private PostgreSQL server, used by commands."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import cutting_proxy
import postgres_server
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from cutting_proxy import CuttingProxy
from postgres_server import PASSWORD

from claude_batch.cli.exits import Exit


@given("a ledger on that server")
def _(context: Context) -> None:
    context.url = os.environ["CLAUDE_BATCH_LEDGER"] = context.postgres.url()


@given("the ledger's URL is {url}")
@when("the ledger's URL is {url}")
def _(context: Context, url: str) -> None:
    if url == "that of the standby":
        url = context.standby.url()
    elif url == "that of a database in LATIN1":
        context.postgres.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
        url = context.postgres.url("latin")
    url = url.replace("PORT", str(context.postgres.port)).replace("PASSWORD", PASSWORD)
    os.environ["CLAUDE_BATCH_LEDGER"] = url


@given("a proxy before the ledger's server")
def _(context: Context) -> None:
    context.proxy = CuttingProxy(context.postgres.port)
    context.add_cleanup(context.proxy.close)
    os.environ["CLAUDE_BATCH_LEDGER"] = context.postgres.url(port=context.proxy.port)


@given('a COMMIT that has "{words}" fails by "{fault}"')
def _(context: Context, words: str, fault: cutting_proxy.Fault) -> None:
    context.happened = context.proxy.at_commit(fault, having=words)


@when("a command runs until it need not be repeated: {words}")
def _(context: Context, words: str) -> None:
    for _time in range(3):
        command(context, words)
        if context.ended.exit_code != Exit.PARKED:
            return


@when('a command runs while the server restarts "{mode}": {words}')
def _(context: Context, mode: postgres_server.Mode, words: str) -> None:
    def restart() -> None:
        # As soon as the API has the batch, which then takes some seconds.
        while not any(call["route"] == "create" for call in context.api.log()):
            time.sleep(0.05)
        context.postgres.restart(mode)

    thread = threading.Thread(target=restart)
    thread.start()
    command(context, words)
    thread.join()


@then("the password of the server was never said")
def _(context: Context) -> None:
    assert context.ended.output
    assert PASSWORD not in context.ended.output, context.ended.output


@then("no file has the password of the server")
def _(context: Context) -> None:
    files = [path for path in Path(context.tmp).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert PASSWORD.encode() not in path.read_bytes(), path
