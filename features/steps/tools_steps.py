"""Steps of tools: what can be one, where functions are found, and what the next turn says."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import programs
import toolbox
from behave import given
from behave.runner import Context
from msgspec import Raw
from staging import until
from tables import rule

import claude_batch as cb
from claude_batch.actor.tools import ToolFinder, Toolset, as_tool
from claude_batch.lifecycle import tool_runner
from claude_batch.lifecycle.threads import SharedEventLoop
from claude_batch.lifecycle.tool_runner import run_call
from claude_batch.wire.conversation import ToolUse, after_pause, after_rejection


def unfit(what: _Unknown) -> None:  # noqa: F821 - that is what it is for
    """Takes what nobody knows."""


def by_position(city: str, /) -> str:
    """Takes its argument by position."""
    return city


def of_many(*cities: str) -> str:
    """Takes any number of arguments."""
    return " ".join(cities)


async def piecemeal(city: str) -> AsyncIterator[str]:
    """Yields what it finds."""
    yield city


TOOLS: dict[str, Any] = {
    "population, population": lambda: [toolbox.population, toolbox.population],
    'named "a b"': lambda: [cb.tool(toolbox.population, name="a b")],
    'waiting "soon"': lambda: [cb.tool(toolbox.population, timeout="soon")],
    'waiting "0s"': lambda: [cb.tool(toolbox.population, timeout="0s")],
    "a number": lambda: [5],
    "unfit": lambda: [unfit],
    "by position": lambda: [by_position],
    "of many": lambda: [of_many],
    "piecemeal": lambda: [piecemeal],
    "a definition": lambda: [{"name": "where", "input_schema": {"type": "object"}}],
}


@rule("functions are taken for tools")
def _(tools: str) -> Any:
    configuration = cb.ActorConfiguration(model="claude-haiku-4-5")
    return configuration.with_tools(TOOLS[tools]()).toolset


def _file(context: Context, tools: str) -> Any:
    path = context.tmp / "actor.yaml"
    path.write_text(f"model: claude-haiku-4-5\nbatch_processing: true\ntools: {tools}\n")
    return path


@given("a copy of the module {name} beside the actor's file")
def _(context: Context, name: str) -> None:
    shutil.copy(str(sys.modules[name].__file__), context.tmp)


@rule("the tools of an actor's file are found")
def _(context: Context, tools: str) -> dict[str, object]:
    path = _file(context, tools)
    cb.load_actor(path)
    configuration = cb.ActorLoader.load(path)
    kept = "tools" in configuration.to_dict() and "tools" not in configuration.parameters
    return {"functions": configuration.toolset, "kept": kept}


BESIDE = '''"""A module that lies beside an actor's file."""


def harbour(name: str) -> str:
    """A harbour."""
    return "from beside the file"
'''


FINDS = """
import sys
from collections.abc import AsyncIterator
from claude_batch.actor.tools import ToolFinder
found = ToolFinder(imports=True).find(sys.argv[1])
print(found["harbour"].run(b'{"name": "Kiel"}')[0].decode())
"""


@rule("a function beside an actor's file is found by what is remembered of it,")
def _(context: Context, where: str, changes: dict[str, Any]) -> dict[str, str]:
    (context.tmp / "beside_the_file.py").write_text(BESIDE)
    context.add_cleanup(sys.modules.pop, "beside_the_file", None)
    context.add_cleanup(setattr, sys, "path", list(sys.path))
    toolset = cb.ActorLoader.load(_file(context, "[beside_the_file:harbour]")).toolset
    assert toolset.tools["harbour"].run(b'{"name": "Kiel"}') == (b'"from beside the file"', False)
    [remembered] = json.loads(toolset.remembered)
    known = json.dumps([{**remembered, **changes}])
    if where == "here":
        return {"says": ToolFinder().find(known)["harbour"].run(b'{"name": "Kiel"}')[0].decode()}
    done = programs.run(FINDS, known)
    if done.returncode:
        raise ValueError(done.stderr)
    return {"says": done.stdout.strip()}


def _with_attributes() -> Any:
    def bare() -> str:
        return "bare"

    vars(bare).update(name="other", timeout=0.001, repeatable=True, definition={})
    return cb.tool(bare)


CALLABLE: dict[str, Any] = {
    "a function with another name and description": lambda: toolbox.guide,
    "a function without a description": lambda: cb.tool(lambda: "bare", name="bare"),
    "the address method of the office in Bonn": lambda: toolbox.Office("Bonn").address,
    "the address method of the office in Kiel": lambda: toolbox.Office("Kiel").address,
    "guide, marked again": lambda: cb.tool(toolbox.guide),
    "guide, marked again with another name": lambda: cb.tool(toolbox.guide, name="g", timeout=5),
    "guide, marked again as repeatable": lambda: cb.tool(toolbox.guide, repeatable=True),
    "survey": lambda: cb.tool(toolbox.survey),
    "survey, no longer repeatable": lambda: cb.tool(toolbox.survey, repeatable=False),
    "a function with attributes of its own": _with_attributes,
}


@rule("tools are named, described, called and remembered")
def _(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    made = CALLABLE[tool]()
    result, is_error = made.run(json.dumps(arguments).encode())
    assert not is_error and json.loads(result) == made(**arguments), result
    [entry] = json.loads(Toolset([made]).remembered)
    return {
        "name": made.definition["name"],
        "description": made.definition.get("description"),
        "gives": json.loads(result),
        "can_be_imported": entry["function"] is not None,
        "repeatable": made.repeatable,
        "seconds": made.timeout,
    }


@rule("a tool is run, and so many threads can start for it")
def _(tool: str, threads: int) -> dict[str, Any]:
    """Its outputs, and how many of its threads and event loops are left after all have ended."""
    made, outputs, started = as_tool(getattr(toolbox, tool)), list[Any](), list[threading.Thread]()
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("claude-batch-tool"):
            if len(started) == threads:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    use, is_refused = ToolUse("toolu_1", tool, Raw(b'{"city": "Bonn"}')), False
    loop = SharedEventLoop("claude-batch-tools")
    with (
        mock.patch.object(tool_runner, "_loop", loop),
        mock.patch.object(threading.Thread, "start", start_some),
    ):
        try:
            run_call({tool: made}, use, outputs.append)
        except RuntimeError:
            is_refused = True
        until(lambda: outputs or is_refused)
        if loop._thread is not None:
            loop.abandon(loop._thread)
    with contextlib.suppress(AssertionError):
        until(lambda: not any(thread.is_alive() for thread in started), 10)
    return {
        "outputs": [json.loads(content) for content, _ in outputs],
        "raises": is_refused,
        "left": sum(thread.is_alive() for thread in started),
    }


@rule("the next turn after an answer that cannot be used says what is wrong with it")
def _(answer: list[dict[str, Any]]) -> dict[str, Any]:
    params = json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode()
    message = json.dumps({"content": answer}).encode()
    _, *added = json.loads(after_rejection(params, message, "again"))["messages"]
    return {"messages": added}


@rule("the answer's container stands in the next turn")
def _(container_of_the_answer: str, container_before: Any) -> dict[str, Any]:
    message = {"content": [], "container": {"id": container_of_the_answer}}
    params: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    if container_before is not None:
        params["container"] = container_before
    after = json.loads(after_pause(json.dumps(params).encode(), json.dumps(message).encode()))
    return {"container": after["container"]}
