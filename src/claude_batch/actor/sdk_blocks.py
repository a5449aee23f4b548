"""Content blocks as objects of the official SDK, which a caller passes back in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel

from claude_batch.wire.inbound import mapping_or_none

_DEPTH: Final = 3
"""Messages have blocks; the blocks of tool results and documents have blocks of their own."""


def plain_messages(messages: Any) -> Any:
    """Return a copy of messages whose blocks are mappings, as the SDK itself sends its objects.

    A copy, because the caller may go on with its list before the request is encoded. Blank texts of
    the assistant are left out, which the API writes but does not accept.
    """
    return _plain(messages, _DEPTH)


def _plain(holders: object, depth: int) -> object:
    if not depth or isinstance(holders, str | bytes) or not isinstance(holders, Sequence):
        return cast("object", holders)
    return [_with_plain_content(holder, depth) for holder in cast("Sequence[object]", holders)]


def _with_plain_content(holder: object, depth: int) -> object:
    if isinstance(holder, BaseModel):
        # As `anthropic` does: what it has parsed out of a block is no part of the block.
        parsed = getattr(holder, "__api_exclude__", None)
        return holder.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude=parsed)
    if not isinstance(holder, Mapping):
        return holder
    known = dict(cast("Mapping[str, object]", holder))
    if "content" in known:
        known["content"] = _plain(known["content"], depth - 1)
        if known.get("role") == "assistant":
            known["content"] = _without_blanks(known["content"])
    return known


def _without_blanks(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [block for block in cast("list[object]", content) if not _is_blank(block)]


def _is_blank(block: object) -> bool:
    known = mapping_or_none(block) or {}
    text = known.get("text")
    return known.get("type") == "text" and isinstance(text, str) and not text.strip()
