"""An Airflow operator that submits a run, and defers while its batches are in progress.

`ClaudeBatchOperator` stores and sends a run in its worker, and defers. `ClaudeBatchTrigger` checks
the run at intervals, in the triggerer. Then a worker writes the results. Workers and
triggerer share a ledger: a file on one machine, or PostgreSQL. Needs the extra ``airflow``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.definitions.connection import Connection
from airflow.sdk.definitions.context import Context
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from claude_batch.actor.configuration import ActorConfiguration
from claude_batch.actor.inputs import Inputs
from claude_batch.actor.loader import ActorLoader
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorConfigurationError,
    InvalidRequestError,
    LedgerError,
)
from claude_batch.core.quantities import count_of
from claude_batch.core.settings import command_naming
from claude_batch.core.states import RunState
from claude_batch.providers.batch import ClaudeBatchProvider
from claude_batch.providers.export import (
    OF_LEDGER,
    chunks,
    finals,
    is_of_ledger,
    is_special,
    probe,
    unwritten_format,
)
from claude_batch.providers.run import Run
from claude_batch.providers.status import RunStatus

__all__ = ["ClaudeBatchOperator", "ClaudeBatchTrigger"]

_log = logging.getLogger(__name__)

_LOOK: Final = 30.0
"""Seconds between two looks of a trigger at its run."""


class ClaudeBatchOperator(BaseOperator):
    """Ask a run, and defer until every request has its answer.

    The run belongs to the task of one Dag run: a further attempt of the task goes on with it, and
    pays for nothing twice. The same task in another Dag run asks anew, unless ``fresh`` is False.
    """

    template_fields: ClassVar[Sequence[str]] = (
        "actor",
        "input_file",
        "requests",
        "output_file",
        "ledger",
        "settings",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"requests": "json", "settings": "json"}
    ui_color: str = "#f4e3d7"

    def __init__(
        self,
        *,
        actor: str,
        input_file: str | None = None,
        requests: Sequence[str | Mapping[str, Any]] | None = None,
        output_file: str | None = None,
        ledger: str | None = None,
        conn_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        fresh: bool = True,
        allow_failures: bool = False,
        cancel_on_kill: bool = True,
        drive: bool = True,
        poll_interval: float = _LOOK,
        defer_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure the task.

        ``actor`` is the path of an actor's YAML. The requests are those of ``input_file``, which is
        read as ``claude-batch run`` reads it, or ``requests``, a list of prompts and mappings, also
        from another task. ``output_file`` is the file for the results, as JSON lines or CSV;
        without it, they are in the task's return value. ``ledger`` is a path or URL; by default
        ``CLAUDE_BATCH_LEDGER``. ``conn_id`` names a connection whose password is the API key and
        whose host is the base URL; by default they come from the environment of workers and
        triggerer. ``settings`` are those of `ClaudeBatchProvider`. All of these but ``conn_id`` are
        templates.

        If a request fails, the task fails after the results were written, unless
        ``allow_failures``. ``cancel_on_kill`` cancels the run when a user ends the task; otherwise
        its batches go on. ``drive=False`` leaves sending and collecting to `claude-batch worker`.
        ``poll_interval`` is the seconds between two looks, and ``defer_timeout`` how long the task
        waits at most.
        """
        super().__init__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        self.actor: str = actor
        self.input_file: str | None = input_file
        self.requests: Sequence[str | Mapping[str, Any]] | None = requests
        self.output_file: str | None = output_file
        self.ledger: str | None = ledger
        self.conn_id: str | None = conn_id
        self.settings: Mapping[str, Any] = dict(settings or {})
        self.fresh: bool = fresh
        self.allow_failures: bool = allow_failures
        self.cancel_on_kill: bool = cancel_on_kill
        self.drive: bool = drive
        self.poll_interval: float = poll_interval
        self.defer_timeout: timedelta | None = defer_timeout
        self._run_id: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: RET503 - `defer` raises
        """Store and send the run, and defer, unless an earlier attempt has come to its end."""
        key = run_key(context)
        actor = ActorLoader.load(self.actor)
        requests = self._requests(actor)
        with self._provider(drive=self.drive) as provider:
            if self.output_file is not None:
                _check_writable(self.output_file, provider.ledger)
            run = provider.store(
                actor,
                requests,
                label=key,
                run_key=key if self.fresh else None,
                send_meanwhile=False,
                on_invalid=requests.refuse if isinstance(requests, Inputs) else None,
            )
            self._run_id = run.id
            self.log.info("%s is stored: %s", run.id, count_of(run.status().total, "request"))
            if self.drive:
                run.wait_until_sent_sync()
            finished = run.status().finished
        if finished:
            return self.execute_complete(context, {"run_id": run.id, "error": None})
        self.defer(
            trigger=ClaudeBatchTrigger(
                run_id=run.id,
                ledger=provider.ledger,
                conn_id=self.conn_id,
                settings=self.settings,
                drive=self.drive,
                cancel_on_kill=self.cancel_on_kill,
                poll_interval=self.poll_interval,
            ),
            method_name="execute_complete",
            timeout=self.defer_timeout,
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Write the results, and return what the run came to.

        The value has ``run_id``, ``counts`` (requests by state), ``cost_usd`` (a text), and
        ``output_file`` or ``results``. Raises `AirflowException`.
        """
        if event["error"] is not None:
            raise AirflowException(event["error"])
        with self._provider(drive=False) as provider:
            run = provider.open_run(event["run_id"])
            self._run_id = run.id
            status = run.status()
            value = self._delivered(provider, run, status)
        if status.state is RunState.CANCELLED:
            raise AirflowException(f"{run.id} was cancelled; {_kept(run.id, provider.ledger)}")
        if status.failed and not self.allow_failures:
            raise AirflowException(
                f"{count_of(status.failed, 'request')} of {run.id} failed; "
                f"{_kept(run.id, provider.ledger)} "
                "Another attempt sends those again that failed for a temporary reason"
            )
        return value

    def on_kill(self) -> None:
        """Cancel the run if the task is to; batches that are cancelled may have cost something."""
        if self.cancel_on_kill and self._run_id is not None:
            with self._provider(drive=False) as provider:
                _cancel(provider, self._run_id, advance=self.drive)

    def _provider(self, *, drive: bool) -> ClaudeBatchProvider:
        connection = None if self.conn_id is None else BaseHook.get_connection(self.conn_id)
        return _provider(self.ledger, connection, self.settings, drive=drive)

    def _requests(self, actor: ActorConfiguration) -> Inputs | Sequence[str | Mapping[str, Any]]:
        if self.input_file is None and self.requests is not None:
            return self.requests
        if self.input_file is None or self.requests is not None:
            raise ActorConfigurationError(
                f"{self.task_id}: give one of `input_file` and `requests`"
            )
        return Inputs([self.input_file], instructed=bool(actor.system_prompt), on_invalid=_refuse)

    def _delivered(
        self, provider: ClaudeBatchProvider, run: Run, status: RunStatus
    ) -> dict[str, Any]:
        value: dict[str, Any] = {
            "run_id": run.id,
            "counts": {str(state): count for state, count in status.counts.items()},
            "cost_usd": str(run.cost(status=status).total.cost_usd),
        }
        seen = run.last_ending()
        if self.output_file is not None:
            run.export_sync(self.output_file)
            value["output_file"] = self.output_file
        else:
            engine, _ = provider.opening().result()
            answers = finals(run.outputs())
            lines = b"".join(chunks(answers, "jsonl", engine.ledger.location))
            value["results"] = [json.loads(line) for line in lines.splitlines()]
        run.mark_delivered(seen=seen)
        return value


class ClaudeBatchTrigger(BaseTrigger):
    """Wait until every request of a run has its final state.

    Its event is a mapping: ``run_id``, and ``error``, which is None or why the run cannot end.
    """

    def __init__(
        self,
        *,
        run_id: str,
        ledger: str,
        conn_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        drive: bool = True,
        cancel_on_kill: bool = True,
        poll_interval: float = _LOOK,
    ) -> None:
        """Each argument is as in `ClaudeBatchOperator`. No key is among them, because Airflow
        stores them.
        """
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.run_id: str = run_id
        self.ledger: str = ledger
        self.conn_id: str | None = conn_id
        self.settings: dict[str, Any] = dict(settings or {})
        self.drive: bool = drive
        self.cancel_on_kill: bool = cancel_on_kill
        self.poll_interval: float = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        names = ("run_id", "ledger", "conn_id", "settings", "drive", "cancel_on_kill")
        given = {name: getattr(self, name) for name in (*names, "poll_interval")}
        return f"{type(self).__module__}.{type(self).__qualname__}", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when nothing more will happen by itself."""
        connection = await self._connection()
        while True:
            # First, because the task has just looked. Airflow takes a task for failed that goes on
            # before its worker has reported that it was deferred.
            await asyncio.sleep(self.poll_interval)
            # In a thread: the ledger's calls block.
            found = await asyncio.to_thread(self._look, connection)
            if found is not None:
                yield TriggerEvent({"run_id": self.run_id, **found})
                return

    async def on_kill(self) -> None:
        """Cancel the run if it is to, because a user has ended the task."""
        if not self.cancel_on_kill:
            return
        connection = await self._connection()

        def cancel() -> None:
            with _provider(self.ledger, connection, self.settings, drive=False) as provider:
                _cancel(provider, self.run_id, advance=self.drive)

        await asyncio.to_thread(cancel)

    async def _connection(self) -> Connection | None:
        return None if self.conn_id is None else await BaseHook.aget_connection(self.conn_id)

    def _look(self, connection: Connection | None) -> dict[str, Any] | None:
        """Make a pass over what is due; return what the event says, or None to look again."""
        try:
            with _provider(self.ledger, connection, self.settings, drive=False) as provider:
                if self.drive:
                    provider.advance_sync()
                status = provider.open_run(self.run_id).status()
        except AccountHaltedError as error:
            return {"error": str(error)}
        except LedgerError as error:
            if not error.passes:
                return {"error": str(error)}
            _log.warning("%s is checked again in %g s: %s", self.run_id, self.poll_interval, error)
            return None
        if status.finished:
            return {"error": None}
        if status.state is RunState.HALTED and status.halt is not None:
            return {
                "error": f"{self.run_id} is halted: {status.halt.message}; "
                f"{_kept(self.run_id, provider.ledger)}"
            }
        _log.info("%s: %s", self.run_id, status.waiting_for)
        return None


def run_key(context: Context) -> str:
    """Return what all attempts of a task have in common, and no other task or Dag run has."""
    ti: Any = context.get("ti")
    mapped = () if ti.map_index < 0 else (str(ti.map_index),)
    return "/".join((ti.dag_id, ti.run_id, ti.task_id, *mapped))


def _kept(run_id: str, ledger: str) -> str:
    see = command_naming(f"claude-batch status {run_id}", ledger)
    return f"the answers so far are kept; see `{see}`."


def _provider(
    ledger: str | None,
    connection: Connection | None,
    settings: Mapping[str, Any],
    *,
    drive: bool,
) -> ClaudeBatchProvider:
    given: dict[str, Any] = dict(settings)
    if connection is not None:
        if connection.password:
            given["api_key"] = connection.password
        if connection.host:
            given["base_url"] = connection.host
    return ClaudeBatchProvider(ledger=ledger, drive=drive, **given)


def _cancel(provider: ClaudeBatchProvider, run_id: str, *, advance: bool) -> None:
    provider.open_run(run_id).cancel_sync()
    _log.info("%s is cancelled; the results so far are kept", run_id)
    if advance:
        provider.advance_sync()


def _refuse(message: str) -> NoReturn:
    raise InvalidRequestError(message)


def _check_writable(output: str, ledger: str) -> None:
    """Raise `ActorConfigurationError` if the results could not be written to this file."""
    fault = "is a directory" if os.path.isdir(output) else unwritten_format(output, None)
    if is_of_ledger(output, ledger):
        fault = OF_LEDGER
    try:
        if fault is None and not is_special(output):
            probe(Path(os.path.realpath(output)))
    except OSError as error:
        fault = f"cannot be written: {error.strerror}"
    if fault is not None:
        raise ActorConfigurationError(f"{output}: {fault}")
