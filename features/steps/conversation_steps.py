"""Conversations without I/O: the steps of the generator, from any place where one can stand."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from behave import given, then
from behave.runner import Context
from tables import rule

from claude_batch.wire.conversation import (
    Answer,
    Check,
    End,
    Interrupted,
    NextTurn,
    Reply,
    Step,
    Terms,
    ToolCalls,
    ToolOutcome,
    converse,
)
from claude_batch.wire.messages import disposition_of

PACKAGE = Path(__file__).parents[2] / "src/claude_batch"

QUESTION = {"role": "user", "content": "Look"}
DECLARED = [{"name": name} for name in ("ours", "also", "callers")]
PARAMS = json.dumps({"model": "m", "messages": [QUESTION], "tools": DECLARED}).encode()


def _answer(words: str) -> Answer:
    """An answer of a stop reason, and the names of the tools that it calls."""
    reason, _, names = words.partition(" ")
    content: list[dict[str, Any]] = [{"type": "text", "text": "an answer"}]
    content += [
        {"type": "tool_use", "id": f"call-{n}", "name": name, "input": {}}
        for n, name in enumerate(filter(None, names.split(", ")))
    ]
    message = json.dumps({"content": content, "stop_reason": reason}).encode()
    return Answer(disposition_of(reason), message)


def _reply(step: Step, words: str) -> Reply:
    """The reply to a step."""
    if isinstance(step, NextTurn):
        return _answer(words)
    if isinstance(step, Check):
        return None if words == "no problem" else words
    assert isinstance(step, ToolCalls), step
    if words == "interrupted":
        return Interrupted(step.uses[0].name)
    return [ToolOutcome(use.id, b'"a result"', False) for use in step.uses]


def _described(step: Step) -> str:
    """A step as the tables name it."""
    match step:
        case NextTurn():
            return "next turn, asks again" if step.rejects else "next turn"
        case ToolCalls():
            return f"tool calls: {', '.join(use.name for use in step.uses)}"
        case Check():
            return "check"
        case End(state, None):
            return f"end: {state}"
        case End():
            return f'end: {step.state} ({step.stopped}), "{step.note}"'


def _followed(terms: Terms, row: Any, *, turns: int = 0, rejected: int = 0) -> Step:
    flow = converse(PARAMS, terms, answer=_answer(row["answer"]), turns=turns, rejected=rejected)
    step = next(flow)
    return flow.send(_reply(step, row["reply"])) if row["reply"] else step


@given("a conversation with the terms {terms}")
def _(context: Context, terms: str) -> None:
    context.terms = Terms(**json.loads(terms))


@then("what follows is")
def _(context: Context) -> None:
    for row in context.table:
        turns, rejected = int(row["turns"]), int(row["rejected"])
        found = _described(_followed(context.terms, row, turns=turns, rejected=rejected))
        # Of a note, the table has the words that matter.
        expected, _, words = row["what follows"].partition(', "')
        kind, _, note = found.partition(', "')
        assert kind == expected and words.removesuffix('"') in note, (row, found)
        assert bool(note) is bool(words), (row, found)


@rule("the next turn begins with the turn before it, and adds")
def _(answer: str, reply: str) -> dict[str, str]:
    terms = Terms(max_turns=3, validation_attempts=3, tools=frozenset({"ours", "also"}))
    step = _followed(terms, {"answer": answer, "reply": reply})
    assert isinstance(step, NextTurn), step
    params = json.loads(step.params)
    first, *added = params.pop("messages")
    assert first == QUESTION and params == {"model": "m", "tools": DECLARED}, params
    return {"messages": "; ".join(f"{each['role']}: {_content(each['content'])}" for each in added)}


@rule("the next turn chooses its tools")
def _(tool_choice: Any, answer: str) -> dict[str, Any]:
    params = json.dumps({**json.loads(PARAMS), "tool_choice": tool_choice}).encode()
    terms = Terms(max_turns=3, validation_attempts=3, tools=frozenset({"ours"}))
    flow = converse(params, terms, answer=_answer(answer))
    step = next(flow)
    if not isinstance(step, NextTurn):
        step = flow.send(_reply(step, "a problem"))
    assert isinstance(step, NextTurn), step
    return {"next": json.loads(step.params)["tool_choice"]}


@rule("the blocks of an answer return")
def _(answer: str, blocks: str) -> dict[str, str]:
    content = [_block(number, words) for number, words in enumerate(blocks.split(", "))]
    message = json.dumps({"content": content, "stop_reason": answer}, indent=1).encode()
    terms = Terms(max_turns=3, validation_attempts=3, tools=frozenset({"ours"}))
    flow = converse(PARAMS, terms, answer=Answer(disposition_of(answer), message))
    step = next(flow)
    if not isinstance(step, NextTurn):
        step = flow.send(_reply(step, "a problem"))
    assert isinstance(step, NextTurn), step
    sent = json.loads(step.params)["messages"][1:]
    kept = [block for each in sent if each["role"] == "assistant" for block in each["content"]]
    assert kept == [block for block in content if block in kept], kept
    return {"kept": ", ".join(block["type"] for block in kept)}


def _block(number: int, words: str) -> dict[str, Any]:
    """A block of an answer, and with it a number by which it is known again."""
    kind, _, name = words.partition(" ")
    match kind:
        case "blank":
            return {"type": "text", "text": "\n" * (number % 2), "citations": None}
        case "text":
            return {"type": "text", "text": f"text {number}"}
        case "thinking":
            return {"type": "thinking", "thinking": "so \u00e9", "signature": f"Sig+{number}/=="}
        case "server_result":
            return {"type": kind, "tool_use_id": f"call-{number - 1}", "content": []}
        case _:
            return {"type": kind, "id": f"call-{number}", "name": name or "web_search", "input": {}}


def _content(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return ", ".join(" ".join((b["type"], b.get("tool_use_id", ""))).strip() for b in content)


@then("it takes these steps from its beginning, and the same from each of its answers")
def _(context: Context) -> None:
    rows = list(context.table)
    steps, entries = _played(converse(PARAMS, context.terms), rows)
    assert [_described(step) for step in steps] == [row["what follows"] for row in rows]
    assert len(entries) == sum(row["what follows"].startswith("next turn") for row in rows)
    for at, params, answer, turns, rejected in entries:
        entered = converse(params, context.terms, answer=answer, turns=turns, rejected=rejected)
        rest, _ = _played(entered, rows[at + 1 :])
        assert rest == steps[at + 1 :], (at, rest)


def _played(flow: Any, rows: Iterable[Any]) -> tuple[list[Step], list[tuple[Any, ...]]]:
    """The steps of a conversation, and how to enter it at each of its answers."""
    steps, entries = [next(flow)], []
    turns, rejected = -1, 0
    for at, row in enumerate(rows):
        step = steps[-1]
        if isinstance(step, End):
            assert next(flow, None) is None
            break
        reply = _reply(step, row["reply"])
        if isinstance(step, NextTurn):
            turns, rejected = turns + (not step.rejects), rejected + step.rejects
            entries.append((at, step.params, reply, turns, rejected))
        steps.append(flow.send(reply))
    return steps, entries


@then('no other module than "{name}" uses any of these')
def _(context: Context, name: str) -> None:
    names = {row["name"] for row in context.table}
    users = {
        str(path.relative_to(PACKAGE)): used
        for path in PACKAGE.rglob("*.py")
        if (used := names & set(_used(ast.parse(path.read_text("utf-8")))))
    }
    assert users.pop(name, set()) == names, f"{name} no longer uses all of them"
    assert not users, users


def _used(tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)
