"""Token counts for images, PDFs and uploaded files, by the API's documentation.

An image has a token for each patch of 28 by 28 pixels, 1,568 at most. Each page of a PDF counts as
such an image plus its text. The sandbox reads the size of PNG and GIF images; others cost nothing
here.
"""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any, cast

IMAGE_TOKENS = 1_568
_PATCH = 28
_UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError),
    *(OSError, RecursionError, TypeError, ValueError, zlib.error),
)
# Exceptions that pypdf's code raises for a damaged file.


def written_size(source: Any) -> int:
    """Return the characters of a source that are base64, and so not text."""
    if not isinstance(source, dict):
        return 0
    fields = cast(dict[str, Any], source)
    data = fields.get("data")
    return len(data) if fields.get("type") == "base64" and isinstance(data, str) else 0


def media_tokens(source: Any) -> int:
    """Return the tokens of an image, a PDF or an uploaded file, beyond its block's bytes."""
    if not isinstance(source, dict):
        return 0
    fields = cast(dict[str, Any], source)
    data: Any = fields.get("data")
    if fields.get("type") == "text":
        # Inline text is part of the messages, and was counted there.
        return -(-len(str(data).encode()) // 4) if "file_id" in fields else 0
    if isinstance(data, str):
        try:
            data = base64.b64decode(data)
        except ValueError:  # no base64, or no ASCII
            return 0
    if not isinstance(data, bytes):
        return 0
    if fields.get("media_type") == "application/pdf":
        return _pdf_tokens(data)
    return _image_tokens(data)


def _image_tokens(data: bytes) -> int:
    if data.startswith(b"\x89PNG"):
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data.startswith(b"GIF8"):
        width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    else:
        return 0
    return min(-(-width // _PATCH) * -(-height // _PATCH), IMAGE_TOKENS)


def _pdf_tokens(data: bytes) -> int:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        pages = PdfReader(io.BytesIO(data)).pages
        texts = [page.extract_text().encode() for page in pages]
    except (PyPdfError, *_UNREADABLE):
        return 0  # no real PDF
    return sum(IMAGE_TOKENS + -(-len(text) // 4) for text in texts)
