"""Results as files and rows: JSON lines, CSV, a folder with one file for each result, flat rows.

A file appears whole or not at all. Functions raise `OSError` if it cannot be written.
"""

from __future__ import annotations

import csv
import errno
import io
import logging
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from claude_batch.actor.output import OutputFormat
from claude_batch.actor.response import ActorResponse, answer_in, time_of
from claude_batch.core import files
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import ActorConfigurationError, ActorError, AnswerError, error_type
from claude_batch.core.quantities import NANO, count_of
from claude_batch.core.settings import on_server
from claude_batch.core.states import RequestState
from claude_batch.ledger import cost_sums, queries
from claude_batch.ledger.backends.sqlite import path_of
from claude_batch.ledger.queries import Answer, Success
from claude_batch.ledger.store import Ledger
from claude_batch.providers.cost_report import CostReport
from claude_batch.providers.mapping import result_of
from claude_batch.providers.status import RunStatus
from claude_batch.wire.conversation import has_format
from claude_batch.wire.messages import decode_line, output_of_line

_log = logging.getLogger(__name__)

Format: TypeAlias = Literal["jsonl", "csv", "csv-safe"]
"""Format of a file. ``csv-safe``: no text cell begins like a spreadsheet formula."""

OutputOf: TypeAlias = Callable[[int], OutputFormat[Any] | None]
"""Returns the parser of the answer at a position, if there is one."""

# Formats ------------------------------------------------------------------------------------------

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

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet evaluates, or may strip down to a formula."""


def format_of(output: str | None, form: Format | None) -> Format:
    """Return the requested format, or the one of OUT's extension."""
    if form is not None:
        if form not in get_args(Format):
            known = ", ".join(get_args(Format))
            raise ActorConfigurationError(f"format: {form!r} is unknown; the formats are: {known}")
        return form
    return "csv" if output is not None and output.lower().endswith(".csv") else "jsonl"


_UNWRITTEN = re.compile(
    r"\.(arrow|avro|bz2|db|duckdb|feather|gz|ods|orc|parquet|sqlite3?|tsv|xls[bmx]?|xml|xz|ya?ml|zip|zst)",
    re.IGNORECASE,
)
"""Extensions of formats that are not written. A file of JSON lines under such a name would be found
unreadable only when it is opened."""


def unwritten_format(output: str | None, form: Format | None) -> str | None:
    """Return why OUT's extension names a format that cannot be written; None if it does not.

    A format that was requested is written under any name.
    """
    if output is None or form is not None:
        return None
    extension = os.path.splitext(output)[1]
    if _UNWRITTEN.fullmatch(extension) is None:
        return None
    return (
        f"{extension} is not a format of the answers; they are written as JSON lines (.jsonl) or "
        "CSV (.csv). For other formats, read the run in Python with cb.to_frame, whose frame "
        "writes them"
    )


def csv_line(answer: Answer | Success, location: str | None = None, *, safe: bool = False) -> bytes:
    """Return one row without its line end; line breaks inside an answer are quoted.

    ``location`` as in `result_of`. ``safe``: escape text that a spreadsheet would evaluate as a
    formula.
    """
    identifier = answer.key if answer.key is not None else str(answer.position + 1)
    row: list[Any]
    if not isinstance(answer, Answer) or _is_success(answer):
        assert answer.raw is not None
        message = output_of_line(answer.raw)
        usage = decode_line(answer.raw).usage
        assert usage is not None
        row = [
            identifier,
            "true",
            *map(msgspec.json.decode, (message.text(), message.stop_reason, message.model)),
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            _cost_cell(answer.cost),
            None,
            None,
            answer.batch_id,
            answer.attempt,
            answer.via,
        ]
    else:
        error = result_of(answer, location).error
        assert error is not None
        values = answer_in(error)
        values |= values.get("usage", {})
        values |= {
            "id": identifier,
            "ok": "false",
            "cost_usd": _cost_cell(error.cost),
            "error_type": error_type(error),
            "error_message": str(error),
            "batch_id": answer.batch_id,
            "attempt": answer.attempt,
        }
        row = [values.get(column) for column in CSV_COLUMNS]
    return csv_row(list(map(_as_text, row, CSV_COLUMNS)) if safe else row)


