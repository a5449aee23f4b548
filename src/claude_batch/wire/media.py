"""The type of a document from its bytes, and whether the API accepts it.

Sources: https://platform.claude.com/docs/en/build-with-claude/pdf-support and …/vision, and the
SDK's types of document and image blocks. The checks are light. They find what is certainly refused
(a password, a truncated file, too many pages or pixels), and let everything else pass.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import deque
from typing import Literal, TypeAlias, get_args

import msgspec

from claude_batch.wire.limits import MAX_PDF_PAGES

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
"""Media type of DOCX. The API does not accept it, so it is converted to text first."""

ImageType: TypeAlias = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
IMAGE_TYPES: tuple[ImageType, ...] = get_args(ImageType)

MAX_IMAGE_SIDE = 8000
"""Most pixels of a side; 2,000 if a request has more than 20 images."""

_HEADERS = 1 << 20
"""Leading bytes of an image that are searched for its size: EXIF data and profiles precede it."""

_PDF = re.compile(rb"(?:\A|[^\x20-\x7e\t])[ \t]*%PDF-")
_TAIL = 4096
_LONGEST_DICTIONARY = 420
"""Most bytes between the name that marks an object stream and the stream itself."""
_BEGIN_OF_STREAM = re.compile(rb"stream\r?\n")
_PAGES = re.compile(rb"/Type\s{0,99}/Pages\b")
_MARKS = re.compile(rb"<<|>>|/Type\s{0,99}/Pages\b|/Count\s{1,99}(\d{1,7})\b")
_PIECE = 1 << 16
_MOST_OF_A_STREAM = 1 << 22
_MOST_UNPACKED = 128_000_000
"""Most bytes of one object stream, and of all object streams of a PDF."""
_MOST_STREAMS = 100_000
_MOST_MARKS = 4_000_000
"""Most brackets and counts in a PDF. The API accepts 600 pages, which have some thousands."""
_DEEPEST = 1000
_OFFICE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
# The only stream of the container of an Office file with a password ([MS-OFFCRYPTO]).
_LARGEST_DOCX = 256_000_000
"""Most bytes of an unpacked DOCX, which is more than a whole batch may have."""
_MOST_FILES = 20_000
_OTHERS = (
    (b"PK\x03\x04", "a ZIP or Office file (XLSX, PPTX, ODT); save it as PDF, or as text"),
    (_OFFICE, "an old Office file; save it as PDF, or as text"),
    (b"{\\rtf", "an RTF file; save it as PDF, or as text"),
    (b"II*\x00", "a TIFF image; save it as PNG or PDF"),
    (b"MM\x00*", "a TIFF image; save it as PNG or PDF"),
    (b"BM", "a BMP image; save it as PNG"),
    (b"\x1f\x8b", "compressed (gzip); unpack it"),
)


class Media(msgspec.Struct, frozen=True):
    """The type and properties of some bytes."""

    type: (
        ImageType
        | Literal[
            "application/pdf",
            "text/plain",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ]
    )
    """Media type in the request.

    Markdown, CSV and HTML are ``text/plain`` for the API, as is a converted DOCX."""
    text: str | None = None
    """The decoded text, if it is a text."""
    pages: int = 0
    """Number of pages of a PDF, or 0 if they cannot be counted."""
    size: tuple[int, int] | None = None
    """Width and height of an image in pixels, or `None` if they cannot be read."""


HEAD = 1024
"""Number of leading bytes that `is_document` examines."""

_IMAGES: dict[bytes, ImageType] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"\xff\xd8\xff": "image/jpeg",
}


def is_document(head: bytes) -> bool:
    """Return whether a file with this beginning is a PDF, an image or an Office file, not text.

    This includes types that the API does not accept; `media_of` reports what to save them as.
    """
    return _is_pdf(head) or _image_type(head) is not None or _other(head) is not None


def _is_pdf(data: bytes) -> bool:
    """Return whether a PDF begins in these bytes: at a line's beginning, or after binary data.

    Other lines may precede it, such as those of a mail. A text about PDFs is none.
    """
    return _PDF.search(data[:HEAD]) is not None


def _image_type(data: bytes) -> ImageType | None:
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), None)


def _other(data: bytes) -> str | None:
    """Return the type and remedy of bytes that the API does not accept, or `None`."""
    for magic, what in _OTHERS:
        if data.startswith(magic) and (magic != b"BM" or b"\0" in data[:64]):
            return what
    return None


def media_of(data: bytes) -> Media:
    """Return the type of these bytes. Raises ``ValueError`` for what the API would refuse."""
    if not data:
        raise ValueError("is empty")
    if _is_pdf(data):
        return _pdf(data)
    if (image := _image_type(data)) is not None:
        return _image(image, data)
    if data.startswith(b"PK\x03\x04") and _is_docx(data):
        return Media(DOCX)
    if data.startswith(_OFFICE) and _ENCRYPTED in data:
        raise ValueError("is an Office file (DOCX, XLSX) with a password; save it without")
    if (what := _other(data)) is not None:
        raise ValueError(f"is {what}")
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError("is not a PDF, an image that the API accepts, or UTF-8 text") from None
    if "\0" in text:
        raise ValueError("is not a PDF, an image that the API accepts, or text")
    if not text.strip():
        raise ValueError("contains only white space")
    return Media("text/plain", text=text)


def _is_docx(data: bytes) -> bool:
    if data.count(b"PK\x01\x02") > _MOST_FILES:
        raise ValueError(f"is a ZIP of more than {_MOST_FILES:,} files; unpack it")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            parts = packed.infolist()
    except (zipfile.BadZipFile, ValueError, OSError):
        # The table of contents of a ZIP is at its end.
        raise ValueError("is a truncated ZIP or Office file; get it again") from None
    if not any(part.filename == "word/document.xml" for part in parts):
        return False
    if (size := sum(part.file_size for part in parts)) > _LARGEST_DOCX:
        raise ValueError(f"is a DOCX of {size:,} bytes unpacked; split it, or save it as PDF")
    return True


def unpacked_size(data: bytes) -> int:
    """Return the total bytes of a DOCX's content, unpacked."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        return sum(part.file_size for part in packed.infolist())


