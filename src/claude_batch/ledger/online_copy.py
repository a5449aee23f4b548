"""A copy of a ledger while other processes write to it, by SQLite's online backup."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from claude_batch.core.temporary_files import create_beside, flush_folder


def copy_ledger(engine: Engine, target: Path) -> None:
    """Copy all committed data to a new file, which appears complete and flushed.

    Raises `FileExistsError` if the target exists, `OSError`, and `sqlite3.Error`.
    """
    with taking_its_place(target) as temporary, closing(engine.raw_connection()) as source:
        driver: Any = source.driver_connection
        with closing(sqlite3.connect(temporary)) as copy:
            driver.backup(copy)


@contextmanager
def taking_its_place(target: Path) -> Generator[Path]:
    """Yield a temporary file, private to the owner, that becomes ``target`` when the block ends.

    Raises `FileExistsError` if the target exists, and leaves no file behind.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    # It has a separate suffix because SQLite opens the file itself, so it cannot be locked here.
    descriptor, temporary = create_beside(Path(os.path.abspath(target)), "copy.partial")
    os.close(descriptor)
    try:
        yield temporary
        flush(temporary)
        try:
            os.link(temporary, target)  # never overwrites a file that appeared meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    flush_folder(target.parent)


def flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
