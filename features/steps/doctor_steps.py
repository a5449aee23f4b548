"""Steps of `claude-batch doctor`: ledgers in trouble, and a service that differs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import ledgers_on_postgres
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from damage_steps import overwrite
from high_water_steps import marks
from hostile_server import Answer, HostileServer
from staging import KEY
from tables import rule

from claude_batch.providers.service_record import text_format


def ledger_file() -> Path:
    return Path(os.environ["CLAUDE_BATCH_LEDGER"])


def sql(statement: str) -> Callable[[], None]:
    def change() -> None:
        if ledgers_on_postgres.VARIABLE in os.environ:
            ledgers_on_postgres.execute(ledger_file(), statement)
            return
        with closing(sqlite3.connect(ledger_file())) as connection, connection:
            connection.executescript(statement)

    return change


def mark(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        [path] = marks()
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def unreadable() -> None:
    marks()[0].write_text("a letter")


def replaced() -> None:
    copy = ledger_file().with_name("copy.db")
    with closing(sqlite3.connect(ledger_file())) as connection, connection:
        connection.execute("VACUUM INTO ?", [str(copy)])
    copy.replace(ledger_file())


TROUBLES: dict[str, Callable[[], object]] = {
    "its pages are overwritten": lambda: overwrite(ledger_file(), "pages"),
    "its header is overwritten": lambda: overwrite(ledger_file(), "its header is overwritten"),
    "an index of it is gone": sql(
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'ix_runs_digest'"
    ),
    "its file is empty": lambda: ledger_file().write_bytes(b""),
    "it is another program's": sql("DROP TABLE meta"),
    "a later version wrote it": sql("UPDATE meta SET value = 99 WHERE name = 'schema_version'"),
    "an earlier version wrote it": sql("UPDATE meta SET value = 1 WHERE name = 'schema_version'"),
    "its mark counts more": mark(posts=7),
    "its mark is from the future": lambda: mark(written=time.time() + 7200)(),
    "its mark cannot be read": unreadable,
    "its account has no credit": sql("UPDATE workspaces SET halted = 1, halt_reason = 'billing'"),
    "it has lost its tables": sql("ALTER TABLE batches RENAME TO no_batches"),
    "it waits for its recovery": sql("UPDATE workspaces SET behind = 1"),
    "its file is removed": lambda: ledger_file().unlink(),
    "its file is replaced by a copy": replaced,
    "an older copy is written over it": lambda: shutil.copyfile("older.db", ledger_file()),
    "it was moved": sql("INSERT INTO meta (name, value) VALUES ('moved_to', 'elsewhere')"),
}


@when("a ledger has trouble: {trouble}")
def _(context: Context, trouble: str) -> None:
    TROUBLES[trouble]()


@when("a command runs and changes no file: {words}")
def _(context: Context, words: str) -> None:
    def files() -> dict[Path, bytes]:
        found = [path for path in context.tmp.rglob("*") if path.is_file()]
        # Memory that connections share. It is there as long as one of an earlier command is.
        return {path: path.read_bytes() for path in found if not path.name.endswith("-shm")}

    before = files()
    command(context, words)
    assert files() == before, [path for path, data in files().items() if before.get(path) != data]


@rule("the format of a text is")
def _(text: str) -> str:
    return text_format(text)


# A service that differs


def is_called(answer: Answer, call: str) -> bool:
    if call == "early":
        return answer.kind == "results" and answer.status == 404
    return answer.kind == call and answer.status == 200


def changed(value: Any, path: list[str], new: str) -> Any:
    """A JSON value with another field, where it has the object that the field belongs to."""
    name, *inner = path
    if inner:
        if name in value:
            value[name] = changed(value[name], inner, new)
    elif new == "absent":
        del value[name]
    else:
        value[name] = json.loads(new)
    return value


def change(answer: Answer, what: str, new: str) -> None:
    if what == "status":
        answer.status = int(new)
    elif what.startswith("header "):
        answer.headers[what.removeprefix("header ")] = json.loads(new)
    else:
        lines = [json.loads(line) for line in answer.body.splitlines()]
        encoded = [json.dumps(changed(line, what.split("."), new)) for line in lines]
        end = "\n" if answer.body.endswith(b"\n") else ""
        answer.body = ("\n".join(encoded) + end).encode()


@given("a service in between that changes")
def _(context: Context) -> None:
    server = HostileServer(context.api.url)

    changes = [(row["call"], row["what"], row["value"]) for row in context.table]

    def trick(answer: Answer) -> None:
        chosen = [each for each in changes if is_called(answer, each[0])]
        for _, what, new in chosen:
            change(answer, what, new)

    server.trick = trick
    server.stand_before(context)


@then("the API has no batch")
@then("the API has {count:d} batch")
def _(context: Context, count: int = 0) -> None:
    request = urllib.request.Request(
        f"{context.api.url}/v1/messages/batches",
        headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert len(json.load(answer)["data"]) == count


@then('a report "{name}" can be published')
def _(context: Context, name: str) -> None:
    text = Path(name).read_text("utf-8")
    assert "results" in text and "doctor" in text, text
    assert KEY not in text and "127.0.0.1" not in text, text
    ids = re.findall(r"\b(?:msgbatch|msg|req|wrkspc|toolu)_[0-9A-Za-z]\w*", text.replace("\\", ""))
    uuids = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}", text)
    assert not ids and not uuids, (ids, uuids)
