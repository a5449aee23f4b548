"""What stands in the ledger: agreed queries by their names."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from behave import then
from behave.runner import Context
from sqlalchemy import Select, func, select
from staging import ledger_values, until

from claude_batch.core.errors import LedgerError
from claude_batch.ledger.schema import (
    batches,
    calls,
    contexts,
    conversations,
    files,
    leaving_files,
    requests,
    results,
    runs,
    tool_calls,
    workspaces,
)

FACTS: dict[str, Select[Any]] = {
    "states of the requests": select(requests.c.state).order_by(requests.c.seq),
    "states of the batches": select(batches.c.state).order_by(batches.c.id),
    "numbers of requests that each transaction finished": select(func.count(requests.c.seq))
    .group_by(requests.c.finished)
    .order_by(requests.c.finished),
    "states of the batches whose upload is under way or over": select(batches.c.state)
    .where(batches.c.armed.is_not(None))
    .order_by(batches.c.id),
    "sizes of the batches": select(batches.c.request_count).order_by(batches.c.id),
    "snapshots of the batches": select(batches.c.snapshot),
    "beginnings of gaps": select(batches.c.missing_since).order_by(batches.c.id),
    "contexts": select(contexts.c.request_seq),
    "halts of the workspaces": select(workspaces.c.halted),
    "processes that wait for calls": select(calls.c.process),
    "calls that wait": select(calls.c.request_seq),
    "counts of runs": select(func.count()).select_from(runs),
    "counts of results": select(func.count()).select_from(results),
    "outputs of the runs": select(runs.c.output),
    "names of the tool calls": select(tool_calls.c.name),
    "counts of conversations": select(func.count()).select_from(conversations),
    "ids of the files": select(files.c.file_id),
    "ids of the files to delete": select(leaving_files.c.file_id),
    "tokens of the files": select(files.c.tokens),
}


@then("in the ledger the {fact} are {values}")
def _(_: Context, fact: str, values: str) -> None:
    found = ledger_values(FACTS[fact])
    assert found == json.loads(values), found


@then("in the ledger the {fact} come to be {values}")
def _(_: Context, fact: str, values: str) -> None:
    def holds() -> bool:
        with contextlib.suppress(LedgerError):  # nobody has made the ledger yet
            return ledger_values(FACTS[fact]) == json.loads(values)
        return False

    until(holds)
