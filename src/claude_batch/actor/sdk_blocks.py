"""Content blocks as objects of the official SDK, which a caller passes back in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel

from claude_batch.wire.inbound import mapping_or_none

_DEPTH: Final = 3
"""Messages have blocks; the blocks of tool results and documents have blocks of their own."""


def plain_messages(messages: Any) -> Any:
    """Return messages whose content blocks are mappings, as the SDK itself sends its objects.

    Blank texts of the assistant are left out, which the API writes but does not accept. The same
    object if nothing changes.
    """
    return _plain(messages, _DEPTH)


def _plain(holders: object, depth: int) -> object:
    if not depth or isinstance(holders, str | bytes) or not isinstance(holders, Sequence):
        return cast("object", holders)
    given = cast("Sequence[object]", holders)
    plain = [_with_plain_content(holder, depth) for holder in given]
    return plain if any(a is not b for a, b in zip(plain, given, strict=True)) else given


def _with_plain_content(holder: object, depth: int) -> object:
    if isinstance(holder, BaseModel):
        # As `anthropic` does: what it has parsed out of a block is no part of the block.
        parsed = getattr(holder, "__api_exclude__", None)
        return holder.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude=parsed)
    if not isinstance(holder, Mapping):
        return holder
    known = cast("Mapping[str, object]", holder)
    content = known.get("content")
    plain = _plain(content, depth - 1)
    if known.get("role") == "assistant":
        plain = _without_blanks(plain)
    return known if plain is content else {**known, "content": plain}


def _without_blanks(content: object) -> object:
    if not isinstance(content, list | tuple):
        return content
    blocks = cast("Sequence[object]", content)
    kept = [block for block in blocks if not _is_blank(block)]
    return blocks if len(kept) == len(blocks) else kept


def _is_blank(block: object) -> bool:
    known = mapping_or_none(block) or {}
    text = known.get("text")
    return known.get("type") == "text" and isinstance(text, str) and not text.strip()
