"""Steps of the waits between two tries."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import cast
from unittest import mock

from tables import rule

from claude_batch.core.errors import LedgerError, LedgerFault
from claude_batch.lifecycle.submission import until_stored
from claude_batch.wire import retry_policy
from claude_batch.wire.retry_policy import Backoff


def _backoff(work: str) -> Backoff:
    found = getattr(retry_policy, work)
    assert isinstance(found, Backoff), work
    return found


@rule("writes of what was paid for are tried")
def _(fault: str) -> dict[str, int]:
    write = mock.Mock(side_effect=[LedgerError("no", fault=cast(LedgerFault, fault)), "stored"])
    with contextlib.suppress(LedgerError):
        asyncio.run(until_stored(write, "it cannot be stored yet"))
    return {"tries": write.call_count}


@rule("the waits after so many failures are, in seconds,")
def _(of: str) -> dict[str, str]:
    return {str(failures): _range(_backoff(of), failures) for failures in (1, 2, 5, 100)}


def _between(drawn: float, low: float, high: float) -> float:
    return low + drawn * (high - low)


def _range(backoff: Backoff, failures: int, asked: float | None = None) -> str:
    waits: list[float] = []
    for drawn in (0.0, 1.0):
        between = partial(_between, drawn)
        with (
            mock.patch("random.random", partial(between, 0, 1)),
            mock.patch("random.uniform", between),
        ):
            waits.append(backoff(failures, asked))
    return "-".join(f"{wait:g}" for wait in dict.fromkeys(waits))


@rule("an answer's own wait is kept within a limit")
def _(of: str, asked: float) -> float:
    return _backoff(of)(1, asked)


@rule("an answer's own wait after so many failures is, in seconds,")
def _(of: str, asked: float) -> dict[str, str]:
    return {str(failures): _range(_backoff(of), failures, asked) for failures in (1, 2, 100)}
