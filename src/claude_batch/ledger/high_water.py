"""The high-water mark: what a ledger has armed, counted outside the reach of a backup.

It counts POSTs, claims of live calls, and starts of tools that are not repeatable. A ledger that
was restored, or copied without its log, has forgotten some and would do them again. The mark is in
another directory and only ever rises. If its count exceeds the ledger's, the ledger is *behind* and
sends nothing.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import ColumnElement, Connection, true, update

from claude_batch.core.errors import LedgerError
from claude_batch.core.files import replacing
from claude_batch.core.settings import default_state_dir
from claude_batch.core.terminal import encodable
from claude_batch.ledger.backends.sqlite_file import file_lock, take
from claude_batch.ledger.portable_sql import meta_number, meta_value, put_meta
from claude_batch.ledger.schema import workspaces
from claude_batch.ledger.store import Ledger, now_in

_LONE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Surrogates, which older versions wrote for a ledger whose path is not UTF-8, and JSON forbids."""

_NOTED = "behind_noted"
"""Name of the metadata that has our time of `workspaces.behind`."""

_LOCK_SECONDS = 60.0
"""Timeout for the mark's lock, in seconds. Its holder only writes a small file."""


class Mark(msgspec.Struct, frozen=True):
    """The content of the mark's file."""

    incarnation: str
    posts: int
    written: float
    """Seconds since the epoch, by this machine's clock."""
    at: float | None = None
    """The same moment by the API's clock; None if that was not known, or not written yet."""


def posts_of(tx: Connection) -> int:
    """Return how many POSTs the ledger has armed, by its own record."""
    return meta_number(tx, "posts")


def count_post(tx: Connection, *, at_least: int = 0) -> int:
    """Count one more POST, claim or start of tools in its transaction; return the new number."""
    posts = max(posts_of(tx) + 1, at_least)
    put_meta(tx, "posts", posts)
    return posts


def is_known(mark: Mark | None, incarnations: frozenset[str], posts: int) -> bool:
    """Return whether a ledger has all the POSTs that its mark counts.

    Read ``posts`` after the mark, because the ledger is briefly ahead of it at every POST.
    """
    return mark is None or (mark.incarnation in incarnations and mark.posts <= posts)


def note_behind(tx: Connection, at: float, *, anew: bool = False) -> None:
    """Record that the ledger is behind its mark: no workspace sends until it is recovered.

    ``at`` is the API's time, because this machine's clock may be set before the recovery. ``anew``
    replaces what was recorded before.
    """
    set_behind(tx, at, true() if anew else workspaces.c.behind.is_(None))


def set_behind(tx: Connection, at: float, *which: ColumnElement[bool]) -> None:
    """Let workspaces be behind from this time of the API on, and note the time of our clock."""
    if tx.execute(update(workspaces).where(*which).values(behind=at)).rowcount:
        put_meta(tx, _NOTED, str(now_in(tx)))


def behind_noted(tx: Connection) -> float:
    """Return when a workspace was last set to be behind, by `Ledger.now`; 0 if that is unknown."""
    return float(meta_value(tx, _NOTED) or 0.0)


def mark_file(identity: str) -> Path:
    """Return the path of the mark of the ledger with this identity."""
    return default_state_dir() / f"high-water-{identity}.json"


def read_mark(path: Path) -> Mark | None:
    """Return the mark in a file; None if there is none. Raises `LedgerError`."""
    try:
        return msgspec.json.decode(_LONE.sub(rb"\\ufffd", path.read_bytes()), type=Mark)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, "read", error) from None
    except (msgspec.DecodeError, RecursionError) as error:
        # Another folder would have no mark, and forgotten sendings would be repeated.
        remedy = "Remove the damaged file, then run `claude-batch ledger recover`"
        raise _unusable(path, "read", error, remedy) from None


