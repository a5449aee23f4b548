"""The API's citations: whether a request enables them, and those of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from claude_batch.core.citations import Citation, CitedPlace

_PLACES: dict[str, tuple[CitedPlace, str, str, str]] = {
    "char_location": ("characters", "document_index", "start_char_index", "end_char_index"),
    "page_location": ("pages", "document_index", "start_page_number", "end_page_number"),
    "content_block_location": (
        *("blocks", "document_index"),
        *("start_block_index", "end_block_index"),
    ),
    "search_result_location": (
        *("search_result", "search_result_index"),
        *("start_block_index", "end_block_index"),
    ),
    "web_search_result_location": ("web", "", "", ""),
}
# Source: `TextCitation` in anthropic 2.11.


def cites(messages: object) -> bool:
    """Return whether a document or search result in the messages has citations enabled."""
    return any(
        isinstance(settings, Mapping) and cast("Mapping[str, Any]", settings).get("enabled") is True
        for message in _mappings(messages)
        for block in _blocks(message.get("content"))
        for settings in (block.get("citations"),)
    )


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    for block in _mappings(content):
        yield block
        if block.get("type") == "tool_result":
            yield from _mappings(block.get("content"))


def _mappings(values: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        for value in cast("Sequence[object]", values):
            if isinstance(value, Mapping):
                yield cast("Mapping[str, Any]", value)


def citations_of_block(block: Mapping[str, Any]) -> tuple[Citation, ...]:
    """Return the citations of one text block of an answer; unknown kinds are left out."""
    claim = str(block.get("text") or "")
    found: list[Citation] = []
    for given in _mappings(block.get("citations")):
        place = _PLACES.get(str(given.get("type")))
        if place is None:
            continue
        kind, index, start, end = place
        found.append(
            Citation(
                text=str(given.get("cited_text") or ""),
                claim=claim,
                kind=kind,
                document=given.get(index),
                title=given.get("document_title") or given.get("title"),
                start=given.get(start),
                end=given.get(end),
                file_id=given.get("file_id"),
                url=given.get("url") or given.get("source"),
            )
        )
    return tuple(found)
