"""Tasks by which procrastinate's workers send and collect what a ledger holds.

The queue of jobs decides which worker works, and when. The state stays in the ledger, whose lease
and epoch exclude a worker that continues after another one took its place. So jobs may be lost,
stall or run twice: `claude_batch:sweep` defers again what the ledger needs, and nothing is sent
twice. Needs the extra ``procrastinate``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from procrastinate import Blueprint, JobContext, exceptions
from procrastinate.jobs import Status

from claude_batch.actor.tools import offer_tools
from claude_batch.core.errors import ActorConfigurationError, LedgerError
from claude_batch.core.quantities import parse_duration
from claude_batch.core.settings import absolute_ledger, default_ledger
from claude_batch.ledger import conversations, queries, workspaces
from claude_batch.ledger.store import Ledger, Transaction
from claude_batch.lifecycle.engine import Engine
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.sync_bridge import in_worker_thread

__all__ = ["claude_batch_tasks"]

_log = logging.getLogger(__name__)

CALLS_PER_JOB = 50
"""Conversations with open tool calls for which one more worker is asked to run tools."""

MOST_JOBS = 16
"""Most jobs of one kind at the same time, for large batches and for tool calls."""

_LOOK = 1.0
"""Seconds between two looks of a job at whether it is still needed."""

_KEPT_HOURS = 1
"""Hours for which ended jobs are kept. A sweep every 2 seconds is 43,200 jobs a day."""

_CLEANED_EVERY = 60
"""Seconds between two deletions of ended jobs."""


class _Need(NamedTuple):
    """A job that the ledger needs; two with one lock never run at the same time."""

    task: str
    lock: str
    arguments: dict[str, Any]


def claude_batch_tasks(
    *,
    ledger: str | None = None,
    queue: str = "claude-batch",
    tools: Sequence[str] = (),
    take_over: str | float = 30.0,
    **settings: Any,
) -> Blueprint:
    """Return the tasks; add them with ``app.add_tasks_from(tasks, namespace="claude_batch")``.

    ``ledger`` and ``settings`` are those of `ClaudeBatchProvider`. All jobs are in ``queue``: give
    each key of the API a queue of its own. ``tools`` are modules, or ``MODULE:FUNCTION``, whose
    functions the runs may call in these workers. ``take_over``, a duration, is how long a worker
    may send no heartbeat, to procrastinate or to the ledger, before others get its jobs. It has to
    be longer than the workers' ``update_heartbeat_interval``. Nothing is opened yet. Raises
    `ActorConfigurationError` for an unusable value.
    """
    try:
        seconds = parse_duration(take_over)
    except ValueError as error:
        raise ActorConfigurationError(str(error), setting="take_over") from None
    if "drive" in settings:
        raise ActorConfigurationError("the jobs decide who drives", setting="drive")
    settings["take_over"] = seconds
    ClaudeBatchProvider(ledger=ledger, **settings).close()  # reports errors of the settings here
    return _Tasks(
        absolute_ledger(default_ledger(ledger)), queue, tools, seconds, settings
    ).blueprint


class _Tasks:
    """The tasks of one ledger and key in this process."""

    def __init__(
        self,
        location: str,
        queue: str,
        tools: Sequence[str],
        take_over: float,
        settings: dict[str, Any],
    ) -> None:
        self._location = location
        self._queue = queue
        self._tools = tools
        self._take_over = take_over
        self._settings = settings
        self._ledger: Ledger | None = None
        self._workspace: int | None = None
        """The key's workspace in the ledger; None until the API has answered this process."""
        self._drives = False
        self._cleaned = 0
        blueprint = Blueprint()
        blueprint.task(name="drive", queue=queue, pass_context=True)(self._drive)
        blueprint.task(name="collect", queue=queue, pass_context=True)(self._collect)
        blueprint.task(name="run_tools", queue=queue, pass_context=True)(self._run_tools)
        # Without a lock: one that a dead worker holds would be ended by the next sweep alone.
        sweep = blueprint.task(name="sweep", queue=queue, pass_context=True)(self._sweep)
        blueprint.periodic(cron="* * * * * */2", periodic_id=queue, queueing_lock=f"{queue}-sweep")(
            sweep
        )
        self.blueprint: Blueprint = blueprint

    # Jobs -------------------------------------------------------------------------------------

    async def _drive(self, context: JobContext) -> None:
        """Send and collect until nothing is left, or the worker ends."""
        self._drives = True
        try:
            await self._work(context, lambda engine, tx: self._is_open(engine.ledger, tx))
        finally:
            self._drives = False

    async def _collect(self, context: JobContext, batch: int) -> None:
        """Fetch the results of a batch that the driver offers, or of another one."""
        if not self._drives:  # the driver fetches it itself, if no other worker does
            await self._work(context, lambda engine, _: batch in engine.ledger.fetches.offered())

    async def _run_tools(self, context: JobContext, share: int) -> None:
        """Run tools as long as conversations have open calls."""
        await self._work(
            context, lambda _, tx: conversations.tool_callers(tx) > share * CALLS_PER_JOB
        )

    async def _work(
        self, context: JobContext, is_needed: Callable[[Engine, Transaction], bool]
    ) -> None:
        """Keep the ledger's engine open in this process while it is needed."""
        provider = ClaudeBatchProvider(ledger=self._location, **self._settings)
        try:
            engine, session = await asyncio.wrap_future(provider.opening())
            engine.workbench.helps = engine.workbench.helps or self._offers_tools()
            while not context.should_abort():
                engine.check()
                version = engine.version
                # The first contact may find another workspace: that of an earlier key.
                self._workspace = session.workspace_id if session.driver.contact.was_made else None
                look = engine.read(lambda: engine.ledger.query(lambda tx: is_needed(engine, tx)))
                if not await asyncio.wrap_future(look):
                    break
                change = asyncio.wrap_future(engine.change_after(version))
                await asyncio.wait([change], timeout=_LOOK)
                await asyncio.sleep(_LOOK / 10)  # changes come by the hundred
                change.cancel()
        finally:
            # Waits for a POST or a live call in progress, whose outcome must be known.
            await provider.aclose()

    def _offers_tools(self) -> bool:
        for place in self._tools:
            offer_tools(place)
        return bool(self._tools)

    def _is_open(self, ledger: Ledger, tx: Transaction) -> bool:
        """Return whether the workspace has open requests, or any if it is not known yet."""
        found = queries.workspaces_at_work(tx, ledger.now())
        if self._workspace is None:
            return bool(found)
        # A confirmed key has moved to the row of an earlier one.
        return workspaces.present_workspace(tx, self._workspace) in found

    # Sweep ------------------------------------------------------------------------------------

    async def _sweep(self, context: JobContext, timestamp: int) -> None:
        """End the jobs of dead workers, and defer what the ledger needs."""
        manager = context.app.job_manager
        stalled = await manager.get_stalled_jobs(
            queue=self._queue, seconds_since_heartbeat=self._take_over
        )
        for job in stalled:
            # Never `retry_job`: if the worker goes on, its end would delete the job of another.
            _log.warning("%s has stalled and is deferred anew", job.call_string)
            await manager.finish_job(job, status=Status.FAILED, delete_job=False)
        if timestamp >= self._cleaned + _CLEANED_EVERY:
            self._cleaned = timestamp
            await manager.delete_old_jobs(
                nb_hours=_KEPT_HOURS, queue=self._queue, include_failed=True, include_aborted=True
            )
        try:
            needs = await in_worker_thread(self._needs)
        except LedgerError as error:
            _log.warning("no jobs are deferred now: %s", error)
            return
        namespace = context.job.task_name.removesuffix("sweep")
        for need in needs:
            lock = f"{self._queue}-{need.lock}"
            task = context.app.configure_task(
                f"{namespace}{need.task}", queue=self._queue, lock=lock, queueing_lock=lock
            )
            with contextlib.suppress(exceptions.AlreadyEnqueued):
                await task.defer_async(**need.arguments)

    def _needs(self) -> list[_Need]:
        if self._ledger is None:
            self._ledger = Ledger(self._location)
        ledger = self._ledger
        needs: list[_Need] = []
        with ledger.read() as tx:
            if self._is_open(ledger, tx):
                needs.append(_Need("drive", "drive", {}))
            callers = conversations.tool_callers(tx) if self._tools else 0
        shares = min(MOST_JOBS, math.ceil(callers / CALLS_PER_JOB))
        needs += [_Need("run_tools", f"tools-{each}", {"share": each}) for each in range(shares)]
        offered = ledger.fetches.offered()[:MOST_JOBS]
        return needs + [_Need("collect", f"batch-{each}", {"batch": each}) for each in offered]
