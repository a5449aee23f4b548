"""Ids that claude-batch generates."""

from __future__ import annotations

import secrets

from uuid_utils import uuid7

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
