"""Steps of processes that share a ledger on PostgreSQL, each with connections of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import programs
import psycopg
from behave import given, then, when
from behave.runner import Context
from cli_steps import command
from postgres_ledger_steps import end, wait_for
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from staging import ledger_values, make_provider, start_api, until

from claude_batch.core.batch_processing import BatchProcessingMode
from claude_batch.core.errors import LedgerError
from claude_batch.core.settings import resolve_ledger_settings
from claude_batch.ledger import enqueue, workspaces
from claude_batch.ledger.backends import leases
from claude_batch.ledger.backends.backend import LeaderLock, ProcessLock
from claude_batch.ledger.backends.postgres_connections import ServerClock
from claude_batch.ledger.enqueue import NewRequest, NewRun
from claude_batch.ledger.schema import batches, requests, runs
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.ended_processes import sweep
from claude_batch.sandbox.fault_plan import FaultPlan

WORKSPACE = 1


@dataclass
class Process:
    """What a process has of the ledger."""

    ledger: Ledger
    lock: ProcessLock
    leader: LeaderLock | None = None
    run: dict[str, Any] = field(default_factory=dict[str, Any])

    def drives(self) -> bool:
        """Whether it drives from now on."""
        leader = self.ledger.leader_lock(WORKSPACE)
        if not leader.take():
            return False
        self.leader = leader
        return True

    def store(self, position: int) -> None:
        """Store one request of a run."""
        with self.ledger.write() as tx:
            if not self.run:
                workspace = workspaces.ensure_workspace(tx, "http://nowhere", "a fingerprint")
                new = NewRun(
                    kind="run",
                    actor="tests/asker",
                    workspace_id=workspace,
                    mode=BatchProcessingMode(),
                    created=0.0,
                    process=self.lock.process,
                )
                self.run["lane"] = enqueue.ensure_lane(tx, workspace, "2023-06-01", "", "")
                self.run["id"] = enqueue.begin_run(tx, new)
            one = NewRequest(f"{position:032x}", position, None, self.run["lane"], b"{}")
            name = self.lock.process
            enqueue.add_requests(tx, self.run["id"], [one], created=0.0, due=0.0, process=name)


def _values(settings: str) -> dict[str, float]:
    pairs = (each.split() for each in settings.replace(" and ", ", ").split(", ") if each)
    return {name.strip('"'): float(value) for name, value in pairs}


@given("process {name:w}")
@given("process {name:w}, with {settings}")
def _(context: Context, name: str, settings: str = "") -> None:
    resolved = resolve_ledger_settings(_values(settings))
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    context.add_cleanup(ledger.close)
    if "processes" not in context:
        context.processes = {}
    context.processes[name] = Process(ledger, ledger.process_lock(resolved))
    # The proxy is before the first process only.
    os.environ["CLAUDE_BATCH_LEDGER"] = context.url


@given("process {name:w} drives")
@given("process {name:w} drives, with {settings}")
def _(context: Context, name: str, settings: str = "") -> None:
    words = f", with {settings}" if settings else ""
    context.execute_steps(f"Given process {name}{words}")
    assert context.processes[name].drives()


@when("process {name:w} stops {doing:w}")
def _(context: Context, name: str, doing: str) -> None:
    process = context.processes[name]
    {"driving": process.leader, "running": process.lock}[doing].release()


@when("process {name:w} copies rows without an end")
def _(context: Context, name: str) -> None:
    stack = ExitStack()

    def end() -> None:
        tx.connection.driver_connection.close()  # else the end would wait for the stalled link
        with suppress(LedgerError, psycopg.Error, DBAPIError):
            stack.close()

    context.add_cleanup(end)
    tx: Any = stack.enter_context(context.processes[name].ledger.write())
    cursor: Any = tx.connection.cursor()
    cursor.execute("CREATE TEMP TABLE copied (number integer)")
    stack.enter_context(cursor.copy("COPY copied FROM STDIN")).write("1\n")


@then("process {name:w} can drive")
@then("process {name:w} can drive within {seconds:d} seconds")
def _(context: Context, name: str, seconds: int = 0) -> None:
    wait_for(context.processes[name].drives, seconds)


@then("process {name:w} cannot drive")
def _(context: Context, name: str) -> None:
    assert not context.processes[name].drives()


@given("the API lists a batch only after 1h, and answers its POST after {seconds:d}s")
def _(context: Context, seconds: int) -> None:
    start_api(context, listed_after=3600.0)
    slow = {"route": "create", "nth": [1], "action": {"type": "delay", "seconds": seconds}}
    context.api.set_faults({"rules": [slow]})


@when("another process takes the leader lock during the POST: {words}")
def _(context: Context, words: str) -> None:
    _run_and_depose(context, words)


@when("another process takes the leader lock while the API answers slowly: {words}")
def _(context: Context, words: str) -> None:
    delay = {"type": "delay", "seconds": 2}
    # The first list makes contact with the API, before the leader lock is taken.
    slow = [{"route": "list", "nth": [2], "action": delay}, {"route": "retrieve", "action": delay}]
    context.api.set_faults({"rules": slow})
    # A pass asks only for batches whose check is due.
    until(lambda: max(ledger_values(select(batches.c.next_check))) <= time.time())
    _run_and_depose(context, words)


def _run_and_depose(context: Context, words: str) -> None:
    """Run a command; another process takes over at its first slow call while it drives."""
    deposed = threading.Event()
    action = FaultPlan.action

    def noticed(plan: FaultPlan, route: str, key: str | None = None) -> Any:
        found = action(plan, route, key)
        if (
            found is not None
            and not deposed.is_set()
            and context.postgres.execute("SELECT 1 FROM claude_batch.seats")
        ):
            context.postgres.execute("UPDATE claude_batch.workspaces SET epoch = epoch + 1")
            deposed.set()
        return found

    with patch.object(FaultPlan, "action", noticed):
        command(context, words)
    assert deposed.is_set(), f"no call was slow: {context.ended.output}"


@when("the event loop of process {name:w} hangs for longer than a process may")
def _(context: Context, name: str) -> None:
    shorter = patch.object(leases, "HANGS", 0.5)
    shorter.start()
    context.add_cleanup(patch.stopall)
    context.processes[name].lock.tick()


@given("an event loop hangs if it shows no sign for 1 second")
def _(context: Context) -> None:
    shorter = patch.object(leases, "HANGS", 1.0)
    shorter.start()
    context.add_cleanup(shorter.stop)


@given("a provider that makes a live call of {seconds:d} seconds, with {settings}")
def _(context: Context, seconds: int, settings: str) -> None:
    slow = {"route": "messages", "action": {"type": "delay", "seconds": seconds}}
    context.api.set_faults({"rules": [slow]})
    make_provider(context, mode="live", **_values(settings))
    context.provider.store(context.actor.configuration, ["a question"])
    # The API's log has a call once it is answered.
    until(lambda: ledger_values(select(requests.c.state)) == ["packed"])


@when("the provider is closed during the call")
def _(context: Context) -> None:
    closing = threading.Thread(target=context.provider.close)
    closing.start()
    process = context.processes["B"]
    while closing.is_alive() and not process.drives():
        closing.join(0.2)
    context.met = ledger_values(select(requests.c.state))
    closing.join()


@then("process B could not drive before the call was answered")
def _(context: Context) -> None:
    assert context.met == ["succeeded"], context.met


@when("all connections of process {name:w} are in use for {seconds:d} seconds")
def _(context: Context, name: str, seconds: int) -> None:
    process = context.processes[name]
    pool: Any = process.ledger.backend.engine.pool
    # Others take it for dead meanwhile, and end its sessions.
    with suppress(LedgerError), ExitStack() as stack, patch.object(pool, "_timeout", 0.2):
        try:
            while True:
                stack.enter_context(process.ledger.read())
        except LedgerError as error:
            assert error.fault == "unreachable", error
        time.sleep(seconds)


@when("the event loop of process {name:w} goes on")
def _(context: Context, name: str) -> None:
    patch.stopall()
    context.processes[name].lock.tick()


@when("the heartbeats of process {name:w} fail with a MemoryError for {seconds:d} seconds")
def _(context: Context, name: str, seconds: int) -> None:
    with patch.object(context.processes[name].lock, "_beat", side_effect=MemoryError):
        time.sleep(seconds)


@then("process {name:w} sees process {other:w} no more within {seconds:d} seconds")
def _(context: Context, name: str, other: str, seconds: int) -> None:
    process = context.processes[other].lock.process
    wait_for(lambda: not context.processes[name].ledger.is_alive(process), seconds)


@then("process {name:w} sees process {other:w} within {seconds:d} seconds")
def _(context: Context, name: str, other: str, seconds: int) -> None:
    process = context.processes[other].lock.process
    wait_for(lambda: context.processes[name].ledger.is_alive(process), seconds)


@given("process {name:w} has stored one request of a run")
@when("process {name:w} stores one more request of the run")
def _(context: Context, name: str) -> None:
    context.error = None
    process = context.processes[name]
    try:
        process.store(1 if process.run else 0)
    except LedgerError as error:
        context.error = error


@when("process {name:w} removes what dead processes left, within {seconds:d} seconds")
def _(context: Context, name: str, seconds: int) -> None:
    process = context.processes[name]

    def removed() -> bool:
        sweep(process.ledger, process.lock.process)
        return not ledger_values(select(requests.c.seq))

    wait_for(removed, seconds)


@given("process {name:w} watches the ledger {how}")
def _(context: Context, name: str, how: str) -> None:
    context.watch = context.processes[name].ledger.watch()
    context.add_cleanup(context.watch.close)
    context.woken = 0
    if how == "directly":
        return
    assert how == "behind a pooler that drops notices", how
    # What a pooler does that gives the connection to another client after each transaction.
    context.watch._connection.execute("UNLISTEN *")
    list(context.watch._connection.notifies(timeout=0))
    context.watch._proved = float("-inf")


@when("process {name:w} sends heartbeats for {seconds:d} seconds")
@when("process {name:w} waits for {seconds:d} seconds")
def _(context: Context, name: str, seconds: int) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.woken += context.watch.changed()
        time.sleep(0.05)


@when("process {name:w} commits")
def _(context: Context, name: str) -> None:
    context.woken = 0
    with context.processes[name].ledger.write():
        pass
    end = time.monotonic() + 1
    while time.monotonic() < end:
        context.woken += context.watch.changed()
        time.sleep(0.05)


@then("process {name:w} was woken {least:d} to {most:d} times")
@then("process {name:w} was woken {least:d} time")
@then("process {name:w} was woken {least:d} times")
def _(context: Context, name: str, least: int, most: int | None = None) -> None:
    assert least <= context.woken <= (most or least), context.woken


SITTING = """
import os, time
from claude_batch.core.settings import LedgerSettings
from claude_batch.ledger.store import Ledger
ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
ledger.process_lock(LedgerSettings())
print(ledger.leader_lock(1).take(), flush=True)
time.sleep(600)
"""


@given("another process that drives, and is {fate}")
def _(context: Context, fate: str) -> None:
    if "processes" in context:
        for each in context.processes.values():
            each.leader.release()
    other = programs.start(SITTING, stdout=subprocess.PIPE)
    context.add_cleanup(end, other)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    other.send_signal({"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fate])
    if fate == "killed":
        other.wait()


class _WrongTime:
    """Stands where a module has its `time`."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return time.time() + self._ahead


