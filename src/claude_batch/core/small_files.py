"""Files that people write: actors, prices and tokens. Larger ones are refused unread."""

from __future__ import annotations

import errno
import os
from typing import Final

MOST_BYTES: Final = 16_000_000
"""Most bytes of such a file. An input that is given as one by mistake can exceed the memory."""


def read_small(path: str | os.PathLike[str]) -> str:
    """Return a file's text, without a byte order mark.

    Raises `UnicodeDecodeError`, and `OSError` if it cannot be read or is larger than `MOST_BYTES`.
    """
    with open(path, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return content.decode("utf-8-sig")
