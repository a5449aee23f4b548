"""`Document`: a document of a request; a DOCX, which the API rejects, becomes Markdown.

A file is read when its request is encoded. A file that many requests share is read once as long as
it does not change. Documents travel inline in the request, unless the encoder's caller replaces a
large one by the id of an uploaded file.

The Markdown of a DOCX has no tags, no bold and no italics, and only the bars of its tables are
escaped, because a model cites the text that it received. No library makes it, because the text is
part of a request's identity: a release with different spacing would make every run with a DOCX a
new run, which is paid for again. A large DOCX is converted in a separate process with limits on
time and memory.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.limited import run_limited
from claude_batch.core.terminal import encodable
from claude_batch.wire.limits import max_pdf_pages
from claude_batch.wire.media import DOCX, Media, media_of, unpacked_size

# Markdown of a DOCX -------------------------------------------------------------------------------

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


# DOCX ---------------------------------------------------------------------------------------------

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


# Documents ----------------------------------------------------------------------------------------

_LARGEST = 500_000_000
"""Bytes; the Files API takes no larger file, and a batch no larger request."""
LEAST_UPLOADED = 32_768
"""Bytes; a smaller document always travels inline."""

_URL = re.compile(r"https?://", re.IGNORECASE)
_FILE_ID = re.compile(r"file_[A-Za-z0-9_]+")
_IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_WORDS = ("path", "url", "file_id")
_OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("title", str, "a text"),
    ("context", str, "a text"),
    ("image", bool, "true or false"),
)
_KEPT = 4
"""Number of files that are cached in memory for the next request."""
_MANY_IMAGES, _SIDE_OF_MANY = 20, 2000
# Source: https://platform.claude.com/docs/en/build-with-claude/vision


@dataclass(frozen=True, slots=True)
class Document:
    """A PDF, an image (PNG, JPEG, GIF, WebP), a text (Markdown, CSV, HTML, …) or a DOCX.

    A DOCX is sent as text, converted by the extra ``docx``. The type is detected from the bytes,
    not from the name.
    """

    source: str | os.PathLike[str] | bytes
    """Bytes, a path, a URL (``https://…``) that the API fetches, or the id of a file that was
    uploaded to the API (``file_…``).
    """
    _: KW_ONLY
    title: str | None = None
    """The document's title for the model and its citations; by default a file's name."""
    context: str | None = None
    """Context for the model about the document, which it never cites. Not for images."""
    image: bool | None = None
    """Whether a URL or uploaded file is an image; by default, a URL's extension decides."""

    @property
    def is_path(self) -> bool:
        """Return whether it is a local file."""
        source = self.source
        if isinstance(source, str):
            return not _URL.match(source) and not _FILE_ID.fullmatch(source)
        return not isinstance(source, bytes)

    @property
    def name(self) -> str:
        """Return the document's name for messages."""
        if isinstance(self.source, bytes):
            return self.title or f"{len(self.source):,} bytes"
        return os.fspath(self.source)


DocumentLike: TypeAlias = str | os.PathLike[str] | bytes | Document | Mapping[str, Any]
"""Anything that can be a document.

A `Document`, one of its sources, or a mapping with one of ``path``, ``url`` and ``file_id``, and
optionally ``title``, ``context`` and ``image``.
"""


def documents_of(given: Iterable[DocumentLike], key: str | None = None) -> tuple[Document, ...]:
    """Convert values to documents. Raises `InvalidRequestError`."""
    if isinstance(given, str | bytes | os.PathLike | Mapping | Document):
        raise InvalidRequestError("`documents` must be a list, even for one document", key=key)
    if not isinstance(cast("object", given), Iterable):
        raise InvalidRequestError(
            f"`documents` must be a list, not {type(given).__name__}; without any, give []",
            key=key,
        )
    return tuple(_document(each, key) for each in given)


def _document(given: object, key: str | None) -> Document:
    if isinstance(given, Document):
        found = given
    elif isinstance(given, Mapping):
        fields = dict(cast("Mapping[str, Any]", given))
        sources = [(word, fields.pop(word)) for word in _WORDS if word in fields]
        unknown = set(fields) - {"title", "context", "image"}
        if len(sources) != 1 or unknown:
            said = f"; unknown: {', '.join(sorted(unknown))}" if unknown else ""
            raise InvalidRequestError(
                "a document has one of `path`, `url` and `file_id`, and may have `title`, "
                f"`context` and `image`{said}",
                key=key,
            )
        found = Document(_source(*sources[0], key), **fields)
    else:
        found = Document(cast("Any", given))
    source = cast("object", found.source)
    if not isinstance(source, str | bytes | os.PathLike) or not source:
        raise InvalidRequestError(
            f"a document is a path, bytes, a URL or a file id, not {source!r}", key=key
        )
    for name, kind, what in _OPTIONS:
        value = getattr(found, name)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequestError(
                f"document {found.name}: its `{name}` must be {what}, not {value!r}", key=key
            )
    return found


def _source(word: str, given: object, key: str | None) -> Any:
    """Return the source that a mapping names: a path is never taken for an id, nor the reverse."""
    if not isinstance(given, str) or not given:
        return given  # the caller reports it
    if word == "path":
        return Path(given)
    if word == "url" and not _URL.match(given):
        raise InvalidRequestError(
            f"`url` must begin with http:// or https://, not {given!r}; a file is a `path`", key=key
        )
    if word == "file_id" and not _FILE_ID.fullmatch(given):
        raise InvalidRequestError(
            f"`file_id` must be the id of an uploaded file (file_…), not {given!r}; a file on "
            "this machine is a `path`",
            key=key,
        )
    return given


def with_documents(
    documents: Sequence[Document], *, folder: str | None = None
) -> tuple[Document, ...]:
    """Return the same documents with their paths relative to a folder."""
    if not folder:
        return tuple(documents)
    return tuple(
        replace(each, source=os.path.join(folder, cast("str", each.source)))
        if each.is_path
        else each
        for each in documents
    )


class Content(NamedTuple):
    """The part of a document that may be uploaded once instead of repeated in every request."""

    name: str
    """The document's name for messages."""
    media_type: str
    digest: str
    """SHA-256 of its bytes, in hex."""
    size: int
    """Bytes."""
    source: Mapping[str, str]
    """The source of its block if it travels inline."""

    def data(self) -> bytes:
        """Return its bytes, as they are uploaded."""
        written = self.source["data"]
        return written.encode() if self.source["type"] == "text" else base64.b64decode(written)


Placing: TypeAlias = Callable[[Content], str | None]
"""Returns the id of the uploaded file for a document, or None to send it inline."""


def inside(_: Content) -> None:
    """A `Placing` that uploads nothing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Messages with documents that may be uploaded, and the positions of those documents."""

    messages: Sequence[Mapping[str, Any]]
    place: int
    """Index of the message that holds the documents."""
    contents: Sequence[tuple[int, Content]]
    """The documents' blocks in that message."""

    def named(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages with digests in place of these documents."""
        return self._with([{"type": "digest", "sha256": each.digest} for _, each in self.contents])

    def placed(self, placing: Placing) -> Sequence[Mapping[str, Any]]:
        """Return the messages with file ids for the documents that ``placing`` uploads."""
        found = [placing(each) for _, each in self.contents]
        return self._with([name and {"type": "file", "file_id": name} for name in found])

    def _with(self, sources: Sequence[object]) -> Sequence[Mapping[str, Any]]:
        blocks = list(self.messages[self.place]["content"])
        for (number, _), source in zip(self.contents, sources, strict=True):
            if source is not None:
                blocks[number] = {**blocks[number], "source": source}
        messages = list(self.messages)
        messages[self.place] = {**messages[self.place], "content": blocks}
        return messages


def messages_with(
    documents: Iterable[DocumentLike],
    prompt: str | None,
    messages: Sequence[Mapping[str, Any]] | None,
    *,
    model: str,
    citations: bool,
    key: str | None,
) -> tuple[Sequence[Mapping[str, Any]], Shared | None]:
    """Return a prompt, or messages, with the documents before the first user's text.

    Also returns the documents that may be uploaded; None if none is large enough. Raises
    `InvalidRequestError`.
    """
    blocks, contents = _content(documents_of(documents, key), prompt, model, citations, key)
    if messages is None:
        built: list[Mapping[str, Any]] = [{"role": "user", "content": blocks}]
        return built, Shared(built, 0, contents) if contents else None
    built = list(messages)
    for place, message in enumerate(built):
        if message["role"] == "user":
            own = message["content"]
            after = [{"type": "text", "text": own}] if isinstance(own, str) else list(own)
            built[place] = {**message, "content": [*blocks, *after]}
            return built, Shared(built, place, contents) if contents else None
    raise InvalidRequestError("`documents` need a message of the user, but there is none", key=key)


class _Read(NamedTuple):
    """A document that was read: its block's source, its type, and its digest."""

    source: dict[str, str]
    media: Media
    size: int
    digest: str | None
    """None if it is too small to be uploaded."""


def _content(
    documents: Sequence[Document], text: str | None, model: str, citations: bool, key: str | None
) -> tuple[list[dict[str, Any]], list[tuple[int, Content]]]:
    """Return a user's content: documents first, as the API advises, then the text.

    Also returns the positions of the blocks whose documents are large enough to be uploaded, and
    the documents. ``citations``: whether the model cites them; the API requires one value for all
    of a request. Raises `InvalidRequestError`, which names the document and its problem.
    """
    blocks: list[dict[str, Any]] = []
    shared: list[tuple[int, Content]] = []
    pages, sizes = 0, list[tuple[int, int]]()
    for document in documents:
        try:
            block, read = _block(document)
        except ValueError as error:
            raise InvalidRequestError(f"document {document.name}: {error}", key=key) from None
        if read is not None:
            media = read.media
            pages += media.pages
            sizes += [media.size] if media.size is not None else []
            if read.digest is not None:
                kind = read.source["media_type"]
                content = Content(document.name, kind, read.digest, read.size, read.source)
                shared.append((len(blocks), content))
        if block["type"] == "document" and citations:
            block["citations"] = {"enabled": True}
        blocks.append(block)
    if pages > (most := max_pdf_pages(model)):
        raise InvalidRequestError(
            f"its PDFs have {pages:,} pages together, but in a request to {model} the API "
            f"accepts {most}; split them over several requests",
            key=key,
        )
    if len(sizes) > _MANY_IMAGES and max(map(max, sizes)) > _SIDE_OF_MANY:
        raise InvalidRequestError(
            f"it has {len(sizes)} images, and with more than {_MANY_IMAGES} none may be larger "
            f"than {_SIDE_OF_MANY:,} pixels a side",
            key=key,
        )
    if text is not None:
        blocks.append({"type": "text", "text": text})
    return blocks, shared


def _block(document: Document) -> tuple[dict[str, Any], _Read | None]:
    source, title = document.source, document.title
    read: _Read | None = None
    if isinstance(source, bytes):
        read = _encoded(source)
        encoded = read.source
    elif document.is_path:
        read = _encoded_file(os.fspath(source))
        encoded = read.source
        # The bytes of a file's name may be no text.
        title = title or encodable(os.path.basename(document.name))
    else:
        words = os.fspath(source)
        if _URL.match(words):
            encoded = {"type": "url", "url": words}
            path = words.partition("?")[0].partition("#")[0]
            pictured = path.lower().endswith(_IMAGE_NAMES)
        else:
            encoded, pictured = {"type": "file", "file_id": words}, False
        if document.image if document.image is not None else pictured:
            return {"type": "image", "source": encoded}, None
    if read is not None and read.media.type.startswith("image/"):
        return {"type": "image", "source": encoded}, read
    block: dict[str, Any] = {"type": "document", "source": encoded}
    if title:
        block["title"] = title
    if document.context:
        block["context"] = document.context
    return block, read


def _encoded(data: bytes) -> _Read:
    media = media_of(data)
    if media.type == DOCX:
        media = Media("text/plain", text=text_of_docx(data))
    if media.text is not None:
        data = media.text.encode("utf-8", "surrogatepass")
        source = {"type": "text", "media_type": media.type, "data": media.text}
    else:
        written = base64.b64encode(data).decode("ascii")
        source = {"type": "base64", "media_type": media.type, "data": written}
    large = len(data) >= LEAST_UPLOADED
    return _Read(source, media, len(data), hashlib.sha256(data).hexdigest() if large else None)


def _encoded_file(path: str) -> _Read:
    try:
        found = os.stat(path)
        if not os.path.isfile(path):
            raise ValueError("is not a file")
        if found.st_size > _LARGEST:
            raise ValueError(f"has {found.st_size:,} bytes, but the API takes at most {_LARGEST:,}")
        read = _read(path, _version(found))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if path.lower().endswith(".pdf") and read.media.type != "application/pdf":
        raise ValueError(f"has the name of a PDF, but is {read.media.type}")
    return read


def _version(found: os.stat_result) -> tuple[int, ...]:
    # Files of equal size and time may take turns at a path, also because the folder changes to
    # which it is relative.
    times = found.st_mtime_ns, found.st_ctime_ns
    return found.st_dev, found.st_ino, found.st_size, *times


@lru_cache(maxsize=_KEPT)
def _read(path: str, _: tuple[int, ...]) -> _Read:
    """Return a file's source; the second argument identifies the file and its version."""
    with open(path, "rb") as stream:
        return _encoded(stream.read())
