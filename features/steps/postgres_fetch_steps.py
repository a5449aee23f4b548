"""Steps of processes that fetch results for the driver of their ledger on PostgreSQL."""

from __future__ import annotations

import json
import signal
import subprocess

import programs
from behave import given, then, when
from behave.runner import Context
from postgres_ledger_steps import end, wait_for
from postgres_process_steps import WORKSPACE
from sqlalchemy import func, select
from staging import ledger_values, make_provider, until

from claude_batch.core.errors import LedgerError
from claude_batch.core.states import BatchState
from claude_batch.ledger.backends.leases import fetches
from claude_batch.ledger.schema import batches, results
from claude_batch.ledger.store import Deposed

REQUESTS = 110
"""Of a batch, more than of one that is collected with others."""

SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "terminated": signal.SIGTERM}


@given("a batch provider that classifies errors itself, with {settings}")
def _(context: Context, settings: str) -> None:
    make_provider(context, **json.loads(settings), classify=lambda fault: fault.default)


@when("a run of {count:d} prompts is submitted, a worker joins, and all batches end together")
def _(context: Context, count: int) -> None:
    context.execute_steps(f"When a run of {count} prompts is submitted")
    at_api = select(batches.c.id).where(batches.c.state == BatchState.IN_PROGRESS)
    until(lambda: len(ledger_values(at_api)) == count // REQUESTS)
    before = _first_calls(context)
    words = ("worker", "--ledger", context.url)
    worker = programs.start(programs.COMMAND, *words, stderr=subprocess.DEVNULL)
    context.add_cleanup(end, worker)
    context.worker = worker
    until(lambda: _first_calls(context) > before)
    context.api.advance_clock(7200.0)


def _first_calls(context: Context) -> int:
    """How many processes have made their first call, by which they find their workspace."""
    return sum(call["query"] == "limit=1" for call in context.api.log())


@when("the worker is {ended} while it fetches a batch")
def _(context: Context, ended: str) -> None:
    claimed = select(fetches.c.batch_id).where(fetches.c.process != "", ~fetches.c.done)
    until(lambda: ledger_values(claimed))
    context.worker.send_signal(SIGNALS[ended])


@given("process {name:w} offers batch {batch_id:d}")
def _(context: Context, name: str, batch_id: int) -> None:
    context.processes[name].ledger.fetches.offer(WORKSPACE, [batch_id])


@when("process {name:w} claims an offered batch")
def _(context: Context, name: str) -> None:
    context.claim = context.processes[name].ledger.fetches.claim(WORKSPACE)
    assert context.claim is not None


@when("process {name:w} loses its ledger while it claims an offered batch")
def _(context: Context, name: str) -> None:
    try:
        context.processes[name].ledger.fetches.claim(WORKSPACE)
        raise AssertionError("the ledger was not lost")
    except LedgerError as error:
        assert error.fault == "unreachable", error


@when("process {name:w} gives its batch up")
def _(context: Context, name: str) -> None:
    context.processes[name].ledger.fetches.leave(context.claim, offer=True)


@then("process {name:w} leaves batch {batch_id:d} to the other")
def _(context: Context, name: str, batch_id: int) -> None:
    assert context.processes[name].ledger.fetches.withdraw(batch_id) == "other"


@then("process {name:w} fetches batch {batch_id:d} itself within {seconds:d} seconds")
def _(context: Context, name: str, batch_id: int, seconds: int) -> None:
    shared = context.processes[name].ledger.fetches
    wait_for(lambda: shared.withdraw(batch_id) == "driver", seconds)


@then("process {name:w} can store no result of its batch")
def _(context: Context, name: str) -> None:
    ledger = context.processes[name].ledger

    def store() -> None:
        with ledger.write_for_driver(context.claim):
            raise AssertionError("it could have stored some")

    try:
        try:
            store()
        except LedgerError as error:
            # Who took the batch back may have ended the stalled connection, too.
            assert "terminating connection" in str(error), error
            store()
    except Deposed:
        ledger.fetches.leave(context.claim, offer=True)


@then("process {name:w} finds no offered batch")
def _(context: Context, name: str) -> None:
    assert context.processes[name].ledger.fetches.claim(WORKSPACE) is None


@then("no batch is offered until the run is finished")
def _(context: Context) -> None:
    while not context.run.status().finished:
        assert not ledger_values(select(fetches.c.batch_id))


@then("in the ledger there are {count:d} results within {seconds:d} seconds")
def _(context: Context, count: int, seconds: int) -> None:
    stored = select(func.count()).select_from(results)
    until(lambda: ledger_values(stored) == [count], seconds)


@then("no offer is left in the ledger")
def _(context: Context) -> None:
    until(lambda: not ledger_values(select(fetches.c.batch_id)))
