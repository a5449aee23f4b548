"""One request from its prompt to its answer, as the ledger has it, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from claude_batch.core.answer_parts import Citation
from claude_batch.core.errors import RunNotFoundError
from claude_batch.core.quantities import count_of
from claude_batch.core.states import RequestState
from claude_batch.core.terminal import encodable
from claude_batch.ledger import page_queries
from claude_batch.ledger.store import Ledger, Record, Transaction
from claude_batch.providers.status import require_run
from claude_batch.wire.inbound import mapping_or_none, mappings
from claude_batch.wire.messages import (
    DecodedMessage,
    UnreadableLine,
    citations_of_block,
    decode_line,
    decode_message,
    message_of_line,
)

_EXAMPLES = 3
"""Ids that the error for an unknown one names."""

_LONGEST_KEY = 60
"""Characters of each."""


class Part(NamedTuple):
    """A block of a prompt or an answer."""

    kind: str
    """``text``, ``thinking``, ``tool call``, ``tool result``, ``document``, ``image``, …"""
    title: str = ""
    """A tool's name, or a document's name, type and size."""
    text: str = ""
    """Of a document only if it is a text; other values as JSON."""
    citations: tuple[Citation, ...] = ()
    inside: tuple[Part, ...] = ()
    """The parts of a tool's result."""


class Turn(NamedTuple):
    """A message of the conversation."""

    role: str
    parts: tuple[Part, ...]


class Attempt(NamedTuple):
    """A result that the request got. Times are seconds since the epoch."""

    number: int
    outcome: str
    error_type: str | None
    message: str
    """The API's words of a failure, or what is wrong with a malformed answer."""
    batch_id: str | None
    """None for a live call."""
    model: str | None
    answered: float | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: int | None
    """Nano-dollars; None if the model has no known price, or the usage cannot be read."""
    line: bytes
    """As the API sent it."""


class ToolCall(NamedTuple):
    """A call of a Python function by the process that drives the run."""

    tool_use_id: str
    name: str
    started: float
    finished: float | None
    is_error: bool | None
    output: bytes | None
    """The content of the tool's result, as JSON."""


class Transcript(NamedTuple):
    """A request, everything that was sent, and everything that came back."""

    run_id: str
    actor: str
    number: int
    """Position in the run, from 1."""
    key: str | None
    state: RequestState
    note: str | None
    """Why its conversation stopped, in words."""
    params: bytes
    """The Messages params of the last turn, as JSON; they contain the earlier turns."""
    attempts: tuple[Attempt, ...]
    answered_by: int | None
    """Number of the attempt whose result is final."""
    tool_calls: tuple[ToolCall, ...]

    @property
    def id(self) -> str:
        """Return the request's id, as in an output line."""
        return str(self.number) if self.key is None else self.key

    @property
    def cost(self) -> int:
        """Return what all attempts cost, as far as prices are known, in nano-dollars."""
        return sum(attempt.cost or 0 for attempt in self.attempts)

    @property
    def answer(self) -> Attempt | None:
        """Return the attempt whose result is final, or None."""
        return None if self.answered_by is None else self.attempts[self.answered_by - 1]

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON. It has all bytes that were sent and received, unchanged."""
        return {
            "run_id": self.run_id,
            "actor": self.actor,
            "id": self.id,
            "number": self.number,
            "state": str(self.state),
            "note": self.note,
            "cost_usd": self.cost / 1e9,
            "params": _raw(self.params),
            "attempts": [
                {
                    **attempt._asdict(),
                    "cost_usd": None if attempt.cost is None else attempt.cost / 1e9,
                    "line": _raw(attempt.line),
                }
                for attempt in self.attempts
            ],
            "answered_by": self.answered_by,
            "tool_calls": [
                {**call._asdict(), "output": None if call.output is None else _raw(call.output)}
                for call in self.tool_calls
            ],
        }


def _raw(data: bytes) -> msgspec.Raw | str:
    """Return JSON as it is; a text, if it cannot be a part of other JSON."""
    try:
        msgspec.json.format(data)
    except (msgspec.DecodeError, RecursionError):
        return data.decode("utf-8", "replace")
    return msgspec.Raw(data)


# Reading ------------------------------------------------------------------------------------------


def read_transcript(ledger: Ledger, run_id: str, request_id: str) -> Transcript:
    """Read a request by its run and its id: its key, or its number if it has no key.

    Raises `RunNotFoundError` if there is no such run or request.
    """
    with ledger.read() as tx:
        run = require_run(ledger, tx, run_id)
        return transcript_of(tx, run, _find(tx, run, request_id))


def transcript_of(tx: Transaction, run: Record, request: Record) -> Transcript:
    """Return the transcript of a request of `claude_batch.ledger.page_queries`."""
    params = page_queries.params_of(tx, request.seq)
    rows = page_queries.results_of_request(tx, request.seq)
    calls = page_queries.tool_calls_of(tx, request.seq)
    sendings = [row.sending for row in rows]
    final = request.answered_by
    return Transcript(
        run_id=run.id,
        actor=run.actor,
        number=request.position + 1,
        key=request.key,
        state=RequestState(request.state),
        note=request.note,
        params=params,
        attempts=tuple(_attempt(number, row) for number, row in enumerate(rows, 1)),
        answered_by=sendings.index(final) + 1 if final in sendings else None,
        tool_calls=tuple(
            ToolCall(row.tool_use_id, row.name, row.started, row.finished, row.is_error, row.output)
            for row in calls
        ),
    )


def _find(tx: Transaction, run: Record, request_id: str) -> Record:
    found = page_queries.request_of_key(tx, run.id, encodable(request_id))
    if found is None and request_id.isdecimal() and len(request_id) < 16:
        found = page_queries.request_at(tx, run.id, int(request_id) - 1)
        if found is not None and found.key is not None:
            found = None
    if found is None:
        first = page_queries.requests_after(tx, run.id, -1, _EXAMPLES)
        names = [str(row.position + 1) if row.key is None else row.key for row in first]
        shown = ", ".join(repr(name[:_LONGEST_KEY]) for name in names)
        raise RunNotFoundError(
            f"{run.id} has no request {request_id!r}. Of its {count_of(run.request_count, 'id')} "
            f"the first {'is' if len(names) == 1 else 'are'} {shown}"
        )
    return found


def _attempt(number: int, row: Record) -> Attempt:
    try:
        line = decode_line(row.raw)
        message = line.fault if line.error is None else line.error.message
    except UnreadableLine as problem:
        message = str(problem)
    return Attempt(
        number=number,
        outcome=row.outcome,
        error_type=row.error_type,
        message=message,
        batch_id=row.remote_id,
        model=row.model,
        answered=row.ended if row.answered is None else row.answered,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cache_read_tokens=row.cache_read_tokens,
        cache_write_tokens=row.cache_5m_tokens + row.cache_1h_tokens,
        cost=row.cost,
        line=row.raw,
    )


# Prompts and answers ------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """The params that were sent, as far as they can be read."""

    settings: dict[str, str]
    """The parameters beside the texts; those that are no texts as JSON."""
    tools: tuple[str, ...]
    system: tuple[Part, ...]
    turns: tuple[Turn, ...]


def prompt_of(params: bytes) -> Prompt:
    """Return the parts of a request's Messages params."""
    values = _mapping(params)
    texts = ("messages", "system", "tools")
    return Prompt(
        settings={name: _as_text(each) for name, each in values.items() if name not in texts},
        tools=tuple(
            _as_text(tool.get("name") or tool.get("type")) for tool in mappings(values.get("tools"))
        ),
        system=parts_of(values.get("system")),
        turns=tuple(
            Turn(_as_text(message.get("role")), parts_of(message.get("content")))
            for message in mappings(values.get("messages"))
        ),
    )