def _cost_cell(cost: int | None) -> str | None:
    return None if cost is None else cost_usd(cost).decode()


def _as_text(value: Any, column: str) -> Any:
    """Put an apostrophe before text that a spreadsheet would evaluate; numbers are unchanged."""
    # The only number that is written as text, so that no digit is lost, is the cost.
    if isinstance(value, str) and column != "cost_usd" and value.startswith(_FORMULAS):
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


# Lines --------------------------------------------------------------------------------------------

CHUNK_BYTES = 1 << 16
"""Approximate bytes of lines that are written at once."""


_encoder = msgspec.json.Encoder()


def output_line(answer: Answer | Success, location: str | None = None) -> bytes:
    """Return one line of OUT without its end: the API's content and usage, byte for byte.

    ``location`` as in `result_of`.
    """
    if not isinstance(answer, Answer):
        return _success(answer, answer.raw)
    if _is_success(answer):
        assert answer.raw is not None
        return _success(answer, answer.raw)
    return _encoder.encode(_failure(answer, location))


def _is_success(answer: Answer) -> bool:
    return answer.state is RequestState.SUCCEEDED and answer.raw is not None


_LINE = (
    b'{"id":%b,"ok":true,"text":%b,"content":%b,"stop_reason":%b,"model":%b,"usage":%b,'
    b'"batch_id":%b,"attempt":%d,"via":%b%b%b%b}'
)
"""A success. Most of it is copied, which takes half the time of encoding it."""


def _success(answer: Answer | Success, raw: bytes) -> bytes:
    message = output_of_line(raw)
    cost, context = answer.cost, answer.context
    return _LINE % (
        _encoder.encode(answer.key if answer.key is not None else str(answer.position + 1)),
        message.text(),
        message.content,
        message.stop_reason,
        message.model,
        message.usage,
        _encoder.encode(answer.batch_id),
        answer.attempt,
        _encoder.encode(answer.via),
        b"" if cost is None else b',"cost_usd":%b' % cost_usd(cost),
        b',"reused":true' if answer.reused else b"",
        b"" if context is None else b',"context":%b' % context,
    )


def _failure(answer: Answer, location: str | None) -> dict[str, Any]:
    error = result_of(answer, location).error
    assert error is not None
    line: dict[str, Any] = {
        "id": answer.key if answer.key is not None else str(answer.position + 1),
        "ok": False,
        "error": {"type": error_type(error), "message": str(error)},
        **answer_in(error),
        "batch_id": answer.batch_id,
        "attempt": answer.attempt,
    }
    if "usage" in line:
        assert answer.raw is not None
        line["usage"] = msgspec.Raw(output_of_line(answer.raw).usage)
    if error.cost is not None:
        line["cost_usd"] = msgspec.Raw(cost_usd(error.cost))
    if answer.context is not None:
        line["context"] = msgspec.Raw(answer.context)
    return line


def cost_usd(nano: int) -> bytes:
    """Return nano-dollars as dollars in JSON, with every digit.

    The same as `decimal_usd`, which formats any number of places and takes five times as long.
    """
    return b"%b%d.%09d" % (b"-" if nano < 0 else b"", *divmod(abs(nano), NANO))


def chunks(
    answers: Iterable[Answer | Success], form: Format, location: str | None = None
) -> Iterator[bytes]:
    """Yield the file's content in pieces of about `CHUNK_BYTES`. ``location`` as in `result_of`."""
    lines = [] if form == "jsonl" else [csv_row(list(CSV_COLUMNS))]
    line_of = output_line if form == "jsonl" else partial(csv_line, safe=form == "csv-safe")
    size = 0
    for answer in answers:
        line = line_of(answer, location)
        lines.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield _joined(lines)
            lines, size = [], 0
            reach(CrashPoint.DURING_DELIVERY)
    reach(CrashPoint.DURING_DELIVERY)
    if lines:
        yield _joined(lines)


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"


