"""Where the ledger and its high-water mark are, and how a location is shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from claude_batch.core.errors import LedgerError
from claude_batch.core.settings import from_environment

_PASSWORDS = (
    # Up to the last @, because a password may have an @, a ? or a # that was not encoded.
    re.compile(r"(?<=://)(?P<before>[^:/?#@]*:).*@", re.DOTALL),
    re.compile(r"(?P<before>[?&][^=&]*password=)[^&#]*"),
)

_PLACE = re.compile(r"[^/]*/*(?:[^:/@]*(?::[^@]*)?@)?[^?]*")
"""A URL up to its options; its password may have a ? that was not encoded."""

_LIBPQ = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=")


def without_password(location: str) -> str:
    """Return a path or URL as it is shown to people: ``***`` stands for a password."""
    if "://" not in location:
        return location
    authority, options = _PASSWORDS
    return options.sub(r"\g<before>***", authority.sub(r"\g<before>***@", location))


def default_ledger(explicit: str | os.PathLike[str] | None = None) -> str:
    """Return the ledger to use: the argument, ``CLAUDE_BATCH_LEDGER``, or the default path.

    The default is in the user's data directory. The result is text: a path, or a URL with ``://``.
    Raises `LedgerError` for libpq's own form, which as a path would be shown with its password.
    """
    given = from_environment("ledger") if explicit is None else os.fspath(explicit)
    if given is not None:
        if _LIBPQ.match(given):
            raise LedgerError(
                "the ledger is given in libpq's words (host=…), and a URL is needed: "
                "postgresql://USER:PASSWORD@HOST:5432/DATABASE. A file of such a name is written "
                "./host=…"
            )
        return given
    from platformdirs import user_data_path

    return str(user_data_path("claude-batch", appauthor=False) / "ledger.db")


def on_server(location: str) -> bool:
    """Return whether a location names a ledger on PostgreSQL."""
    return location.startswith(("postgres:", "postgresql:", "postgresql+psycopg:"))


def with_schema(location: str, schema: str) -> str:
    """Return the URL of a ledger in this schema of its database. Raises `ValueError`."""
    if not on_server(location):
        shown = without_password(location)
        raise ValueError(f"{shown} is a file; only a ledger on PostgreSQL has a schema")
    place = _PLACE.match(location)
    assert place is not None
    options = parse_qsl(location[place.end() + 1 :], keep_blank_values=True)
    others = [value for name, value in options if name == "schema" and value != schema]
    if others:
        raise ValueError(f"the ledger's URL names another schema: {others[0]}")
    # Other options may be there several times, such as `host`.
    kept = [(name, value) for name, value in options if name != "schema"]
    return f"{place.group()}?{urlencode([*kept, ('schema', schema)])}"


def has_ledger(location: str) -> bool:
    """Return whether there is a ledger, or a server that may have one."""
    return "://" in location or Path(location).expanduser().exists()


def default_state_dir() -> Path:
    """Return the directory for files that must not be lost with the ledger.

    This is ``CLAUDE_BATCH_STATE_DIR``, or the default directory.
    """
    if (variable := from_environment("state_dir")) is not None:
        return Path(variable)
    from platformdirs import user_state_path

    return user_state_path("claude-batch", appauthor=False)
