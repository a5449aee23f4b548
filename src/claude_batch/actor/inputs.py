"""INPUT of a command, or of an Airflow task, as a stream of requests.

An error names the item by file, line and id. No input is read into memory whole.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from claude_batch.actor.documents import Document, documents_of, with_documents
from claude_batch.actor.request import ActorRequest, KeyedPrompt, RequestLike, is_unicode
from claude_batch.actor.request_lists import list_fault
from claude_batch.core.errors import BadInput, InvalidRequestError
from claude_batch.core.quantities import count_of
from claude_batch.core.terminal import encodable
from claude_batch.wire.limits import MAX_BODY_BYTES
from claude_batch.wire.media import HEAD, is_document

# Inputs -------------------------------------------------------------------------------------------

_JSON_LINES = (".jsonl", ".ndjson")
_TSV = ".tsv"
_BOM = b"\xef\xbb\xbf"
_SAVE = "save the file as UTF-8"
_VALUES_IN_A_LINE: Final = re.compile(rb'[}"][ \t]*\r[ \t\r]*[{"]')
_RETURNS = "its lines end with a carriage return only; save the file with line feeds (LF or CRLF)"
_LONGEST_FIELD = 1 << 30
"""Characters; Python's default CSV field limit of 131,072 is too short for many prompts."""
_LONGEST_LINE = 1 << 30
"""Bytes of a JSON line, whose escapes may be longer than what they stand for."""
_LARGEST_TEXT = MAX_BODY_BYTES
"""Bytes of a file that is one prompt. A device or a log may have no end."""


