"""Checks on values that a server sends, and redaction of credentials in everything received.

A server may be the API, a gateway, or hostile. A value that fails its check costs one line, one
batch or one call; it never reaches the ledger, a URL or a terminal unchecked.

A server can also echo a credential that it was sent: in an error body, in a header, in a page of a
proxy. Credentials are replaced before anything is stored or shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, AnyStr, Final, cast
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies

import msgspec

# Redaction of credentials -------------------------------------------------------------------------

MASK = "[credential]"

SHORTEST = 6
"""Fewest characters of a credential that is masked in messages.

A shorter one would match by chance."""

SHORTEST_IN_ANSWERS = 20
"""Fewest characters of a credential that is masked in answers, which contain any text.

Real keys have 100."""

_userinfo = re.compile(r"(?<=://)[^/\s@'\"<>]+@")


def without_userinfo(url: str) -> str:
    """Return a URL without ``user:password@``."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))


class Redaction:
    """Replaces a client's credentials in text and bytes."""

    def __init__(
        self, secrets: Iterable[str], *, doubtful: Iterable[str] = (), proxy: str | None = None
    ) -> None:
        """Set up with credentials; short ones are left out, see `SHORTEST`.

        ``doubtful`` are values that may be credentials. They are masked in messages, but not in
        answers, which may have the same words. ``proxy`` is the host and port of the client's
        proxy, for `reason`.
        """
        self.proxy: str | None = proxy
        """The proxy of the connection."""
        # The longest first, because one can be a part of another.
        certain = set(secrets)
        known = {each for each in (*certain, *doubtful) if len(each) >= SHORTEST}
        self._words = sorted(known, key=len, reverse=True)
        self._in_answers = [
            each.encode()
            for each in self._words
            if each in certain and len(each) >= SHORTEST_IN_ANSWERS and each.isascii()
        ]

    @classmethod
    def of(
        cls,
        base_url: str,
        *secrets: str,
        doubtful: Iterable[str] = (),
        proxy: str | None = None,
    ) -> Redaction:
        """Return the redaction for keys and tokens, a base URL, and the environment's proxies.

        A profile's short-lived tokens are unknown; the server that receives them has issued them.
        """
        found = [*secrets]
        for url in (base_url, *getproxies().values()):
            try:
                password = urlsplit(url).password or ""
            except ValueError:
                continue
            found += [password, unquote(password)]
        return cls(found, doubtful=doubtful, proxy=proxy)

    def text(self, words: str) -> str:
        """Return a message without credentials, and without the user and password of any URL."""
        for secret in self._words:
            words = words.replace(secret, MASK)
        return _userinfo.sub(f"{MASK}@", words) if "@" in words else words

    def reason(self, error: Exception) -> str:
        """Return the type and message of the error with which a call failed.

        A proxy is named, because the fault may be its own.
        """
        import httpx2  # late, because reading an actor needs the error table and no HTTP client

        # The error for an invalid header quotes the header, which may be the key.
        text = "" if isinstance(error, httpx2.LocalProtocolError) else str(error)
        words = f"{type(error).__name__}: {text}" if text else type(error).__name__
        if self.proxy is not None and isinstance(error, httpx2.TransportError):
            words = f"{words} (through the proxy {self.proxy})"
        return self.text(words)

    def first_words(self, body: bytes) -> str:
        """Return the beginning of an unreadable body, as one line of 200 characters."""
        longest = max(map(len, self._words), default=0)
        most = 2000 + 4 * longest  # bytes of UTF-8
        words = self.text(" ".join(body[:most].decode("utf-8", "replace").split()))
        if len(body) > most:
            words = words[: len(words) - _begun(words, self._words)]
        return words[:200]

    def answer(self, data: bytes) -> bytes:
        """Return whole result lines, or a whole Message, without credentials."""
        for secret in self._in_answers:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data

    async def answers(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Yield a body in pieces without credentials, also of those that two pieces share."""
        kept = b""
        async for piece in pieces:
            data = self.answer(kept + piece)
            end = len(data) - _begun(data, self._in_answers)
            kept = data[end:]
            if end:
                yield data[:end]
        if kept:
            yield kept


def _begun(data: AnyStr, secrets: Sequence[AnyStr]) -> int:
    """Return how many characters or bytes at the end may be the beginning of a credential."""
    longest = max(map(len, secrets), default=1) - 1
    for count in range(min(longest, len(data)), 0, -1):
        end = data[-count:]
        if any(secret[:count] == end for secret in secrets):
            return count
    return 0


# Checks -------------------------------------------------------------------------------------------

LARGEST_COUNT = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (RFC 8259, section 6)."""

LONGEST_ID = 256
"""Most characters of an id. The API's own ids have about 30."""

LONGEST_WAIT = 86_400.0
"""Most seconds that a ``retry-after`` may ask for, because a batch lives no longer than a day."""

MOST_DEPTH = 100
"""Most levels of arrays and objects in a body whose whole content is decoded.

The depth that a decoder can reach depends on the stack beneath it. So a body must not be readable
at one place and unreadable at another. The API's own bodies have about ten levels, and a tool's
input some more."""

_ID = r"^[A-Za-z0-9_-]{1,256}\Z"
_is_id = re.compile(_ID).match
_is_word = re.compile(r"^[\x21-\x7e]{1,256}\Z").match

RemoteId = Annotated[str, msgspec.Meta(pattern=_ID)]
"""Id of the API. It is part of paths, so it has no character with a meaning in paths."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
"""Number of requests."""

# The API did not exist earlier, and a year with five digits overflows the platform's clock.
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


def check_id(value: str) -> str:
    """Return an id that is safe in a path. Raises ``ValueError`` for any other text."""
    if _is_id(value) is None:
        raise ValueError(f"{value[:64]!r} is not an id of the API")
    return value


# An unterminated string matches to the end of the data, so that each byte is examined once.
_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_all_but_brackets = bytes(set(range(256)) - set(b"[]{}"))


_COPIED: Final = 65_536
"""Most bytes of data that are copied to be counted."""


def _brackets(data: bytes) -> int:
    """Return how many arrays and objects a JSON text begins, brackets in its strings included."""
    if len(data) > _COPIED:
        return data.count(b"[") + data.count(b"{")
    # `replace` finds a byte four times as fast as `count`, and this runs for every line.
    return len(data) - len(data.replace(b"[", b"").replace(b"{", b""))


def check_text(data: bytes) -> None:
    """Raise ``ValueError`` for bytes that are not UTF-8, or JSON deeper than `MOST_DEPTH`.

    The JSON decoder itself skips unrequested fields without a check of their content.
    """
    if not data.isascii():
        data.decode()
    if _brackets(data) <= MOST_DEPTH:
        return
    left = _string.sub(b"", data).translate(None, _all_but_brackets)
    for _ in range(MOST_DEPTH):
        size = len(left)
        left = left.replace(b"[]", b"").replace(b"{}", b"")
        # The decoder finds brackets that do not match.
        if len(left) in (0, size):
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")


def header_word(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header that holds one printable word of at most 256 characters, else `None`."""
    return word_or_none(headers.get(name))


def word_or_none(value: str | None) -> str | None:
    """Return a printable ASCII word of at most 256 characters, and `None` for any other text.

    Such a word is safe in a header, a message or a log.
    """
    return value if value is not None and _is_word(value) is not None else None


def mapping_or_none(value: object) -> Mapping[str, Any] | None:
    """Return a JSON object, and `None` for every other JSON value."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


def mappings(values: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; nothing of what is no list."""
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        for value in cast("Sequence[object]", values):
            if isinstance(value, Mapping):
                yield cast("Mapping[str, Any]", value)


def iso_time(text: str | None) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch; `None` if it is not plausible.

    A time without an offset is UTC.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return _plausible((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def server_time(headers: Mapping[str, str]) -> float | None:
    """Return the ``Date`` header as seconds since the epoch; `None` if it is not plausible."""
    return _http_date(headers.get("date"))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``retry-after-ms`` or ``retry-after`` (seconds or a date) asks for.

    Between 0 and `LONGEST_WAIT`; `None` if neither header can be understood.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            until, now = _http_date(value), server_time(headers)
            if until is None or now is None:
                continue
            seconds = until - now
        if not math.isnan(seconds):
            return min(max(0.0, seconds), LONGEST_WAIT)
    return None


def _http_date(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return _plausible(parsedate_to_datetime(value).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


def _plausible(seconds: float) -> float | None:
    return seconds if _EARLIEST <= seconds <= _LATEST else None