# Files --------------------------------------------------------------------------------------------


def write_file(answers: Iterable[Answer | Success], path: str, form: Format, location: str) -> None:
    """Write every answer as a line. The file appears only when it is complete and on disk.

    ``location`` is the ledger's, which commands in the errors name.
    """
    with opened(path) as stream:
        stream.writelines(chunks(answers, form, location))


_AnswerT = TypeVar("_AnswerT", bound=Answer | Success)


def finals(answers: Iterable[_AnswerT]) -> Iterator[_AnswerT]:
    """Yield the results among the requests of a run."""
    return (answer for answer in answers if answer.state.is_final)


def export_run(ledger: Ledger, run_id: str, path: str, form: Format | None) -> int:
    """Write the results of a run so far, and return their number."""
    fault = unwritten_format(path, form)
    if fault is None and is_of_ledger(path, ledger.location):
        fault = OF_LEDGER
    if fault is not None:
        raise ActorConfigurationError(f"{path}: {fault}")
    count = 0

    def counted() -> Iterator[Answer | Success]:
        nonlocal count
        for answer in finals(queries.outputs_by_position(ledger, run_id)):
            count += 1
            yield answer

    write_file(counted(), path, format_of(path, form), ledger.location)
    return count


OF_LEDGER: Final = "is a file of the ledger, which holds what was paid for"

_ENDS_OF_LEDGER = re.compile(r"(?:-wal|-shm|-journal|\.seat-.*)?")
"""What follows the name of a ledger's file in the names of its own files."""


def is_of_ledger(output: str, ledger: str) -> bool:
    """Return whether OUT is one of the ledger's own files, which would be replaced."""
    if on_server(ledger):
        return False
    target, own = os.path.realpath(output), os.path.realpath(path_of(ledger))
    return target.startswith(own) and bool(_ENDS_OF_LEDGER.fullmatch(target[len(own) :]))


def probe(target: Path) -> None:
    """Check that the target's name can be used, and that its folder accepts a file.

    The folder must be readable too: it is searched for the files of killed processes, and flushed.
    """
    with suppress(FileNotFoundError):
        owner = target.lstat().st_uid  # also because the temporary file's name may be shorter
        folder = target.parent.stat()
        # In a folder such as /tmp, a file of another user cannot be replaced.
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner, folder.st_uid):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    if _is_mounted(target):
        raise OSError(errno.EBUSY, "it is mounted as a single file, and cannot be replaced")
    descriptor, path = files.create_beside(target)
    os.close(descriptor)
    path.unlink()
    os.close(os.open(target.parent, os.O_RDONLY))


