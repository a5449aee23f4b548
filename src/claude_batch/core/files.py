"""Files: small ones that people write, and temporary ones that replace their target as a whole.

Temporary files are written beside their target, in folders that other users may write to. If a name
is predictable, another user can put a link or a file in its place. The names are therefore random,
the files are new and private to the owner, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

MOST_BYTES: Final = 16_000_000
"""Most bytes of a file that people write, such as an actor, prices or a token.

An input that is given as one by mistake can exceed the memory."""


def read_small(path: str | os.PathLike[str]) -> str:
    """Return a file's text, without a byte order mark.

    Raises `UnicodeDecodeError`, and `OSError` if it cannot be read or is larger than `MOST_BYTES`.
    """
    with open(path, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return content.decode("utf-8-sig")


_LONGEST_STEM = 150
"""Bytes of the target's name in the temporary file's name; a file name has at most 255 bytes."""


def sibling(path: Path, suffix: str) -> Path:
    """Return the path of the file that is named like another one, apart from the suffix.

    It is in the folder where the other file is, not in that of a link to it.
    """
    resolved = path.expanduser().resolve()
    return resolved.with_name(resolved.name + suffix)


def create_beside(target: Path, ending: str = "partial") -> tuple[int, Path]:
    """Create a file with mode 0600 in the target's folder; return its open descriptor and path.

    Raises `OSError`.
    """
    while True:
        path = target.with_name(f"{_stem(target)}{secrets.token_hex(8)}.{ending}")
        with suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            return os.open(path, flags, 0o600), path


def _stem(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_LONGEST_STEM])}."


@contextmanager
def replacing(
    target: Path,
    *,
    mode: int = 0o600,
    durable: bool = True,
    sweep: bool = False,
    swept_with: Path | None = None,
) -> Generator[IO[bytes]]:
    """Yield a stream whose content replaces the target as a whole when the block succeeds.

    The target then has ``mode``. A link at the target is replaced, not followed. ``durable``: the
    content and the name are on disk afterwards. ``sweep``: first remove files that killed processes
    left while they wrote the same target. ``swept_with``: another target in the folder, whose
    ``sweep`` removes them too. Raises `OSError`, and leaves no file behind.
    """
    if sweep:
        sweep_beside(target)
    create = _create_locked if sweep or swept_with else create_beside
    descriptor, temporary = create(swept_with or target)
    try:
        with open(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            if mode != 0o600:
                os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        flush(target.parent)


def flush(path: Path) -> None:
    """Wait until a file, or a folder's new names, are on disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_locked(target: Path) -> tuple[int, Path]:
    """Create a file that no sweeping process takes for a dead process's while it is open."""
    while True:
        descriptor, path = create_beside(target)
        with suppress(OSError):  # a file system without locks, on which no process sweeps
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)  # swept just before it was locked


def sweep_beside(target: Path, ending: str = "partial") -> None:
    """Remove our files of `create_beside` that no process has locked any more."""
    pattern = re.compile(re.escape(_stem(target)) + rf"[0-9a-f]{{16}}\.{re.escape(ending)}")
    with os.scandir(target.parent) as entries:
        found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    for path in found:
        with suppress(OSError):
            _remove_if_dead(path)


def _remove_if_dead(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)
