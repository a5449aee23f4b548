"""Formats of OUT: JSON lines, or CSV by the file's extension or `--format`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import msgspec

from claude_batch.cli.options import Format
from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.providers.mapping import result_of
from claude_batch.wire.messages import decode_line, output_of_line

CSV_COLUMNS = (
    "id",
    "ok",
    "text",
    "stop_reason",
    "model",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cost_usd",
    "error_type",
    "error_message",
    "batch_id",
    "attempt",
    "via",
)

_NUMBERS = frozenset(("cost_usd",))
"""Number columns that are written as text, so that no digit is lost."""

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet evaluates, or may strip down to a formula."""


def format_of(output: str | None, form: Format | None) -> Format:
    """Return the requested format, or the one of OUT's extension."""
    if form is not None:
        return form
    return "csv" if output is not None and output.lower().endswith(".csv") else "jsonl"


def csv_line(
    answer: Answer,
    error_type: Callable[[Any], str],
    cost_usd: Callable[[int], bytes],
    *,
    safe: bool = False,
) -> bytes:
    """Return one row without its line end; line breaks inside an answer are quoted.

    ``safe``: escape text that a spreadsheet would evaluate as a formula.
    """
    identifier = answer.key if answer.key is not None else str(answer.position + 1)
    row: list[Any]
    if answer.state is RequestState.SUCCEEDED and answer.raw is not None:
        message = output_of_line(answer.raw)
        usage = decode_line(answer.raw).usage
        assert usage is not None
        row = [
            identifier,
            "true",
            message.text,
            message.stop_reason,
            message.model,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            None if answer.cost is None else cost_usd(answer.cost).decode(),
            None,
            None,
        ]
    else:
        error = result_of(answer).error
        assert error is not None
        row = [identifier, "false", *[None] * 8, error_type(error), str(error)]
    via = answer.via if answer.state is RequestState.SUCCEEDED else None
    row += [answer.batch_id, answer.attempt, via]
    return csv_row(list(map(_as_text, row, CSV_COLUMNS)) if safe else row)


def _as_text(value: Any, column: str) -> Any:
    """Put an apostrophe before text that a spreadsheet would evaluate; numbers are unchanged."""
    if isinstance(value, str) and column not in _NUMBERS and value.startswith(_FORMULAS):
        return f"'{value}"
    return value


def csv_row(values: list[Any]) -> bytes:
    """Return values as a row of CSV, without its line end."""
    buffer = io.StringIO()
    # With any other end, a single line break inside a value is not quoted before Python 3.13.
    csv.writer(buffer, lineterminator="\r\n").writerow(values)
    return buffer.getvalue()[:-2].encode("utf-8", "surrogatepass")


def pretty(line: bytes) -> bytes:
    """Return a JSON value, indented for people."""
    return msgspec.json.format(line) + b"\n"