@when("the clock of this machine is {hours:d} hours ahead")
@given("the clock of this machine is {hours:d} hours ahead")
def _(context: Context, hours: int) -> None:
    clock = _WrongTime(hours * 3600)
    for name, module in list(sys.modules.items()):
        if not name.startswith("claude_batch.") or name.startswith("claude_batch.sandbox"):
            continue
        known = getattr(module, "time", None)
        if known is time or isinstance(known, _WrongTime):
            patched = patch.object(module, "time", clock)
            patched.start()
            context.add_cleanup(patched.stop)


@when("both clocks go {hours:d} hours on")
def _(context: Context, hours: int) -> None:
    """The API's and ours, which is this machine's, or that of the ledger's server."""
    context.api.advance_clock(3600.0 * hours)
    now = ServerClock.now
    patched = patch.object(ServerClock, "now", lambda clock: now(clock) + 3600.0 * hours)
    patched.start()
    context.add_cleanup(patched.stop)
    context.hours_ahead = getattr(context, "hours_ahead", 0) + hours
    context.execute_steps(f"Given the clock of this machine is {context.hours_ahead} hours ahead")


@then("the times of runs, requests and batches in the ledger are within 10 minutes of its server's")
def _(context: Context) -> None:
    times = (
        *(runs.c.created, runs.c.stored, requests.c.due),
        *(batches.c.created, batches.c.submitted, batches.c.collected),
    )
    ledger = Ledger(context.url)
    with ledger.read() as tx:
        now = leases.server_time(tx)
        ages = [now - float(at) for column in times for at in tx.scalars(select(column))]
    ledger.close()
    assert len(ages) >= len(times) and max(map(abs, ages)) < 600, ages
