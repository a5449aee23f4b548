"""Ids that claude-batch generates."""

from __future__ import annotations

import secrets

from uuid_utils import uuid7

# Crockford's base 32 has no look-alikes, so that a run id can be read aloud and typed.
_READABLE = "0123456789abcdefghjkmnpqrstvwxyz"


RUN_PREFIX = "run-"
"""The beginning of every run's id."""


def new_request_id() -> str:
    """Return 32 hex digits of a UUIDv7: time-ordered within a process, and not guessable."""
    return uuid7().hex


def new_run_id() -> str:
    """Return ``run-`` and ten readable characters: 50 random bits, for people to type."""
    return RUN_PREFIX + "".join(secrets.choice(_READABLE) for _ in range(10))


def new_incarnation() -> str:
    """Return eight hex digits that distinguish a ledger's requests from those of its copy."""
    return secrets.token_hex(4)
