"""`Document`: what a request is about, as content blocks that stand before its text.

Documents travel inside the request. A file is read when its request is encoded, and a file that
many requests share is read once as long as it does not change.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias, cast

from claude_batch.core.errors import InvalidRequestError
from claude_batch.wire.media import MAX_PDF_PAGES, Media, media_of

__all__ = ["Document", "DocumentLike", "content_of", "documents_of", "with_documents"]

_URL = re.compile(r"https?://", re.IGNORECASE)
_FILE_ID = re.compile(r"file_[A-Za-z0-9_]+")
_IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_WORDS = ("path", "url", "file_id")
_KEPT = 4
"""Files that are kept in memory for the next request that has them."""
_MANY_IMAGES, _SIDE_OF_MANY = 20, 2000
# Source: https://platform.claude.com/docs/en/build-with-claude/vision


@dataclass(frozen=True, slots=True)
class Document:
    """A PDF, an image (PNG, JPEG, GIF, WebP) or a text (Markdown, CSV, HTML, …).

    What it is, is told by its bytes, not by its name.
    """

    source: str | os.PathLike[str] | bytes
    """The bytes, a path, a URL (``https://…``) that the API fetches, or the id of a file that was
    uploaded to the API (``file_…``)."""
    _: KW_ONLY
    title: str | None = None
    """What the model and citations call it; of a file, its name where nobody says."""
    context: str | None = None
    """What the model is told about it, and never cites. Not for images."""
    image: bool | None = None
    """Whether a URL or an uploaded file is an image; a URL's ending tells where nobody says."""

    @property
    def is_path(self) -> bool:
        """Whether it is a file of this machine."""
        source = self.source
        if isinstance(source, str):
            return not _URL.match(source) and not _FILE_ID.fullmatch(source)
        return not isinstance(source, bytes)

    @property
    def name(self) -> str:
        """What a message calls it."""
        if isinstance(self.source, bytes):
            return self.title or f"{len(self.source):,} bytes"
        return os.fspath(self.source)


DocumentLike: TypeAlias = str | os.PathLike[str] | bytes | Document | Mapping[str, Any]
"""What serves as a document: a `Document`, what one is made of, or a mapping with one of ``path``,
``url`` and ``file_id``, and optionally ``title``, ``context`` and ``image``."""


def documents_of(given: Iterable[DocumentLike], key: str | None = None) -> tuple[Document, ...]:
    """Documents from what serves as such. Raises `InvalidRequestError`."""
    if isinstance(given, str | bytes | os.PathLike | Mapping | Document):
        raise InvalidRequestError("`documents` is a list, also of one document", key=key)
    return tuple(_document(each, key) for each in given)


def _document(given: object, key: str | None) -> Document:
    if isinstance(given, Document):
        found = given
    elif isinstance(given, Mapping):
        fields = dict(cast("Mapping[str, Any]", given))
        sources = [fields.pop(word) for word in _WORDS if word in fields]
        unknown = set(fields) - {"title", "context", "image"}
        if len(sources) != 1 or unknown:
            said = f"; unknown: {', '.join(sorted(unknown))}" if unknown else ""
            raise InvalidRequestError(
                "a document has one of `path`, `url` and `file_id`, and may have `title`, "
                f"`context` and `image`{said}",
                key=key,
            )
        found = Document(sources[0], **fields)
    else:
        found = Document(cast("Any", given))
    source = cast("object", found.source)
    if not isinstance(source, str | bytes | os.PathLike) or not source:
        raise InvalidRequestError(
            f"a document is a path, bytes, a URL or a file id, not {source!r}", key=key
        )
    return found


def with_documents(
    documents: Sequence[Document], *, folder: str | None = None
) -> tuple[Document, ...]:
    """The same documents, their paths taken from a folder on."""
    if not folder:
        return tuple(documents)
    return tuple(
        replace(each, source=os.path.join(folder, cast("str", each.source)))
        if each.is_path
        else each
        for each in documents
    )


def content_of(
    documents: Sequence[Document], text: str | None, *, citations: bool, key: str | None
) -> list[dict[str, Any]]:
    """A user's content: documents first, as the API advises, then the text.

    ``citations``: whether the model cites them; the API takes that for all of a request or none.
    Raises `InvalidRequestError`, which names the document and what is wrong with it.
    """
    blocks: list[dict[str, Any]] = []
    pages, sizes = 0, list[tuple[int, int]]()
    for document in documents:
        try:
            block, media = _block(document)
        except ValueError as error:
            raise InvalidRequestError(f"document {document.name}: {error}", key=key) from None
        if media is not None:
            pages += media.pages
            sizes += [media.size] if media.size is not None else []
        if block["type"] == "document" and citations:
            block["citations"] = {"enabled": True}
        blocks.append(block)
    if pages > MAX_PDF_PAGES:
        raise InvalidRequestError(
            f"its PDFs have {pages:,} pages together, and the API takes {MAX_PDF_PAGES} in a "
            "request; ask about them one by one",
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
    return blocks


def _block(document: Document) -> tuple[dict[str, Any], Media | None]:
    source, title = document.source, document.title
    media: Media | None = None
    if isinstance(source, bytes):
        encoded, media = _encoded(source)
    elif document.is_path:
        encoded, media = _encoded_file(os.fspath(source))
        title = title or os.path.basename(document.name)
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
    if media is not None and media.type.startswith("image/"):
        return {"type": "image", "source": encoded}, media
    block: dict[str, Any] = {"type": "document", "source": encoded}
    if title:
        block["title"] = title
    if document.context:
        block["context"] = document.context
    return block, media


def _encoded(data: bytes) -> tuple[dict[str, str], Media]:
    media = media_of(data)
    if media.text is not None:
        return {"type": "text", "media_type": media.type, "data": media.text}, media
    written = base64.b64encode(data).decode("ascii")
    return {"type": "base64", "media_type": media.type, "data": written}, media


def _encoded_file(path: str) -> tuple[dict[str, str], Media]:
    try:
        found = os.stat(path)
        if not os.path.isfile(path):
            raise ValueError("is no file")
        encoded, media = _read(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if path.lower().endswith(".pdf") and media.type != "application/pdf":
        raise ValueError(f"is named as a PDF, and is none (it is {media.type})")
    return encoded, media


@lru_cache(maxsize=_KEPT)
def _read(path: str, changed: int, size: int) -> tuple[dict[str, str], Media]:
    """A file's source; when it changed, and its size, tell it from what it was before."""
    with open(path, "rb") as stream:
        return _encoded(stream.read())
