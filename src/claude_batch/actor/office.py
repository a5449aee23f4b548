"""DOCX as Markdown: what the API does not take is converted here, by the extra ``docx``.

A large one is converted in a process of its own, whose time and memory are bounded.
"""

from __future__ import annotations

import io
from typing import Any

from claude_batch.actor.markdown import markdown_of
from claude_batch.core.limited import run_limited
from claude_batch.wire.media import unpacked_size

__all__ = ["convert", "text_of_docx"]

CHEAP = 200_000
"""Bytes, unpacked, that are converted in this process: they take a second at most."""
SECONDS = 60.0
"""Of processor time that a larger one may take. A megabyte takes one to five."""


def text_of_docx(data: bytes) -> str:
    """A DOCX as Markdown of headings, paragraphs, lists and tables; pictures are left out.

    Raises ``ValueError``, which says what is wrong with the document, or that the extra is missing.
    """
    try:
        import mammoth  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ValueError(
            "is a DOCX, which needs the extra `docx` (pip install 'claude-batch[docx]'); or save "
            "it as PDF"
        ) from None
    if unpacked_size(data) > CHEAP:
        text = run_limited(f"{__name__}:convert", data, seconds=SECONDS).decode()
    else:
        text = _markdown(mammoth, data)
    if not text:
        raise ValueError("is a DOCX without any text")
    return text


def convert(data: bytes) -> bytes:
    """The Markdown of a DOCX, as UTF-8, for a process of its own. Raises ``ValueError``."""
    import mammoth  # pyright: ignore[reportMissingTypeStubs]

    return _markdown(mammoth, data).encode()


def _markdown(library: Any, data: bytes) -> str:
    try:
        # Its author has given up its own Markdown, and its raw text has no tables or headings.
        html = library.convert_to_html(io.BytesIO(data), convert_image=_no_image).value
        return markdown_of(str(html))
    except MemoryError:
        raise  # said in its own words by the process that bounds it
    except Exception as error:
        # Whatever a broken part makes the library raise: it names no errors of its own.
        raise ValueError(
            f"is a DOCX that cannot be read: {type(error).__name__}: {error}"
        ) from None


def _no_image(_: object) -> list[object]:
    return []
