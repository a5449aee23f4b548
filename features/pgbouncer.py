"""PgBouncer in transaction mode before a private PostgreSQL server, where it is installed.

with PgBouncer(server) as pooler:
    url = server.url(port=pooler.port)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from types import TracebackType
from typing import Self

import psycopg
from postgres_server import HOST, USER, PostgresServer, free_port

_SETTINGS = """
[databases]
* = user={user} host={host} port={upstream}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
server_login_retry = 1
"""
"""Few connections for many clients, so that clients get each other's all the time."""


def program() -> str | None:
    """Return where PgBouncer is, or None."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """A pooler on a free port, from its creation to `close`."""

    def __init__(self, server: PostgresServer) -> None:
        """Start it; returns once it accepts clients."""
        found = program()
        assert found is not None, "PgBouncer is not installed"
        self.port = free_port()
        settings = server.folder / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(user=USER, host=HOST, upstream=server.port, port=self.port)
        )
        as_nobody = ["--user", "nobody"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [found, "--quiet", *as_nobody, str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                psycopg.connect(server.url(port=self.port)).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise
                time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
