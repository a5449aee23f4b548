"""The ids that claude-batch makes."""

from __future__ import annotations

import secrets

from uuid_utils import uuid7

__all__ = ["new_incarnation", "new_request_id", "new_run_id"]

# Crockford's base 32 without look-alikes, so that a run id can be read aloud and typed.
_READABLE = "0123456789abcdefghjkmnpqrstvwxyz"


def new_request_id() -> str:
    """32 hex digits of a UUIDv7: ordered in time within a process, and not to be guessed."""
    return uuid7().hex


def new_run_id() -> str:
    """``run-`` and ten readable characters: 50 random bits, for people to type."""
    return "run-" + "".join(secrets.choice(_READABLE) for _ in range(10))


def new_incarnation() -> str:
    """Eight hex digits that tell one ledger's requests from those of a copy of it."""
    return secrets.token_hex(4)
