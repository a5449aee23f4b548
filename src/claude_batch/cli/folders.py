"""`--results-dir`: a folder with one JSON file per result, the API's own lines, and a summary."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from claude_batch.cli.formats import pretty
from claude_batch.cli.outputs import output_line, probe, usual_mode
from claude_batch.cli.user_messages import BadOutput
from claude_batch.core.temporary_files import replacing
from claude_batch.ledger.queries import Answer

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_REPEATED = re.compile(r"-{2,}")
_LONGEST_NAME = 80
"""Characters of an id that become part of its file's name."""
_LONGEST_BYTES = 180
"""Bytes of the same; file systems accept names of 255."""


def check_folder(folder: str | None) -> None:
    """Create the folder, and check that it is writable. Raises `BadOutput`."""
    if folder is None:
        return
    try:
        (Path(folder) / "raw").mkdir(parents=True, exist_ok=True)
        probe(Path(folder) / "summary.json")
    except OSError as error:
        raise BadOutput(
            f"{folder}: cannot write to this folder: {error.strerror}. Nothing was sent"
        ) from None


def write_folder(answers: Iterable[Answer], folder: str, summary: Mapping[str, Any]) -> None:
    """Write every answer to its own file, then the raw lines, and the summary last.

    Each file appears whole, and ``summary.json`` when all the others are on disk. Raises
    `BadOutput`.
    """
    root = Path(folder)
    last = root / "summary.json"
    try:
        (root / "raw").mkdir(parents=True, exist_ok=True)
        last.unlink(missing_ok=True)
        raw_lines = root / "raw" / "results.jsonl"
        with replacing(raw_lines, mode=usual_mode(), sweep=True) as raw:
            for answer in answers:
                _write(root / _name(answer), pretty(output_line(answer)))
                if answer.raw is not None:
                    raw.write(answer.raw + b"\n")
        # One sync for all files: a flush for each would take longer than the writing.
        os.sync()
        with replacing(last, mode=usual_mode(), sweep=True) as stream:
            stream.write(pretty(msgspec.json.encode(summary)))
    except OSError as error:
        raise BadOutput(f"{folder}: cannot write to this folder: {error.strerror}") from None


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


def _write(path: Path, content: bytes) -> None:
    with replacing(path, mode=usual_mode(), durable=False) as stream:
        stream.write(content)
