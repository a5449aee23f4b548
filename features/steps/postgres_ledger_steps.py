"""Steps of a ledger on a private PostgreSQL server, used by commands."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import cutting_proxy
import pgbouncer
import postgres_server
import programs
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from html_pages import read_html
from postgres_server import PASSWORD

from claude_batch import ActorError, ClaudeBatchProvider
from claude_batch.cli.user_messages import Exit
from claude_batch.core.settings import with_schema
from claude_batch.core.states import RequestState
from claude_batch.ledger.store import Ledger, exists_on_server
from claude_batch.sandbox.fault_plan import FaultPlan


@given("a ledger on that server")
def _(context: Context) -> None:
    context.url = os.environ["CLAUDE_BATCH_LEDGER"] = context.postgres.url()


@then("{count:d} processes that write and read {times:d} times each see no error")
def _(context: Context, count: int, times: int) -> None:
    script = """if True:
        import sys
        from claude_batch.ledger.store import Ledger
        ledger = Ledger(sys.argv[1])
        for _ in range(int(sys.argv[2])):
            ledger.prove_writable()
            ledger.reopen()
        ledger.close()
    """
    arguments = [sys.executable, "-c", script, context.url, str(times)]
    Ledger(context.url).close()
    processes = [
        subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(count)
    ]
    errors = [process.communicate()[1][-300:] for process in processes]
    assert not any(process.returncode for process in processes), errors


@given("the ledger's URL is {url}")
@when("the ledger's URL is {url}")
def _(context: Context, url: str) -> None:
    if url == "that of the server":
        url = context.postgres.url()
    elif url == "that of the standby":
        url = context.standby.url()
    elif url == "that of PgBouncer":
        if pgbouncer.program() is None:
            context.scenario.skip("PgBouncer is not installed")
            return
        pooler = pgbouncer.PgBouncer(context.postgres)
        context.add_cleanup(pooler.close)
        url = context.postgres.url(port=pooler.port)
    elif url == "that of a database in LATIN1":
        context.postgres.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
        url = context.postgres.url("latin")
    url = url.replace("PORT", str(context.postgres.port)).replace("PASSWORD", PASSWORD)
    context.url = os.environ["CLAUDE_BATCH_LEDGER"] = url


@given('a command\'s file "{name}" of {count:d} prompts, each {times:d} times')
def _(_context: Context, name: str, count: int, times: int) -> None:
    Path(name).write_text("".join(f'"prompt {n}"\n' for n in range(count)) * times)


@given('a user of the server who may create no schema, and has the schema "{schema}"')
def _(context: Context, schema: str) -> None:
    context.postgres.execute(f"CREATE USER other; CREATE SCHEMA {schema} AUTHORIZATION other")
    url = context.postgres.url().replace(f"{postgres_server.USER}:", "other:")
    context.url = os.environ["CLAUDE_BATCH_LEDGER"] = url


@given("the server's user has the encoding {encoding}")
def _(context: Context, encoding: str) -> None:
    user = postgres_server.USER
    context.postgres.execute(f"ALTER USER {user} SET client_encoding = '{encoding}'")


@when("the server gathers statistics")
def _(context: Context) -> None:
    context.postgres.execute("ANALYZE")


@then("the server has read each request and each result fewer than {number:d} times")
def _(context: Context, number: int) -> None:
    # A count, because the time of a statement depends on who else works.
    ((most,),) = context.postgres.execute(
        "SELECT max((seq_tup_read + idx_tup_fetch) / n_live_tup) FROM pg_stat_user_tables "
        "WHERE relname IN ('requests', 'results')"
    )
    assert 0 < most < number, most


@given("to store results in the ledger takes {seconds:g} seconds")
def _(context: Context, seconds: float) -> None:
    context.postgres.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END$$; "
        "CREATE TRIGGER waits BEFORE INSERT ON claude_batch.results EXECUTE FUNCTION wait()"
    )


@when("the server has no room for batches for {seconds:g} seconds while a command runs: {words}")
def _(context: Context, seconds: float, words: str) -> None:
    context.postgres.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END$$; "
        "CREATE TRIGGER fills BEFORE INSERT ON claude_batch.batches EXECUTE FUNCTION fill()"
    )
    room = "DROP TRIGGER fills ON claude_batch.batches"
    timer = threading.Timer(seconds, context.postgres.execute, [room])
    timer.start()
    command(context, words)
    timer.join()


@then('a worker\'s URL with the schema "{schema}" is {url}')
def _(context: Context, schema: str, url: str) -> None:
    assert with_schema(context.url, schema) == url, with_schema(context.url, schema)


@given('a COMMIT that has "{words}" fails by "{fault}"')
def _(context: Context, words: str, fault: cutting_proxy.Fault) -> None:
    context.happened = context.proxy.at_commit(fault, having=words)


@when("a command runs with the server's URL in place of URL: {words}")
def _(context: Context, words: str) -> None:
    command(context, words.replace("URL", context.url))


@when("two providers of the ledger have different settings")
def _(context: Context) -> None:
    context.error = None
    with ClaudeBatchProvider() as first, ClaudeBatchProvider(settling=1800) as second:
        first.opening().result()
        try:
            second.opening().result()
        except ActorError as error:
            context.error = error


@then("the error does not have the password of the server")
def _(context: Context) -> None:
    assert PASSWORD not in str(context.error), context.error


@when("a command runs until it need not be repeated: {words}")
def _(context: Context, words: str) -> None:
    for _time in range(3):
        command(context, words)
        if context.ended.exit_code != Exit.PARKED:
            return


@when('a command runs while the server restarts "{mode}": {words}')
def _(context: Context, mode: postgres_server.Mode, words: str) -> None:
    _meanwhile(context, lambda: context.postgres.restart(mode), words)


@when(
    "a command runs and loses its connections, and the next {count:d} are refused with "
    '"{why}": {words}'
)
def _(context: Context, count: int, why: str, words: str) -> None:
    def crowd() -> None:
        context.proxy.refuse(count, why)
        context.proxy.reset_connections()

    _meanwhile(context, crowd, words)


def _meanwhile(context: Context, fault: Callable[[], object], words: str) -> None:
    """Run a command, and do something as soon as the API has its batch, which takes seconds."""

    def wait() -> None:
        while not any(call["route"] == "create" for call in context.api.log()):
            time.sleep(0.05)
        fault()

    thread = threading.Thread(target=wait)
    thread.start()
    command(context, words)
    thread.join()


@when("a command runs with the ledger's URL as LEDGER: {words}")
def _(context: Context, words: str) -> None:
    url = shlex.quote(os.environ["CLAUDE_BATCH_LEDGER"])
    command(context, words.replace("LEDGER", url))


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


@then("the server has no ledger")
def _(context: Context) -> None:
    assert not exists_on_server(context.url)


@given("two workers: {flags}")
def _(context: Context, flags: str) -> None:
    context.workers = []
    for number in (1, 2):
        log = Path(f"worker-{number}.log")
        words = ("worker", *flags.split())
        with log.open("wb") as said:
            process = programs.start(programs.COMMAND, *words, stdout=said, stderr=said)
        context.add_cleanup(end, process)
        context.workers.append((process, log))


def end(process: programs.Program) -> None:
    process.kill()
    process.wait()


def driving(context: Context) -> int | None:
    """The pid of the process that drives."""
    ledger = Ledger(context.url)
    try:
        return next((each.pid for each in ledger.workers() if each.drives), None)
    finally:
        ledger.close()


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


@then("one of them drives, and each says that it works")
def _(context: Context) -> None:
    wait_for(lambda: all(b" works on " in log.read_bytes() for _, log in context.workers), 30)
    context.pids = {process.pid: process for process, _ in context.workers}
    wait_for(lambda: driving(context) in context.pids, 15)
    for _, log in context.workers:
        port = int(log.read_text().partition("probes on port ")[2].partition(":")[0])
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                assert answer.read() == b"ok\n"


@when("the worker that drives is stopped until the other one drives")
def _(context: Context) -> None:
    pid = driving(context)
    assert pid is not None
    context.pids[pid].send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: driving(context) in context.pids.keys() - {pid}, 30)
    finally:
        context.pids[pid].send_signal(signal.SIGCONT)
    time.sleep(3)


@when("the worker that drives is killed")
def _(context: Context) -> None:
    pid = driving(context)
    assert pid is not None
    end(context.pids.pop(pid))


@then("the other one drives within {seconds:d} seconds")
def _(context: Context, seconds: int) -> None:
    wait_for(lambda: driving(context) in context.pids, seconds)


@then("the run is over within {seconds:d} seconds")
def _(context: Context, seconds: int) -> None:
    def is_over() -> bool:
        command(context, "status --json")
        runs = json.loads(context.ended.stdout)
        return all(RequestState(state).is_final for run in runs for state in run["counts"])

    wait_for(is_over, seconds)


@when("the ledger's schema is dumped, and restored after a command runs: {words}")
def _(context: Context, words: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # the server's programs run as its own user
        dump = Path(folder) / "ledger.dump"
        context.postgres.dump(dump, "claude_batch")
        for each in words.split(", then: "):
            command(context, each)
        context.postgres.restore(dump)


@when("the standby takes the place of the server within an instant")
def _(context: Context) -> None:
    _change_servers(context)


@when("a command recovers the ledger while the standby takes the server's place")
def _(context: Context) -> None:
    lists, action = itertools.count(1), FaultPlan.action

    def change_within_the_second(plan: FaultPlan, route: str, key: str | None = None) -> Any:
        if route == "list" and next(lists) == 2:
            _change_servers(context)
        return action(plan, route, key)

    with mock.patch.object(FaultPlan, "action", change_within_the_second):
        command(context, "ledger recover --even-if-whole --settling 1ms")


def _change_servers(context: Context) -> None:
    # No statement meets the change: connections that are idle are replaced.
    old = context.postgres
    context.standby.promote()
    context.proxy.redirect(context.standby.port)
    context.proxy.reset_connections()
    old.stop("immediate")
    context.postgres = context.standby


@then(
    "sending is halted within {seconds:d} seconds, because the ledger may have forgotten sendings"
)
def _(context: Context, seconds: int) -> None:
    halted = "SELECT 1 FROM claude_batch.workspaces WHERE halt_reason = 'ledger_behind'"
    wait_for(lambda: bool(context.postgres.execute(halted)), seconds)


@when("the worker that runs a tool is killed")
def _(context: Context) -> None:
    calls = Path("calls.txt")
    wait_for(lambda: calls.exists() and calls.read_text().endswith("\n"), 30)
    pid = int(calls.read_text())
    end(next(process for process, _ in context.workers if process.pid == pid))


@then("the tool has run {times:d} times, in {count:d} workers")
def _(context: Context, times: int, count: int) -> None:
    writers = Path("calls.txt").read_text().split()
    assert (len(writers), len(set(writers))) == (times, count), writers


@then("the dashboard names the {count:d} worker that lives, and the one that drives")
@then("the dashboard names the {count:d} workers that live, and the one that drives")
def _(context: Context, count: int) -> None:
    assert len(context.pids) == count
    host = re.escape(socket.gethostname())
    rows = re.compile(rf"[0-9a-f]{{16}} {host} (\d+) \d+s ago (waits|wrkspc_01SandboxDefault)")
    drives = driving(context)
    expected = {
        str(pid): "wrkspc_01SandboxDefault" if pid == drives else "waits" for pid in context.pids
    }

    def named() -> bool:
        said = read_html(context.browser.get("/ledger").text).text
        return dict(rows.findall(said)) == expected

    # The pages follow a moment later.
    wait_for(named, 20)


@then("the password of the server is on no page of the dashboard")
def _(context: Context) -> None:
    context.execute_steps("Then every page that the dashboard links to is valid HTML with labels")
    for path in context.dashboard_paths:
        assert PASSWORD not in context.browser.get(path).text, path
