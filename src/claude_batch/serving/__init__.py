"""What this package's local HTTP servers share; here, which calls are for them, and probes.

A call's ``Host`` header names the machine that it is for, and an address tells which machines reach
it. This needs no library, unlike `claude_batch.serving.local_server`.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Final

from claude_batch.core.errors import ActorError

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:@/\[\]]+))(?::[0-9]+)?")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_every_address(host: str) -> bool:
    """Return whether a server on an address listens on all addresses of its machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class HostCheck:
    """Decides by the ``Host`` header whether a call is for this server.

    A web page can reach a loopback address by rebinding the name of its own host to it. The header
    then still has the page's name.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        """``host`` is the address that the server listens on; ``allowed`` are further names.

        A name may have a port, which is not compared.
        """
        self._names = {*_LOCAL, *map(_name_of, (host, *allowed))}

    def refused(self, header: str) -> str | None:
        """Return the host name of a call for another server; None if it is for this one."""
        name = _name_of(header)
        return None if name in self._names else name


def _name_of(host: str) -> str:
    """Return a host's name without its port, in lower case."""
    host = host.lower()
    found = _HOST.fullmatch(host)
    # What has another form, such as a user's name, is part of no host and returned as it stands.
    return host if found is None else found["six"] or found["name"]


# Probes -------------------------------------------------------------------------------------------

_ANSWERS: Final = 3.0
"""Seconds in which the ledger answers a probe; an orchestrator often waits for five."""

_LATE: Final = f"the ledger has not answered for {_ANSWERS:.0f} s"


class Readiness:
    """Asks the ledger why nothing is sent, once at a time: an outage does not pile up threads."""

    def __init__(self, why_not_ready: Callable[[], str | None]) -> None:
        """``why_not_ready`` returns None, or the reason, and may raise `ActorError`."""
        self._why_not_ready = why_not_ready
        self._lock = threading.Lock()
        self._asked: Future[str | None] | None = None

    def why_not(self) -> str | None:
        """Return the reason, or None; after 3 seconds, that the ledger does not answer."""
        try:
            return self._ask().result(_ANSWERS)
        except TimeoutError:
            return _LATE

    async def wait_why_not(self) -> str | None:
        """Do the same without blocking the event loop."""
        import asyncio  # slow, and the command line's help does without

        asked = asyncio.wrap_future(self._ask())
        try:
            return await asyncio.wait_for(asyncio.shield(asked), _ANSWERS)
        except TimeoutError:
            return _LATE

    def _ask(self) -> Future[str | None]:
        with self._lock:
            if self._asked is None or self._asked.done():
                asked = self._asked = Future[str | None]()
                try:
                    threading.Thread(target=self._answer, args=(asked,), daemon=True).start()
                except RuntimeError as error:  # the next probe asks again
                    asked.set_result(f"the ledger was not asked: {error}")
            return self._asked

    def _answer(self, asked: Future[str | None]) -> None:
        try:
            asked.set_result(self._why_not_ready())
        except ActorError as error:
            asked.set_result(str(error))
        except BaseException as error:
            asked.set_exception(error)  # the probe fails, and the next one asks again
