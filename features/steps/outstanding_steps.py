"""Steps about what is outstanding in a ledger with many runs, or one that is being stored."""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import Any

from behave import then, when
from behave.runner import Context
from cli_steps import command, spawn
from sqlalchemy import Engine, event
from staging import until

LINES = 9000


def rows(table: str) -> int:
    connection = sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"], timeout=30)
    try:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    except sqlite3.OperationalError:
        return 0  # the tables are not made yet
    finally:
        connection.close()


def storing(context: Context, words: str) -> None:
    """Start a command that reads a pipe which does not end, and wait until it has stored some."""
    os.mkfifo("pipe.jsonl")
    context.fed = threading.Event()
    context.process = spawn(context, words)

    def feed() -> None:
        try:
            with open("pipe.jsonl", "w") as pipe:
                pipe.writelines(f'"prompt {n}"\n' for n in range(1, LINES + 1))
                pipe.flush()
                context.fed.wait(60)
        except BrokenPipeError:
            pass

    feeder = threading.Thread(target=feed)
    feeder.start()

    def end() -> None:
        context.fed.set()
        feeder.join(20)

    context.add_cleanup(end)
    until(lambda: rows("requests") >= 4000)


@when("a command's process stores: {words}")
def _(context: Context, words: str) -> None:
    storing(context, words)


# What the ledger is asked


@when("a command's ledger has {count:d} more runs, which are finished")
def _(context: Context, count: int) -> None:
    """Copies of the one that it has, each with an answer and its output written."""
    connection = sqlite3.connect(os.environ["CLAUDE_BATCH_LEDGER"], timeout=30)
    with connection:
        [run] = connection.execute("SELECT * FROM runs WHERE id NOT LIKE 'copy%'").fetchall()
        [request] = connection.execute("SELECT * FROM requests WHERE seq = 1").fetchall()
        names = {
            table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for table in ("runs", "requests")
        }
        first = connection.execute("SELECT max(seq) FROM requests").fetchone()[0] + 1
        for seq in range(first, first + count):
            ended = dict(zip(names["requests"], request, strict=True)) | {
                "seq": seq, "id": f"{seq:032}", "run_id": f"copy{seq}", "state": "succeeded",
                "finished": 1,
            }  # fmt: skip
            copy = dict(zip(names["runs"], run, strict=True)) | {
                "id": f"copy{seq}", "digest": None, "delivered": 1.0
            }  # fmt: skip
            for table, values in (("runs", copy), ("requests", ended)):
                marks = ", ".join("?" * len(values))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", list(values.values()))
    connection.close()


@when("a command counts its questions to the ledger: {words}")
def _(context: Context, words: str) -> None:
    """Those of the thread that the command runs on: the engine's own come as time passes."""
    asked: list[str] = []
    thread = threading.get_ident()

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.get_ident() == thread and not statement.startswith("PRAGMA"):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        command(context, words)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    context.counted = [*getattr(context, "counted", []), asked]


@then("the command has asked the ledger as often both times, and exits with {code:d}")
def _(context: Context, code: int) -> None:
    few, many = context.counted
    assert few, "nothing was counted"
    assert few == many, (len(few), len(many))
    assert context.ended.exit_code == code, context.ended.output
