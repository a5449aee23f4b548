"""Steps of reports in Python: progress, estimates, and results as files."""

from __future__ import annotations

import asyncio
import builtins
import errno
import io
import json
import os
import sys
import types
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import shapes
from behave import then, when
from behave.runner import Context
from event_steps import keep_log
from tables import rule

import claude_batch as cb
from claude_batch.providers.progress_reports import Reports, check_progress

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


def _left(actor: cb.Actor, prompts: list[str], progress: Any) -> list[cb.ActorResult]:
    """Leave at the first result, after which nothing may be reported."""
    with actor.run(prompts, progress=progress) as run:
        results = [next(iter(run))]
        reported = len(progress.calls)
    assert len(progress.calls) == reported, progress.calls
    return results


WAYS: dict[str, Ask] = {
    "submit and wait": _submitted,
    "submit_sync and wait_sync": _submitted_sync,
    "respond_all": _all,
    "respond_all_sync": _all_sync,
    "an `async with` block": _block,
    "a `with` block": _block_sync,
    "a `with` block that is left at the first result": _left,
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


@when("these prompts are asked with progress that {does:w}, by {way}")
def _(context: Context, does: str, way: str) -> None:
    keep_log(context)
    error = ZeroDivisionError("a fault of the caller's") if does == "fails" else None
    reported = _Reported(error)
    prompts = [row["prompt"] for row in context.table]
    context.results = WAYS[way](context.actor, prompts, reported)
    context.first_progress, context.last_progress = reported.calls[0], reported.calls[-1]


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


@rule("progress=True shows")
def _(context: Context, where: str, way: str) -> dict[str, str]:
    prompts = [f"prompt {n} {where}" for n in range(3)]
    errors = _Terminal() if where == "on a terminal" else io.StringIO()
    environment = {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    with redirect_stderr(errors), mock.patch.dict(os.environ, environment):
        if where != "in a notebook":
            WAYS[way](context.actor, prompts, True)
            return {"shown": errors.getvalue()}
        cell = _Notebook()
        display = types.SimpleNamespace(display=cell.display)
        modules = {"IPython": types.ModuleType("IPython"), "IPython.display": display}
        with (
            mock.patch.dict(sys.modules, modules),
            mock.patch.object(builtins, "get_ipython", ZMQInteractiveShell, create=True),
        ):
            WAYS[way](context.actor, prompts, True)
        bundles = [what._repr_mimebundle_((), ()) for what in cell.shown]
        assert all(each["text/html"].startswith("<pre") for each in bundles), bundles
        return {"shown": "".join(each["text/plain"] for each in bundles)}


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


@then('a request about "{file}" as {shape}, with citations, may take {turns:d} turns')
def _(context: Context, file: str, shape: str, turns: int) -> None:
    asked, documents = getattr(shapes, shape), [context.tmp / file]
    request = cb.ActorRequest("What?", documents=documents, citations=True)
    own = cb.ActorRequest("What?", documents=documents, citations=True, output_format=asked)
    found = (
        context.actor.estimate_sync([request], offline=True, output_format=asked),
        context.actor.estimate_sync([own], offline=True),
    )
    assert [each.turns for each in found] == [turns, turns], found


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
@when('the run is exported to "{name}" as {form}, asynchronously')
def _(context: Context, name: str, form: str | None = None) -> None:
    run = context.run
    context.run_id = run.id
    context.exported = asyncio.run(run.export(Path(name), form)) if form else run.export_sync(name)


@then("{count:d} results are exported")
def _(context: Context, count: int) -> None:
    assert context.exported == count, context.exported


@rule("the run's files are written where the file system does not answer in time")
def _(context: Context, by: str) -> dict[str, str]:
    """The error of a network drive, which is a TimeoutError like that of a wait."""
    run, slow = context.run, TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    run.set_results_dir("kept")
    ways: dict[str, Callable[[], Any]] = {
        "export": lambda: asyncio.run(run.export("answers.jsonl")),
        "export_sync": lambda: run.export_sync("answers.jsonl"),
        "wait": lambda: asyncio.run(run.wait()),
        "wait_sync": run.wait_sync,
        "results": lambda: asyncio.run(_listed(run.results())),
        "results_sync": lambda: list(run.results_sync()),
    }
    fails = {name: mock.Mock(side_effect=slow) for name in ("export_run", "write_folder")}
    with mock.patch.multiple("claude_batch.providers.run", **fails):
        try:
            return {"raises": f"nothing: {ways[by]()!r}"}
        except OSError as error:
            return {"raises": str(error)}


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


@then("to_dict has the same, if it is parsed, and of a text without a format nothing parsed")
def _(context: Context) -> None:
    [result] = context.results
    written = json.loads(Path("kept/000001.json").read_text("utf-8"))
    values = json.loads(json.dumps(result.to_dict(parsed=True)))
    for name in ("id", "ok", "text", "content", "parsed", "field_citations"):
        assert values[name] == written[name], (name, values[name])
    assert not {"parsed", "field_citations"} & set(result.to_dict()), result.to_dict()
    response = context.actor.respond_sync("Say hello.")
    assert response.to_dict(parsed=True) == {**response.to_dict(), "parsed": None}, response


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
