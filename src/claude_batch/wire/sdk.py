"""The official SDK's client for claude-batch: bounded responses, and no retries of its own.

The SDK provides authentication, base URL, proxies and TLS. Its retries are off, because it would
send a request again whose answer was lost, and each attempt may be billed.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2

from claude_batch.wire.http_client import BoundedClient

_log = logging.getLogger(__name__)

_warned: set[str] = set()


class CredentialFault(Exception):
    """The credential cannot be read, or is invalid; the message never contains it."""


def open_sdk(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout: httpx2.Timeout | None = None,
    default_headers: Mapping[str, str] | None = None,
) -> anthropic.AsyncAnthropic:
    """Return a client; ``base_url`` and ``api_key`` default to the SDK's environment.

    Raises `CredentialFault` for a credential that cannot be read or sent, and
    ``httpx2.InvalidURL``.
    """
    optional: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    try:
        sdk = anthropic.AsyncAnthropic(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            default_headers=dict(default_headers) if default_headers else None,
            open_telemetry=False,
            http_client=BoundedClient(**optional),
            **optional,
        )
    except anthropic.AnthropicError as error:
        raise CredentialFault(f"the credentials cannot be used: {error}") from None
    secret = sdk.api_key or sdk.auth_token or ""
    # Checked here, because the HTTP library quotes a header that it cannot send.
    if not secret.isprintable() or " " in secret:
        raise CredentialFault(
            "the API key holds characters that no key has, such as a space or a line break; set it "
            "again"
        )
    _warn_of_plain_http(sdk.base_url)
    return sdk


def _warn_of_plain_http(url: httpx2.URL) -> None:
    """Warn once per host that the key is sent unencrypted."""
    if url.scheme != "http" or _is_loopback(url.host) or url.host in _warned:
        return
    _warned.add(url.host)
    _log.warning(
        "the base URL http://%s is not encrypted: everybody on the way can read the API key, the "
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
