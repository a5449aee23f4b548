"""DOCX as text: what the API does not take is converted here, by the extra ``docx``."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["text_of_docx"]


def text_of_docx(data: bytes) -> str:
    """A DOCX as HTML of headings, paragraphs, lists and tables; pictures are left out.

    HTML and not plain text, since tables keep their cells. Raises ``ValueError``, which says what
    is wrong with the document, or that the extra is missing.
    """
    try:
        import mammoth  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise ValueError(
            "is a DOCX, which needs the extra `docx` (pip install 'claude-batch[docx]'); or save "
            "it as PDF"
        ) from None
    library: Any = mammoth
    try:
        html = str(library.convert_to_html(io.BytesIO(data), convert_image=_no_image).value)
    except Exception as error:
        # Whatever a broken part makes the library raise: it names no errors of its own.
        raise ValueError(
            f"is a DOCX that cannot be read: {type(error).__name__}: {error}"
        ) from None
    if not html.strip():
        raise ValueError("is a DOCX without any text")
    return html


def _no_image(_: object) -> list[object]:
    return []
