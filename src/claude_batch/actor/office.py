"""Convert a DOCX, which the API does not accept, to Markdown with the extra ``docx``.

A large DOCX is converted in a separate process with limits on time and memory.
"""

from __future__ import annotations

import io
from typing import Any

from claude_batch.actor.markdown import markdown_of
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
