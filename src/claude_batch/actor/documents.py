"""`Document`: a document of a request; a DOCX, which the API rejects, becomes Markdown.

A file is read when its request is encoded. A file that many requests share is read once as long as
it does not change. Documents travel inline in the request, unless the encoder's caller replaces a
large one by the id of an uploaded file.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.terminal import encodable
from claude_batch.wire.limits import max_pdf_pages
from claude_batch.wire.media import DOCX, Media, media_of

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


def documents_of(given: Iterable[DocumentLike]) -> tuple[Document, ...]:
    """Convert values to documents. Raises `InvalidRequestError`."""
    if isinstance(given, str | bytes | os.PathLike | Mapping | Document):
        raise InvalidRequestError("`documents` must be a list, even for one document")
    if not isinstance(cast("object", given), Iterable):
        raise InvalidRequestError(
            f"`documents` must be a list, not {type(given).__name__}; without any, give []"
        )
    if isinstance(given, set | frozenset):
        raise InvalidRequestError(
            "`documents` must be a list, not a set: its order is another one in each process, so "
            "the same request would be another one, and paid for again"
        )
    return tuple(map(_document, given))


def _document(given: object) -> Document:
    if isinstance(given, Document):
        found = given
    elif isinstance(given, Mapping):
        fields = dict(cast("Mapping[str, Any]", given))
        sources = [(word, fields.pop(word)) for word in _WORDS if word in fields]
        unknown = set(fields) - {"title", "context", "image"}
        if len(sources) != 1 or unknown:
            said = f"; unknown: {', '.join(sorted(map(str, unknown)))}" if unknown else ""
            raise InvalidRequestError(
                "a document has one of `path`, `url` and `file_id`, and may have `title`, "
                f"`context` and `image`{said}"
            )
        found = Document(_source(*sources[0]), **fields)
    else:
        found = Document(cast("Any", given))
    source = cast("object", found.source)
    if isinstance(source, bytes) and not source:
        raise InvalidRequestError(f"document {found.name}: is empty")
    if not isinstance(source, str | bytes | os.PathLike) or not source:
        raise InvalidRequestError(
            f"a document is a path, bytes, a URL or a file id, not {source!r}"
        )
    for name, kind, what in _OPTIONS:
        value = getattr(found, name)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequestError(
                f"document {found.name}: its `{name}` must be {what}, not {value!r}"
            )
    return found


def _source(word: str, given: object) -> Any:
    """Return the source that a mapping names: a path is never taken for an id, nor the reverse."""
    if not isinstance(given, str) or not given:
        return given  # the caller reports it
    if word == "path":
        return Path(given)
    if word == "url" and not _URL.match(given):
        raise InvalidRequestError(
            f"`url` must begin with http:// or https://, not {given!r}; a file is a `path`"
        )
    if word == "file_id" and not _FILE_ID.fullmatch(given):
        raise InvalidRequestError(
            f"`file_id` must be the id of an uploaded file (file_…), not {given!r}; a file on "
            "this machine is a `path`"
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


class Shared(msgspec.Struct, frozen=True):
    """Messages with documents, and the positions of those that are large enough to be uploaded."""

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
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    citations: bool,
) -> Shared:
    """Return messages with the documents before the first user's text, as the API advises.

    Raises `InvalidRequestError`, which names the document and its problem.
    """
    blocks, contents = _blocks(documents_of(documents), model, citations)
    built = list(messages)
    for place, message in enumerate(built):
        if message["role"] == "user":
            own: object = message["content"]
            if not isinstance(own, str | list | tuple):
                raise InvalidRequestError(
                    f"message {place + 1}: its content must be a text or a list of blocks"
                )
            after: list[Any] = (
                [{"type": "text", "text": own}]
                if isinstance(own, str)
                else [*cast("Sequence[Any]", own)]
            )
            built[place] = {**message, "content": [*blocks, *after]}
            return Shared(built, place, contents)
    raise InvalidRequestError("`documents` need a message of the user, but there is none")


class _Read(NamedTuple):
    """A document that was read: its block's source, its type, and its digest."""

    source: dict[str, str]
    media: Media
    size: int
    digest: str | None
    """None if it is too small to be uploaded."""


def _blocks(
    documents: Sequence[Document], model: str, citations: bool
) -> tuple[list[dict[str, Any]], list[tuple[int, Content]]]:
    """Return the blocks of documents, and the positions and contents of the large ones.

    ``citations``: whether the model cites them; the API requires one value for all of a request.
    """
    blocks: list[dict[str, Any]] = []
    shared: list[tuple[int, Content]] = []
    pages, sizes = 0, list[tuple[int, int]]()
    for document in documents:
        try:
            block, read = _block(document)
        except ValueError as error:
            raise InvalidRequestError(f"document {document.name}: {error}") from None
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
            f"accepts {most}; split them over several requests"
        )
    if len(sizes) > _MANY_IMAGES and max(map(max, sizes)) > _SIDE_OF_MANY:
        raise InvalidRequestError(
            f"it has {len(sizes)} images, and with more than {_MANY_IMAGES} none may be larger "
            f"than {_SIDE_OF_MANY:,} pixels a side"
        )
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
        from claude_batch.actor.docx import text_of_docx  # rarely used, and slow to import

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
