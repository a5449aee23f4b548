"""Steps that follow the links of the pages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page_code_steps import problems_of
from pages import DOCS, ROOT, Page, pages
from tables import rule

MACHINE = re.compile(r"(?<![\w.~])/(?:work|tmp|home|root|Users|private|opt|mnt)/")


@rule("pages, after a change, have problems")
def _(page: str, added: str) -> dict[str, str]:
    """What is wrong with a page that has more text at its end, or with each page as it is."""
    if page == "each page":
        found = pages()
        assert sum(len(list(each.links)) for each in found) > 100
        assert sum(len(each.blocks) for each in found) > 50
        assert all((DOCS / name).is_file() for name in _site())
    else:
        changed = Page(ROOT / page)
        before = changed.path.read_text("utf-8") if changed.path.exists() else ""
        changed.__dict__["text"] = before + added.replace("\\n", "\n")
        found = [changed]
    return {"problem": "\n".join(problem for each in found for problem in _problems(each))}


def _problems(each: Page) -> Iterator[str]:
    for line, target in each.links:
        if problem := _problem(each, target):
            yield f"{each.name}:{line}: {target}: {problem}"
    for block in each.blocks:
        yield from (f"{block.place}: {problem}" for problem in problems_of(block))
    if MACHINE.search(each.text):
        yield f"{each.name} names a path of somebody's machine"
    if each.path.is_relative_to(DOCS) and not _is_listed(each):
        yield f"{each.name} is not listed by the index and by the site"


def _problem(source: Page, target: str) -> str:
    if re.match(r"(https?|mailto):", target):
        return ""
    path, _, anchor = target.partition("#")
    found = (source.path.parent / path).resolve() if path else source.path
    if not found.exists():
        return "there is no such file"
    if source.path.is_relative_to(DOCS) and not found.is_relative_to(DOCS):
        return "a site cannot link to files outside docs/; name the path as code"
    if anchor and anchor not in Page(found).anchors:
        return "there is no such heading, or GitHub and the site name it differently"
    return ""


def _is_listed(each: Page) -> bool:
    decisions = DOCS / "explanation" / "decisions"
    if each.path.parent == decisions and each.path.name != "README.md":
        return each.path.name in _targets(decisions / "README.md")
    name = each.path.relative_to(DOCS).as_posix()
    return name in _site() and name in _targets(DOCS / "index.md") | {"index.md"}


def _site() -> set[str]:
    """The pages that the site's navigation lists."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    return set(_leaves(site["nav"]))


def _targets(path: Path) -> set[str]:
    return {target.partition("#")[0] for _, target in Page(path).links}


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


@rule("files name a path of somebody's machine,")
def _(files: str) -> dict[str, bool]:
    found = [path for path in ROOT.glob(files) if "__pycache__" not in path.parts]
    assert found
    return {"named": any(MACHINE.search(path.read_text("utf-8")) for path in found)}