def _image(kind: ImageType, data: bytes) -> Media:
    # Imported here, because most runs have no image.
    import imagesize  # pyright: ignore[reportMissingTypeStubs]

    # Only the beginning: the library visits each block of a JPEG, and a file may have millions.
    head = io.BytesIO(data[:_HEADERS])
    width, height = imagesize.get(head, exif_rotation=False)  # pyright: ignore[reportUnknownMemberType]
    if max(width, height) > MAX_IMAGE_SIDE:
        raise ValueError(
            f"is an image of {width:,} by {height:,} pixels, but the API accepts at most "
            f"{MAX_IMAGE_SIDE:,} per side; make it smaller"
        )
    return Media(kind, size=(width, height) if width > 0 and height > 0 else None)


def _pdf(data: bytes) -> Media:
    tail = data[-_TAIL:]
    if b"%%EOF" not in tail:
        raise ValueError("is a truncated PDF (it has no end); get it again")
    if b"/Encrypt" in _trailer(data, tail):
        raise ValueError("is a PDF with a password or encryption; save it without")
    pages = _page_count(data)
    if pages > MAX_PDF_PAGES:
        raise ValueError(
            f"is a PDF of {pages:,} pages, but the API accepts at most {MAX_PDF_PAGES}; split it"
        )
    return Media("application/pdf", pages=pages)


def _trailer(data: bytes, tail: bytes) -> bytes:
    """Return the dictionary that reveals encryption; it is never compressed or encrypted itself."""
    found = re.findall(rb"startxref\s+(\d{1,15})\s", tail)
    start = int(found[-1]) if found else len(data)
    if data.startswith(b"xref", start):
        at = data.find(b"trailer", start)
        return tail if at < 0 else data[at : data.find(b"startxref", at)]
    end = data.find(b"stream", start)  # of a cross-reference stream
    return tail if end < 0 else data[start:end]


def _page_count(data: bytes) -> int:
    """Return the largest count in a node of the page tree; 0 if none can be read.

    Raises ``ValueError`` for a file that takes more work than any that the API accepts. Unpacked
    data is examined piece by piece, and its total is bounded.
    """
    work = _Work()
    most = work.largest_count(data)
    at = data.find(b"/ObjStm")
    while at >= 0:
        begins = _BEGIN_OF_STREAM.search(data, at, at + _LONGEST_DICTIONARY)
        if begins is not None:
            most = max(most, work.largest_count(work.unpacked(data, begins.end())))
        at = data.find(b"/ObjStm", at + 1)
    return most


class _Work:
    """The work that one PDF has taken so far."""

    def __init__(self) -> None:
        self._unpacked = 0
        self._streams = 0
        self._marks = 0

    def unpacked(self, data: bytes, start: int) -> bytes:
        """Return the beginning of a compressed stream; empty if it is not such a stream."""
        self._streams += 1
        if self._streams > _MOST_STREAMS:
            raise ValueError(
                f"is a PDF with more than {_MOST_STREAMS:,} object streams; print it to a new PDF"
            )
        unpack, held = zlib.decompressobj(), bytearray()
        view = memoryview(data)
        while not unpack.eof and len(held) < _MOST_OF_A_STREAM and start < len(data):
            # In small pieces, because zlib copies its unused input.
            piece: bytes | memoryview = view[start : start + _PIECE]
            start += _PIECE
            while piece and not unpack.eof and len(held) < _MOST_OF_A_STREAM:
                try:
                    held += unpack.decompress(piece, _PIECE)
                except zlib.error:
                    start = len(data)
                    break
                piece = unpack.unconsumed_tail
        self._unpacked += len(held)
        if self._unpacked > _MOST_UNPACKED:
            raise ValueError(
                f"is a PDF whose objects unpack to more than {_MOST_UNPACKED:,} bytes; print it "
                "to a new PDF"
            )
        return bytes(held)

    def largest_count(self, part: bytes) -> int:
        """Return the largest ``/Count`` of a dictionary that is a node of the page tree."""
        if _PAGES.search(part) is None:
            return 0
        most = 0
        # For each open dictionary: its count, and whether it is such a node. Images contain
        # brackets too, so old dictionaries may never be closed.
        counts, nodes = deque[int](maxlen=_DEEPEST), deque[bool](maxlen=_DEEPEST)
        for mark in _MARKS.finditer(part):
            self._marks += 1
            if self._marks > _MOST_MARKS:
                raise ValueError(
                    f"is a PDF of more than {_MOST_MARKS:,} parts; print it to a new PDF"
                )
            kind = mark[0][:2]
            if kind == b"<<":
                counts.append(0)
                nodes.append(False)
            elif not counts:
                continue
            elif kind == b">>":
                count = counts.pop()
                if nodes.pop():
                    most = max(most, count)
            elif kind == b"/T":
                nodes[-1] = True
            else:
                counts[-1] = max(counts[-1], int(mark[1]))
        return most
