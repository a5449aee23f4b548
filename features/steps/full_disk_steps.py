"""Steps of full disks: from some point on the system refuses every byte that a file would take.

A limit on the size of files is used, which needs no rights and no disk: SQLite meets an error of
writing, as it does where a disk fails or is full.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest import mock

import programs
from behave import given, then, when
from behave.runner import Context
from staging import make_provider

import claude_batch as cb
from claude_batch.ledger import enqueue
from claude_batch.ledger.store import Ledger

SOURCES = str(Path(str(cb.__file__)).parents[1])

FULL = """
import resource, sys, threading
from claude_batch.core import crash_points
from claude_batch.lifecycle import collection
from claude_batch.providers import run_writer
from claude_batch.cli import main

point, seconds = sys.argv[1], float(sys.argv[2])
sys.argv[:3] = ["claude-batch"]
collection.CHUNK_LINES = run_writer.CHUNK_REQUESTS = 2
ample = resource.getrlimit(resource.RLIMIT_FSIZE)

def fill(reached):
    if reached == point:
        crash_points.on_reach = None
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, ample[1]))
        if seconds:
            room = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, ample)
            threading.Timer(seconds, room).start()

crash_points.on_reach = fill
fill("start")
main()
"""

POLL_NOTICES = FULL.replace(
    "main()\n",
    """
from claude_batch.ledger.portable_sql import put_meta
from claude_batch.lifecycle.driver import Driver

async def poll(self, leader):
    if crash_points.on_reach is None:
        with self._ledger.write(leader) as tx:
            put_meta(tx, "written", 1)
    return 0.05

Driver._poll_pass = poll
main()
""",
).replace("from claude_batch.cli import main()", "from claude_batch.cli import main")


def run(context: Context, script: str, point: str, seconds: float, words: str) -> None:
    arguments = (script, point, str(seconds), *shlex.split(words))
    if point == "start":  # an interpreter of its own: it imports although the disk is full
        done = subprocess.run(
            [sys.executable, "-c", *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": SOURCES},
        )  # fmt: skip
        context.code, context.errors = done.returncode, done.stderr
    else:
        # A pipe: a file would take no byte either.
        program = programs.start(
            *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert program.stdout is not None
        context.errors = program.stdout.read()
        context.code = program.wait(60)
    if found := re.search(r"run-\w{10}", context.errors):
        context.run_id = found[0]


@given("a command's ledger that has been used before")
def _(context: Context) -> None:

    Ledger(os.environ["CLAUDE_BATCH_LEDGER"]).close()


@when("a command's process meets a full disk at {point}: {words}")
@when("a command's process meets a full disk for {seconds:d} second at {point}: {words}")
def _(context: Context, point: str, words: str, seconds: int = 0) -> None:
    run(context, FULL, point, seconds, words)


@when(
    "a command's process meets a full disk that the poll loop notices while the id of a batch waits"
)
def _(context: Context) -> None:
    words = "run actor.yaml asks.jsonl -o out.jsonl"
    run(context, POLL_NOTICES, "after_post_before_record", 1, words)


@then("a command's process has ended with {code:d}, without a traceback")
def _(context: Context, code: int) -> None:
    assert "Traceback" not in context.errors, context.errors
    assert context.code == code, (context.code, context.errors)


@then("a command's process has said: {words}")
def _(context: Context, words: str) -> None:
    words = words.replace("RUN", getattr(context, "run_id", "RUN"))
    assert words in context.errors, context.errors


@when("a call meets a full disk, and another one comes when there is room")
def _(context: Context) -> None:
    make_provider(context)
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    context.outcomes = []
    with mock.patch.object(enqueue, "add_requests", side_effect=full):
        try:
            context.actor.respond_sync("one")
        except cb.ActorError as error:
            context.outcomes.append(error)
    context.outcomes.append(context.actor.respond_sync("two"))
