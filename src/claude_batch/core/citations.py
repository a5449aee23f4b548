"""`Citation`: a passage that an answer cites, and its place in the document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CitedPlace = Literal["characters", "pages", "blocks", "search_result", "web"]
"""The unit or kind of a citation's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A passage of a document that the model cites for a statement.

    Source: https://platform.claude.com/docs/en/build-with-claude/citations
    """

    text: str
    """The passage, verbatim from the document."""
    claim: str
    """The part of the answer that the passage supports."""
    kind: CitedPlace
    """``characters`` of a text, ``pages`` of a PDF, ``blocks`` of a document made of blocks, or of
    a ``search_result``; ``web`` for a page that the API's own search found.
    """
    document: int | None = None
    """Index of the document (or search result) in the request, from 0; None on the web."""
    title: str | None = None
    """The document's title, if it has one."""
    start: int | None = None
    """Start of the passage: characters and blocks from 0, pages from 1. None on the web."""
    end: int | None = None
    """End of the passage, exclusive: the first character, page or block after it."""
    file_id: str | None = None
    """The API's id of the document's file, if it was uploaded."""
    url: str | None = None
    """The address of a web page, or the source of a search result as the caller gave it."""

    @property
    def place(self) -> str:
        """Return text for people: ``page 3``, ``pages 3 to 4``, ``characters 0 to 50``, or a
        URL.
        """
        if self.start is None or self.end is None:
            return self.url or ""
        if self.kind == "characters":
            return f"characters {self.start} to {self.end}"
        word = "page" if self.kind == "pages" else "block"
        last = self.end - 1
        return f"{word} {self.start}" if last <= self.start else f"{word}s {self.start} to {last}"
