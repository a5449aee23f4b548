"""Who may see the pages: Host checks, the token, and the headers that protect the browser."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.dashboard import (
    SHORTEST_TOKEN,
    TOKEN_VARIABLE,
    DashboardSettings,
)
from claude_batch.serving import HostCheck, is_loopback

PROTECTION: Final = {
    # Nothing inline, nothing from elsewhere: a text that slipped through as HTML could do nothing.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Without any referrer, browsers would send "Origin: null" with the forms of our own pages.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response."""


class Access:
    """Decides about each call by its headers and cookie."""

    def __init__(self, settings: DashboardSettings) -> None:
        """Raises `ActorConfigurationError` for an address that other machines reach, untold."""
        token = settings.token
        if token is None and not is_loopback(settings.host):
            raise ActorConfigurationError(
                f"{settings.host} can be reached by other machines, and the pages show prompts and "
                f"answers: add --token TOKEN, or set {TOKEN_VARIABLE}"
            )
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise ActorConfigurationError(
                f"the token has fewer than {SHORTEST_TOKEN} characters, so it could be found by "
                f"trying; a random one is {secrets.token_urlsafe(24)}"
            )
        self._token = None if token is None else token.encode("utf-8", "surrogateescape")
        self._hosts = HostCheck(settings.host, settings.allowed_hosts)
        # For the forms of this process. A page of another origin can send a form, but not read one.
        self.form_token: str = secrets.token_urlsafe(32)

    @property
    def has_token(self) -> bool:
        """Whether a browser must log in."""
        return self._token is not None

    def refused_host(self, request: Request) -> str | None:
        """Return the host name of a call for another server, or None."""
        return self._hosts.refused(request.headers.get("host", ""))

    def is_admitted(self, request: Request) -> bool:
        """Return whether a call may see pages."""
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given):
            return True
        cookie = request.cookies.get(self.cookie(request), "")
        # As bytes: texts with other than ASCII characters are refused by an exception.
        return hmac.compare_digest(cookie.encode(), self.session.encode())

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token."""
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    @property
    def session(self) -> str:
        """The cookie of a browser that has sent the token; it does not contain the token."""
        return hmac.new(self._token or b"", b"claude-batch dashboard", hashlib.sha256).hexdigest()

    @staticmethod
    def cookie(request: Request) -> str:
        """Return the cookie's name. Browsers share cookies between the ports of a host."""
        return f"claude_batch_dashboard_{request.url.port or 80}"

    def is_own_form(self, request: Request, token: str) -> bool:
        """Return whether a POST comes from a form of these pages."""
        # Browsers send both headers with a form, and no page can change them; programs send none.
        # A proxy in front of this server may speak TLS, so the schemes may differ.
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        return (
            request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and (origin is None or origin.partition("://")[2] == host)
            and hmac.compare_digest(
                token.encode("utf-8", "surrogateescape"), self.form_token.encode()
            )
        )


_LARGEST_FORM: Final = 16 * 1024


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; none of one that is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_FORM:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
