"""Options of a call beyond the Messages API: headers, or a prefix of the path."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from claude_batch.core.batch_processing import BatchProcessingMode, resolve_mode
from claude_batch.core.errors import InvalidRequestError
from claude_batch.core.quantities import parse_duration
from claude_batch.integrations.http_messages import (
    read_failure_ttl,
    read_idempotency_key,
    read_word,
)
from claude_batch.providers.keywords import CallKeywords, mode_keywords
from claude_batch.providers.run_writer import deadline_fault

_OURS: Final = "claude-batch-"
_WITH: Final = re.compile(r"/with/([^/]*)(/.*)")

_SETTINGS: Final = {
    f"{_OURS}mode": "mode",
    f"{_OURS}deadline": "deadline",
    f"{_OURS}budget-usd": "budget_usd",
    f"{_OURS}on-disconnect": "on_disconnect",
}
_OTHERS: Final = (f"{_OURS}label", f"{_OURS}new", f"{_OURS}failure-ttl")

_RETRIES: Final = "x-stainless-retry-count"

_MOST_MODES: Final = 1000
"""Combinations of settings that are remembered."""


class GatewayOptions(NamedTuple):
    """The options of one call beyond the Messages API."""

    mode: BatchProcessingMode
    label: str | None
    key: str | None
    """Its Idempotency-Key."""
    new: bool
    """Whether it joins no earlier request. Its retries join it."""
    has_budget: bool
    """Whether the budget of ``mode`` is for this call alone."""
    failure_ttl: float
    """Age in seconds up to which it gets the failure of an equal call."""
    retries: int
    """Number of this retry, if an SDK repeats a call after a failure; 0 for a first try."""
    numbers_tries: bool
    """Whether its client sends that number, as the SDKs do with the first try, too."""
    respond_async: bool
    """Whether it wants a 202 instead of waiting for the answer."""
    wait: float
    """How many seconds it waits before the 202."""


def split_prefix(path: str) -> tuple[str, dict[str, str]]:
    """Take ``/with/NAME=VALUE,…`` from a path; return the rest, and the values as headers.

    ``path`` is as the client sent it, so a value may have an escaped comma or slash. The rest is
    not decoded. Raises `InvalidRequestError`.
    """
    found = _WITH.fullmatch(path)
    if found is None:
        return path, {}
    # Without a "=", the client has escaped the prefix once more, as one part of a path.
    given = found[1] if "=" in found[1] else unquote(found[1])
    headers: dict[str, str] = {}
    for part in given.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidRequestError(f"{part[:100]!r} in the path: write /with/NAME=VALUE,NAME=…")
        headers[_OURS + unquote(name).replace("_", "-").lower()] = unquote(value)
    return found[2], headers


class OptionReader:
    """Reads the options of calls."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        """``overrides`` are the settings of the gateway's provider."""
        self._overrides = dict(overrides)
        self._mode = lru_cache(_MOST_MODES)(self._read_mode)

    def read(self, headers: Mapping[str, str]) -> GatewayOptions:
        """Return the options of a message call. Raises `InvalidRequestError`."""
        options = self.check(headers)
        mode = options.mode
        due = f"{_OURS}deadline" in headers and mode.mode != "live"
        if due and (fault := deadline_fault(mode, time.time())) is not None:
            # The provider's own error means that the gateway is set up wrongly, a status of 500.
            raise InvalidRequestError(str(fault))
        return options

    def check(self, headers: Mapping[str, str]) -> GatewayOptions:
        """Return a call's options, also with a deadline in the past. Raises `InvalidRequestError`.

        An answer may be read after the deadline of its request.
        """
        for name in headers:
            if name.startswith(_OURS) and name not in _SETTINGS and name not in _OTHERS:
                known = ", ".join(sorted([*_SETTINGS, *_OTHERS]))
                raise InvalidRequestError(f"there is no header {name}; the headers are {known}")
        new = _truth(f"{_OURS}new", headers.get(f"{_OURS}new"))
        mode = self._mode(tuple(headers.get(name) for name in _SETTINGS), new=new)
        key = read_idempotency_key(headers)
        if new and key is not None:
            raise InvalidRequestError(
                f"an Idempotency-Key joins an earlier call, and {_OURS}new asks not to; send one "
                "of them"
            )
        prefer = _preferences(headers.get("prefer", ""))
        return GatewayOptions(
            mode=mode,
            label=read_word(f"{_OURS}label", headers.get(f"{_OURS}label")),
            key=key,
            new=new,
            has_budget=f"{_OURS}budget-usd" in headers,
            failure_ttl=read_failure_ttl(headers, mode.failure_ttl),
            retries=_retries_of(headers.get(_RETRIES, "")),
            numbers_tries=_RETRIES in headers,
            respond_async=bool({"respond-async", "wait"} & prefer.keys()),
            wait=_wait_of(prefer),
        )

    def _read_mode(self, given: tuple[str | None, ...], *, new: bool) -> BatchProcessingMode:
        named: Any = {
            name: value
            for name, value in zip(_SETTINGS.values(), given, strict=True)
            if value is not None
        }
        try:
            overrides = {**self._overrides, **mode_keywords(named, CallKeywords)}
            if new:
                overrides["reuse"] = False
            return resolve_mode(True, overrides)
        except Exception as error:
            raise InvalidRequestError(str(error)) from None


def wait_of_headers(headers: Mapping[str, str]) -> float:
    """Return for how many seconds a call that asks for a stored request waits for its answer."""
    return _wait_of(_preferences(headers.get("prefer", "")))


def _retries_of(header: str) -> int:
    """Return which retry a call is; 1 if the header is there and no number."""
    try:
        return max(int(header), 0)
    except ValueError:
        return 1 if header else 0


def _wait_of(preferences: Mapping[str, str]) -> float:
    """Return the seconds of ``wait=…``, 0 without it."""
    given = preferences.get("wait", "0")
    try:
        return parse_duration(given)
    except ValueError as error:
        raise InvalidRequestError(f"Prefer: wait={given[:100]}: {error}") from None


def _preferences(header: str) -> dict[str, str]:
    """Return the preferences of a Prefer header (RFC 7240)."""
    found: dict[str, str] = {}
    for part in re.split("[,;]", header):
        name, _, value = part.strip().partition("=")
        if name:
            found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


def _truth(name: str, value: str | None) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if value is None:
        return False
    if value.lower() not in words:
        raise InvalidRequestError(f"{name}: {value[:100]!r} is neither true nor false")
    return words[value.lower()]