def answer_of(line: bytes) -> DecodedMessage | None:
    """Return the message of a result line, or None if it has none that can be read."""
    try:
        return decode_message(message_of_line(line))
    except (UnreadableLine, msgspec.DecodeError, RecursionError, AttributeError, TypeError):
        return None


def parts_of(content: object) -> tuple[Part, ...]:
    """Return the parts of the content of a message or of a tool's result: a text, or blocks."""
    if isinstance(content, str):
        return (Part("text", text=content),)
    return tuple(_part(block) for block in mappings(content))


def _part(block: Mapping[str, Any]) -> Part:
    kind = _as_text(block.get("type"))
    match kind:
        case "text":
            return Part(kind, text=_as_text(block.get("text")), citations=citations_of_block(block))
        case "thinking":
            return Part(kind, text=_as_text(block.get("thinking")))
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            return Part("tool call", _as_text(block.get("name")), _pretty(block.get("input")))
        case "document" | "image":
            return _document(kind, block)
        case _ if kind.endswith("tool_result"):
            failed = "failed" if block.get("is_error") else ""
            content = block.get("content")
            if isinstance(content, dict):
                return Part("tool result", failed, _pretty(cast("object", content)))
            return Part("tool result", failed, inside=parts_of(content))
        case _:
            return Part(kind.replace("_", " "), text=_pretty(block))


def _document(kind: str, block: Mapping[str, Any]) -> Part:
    """Return a document with its name, type and size; content that is no text is left out."""
    source = mapping_or_none(block.get("source")) or {}
    data = source.get("data")
    text = ""
    if isinstance(data, str) and source.get("type") == "text":
        text, size = data, count_of(len(data), "character")
    elif isinstance(data, str):
        size = count_of(len(data) * 3 // 4 - data[-2:].count("="), "byte")
    else:
        size = _as_text(source.get("file_id") or source.get("url"))
    words = (block.get("title"), source.get("media_type") or source.get("type"), size)
    return Part(kind, ", ".join(_as_text(each) for each in words if each), text)


def _mapping(data: bytes) -> Mapping[str, Any]:
    try:
        return mapping_or_none(msgspec.json.decode(data)) or {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _as_json(value)


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
