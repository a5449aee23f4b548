"""Steps of reports in Python: progress, estimates, and results as files."""

from __future__ import annotations

import asyncio
import builtins
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import shapes
from behave import given, then, when
from behave.runner import Context
from event_steps import keep_log
from staging import make_provider
from tables import equals, rule

import claude_batch as cb
from claude_batch.providers.progress import Reports, check_progress

Ask = Callable[[cb.Actor, list[str], Any], list[cb.ActorResult]]


# Progress


def _submitted(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    async def ask() -> list[cb.ActorResult]:
        run = await actor.submit(prompts)
        await run.wait(progress=progress)
        return [result async for result in run.results()]

    return asyncio.run(ask())


def _submitted_sync(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    run = actor.submit_sync(prompts)
    run.wait_sync(progress=progress)
    return list(run.results_sync())


def _all(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    async def ask() -> list[cb.ActorResult]:
        return [result async for result in actor.respond_all(prompts, progress=progress)]

    return asyncio.run(ask())


def _all_sync(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    return list(actor.respond_all_sync(prompts, progress=progress))


def _block(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    async def ask() -> list[cb.ActorResult]:
        async with actor.run(prompts, progress=progress) as run:
            return [result async for result in run]

    return asyncio.run(ask())


def _block_sync(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    with actor.run(prompts, progress=progress) as run:
        return list(run)


WAYS: dict[str, Ask] = {
    "submit and wait": _submitted,
    "submit_sync and wait_sync": _submitted_sync,
    "respond_all": _all,
    "respond_all_sync": _all_sync,
    "an `async with` block": _block,
    "a `with` block": _block_sync,
}


class _Reported:
    """A function for progress: it keeps what it is given, and when; it may fail."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[cb.Progress] = []
        self._error = error

    def __call__(self, progress: cb.Progress) -> None:
        self.calls.append(progress)
        if self._error is not None:
            raise self._error


@when("these prompts are asked with progress, by {way}")
def _(context: Context, way: str) -> None:
    context.reported = _Reported()
    prompts = [row["prompt"] for row in context.table]
    context.results = WAYS[way](context.actor, prompts, context.reported)


@when("{count:d} prompts are asked with progress that fails, by {way}")
def _(context: Context, count: int, way: str) -> None:
    keep_log(context)
    context.reported = _Reported(ZeroDivisionError("a fault of the caller's"))
    prompts = [f"prompt {n}" for n in range(count)]
    context.results = WAYS[way](context.actor, prompts, context.reported)


@when("the progress of {count:d} prompts is left at the first result")
def _(context: Context, count: int) -> None:
    context.reported = _Reported()
    prompts = [f"prompt {n}" for n in range(count)]

    async def ask() -> None:
        with context.actor.run(prompts, progress=context.reported) as context.run:
            async for _ in context.run:
                context.reported_before = len(context.reported.calls)
                break

    asyncio.run(ask())


@then("progress is not reported after that")
def _(context: Context) -> None:
    assert len(context.reported.calls) == context.reported_before, context.reported.calls


@then("progress was reported first at 0.0 and last at 1.0")
def _(context: Context) -> None:
    calls = context.reported.calls
    assert calls[0].done == 0.0 and calls[-1].done == 1.0, calls
    assert [progress.done for progress in calls].count(1.0) <= 2, calls


@then("progress was reported {count:d} times")
@then("progress was reported {count:d} time")
def _(context: Context, count: int) -> None:
    assert len(context.reported.calls) == count, context.reported.calls


@then("progress was reported last with")
def _(context: Context) -> None:
    _compare(context, context.reported.calls[-1])


def _compare(context: Context, found: object) -> None:
    for row in context.table:
        value = getattr(found, row["field"])
        assert equals(value, row["value"]), (row["field"], value)


@then("the run was expected to cost something, and in the end what it has cost")
def _(context: Context) -> None:
    first, last = context.reported.calls[0], context.reported.calls[-1]
    assert first.cost == 0 and first.expected_cost and first.expected_cost > 0, first
    assert (
        last.cost
        == last.expected_cost
        == sum(result.response.cost for result in context.results if result.response)
    ), last
    assert json.loads(json.dumps(last.to_dict()))["expected_cost_usd"] == last.cost / 1e9


@rule("progress is due")
def _(what: str, looks_at: str, each_takes: float) -> dict[str, str]:
    reports = Reports(print)
    due: list[str] = []
    for version, look in enumerate(looks_at.split(", ")):
        at, _, same = look.partition(" ")
        with mock.patch("time.monotonic", lambda at=at: 1000.0 + float(at)):
            if reports.is_due(0 if same else version):
                due.append(at)
                reports.rest(each_takes)
    return {"due_at": ", ".join(due)}


@rule("progress functions are checked")
def _(progress: str) -> dict[str, Any]:
    async def awaited(_: cb.Progress) -> None: ...

    values = {"print": print, "5": 5, "async def": awaited, "True": True, "None": None}
    check_progress(values[progress])
    return {}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Notebook:
    """What a notebook's cell has shown: the first, and each that replaced it."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def display(self, what: Any, *, display_id: bool) -> _Notebook:
        assert display_id
        self.shown.append(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what)


class ZMQInteractiveShell:
    """A shell with the name of the one that runs in notebooks."""


def _shown(context: Context, where: str, count: int) -> str:
    prompts = [f"prompt {n}" for n in range(count)]
    errors = _Terminal() if where == "on a terminal" else io.StringIO()
    environment = {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    with redirect_stderr(errors), mock.patch.dict(os.environ, environment):
        if where != "in a notebook":
            WAYS[context.way](context.actor, prompts, True)
            return errors.getvalue()
        cell = _Notebook()
        display = types.SimpleNamespace(display=cell.display)
        modules = {"IPython": types.ModuleType("IPython"), "IPython.display": display}
        with (
            mock.patch.dict(sys.modules, modules),
            mock.patch.object(builtins, "get_ipython", ZMQInteractiveShell, create=True),
        ):
            WAYS[context.way](context.actor, prompts, True)
        bundles = [what._repr_mimebundle_((), ()) for what in cell.shown]
        assert all(each["text/html"].startswith("<pre") for each in bundles), bundles
        return "".join(each["text/plain"] for each in bundles)


@when("{count:d} prompts are asked with the bar {where}, by {way}")
def _(context: Context, count: int, where: str, way: str) -> None:
    context.way = way
    context.drawn = _shown(context, where, count)


@then('the bar says "{words}" and then "{later}"')
def _(context: Context, words: str, later: str) -> None:
    assert words in context.drawn, context.drawn
    assert later in context.drawn.rpartition(words)[2], context.drawn


# Estimates


@when("{count:d} requests of {size:d} bytes are estimated, {how}")
def _(context: Context, count: int, size: int, how: str) -> None:
    prompts = ["x" * size] * count

    async def many() -> Any:
        for prompt in prompts:
            yield prompt

    async def ask() -> cb.Estimate:
        if "synchronously" in how:
            return context.actor.estimate_sync(prompts, offline="offline" in how)
        given = many() if "from an async iterable" in how else prompts
        return await context.actor.estimate(given, offline="offline" in how)

    context.error = None
    try:
        context.estimate = asyncio.run(ask())
    except cb.ActorError as error:
        context.error = error


@given('a command\'s file "{name}" of {count:d} prompts of {size:d} bytes')
def _(context: Context, name: str, count: int, size: int) -> None:
    context.execute_steps("Given a command's folder")
    Path(name).write_text(f'"{"x" * size}"\n' * count, "utf-8")


@then("the estimate has")
def _(context: Context) -> None:
    _compare(context, context.estimate)


@then("the estimate is the command's for the same requests")
def _(context: Context) -> None:
    printed = json.loads(context.ended.stdout)
    assert context.estimate.to_dict() == printed, (context.estimate.to_dict(), printed)


# Files


@when('the prompts are asked as {shape} into the folder "{folder}", by {way}')
def _(context: Context, shape: str, folder: str, way: str) -> None:
    prompts: list[Any] = [row["prompt"] for row in context.table]
    if "document" in context.table.headings:
        prompts = [
            cb.ActorRequest(
                row["prompt"], documents=[context.tmp / row["document"]], citations=True
            )
            for row in context.table
        ]
    given = {"output_format": getattr(shapes, shape), "results_dir": folder}
    actor = context.actor
    if way == "submit and wait":
        context.run = actor.submit_sync(prompts, **given)
        context.run.wait_sync()
    elif way == "respond_all":
        context.results = asyncio.run(_listed(actor.respond_all(prompts, **given)))
    elif way == "respond_all_sync":
        context.results = list(actor.respond_all_sync(prompts, **given))
    else:
        with actor.run(prompts, **given) as context.run:
            context.results = list(context.run)


async def _listed(results: Any) -> list[cb.ActorResult]:
    return [result async for result in results]


@then('the file "{name}" of JSON has')
def _(context: Context, name: str) -> None:
    value = json.loads(Path(name).read_text("utf-8"))
    for row in context.table:
        found: Any = value
        for key in row["field"].split("."):
            found = found.get(key) if isinstance(found, dict) else found[int(key)]
        expected = None if row["value"] == "nothing" else json.loads(row["value"])
        assert found == expected, (row["field"], found)


@when('the run is exported to "{name}"')
def _(context: Context, name: str) -> None:
    context.exported = context.run.export_sync(name)


@when('the run is exported to "{name}" as {form}, asynchronously')
def _(context: Context, name: str, form: str) -> None:
    context.exported = asyncio.run(context.run.export(Path(name), form))


@then("{count:d} results are exported")
def _(context: Context, count: int) -> None:
    assert context.exported == count, context.exported


@then('the file "{name}" is what the command exports')
def _(context: Context, name: str) -> None:
    command = [sys.executable, "-m", "claude_batch", "export", context.run.id]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert Path(name).read_bytes() == done.stdout, done


@then("nothing of the ledger is left to deliver")
def _(context: Context) -> None:
    assert context.provider.outstanding() == []


@when('{count:d} prompts are {asked} for the folder "{folder}", and their process ends')
@when('{count:d} prompts are {asked} for the folder "{folder}"')
def _(context: Context, count: int, asked: str, folder: str) -> None:
    ask = context.actor.submit_sync if asked == "submitted" else context.actor.respond_all_sync
    context.error = None
    try:
        context.run = ask([f"prompt {n}" for n in range(count)], results_dir=folder)
    except (OSError, cb.ActorError) as error:
        context.error = error
    context.provider.close()


@then("the error is one of the system, about the folder")
def _(context: Context) -> None:
    assert isinstance(context.error, OSError), repr(context.error)


@then('the folder "{folder}" is empty')
def _(context: Context, folder: str) -> None:
    assert [path.name for path in Path(folder).rglob("*")] == ["raw"]


@when("a provider of another process waits for the run")
def _(context: Context) -> None:
    run_id = context.run.id
    make_provider(context)
    context.run = context.provider.open_run(run_id)
    context.run.wait_sync()


@then("a text that was asked for without a format has nothing parsed")
def _(context: Context) -> None:
    response = context.actor.respond_sync("Say hello.")
    assert response.to_dict(parsed=True) == {**response.to_dict(), "parsed": None}, response


@then("to_dict has the same, if it is parsed")
def _(context: Context) -> None:
    [result] = context.results
    written = json.loads(Path("kept/000001.json").read_text("utf-8"))
    values = json.loads(json.dumps(result.to_dict(parsed=True)))
    for name in ("id", "ok", "text", "content", "parsed", "field_citations"):
        assert values[name] == written[name], (name, values[name])
    assert not {"parsed", "field_citations"} & set(result.to_dict()), result.to_dict()


# Usage


@rule("usage is summed up")
def _(input: int, read: int, written_5m: int, written_1h: int) -> cb.Usage:
    return cb.Usage(
        input_tokens=input,
        cache_read_input_tokens=read,
        cache_creation_input_tokens=written_5m + written_1h,
        cache_creation_5m_input_tokens=written_5m,
        cache_creation_1h_input_tokens=written_1h,
    )
