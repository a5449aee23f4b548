"""Redaction: replace credentials in everything received, before it is stored or shown.

A server can echo what it was sent: in an error body, in a header, in a page of a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies

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

    def __init__(self, secrets: Iterable[str]) -> None:
        """Set up with credentials; short ones are left out, see `SHORTEST`."""
        # The longest first, because one can be a part of another.
        known = sorted({each for each in secrets if len(each) >= SHORTEST}, key=len, reverse=True)
        self._words = known
        self._in_answers = [
            each.encode() for each in known if len(each) >= SHORTEST_IN_ANSWERS and each.isascii()
        ]

    @classmethod
    def of(cls, base_url: str, secret: str) -> Redaction:
        """Return the redaction for a key or token, a base URL, and the environment's proxies.

        A profile's short-lived tokens are unknown; the server that receives them has issued them.
        """
        found = [secret]
        for url in (base_url, *getproxies().values()):
            try:
                password = urlsplit(url).password or ""
            except ValueError:
                continue
            found += [password, unquote(password)]
        return cls(found)

    def text(self, words: str) -> str:
        """Return a message without credentials, and without the user and password of any URL."""
        for secret in self._words:
            words = words.replace(secret, MASK)
        return _userinfo.sub(f"{MASK}@", words) if "@" in words else words

    def reason(self, error: Exception) -> str:
        """Return why a call failed: the type and message of an error of the HTTP client.

        `Disconnected` reports only that the connection failed; the reason is its cause.
        """
        import httpx2  # late, because reading an actor needs the error table and no HTTP client

        own = isinstance(error, httpx2.HTTPError | httpx2.StreamError)
        cause = error if own else error.__cause__ or error
        # The error for an invalid header quotes the header, which may be the key.
        text = "" if isinstance(cause, httpx2.LocalProtocolError) else str(cause)
        return self.text(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)

    def first_words(self, body: bytes) -> str:
        """Return the beginning of an unreadable body, as one line of 200 characters."""
        start = body[:2000].decode("utf-8", "replace")
        return self.text(" ".join(start.split()))[:200]

    def answer(self, data: bytes) -> bytes:
        """Return whole result lines, or a whole Message, without credentials."""
        for secret in self._in_answers:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data
