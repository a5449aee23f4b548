"""Requests of a run as flat rows of plain values, for tables and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from claude_batch.actor.output import OutputFormat
from claude_batch.actor.response import ActorResponse, time_of
from claude_batch.core.errors import AnswerError, error_type
from claude_batch.ledger import queries
from claude_batch.ledger.queries import Answer
from claude_batch.ledger.store import Ledger
from claude_batch.providers.export import parsed_values
from claude_batch.providers.mapping import result_of

OutputOf = Callable[[int], OutputFormat[Any] | None]
"""Returns the parser of the answer at a position, if there is one."""


def rows_of(ledger: Ledger, run_id: str, output_of: OutputOf) -> Iterator[dict[str, Any]]:
    """Yield every request of a run in input order, also those without an outcome."""
    with ledger.read() as tx:
        asked = time_of(queries.run_row(tx, run_id).created)
    for answer in queries.answers_by_position(ledger, run_id):
        yield _row(answer, asked, output_of(answer.position))


def _row(
    answer: Answer, asked: datetime | None, output: OutputFormat[Any] | None
) -> dict[str, Any]:
    result = result_of(answer) if answer.state.is_final else None
    error = None if result is None else result.error
    response: ActorResponse | None = None if result is None else result.response
    text: str | None = None
    billed = response is not None
    if isinstance(error, AnswerError):
        # The answer is not reliable, but it was received and billed.
        response, text, billed = error.response, error.text, True
    usage = None if response is None else response.usage
    parsed: dict[str, Any] = {}
    if response is not None:
        text = response.text
        if error is None:
            parsed = parsed_values(response, output)
    value = parsed.get("parsed")
    return {
        "id": answer.key if answer.key is not None else str(answer.position + 1),
        "position": answer.position,
        "state": answer.state.value,
        "ok": None if result is None else result.ok,
        "text": text,
        "parsed": None if value is None else msgspec.json.encode(value).decode(),
        "stop_reason": None if response is None else response.stop_reason,
        "model": None if response is None else response.model,
        "input_tokens": None if usage is None else usage.input_tokens,
        "output_tokens": None if usage is None else usage.output_tokens,
        "cache_read_input_tokens": None if usage is None else usage.cache_read_input_tokens,
        "cache_creation_input_tokens": None if usage is None else usage.cache_creation_input_tokens,
        "cost_usd": answer.cost / 1e9 if billed and answer.cost is not None else None,
        "error_type": None if error is None else error_type(error),
        "error_message": None if error is None else str(error),
        "batch_id": answer.batch_id,
        "attempt": answer.attempt,
        "turns": None if response is None else answer.turns,
        "via": None if response is None else response.via,
        "reused": None if result is None else result.reused,
        "asked": asked,
        "answered": None if result is None else result.answered,
        "context": None if answer.context is None else answer.context.decode(),
    }
