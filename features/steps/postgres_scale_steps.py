"""Steps that run the SQL of docs/explanation/scale.md on a PostgreSQL server."""

from __future__ import annotations

import json

import postgres_server
import psycopg
import sqlalchemy
from behave import given, then, when
from behave.runner import Context
from pages import page

from claude_batch.ledger import schema

TABLES = [schema.workspaces, schema.lanes, schema.batches, schema.params, schema.results]
"""Those that the page's SQL changes, and what they refer to. Of `requests` it changes settings."""


@given("a schema with the tables of a ledger on PostgreSQL, and {count:d} requests with results")
def _(context: Context, count: int) -> None:
    server = postgres_server.shared()
    name = server.create_schema()
    context.add_cleanup(server.drop_schema, name)
    url = server.url(schema=name)
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    schema.metadata.create_all(engine, tables=TABLES)
    engine.dispose()
    server.execute(f"CREATE TABLE {name}.requests (seq bigint PRIMARY KEY)")
    context.rows = psycopg.connect(url, autocommit=True)
    context.add_cleanup(context.rows.close)
    context.rows.execute("INSERT INTO workspaces (id, base_url, epoch) VALUES (1, 'x', 1)")
    context.rows.execute("INSERT INTO lanes VALUES (1, 1, '', '', '')")
    context.rows.execute(
        """INSERT INTO batches (id, lane_id, state, request_count, params_bytes, poll_interval,
           max_poll_interval, created, posts, broken_uploads, fetches)
           VALUES (1, 1, 'ended', 0, 0, 0, 0, 0, 0, 0, 0)"""
    )
    store(context, 0, count - 1)


def store(context: Context, first: int, last: int) -> None:
    numbers = [first, last]
    series = "generate_series(%s::bigint, %s::bigint) number"
    context.rows.execute(f"INSERT INTO params SELECT number, '{{}}' FROM {series}", numbers)
    context.rows.execute(
        f"""INSERT INTO results (request_seq, sending, batch_id, outcome, disposition, raw,
            input_tokens, output_tokens, cache_read_tokens, cache_5m_tokens, cache_1h_tokens,
            web_searches) SELECT number, 1, 1, '', '', '', 0, 0, 0, 0, 0, 0 FROM {series}""",
        numbers,
    )


@when('the SQL of the page is run {which:w} "{word}"')
def _(context: Context, which: str, word: str) -> None:
    blocks = [
        each.code for each in page("docs/explanation/scale.md").blocks if each.language == "sql"
    ]
    first = next(number for number, code in enumerate(blocks) if word in code)
    assert first
    for code in {"before": blocks[:first], "from": blocks[first:]}[which]:
        context.rows.execute(code)


@when("the requests from {first:d} to {last:d} are {done:w}")
def _(context: Context, first: int, last: int, done: str) -> None:
    if done == "stored":
        store(context, first, last)
        return
    assert done == "removed", done
    for table in ("results", "params"):
        context.rows.execute(f"DELETE FROM {table} WHERE request_seq BETWEEN {first} AND {last}")


@then("the tables {names} have {count:d} rows each")
def _(context: Context, names: str, count: int) -> None:
    for table in names.split(", "):
        found = context.rows.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found == (count,), (table, found)


@then("the row of a request is found in one partition")
def _(context: Context) -> None:
    sql = "EXPLAIN (FORMAT json) SELECT raw FROM results WHERE request_seq = 10000003"
    ((plan,),) = context.rows.execute(sql).fetchall()
    words = json.dumps(plan)
    assert "results_10m" in words, words
    assert "results_first" not in words, words


@then("a second result of a sending, and one of no batch, are refused")
def _(context: Context) -> None:
    for row, error in (
        ("10000003, 1, 1", psycopg.errors.UniqueViolation),
        ("10000003, 2, 99", psycopg.errors.ForeignKeyViolation),
    ):
        try:
            context.rows.execute(
                f"""INSERT INTO results (request_seq, sending, batch_id, outcome, disposition, raw,
                    input_tokens, output_tokens, cache_read_tokens, cache_5m_tokens,
                    cache_1h_tokens, web_searches) VALUES ({row}, '', '', '', 0, 0, 0, 0, 0, 0)"""
            )
        except error:
            continue
        raise AssertionError(f"{row} was stored")
