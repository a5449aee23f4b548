"""Steps about how runs end, and what they say of it."""

from __future__ import annotations

from unittest import mock

from behave import when
from behave.runner import Context
from sqlalchemy import select
from staging import ledger_values, until

from claude_batch.ledger.schema import requests
from claude_batch.lifecycle.conversation_driver import Conversations


@when('a run of "{prompt}" stands between two turns')
def _(context: Context, prompt: str) -> None:
    context.run = context.provider.store(context.actor.configuration, [prompt])
    with mock.patch.object(Conversations, "look", lambda *_, **__: 60.0):
        states = select(requests.c.state)
        until(lambda: context.provider.advance_sync() and ledger_values(states) == ["continuing"])
