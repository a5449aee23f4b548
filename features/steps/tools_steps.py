"""Steps of tools: what can be one, where functions are found, and what the next turn says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import toolbox
from behave import given, then
from behave.runner import Context
from tables import rule

import claude_batch as cb
from claude_batch.actor.tools import ToolFinder, Toolset
from claude_batch.wire.conversation import after_pause, after_rejection


def unfit(what: _Unknown) -> None:  # noqa: F821 - that is what it is for
    """Takes what nobody knows."""


TOOLS: dict[str, Any] = {
    "population, population": lambda: [toolbox.population, toolbox.population],
    'named "a b"': lambda: [cb.tool(toolbox.population, name="a b")],
    'waiting "soon"': lambda: [cb.tool(toolbox.population, timeout="soon")],
    'waiting "0s"': lambda: [cb.tool(toolbox.population, timeout="0s")],
    "a number": lambda: [5],
    "unfit": lambda: [unfit],
}


@rule("functions are taken for tools")
def _(tools: str) -> Any:
    configuration = cb.ActorConfiguration(model="claude-haiku-4-5")
    return configuration.with_tools(TOOLS[tools]()).toolset


def _file(context: Context, tools: str) -> Any:
    path = context.tmp / "actor.yaml"
    path.write_text(f"model: claude-haiku-4-5\nbatch_processing: true\ntools: {tools}\n")
    return path


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


@given("a module beside an actor's file")
def _(context: Context) -> None:
    (context.tmp / "beside_the_file.py").write_text(BESIDE)
    context.path = _file(context, "[beside_the_file:harbour]")
    context.add_cleanup(sys.modules.pop, "beside_the_file", None)
    context.add_cleanup(setattr, sys, "path", list(sys.path))


@then('the actor\'s tool "{name}" says "{words}"')
def _(context: Context, name: str, words: str) -> None:
    context.toolset = cb.ActorLoader.load(context.path).toolset
    assert context.toolset.tools[name].run(b'{"name": "Kiel"}') == (
        json.dumps(words).encode(),
        False,
    )


@then("what is remembered of it leads another process there")
def _(context: Context) -> None:
    code = (
        "import sys; from claude_batch.actor.tools import ToolFinder; "
        "found = ToolFinder(imports=True).find(sys.argv[1]); "
        "print(found['harbour'].run(b'{\"name\": \"Kiel\"}')[0].decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, context.toolset.remembered],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "from beside the file" in done.stdout, done.stdout


@then("a function of the same name that is described otherwise is not taken for it")
def _(context: Context) -> None:
    [entry] = json.loads(context.toolset.remembered)
    elsewhere = {**entry, "folder": str(context.tmp / "elsewhere")}
    finder = ToolFinder()
    assert "harbour" in finder.find(json.dumps([elsewhere]))  # moved, and the same
    try:
        finder.find(json.dumps([{**elsewhere, "definition": "other"}]))
    except cb.ActorConfigurationError as error:
        assert "is not the function that the run was made with" in str(error), error
    else:
        raise AssertionError("it was taken")


@then("the tools of the toolbox can be called like functions")
def _(context: Context) -> None:
    assert toolbox.guide() == "here" and "guide" in repr(toolbox.guide)
    definition = toolbox.guide.definition
    assert definition["name"] == "tour-guide", definition
    assert definition["description"] == "Knows its way.", definition
    assert "description" not in cb.tool(lambda: None, name="bare").definition


@then("the addresses of two offices are tools of their own")
def _(context: Context) -> None:
    for city in ("Bonn", "Kiel"):
        office = toolbox.Office(city)
        output = office.address.run(b'{"street": "Am Kai"}')
        assert output == (json.dumps(f"Am Kai, {city}").encode(), False), output
        [entry] = json.loads(Toolset([office.address]).remembered)
        assert entry["function"] is None, entry
    assert isinstance(toolbox.Office.address, type(toolbox.guide))


@rule("the answer's container stands in the next turn")
def _(container_of_the_answer: str, container_before: Any) -> dict[str, Any]:
    message = {"content": [], "container": {"id": container_of_the_answer}}
    params: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    if container_before is not None:
        params["container"] = container_before
    after = json.loads(after_pause(json.dumps(params).encode(), json.dumps(message).encode()))
    return {"container": after["container"]}


@then("an answer that was cut off is told of without its unfinished calls")
def _(context: Context) -> None:
    params = json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode()
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    text = {"type": "text", "text": "half"}
    empty = {"type": "text", "text": " "}
    for content, roles in (
        ([text, call], ["user", "assistant", "user"]),
        ([empty, call], ["user", "user"]),
    ):
        message = json.dumps({"content": content}).encode()
        messages = json.loads(after_rejection(params, message, "again"))["messages"]
        assert [each["role"] for each in messages] == roles, messages
        assert "tool_use" not in json.dumps(messages) and messages[-1]["content"] == "again"
