"""Steps about ids of runs, and the beginnings of ids that people type."""

from __future__ import annotations

import ast
from unittest import mock

from behave import given, then
from behave.runner import Context

import claude_batch as cb
from claude_batch.ledger import enqueue
from claude_batch.providers import run_writer


@given("the next runs get the ids {ids}")
def _(context: Context, ids: str) -> None:
    new_id = mock.Mock(side_effect=ids.split())
    for module in (run_writer, enqueue):
        patch = mock.patch.object(module, "new_run_id", new_id)
        patch.start()
        context.add_cleanup(patch.stop)


@then("open_run({value}) raises RunNotFoundError: {message}")
def _(context: Context, value: str, message: str) -> None:
    try:
        cb.open_run(ast.literal_eval(value)).close()
    except cb.RunNotFoundError as error:
        assert message in str(error), error
    else:
        raise AssertionError("it was opened")
