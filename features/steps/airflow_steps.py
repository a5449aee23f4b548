"""Steps of a real Airflow, which `nox -s airflow` installs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
from behave import given, then, when
from behave.runner import Context
from pages import ROOT
from postgres_server import free_port
from sqlalchemy import select
from staging import KEY, ledger_values, until
from tables import rule

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.schema import runs
from claude_batch.ledger.store import Ledger
from claude_batch.providers.status import RunStatus, newest_statuses

PATIENCE = 150
"""Seconds for Airflow to start, or for a Dag run."""

DAGS = """
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from claude_batch.integrations.airflow import ClaudeBatchOperator

FOLDER = {folder!r}
ACTOR = f"{{FOLDER}}/actor.yaml"
QUICK = {{
    "conn_id": "sandbox",
    "poll_interval": 6,  # longer than a busy machine takes to end a task that was deferred
    "settings": {{"poll_interval": "50ms", "settling": "1s"}},
}}


def die_at(point):
    from claude_batch.core import crash_points

    def die(here):
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.on_reach = die


{dags}
"""


@given("an Airflow with this Dag")
def _(context: Context) -> None:
    context.execute_steps("Given a command's folder")
    Path("actor.yaml").write_text(
        "name: tests/asker\nprovider: anthropic\nmodel: claude-haiku-4-5\nbatch_processing: true\n"
    )
    Path("prompts.jsonl").write_text("".join(f'"prompt {number}"\n' for number in (1, 2, 3)))
    home = context.airflow = context.tmp / "airflow"
    (home / "dags").mkdir(parents=True)
    text = DAGS.format(folder=str(context.tmp), dags=context.text)
    (home / "dags" / "tests.py").write_text(text, "utf-8")
    shutil.copy(ROOT / "examples/airflow/nightly_reviews.py", home / "dags")
    port = free_port()
    # The key is in a connection, and not in the environment.
    url = os.environ.pop("ANTHROPIC_BASE_URL")
    del os.environ["ANTHROPIC_API_KEY"]
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW_CONN_SANDBOX": _connection(url, KEY),
        "AIRFLOW_CONN_REFUSED": _connection(url, "sk-invalid-key"),
    }
    with (context.tmp / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "airflow"), "standalone"],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    context.add_cleanup(_end, process)
    context.web = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    context.add_cleanup(context.web.close)
    until(lambda: _is_ready(context), PATIENCE)


def _connection(url: str, key: str) -> str:
    return json.dumps({"conn_type": "generic", "host": url, "password": key})


def _end(process: subprocess.Popen[bytes]) -> None:
    import psutil  # Airflow brings it

    # Some of its processes have sessions of their own.
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in everyone:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _is_ready(context: Context) -> bool:
    """Whether it has started, and knows the Dag, and that of the example."""
    try:
        answer = context.web.get("/auth/token")
        if answer.status_code not in (200, 201):
            return False
        context.web.headers["authorization"] = f"Bearer {answer.json()['access_token']}"
        health = context.web.get("/api/v2/monitor/health").json()
        if any(each["status"] not in ("healthy", None) for each in health.values()):
            return False
        return len(context.web.get("/api/v2/dags").json()["dags"]) == 2
    except httpx2.TransportError:
        return False


def _begin(context: Context, name: str, dag: str) -> None:
    context.dag_run = f"/api/v2/dags/{dag}/dagRuns/{name}"
    context.logs = context.airflow / "logs" / f"dag_id={dag}" / f"run_id={name}"
    asked = {"dag_run_id": name, "logical_date": None}
    answer = context.web.post(f"/api/v2/dags/{dag}/dagRuns", json=asked)
    assert answer.status_code == 200, answer.text


def _tasks(context: Context) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = context.web.get(f"{context.dag_run}/taskInstances").json()[
        "task_instances"
    ]
    return found


@when('a Dag run "{name}" of "{dag}" is over')
def _(context: Context, name: str, dag: str) -> None:
    _begin(context, name, dag)
    until(
        lambda: context.web.get(context.dag_run).json()["state"] in ("success", "failed"), PATIENCE
    )


@when('a Dag run "{name}" of "{dag}" waits in the triggerer')
def _(context: Context, name: str, dag: str) -> None:
    _begin(context, name, dag)
    until(lambda: [each["state"] for each in _tasks(context)] == ["deferred"], PATIENCE)
    # And the trigger has looked at its run.
    until(lambda: " at the API" in _log_of(context, "ask"), PATIENCE)


@when('a Dag run "{name}" of "{dag}" sends')
def _(context: Context, name: str, dag: str) -> None:
    _begin(context, name, dag)
    until(
        lambda: any(batch.state == "submitting" for run in _statuses() for batch in run.batches),
        PATIENCE,
    )


@when('a user marks its task "{task}" as failed')
def _(context: Context, task: str) -> None:
    path = f"{context.dag_run}/taskInstances/{task}"
    answer = context.web.patch(path, json={"new_state": "failed"})
    assert answer.status_code == 200, answer.text


@rule("its tasks ended")
def _(context: Context, task: str) -> dict[str, object]:
    name, _, index = task.partition(" ")
    [found] = [
        each
        for each in _tasks(context)
        if (each["task_id"], each["map_index"]) == (name, int(index or -1))
    ]
    if found["state"] == "failed":
        print(_log_of(context, name))
    # The triggerer has files of its own beside those of the attempts.
    waited = list((context.logs / f"task_id={name}").rglob("*.trigger.*"))
    return {"state": found["state"], "attempts": found["try_number"], "waited": bool(waited)}


def _log_of(context: Context, task: str) -> str:
    """What a task and its triggers have logged."""
    folder = context.logs / f"task_id={task}"
    return "\n".join(path.read_text("utf-8") for path in sorted(folder.rglob("*.log*")))


@then('the log of the task {task} says "{words}"')
def _(context: Context, task: str, words: str) -> None:
    assert words in _log_of(context, task), _log_of(context, task)


@then("the ledger's runs are labelled {labels}")
def _(context: Context, labels: str) -> None:
    found = ledger_values(select(runs.c.label).order_by(runs.c.label))
    assert ", ".join(found) == labels, found


@then("the ledger's run becomes {state}")
def _(context: Context, state: str) -> None:
    until(lambda: [str(each.state) for each in _statuses()] == [state], PATIENCE)


def _statuses() -> list[RunStatus]:
    try:
        ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    except LedgerError:
        return []  # no task has made it yet
    try:
        return ledger.query(lambda tx: newest_statuses(ledger, tx))
    finally:
        ledger.close()


@then('the file "{name}" has {count:d} lines')
def _(context: Context, name: str, count: int) -> None:
    assert len(Path(name).read_text("utf-8").splitlines()) == count


@then("no row of Airflow's database has the key")
def _(context: Context) -> None:
    with closing(sqlite3.connect(context.airflow / "airflow.db")) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert len(tables) > 20
        for (table,) in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                assert KEY not in repr(row), (table, row)
    assert KEY not in "".join(_log_of(context, each["task_id"]) for each in _tasks(context))
