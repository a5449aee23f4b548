"""Steps of random histories: how many there are, and mistakes that they must find."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from behave import then
from behave.runner import Context
from histories.api import PromiseBroken
from histories.machine import Histories
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from claude_batch.ledger import sending
from claude_batch.lifecycle import reconciliation
from claude_batch.lifecycle.reconciliation import Decision

HISTORIES = int(os.environ.get("HISTORIES", "100"))
"""How many the suite plays; `nox -s storms` plays thousands."""


def play(count: int) -> None:
    """Play random histories. A broken promise is raised as it was found, with what replays it."""
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=count,
            stateful_step_count=30,
            # The suite plays the same ones each time, so that it fails for a change and nothing
            # else; `nox -s storms` plays new ones.
            derandomize="HISTORIES" not in os.environ,
            deadline=None,
            database=None,
            print_blob=True,
            # Made small a history tells no more, and that takes minutes.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@then("random histories keep the promises")
def _(context: Context) -> None:
    play(HISTORIES)


def _sends_again(tx: Any, batch_id: int, *, note: str, **_: Any) -> None:
    sending.mark_definite_no(tx, batch_id, note=note)


MISTAKES: dict[str, AbstractContextManager[Any]] = {
    "what is unknown is sent again at once": mock.patch.object(
        reconciliation, "decide", lambda states, *, settled: Decision.DISPROVED
    ),
    "no batch of the list is ever taken for ours": mock.patch.object(
        reconciliation, "may_be_ours", lambda *_args, **_facts: False
    ),
    "a process that died while it sent left nothing": mock.patch.object(
        sending, "mark_unknown", _sends_again
    ),
}


@then("a history finds that {mistake}")
def _(context: Context, mistake: str) -> None:
    with MISTAKES[mistake]:
        try:
            play(2000)
        except (PromiseBroken, AssertionError, ExceptionGroup):
            return
    raise AssertionError(f"no history found that {mistake}")
