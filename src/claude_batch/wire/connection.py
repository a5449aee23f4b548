"""`Connection`: HTTP calls to one base URL with one credential, each sent once.

Authentication, environment variables and headers follow the official SDK, which
features/wire/connection.feature compares. The SDK itself is not imported, because that takes a
second of CPU; only its profiles and federated credentials are left to it. Nothing is retried and no
redirect is followed: each attempt may be billed, and a redirect carries the key to another host.

Every response is bounded in decompressed size: a few kilobytes of gzip can become gigabytes.
httpx2 decompresses in pieces of a mebibyte, so it is enough to count its output.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx2

from claude_batch._version import __version__
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.wire.error_table import ApiFault, fault_of_response
from claude_batch.wire.inbound import Redaction, without_userinfo
from claude_batch.wire.limits import API_VERSION

_log = logging.getLogger(__name__)

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"

MOST_BODY_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of a response that is read whole.

An answer must fit into the next request of its conversation, and the API accepts 32 MB
(https://platform.claude.com/docs/en/api/overview). A list of 1,000 batches has about 1 MB."""

CONNECT_SECONDS: Final = 10.0
_LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
# The SDK's (`DEFAULT_CONNECTION_LIMITS` in its `_constants.py`).

_KEEPALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5), ("TCP_KEEPIDLE", 60))
        if hasattr(socket, name)
    ),
]
# As in the SDK: a live call is silent for minutes, and routers drop silent connections.

_ENCODED: Final = (b"content-encoding", b"content-length", b"transfer-encoding")
"""Headers of the compressed body; they are dropped, because the stream is decompressed already."""

_PROFILE_VARIABLES: Final = (
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_CONFIG_DIR",
    "ANTHROPIC_FEDERATION_RULE_ID",
    "ANTHROPIC_ORGANIZATION_ID",
)
"""Variables that distinguish one profile or federation of the SDK's credentials from another."""

_NEVER_CONNECTED: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

_warned: set[str] = set()


