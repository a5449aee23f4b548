"""What stands in the ledger, and what was asked, answered and told: agreed lists by names."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from behave import then, when
from behave.runner import Context
from sqlalchemy import Select, func, select, update
from staging import ledger_values, until, writing
from tables import check_rows, equals, reached

from claude_batch.core.errors import LedgerError
from claude_batch.core.events import RequestsAnswered
from claude_batch.ledger.backends.leases import processes
from claude_batch.ledger.schema import (
    batches,
    calls,
    charges,
    contexts,
    conversations,
    files,
    lanes,
    leaving_files,
    metadata,
    requests,
    results,
    runs,
    strange_lines,
    tool_calls,
    verdicts,
    workspaces,
)
from claude_batch.lifecycle.observers import LOGGER

FACTS: dict[str, Select[Any]] = {
    "states of the requests": select(requests.c.state).order_by(requests.c.seq),
    "sorted states of all requests": select(requests.c.state).order_by(requests.c.state),
    "attempts of the requests": select(requests.c.attempts).order_by(requests.c.seq),
    "sendings of the requests": select(requests.c.sendings).order_by(requests.c.seq),
    "states of the batches": select(batches.c.state).order_by(batches.c.id),
    "numbers of requests that each transaction finished": select(func.count(requests.c.seq))
    .group_by(requests.c.finished)
    .order_by(requests.c.finished),
    "states of the batches whose upload is under way or over": select(batches.c.state)
    .where(batches.c.armed.is_not(None))
    .order_by(batches.c.id),
    "counts of batches to look for": select(func.count()).where(
        batches.c.settling_from.is_not(None)
    ),
    "notes of the batches": select(batches.c.note).order_by(batches.c.id),
    "sizes of the batches": select(batches.c.request_count).order_by(batches.c.id),
    "sizes of the batches at the API": select(batches.c.request_count)
    .where(batches.c.remote_id.is_not(None))
    .order_by(batches.c.id),
    "snapshots of the batches": select(batches.c.snapshot),
    "lists that accepted batches keep": select(batches.c.snapshot)
    .where(batches.c.remote_id.is_not(None))
    .distinct(),
    "beginnings of gaps": select(batches.c.missing_since).order_by(batches.c.id),
    "contexts": select(contexts.c.request_seq),
    "halts of the workspaces": select(workspaces.c.halted),
    "reasons of the pauses": select(workspaces.c.wait_reason),
    "processes that wait for calls": select(calls.c.process),
    "calls that wait": select(calls.c.request_seq),
    "counts of runs": select(func.count()).select_from(runs),
    "labels of the runs": select(runs.c.label).where(runs.c.label.is_not(None)).order_by("label"),
    "counts of processes": select(func.count()).select_from(processes),
    "counts of strange lines": select(func.count()).select_from(strange_lines),
    "counts of results": select(func.count()).select_from(results),
    "sums that budgets have reserved": select(charges.c.reserved),
    "sums that budgets have spent": select(charges.c.spent).order_by("spent"),
    "sums that budgets have in doubt": select(charges.c.doubt),
    "outcomes of the deadlines": select(runs.c.deadline_outcome),
    "longest waits of the runs": select(runs.c.max_wait),
    "outputs of the runs": select(runs.c.output),
    "undelivered runs": select(runs.c.id).where(runs.c.delivered.is_(None)),
    "ends of the tool calls": select(tool_calls.c.finished),
    "counts of unfinished tool calls": select(func.count()).where(tool_calls.c.finished.is_(None)),
    "names of the tool calls": select(tool_calls.c.name),
    "problems of the answers": select(verdicts.c.problem).order_by(verdicts.c.sending),
    "counts of conversations": select(func.count()).select_from(conversations),
    "ids of the files": select(files.c.file_id),
    "ids of the files to delete": select(leaving_files.c.file_id),
    "tokens of the files": select(files.c.tokens),
    "workspaces of the runs": select(runs.c.workspace_id).order_by(runs.c.created),
    "workspaces of the lanes": select(lanes.c.workspace_id).order_by(lanes.c.id),
    "workspaces of the requests": select(lanes.c.workspace_id)
    .join(requests, requests.c.lane_id == lanes.c.id)
    .order_by(requests.c.seq),
    "lanes of the requests": select(requests.c.lane_id).order_by(requests.c.seq),
    "epochs of the workspaces": select(workspaces.c.epoch).order_by(workspaces.c.id),
    "live marks of the requests": select(requests.c.live).order_by(requests.c.seq),
}

LISTS: dict[str, Callable[[Context], Iterable[Any]]] = {
    "requests to the API": lambda context: context.seen,
    "results": lambda context: context.results,
    "outcomes": lambda context: context.outcomes,
    "events of the stream": lambda context: context.events,
    "answers one by one": lambda context: [
        answer
        for event in context.told
        if isinstance(event, RequestsAnswered)
        for answer in event.answers
    ],
    "log lines of events": lambda context: [each for each in context.kept if each.name == LOGGER],
    "creates of batches": lambda context: [
        call
        for call in context.api.log()
        if (call["method"], call["path"]) == ("POST", "/v1/messages/batches")
    ],
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


@then("the {things} have these fields in {order} order")
def _(context: Context, things: str, order: str) -> None:
    check_rows(context, _list(context, things), in_any_order=order == "any")


@then("the {things} sum up to")
def _(context: Context, things: str) -> None:
    """Add up what a path leads to in each of them; where it leads nowhere is 0."""
    items = list(_list(context, things))
    for path, cell in zip(context.table.headings, context.table[0].cells, strict=True):
        found = sum(each for each in (reached(item, path) for item in items) if each)
        assert equals(found, cell), (path, found, items)


@then("the {things} have the tokens and the cost of the results")
def _(context: Context, things: str) -> None:
    items = list(_list(context, things))
    answers = [result.response for result in context.results]
    cost = sum(answer.cost for answer in answers)
    assert sum(item.cost or 0 for item in items) == cost > 0, (cost, items)
    for name in ("input_tokens", "output_tokens"):
        tokens = sum(getattr(answer.usage, name) for answer in answers)
        assert sum(getattr(item, name) for item in items) == tokens > 0, (name, tokens, items)


def _list(context: Context, things: str) -> Iterable[Any]:
    if things in LISTS:
        return LISTS[things](context)
    kind = things.removesuffix(" events")
    return [event for event in context.told if type(event).__name__ == kind]


@when("the ledger's {table} are changed to")
def _(context: Context, table: str) -> None:
    """Write what a process or another clock would have left; a cell is JSON, a text or a time."""
    [row] = context.table
    values = {name: _written(row[name]) for name in row.headings}
    with writing() as tx:
        tx.execute(update(metadata.tables[table]).values(**values))


def _written(cell: str) -> Any:
    if cell.endswith(" seconds ago"):
        return time.time() - float(cell.removesuffix(" seconds ago"))
    try:
        return json.loads(cell)
    except ValueError:
        return cell
