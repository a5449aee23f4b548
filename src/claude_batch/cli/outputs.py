"""OUT: one JSON object per line, in input order, written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import msgspec

from claude_batch.cli.formats import CSV_COLUMNS, csv_line, csv_row
from claude_batch.cli.options import Format
from claude_batch.cli.terminal import visible, visible_json
from claude_batch.cli.user_messages import (
    BadOutput,
    forget_stdout,
    on_terminal,
    require_stdout,
    say,
    unwritable,
)
from claude_batch.core import temporary_files
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.dollars import decimal_usd
from claude_batch.core.errors import (
    ActorError,
    AnswerError,
    AnswerRefusedError,
    BatchRequestError,
    ContextWindowExceededError,
    ConversationStoppedError,
    MalformedAnswerError,
    OutputValidationError,
    SubmissionUnknownError,
    ToolInterruptedError,
    TurnLimitError,
)
from claude_batch.core.states import RequestState
from claude_batch.ledger.queries import Answer
from claude_batch.providers.mapping import result_of
from claude_batch.wire.messages import output_of_line

CHUNK_BYTES = 1 << 20
"""Bytes of lines that are written at once."""


class _Success(msgspec.Struct, gc=False):
    id: str
    ok: bool
    text: str
    content: msgspec.Raw
    stop_reason: str | None
    model: str | None
    usage: msgspec.Raw
    batch_id: str | None
    attempt: int
    via: str
    cost_usd: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reused: bool | msgspec.UnsetType = msgspec.UNSET


class _Error(msgspec.Struct, gc=False):
    type: str
    message: str


class _Failure(msgspec.Struct, gc=False):
    id: str
    ok: bool
    error: _Error
    batch_id: str | None
    attempt: int
    # The content that was received and paid for, if any.
    text: str | msgspec.UnsetType = msgspec.UNSET
    stop_reason: str | msgspec.UnsetType | None = msgspec.UNSET
    cost_usd: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_ANSWERED: dict[type[AnswerError], str] = {
    AnswerRefusedError: "refusal",
    ContextWindowExceededError: "model_context_window_exceeded",
    MalformedAnswerError: "malformed_answer",
    OutputValidationError: "invalid_output",
    TurnLimitError: "max_turns",
    ToolInterruptedError: "tool_interrupted",
    ConversationStoppedError: "too_large",
}

_encode = msgspec.json.Encoder().encode


def output_line(answer: Answer) -> bytes:
    """Return one line of OUT without its end: the API's content and usage, byte for byte."""
    identifier = answer.key if answer.key is not None else str(answer.position + 1)
    if answer.state is RequestState.SUCCEEDED and answer.raw is not None:
        message = output_of_line(answer.raw)
        return _encode(
            _Success(
                identifier,
                True,
                message.text,
                message.content,
                message.stop_reason,
                message.model,
                message.usage,
                answer.batch_id,
                answer.attempt,
                answer.via,
                msgspec.UNSET if answer.cost is None else msgspec.Raw(cost_usd(answer.cost)),
                bool(answer.reused) or msgspec.UNSET,
            )
        )
    error = result_of(answer).error
    assert error is not None
    fault = _Error(error_type(error), str(error))
    line = _Failure(identifier, False, fault, answer.batch_id, answer.attempt)
    if isinstance(error, AnswerError):
        line.text, line.stop_reason = error.text, error.stop_reason
        if answer.cost is not None:
            line.cost_usd = msgspec.Raw(cost_usd(answer.cost))
    return _encode(line)


def cost_usd(nano: int) -> bytes:
    """Return nano-dollars as dollars in JSON, with every digit."""
    return decimal_usd(nano).encode()


def error_type(error: ActorError) -> str:
    """Return the API's error type if there is one, else a type for what happened."""
    if isinstance(error, BatchRequestError):
        return error.error_type or error.outcome
    if isinstance(error, AnswerError):
        return _ANSWERED[type(error)]
    return "submission_unknown" if isinstance(error, SubmissionUnknownError) else "missing_result"


def check_writable(output: str | None) -> None:
    """Check that OUT can be written, before anything is paid for. Raises `BadOutput`."""
    if output is None:
        try:
            require_stdout()
        except BadOutput as error:
            raise BadOutput(f"{error}; name a file with -o. Nothing was sent") from None
        return
    if os.path.isdir(output):
        raise BadOutput(f"{output}: is a directory; name a file with -o. Nothing was sent")
    try:
        if not _is_special(output):
            probe(Path(os.path.realpath(output)))
    except OSError as error:
        raise BadOutput(
            f"{output}: cannot be written: {error.strerror}. Nothing was sent"
        ) from None


def probe(target: Path) -> None:
    """Check that a file can be created in the target's folder. Raises `OSError`."""
    descriptor, path = temporary_files.create_beside(target)
    os.close(descriptor)
    path.unlink()


def write_output(answers: Iterable[Answer], output: str | None, form: Format = "jsonl") -> bool:
    """Write every answer as a line, in this format.

    A file appears only when it is complete and on disk. ``output`` None means standard output;
    returns False if its reader closed it before the end. Raises `BadOutput`.
    """
    if output is None:
        chunks = _chunks(answers, form)
        return _write_stdout(_visible(chunks, form) if on_terminal() else chunks)
    try:
        with open(output, "wb") if _is_special(output) else replacing(output) as stream:
            stream.writelines(_chunks(answers, form))
    except OSError as error:
        raise BadOutput(f"{output}: cannot be written: {error.strerror}") from None
    return True


def _write_stdout(chunks: Iterable[bytes]) -> bool:
    require_stdout()
    try:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        forget_stdout()
        say(
            "standard output was closed before all results were written; they are kept in the "
            "ledger"
        )
        return False
    except OSError as error:
        raise unwritable(error) from None
    return True


def _visible(chunks: Iterable[bytes], form: Format) -> Iterator[bytes]:
    """Yield lines for a terminal, with the answers' control sequences escaped."""
    show = visible_json if form == "jsonl" else visible
    for chunk in chunks:
        yield show(chunk.decode("utf-8", "surrogatepass")).encode()


def _chunks(answers: Iterable[Answer], form: Format) -> Iterator[bytes]:
    safe = form == "csv-safe"
    lines = [] if form == "jsonl" else [csv_row(list(CSV_COLUMNS))]
    size = 0
    for answer in answers:
        if form == "jsonl":
            line = output_line(answer)
        else:
            line = csv_line(answer, error_type, cost_usd, safe=safe)
        lines.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield b"\n".join(lines) + b"\n"
            lines, size = [], 0
            reach(CrashPoint.DURING_DELIVERY)
    reach(CrashPoint.DURING_DELIVERY)
    if lines:
        yield b"\n".join(lines) + b"\n"


def _is_special(output: str) -> bool:
    """Return True for a pipe or a device, which cannot be replaced and holds no partial file."""
    return os.path.exists(output) and not os.path.isfile(output)


@contextmanager
def replacing(output: str) -> Generator[IO[bytes]]:
    """Yield a stream that replaces OUT, whole and flushed, when the block succeeds.

    A link stays a link: its target is replaced.
    """
    path = Path(os.path.realpath(output))
    with temporary_files.replacing(path, mode=usual_mode(), sweep=True) as stream:
        yield stream


@cache
def usual_mode() -> int:
    """Return the mode that the user's umask sets for a new file."""
    umask = os.umask(0o077)  # the only way to read it; files made meanwhile only get stricter modes
    os.umask(umask)
    return 0o666 & ~umask