def _unusable(
    path: Path,
    what: str,
    error: Exception,
    remedy: str = "Correct the problem, or name another folder with CLAUDE_BATCH_STATE_DIR",
) -> LedgerError:
    words = getattr(error, "strerror", None) or error
    return LedgerError(
        f"the ledger's high-water mark {path} cannot be {what}: {words}. Nothing is sent without "
        f"it. {remedy}",
        fault="full",
    )


def note_move(
    identity: str, known: frozenset[str], incarnation: str, posts: int, location: str
) -> None:
    """Give the mark of a file that has moved to a server the incarnation that it has there.

    ``known`` are the incarnations of the file, and ``posts`` is its count. From then on, a backup
    of the file is behind the mark. A mark of another incarnation stays: the ledger has sent from
    the server since, or a copy has sent what it lacks. Raises `LedgerError`.
    """
    path = mark_file(identity)
    with _changing(path):
        mark = read_mark(path)
        if is_known(mark, known, posts):
            # The mark has the time of the last sending by the API's clock.
            at = None if mark is None or mark.posts != posts else mark.at
            _write(path, incarnation, posts, at, location)


class HighWater:
    """The mark of one ledger, independent of the ledger's path."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.path: Path = mark_file(ledger.identity)
        """The mark's file, in `CLAUDE_BATCH_STATE_DIR`."""

    def read(self) -> Mark | None:
        """Return the mark; None if there is none. Raises `LedgerError` if it cannot be read."""
        return read_mark(self.path)

    def look(self, at: float) -> Mark | None:
        """Return the mark before anything is sent; create a missing one at this API's time.

        Creating it proves that it can be written. Raises `LedgerError`.
        """
        mark = self.read()
        if mark is None:
            with self._ledger.read() as tx:
                posts = posts_of(tx)
            self.raise_to(posts, at=at)
        elif not os.access(self.path.parent, os.W_OK):
            raise _unusable(self.path, "written", PermissionError(13, "Permission denied"))
        return mark

    def raise_to(self, posts: int, *, sending: bool = False, at: float | None = None) -> bool:
        """Write the mark durably; return False, and keep it, if the ledger is behind it.

        ``sending``: for a POST that this process has just counted, whose number no other process
        uses. ``at`` is the API's time, if it is known. Raises `LedgerError` if the mark cannot be
        written.
        """
        # Two processes may drive two workspaces of one ledger.
        with _changing(self.path):
            mark = self.read()
            with self._ledger.read() as tx:
                known = is_known(mark, self._ledger.incarnations, posts_of(tx))
            mine = mark is None or mark.incarnation == self._ledger.incarnation
            if not known or (sending and mark is not None and mine and mark.posts == posts):
                return False
            if mark is None or not mine or mark.posts < posts:
                self._write(posts, at)
        return True

    def renew(self, posts: int, at: float | None = None) -> None:
        """Overwrite the mark after recovery, whatever its count; ``at`` is the API's time.

        The ledger's own count is right again. Raises `LedgerError`; the ledger is then ahead of its
        mark, which is harmless.
        """
        with _changing(self.path):
            self._write(posts, at)

    def _write(self, posts: int, at: float | None) -> None:
        _write(self.path, self._ledger.incarnation, posts, at, self._ledger.location)


@contextmanager
def _changing(path: Path) -> Generator[None]:
    """Hold the lock of a mark inside the block. Raises `LedgerError`, also for the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = file_lock(path.with_name(f"{path.name}.lock"))
        if not take(lock, path.parent, timeout=_LOCK_SECONDS):
            raise TimeoutError(11, "another process holds its lock")
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise _unusable(path, "written", error) from None


def _write(path: Path, incarnation: str, posts: int, at: float | None, location: str) -> None:
    value = {
        "incarnation": incarnation,
        "posts": posts,
        "written": time.time(),
        "at": at,
        "ledger": encodable(location),  # for people
    }
    with replacing(path) as stream:
        stream.write(json.dumps(value).encode())
