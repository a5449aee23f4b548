"""Store what the API answered, although the disk may refuse it for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from claude_batch.core.errors import LedgerError
from claude_batch.wire.retry_policy import STORING

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def until_stored(write: Callable[[], _T], words: str) -> _T:
    """Repeat a write of the ledger until it succeeds, and return its result.

    For answers that exist only in this process: they are paid for, so it keeps trying while it
    lives. The caller sends nothing else meanwhile. ``words`` begin the message about each failure.
    """
    failures = 0
    while True:
        try:
            return write()
        except LedgerError as error:
            failures += 1
            _log.error("%s: %s", words, error, extra={"for_people": True})
            await asyncio.sleep(STORING(failures))
