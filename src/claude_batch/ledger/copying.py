"""A copy of a ledger while others write to it, by SQLite's own online backup."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

__all__ = ["copy_ledger", "flush_folder", "taking_its_place"]


def copy_ledger(engine: Engine, target: Path) -> None:
    """Copy what is committed by now to a new file, which appears whole and flushed.

    Raises `FileExistsError` rather than overwriting, `OSError`, and `sqlite3.Error`.
    """
    with taking_its_place(target) as temporary, closing(engine.raw_connection()) as source:
        driver: Any = source.driver_connection
        with closing(sqlite3.connect(temporary)) as copy:
            driver.backup(copy)


@contextmanager
def taking_its_place(target: Path) -> Generator[Path]:
    """A temporary file, the owner's alone, that becomes ``target`` when the block has ended.

    Raises `FileExistsError` where the target exists, and leaves nothing behind.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        flush(temporary)
        try:
            os.link(temporary, target)  # which never overwrites what appeared meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    flush_folder(target.parent)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Wait until a folder's new names are on the disk."""
    flush(folder)
