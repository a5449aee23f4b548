"""What a document's bytes are, told by the bytes themselves, and whether the API takes them.

Sources: https://platform.claude.com/docs/en/build-with-claude/pdf-support and …/vision, and the
SDK's types of document and image blocks. The checks are light: they find what is certainly
refused (a password, a file that was cut short, too many pages or pixels), and let pass the rest.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import Literal

from claude_batch.wire.limits import MAX_PDF_PAGES

__all__ = ["DOCX", "IMAGE_TYPES", "Media", "media_of"]

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
"""What the API does not take as it is: it is converted to text first."""

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")

MAX_IMAGE_SIDE = 8000
"""Pixels; 2,000 where a request has more than 20 images."""

_TAIL = 4096
_WIDEST = 1 << 20
"""Bytes of one node of a page tree that are looked at on either side."""
_OBJECT_STREAM = re.compile(rb"/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_PAGES = re.compile(rb"/Type\s*/Pages\b")
_COUNT = re.compile(rb"/Count\s+(\d{1,7})\b")
_OFFICE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
# The one stream of the container that Office puts around a file with a password ([MS-OFFCRYPTO]).
_LARGEST_DOCX = 256_000_000
"""Bytes of a DOCX unpacked: more than a whole batch may have."""
_OTHERS = (
    (b"PK\x03\x04", "a ZIP or Office file (XLSX, PPTX, ODT); save it as PDF, or as text"),
    (_OFFICE, "an old Office file; save it as PDF, or as text"),
    (b"{\\rtf", "an RTF file; save it as PDF, or as text"),
    (b"II*\x00", "a TIFF image; save it as PNG or PDF"),
    (b"MM\x00*", "a TIFF image; save it as PNG or PDF"),
    (b"BM", "a BMP image; save it as PNG"),
    (b"\x1f\x8b", "compressed (gzip); unpack it"),
)


@dataclass(frozen=True, slots=True)
class Media:
    """What some bytes are."""

    type: Literal[
        "application/pdf",
        "image/jpeg",
        "image/png",
        "image/gif",
        "image/webp",
        "text/plain",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ]
    """The media type that the API is told. Markdown, CSV and HTML are ``text/plain`` to it, and a
    DOCX is once it is converted."""
    text: str | None = None
    """The text, of a text."""
    pages: int = 0
    """Of a PDF, where they can be counted; else 0."""
    size: tuple[int, int] | None = None
    """Of an image: its width and height in pixels, where they can be read."""


def media_of(data: bytes) -> Media:
    """What these bytes are. Raises ``ValueError``, which says what the API would refuse."""
    if not data:
        raise ValueError("is empty")
    if b"%PDF-" in data[:1024]:
        return _pdf(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        size = (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
        return _image(Media("image/png", size=size))
    if data.startswith((b"GIF87a", b"GIF89a")):
        size = (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))
        return _image(Media("image/gif", size=size))
    if data.startswith(b"\xff\xd8\xff"):
        return _image(Media("image/jpeg", size=_jpeg_size(data)))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _image(Media("image/webp", size=_webp_size(data)))
    if data.startswith(b"PK\x03\x04") and _is_docx(data):
        return Media(DOCX)
    if data.startswith(_OFFICE) and _ENCRYPTED in data:
        raise ValueError("is an Office file (DOCX, XLSX) with a password; save it without")
    for magic, what in _OTHERS:
        if data.startswith(magic) and (magic != b"BM" or b"\0" in data[:64]):
            raise ValueError(f"is {what}")
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError("is no PDF, no image that the API takes, and no UTF-8 text") from None
    if "\0" in text:
        raise ValueError("is no PDF, no image that the API takes, and no text")
    if not text.strip():
        raise ValueError("holds nothing but white space")
    return Media("text/plain", text=text)


def _is_docx(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            parts = packed.infolist()
    except (zipfile.BadZipFile, ValueError, OSError):
        # A ZIP's table of contents is its end.
        raise ValueError("is a ZIP or Office file that was cut short; get it again") from None
    if not any(part.filename == "word/document.xml" for part in parts):
        return False
    if (size := sum(part.file_size for part in parts)) > _LARGEST_DOCX:
        raise ValueError(f"is a DOCX of {size:,} bytes unpacked; split it, or save it as PDF")
    return True


def _image(media: Media) -> Media:
    if media.size is not None and max(media.size) > MAX_IMAGE_SIDE:
        width, height = media.size
        raise ValueError(
            f"is an image of {width:,} by {height:,} pixels, and the API takes "
            f"{MAX_IMAGE_SIDE:,} a side at most; make it smaller"
        )
    return media


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = data[at + 5 : at + 7], data[at + 7 : at + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if data[12:16] == b"VP8X":
        width, height = data[24:27], data[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[12:16] == b"VP8 ":
        width, height = data[26:28], data[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


def _pdf(data: bytes) -> Media:
    tail = data[-_TAIL:]
    if b"%%EOF" not in tail:
        raise ValueError("is a PDF that was cut short (it has no end); get it again")
    if b"/Encrypt" in _trailer(data, tail):
        raise ValueError("is a PDF with a password or encryption; save it without")
    pages = _page_count(data)
    if pages > MAX_PDF_PAGES:
        raise ValueError(
            f"is a PDF of {pages:,} pages, and the API takes {MAX_PDF_PAGES} at most; split it"
        )
    return Media("application/pdf", pages=pages)


def _trailer(data: bytes, tail: bytes) -> bytes:
    """The dictionary that tells of encryption: never compressed, and never encrypted."""
    found = re.findall(rb"startxref\s+(\d{1,15})\s", tail)
    start = int(found[-1]) if found else len(data)
    if data.startswith(b"xref", start):
        at = data.find(b"trailer", start)
        return tail if at < 0 else data[at : data.find(b"startxref", at)]
    end = data.find(b"stream", start)  # of a cross-reference stream
    return tail if end < 0 else data[start:end]


def _page_count(data: bytes) -> int:
    """The largest count that a node of the page tree tells; 0 where none can be read."""
    parts = [data]
    for found in _OBJECT_STREAM.finditer(data):
        try:
            parts.append(zlib.decompressobj().decompress(data[found.end() :], 1 << 22))
        except zlib.error:
            continue
    most = 0
    for part in parts:
        for node in _PAGES.finditer(part):
            own = part[_edge(part, node.start(), -1) : _edge(part, node.end(), 1)]
            most = max([most, *(int(count) for count in _COUNT.findall(own))])
    return most


def _edge(part: bytes, at: int, step: int) -> int:
    """Where the dictionary around a place ends (or begins, where ``step`` is -1)."""
    depth = 0
    near = part[at : at + _WIDEST] if step > 0 else part[max(at - _WIDEST, 0) : at]
    offset = at if step > 0 else max(at - _WIDEST, 0)
    opens = b"<<" if step > 0 else b">>"
    for bracket in list(re.finditer(rb"<<|>>", near))[::step]:
        depth += 1 if bracket[0] == opens else -1
        if depth < 0:
            return offset + bracket.start()
    return at
