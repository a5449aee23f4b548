"""The page of a request: its prompt, each attempt and turn, and the answer with its citations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from claude_batch.core.citations import Citation
from claude_batch.core.errors import RunNotFoundError
from claude_batch.dashboard.answer_text import LONGEST, render_markdown
from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.ledger import page_queries
from claude_batch.ledger.store import Record
from claude_batch.providers.status import require_run
from claude_batch.providers.transcript import (
    Attempt,
    Part,
    Transcript,
    answer_of,
    parts_of,
    prompt_of,
    transcript_of,
)

_MESSAGES: Final = 60
"""Messages of a conversation that are shown: the newest."""

_BLOCKS: Final = 100
"""Blocks of one message that are shown."""


class Block(NamedTuple):
    """A part of a prompt or of an answer, as far as it is shown."""

    kind: str
    title: str
    text: str
    """The beginning of it, if it is long."""
    left_out: int
    """Number of characters that are not shown."""
    rendered: Markup | None = None
    """The text of an answer as HTML."""
    citations: tuple[tuple[int, Citation], ...] = ()
    """Numbered passages of documents that it cites."""


def request_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of a request. Raises `RunNotFoundError`."""
    status = reader.status(values["run_id"])
    request, found = _read(reader, status.run_id, values["number"])
    prompt = prompt_of(found.params)
    answer, reason, model = _answer(found.answer)
    return {
        "status": status,
        "request": request,
        "found": found,
        "turns": [(turn.role, _blocks(turn.parts)) for turn in prompt.turns[-_MESSAGES:]],
        "turns_left_out": max(0, len(prompt.turns) - _MESSAGES),
        "system": _blocks(prompt.system),
        "settings": [(name, value[:500]) for name, value in prompt.settings.items()],
        "tools": prompt.tools,
        "answer": answer,
        "citations": [each for block in answer for each in block.citations],
        "stop_reason": reason,
        "model": model or prompt.settings.get("model", ""),
        "calls": [(call, *_cut(_output_text(call.output))) for call in found.tool_calls],
        "raw": "" if found.answer is None else _pretty(found.answer.line),
        "raw_params": _pretty(found.params),
        "before": found.number - 1,
        "following": found.number + 1 if found.number < status.total else None,
    }


def _read(reader: LedgerReader, run_id: str, number: str) -> tuple[Record, Transcript]:
    with reader.ledger.read() as tx:
        run = require_run(reader.ledger, tx, run_id)
        request = None
        if number.isdecimal() and len(number) < 10:
            request = page_queries.request_at(tx, run.id, int(number) - 1)
        if request is None:
            raise RunNotFoundError(f"{run.id} has no request {number[:30]!r}")
        return request, transcript_of(tx, run, request)


def raw_of(reader: LedgerReader, values: Mapping[str, str]) -> tuple[str, bytes]:
    """Return a name for a file, and a request's params or one of its result lines, as stored.

    Raises `RunNotFoundError`.
    """
    _, found = _read(reader, values["run_id"], values["number"])
    name = f"{found.run_id}-{found.number}"
    if values["what"] == "params":
        return f"{name}-params.json", found.params
    for attempt in found.attempts:
        if values["what"] == f"result-{attempt.number}":
            return f"{name}-result-{attempt.number}.json", attempt.line
    raise RunNotFoundError(f"request {found.number} of {found.run_id} has no such part")


# Prompts and answers ------------------------------------------------------------------------------


def _blocks(parts: Iterable[Part]) -> list[Block]:
    return [_block(part) for part in tuple(parts)[:_BLOCKS]]


def _block(part: Part, longest: int = LONGEST) -> Block:
    return Block(part.kind, part.title[:300], *_cut(part.text or _text_of(part.inside), longest))


def _text_of(parts: Iterable[Part]) -> str:
    return "\n".join(part.text or part.title for part in parts)


def _cut(text: str, longest: int = LONGEST) -> tuple[str, int]:
    return text[:longest], max(0, len(text) - longest)


def _answer(attempt: Attempt | None) -> tuple[list[Block], str, str]:
    """Return the blocks of an answer, why it stopped, and the model."""
    message = None if attempt is None else answer_of(attempt.line)
    if message is None:
        return [], "", ""
    blocks: list[Block] = []
    number, left = 0, LONGEST
    for part in parts_of(message.content)[:_BLOCKS]:
        # Together: a second of CPU may go into rendering so much Markdown.
        block = _block(part, left)
        left -= len(block.text)
        if part.kind == "text":
            numbered = tuple(enumerate(part.citations, number + 1))
            number += len(part.citations)
            block = block._replace(rendered=render_markdown(block.text), citations=numbered)
        blocks.append(block)
    return blocks, message.stop_reason or "", message.model


def _output_text(output: bytes | None) -> str:
    if output is None:
        return ""
    try:
        return _text_of(parts_of(msgspec.json.decode(output)))
    except (msgspec.DecodeError, RecursionError):
        return output.decode("utf-8", "replace")


def _pretty(raw: bytes) -> str:
    """Return JSON for people; the beginning of what is long."""
    if len(raw) > LONGEST:
        return raw[:LONGEST].decode("utf-8", "replace") + " …"
    try:
        return msgspec.json.format(raw).decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError):
        return raw.decode("utf-8", "replace")