class Inputs:
    """The requests of some inputs, in order. Iterate only once."""

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        prompt_column: str | None = None,
        id_column: str | None = None,
        on_invalid: Callable[[str], None] | None = None,
        documents: Sequence[str] = (),
        documents_root: str | None = None,
        citations: bool = False,
        prompt: str | None = None,
        instructed: bool = False,
    ) -> None:
        """Check and open the inputs.

        ``on_invalid`` is called for each item that is left out; with None, the first one raises.
        ``documents`` (files and globs) go with every item, before its own; ``citations`` requests
        citations of all. Documents named in a line must lie in ``documents_root``. ``prompt`` is
        the question about each input that is itself a document; ``instructed``: the actor's system
        prompt contains the question. ``prompt_column`` and ``id_column`` name columns of tables,
        by default ``prompt`` and ``id``. Raises `BadInput` for an input or a document that does not
        exist, for standard input that is named twice, for documents mixed with prompts, and for a
        column without a table.
        """
        self._documents = [
            Document(path)
            for given in documents
            for path in ([given] if not Document(given).is_path else _expand(given))
        ]
        self._documents_root = documents_root and os.path.realpath(documents_root)
        self._citations = citations
        if list(inputs).count("-") > 1:
            raise BadInput("- is standard input, which can be read only once; name it once")
        self._inputs = inputs
        self._prompt_column = "prompt" if prompt_column is None else prompt_column
        self._id_column = id_column
        self._on_invalid = on_invalid
        self._files = [path for given in inputs for path in _expand(given)]
        self._several = len(self._files) > 1
        self._prompt = prompt
        self._are_documents = self._check_kinds(instructed)
        for flag, column in (("--prompt-column", prompt_column), ("--id-column", id_column)):
            if column is not None and not any(map(_is_table, self._files)):
                raise BadInput(
                    f"{flag} is for CSV and TSV files, and no input is one: its name ends in .csv "
                    "or .tsv. Leave the flag out, or save the table as CSV"
                )
        self._at: tuple[str, int | None] = ("", None)
        self.count: int = 0
        """Items read so far, including those that were left out."""
        self.skipped: int = 0

    @property
    def files(self) -> list[str]:
        """The files that are read: inputs, and documents for every item."""
        return [*self._files, *(str(each.source) for each in self._documents if each.is_path)]

    def __iter__(self) -> Iterator[RequestLike]:
        """Yield the requests, each as `ActorRequest.of` takes it. Raises `BadInput`."""
        common = bool(self._documents or self._citations)
        for path in self._files:
            name = _name(path)
            self._at = (name, None)
            for item in self._items(path):
                value = item.value
                self._at = (name, item.line)
                self.count += 1
                if item.key is None and not common and _is_whole(value):
                    yield value
                    continue
                try:
                    if isinstance(value, InvalidRequestError):
                        raise value
                    request = self._with_documents(ActorRequest.of(value, key=item.key), path)
                except InvalidRequestError as error:
                    self.refuse(error)
                    continue
                yield request

    def _check_kinds(self, instructed: bool) -> bool:
        """Return whether all inputs are documents; raises `BadInput` if only some are.

        Checks the first bytes of each before anything is stored, so that a run of 100,000 documents
        does not fail at its last one.
        """
        document = next(filter(_is_document, self._files), None)
        other = next(filterfalse(_is_document, self._files), None)
        what = ""
        if other is not None:
            what = f"{_name(other)} {'holds prompts' if _holds_prompts(other) else 'is a prompt'}"
        if document is not None and other is not None:
            raise BadInput(
                f"{document} is a document and {what}. Run two commands, or add the document to "
                f"every prompt with --document {document}"
            )
        if document is not None and self._prompt is None and not instructed:
            if document.lower().endswith(".gz"):  # probably prompts
                raise BadInput(f"{document} is compressed; unpack it")
            raise BadInput(
                f"{document} is a document, and there is no prompt for it. Add --prompt TEXT, or "
                "a `system_prompt` to the actor"
            )
        if other is not None and self._prompt is not None:
            raise BadInput(
                f"--prompt is for documents, but {what}. Leave --prompt out, or give the file as "
                f"--document {_name(other)}"
            )
        return document is not None

    def _with_documents(self, request: ActorRequest, path: str) -> ActorRequest:
        """Add the common documents, and resolve the item's own relative to its file."""
        if not (request.documents or self._documents or self._citations):
            return request
        own = with_documents(documents_of(request.documents), folder=os.path.dirname(path))
        if self._documents_root and not self._are_documents:
            own = tuple(_inside(each, self._documents_root) for each in own)
        return replace(
            request,
            documents=(*self._documents, *own),
            citations=request.citations or self._citations,
        )

    @property
    def skips(self) -> bool:
        """Return whether invalid items are left out."""
        return self._on_invalid is not None

    @property
    def place(self) -> str:
        """Return the location of the last item: ``file:line``, or ``file``."""
        name, line = self._at
        return name if line is None else f"{name}:{line}"

    def refuse(self, error: InvalidRequestError, *, of_all: bool = False) -> None:
        """Report the item at ``place`` as invalid: leave it out, or raise `BadInput`.

        ``of_all``: the fault is the actor's, so that every item has it.
        """
        if of_all:
            raise BadInput(f"{self.place}: {error}")
        if self._on_invalid is None:
            raise BadInput(f"{self.place}: {error}; use --skip-invalid to leave out such items")
        self.skipped += 1
        self._on_invalid(f"{self.place}: {error}")

    def nothing(self) -> str:
        """Return the message for an input without any valid request."""
        skipped = count_of(self.skipped, "item was", "items were")
        left = f"; {skipped} skipped" if self.skipped else ""
        return f"{' '.join(map(_name, self._inputs))}: the input has no requests{left}"

    def _key(self, path: str, line: int) -> str:
        if not self._several:
            return str(line)
        return f"{'<stdin>' if path == '-' else path}:{line}"

    def _items(self, path: str) -> Iterator[_Item]:
        if self._are_documents:
            return self._document(path)
        if path == "-" or path.lower().endswith(_JSON_LINES):
            return self._json_lines(path)
        return self._table(path) if _is_table(path) else self._text(path)

    def _json_lines(self, path: str) -> Iterator[_Item]:
        decode = msgspec.json.Decoder().decode
        plain = msgspec.json.Decoder(KeyedPrompt).decode
        are_plain = True
        with _opened(path) as stream:
            read = partial(stream.readline, _LONGEST_LINE + 1)
            for number, line in enumerate(iter(read, b""), 1):
                if len(line) > _LONGEST_LINE:
                    raise BadInput(
                        f"{_name(path)}:{number}: the line has more than {_LONGEST_LINE:,} bytes"
                    )
                written = line.removeprefix(_BOM) if number == 1 else line
                if not written or written.isspace():
                    continue
                if are_plain:
                    # Most files have only an id and a prompt in each line, or in none.
                    try:
                        prompt = plain(written)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        are_plain = False
                    else:
                        if prompt.is_valid() and len(_KEY_END.findall(written)) == 2:
                            yield _Item(number, None, prompt)
                            continue
                try:
                    value = decode(written)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    if number == 1 and _is_utf_16(line):
                        raise BadInput(f"{_name(path)}: is UTF-16, not UTF-8; {_SAVE}") from None
                    if number == 1 and _VALUES_IN_A_LINE.search(written):
                        raise BadInput(f"{_name(path)}: {_RETURNS}") from None
                    value = InvalidRequestError(_json_fault(written, error))
                if type(value) is dict:
                    # The last of two equal keys would silently win, also inside of the value.
                    doubled = _doubled_key(written, cast("dict[str, Any]", value))
                    if doubled is not None:
                        value = InvalidRequestError(f"the key {doubled!r} is given twice; keep one")
                yield _Item(number, None if _has_key(value) else self._key(path, number), value)

    def _table(self, path: str) -> Iterator[_Item]:
        csv.field_size_limit(_LONGEST_FIELD)
        with _opened(path) as binary:
            # Invalid UTF-8 is kept for `_is_text`, which can name the row.
            text = io.TextIOWrapper(
                binary, encoding="utf-8-sig", errors="surrogateescape", newline=""
            )
            # Strict: an unclosed quote would make one prompt of the rest of the file.
            rows = csv.reader(text, delimiter=_separator(path), strict=True)
            line = 0
            try:
                columns: list[str] = next(rows, list[str]())
                if not _is_text(columns) or "\0" in "".join(columns):
                    raise BadInput(f"{path}:1: is not UTF-8 text; {_SAVE}")
                for name, flag in (
                    (self._prompt_column, "--prompt-column"),
                    (self._id_column, "--id-column"),
                ):
                    if name is not None and name not in columns:
                        remedy = _column_remedy(path, name, columns, flag)
                        raise BadInput(
                            f"{path}:1: there is no column {name!r}; the columns are: "
                            f"{', '.join(columns) or 'none'}. {remedy}"
                        )
                for name in (self._prompt_column, self._id_column or "id"):
                    if columns.count(name) > 1:
                        raise BadInput(f"{path}:1: there are several columns {name!r}; rename one")
                line = rows.line_num
                for row in rows:
                    # A quoted field may span several lines; the first one names the row.
                    first, line = line + 1, rows.line_num
                    if row:
                        yield self._row(path, first, columns, row)
            except csv.Error as error:
                raise BadInput(f"{path}:{line + 1}: {_csv_fault(error)}") from None

    def _row(self, path: str, line: int, columns: list[str], row: list[str]) -> _Item:
        if len(row) != len(columns):
            fault = InvalidRequestError(
                f"{count_of(len(row), 'field')}, but the first line names "
                f"{count_of(len(columns), 'column')}"
            )
            return _Item(line, None, fault)
        if not _is_text(row):
            return _Item(line, None, InvalidRequestError(f"the row is not UTF-8 text; {_SAVE}"))
        fields = dict(zip(columns, row, strict=True))
        key = fields.get(self._id_column or "id") or self._key(path, line)
        return _Item(line, key, fields[self._prompt_column])

    def _document(self, path: str) -> Iterator[_Item]:
        # A path, so that no name is mistaken for a file id; all documents get the folder later.
        request: dict[str, Any] = {"documents": [Document(Path(os.path.basename(path)))]}
        if self._prompt is None:
            request["messages"] = [{"role": "user", "content": []}]
        else:
            request["prompt"] = self._prompt
        yield _Item(None, path, {**request, "id": path})

    def _text(self, path: str) -> Iterator[_Item]:
        value: Any
        try:
            with open(path, "rb") as stream:
                data = stream.read(_LARGEST_TEXT + 1)
            if len(data) <= _LARGEST_TEXT:
                value = data.decode("utf-8-sig")
                if (fault := _text_fault(value)) is not None:
                    value = InvalidRequestError(fault)
            else:
                value = InvalidRequestError(
                    f"the file has more than {_LARGEST_TEXT:,} bytes, the most of a whole batch"
                )
        except UnicodeDecodeError:
            value = InvalidRequestError(f"the file is not UTF-8 text; {_SAVE}")
        except OSError as error:
            value = InvalidRequestError(f"cannot be read: {error.strerror}")
        yield _Item(None, path, value)


