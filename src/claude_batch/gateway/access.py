"""Admission to the gateway: hosts, origins, tokens with names, and the answers to refused calls.

The gateway sends everything upstream with its own key, so whoever reaches it spends its owner's
money. By default that is every program of this machine, but no web page: a page can reach a
loopback address through the user's browser, directly or by rebinding the name of its own host, and
both show in the headers ``Origin``, ``Sec-Fetch-Site`` and ``Host``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from claude_batch.core.errors import STATUS_OF_TYPE, ActorConfigurationError
from claude_batch.core.files import read_small
from claude_batch.gateway import GatewaySettings
from claude_batch.serving import HostCheck, is_loopback
from claude_batch.wire.batches_client import BatchesClient

_REAL_KEY = "sk-ant-"
"""Beginning of the API's own keys."""

_OTHER_SITES = frozenset({"cross-site", "same-site"})
"""Values of ``Sec-Fetch-Site`` for the call of a page that has another origin."""

_WORKSPACE = "anthropic-workspace-id"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Caller(NamedTuple):
    """A program that calls the gateway."""

    name: str
    """Name of its token; empty if the gateway has no tokens."""

    @property
    def actor(self) -> str:
        """The actor of its requests in the ledger."""
        return f"gateway/{self.name}" if self.name else "gateway"


# Tokens -------------------------------------------------------------------------------------------


def _hashed(token: str) -> str:
    # One round: a token has 256 random bits, which nobody finds by guessing.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def add_token(path: Path, name: str) -> str:
    """Append a new token for ``name`` to a tokens file, and return it; the file has only its hash.

    Raises `ActorConfigurationError` if the name is unusable or taken, or the file is unreadable.
    """
    if not _NAME.fullmatch(name):
        raise ActorConfigurationError(
            f"{name!r} is not a valid name for a token: use up to 64 letters, digits, '.', '_' "
            "and '-'"
        )
    text = ""
    if path.exists():
        names = TokenFile(path).names
        text = read_small(path)
    else:
        names = frozenset[str]()
    if name in names:
        raise ActorConfigurationError(
            f"{path} has a token for {name} already; remove its line to replace the token"
        )
    token = f"cbg-{secrets.token_urlsafe(32)}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            # A token that was revoked by hand may have left a last line without an end.
            begins = "" if not text or text.endswith("\n") else "\n"
            file.write(f"{begins}{name} sha256:{_hashed(token)}\n")
    except FileNotFoundError:
        raise ActorConfigurationError(f"{path}: its folder does not exist; make it first") from None
    except OSError as error:
        raise ActorConfigurationError(f"{path}: {error.strerror}") from None
    return token


