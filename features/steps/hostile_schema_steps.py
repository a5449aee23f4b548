"""Steps about JSON schemas that mean harm, with a server that none of them may reach."""

from __future__ import annotations

import json
from typing import Any

from behave import given, then
from behave.runner import Context
from event_steps import keep_log
from hostile_server import HostileServer
from hostile_yaml_steps import run_bounded
from tables import rule

import claude_batch as cb
from claude_batch.wire.conversation import schema_problem

CHAIN = 400
"""Definitions, and levels of an answer, one below the other."""


@given("a server that counts its requests")
def _(context: Context) -> None:
    server = context.counting = HostileServer("http://127.0.0.1:9")
    server.start()
    context.add_cleanup(server.stop)
    context.server = server.url


@then("the server that counts has seen no request")
def _(context: Context) -> None:
    assert context.counting.paths == [], context.counting.paths


def _doubling(times: int) -> dict[str, Any]:
    """Definitions, each of which refers to the one before it twice."""
    twice = [[{"$ref": f"#/$defs/a{n - 1}"}] * 2 for n in range(1, times)]
    names = {f"a{n}": {"allOf": branches} for n, branches in enumerate(twice, 1)}
    definitions = {"a0": {"type": "object"}, **names}
    return {"type": "object", "then": {"$ref": f"#/$defs/a{times - 1}"}, "$defs": definitions}


def _levels(count: int) -> dict[str, Any]:
    """Definitions of which the last one leads to all others, level by level."""
    refs = {f"a{n}": {"items": {"$ref": f"#/$defs/a{n - 1}"}} for n in range(count, 0, -1)}
    return {**refs, "a0": {"type": "object"}}


def _schema(context: Context, words: str) -> Any:
    if words == "DOUBLING":
        return _doubling(20)
    if words == "DEEP":
        return {"type": "object", "$defs": _levels(100)}
    if words == "CHAIN":
        links = [f"#/$defs/a{n}" for n in range(CHAIN)]
        names = {f"a{n}": {"properties": {"a": {"$ref": to}}} for n, to in enumerate(links, 1)}
        return {"$defs": {"a0": {"type": "object"}, **names}, "$ref": f"#/$defs/a{CHAIN}"}
    return json.loads(words.replace("SERVER", _server(context)))


def _server(context: Context) -> str:
    return getattr(context, "server", "SERVER")


@rule("actors with these response formats are loaded")
def _(context: Context, schema: str, what: str = "") -> dict[str, bool]:
    path = context.tmp / "actor.yaml"
    # In YAML JSON is YAML.
    written = json.dumps({"type": "json_schema", "schema": _schema(context, schema)})
    path.write_text(f"# line 1\nmodel: claude-haiku-4-5\nresponse_format: {written}\n")
    try:
        cb.ActorLoader.load(path)
    except cb.ActorConfigurationError as error:
        raise ValueError(str(error).replace(_server(context), "SERVER")) from error
    return {}


def _asked(schema: Any) -> bytes:
    wanted = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    return json.dumps(wanted).encode()


_JUDGES = """
import json, sys
from claude_batch.wire.conversation import schema_problem
params, message = sys.argv[1:]
print(schema_problem(params.encode(), message.encode()))
"""


@rule("answers are judged by patterns in a bounded process")
def _(pattern: str, answer: str) -> dict[str, str]:
    schema = {"type": "string", "pattern": pattern}
    message = {"content": [{"type": "text", "text": json.dumps(answer)}]}
    ended = run_bounded(_JUDGES, _asked(schema).decode(), json.dumps(message))
    assert ended.returncode == 0, (pattern, ended.returncode, ended.stderr)
    return {"verdict": ended.stdout.strip()}


@rule("answers to stored params with these schemas are taken as they are")
def _(context: Context, schema: str, what: str) -> dict[str, object]:
    keep_log(context)
    params = _asked(_schema(context, schema))
    text = '{"a": ' * CHAIN + "{}" + "}" * CHAIN if schema == "CHAIN" else '{"a": {"aaa": 1}}'
    message = json.dumps({"content": [{"type": "text", "text": text}]})
    taken = all(schema_problem(params, message.encode()) is None for _ in range(2))
    return {"taken": taken, "logged": "\n".join(each.getMessage() for each in context.kept)}
