"""Ids that claude-batch generates, and the ids of a run's requests."""

from __future__ import annotations

import secrets
from bisect import bisect_right

from uuid_utils import uuid7

from claude_batch.core.errors import InvalidRequestError

# Crockford's base 32 has no look-alikes, so that a run id can be read aloud and typed.
_READABLE = "0123456789abcdefghjkmnpqrstvwxyz"


RUN_PREFIX = "run-"
"""The beginning of every run's id."""


COUNTER_DIGITS = 8
"""Hex digits at the end of a request's id that count the requests that are stored together."""


def new_request_ids(count: int) -> list[str]:
    """Return ids of 32 hex digits for requests that are stored together, in their order.

    Each is a UUIDv7: time-ordered within a process, and not guessable, as 42 bits are random. Only
    the last digits differ, so that the ids of many requests need little memory.
    """
    prefix = uuid7().hex[:-COUNTER_DIGITS]
    return [f"{prefix}{number:0{COUNTER_DIGITS}x}" for number in range(count)]


def counter_of(identifier: str) -> int | None:
    """Return the number at the end of a request's id; None if it does not end with one."""
    digits = identifier[-COUNTER_DIGITS:]
    try:
        number = int(digits, 16)
    except ValueError:
        return None
    # `int` also reads signs, spaces, underscores and capitals.
    return number if f"{number:0{COUNTER_DIGITS}x}" == digits else None


def new_run_id() -> str:
    """Return ``run-`` and ten readable characters: 50 random bits, for people to type."""
    return RUN_PREFIX + "".join(secrets.choice(_READABLE) for _ in range(10))


def new_incarnation() -> str:
    """Return eight hex digits that distinguish a ledger's requests from those of its copy."""
    return secrets.token_hex(4)


class RequestIds:
    """The ids of one run's requests: their keys, and the numbers of those without a key."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._switches: list[int] = []
        """The positions from which requests have no key, or have keys again, in turns."""
        self._count = 0

    def check(self, key: str | None) -> None:
        """Raise `InvalidRequestError` if another request of the run has the id of the next one.

        The id of a request without a key is its number in the run, from 1.
        """
        if key is None:
            if self._keys and (number := str(self._count + 1)) in self._keys:
                raise InvalidRequestError(
                    f"it has no key, so its id is its number, {number}, and another request has "
                    "this key; give it a key of its own"
                )
            return
        if key in self._keys:
            also = "; a line without an `id` has its number as its key" if key.isdecimal() else ""
            raise InvalidRequestError(f"this key is used twice in the same run{also}", key=key)
        if key.isdecimal() and len(key) <= len(str(self._count)):
            number = int(key)
            if str(number) == key and 1 <= number <= self._count and self._is_keyless(number - 1):
                raise InvalidRequestError(
                    f"request {number} of the run has no key, so its id is {number} too; give one "
                    "of the two another key",
                    key=key,
                )

    def add(self, key: str | None) -> None:
        """Count the next request, whose id was checked."""
        if key is not None:
            self._keys.add(key)
        if (key is None) != (len(self._switches) % 2 == 1):
            self._switches.append(self._count)
        self._count += 1

    def _is_keyless(self, position: int) -> bool:
        """Return whether the request that was added at a position has no key."""
        return bisect_right(self._switches, position) % 2 == 1