class TokenFile:
    """The tokens of a file, one ``NAME sha256:HEX`` a line; read again when the file changes."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `ActorConfigurationError`."""
        self._path = path
        self._stamp: object = None
        self._names: dict[str, str] = {}
        self._read()

    @property
    def names(self) -> frozenset[str]:
        """Names of the callers with a token."""
        return frozenset(self._names.values())

    def name_of(self, token: str) -> str | None:
        """Return the name of a token, or None. Raises `ActorConfigurationError`."""
        self._read()
        # Looked up by its hash: how long that takes says nothing about the tokens.
        return self._names.get(_hashed(token))

    def _read(self) -> None:
        try:
            state = os.stat(self._path)
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp == self._stamp:
                return
            text = read_small(self._path)
        except FileNotFoundError:
            raise ActorConfigurationError(
                f"--tokens {self._path}: there is no such file. Make it, with the first caller's "
                f"token: claude-batch gateway --tokens {shlex.quote(str(self._path))} --new-token "
                "NAME"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ActorConfigurationError(f"--tokens {self._path}: {reason}") from None
        names: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, hashed = line.strip().partition(" sha256:")
            if not _NAME.fullmatch(name) or not re.fullmatch("[0-9a-f]{64}", hashed):
                raise ActorConfigurationError(
                    "a line of a tokens file is NAME sha256:HEX, as "
                    "`claude-batch gateway --tokens FILE --new-token NAME` writes it",
                    source=str(self._path),
                    line=number,
                )
            names[hashed] = name
        self._stamp, self._names = stamp, names


# Refusals -----------------------------------------------------------------------------------------


_TYPES = {status: kind for kind, status in STATUS_OF_TYPE.items()}

_LIKE = {405: 400, 408: 504, 414: 413, 421: 400, 431: 413}
"""Statuses that the API does not send, and those whose error type they have."""


class Refusal(Exception):
    """A call that the gateway does not take."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_after: int | None = None,
        is_overload: bool = False,
    ) -> None:
        """``retry_after``: seconds after which the SDKs repeat the call; by default they do not."""
        super().__init__(message)
        self.status = status
        self._type = _TYPES.get(_LIKE.get(status, status), "api_error")
        if is_overload:
            self._type = "overloaded_error"
        self.headers: dict[str, str] = {"x-should-retry": "false", **(headers or {})}
        if retry_after is not None:
            self.headers |= {"x-should-retry": "true", "retry-after": str(retry_after)}

    @property
    def body(self) -> bytes:
        """The API's error object."""
        fault = {"type": self._type, "message": str(self)}
        return msgspec.json.encode({"type": "error", "error": fault, "request_id": None})


def ending() -> Refusal:
    """Return the refusal of a call that comes, or is held, while the gateway ends."""
    return Refusal(
        503,
        "the gateway is shutting down; its requests stay in the ledger, and the same call gets its "
        "answer after the restart",
        retry_after=5,
    )


# Access -------------------------------------------------------------------------------------------


class Access:
    """Decides about each call by its headers."""

    def __init__(
        self,
        settings: GatewaySettings,
        client: BatchesClient,
        stored_workspace: Callable[[], str | None],
    ) -> None:
        """``client`` has the gateway's key, which callers of this machine may send as well.

        ``stored_workspace`` returns the API's id of that key's workspace, if the ledger has it; it
        blocks.
        Raises `ActorConfigurationError` for an address that other machines reach without tokens.
        """
        if settings.tokens is None and not is_loopback(settings.host):
            raise ActorConfigurationError(
                f"{settings.host} can be reached by other machines, and each call is paid for with "
                "your key: add --tokens FILE, and make a token for each caller with --new-token "
                "NAME"
            )
        self._tokens = None if settings.tokens is None else TokenFile(settings.tokens)
        self._client = client
        self._read_workspace = stored_workspace
        # The last that was read: it may change only by an answer of the API.
        self._stored_workspace: str | None = None
        self._hosts = HostCheck(settings.host, settings.allowed_hosts)
        self._origins = {origin.rstrip("/").lower() for origin in settings.allowed_origins}

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Refuse calls that a web page has caused. Raises `Refusal`."""
        host = self._hosts.refused(headers.get("host", ""))
        if host is not None:
            raise Refusal(
                421,
                f"this gateway does not serve the host {host[:200]!r}; "
                "allow it with --allow-host NAME",
            )
        origin = headers.get("origin")
        # Browsers send no Origin with the GET of a picture or a link. Such a call could take an
        # answer from the program that has asked for it.
        if origin is None and headers.get("sec-fetch-site") in _OTHER_SITES:
            raise Refusal(
                403,
                "web pages may not call this gateway by links, pictures or scripts",
            )
        if origin is not None and origin.lower() not in self._origins:
            raise Refusal(
                403,
                f"web pages of {origin[:200]!r} may not call this gateway; allow them with "
                "--allow-origin ORIGIN",
            )

    async def admit(self, headers: Mapping[str, str]) -> Caller:
        """Return who calls. Raises `Refusal`, and `LedgerError` if it needs the ledger."""
        caller = self._caller(headers)
        given = headers.get(_WORKSPACE)
        if given is not None:
            await self._check_workspace(given)
        return caller

    async def _check_workspace(self, given: str) -> None:
        own = self._client.workspace or self._stored_workspace
        if own is None:
            own = self._stored_workspace = await asyncio.to_thread(self._read_workspace)
        if own is None:
            raise Refusal(
                503,
                f"the gateway cannot compare this call's {_WORKSPACE} with its key's, because "
                "no answer of the API has named it yet; repeat the call, or leave the header out",
                retry_after=5,
            )
        if given != own:
            raise Refusal(
                400,
                f"this call has another {_WORKSPACE} than the gateway's key ({own}), whose "
                "workspace would pay for it; leave the header out, or call a gateway with a key of "
                "that workspace",
            )

    def _caller(self, headers: Mapping[str, str]) -> Caller:
        given = _credentials(headers)
        if self._tokens is None:
            if not any(self._is_foreign(each) for each in given):
                return Caller("")
        else:
            try:
                names = [self._tokens.name_of(each) for each in given]
            except ActorConfigurationError as error:
                raise Refusal(500, f"nobody is admitted: {error}") from None
            for name in names:
                if name is not None:
                    return Caller(name)
        if any(self._is_foreign(each) for each in given):
            raise Refusal(
                401,
                "this gateway pays with its own API key, and does not use the one that you sent, "
                "which is another; set ANTHROPIC_API_KEY to "
                + ("your token for this gateway" if self._tokens else "any other text"),
            )
        raise Refusal(
            401,
            "this gateway needs a token: send it as x-api-key, or as Authorization: Bearer",
        )

    def _is_foreign(self, given: str) -> bool:
        """Return whether it is a key of the API, and not the gateway's own."""
        is_own = secrets.compare_digest(given.encode(), self._client.credential.encode())
        return given.startswith(_REAL_KEY) and not is_own


def _credentials(headers: Mapping[str, str]) -> list[str]:
    """Return the keys or tokens of a call; clients use either of two headers, or both."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    return [each.strip() for each in given if each.strip()]
