"""Access control for the sandbox's own routes, which read requests and change the answers.

A page in the user's browser can also reach a port of the loopback. It can send simple requests to
another site, which then carry `Origin`. Or, once its own name resolves to the loopback (DNS
rebinding), it can call the port as its own site, with its own name in `Host`. So a caller without
the token must be on this machine, must use a name of the loopback, and must not be a page.
"""

from __future__ import annotations

import hmac
from ipaddress import IPv6Address, ip_address

from starlette.requests import Request as HttpRequest

from .api_errors import ApiError

TOKEN_HEADER = "x-sandbox-token"


def check_caller(http: HttpRequest, token: str | None) -> None:
    """Raise `ApiError` (403) for a caller that may not use the sandbox's own routes."""
    given = http.headers.get(TOKEN_HEADER)
    if token and given is not None and hmac.compare_digest(token.encode(), given.encode()):
        return
    if "origin" in http.headers or http.headers.get("sec-fetch-site", "none") != "none":
        raise _refused("not from a page in a browser")
    if not _is_loopback_name(http.headers.get("host", "")):
        raise _refused("only by a name of the loopback, such as 127.0.0.1")
    # None: a Unix socket, or no network at all.
    if http.client is not None and not _is_loopback(http.client.host):
        raise _refused("only from the machine that it runs on")


def _refused(words: str) -> ApiError:
    return ApiError(
        "permission_error",
        f"the sandbox's own routes can be called {words}, or with its --admin-token in the header "
        f"{TOKEN_HEADER}",
    )


def _is_loopback_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = name.removeprefix("[").removesuffix("]").lower()
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback
