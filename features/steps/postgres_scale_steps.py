"""Steps that run the SQL of docs/explanation/scale.md on a PostgreSQL server."""

from __future__ import annotations

import json
import re

import postgres_server
import psycopg
import sqlalchemy
from behave import given, then, when
from behave.runner import Context
from pages import page
from tables import rule

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


@rule("the results of requests are looked for in partitions")
def _(context: Context, request: int) -> list[str]:
    sql = f"EXPLAIN (FORMAT json) SELECT raw FROM results WHERE request_seq = {request}"
    ((plan,),) = context.rows.execute(sql).fetchall()
    return sorted(set(re.findall(r'"Relation Name": "(\w+)"', json.dumps(plan))))


@rule("further results are refused")
def _(context: Context, request: int, sending: int, batch: int) -> dict[str, str]:
    try:
        context.rows.execute(
            f"""INSERT INTO results (request_seq, sending, batch_id, outcome, disposition, raw,
                input_tokens, output_tokens, cache_read_tokens, cache_5m_tokens, cache_1h_tokens,
                web_searches)
                VALUES ({request}, {sending}, {batch}, '', '', '', 0, 0, 0, 0, 0, 0)"""
        )
    except psycopg.IntegrityError as error:
        raise ValueError(str(error)) from error
    return {}
