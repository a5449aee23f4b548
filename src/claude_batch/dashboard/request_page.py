"""The page of a request: its prompt, each attempt and turn, and the answer with its citations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec
from markupsafe import Markup

from claude_batch.core.citations import Citation
from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.states import RequestState
from claude_batch.dashboard.answer_text import LONGEST, render_markdown
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.ledger import page_queries, queries
from claude_batch.ledger.store import Record
from claude_batch.wire.inbound import mapping_or_none
from claude_batch.wire.messages import (
    UnreadableLine,
    citations_of_block,
    decode_line,
    decode_message,
    message_of_line,
)

_MESSAGES: Final = 60
"""Messages of a conversation that are shown: the newest."""

_BLOCKS: Final = 100
"""Blocks of one message that are shown."""


class Block(NamedTuple):
    """A part of a prompt or of an answer."""

    kind: str
    """``text``, ``thinking``, ``tool call``, ``tool result``, ``document``, ``image``, …"""
    title: str
    text: str
    """What it says; the beginning of it, if it is long."""
    rendered: Markup | None
    """The text of an answer as HTML."""
    left_out: int
    """Number of characters that are not shown."""
    citations: tuple[tuple[int, Citation], ...] = ()
    """Numbered passages of documents that it cites."""


class Turn(NamedTuple):
    """A message of the conversation."""

    role: str
    blocks: tuple[Block, ...]


class Attempt(NamedTuple):
    """A result that the request got."""

    number: int
    row: Record
    words: str
    """The API's words of a failure."""


