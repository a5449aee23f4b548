"""What stands in the ledger: agreed queries by their names."""

from __future__ import annotations

import json
from typing import Any

from behave import then
from behave.runner import Context
from sqlalchemy import Select, func, select
from staging import ledger_values, until

from claude_batch.ledger.backends.postgres_sql import processes
from claude_batch.ledger.schema import (
    batches,
    calls,
    charges,
    files,
    leaving_files,
    requests,
    results,
    runs,
    workspaces,
)

FACTS: dict[str, Select[Any]] = {
    "states of the requests": select(requests.c.state).order_by(requests.c.seq),
    "states of the batches": select(batches.c.state).order_by(batches.c.id),
    "numbers of requests that each transaction finished": select(func.count(requests.c.seq))
    .group_by(requests.c.finished)
    .order_by(requests.c.finished),
    "sizes of the batches": select(batches.c.request_count).order_by(batches.c.id),
    "beginnings of gaps": select(batches.c.missing_since).order_by(batches.c.id),
    "halts of the workspaces": select(workspaces.c.halted),
    "calls that wait": select(calls.c.request_seq),
    "counts of processes": select(func.count()).select_from(processes),
    "counts of results": select(func.count()).select_from(results),
    "sums that budgets have spent": select(charges.c.spent),
    "sums that budgets have in doubt": select(charges.c.doubt),
    "outputs of the runs": select(runs.c.output),
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
    until(lambda: ledger_values(FACTS[fact]) == json.loads(values))
