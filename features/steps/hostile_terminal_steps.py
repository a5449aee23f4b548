"""Steps about text that would steer a terminal or a spreadsheet, with real pseudo-terminals."""

from __future__ import annotations

import ast
import contextlib
import csv
import logging
import os
import pty
import re
import threading
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import programs
from behave import then, when
from behave.runner import Context
from sqlalchemy import create_engine, text
from tables import rule

from claude_batch.cli.user_messages import printing_notices

_COMMAND = "from claude_batch.cli import main; main()"
LABEL = "\x1b[31mlabel\u2066"
STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _words(context: Context, words: str) -> list[str]:
    named = {
        "LABEL": LABEL,
        "--LABEL": f"--{LABEL}",
        "RUN": getattr(context, "run_id", "RUN"),
        "BADNAME": "bad\udcff.yaml",
    }
    return [named.get(word, word) for word in words.split()]


@when("a command runs on a terminal: {words}")
@when("a command runs on a terminal:")
def _(context: Context, words: str = "") -> None:
    # Such a terminal has no colours or cursor: every control character would be a stranger's.
    _play(context, words, "dumb")


@when("a command runs on a terminal with a cursor: {words}")
def _(context: Context, words: str) -> None:
    _play(context, words, "xterm")


def _play(context: Context, words: str, kind: str) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        # Linux raises an error once nobody has the terminal open any more.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    env = {"COLUMNS": "250", **os.environ, "TERM": kind}
    terminal = os.ttyname(theirs)
    try:
        programs.run(_COMMAND, *_words(context, words), env=env, timeout=120, terminal=terminal)
    finally:
        os.close(theirs)
        reader.join(20)
        os.close(ours)
    context.shown = b"".join(shown).decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    if found := re.search(r"run-\w{10}", context.shown):
        context.run_id = found[0]


@when("a command runs in a pipe: {words}")
def _(context: Context, words: str) -> None:
    ended = programs.run(_COMMAND, *_words(context, words), timeout=120)
    assert "This is a bug" not in ended.stderr, ended.stderr
    context.piped = ended.stdout


@rule("a warning for people is printed")
def _(warning: str) -> dict[str, object]:
    told = StringIO()
    with redirect_stderr(told), printing_notices():
        log = logging.getLogger("claude_batch.tests")
        held = warning.encode().decode("unicode_escape")
        log.warning("it says %s", held, extra={"for_people": True})
    return {"line": told.getvalue(), "steers": bool(STEERING.search(told.getvalue()))}


@then('the terminal shows "{words}"')
def _(context: Context, words: str) -> None:
    assert words in context.shown.replace("\n", ""), ascii(context.shown)


@then('the terminal was not steered, and shows "{words}"')
def _(context: Context, words: str) -> None:
    assert "Traceback" not in context.shown, context.shown
    assert "This is a bug" not in context.shown, context.shown
    assert not STEERING.search(context.shown), repr(context.shown)
    # rich breaks long lines where it likes.
    assert words in context.shown.replace("\n", ""), context.shown


@then('the pipe holds "{words}"')
def _(context: Context, words: str) -> None:
    assert words in context.piped, context.piped


@when('the ids in the ledger become "{name}"')
def _(context: Context, name: str) -> None:
    engine = create_engine(f"sqlite:///{os.environ['CLAUDE_BATCH_LEDGER']}")
    with engine.begin() as connection:
        for table, column in (
            ("runs", "id"),
            ("requests", "run_id"),
            ("batch_runs", "run_id"),
            ("batches", "remote_id"),
        ):
            connection.execute(text(f"UPDATE {table} SET {column} = :name"), {"name": name})
    engine.dispose()


@then('the column "{column}" of the pipe is {values}')
@then('the column "{column}" of "{name}" is {values}')
def _(context: Context, column: str, values: str, name: str = "") -> None:
    text = Path(name).read_bytes().decode() if name else context.piped
    found = [row[column] for row in csv.DictReader(StringIO(text, newline=""), strict=True)]
    assert found == ast.literal_eval(values), found