def request_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of a request. Raises `RunNotFoundError`."""
    status = reader.status(values["run_id"])
    run_id = status.run_id
    request, params, results, calls = _read(reader, run_id, values["number"])
    answered = next((row for row in results if row.sending == request.answered_by), None)
    prompt = _decode(params)
    answer, reason, model = _answer_of(answered)
    # The params of a conversation's present turn hold its earlier ones.
    turns = _turns(prompt.get("messages"))
    citations = [each for block in answer for each in block.citations]
    position = int(request.position)
    return {
        "status": status,
        "request": request,
        "state": RequestState(request.state),
        "number": position + 1,
        "turns": turns[-_MESSAGES:],
        "turns_left_out": max(0, len(turns) - _MESSAGES),
        "system": _blocks(prompt.get("system")),
        "settings": _settings(prompt),
        "tools": _tool_names(prompt.get("tools")),
        "answer": answer,
        "citations": citations,
        "stop_reason": reason,
        "model": model or prompt.get("model") or "",
        "answered": answered,
        "attempts": [
            Attempt(number, row, _words_of(row.raw)) for number, row in enumerate(results, 1)
        ],
        "calls": [(row, *_cut(_tool_output(row.output))) for row in calls],
        "cost": sum(row.cost or 0 for row in results),
        "raw": _pretty(None if answered is None else answered.raw),
        "raw_params": _pretty(params),
        "before": position if position else None,
        "following": position + 2 if position + 1 < status.total else None,
    }


def _read(
    reader: LedgerReader, run_id: str, number: str
) -> tuple[Record, bytes, list[Record], list[Record]]:
    with reader.ledger.read() as tx:
        request = None
        if number.isdecimal() and len(number) < 16:
            request = page_queries.request_at(tx, run_id, int(number) - 1)
        if request is None:
            raise RunNotFoundError(f"{run_id} has no request {number[:30]!r}")
        return (
            request,
            page_queries.params_of(tx, request.seq),
            page_queries.results_of_request(tx, request.seq),
            page_queries.tool_calls_of(tx, request.seq),
        )


def raw_of(reader: LedgerReader, values: Mapping[str, str]) -> tuple[str, bytes]:
    """Return a name for a file, and a request's params or one of its result lines, as stored.

    Raises `RunNotFoundError`.
    """
    with reader.ledger.read() as tx:
        run = queries.find_run(tx, values["run_id"])
    if run is None:
        raise RunNotFoundError(f"the ledger has no run {values['run_id'][:100]!r}")
    request, params, results, _ = _read(reader, run.id, values["number"])
    name = f"{run.id}-{request.position + 1}"
    if values["what"] == "params":
        return f"{name}-params.json", params
    for number, row in enumerate(results, 1):
        if values["what"] == f"result-{number}":
            return f"{name}-result-{number}.json", row.raw
    raise RunNotFoundError(f"request {values['number']} of {run.id} has no such part")


# Prompts and answers ------------------------------------------------------------------------------


def _decode(params: bytes) -> Mapping[str, Any]:
    try:
        return mapping_or_none(msgspec.json.decode(params)) or {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _turns(messages: object) -> list[Turn]:
    return [
        Turn(str(message.get("role", "")), tuple(_blocks(message.get("content"))))
        for message in _mappings(messages)
    ]


def _mappings(values: object) -> list[Mapping[str, Any]]:
    if not isinstance(values, list):
        return []
    found = (mapping_or_none(each) for each in cast("list[object]", values))
    return [each for each in found if each is not None]


def _blocks(content: object) -> list[Block]:
    if isinstance(content, str):
        return [_text_block("text", "", content)]
    return [_block(each) for each in _mappings(content)[:_BLOCKS]]


def _block(block: Mapping[str, Any]) -> Block:
    kind = str(block.get("type", ""))
    match kind:
        case "text":
            return _text_block("text", "", _as_text(block.get("text")))
        case "thinking":
            return _text_block(kind, "", _as_text(block.get("thinking")))
        case "tool_use" | "server_tool_use":
            name = _as_text(block.get("name"))
            return _text_block("tool call", name, _json_text(block.get("input")))
        case "document" | "image":
            return _document(kind, block)
        case _ if kind.endswith("tool_result"):
            failed = "failed" if block.get("is_error") else ""
            return _text_block("tool result", failed, _content_text(block.get("content")))
        case _:
            return _text_block(kind.replace("_", " "), "", _json_text(block))


def _document(kind: str, block: Mapping[str, Any]) -> Block:
    fields = mapping_or_none(block.get("source")) or {}
    data = fields.get("data")
    what = [_as_text(fields.get("media_type") or fields.get("type"))]
    text = ""
    if fields.get("type") == "text":
        text = _as_text(data)
    elif isinstance(data, str):
        what.append(f"{len(data) * 3 // 4:,} bytes")
    else:
        what.append(_as_text(fields.get("file_id") or fields.get("url") or ""))
    title = _as_text(block.get("title") or "")
    return _text_block(kind, " · ".join(each for each in (title, *what) if each), text)


def _text_block(kind: str, title: str, text: str) -> Block:
    shown, left_out = _cut(text)
    return Block(kind, title[:300], shown, None, left_out)


def _cut(text: str) -> tuple[str, int]:
    return text[:LONGEST], max(0, len(text) - LONGEST)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _json_text(value)


def _json_text(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = [_as_text(each.get("text") or each) for each in _mappings(content)]
    return "\n".join(texts)


def _answer_of(row: Record | None) -> tuple[list[Block], str, str]:
    """Return the blocks of an answer, why it stopped, and the model."""
    if row is None:
        return [], "", ""
    try:
        message = decode_message(message_of_line(row.raw))
    except (UnreadableLine, msgspec.DecodeError, RecursionError, AttributeError, TypeError):
        return [], "", ""
    blocks: list[Block] = []
    number = 0
    for given in message.content[:_BLOCKS]:
        block = _block(given)
        if block.kind == "text":
            cited = citations_of_block(given)
            numbered = tuple((number + place, each) for place, each in enumerate(cited, 1))
            number += len(cited)
            block = block._replace(rendered=render_markdown(block.text), citations=numbered)
        blocks.append(block)
    return blocks, message.stop_reason or "", message.model


def _words_of(raw: bytes) -> str:
    try:
        line = decode_line(raw)
    except UnreadableLine as problem:
        return str(problem)[:LONGEST]
    return line.fault if line.error is None else line.error.message[:LONGEST]


def _settings(prompt: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parameters beside the texts, as text."""
    texts = ("messages", "system", "tools")
    return [(name, _json_text(value)[:500]) for name, value in prompt.items() if name not in texts]


def _tool_names(tools: object) -> list[str]:
    return [_as_text(tool.get("name") or tool.get("type")) for tool in _mappings(tools)]


def _tool_output(output: bytes | None) -> str:
    if output is None:
        return ""
    try:
        return _content_text(msgspec.json.decode(output))
    except (msgspec.DecodeError, RecursionError):
        return output.decode("utf-8", "replace")


def _pretty(raw: bytes | None) -> str:
    """Return JSON for people; the beginning of what is long."""
    if raw is None:
        return ""
    if len(raw) > LONGEST:
        return raw[:LONGEST].decode("utf-8", "replace") + " …"
    try:
        return msgspec.json.format(raw).decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError):
        return raw.decode("utf-8", "replace")
