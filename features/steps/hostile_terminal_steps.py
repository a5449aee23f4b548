"""Steps about text that would steer a terminal or a spreadsheet, with real pseudo-terminals."""

from __future__ import annotations

import ast
import csv
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from contextlib import redirect_stderr
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

from behave import given, then, when
from behave.runner import Context
from sqlalchemy import create_engine, text
from staging import KEY

from claude_batch.cli.user_messages import printing_notices

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
EVIL = f"{CLIPBOARD}\x9b2J\u202etxt.exe\u2069\x7f"
LABEL = "\x1b[31mlabel\u2066"
STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _words(context: Context, words: str) -> list[str]:
    named = {
        "LABEL": LABEL,
        "--LABEL": f"--{LABEL}",
        "RUN": getattr(context, "run_id", "RUN"),
        "BADNAME": "bad\udcff.yaml",
    }
    given = [named.get(word, word) for word in words.split()]
    return [sys.executable, "-m", "claude_batch", *given]


@given("a command's file of requests whose keys and prompts hold control characters")
def _(context: Context) -> None:
    context.keys = [f"{n}{EVIL}" for n in range(3)]
    asked = [{"id": key, "prompt": f"Review {EVIL}.py"} for key in context.keys]
    Path("asks.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))


@given("an actor's file whose name is no UTF-8")
def _(context: Context) -> None:
    Path("bad\udcff.yaml").write_text("model: claude-haiku-4-5\n")


@given("a server whose errors hold control characters")
def _(context: Context) -> None:
    context.execute_steps("Given a command's folder")

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            fault = {"type": "authentication_error", "message": f"no such key {EVIL}"}
            body = json.dumps({"type": "error", "error": fault}, ensure_ascii=False).encode()
            self.send_response(401)
            self.send_header("request-id", "req_1")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    context.add_cleanup(thread.join)
    context.add_cleanup(server.server_close)
    context.add_cleanup(server.shutdown)
    os.environ["ANTHROPIC_API_KEY"] = KEY
    os.environ["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["CLAUDE_BATCH_POLL_INTERVAL"] = "50ms"


@when("a command runs on a terminal: {words}")
@when("a command runs on a terminal:")
def _(context: Context, words: str = "") -> None:
    # Such a terminal has no colours or cursor: every control character would be a stranger's.
    _play(context, words, "dumb")


@when("a command runs on a terminal with a cursor: {words}")
def _(context: Context, words: str) -> None:
    _play(context, words, "xterm")


def _play(context: Context, words: str, terminal: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _words(context, words),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": terminal, "COLUMNS": "250"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # how Linux tells that nobody has the terminal open any more
            break
        if not read:
            break
        shown += read
    os.close(ours)
    assert process.wait(timeout=120) is not None
    context.shown = shown.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    if found := re.search(r"run-\w{10}", context.shown):
        context.run_id = found[0]


@when("a command runs in a pipe: {words}")
def _(context: Context, words: str) -> None:
    ended = subprocess.run(_words(context, words), capture_output=True, timeout=120)
    assert b"This is a bug" not in ended.stderr, ended.stderr
    context.piped = ended.stdout.decode("utf-8", "surrogateescape")


@when("a warning for people holds control characters")
def _(context: Context) -> None:
    told = StringIO()
    with redirect_stderr(told), printing_notices():
        log = logging.getLogger("claude_batch.tests")
        log.warning("it says %s", LABEL, extra={"for_people": True})
    context.shown = told.getvalue()


def _not_steered(context: Context) -> None:
    assert "Traceback" not in context.shown, context.shown
    assert "This is a bug" not in context.shown, context.shown
    assert not STEERING.search(context.shown), repr(context.shown)


@then('the terminal was not steered, and shows "{words}"')
def _(context: Context, words: str) -> None:
    _not_steered(context)
    # rich breaks long lines where it likes.
    assert words in context.shown.replace("\n", ""), context.shown


@then("the terminal was not steered, and each line on it is JSON with the key that was asked")
def _(context: Context) -> None:
    _not_steered(context)
    found = [json.loads(line) for line in context.shown.splitlines() if line.startswith("{")]
    assert [each["id"] for each in found] == context.keys, found


@then("the pipe has the keys as they were asked")
def _(context: Context) -> None:
    rows = list(csv.DictReader(StringIO(context.piped, newline="")))
    assert [row["id"] for row in rows] == context.keys, rows


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


@then('the column "{column}" of "{name}" is {values}')
def _(context: Context, column: str, name: str, values: str) -> None:
    with open(name, encoding="utf-8", newline="") as stream:
        found = [row[column] for row in csv.DictReader(stream, strict=True)]
    assert found == ast.literal_eval(values), found
