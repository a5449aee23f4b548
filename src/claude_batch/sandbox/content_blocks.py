"""The API's rules for messages and their content blocks, and for the results of tools in them."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

from .api_errors import api_message, decoded, invalid, unknown_tag
from .model_profiles import SAMPLING_FREE_VERSION

IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_MEDIA = {"image": IMAGES, "document": ("application/pdf",)}
"""Media types of base64 sources, by the type of their block."""

_CALL = ("caller", "id", "input", "name")
_RESULT = ("content", "tool_use_id")
_BLOCKS = {
    "text": ("text", "citations"),
    "image": ("source", "transformations"),
    "document": ("source", "citations", "context", "title"),
    "search_result": ("source", "citations", "content", "title"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": (*_CALL, "toolset_name"),
    "tool_result": (*_RESULT, "is_error", "toolset_name"),
    "tool_addition": ("tool",),
    "tool_removal": ("tool",),
    "server_tool_use": _CALL,
    "web_search_tool_result": (*_RESULT, "caller"),
    "web_fetch_tool_result": (*_RESULT, "caller"),
    "advisor_tool_result": _RESULT,
    "code_execution_tool_result": _RESULT,
    "bash_code_execution_tool_result": _RESULT,
    "text_editor_code_execution_tool_result": _RESULT,
    "tool_search_tool_result": _RESULT,
    "container_upload": ("file_id",),
    "mcp_tool_use": ("id", "input", "name", "server_name"),
    "mcp_tool_result": (*_RESULT, "is_error"),
    "mcp_tool_listing": ("mcp_server_name", "tools"),
    "compaction": ("content", "encrypted_content", "signature", "tool_changes"),
    "fallback": ("from", "to", "trigger"),
}
"""Types of a message's blocks with their fields, of the API and its beta (from the SDK's 2.14
types). Each block may have `type` and `cache_control` too."""


class Block(msgspec.Struct, gc=False):
    """A content block of a message; fields that the sandbox does not read are skipped."""

    type: str
    text: Any = None
    title: Any = None
    source: Any = None
    content: Any = None
    citations: Any = None
    tool_use_id: Any = None
    id: Any = None
    name: Any = None


class MessageParam(msgspec.Struct, gc=False):
    """One of a request's messages."""

    role: str
    content: str | list[Block]


def blocks_of(message: MessageParam) -> list[Block]:
    """Return the message's content blocks; empty if its content is a plain string."""
    return [] if isinstance(message.content, str) else message.content


def inner_blocks(block: Block) -> list[tuple[str, dict[str, Any]]]:
    """Return the blocks inside a tool's result or a document, each after its path in the block."""
    found: list[tuple[str, dict[str, Any]]] = []
    source: Any = block.source
    held = cast(dict[str, Any], source).get("content") if isinstance(source, dict) else None
    for path, content in (("content", block.content), ("source.content", held)):
        if isinstance(content, list):
            for number, inner in enumerate(cast(list[Any], content)):
                if isinstance(inner, dict):
                    found.append((f"{path}.{number}", cast(dict[str, Any], inner)))
    return found


def sources_of(block: Block) -> list[Any]:
    """Return the sources of the block and of the blocks inside it."""
    if block.source is None and block.content is None:
        return []
    sources: list[Any] = [block.source, *(inner.get("source") for _, inner in inner_blocks(block))]
    return [each for each in sources if each is not None]


def cites(messages: list[MessageParam]) -> bool:
    """Return whether any document or search result of the messages has citations enabled."""
    for message in messages:
        for block in blocks_of(message):
            settings: Any = block.citations
            if isinstance(settings, dict) and cast(dict[str, Any], settings).get("enabled"):
                return True
    return False


def check_messages(messages: list[MessageParam], version: str) -> None:
    """Raise `ApiError` (400) for messages that this `anthropic-version` does not allow."""
    if not messages:
        raise invalid("messages: at least one message is required")
    for position, message in enumerate(messages):
        role, content = message.role, message.content
        if role not in ("user", "assistant", "system"):
            raise invalid(f"messages.{position}.role: Input should be 'user' or 'assistant'")
        if not content and role == "user":
            raise invalid(f"messages.{position}: user messages must have non-empty content")
        for number, block in enumerate(blocks_of(message)):
            where = f"messages.{position}.content.{number}"
            if block.type not in _BLOCKS:
                raise unknown_tag(where, block.type, tuple(_BLOCKS))
            if (
                block.type == "document"
                and role == "assistant"
                and version >= SAMPLING_FREE_VERSION
            ):
                raise invalid(f"{where}: document blocks are not permitted in assistant messages")
            _check_block(block, where)
            if block.type == "text" and not block.text:  # a tool may return an empty one
                raise invalid("messages: text content blocks must be non-empty")


