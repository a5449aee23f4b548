"""Steps of conversations whose turns are asked live, by the ledger's own calls."""

from __future__ import annotations

import os
import threading
import time

from behave import given, use_step_matcher, when
from behave.runner import Context
from sqlalchemy import select
from staging import (
    ledger_values,
    until,
)

import claude_batch as cb
from claude_batch.core.states import RequestState
from claude_batch.ledger import live_calls as live_ledger
from claude_batch.ledger import queries
from claude_batch.ledger.schema import requests, runs
from claude_batch.ledger.store import Ledger

use_step_matcher("parse")


# --- tools that wait --------------------------------------------------------------------------


@given("its actor has the tool that is held")
def _(context: Context) -> None:
    context.held = threading.Event()
    context.add_cleanup(context.held.set)
    held = context.held

    def hold(city: str) -> str:
        """Keep a city."""
        assert held.wait(60)
        return f"{city} was kept"

    context.actor = cb.Actor(context.actor.configuration, context.provider, tools=[hold])


@given("its actor has the tool that ends when the margin has passed")
def _(context: Context) -> None:
    def wait(city: str) -> str:
        """Wait for it."""
        until(lambda: any(ledger_values(select(runs.c.past_margin))))
        return f"{city} was waited for"

    context.actor = cb.Actor(context.actor.configuration, context.provider, tools=[wait])


# --- deadlines --------------------------------------------------------------------------------


# --- other ways -------------------------------------------------------------------------------


@when("the ledger is as if restored from a copy made before the tool's result")
def _(context: Context) -> None:
    context.run = context.provider.store(context.actor.configuration, ["Look [[sandbox:tools]]"])
    until(lambda: context.run.status().counts.get(RequestState.CONTINUING))
    ledger = Ledger(os.environ["CLAUDE_BATCH_LEDGER"])
    with ledger.write() as tx:
        [workspace_id] = queries.workspace_ids(tx)
        assert live_ledger.forgotten(tx, workspace_id, time.time()) == 1
    # How many turns were asked, nothing tells: no bound is known of what they cost.
    assert ledger_values(select(requests.c.reserve)) == [-1]
    ledger.close()


@when("the tool is let go")
def _(context: Context) -> None:
    context.held.set()
