"""Steps of procrastinate's workers, which send and collect what a ledger on the server holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import programs
from behave import given, then, when
from behave.runner import Context
from postgres_ledger_steps import driving, end, wait_for
from tables import rule

from claude_batch.core.errors import ActorConfigurationError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/procrastinate/fleet.py"
PROGRAM = """
import runpy, sys
sys.argv[0] = "procrastinate"
runpy.run_module("procrastinate", run_name="__main__")
"""
APP = "--app=fleet.app"


@given("{count:d} workers of procrastinate")
@given("{count:d} workers of procrastinate with the tools {tools}")
def _(context: Context, count: int, tools: str = "") -> None:
    folder = context.tmp
    shutil.copy(EXAMPLE, folder)
    if tools:
        text = (folder / "fleet.py").read_text()
        with_tools = text.replace("tasks(take_over", f"tasks(tools=['{tools}'], take_over")
        assert with_tools != text
        (folder / "fleet.py").write_text(with_tools)
    environment = {**os.environ, "JOBS_URL": context.postgres.url()}
    context.workers = []
    with contextlib.chdir(folder):
        done = programs.run(PROGRAM, APP, "schema", "--apply", env=environment)
        assert done.returncode == 0, done.stderr
        for number in range(count):
            log = folder / f"worker-{number}.log"
            with log.open("wb") as file:
                process = programs.start(
                    *(PROGRAM, APP, "worker"), env=environment, stdout=file, stderr=file
                )
            context.add_cleanup(end, process)
            context.workers.append((process, log))


def _driver(context: Context) -> programs.Program | None:
    pid = driving(context)
    return next((process for process, _ in context.workers if process.pid == pid), None)


@when("a worker of procrastinate drives")
@then("a worker of procrastinate drives within {seconds:d} seconds")
def _(context: Context, seconds: int = 20) -> None:
    former = getattr(context, "stopped", None)
    wait_for(lambda: _driver(context) not in (None, former), seconds)


@when("that worker is stopped")
def _(context: Context) -> None:
    context.stopped = _driver(context)
    assert context.stopped is not None
    context.stopped.send_signal(signal.SIGSTOP)


@when("the stopped worker goes on")
def _(context: Context) -> None:
    context.stopped.send_signal(signal.SIGCONT)


@when("the workers of procrastinate are asked to end")
def _(context: Context) -> None:
    for process, _ in context.workers:
        process.terminate()


@then("they have ended with {code:d} within {seconds:d} seconds")
def _(context: Context, code: int, seconds: int) -> None:
    wait_for(lambda: all(each.poll() is not None for each, _ in context.workers), seconds)
    assert [each.returncode for each, _ in context.workers] == [code] * len(context.workers)


@when("procrastinate loses all of its jobs")
def _(context: Context) -> None:
    context.postgres.execute("TRUNCATE procrastinate_jobs CASCADE")


def _ended(context: Context, task: str) -> list[str]:
    rows = context.postgres.execute(
        "SELECT status FROM procrastinate_jobs WHERE status NOT IN ('todo', 'doing') "
        f"AND task_name = 'claude_batch:{task}' ORDER BY id"
    )
    return [str(status) for (status,) in rows]


@then("the jobs {task:w} have ended as {statuses}")
def _(context: Context, task: str, statuses: str) -> None:
    expected = statuses.split(", ")
    wait_for(lambda: _ended(context, task) == expected, 20)


@then("a job {task:w} has succeeded")
def _(context: Context, task: str) -> None:
    wait_for(lambda: "succeeded" in _ended(context, task), 20)


@rule("tasks of procrastinate are made")
def _(context: Context, settings: dict[str, Any]) -> str:
    from claude_batch.integrations.procrastinate import claude_batch_tasks

    try:
        tasks = claude_batch_tasks(ledger="ledger.db", **settings).tasks
    except ActorConfigurationError as error:
        return str(error)
    assert not Path("ledger.db").exists()
    return ", ".join(sorted(name.rpartition(":")[2] for name in tasks))


@then("the tool has run {times:d} times")
def _(_context: Context, times: int) -> None:
    assert len(Path("calls.txt").read_text().split()) == times
