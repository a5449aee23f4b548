"""Steps that follow the links of the pages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from behave import then
from behave.runner import Context
from pages import DOCS, ROOT, Page, pages
from tables import rule


@then("the documents' links and anchors lead somewhere")
def links(context: Context) -> None:
    followed = 0
    broken: list[str] = []
    for each in pages():
        for line, target in each.links:
            if re.match(r"(https?|mailto):", target):
                continue
            followed += 1
            if problem := _problem(each, target):
                broken.append(f"{each.name}:{line}: {target}: {problem}")
    assert followed > 100, followed
    assert not broken, "\n".join(broken)


def _problem(source: Page, target: str) -> str:
    path, _, anchor = target.partition("#")
    found = (source.path.parent / path).resolve() if path else source.path
    if not found.exists():
        return "there is no such file"
    if source.path.is_relative_to(DOCS) and not found.is_relative_to(DOCS):
        return "a site cannot link to files outside docs/; name the path as code"
    if anchor and anchor not in Page(found).anchors:
        return "there is no such heading, or GitHub and the site name it differently"
    return ""


@then("each page under docs is listed by the index and by the site")
def listed(context: Context) -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    shown = set(_leaves(site["nav"]))
    decisions = DOCS / "explanation" / "decisions"
    wanted = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    wanted -= {path.relative_to(DOCS).as_posix() for path in decisions.glob("0*.md")}
    assert shown == wanted, shown ^ wanted
    linked = {target.partition("#")[0] for _, target in Page(DOCS / "index.md").links}
    assert linked == wanted - {"index.md"}, linked ^ wanted
    numbered = {path.name for path in decisions.glob("0*.md")}
    assert numbered == {target for _, target in Page(decisions / "README.md").links}


def _leaves(nav: Any) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _leaves(value)


@rule("the site's start page leads to topics")
def _(topic: str, start_page_says: str, place: str, section_says: str) -> dict[str, int]:
    """The clicks to a place: the row's link, and a link or a heading of the page that opens.

    0 if that does not lead there, -1 if the place does not have the words.
    """
    index = Page(DOCS / "index.md")
    [row] = [line for line in index.text.splitlines() if start_page_says in line]
    opened = [DOCS / target for target in re.findall(r"\]\(([^)#]+)\)", row)]
    name, _, anchor = place.partition("#")
    wanted = Page(DOCS / name)
    text = wanted.section(wanted.anchors[anchor]) if anchor else wanted.text
    if section_says not in text:
        return {"clicks": -1}
    for path in opened:
        if path == wanted.path:
            return {"clicks": 2 if anchor else 1}
        links = {(path.parent / target).resolve() for _, target in Page(path).links}
        if (DOCS / place).resolve() in links:
            return {"clicks": 2}
    return {"clicks": 0}


def _examples() -> list[Path]:
    files = (ROOT / "examples").rglob("*.*")
    return [path for path in files if "__pycache__" not in path.parts]


@then("the documents name no path of anybody's machine")
def no_machine_paths(context: Context) -> None:
    machine = re.compile(r"(?<![\w.~])/(?:work|tmp|home|root|Users|private|opt|mnt)/")
    shown = [each.path for each in pages()] + _examples()
    found = [path.name for path in shown if machine.search(path.read_text("utf-8"))]
    assert not found, found
