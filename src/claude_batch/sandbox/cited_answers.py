"""Cited answers: the sandbox's model quotes the documents that allow citations.

It cites the beginning of each, as the API does: by characters of a text, by the first page of a
PDF, by the first block of a document made of blocks. A system prompt may list fields, each as a
line of `[[label]] {JSON schema}`; the answer then has such fields, each cited.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from .instances import instance
from .validation import Block, MessageParam, Params, blocks_of

_FIELD = re.compile(r"^\[\[(\w+)\]\] (\{.*\})$", re.MULTILINE)
_LONGEST = 60

Citation = dict[str, Any]


def citations(messages: list[MessageParam]) -> list[Citation]:
    """Return one citation of the beginning of each document that allows citations."""
    found: list[Citation] = []
    index = 0
    for message in messages:
        for block in blocks_of(message):
            if block.type != "document":
                continue
            settings: Any = block.citations or {}
            if settings.get("enabled"):
                source: Any = block.source or {}
                file_id = source.get("file_id")
                found.append({**_beginning(block), "document_index": index, "file_id": file_id})
                found[-1]["document_title"] = block.title
            index += 1
    return found


def _beginning(block: Block) -> Citation:
    source: Any = block.source or {}
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        content: Any = source.get("content") or ""
        text = str(content if isinstance(content, str) else content[0].get("text"))
        return {
            "type": "content_block_location",
            "cited_text": text,
            "start_block_index": 0,
            "end_block_index": 1,
        }
    if kind == "text":
        text = str(data or "")[:_LONGEST]
        return {
            "type": "char_location",
            "cited_text": text,
            "start_char_index": 0,
            "end_char_index": len(text),
        }
    # The sandbox cannot read the text of a page.
    return {
        "type": "page_location",
        "cited_text": f"The first page of {block.title or 'the document'}.",
        "start_page_number": 1,
        "end_page_number": 2,
    }


def fields_asked(params: Params) -> list[tuple[str, Any]]:
    """Return name and schema of each field that the system prompt requests."""
    if not params.system or b"[[" not in bytes(params.system):
        return []
    system: Any = msgspec.json.decode(params.system)
    blocks = cast(list[dict[str, Any]], [{"text": system}] if isinstance(system, str) else system)
    text = "\n".join(str(block.get("text", "")) for block in blocks)
    return [(found[1], msgspec.json.decode(found[2])) for found in _FIELD.finditer(text)]


def in_fields(
    fields: list[tuple[str, Any]], text: str, cited: list[Citation]
) -> list[dict[str, Any]]:
    """Return the content of an answer in labelled fields: each value is its own, cited block."""
    content: list[dict[str, Any]] = []
    for name, schema in fields:
        value = instance(schema, text)
        for each in cast(list[Any], value) if isinstance(value, list) else [value]:
            written = each if isinstance(each, str) else msgspec.json.encode(each).decode()
            content.append({"type": "text", "text": f"[[{name}]] "})
            content.append({"type": "text", "text": written, "citations": cited})
            content.append({"type": "text", "text": "\n"})
    return content