def _is_mounted(path: Path) -> bool:
    """Return whether a mount is at this path, such as a single file of the host in a container."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:  # not on Linux
        return os.path.ismount(path)
    # `ismount` sees no bind mount of the same file system. Blanks and backslashes are in octal.
    name = re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
    return any(line.split()[4:5] == [name] for line in mounts.split(b"\n"))


_STREAMS: Final = {f"/dev/std{name}": f"/dev/fd/{n}" for n, name in enumerate(("in", "out", "err"))}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self|proc/thread-self)/fd/([0-9]{1,9})")


def descriptor_of(output: str) -> int | None:
    """Return the descriptor that OUT names, such as ``/dev/fd/3`` or ``/dev/stderr``, or None.

    The name has a meaning only in this process: in another one, it may be the ledger's own file.
    """
    path = os.path.abspath(output)
    match = _DESCRIPTOR.fullmatch(_STREAMS.get(path, path))
    return None if match is None else int(match[1])


def is_special(output: str) -> bool:
    """Return True for a descriptor, a pipe or a device, none of which is replaced."""
    if descriptor_of(output) is not None:
        return True
    return os.path.exists(output) and not os.path.isfile(output)


def opened(output: str) -> AbstractContextManager[IO[bytes]]:
    """Open OUT for writing: a file is replaced, a descriptor is written as it was opened."""
    if (descriptor := descriptor_of(output)) is not None:
        return os.fdopen(os.dup(descriptor), "wb")
    return open(output, "wb") if is_special(output) else replacing(output)


@contextmanager
def replacing(output: str) -> Generator[IO[bytes]]:
    """Yield a stream that replaces OUT, whole and flushed, when the block succeeds.

    A link stays a link: its target is replaced. A file keeps its mode.
    """
    path = Path(os.path.realpath(output))
    with files.replacing(path, mode=_mode_for(path), sweep=True) as stream:
        yield stream


def _mode_for(path: Path) -> int:
    """Return the mode of the file that is replaced, which its owner may have made private."""
    with suppress(FileNotFoundError):
        there = path.lstat()
        if stat.S_ISREG(there.st_mode):
            return stat.S_IMODE(there.st_mode) & 0o777
    return usual_mode()


@cache
def usual_mode() -> int:
    """Return the mode that the user's umask sets for a new file."""
    umask = os.umask(0o077)  # the only way to read it; files made meanwhile only get stricter modes
    os.umask(umask)
    return 0o666 & ~umask


# Folders ------------------------------------------------------------------------------------------

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_REPEATED = re.compile(r"-{2,}")
_LONGEST_NAME = 80
"""Characters of an id that become part of its file's name."""
_LONGEST_BYTES = 180
"""Bytes of the same; file systems accept names of 255."""
_RESULT = re.compile(r"[0-9]{6,}(-.+)?\.json")
"""The name of a result's file; see `_name`."""


def is_of_folder(folder: str, path: str) -> bool:
    """Return whether a file is one that `write_folder` writes or replaces."""
    inside = Path(os.path.realpath(folder))
    parent, name = os.path.split(os.path.realpath(path))
    if Path(parent) == inside:
        return name == "summary.json" or _RESULT.fullmatch(name) is not None
    return Path(parent) == inside / "raw" and name == "results.jsonl"


def make_folder(folder: str) -> None:
    """Create the folder, and check that it is writable."""
    raw = Path(folder) / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    probe(Path(folder) / "summary.json")
    probe(raw / "results.jsonl")


def write_folder(
    answers: Iterable[Answer],
    folder: str,
    summary: Mapping[str, Any] | None,
    location: str,
    output_of: OutputOf = lambda _position: None,
) -> None:
    """Write every answer to its own file, then the raw lines, and the summary last.

    Each file appears whole, and ``summary.json`` when all the others are on disk. With ``summary``
    None there is no such file, because the run is not finished. A file of another run that is
    already there stays, and a warning reports it. ``location`` as in `write_file`.
    """
    root = Path(folder)
    written = 0
    last = root / "summary.json"
    (root / "raw").mkdir(parents=True, exist_ok=True)
    mode = _mode_for(last)
    last.unlink(missing_ok=True)
    raw_lines = root / "raw" / "results.jsonl"
    with files.replacing(raw_lines, mode=_mode_for(raw_lines), sweep=True) as raw:
        for answer in answers:
            line = _parsed_line(answer, output_of(answer.position), location)
            path = root / _name(answer)
            # A folder of many results is searched once for the files of killed processes.
            with files.replacing(path, mode=_mode_for(path), durable=False, swept_with=last) as one:
                one.write(pretty(line))
            written += 1
            if answer.raw is not None:
                raw.write(answer.raw + b"\n")
    # One sync for all files: a flush for each would take longer than the writing.
    os.sync()
    if summary is not None:
        with files.replacing(last, mode=mode, sweep=True) as stream:
            stream.write(pretty(msgspec.json.encode(summary)))
    with os.scandir(root) as entries:
        others = sum(_RESULT.fullmatch(entry.name) is not None for entry in entries) - written
    if others > 0:
        _log.warning(
            "%s also has %s of another run, which stay; a folder for each run keeps them apart",
            folder,
            count_of(others, "result file"),
            extra={"for_people": True},
        )


