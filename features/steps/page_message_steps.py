"""Steps that look for the messages of a page in the product's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pages import page
from tables import rule

import claude_batch as cb

ANSWERS = ["Cause", "Kept", "Paid", "Next"]
"""What a reader of a message asks, in the page's order."""


@cache
def messages() -> tuple[str, ...]:
    """The texts in the product's code, without backticks; … stands for each value in them.

    The sandbox speaks as the API does, so its texts do not count.
    """
    package = Path(str(cb.__file__)).parent
    found: set[str] = set()
    for path in package.rglob("*.py"):
        if "sandbox" not in path.relative_to(package).parts:
            found.update(_texts(ast.parse(path.read_text("utf-8"))))
    assert len(found) > 1000
    return tuple(found)


def _texts(tree: ast.AST) -> Iterator[str]:
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Expr)
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node.value])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(_constant(part) or "…" for part in node.values).replace("`", "")
        elif id(node) not in parts and (text := _constant(node)) is not None:
            # The values of a log record.
            yield re.sub(r"%[\d.]*[a-z]", "…", text).replace("`", "")


def _constant(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


@rule("messages are found in the product")
def _(message: str) -> dict[str, bool]:
    return {"found": is_message(message)}


def is_message(message: str) -> bool:
    """Whether one text of the product has the words of a message, which … may separate."""
    words = [part.strip() for part in message.split("…")]
    if max(len(part.split()) for part in words) < 3:
        return False  # too few to recognise a message by
    pattern = re.compile(".*".join(map(re.escape, filter(None, words))), re.DOTALL)
    return any(pattern.search(text) for text in messages())


@rule("pages of messages have faults")
def _(page_of_docs: str) -> dict[str, str]:
    text = page(f"docs/{page_of_docs}").text
    entries = re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", text, re.MULTILINE)
    assert len(entries) > 20, entries
    faults: list[str] = []
    for title, body in entries:
        quoted = re.fullmatch("`(.+)`|`` (.+) ``", title)
        if quoted is None or not is_message((quoted[1] or quoted[2]).replace("`", "")):
            faults.append(f"the product does not say: {title}")
        if re.findall(r"^- \*\*(\w+):\*\* ", body, re.MULTILINE) != ANSWERS:
            faults.append(f"not answered by {', '.join(ANSWERS)}: {title}")
    return {"fault": "; ".join(faults)}
