"""The text of a DOCX, as Markdown.

The Markdown has no tags, no bold and no italics, and only the bars of its tables are escaped,
because a model cites the text that it received. No library makes it, because the text is part of a
request's identity: a release with different spacing would make every run with a DOCX a new run,
which is paid for again. A large DOCX is converted in a separate process with limits on time and
memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from claude_batch.core.limited import run_limited
from claude_batch.wire.media import unpacked_size

CHEAP = 200_000
"""Unpacked bytes up to which a DOCX is converted in this process; it takes a second at most."""
SECONDS = 60.0
"""Processor seconds for a larger one. A megabyte takes one to five."""


def text_of_docx(data: bytes) -> str:
    """Convert a DOCX to Markdown: headings, paragraphs, lists and tables, without pictures.

    Raises ``ValueError``, which describes the document's error or reports that the extra is
    missing.
    """
    try:
        import mammoth  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ValueError(
            "is a DOCX. To read it, install the extra `docx` (pip install 'claude-batch[docx]'), "
            "or save it as PDF"
        ) from None
    if unpacked_size(data) > CHEAP:
        text = run_limited(f"{__name__}:convert", data, seconds=SECONDS).decode()
    else:
        text = _markdown(mammoth, data)
    if not text:
        raise ValueError("is a DOCX without any text")
    return text


def convert(data: bytes) -> bytes:
    """Convert a DOCX to Markdown in UTF-8, in a separate process. Raises ``ValueError``."""
    import mammoth  # pyright: ignore[reportMissingTypeStubs]

    return _markdown(mammoth, data).encode()


def _markdown(library: Any, data: bytes) -> str:
    try:
        # The library's author has deprecated its Markdown, and its raw text has no tables or
        # headings.
        html = library.convert_to_html(io.BytesIO(data), convert_image=_no_image).value
        return markdown_of(str(html))
    except MemoryError:
        raise  # the parent process reports it in its own words
    except Exception as error:
        # The library defines no exception types, so a broken part may raise anything.
        raise ValueError(
            f"is a DOCX that cannot be read: {type(error).__name__}: {error}"
        ) from None


def _no_image(_: object) -> list[object]:
    return []


# HTML as Markdown ---------------------------------------------------------------------------------

_HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
_VOID = ("br", "hr", "img", "wbr")
_BLOCKS = frozenset(
    (
        *_HEADINGS,
        *("p", "ul", "ol", "table", "div", "blockquote", "pre", "section", "article"),
        *("dl", "dt", "dd", "li", "thead", "tbody", "tfoot", "tr", "td", "th", "hr"),
    )
)
_WIDEST = 100
"""Columns or rows that one cell may span; more is an error of the document."""


class _Node:
    __slots__ = ("attributes", "children", "tag")

    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[_Node | str] = []

    def nodes(self) -> Iterator[_Node]:
        return (each for each in self.children if isinstance(each, _Node))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = _Node("div", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = _Node(tag, dict(attrs))
        self._open[-1].children.append(node)
        if tag not in _VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        for place in range(len(self._open) - 1, 0, -1):
            if self._open[place].tag == tag:
                del self._open[place:]
                return

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def markdown_of(html: str) -> str:
    """Convert well-formed HTML to Markdown; pictures, bold and italics are left out."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return "\n\n".join(_blocks(reader.root))


def _blocks(node: _Node) -> list[str]:
    """Return a node's content as blocks: paragraphs, headings, whole lists and tables."""
    found: list[str] = []
    line: list[str] = []

    def end_line() -> None:
        if text := "".join(line).strip():
            found.append(text)
        line.clear()

    for child in node.children:
        if isinstance(child, str) or child.tag not in _BLOCKS:
            line.append(_words(child))
            continue
        end_line()
        if child.tag in _HEADINGS:
            if words := _one_line(child):
                found.append(_HEADINGS[child.tag] + words)
        elif child.tag in ("ul", "ol"):
            if items := _items(child):
                found.append(items)
        elif child.tag == "table":
            if rows := _table(child):
                found.append(rows)
        else:
            found += _blocks(child)
    end_line()
    return found


def _words(node: _Node | str) -> str:
    """Return a node's inline text. A link keeps its target, unless that is in the document."""
    if isinstance(node, str):
        return node
    if node.tag == "br":
        return "\n"
    words = "".join(map(_words, node.children))
    target = node.attributes.get("href") if node.tag == "a" else None
    if target and not target.startswith("#") and words.strip():
        return f"[{words}]({target})"
    return words


def _one_line(node: _Node) -> str:
    return " ".join(" ".join(_blocks(node)).split())


def _items(node: _Node) -> str:
    items: list[str] = []
    for item in node.nodes():
        mark = "- " if node.tag == "ul" else f"{len(items) + 1}. "
        if text := "\n".join(_blocks(item)):
            items.append(mark + text.replace("\n", "\n" + " " * len(mark)))
    return "\n".join(items)


def _table(node: _Node) -> str:
    """Return rows between bars, the first as the header; spanned cells are empty."""
    rows: list[list[str]] = []
    below: dict[int, int] = {}  # by column: rows that a cell above still spans
    for row in _rows(node):
        cells: list[str] = []

        def fill(cells: list[str]) -> None:
            while below.get(len(cells), 0):
                below[len(cells)] -= 1
                cells.append("")

        for cell in row.nodes():
            fill(cells)
            wide, high = (_span(cell, name) for name in ("colspan", "rowspan"))
            for column in range(len(cells), len(cells) + wide):
                below[column] = high - 1
            cells += [_one_line(cell).replace("|", "\\|"), *[""] * (wide - 1)]
        fill(cells)
        rows.append(cells)
    width = max(map(len, rows), default=0)
    if not any(any(row) for row in rows):
        return ""
    lines = ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def _rows(node: _Node) -> Iterator[_Node]:
    for child in node.nodes():
        if child.tag == "tr":
            yield child
        elif child.tag in ("thead", "tbody", "tfoot"):
            yield from _rows(child)


def _span(cell: _Node, name: str) -> int:
    written = cell.attributes.get(name) or "1"
    return min(max(int(written), 1), _WIDEST) if written.isascii() and written.isdigit() else 1
