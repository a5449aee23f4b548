"""The documentation's pages as data: their code blocks, headings, links and tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<info>.*)$")
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(?:.+?)\1")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: str
    line: int
    """The 1-based line of its first line of code."""
    language: str
    title: str
    """The name of a file whose content it shows; empty if it is no file."""
    code: str

    @property
    def place(self) -> str:
        """``page:line``, for messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path inside the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text("utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks, in order. Raises `AssertionError` if one is not closed."""
        found: list[Block] = []
        lines = self.text.splitlines()
        opened: tuple[int, str, str, str] | None = None
        for number, line in enumerate(lines, 1):
            fence = _FENCE.match(line)
            if opened is None:
                if fence:
                    language, _, rest = fence["info"].strip().partition(" ")
                    title = re.fullmatch(r'title="([^"]+)"', rest.strip())
                    assert title or not rest, f"{self.name}:{number}: {rest!r} is not a title"
                    name = title[1] if title else ""
                    opened = number, fence["fence"], language, name
            elif line.strip() == opened[1]:
                first, _, language, title = opened
                code = "".join(f"{each}\n" for each in lines[first : number - 1])
                found.append(Block(self.name, first + 1, language, title, code))
                opened = None
        assert opened is None, f"{self.name}:{opened and opened[0]}: the block is not closed"
        return found

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """Its lines outside fenced blocks, each with its number, without inline code."""
        inside: set[int] = set()
        for block in self.blocks:
            inside.update(range(block.line - 1, block.line + block.code.count("\n") + 1))
        lines = enumerate(self.text.splitlines(), 1)
        return [(number, line) for number, line in lines if number not in inside]

    @property
    def links(self) -> Iterator[tuple[int, str]]:
        """The targets of its links, each with the number of its line."""
        # A link's text may go over the end of a line.
        text = "\n".join(_CODE.sub("code", line) for _, line in self.prose)
        numbers = [number for number, _ in self.prose]
        for link in _LINK.finditer(text):
            yield numbers[text.count("\n", 0, link.start())], link[1]

    @cached_property
    def anchors(self) -> dict[str, str]:
        """The headings by their anchors, where GitHub and the site agree on them."""
        found: dict[str, str] = {}
        for _, line in self.prose:
            if heading := re.fullmatch(r"#{1,6} +(.+?) *#*", line):
                title = re.sub(r"[`*]", "", heading[1])
                if (slug := _github(title)) == _site(title):
                    found.setdefault(slug, heading[1])
        return found

    def section(self, title: str) -> str:
        """What stands under a heading, up to the next one of its level or above."""
        found = re.search(rf"^(#+) {re.escape(title)}\n", self.text, re.MULTILINE)
        assert found, f"{self.name} has no section {title!r}"
        rest = self.text[found.end() :]
        end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
        return rest[: end.start()] if end else rest


def _github(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _site(title: str) -> str:
    """The anchor that Python-Markdown gives a heading, and so the site."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def page(name: str) -> Page:
    """One page, by its path inside the repository."""
    return Page(ROOT / name)


def pages() -> list[Page]:
    """The documents of the repository: those of its root, and everything under docs/."""
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    assert len(found) > 3, found
    return [Page(path) for path in sorted(found)]


AGREEMENTS: dict[str, Callable[[], None]] = {}


def agreement(subject: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what compares the pages with the code about a subject."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        AGREEMENTS[subject] = function
        return function

    return register