class Unreachable(Exception):
    """A call got no whole answer, or one that is not the API's; the message is the reason."""

    def __init__(self, reason: str, *, never_connected: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.never_connected = never_connected
        """Whether not even a connection was made."""


class CredentialFault(Unreachable):
    """The credential cannot be read, or is invalid; the message never contains it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, never_connected=True)


def check_key(key: object) -> None:
    """Raise `CredentialFault` for a key that no header can have.

    The HTTP library's own error quotes it.
    """
    if not isinstance(key, str):
        raise CredentialFault(f"the API key must be a text, not {type(key).__name__}")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CredentialFault(
            "the API key contains characters that no key has, such as a space, a line break or a "
            "typographic quote; set it again"
        )


class ResponseTooLarge(httpx2.TransportError):
    """A response has more than `MOST_BODY_BYTES`; the rest was not read."""


class Connection:
    """HTTP calls to one base URL, with one credential. Belongs to one event loop."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: httpx2.Timeout | None = None,
    ) -> None:
        """Set up the connection; nothing is sent yet.

        ``base_url`` defaults to ``ANTHROPIC_BASE_URL``; ``api_key`` to ``ANTHROPIC_API_KEY``, then
        ``ANTHROPIC_AUTH_TOKEN``, then the SDK's profiles and federation. The headers of
        ``ANTHROPIC_CUSTOM_HEADERS`` are sent with each call.

        Raises `CredentialFault` for a credential that cannot be read or sent, and
        `ActorConfigurationError` for another setting that cannot be used.
        """
        self._secret = _secret_of_environment() if api_key is None else api_key
        self._auth: httpx2.Auth | None = None
        self._profile = ""
        self._profile_errors: tuple[type[Exception], ...] = ()
        url = base_url or os.environ.get("ANTHROPIC_BASE_URL")
        custom = _custom_headers()
        profile: Mapping[str, str] = {}
        if not self._secret and api_key is None:
            url, profile = self._use_profile(url)
        check_key(self._secret)
        found = _base_url(url or DEFAULT_BASE_URL)
        # The ledger identifies a workspace by these characters.
        self._root = found
        if not found.raw_path.endswith(b"/"):
            self._root = found.copy_with(raw_path=found.raw_path + b"/")
        proxy = _proxy_of(self._root)
        self.redaction: Redaction = Redaction.of(
            str(self._root),
            self._secret,
            *_secrets_in({name: custom[name] for name in custom if _is_secret(name, custom[name])}),
            doubtful=_secrets_in(custom),
            proxy=None if proxy is None else proxy.url.netloc.decode(),
        )
        """Replaces the credential in what was received."""
        _warn_of_plain_http(self._root)
        bearer = {"authorization": f"Bearer {self._secret}"} if self._secret else {}
        self._http = httpx2.AsyncClient(
            headers={
                "accept": "application/json",
                "user-agent": f"claude-batch/{__version__}",
                "anthropic-version": API_VERSION,
                **bearer,
                **profile,
                **custom,
            },
            timeout=timeout or httpx2.Timeout(600.0, connect=CONNECT_SECONDS),
            transport=_transport(self._root, proxy),
            # A cookie with a character that is invalid in headers would break every later call.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    def _use_profile(self, base_url: str | None) -> tuple[str | None, Mapping[str, str]]:
        """Take the credential from a profile or federation of the SDK, if there is one.

        Returns the base URL to use, and headers that belong to the profile.
        """
        # The SDK's HTTP client reads the same variables, and its errors do not name them.
        target = _base_url(base_url or DEFAULT_BASE_URL)
        _transport(target, _proxy_of(target))
        import anthropic  # late: it takes a second, and most credentials are keys

        try:
            sdk = anthropic.AsyncAnthropic(base_url=base_url)
        except (ImportError, OSError, ValueError, httpx2.InvalidURL) as error:
            raise CredentialFault(
                f"the SDK cannot be used to find credentials: {type(error).__name__}"
            ) from None
        except anthropic.AnthropicError as error:
            raise CredentialFault(f"the credentials cannot be used: {error}") from None
        if sdk.credentials is None:
            return base_url, {}
        self._auth = sdk.custom_auth
        self._profile_errors = (anthropic.AnthropicError,)
        # A profile's tokens change over time; the variables that name the profile do not.
        self._profile = "".join(
            f"{name}={os.environ.get(name, '')}\n" for name in _PROFILE_VARIABLES
        )
        headers = {
            name.lower(): value
            for name, value in sdk.default_headers.items()
            if isinstance(value, str) and name.lower().startswith("anthropic-")
        }
        return str(sdk.base_url), headers

    @property
    def base_url(self) -> str:
        """The base URL in use, without a password, and with a slash at its end if it has a path."""
        return without_userinfo(str(self._root))

    @property
    def credential(self) -> str:
        """The secret that identifies the credential, "" for none; never write it anywhere."""
        return self._secret or self._profile

    def fault_of(self, response: httpx2.Response) -> ApiFault:
        """Return the fault of an unsuccessful response."""
        return fault_of_response(
            response.status_code, response.headers, response.content, self.redaction
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        files: Mapping[str, tuple[str, bytes, str]] | None = None,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        stream: bool = False,
    ) -> httpx2.Response:
        """Send one request, once, and return its response, whatever its status.

        ``content`` is JSON, unless ``headers`` have another type. ``stream`` leaves the body of a
        success unread; the caller bounds it and closes the response. Raises `Unreachable` without
        a whole response, and `CredentialFault` if a profile has no token.
        """
        sent = dict(headers or {})
        if content is not None:
            sent.setdefault("content-type", "application/json")
        # A host with an underscore is no valid server name in TLS; the SDK does the same.
        extensions = (
            {"sni_hostname": host.replace("_", "-")} if "_" in (host := self._root.host) else {}
        )
        try:
            request = self._http.build_request(
                method,
                self._root.copy_with(raw_path=self._root.raw_path + path.lstrip("/").encode()),
                content=content,
                files=files,
                params=params,
                headers=sent,
                timeout=httpx2.USE_CLIENT_DEFAULT if timeout is None else timeout,
                extensions=extensions,
            )
        except ValueError as error:
            # Only its type: the error for an invalid header quotes the header.
            reason = f"Unsendable: {type(error).__name__}"
            raise Unreachable(reason, never_connected=True) from None
        try:
            response = await self._http.send(
                request, stream=True, auth=self._auth or httpx2.USE_CLIENT_DEFAULT
            )
            return await _bounded(response, whole=not (stream and response.is_success))
        except Exception as error:
            if isinstance(error, self._profile_errors):
                raise CredentialFault(self.redaction.text(str(error))) from None
            # Also what the HTTP library lets through: errors of the socket, of TLS, of a header.
            raise Unreachable(
                self.redaction.reason(error), never_connected=isinstance(error, _NEVER_CONNECTED)
            ) from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _secret_of_environment() -> str:
    key, token = os.environ.get("ANTHROPIC_API_KEY"), os.environ.get("ANTHROPIC_AUTH_TOKEN")
    if key and token and "both" not in _warned:
        _warned.add("both")
        _log.warning(
            "ANTHROPIC_API_KEY and ANTHROPIC_AUTH_TOKEN are both set; ANTHROPIC_API_KEY is used"
        )
    return key or token or ""


def _base_url(url: str) -> httpx2.URL:
    """Return a base URL in one spelling. Raises `ActorConfigurationError`."""
    fault = "an API's URL begins with http:// or https:// and a host"
    try:
        found = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        # The error quotes a part of the URL, which may be that of a password.
        fault = "it is not a URL" if "@" in url else str(error)
    else:
        if found.scheme in ("http", "https") and found.host:
            if found.port is None or 0 < found.port < 65536:
                return without_bare_slash(found)
            fault = f"Invalid port: {found.port}"
    raise ActorConfigurationError(
        f"the base URL cannot be used: {fault}; correct --base-url, or ANTHROPIC_BASE_URL"
    )


def without_bare_slash(url: httpx2.URL) -> httpx2.URL:
    """Return a URL without the slash at its end if it has no path.

    The SDK keeps both spellings. The HTTP client sends the same bytes for both, so a ledger must
    not take them for two APIs.
    """
    return url.copy_with(raw_path=b"") if url.raw_path == b"/" else url


def _custom_headers() -> dict[str, str]:
    """Return the headers of ``ANTHROPIC_CUSTOM_HEADERS``: one ``Name: value`` a line.

    Raises `ActorConfigurationError` for one that HTTP cannot express.
    """
    found: dict[str, str] = {}
    lines = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    for number, line in enumerate(lines, 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            continue
        if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
            raise ActorConfigurationError(
                f"line {number} of ANTHROPIC_CUSTOM_HEADERS cannot be sent as a header; write "
                "`Name: value` in ASCII"
            )
        found[name.lower()] = value
    return found


_HEADER_NAME: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")

_HARMLESS: Final = (
    *("accept", "accept-language", "anthropic-beta", "anthropic-version"),
    *("content-type", "user-agent"),
)
"""Headers whose values are no secrets."""

_SECRET_NAME: Final = re.compile(
    # `auth`, but not `author`
    "auth(?!or(?!i[sz]))|cookie|credential|jwt|key|passw|secret|session|signature|token"
)


def _is_secret(name: str, value: str) -> bool:
    """Return whether a header certainly holds a credential, by its name in lower case or value."""
    is_authorization = value.lower().startswith(("basic ", "bearer "))
    return is_authorization or _SECRET_NAME.search(name) is not None


def _secrets_in(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of headers that may be credentials, such as those of a gateway."""
    for name, value in headers.items():
        if name.lower() not in _HARMLESS:
            yield value
            yield value.partition(" ")[2]  # the token in `Bearer TOKEN`


class _Proxy(NamedTuple):
    """The proxy of a connection."""

    url: httpx2.URL
    variable: str
    """The variable that names it."""


def _proxy_of(url: httpx2.URL) -> _Proxy | None:
    """Return the proxy for a base URL; None on this machine, and for hosts of ``NO_PROXY``.

    Raises `ActorConfigurationError`.
    """
    proxies = getproxies()
    scheme = url.scheme if proxies.get(url.scheme) else "all"
    written = proxies.get(scheme)
    if not written or _is_loopback(url.host) or proxy_bypass(url.host):
        return None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the proxy of the system")
    try:
        found = httpx2.URL(written if "://" in written else f"http://{written}")
    except httpx2.InvalidURL:
        found = httpx2.URL()
    if not found.host or found.scheme not in _PROXIES or not 0 < (found.port or 1) < 65536:
        raise ActorConfigurationError(
            f"{variable} cannot be used: a proxy is named by a URL such as http://HOST:3128 "
            f"(or {', '.join(_PROXIES[1:])}); correct it, or unset it"
        )
    return _Proxy(found, variable)


_PROXIES: Final = ("http", "https", "socks5", "socks5h")


def _transport(url: httpx2.URL, proxy: _Proxy | None) -> httpx2.AsyncHTTPTransport:
    """Return the transport of a connection. Raises `ActorConfigurationError`."""
    # A transport of our own, for its socket options; httpx2 then reads no proxy variables itself.
    # Reading the system's certificates takes 20 ms. A context without them trusts no server, so
    # that even a mistake here could not send anything over a TLS that is not verified.
    plain = url.scheme == "http" and proxy is None
    try:
        return httpx2.AsyncHTTPTransport(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
            proxy=None if proxy is None else proxy.url,
            limits=_LIMITS,
            socket_options=_KEEPALIVE,
        )
    except ImportError:
        assert proxy is not None
        raise ActorConfigurationError(
            f"{proxy.variable} names a SOCKS proxy, which needs the package socksio: install it, "
            "or unset the variable"
        ) from None
    except OSError as error:
        names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
        variable = next((name for name in names if os.environ.get(name)), "the system")
        raise ActorConfigurationError(
            f"the certificates of {variable} cannot be read "
            f"({error.strerror or type(error).__name__}); correct it, or unset it"
        ) from None


class _Bounded(httpx2.AsyncByteStream):
    """The decompressed bytes of a response, at most ``most`` of them."""

    def __init__(self, response: httpx2.Response, most: int | None) -> None:
        self._response = response
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async with aclosing(self._response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                count += len(chunk)
                if self._most is not None and count > self._most:
                    raise ResponseTooLarge(
                        f"the response has more than {self._most:,} bytes after decompression",
                        request=self._response.request,
                    )
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


async def _bounded(response: httpx2.Response, *, whole: bool) -> httpx2.Response:
    """Return a response with a bounded body; ``whole``: read it."""
    headers = [item for item in response.headers.raw if item[0].lower() not in _ENCODED]
    bounded = httpx2.Response(
        response.status_code,
        headers=headers,
        stream=_Bounded(response, MOST_BODY_BYTES if whole else None),
        request=response.request,
        extensions=response.extensions,
    )
    # A guess would lose the bytes of a header, which the gateway passes on.
    bounded.headers.encoding = "latin-1"
    if whole:
        try:
            await bounded.aread()
        finally:
            await bounded.aclose()
    return bounded


def _warn_of_plain_http(url: httpx2.URL) -> None:
    """Warn once per host that the key is sent unencrypted."""
    if url.scheme != "http" or _is_loopback(url.host) or url.host in _warned:
        return
    _warned.add(url.host)
    _log.warning(
        "the base URL http://%s is not encrypted: everybody on the network path can read the API "
        "key, the "
        "prompts and the answers. Use https://",
        url.host,
        extra={"for_people": True},
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
