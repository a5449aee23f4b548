"""What this package's local HTTP servers have in common; here, which calls are for them.

A call's ``Host`` header names the machine that it is for, and an address tells which machines reach
it. This needs no library, unlike `claude_batch.serving.local_server`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:@/\[\]]+))(?::[0-9]+)?")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HostCheck:
    """Decides by the ``Host`` header whether a call is for this server.

    A web page can reach a loopback address by rebinding the name of its own host to it. The header
    then still has the page's name.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        """``host`` is the address that the server listens on; ``allowed`` are further names.

        A name may have a port, which is not compared.
        """
        self._names = {*_LOCAL, host, *map(_name_of, allowed)}

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
