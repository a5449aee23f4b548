"""Steps of uploaded files: the sandbox's, and those of runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import anthropic
import programs
from behave import given, then, use_step_matcher, when
from behave.runner import Context
from cli_steps import command
from engine_steps import attempt
from event_steps import keep_log
from meanwhile_steps import at_the_point
from sandbox_steps import MODEL, VERSION, call, create, end, results, sdk
from sqlalchemy import func, insert, select, update
from staging import KEY, QUICK, ledger_values, make_provider, until
from tables import rule

import claude_batch as cb
from claude_batch.core.errors import LedgerError
from claude_batch.ledger import schema, uploaded_files
from claude_batch.ledger.schema import files as file_table
from claude_batch.ledger.schema import workspaces
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.calls import CallStore
from claude_batch.providers.document_upload import is_uploaded

use_step_matcher("parse")

http_call = call
# A rule names its column `call`.


@when('the SDK uploads "{name}" of type "{kind}" with "{text}"')
def _(context: Context, name: str, kind: str, text: str) -> None:
    context.file = sdk(context).files.upload(file=(name, text.encode(), kind))


@when("the SDK deletes the file")
def _(context: Context) -> None:
    assert sdk(context).files.delete(context.file.id).id == context.file.id


@then("the SDK lists {count:d} files that it uploads by pages of {limit:d}, newest first")
def _(context: Context, count: int, limit: int) -> None:
    for number in range(count):
        sdk(context).files.upload(file=(f"{number}.txt", b"x", "text/plain"))
    names = [each.filename for each in sdk(context).files.list(limit=limit)]
    assert names == [f"{number}.txt" for number in reversed(range(count))], names


def about(file_id: str, kind: str = "document", *, cited: bool = False) -> dict[str, Any]:
    block: dict[str, Any] = {"type": kind, "source": {"type": "file", "file_id": file_id}}
    if cited:
        block |= {"title": "Notes", "citations": {"enabled": True}}
    content = [block, {"type": "text", "text": "How is it?"}]
    return {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": content}],
    }


@when("a batch about the file is processed, cited")
def _(context: Context) -> None:
    create(context, [{"custom_id": "a", "params": about(context.file.id, cited=True)}])
    end(context)
    call(context, "GET", "/v1/messages/batches")  # whoever looks first has it processed


@then('its answer cites "{text}" of the file')
def _(context: Context, text: str) -> None:
    message = results(context)["a"]["message"]
    [citation] = [c for block in message["content"] for c in block.get("citations") or []]
    assert (citation["cited_text"], citation["file_id"]) == (text, context.file.id), citation


@rule("requests with an uploaded file as their source are answered")
def _(
    context: Context, file: str, mime_type: str, id: str | None, block: str, inside: str | None
) -> dict[str, str]:
    uploaded = sdk(context).files.upload(file=(file, b"x", mime_type))
    params = about(id or uploaded.id, block)
    if inside:
        content = params["messages"][0]["content"]
        call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
        result = {"type": inside, "tool_use_id": "t", "content": content}
        params["messages"] = [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    create(context, [{"custom_id": "a", "params": params}])
    return results(context)["a"]["error"]["error"]


@rule("calls about the sandbox's files are answered")
def _(
    context: Context,
    call: str,
    ids: int = 0,
    key: str = "sk-test",
    version: str = VERSION,
    beta: str = "(none)",
) -> dict[str, object]:
    """`ids`: so many of them are asked for in the query."""
    method, _, path = call.partition(" ")
    if "file" in context:
        path = path.replace("{file}", context.file.id)
    if ids:
        path += "?" + "&".join(f"ids={number}" for number in range(ids))
    headers = {"x-api-key": key, "anthropic-version": version, "anthropic-beta": beta}
    http_call(context, method, path, headers=headers)
    return {"status": context.sandbox_answer.status_code, "says": context.sandbox_answer.text}


@rule("an upload to the sandbox is answered")
def _(context: Context, type: str, body: str) -> dict[str, object]:
    sent = body.replace("~", "\r\n").encode()
    call(context, "POST", "/v1/files", sent, headers={"content-type": type})
    return {"status": context.sandbox_answer.status_code, "says": context.sandbox_answer.text}


# The files of runs


@given('a document "{name}" of {size:d} bytes')
@when('a document "{name}" of {size:d} bytes')
def _(context: Context, name: str, size: int) -> None:
    text = "It is a long way to the harbour. "
    (context.tmp / name).write_text((text * (size // len(text) + 1))[:size])
    keep_log(context)


@rule("a document is uploaded or travels inside,")
def _(size: int, uses: int) -> dict[str, str]:
    return {"which": "uploaded" if is_uploaded(size, uses) else "inside"}


def questions(context: Context, count: int, name: str) -> list[cb.ActorRequest]:
    path = context.tmp / name
    return [
        cb.ActorRequest(f"Question {n}?", documents=[path], citations=True, key=f"{n}")
        for n in range(count)
    ]


def ask(context: Context, count: int, name: str) -> None:
    run = context.actor.submit_sync(questions(context, count, name))
    context.runs = [*getattr(context, "runs", []), run.id]
    context.answers = [result.unwrap() for result in run.results_sync()]


@when('{count:d} requests about "{name}" are asked, cited')
@when('{count:d} requests about "{name}" are asked {how}, cited')
def _(context: Context, count: int, name: str, how: str = "") -> None:
    if not how:
        ask(context, count, name)
        return

    async def work() -> None:
        found = context.actor.respond_all(questions(context, count, name))
        context.answers = [result.unwrap() async for result in found]

    asyncio.run(work())


@when('{count:d} requests about "{name}" are stored')
def _(context: Context, count: int, name: str) -> None:
    configuration = context.actor.configuration
    context.run = context.provider.store(configuration, questions(context, count, name))


def in_calls(context: Context, asked: Sequence[cb.ActorRequest]) -> None:
    async def work() -> list[Any]:
        waiting = map(context.actor.respond, asked)
        return await asyncio.gather(*waiting, return_exceptions=True)

    context.outcomes = asyncio.run(work())
    context.answers = [each for each in context.outcomes if isinstance(each, cb.ActorResponse)]


def _without_keys(context: Context, asked: list[cb.ActorRequest]) -> None:
    in_calls(context, [replace(each, key=None) for each in asked])


def _in_the_other_order(context: Context, asked: list[cb.ActorRequest]) -> None:
    # The first call of a process carries the document inside: now it is another one.
    for each in reversed(asked):
        context.actor.respond_sync(each)
    in_calls(context, asked)


def _looking_for_answers(context: Context, asked: list[cb.ActorRequest]) -> None:
    context.provider.close()
    make_provider(context, reuse=True)
    _without_keys(context, asked)


CALLING: dict[str, Callable[[Context, list[cb.ActorRequest]], None]] = {
    "at the same time": _without_keys,
    "at the same time, with an answer looked for": _looking_for_answers,
    "with keys": in_calls,
    "with keys, in the other order": _in_the_other_order,
}


@when('{count:d} calls about "{name}" are made, {how}')
def _(context: Context, count: int, name: str, how: str) -> None:
    CALLING[how](context, questions(context, count, name))


DIES = """
import asyncio, os, sys
from pathlib import Path

