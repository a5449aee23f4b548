"""The ledger that a storm leaves, read with SQL alone: a witness, not a part of what is tried."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from hashlib import sha256
from pathlib import Path

from storm_verdict import STRANGER, Json


def read_ledger(path: Path) -> Json:
    """The rows that the verdict asks for."""
    if not path.exists():
        empty = ("requests", "results", "batches", "candidates", "looked_for", "runs", "tool_calls")
        return {name: [] for name in empty} | {"foreign_lines": 0, "accounted": 0}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row

        def rows(query: str) -> list[Json]:
            return [dict(row) for row in connection.execute(query)]

        requests = rows(
            "SELECT r.id, r.state, r.key, r.attempts, r.sendings, b.remote_id, p.body, runs.stored "
            "FROM requests r JOIN params p ON p.request_seq = r.seq "
            "JOIN runs ON runs.id = r.run_id LEFT JOIN batches b ON b.id = r.batch_id"
        )
        for row in requests:
            params = json.loads(row.pop("body"))
            row["turns"] = _turns(params)
            row["sha256"] = row["turns"][-1]
            content = params["messages"][0]["content"]
            row["prompt"] = content if isinstance(content, str) else content[0]["text"]
        return {
            "requests": requests,
            "results": rows(
                "SELECT r.id AS request, s.sending, s.outcome, s.disposition, s.error_type "
                "FROM results s JOIN requests r ON r.seq = s.request_seq"
            ),
            "batches": rows("SELECT id, remote_id, state, adopted, silent FROM batches"),
            "tool_calls": rows(
                "SELECT r.id AS request, c.sending, c.tool_use_id, c.name, c.process, c.started, "
                "c.finished, CAST(c.output AS TEXT) AS output FROM tool_calls c "
                "JOIN requests r ON r.seq = c.request_seq"
            ),
            "candidates": [row["remote_id"] for row in rows("SELECT remote_id FROM candidates")],
            # Those that may be the batch in question. A foreign one may be another sending of ours,
            # which has not looked for it yet.
            "looked_for": [
                row["remote_id"]
                for row in rows("SELECT remote_id FROM candidates WHERE state != 'foreign'")
            ],
            "runs": [row["id"] for row in rows("SELECT id FROM runs WHERE kind = 'run' "
                                               "AND stored IS NOT NULL")],
            # What is reserved or spent of a budget in the end.
            "accounted": rows(
                "SELECT coalesce(sum(reserved + spent + doubt), 0) AS found FROM charges"
            )[0]["found"],
            "foreign_lines": rows(
                "SELECT (SELECT count(*) FROM strange_lines WHERE instr(raw, '"
                f"{STRANGER}') > 0) + (SELECT count(*) FROM results WHERE instr(raw, "
                f"'{STRANGER}') > 0) AS found"
            )[0]["found"],
        }  # fmt: skip


def _turns(params: Json) -> list[str]:
    """Digests of the params of each turn of a conversation: each begins with the one before it."""
    messages = params["messages"]
    digests: list[str] = []
    for length, message in enumerate(messages, 1):
        blocks = message["content"] if message["role"] == "assistant" else []
        calls = [block for block in blocks if block["type"] == "tool_use"]
        # After a call its result follows: until then there was nothing to send.
        if not calls:
            turn = {**params, "messages": messages[:length]}
            text = json.dumps(turn, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            digests.append(sha256(text.encode()).hexdigest())
    return digests


def dump_ledger(path: Path) -> str:
    """Every row of the ledger as text, blobs shortened."""
    told: list[str] = []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            cursor = connection.execute(f"SELECT * FROM {table}")
            told.append(f"── {table}: {', '.join(column[0] for column in cursor.description)}")
            told += [
                ", ".join(repr(v[:80] if isinstance(v, bytes | str) else v) for v in row)
                for row in cursor
            ]
    return "\n".join(told) + "\n"
