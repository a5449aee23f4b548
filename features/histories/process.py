"""A process that drives: a ledger of its own, a driver, and what it is in the middle of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ledgers_on_postgres
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from claude_batch.core.errors import ActorError
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger import batch_contents, collected_batches, enqueue
from claude_batch.ledger.backends import sqlite
from claude_batch.ledger.backends.backend import Backend
from claude_batch.ledger.backends.postgres import PostgresBackend
from claude_batch.ledger.store import Deposed, Leader, Ledger
from claude_batch.lifecycle import collection, recovery
from claude_batch.lifecycle.driver import Driver
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.recovery import Recovered
from claude_batch.lifecycle.submission import KeyRefused
from claude_batch.lifecycle.tool_runner import Workbench
from claude_batch.providers import run_writer
from histories.api import PASS, WORKSPACE, Crash, SimulatedApi, SimulatedClient

__all__ = ["Process", "copy_of", "in_memory", "staged"]

SENDINGS_AT_ONCE = 8


class _FreeLock:
    """A leader lock that never excludes: the epoch must do it alone."""

    def take(self) -> bool:
        return True

    def release(self) -> None: ...


def _relax(connection: Any, _record: object) -> None:
    # Nobody pulls a plug here: a process that dies is simulated, a disk that forgets is not.
    if ledgers_on_postgres.VARIABLE in os.environ:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
    else:
        connection.execute("PRAGMA synchronous = OFF")


_compiled: LRUCache[Any, Any] = LRUCache(5000)


class _AlikeDialect(SQLiteDialect_pysqlite):
    """All are equal, so that the statements are compiled once, and not once for each process."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AlikeDialect)

    def __hash__(self) -> int:
        return hash(_AlikeDialect)


def _create_engine(url: URL, **more: Any) -> Engine:
    engine = create_engine(url, **more)
    engine.dialect.__class__ = _AlikeDialect
    engine._compiled_cache = _compiled
    return engine


@contextlib.contextmanager
def staged(folder: Path) -> Generator[Path]:
    """Everything around the processes; gives an empty ledger to copy."""
    event.listen(Engine, "connect", _relax)
    new_run_id = map("run-{:010}".format, count()).__next__
    try:
        with (
            patch.object(Ledger, "leader_lock", lambda *_: _FreeLock()),
            patch.object(sqlite, "create_engine", _create_engine),
            # Simulated time, and not a server's.
            patch.object(PostgresBackend, "now", Backend.now),
            patch.object(os, "fsync", lambda _: None),
            # Runs are read in the order of their ids here and there.
            patch.object(enqueue, "new_run_id", new_run_id),
            patch.object(run_writer, "new_run_id", new_run_id),
            # A stream that breaks off leaves what came before, as one of thousands of lines does.
            patch.object(collection, "CHUNK_LINES", 1),
            # And every batch is large.
            patch.object(collected_batches, "SLICE", 1),
            # As is every queue.
            patch.object(batch_contents, "LOOK", 2),
            # What is collected together must not depend on how fast the machine is.
            patch.object(collection, "TOGETHER_SECONDS", 0.0),
            patch.object(recovery, "SENDING", lambda _: 0.0),
            patch.dict(os.environ, CLAUDE_BATCH_STATE_DIR=str(folder / "state")),
        ):
            template = folder / "template.db"
            Ledger(str(template)).close()
            yield template
    finally:
        event.remove(Engine, "connect", _relax)


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, where the machine has such folders."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(
        prefix="claude-batch-model-", dir=memory if os.access(memory, os.W_OK) else None
    )