def _inside(document: Document, root: str) -> Document:
    """Return an item's document by its real path. Raises `InvalidRequestError` if outside."""
    if not document.is_path:
        return document
    try:
        real = os.path.realpath(cast("str | os.PathLike[str]", document.source))
    except ValueError:  # a name with a null character; Python before 3.13 raises for it
        real = ""
    if real != root and os.path.commonpath([root, real or os.sep]) != root:
        raise InvalidRequestError(
            f"document {document.name} is outside the documents root {root}; it was not read"
        )
    # By its real path, so that a link that changes meanwhile cannot lead elsewhere.
    return replace(document, source=real, title=document.title or os.path.basename(document.name))


def _text_fault(text: str) -> str | None:
    """Return why a text cannot be one prompt, or None."""
    if "\0" not in text:
        return list_fault(text)
    # Without a byte-order mark, UTF-16 is valid UTF-8 if the text is ASCII.
    is_wide = text[:2].count("\0") == 1
    return f"the file {'is UTF-16, not UTF-8' if is_wide else 'has NUL characters'}; {_SAVE}"


_KEY_END: Final = re.compile(rb'"[ \t\r]*:')
"""The end of a key. A text may contain it too, after an escaped quote."""


def _doubled_key(line: bytes, value: dict[str, Any]) -> str | None:
    """Return a key that an object of a line has twice, if there is one.

    A line is only decoded again if it has more ends of keys than keys, which is rare.
    """
    if line.count(b":") <= len(value):
        return None
    ends = len(_KEY_END.findall(line))
    if ends <= len(value) or ends <= _keys_in(value):
        return None
    doubled: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        doubled.extend(name for name, count in counts.items() if count > 1)

    try:
        json.loads(line, object_pairs_hook=look, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return doubled[-1] if doubled else None


def _keys_in(value: dict[str, Any]) -> int:
    """Return how many keys all objects of a decoded line have."""
    count, waiting = 0, [cast("Any", value)]
    for each in waiting:
        if type(each) is dict:
            count += len(cast("dict[str, Any]", each))
            waiting += cast("dict[str, Any]", each).values()
        elif type(each) is list:
            waiting += cast("list[Any]", each)
    return count


class _Item(msgspec.Struct, gc=False):
    """One item of an input, as it was read."""

    line: int | None
    """The line where it begins; None if the whole file is one item."""
    key: str | None
    """Its default key; None if it has a key of its own, or is an error."""
    value: Any
    """What `ActorRequest.of` accepts, or the error of an invalid item."""


def _holds_prompts(path: str) -> bool:
    return path == "-" or path.lower().endswith(_JSON_LINES) or _is_table(path)


_SEPARATORS: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def _column_remedy(path: str, wanted: str, columns: list[str], flag: str) -> str:
    """Return what to do about a missing column of a table; ``flag`` names another one."""
    if len(columns) == 1:
        for character, name in _SEPARATORS.items():
            if character in columns[0]:
                own = _SEPARATORS[_separator(path)]
                return f"The fields seem to be separated by {name}: save the file with {own}"
    for column in columns:
        if column.strip(' \t"') == wanted:
            return f"Remove the spaces around the column's name, {column!r}, and around its fields"
    return f"Name one with {flag}"


def _csv_fault(error: csv.Error) -> str:
    """Return the fault of a row; Python's message for an open quote does not name the quote."""
    if str(error) == "unexpected end of data":
        return (
            "the row has a quotation mark that is not closed. Close it; inside a quoted field, "
            "write a quotation mark twice"
        )
    return str(error)


def _is_table(path: str) -> bool:
    return path.lower().endswith((".csv", _TSV))


def _separator(path: str) -> str:
    return "\t" if path.lower().endswith(_TSV) else ","


def _is_document(path: str) -> bool:
    """Return whether a file is a document by its bytes, or has a PDF's name."""
    if _holds_prompts(path) or not os.path.isfile(path):
        return False  # reading would consume a pipe's data
    if path.lower().endswith(".pdf"):
        return True
    try:
        with open(path, "rb") as stream:
            return is_document(stream.read(HEAD))
    except OSError:
        return False  # reported when the file is read


def _is_utf_16(line: bytes) -> bool:
    """Return whether a file's first line is UTF-16: by its mark, or by its first character."""
    return line.startswith((b"\xff\xfe", b"\xfe\xff")) or line[:2].count(0) == 1


_BEGINNINGS_OF_JSON: Final = [bytes((each,)) for each in b'{["-0123456789tfn ']
"""First bytes of JSON lines with a mistake. Others begin lines of plain text."""


def _json_fault(line: bytes, error: Exception) -> str:
    try:
        line.decode()
    except UnicodeDecodeError:
        return f"the line is not UTF-8 text; {_SAVE}"
    if line[:1] in _BEGINNINGS_OF_JSON:
        return f"not valid JSON: {error}"
    return (
        f'not valid JSON: {error}; write each line as a JSON string, such as "Name a knot.", or as '
        'an object, such as {"prompt": "Name a knot."}'
    )


def _is_text(row: list[str]) -> bool:
    """Return False if a byte of the row was not UTF-8, and became a lone surrogate."""
    return is_unicode("".join(row))


def _has_key(value: Any) -> bool:
    """Return whether a decoded line is an object with its own key."""
    return type(value) is dict and (
        cast("dict[str, Any]", value).get("id") is not None
        or cast("dict[str, Any]", value).get("key") is not None
    )


def _is_whole(value: Any) -> bool:
    """Return whether an item needs nothing from its file: a request that names no documents."""
    return type(value) is KeyedPrompt or (type(value) is dict and "documents" not in value)


def _name(path: str) -> str:
    """Return a path for display; bytes that are not UTF-8 are escaped."""
    return "<stdin>" if path == "-" else encodable(path)


def _expand(given: str) -> list[str]:
    if given == "-":
        return [given]
    if os.path.isdir(given):
        raise BadInput(f"{given} is a folder; give files, or a pattern such as '{given}/*.pdf'")
    if os.path.exists(given):
        return [given]
    if glob.has_magic(given):
        found = sorted(path for path in glob.glob(given, recursive=True) if os.path.isfile(path))
        if not found:
            raise BadInput(f"{given}: no file matches this pattern{_if_prompt(given)}")
        return found
    raise BadInput(f"{given}: no such file{_if_prompt(given)}")


def _if_prompt(given: str) -> str:
    """Return a hint if the name of a file that is not there looks like a prompt."""
    if " " not in given:
        return ""
    return (
        ". INPUT names files. To send one prompt, write it to a text file, or pipe a JSON line: "
        """`echo '{"prompt": "…"}' | claude-batch run ACTOR -`"""
    )


@contextmanager
def _opened(path: str) -> Generator[IO[bytes]]:
    try:
        if path == "-":
            if sys.stdin is None:
                raise BadInput("<stdin>: is closed; name a file, or connect a pipe")
            yield sys.stdin.buffer
            return
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise BadInput(f"{_name(path)}: cannot be read: {error.strerror}") from None