def _check_block(block: Block, where: str) -> None:
    where = f"{where}.{block.type}"
    if block.type == "text":
        _check_text(block.text, where)
    elif block.type in ("document", "image"):
        if not isinstance(block.citations, dict | None):
            raise invalid(f"{where}.citations: Input should be a valid dictionary")
        if block.source is None:
            raise invalid(f"{where}.source: Field required")
        _check_source(block.source, f"{where}.source", _MEDIA[block.type])
    elif block.type == "tool_result":
        _check_inner(block.content, f"{where}.content")


def _check_text(text: Any, where: str) -> None:
    if text is None:
        raise invalid(f"{where}.text: Field required")
    if not isinstance(text, str):
        raise invalid(f"{where}.text: Input should be a valid string")


def _check_source(source: Any, where: str, media: tuple[str, ...]) -> None:
    fields = cast(dict[str, Any], source) if isinstance(source, dict) else {}
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{where}: Input should be a valid dictionary with a type")
    if kind == "base64" and fields.get("media_type") not in media:
        known = ", ".join(repr(each) for each in media)
        raise invalid(f"{where}.base64.media_type: Input should be {known}")
    if kind == "content":
        if not fields.get("content"):
            raise invalid(f"{where}.content.content: Field required")
        _check_inner(fields["content"], f"{where}.content.content")


def _check_inner(content: Any, where: str) -> None:
    """Check the content of a tool's result or of a document, which may be blocks too."""
    try:
        inner = cast(
            str | list[Block] | None, msgspec.convert(content, type=str | list[Block] | None)
        )
    except msgspec.ValidationError as error:
        raise invalid(api_message(str(error), where)) from None
    if isinstance(inner, list):
        for number, block in enumerate(inner):
            _check_block(block, f"{where}.{number}")


class _WholeMessage(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]]


_decode_whole = msgspec.json.Decoder(list[_WholeMessage]).decode


def check_fields(messages: Raw) -> None:
    """Raise `ApiError` (400) for a field that no block of its type has.

    ``messages`` were checked by `check_messages`.
    """
    for position, message in enumerate(decoded(_decode_whole, messages, "messages")):
        for number, block in enumerate(message.content):
            if isinstance(block, str):
                break
            known = (*_BLOCKS[block["type"]], "type", "cache_control")
            if extra := [name for name in block if name not in known]:
                where = f"messages.{position}.content.{number}.{block['type']}.{extra[0]}"
                raise invalid(f"{where}: Extra inputs are not permitted")


def check_tool_results(messages: list[MessageParam]) -> None:
    """Check that each tool's result follows its call, and that each call has one result.

    Messages of one role in a row are one turn.
    """
    calls: dict[str, int] = {}
    answered: set[str] = set()
    role = "user"
    for position, message in enumerate(messages):
        if message.role == "system":
            continue
        if (message.role, role) == ("assistant", "user"):
            _check_answered(calls, answered)
            calls, answered = {}, set()
        role = message.role
        for number, block in enumerate(blocks_of(message)):
            where = f"messages.{position}.content.{number}"
            if block.type == "tool_use":
                if role != "assistant":
                    raise invalid(
                        f"messages.{position}: `tool_use` blocks can only be in `assistant` "
                        "messages"
                    )
                calls[_call_id(block.id, f"{where}.tool_use.id")] = position
            elif block.type == "tool_result":
                call_id = _call_id(block.tool_use_id, f"{where}.tool_result.tool_use_id")
                if call_id in answered:
                    raise invalid(
                        f"{where}: each tool_use must have a single result. Found multiple "
                        f"`tool_result` blocks with id: {call_id}"
                    )
                if role != "user" or call_id not in calls:
                    raise invalid(
                        f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: "
                        f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` "
                        "block in the previous message."
                    )
                answered.add(call_id)
    if role == "user":
        _check_answered(calls, answered)


def _call_id(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where}: Input should be a valid string")
    return value


def _check_answered(calls: dict[str, int], answered: set[str]) -> None:
    if missing := [call_id for call_id in calls if call_id not in answered]:
        raise invalid(
            f"messages.{calls[missing[0]]}: `tool_use` ids were found without `tool_result` blocks "
            f"immediately after: {', '.join(missing)}. Each `tool_use` block must have a "
            "corresponding `tool_result` block in the next message."
        )