class Process:
    """One process. Its passes may be held up inside a call, and go on when the API wakes them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        api: SimulatedApi,
        path: Path,
        settings: LedgerSettings,
        workspace: str = WORKSPACE,
        workbench: Workbench | None = None,
    ) -> None:
        self._loop = loop
        self._api = api
        self.ledger = Ledger(str(path))
        self.client = SimulatedClient(api, workspace)
        context = DriverContext(self.ledger, self.client, settings)
        self.driver = Driver(context, lambda: None, workbench)
        self._settings = settings
        self.leader: Leader | None = None
        self._sitting = contextlib.ExitStack()
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self.was_deposed = False
        self.is_retired = False
        """True if another process has come, and this one takes the leader lock no more."""

    @property
    def workspace_id(self) -> int:
        return self.driver.workspace_id

    def is_busy(self, what: str) -> bool:
        """Whether a pass of this kind is held up."""
        return what in self._tasks

    def send(self) -> None:
        """Pack and send what is due."""
        if not self.is_busy("send") and self._sit():
            self._run("send", self._send())

    async def _send(self) -> None:
        assert self.leader is not None
        for _ in range(SENDINGS_AT_ONCE):
            if await self.driver._send_pass(self.leader):
                return

    def poll(self) -> None:
        """Check, reconcile and collect what is due."""
        if not self.is_busy("poll") and self._sit():
            assert self.leader is not None
            self._run("poll", self.driver._poll_pass(self.leader))

    def call(self) -> None:
        """Ask live what waits for it."""
        if not self.is_busy("call") and self._sit():
            assert self.leader is not None
            self._run("call", self.driver._live.drain(self.leader))

    def refetch(self, run_id: str, then: Callable[[list[int]], None]) -> None:
        """Fetch what a run lacks once more, and ``then`` do something with the batches."""
        if not self.is_busy("fetch"):
            self._run("fetch", self._refetch(run_id, then))

    async def _refetch(self, run_id: str, then: Callable[[list[int]], None]) -> None:
        with contextlib.suppress(ActorError):
            done = await recovery.refetch(self.ledger, self.client, self._settings, run_id)
            then(done.batches)

    def recover(self, *, even_if_whole: bool) -> Recovered | None:
        """Recover the ledger; None if that was held up, or ended with an error."""
        found: list[Recovered] = []
        self._run("recover", self._recover(found, even_if_whole))
        return found[0] if found else None

    async def _recover(self, found: list[Recovered], even_if_whole: bool) -> None:
        if not even_if_whole and recovery.is_whole(self.ledger):
            found.append(Recovered(was_whole=True))
            return
        with contextlib.suppress(ActorError):
            found.append(
                await recovery.recover(
                    self.ledger,
                    self.client,
                    self._settings,
                    even_if_whole=even_if_whole,
                )
            )

    def go_on(self) -> None:
        """Let what was held up end, or be held up anew."""
        for what, task in list(self._tasks.items()):
            self._wait(what, task)

    def die(self) -> None:
        """Everything in memory is gone."""
        self._end_passes()
        self._sitting.close()
        self.ledger.close()

    def _end_passes(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            waiting = asyncio.gather(*self._tasks.values(), return_exceptions=True)
            with contextlib.suppress(Crash):
                self._loop.run_until_complete(waiting)
        self._tasks.clear()

    def _sit(self) -> bool:
        if self.leader is None and not self.is_retired and not self.is_busy("sit"):
            self._run("sit", self._take_leader_lock())
        return self.leader is not None

    async def _take_leader_lock(self) -> None:
        if await self.driver.contact.make() or self.is_retired:
            return
        self.leader = self._sitting.enter_context(self.driver._hold_leader_lock())
        self._api.leading = self.client

    def _run(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        async def make_pass() -> None:
            task = asyncio.current_task()
            assert task is not None
            PASS.set(task)
            await work

        self._wait(what, self._loop.create_task(make_pass()))

    def _wait(self, what: str, task: asyncio.Task[Any]) -> None:
        while not task.done() and task not in self._api.paused:
            held_up = self._api.on_pause = self._loop.create_future()
            self._loop.run_until_complete(
                asyncio.wait({task, held_up}, return_when=asyncio.FIRST_COMPLETED)
            )
        self._api.on_pause = None
        if not task.done():
            self._tasks[what] = task
            return
        self._tasks.pop(what, None)
        try:
            task.result()
        except Deposed:
            self.was_deposed = True
        except KeyRefused:
            # Delayed work ends with the epoch, as all of a driver's loops do.
            self._end_passes()
            self.driver.contact.made = False
            self._sitting.close()
            self.leader = None


def copy_of(template: Path, path: Path) -> None:
    """A new ledger, without the cost of making one; on a server, the first process makes it."""
    if ledgers_on_postgres.VARIABLE not in os.environ:
        shutil.copyfile(template, path)