def _parsed_line(answer: Answer, output: OutputFormat[Any] | None, location: str) -> bytes:
    """Return an output line with the parsed values of the answer and their citations."""
    line = output_line(answer, location)
    response = result_of(answer).response
    if response is None or not (more := parsed_values(response, output)):
        return line
    values: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**values, **more})


def parsed_values(
    response: ActorResponse,
    output: OutputFormat[Any] | None,
    has_format: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Return ``parsed``, and ``field_citations`` if there are any, of an answer that has a format.

    Without ``output``, an answer that is a JSON object or list, or has labelled fields, has one.
    ``has_format`` is asked about any other JSON value.
    """
    if output is not None:
        response = response.with_output(output)
    try:
        values = response.parsed_values()
    except ActorError:
        return {}  # it does not have the format; its text is in the file
    value = values["parsed"]
    if output is not None or isinstance(value, dict | list):
        return values
    return values if value is not None and has_format() else {}  # a text for people


def run_summary(status: RunStatus, cost: CostReport) -> dict[str, Any]:
    """Return what ``summary.json`` holds: the actor, the number of requests, and the costs."""
    return {
        "actor": status.actor,
        "label": status.label,
        "created": status.created,
        "total": status.total,
        **cost.to_dict(),
    }


def _name(answer: Answer) -> str:
    """Return ``000001-name.json``: in input order, and unique by its number."""
    words = _safe(answer.key or "").strip("-.")[-_LONGEST_NAME:]
    words = words.encode()[-_LONGEST_BYTES:].decode(errors="ignore")
    number = answer.position + 1
    return f"{number:06d}.json" if words in ("", str(number)) else f"{number:06d}-{words}.json"


def _safe(key: str) -> str:
    """Replace all but letters, marks and digits of any script and ``._-`` in a key by ``-``."""
    if key.isascii():
        return _UNSAFE.sub("-", key)
    # Composed (NFC), so that the name is the same on file systems that compose or decompose.
    composed = unicodedata.normalize("NFC", key)
    kept = (
        each if unicodedata.category(each)[0] in "LMN" else _UNSAFE.sub("-", each)
        for each in composed
    )
    return _REPEATED.sub("-", "".join(kept))


# Rows ---------------------------------------------------------------------------------------------


def rows_of(ledger: Ledger, run_id: str, output_of: OutputOf) -> Iterator[dict[str, Any]]:
    """Yield every request of a run in input order, also those without an outcome."""
    with ledger.read() as tx:
        asked = time_of(queries.run_row(tx, run_id).created)
    for answer in queries.answers_by_position(ledger, run_id):
        yield _row(answer, asked, output_of(answer.position), ledger)


def _row(
    answer: Answer, asked: datetime | None, output: OutputFormat[Any] | None, ledger: Ledger
) -> dict[str, Any]:
    result = result_of(answer, ledger.location) if answer.state.is_final else None
    error = None if result is None else result.error
    response: ActorResponse | None = None if result is None else result.response
    text: str | None = None
    if isinstance(error, AnswerError):
        # The answer is not reliable, but it was received and billed.
        response, text = error.response, error.text
    usage = None if response is None else response.usage
    parsed: dict[str, Any] = {}
    if response is not None:
        text = response.text
        if error is None:
            parsed = parsed_values(response, output, partial(_has_format, ledger, answer))
    value = parsed.get("parsed")
    cost = None if result is None else result.cost
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
        "cost_usd": None if cost is None else cost / 1e9,
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


def _has_format(ledger: Ledger, answer: Answer) -> bool:
    with ledger.read() as tx:
        found = cost_sums.params_at(tx, answer.run_id, [answer.position])
    return any(map(has_format, found))