import claude_batch as cb
from claude_batch.core import crash_points
from claude_batch.core.crash_points import CrashPoint

count, path = int(sys.argv[1]), Path(sys.argv[2])
stored = 0

def die(point):
    global stored
    stored += point is CrashPoint.AFTER_CALLS_STORED
    if stored == count:
        os._exit(77)

crash_points.on_reach = die
provider = cb.ClaudeBatchProvider(linger=3, poll_interval=0.05)
configuration = cb.ActorConfiguration(
    name="tests/asker", provider="anthropic", model=sys.argv[3], batch_processing=True
)
actor = cb.Actor(configuration, provider)

async def ask() -> None:
    calls = []
    for number in range(count):
        asked = cb.ActorRequest(f"Question {number}?", documents=[path], citations=True)
        calls.append(asyncio.ensure_future(actor.respond(asked)))
        while stored < number + 1:
            await asyncio.sleep(0.01)
    # The engine's thread ends the process.
    await asyncio.wait(calls)

asyncio.run(ask())
"""


@when('a process makes {count:d} calls about "{name}", and is killed once they are stored')
def _(context: Context, count: int, name: str) -> None:
    context.provider.close()
    done = programs.run(DIES, str(count), str(context.tmp / name), MODEL)
    assert done.returncode == 77, done
    make_provider(context)


@when('a call about "{name}" is made while the ledger fails')
def _(context: Context, name: str) -> None:
    def fail(*_: object) -> None:
        raise LedgerError("the disk is gone")

    with mock.patch.object(CallStore, "run_of", fail):
        [asked] = questions(context, 1, name)
        attempt(context, lambda: context.actor.respond_sync(asked))


def sent(context: Context, route: str) -> list[dict[str, Any]]:
    return [each for each in context.api.log() if each["route"] == route]


@then("the API has {count:d} file, uploaded once")
def _(context: Context, count: int) -> None:
    found = list(anthropic.Anthropic(base_url=context.api.url, api_key=KEY).files.list())
    assert len(found) == count, found
    uploads = [each for each in sent(context, "upload_file") if each["status"] == 200]
    assert len(uploads) == count, uploads


@then("{count:d} uploads were made")
def _(context: Context, count: int) -> None:
    assert len(sent(context, "upload_file")) == count, sent(context, "upload_file")


@then("less than {count:d} MB was posted as batches")
def _(context: Context, count: int) -> None:
    posted = sum(int(each["headers"]["content-length"]) for each in sent(context, "create"))
    assert 600_000 < posted < count * 1_000_000, posted


@then('all {count:d} answers cite the beginning of "{name}", {filed:d} of them from the file')
def _(context: Context, count: int, name: str, filed: int) -> None:
    cited = [answer.citations[0] for answer in context.answers]
    assert len(cited) == count
    text = (context.tmp / name).read_text()
    assert all(text.startswith(each.text) and each.title == name for each in cited), cited
    assert sum(each.file_id is not None for each in cited) == filed, cited


@when("the provider is made anew")
def _(context: Context) -> None:
    context.provider.close()
    configuration = context.actor.configuration
    make_provider(context)
    context.actor = cb.Actor(configuration, context.provider)


@when("somebody deletes {what} at the API")
def _(context: Context, what: str) -> None:
    client = anthropic.Anthropic(base_url=context.api.url, api_key=KEY)
    if what == "the files":
        for each in client.files.list():
            client.files.delete(each.id)
        return
    batches = list(client.messages.batches.list())
    which = {"the oldest batch": -1, "the newest batch": 0}[what]
    client.messages.batches.delete(batches[which].id)


@when("a day has passed since the files were last looked for")
def _(context: Context) -> None:
    ledger = Ledger(context.provider.ledger)
    with ledger.write() as tx:
        tx.execute(update(file_table).values(checked=file_table.c.checked - 86_400.0))
    ledger.close()


@then("the file stays remembered when another process has uploaded the same meanwhile")
def _(context: Context) -> None:
    ledger = Ledger(context.provider.ledger)
    with ledger.write() as tx:
        row = tx.execute(select(file_table)).one()
        known = uploaded_files.remember_file(
            tx, row.workspace_id, row.digest, "file_second",
            media_type="text/plain", size=1, tokens=1, now=time.time(),
        )  # fmt: skip
    ledger.close()
    assert known.file_id == row.file_id, known
    assert ledger_values(select(file_table.c.file_id)) == [row.file_id]


@then("files of a workspace follow it, but for those that are there already")
def _(context: Context) -> None:
    ledger = Ledger(str(context.tmp / "other.db"))
    with ledger.write() as tx:
        for number in (1, 2):
            tx.execute(insert(workspaces).values(id=number, base_url="http://x/", epoch=0))
        for place, digest in ((1, "a"), (1, "b"), (2, "b")):
            uploaded_files.remember_file(
                tx, place, digest, f"file_{place}{digest}",
                media_type="text/plain", size=1, tokens=1, now=1.0,
            )  # fmt: skip
        uploaded_files.move_files(tx, 1, 2)
        query = select(file_table.c.workspace_id, func.count()).group_by(file_table.c.workspace_id)
        query = query.order_by(file_table.c.workspace_id)
        assert [tuple(row) for row in tx.execute(query)] == [(1, 1), (2, 2)]
        assert not uploaded_files.use_file(tx, "run", 99)
    ledger.close()


# Pruning


@then(
    "the ledger {holds} {run_count:d} runs, {request_count:d} requests, {param_count:d} params, "
    "{result_count:d} results and {file_count:d} files"
)
def _(
    _: Context,
    holds: str,
    run_count: int,
    request_count: int,
    param_count: int,
    result_count: int,
    file_count: int,
) -> None:
    tables = (
        schema.runs, schema.requests, schema.params, schema.results, file_table, schema.run_files,
    )  # fmt: skip
    links = run_count * file_count
    wanted = [run_count, request_count, param_count, result_count, file_count, links]

    def counted() -> list[int]:
        return [ledger_values(select(func.count()).select_from(table))[0] for table in tables]

    if holds == "comes to hold":
        until(lambda: counted() == wanted)
    assert counted() == wanted, counted()


@then("the API has no files")
def _(context: Context) -> None:
    assert not list(anthropic.Anthropic(base_url=context.api.url, api_key=KEY).files.list())


@when("the oldest run is pruned by its id")
def _(context: Context) -> None:
    query = select(schema.runs.c.id).order_by(schema.runs.c.created)
    words = f"ledger prune {ledger_values(query)[0]}"
    context.execute_steps(f"When a command runs: {words}")


@when("another provider prunes everything at {point} while a command runs: {words}")
def _(context: Context, point: str, words: str) -> None:
    def prune() -> None:
        with cb.ClaudeBatchProvider(**QUICK) as provider:
            context.pruned = provider.prune(older_than=0)

    at_the_point(context, point, prune)
    command(context, words)


@then("the other provider has removed {count:d} run")
def _(context: Context, count: int) -> None:
    assert len(context.pruned.runs) == count, context.pruned


@then(
    "pruning from Python what is older than {seconds:d} seconds removes nothing, until it is "
    "marked as delivered"
)
def _(context: Context, seconds: int) -> None:
    prune = context.provider.prune
    assert prune(older_than=seconds) == cb.Pruned(runs=[], requests=0, size=0, files=0, kept={})
    [run_id] = context.runs
    context.provider.open_run(run_id).mark_delivered()
    assert prune(older_than=seconds, dry_run=True).runs == [run_id]
    pruned = prune(older_than=seconds)
    assert (pruned.runs, pruned.requests, pruned.files) == ([run_id], 3, 1), pruned
    assert pruned.size > 600_000 and not pruned.reason, pruned
    try:
        context.provider.open_run(run_id).status()
    except cb.RunNotFoundError:
        return
    raise AssertionError("a pruned run can be opened")


MADE = {
    "unfinished": update(schema.requests)
    .where(schema.requests.c.position == 1)
    .values(finished=None, state="packed"),
    "unwritten": update(schema.runs).values(delivered=None),
    "lost": update(schema.requests).where(schema.requests.c.position == 1).values(state="lost"),
    "unknown": update(schema.batches).values(state="unknown"),
    "unresolved": update(schema.batches).values(state="unresolved"),
    "half stored": update(schema.runs).values(stored=None, process=None),
    "overdue": update(schema.runs).values(
        deadline=schema.runs.c.created, created=schema.runs.c.created - 3600.0
    ),
    "free to be sent": update(workspaces).values(wait_until=None),
    "single calls": update(schema.runs).values(kind="calls"),
}


@when("the run is made {what}")
def _(context: Context, what: str) -> None:
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        tx.execute(MADE[what])
    ledger.close()
