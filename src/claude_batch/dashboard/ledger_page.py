"""The page of the ledger: its size, its high-water mark, who drives it, and its limits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.dashboard.overview_page import attention_of
from claude_batch.ledger import halts, page_queries
from claude_batch.ledger.backends.backend import Worker
from claude_batch.ledger.schema import SCHEMA_VERSION
from claude_batch.ledger.store import Record
from claude_batch.providers.ledger_care import mark_of


class Led(NamedTuple):
    """A workspace, the process that drives it, and what it has at the API."""

    row: Record
    name: str
    driver: str | None
    """The process that drives it; "" for one that the ledger cannot name, None for no process."""
    batches: int
    requests: int


class Member(NamedTuple):
    """A process of the fleet, and the names of the workspaces that it drives."""

    worker: Worker
    drives: tuple[str, ...]


def ledger_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of the ledger."""
    ledger = reader.ledger
    with ledger.read() as tx:
        counts = page_queries.ledger_counts(tx)
        workspaces = page_queries.workspace_rows(tx)
        limits = halts.limits_of(tx)
    workers = ledger.workers()
    names = {row.id: row.name or f"workspace {row.id}" for row in workspaces}
    return {
        "snapshot": reader.snapshot,
        "path": ledger.backend.address,
        "size": ledger.size(),
        "members": [
            Member(each, tuple(names.get(led, f"workspace {led}") for led in each.drives))
            for each in workers
        ],
        "schema_version": SCHEMA_VERSION,
        "incarnation": ledger.incarnation,
        "counts": counts,
        "mark": mark_of(ledger),
        "workspaces": [_led(reader, row, names[row.id], workers) for row in workspaces],
        "limits": limits,
        "now": time.time(),
        "attention": [each for each in attention_of(reader.snapshot) if each.run_id is None],
    }


def _led(reader: LedgerReader, row: Record, name: str, workers: Iterable[Worker]) -> Led:
    driver = next(
        (f"pid {each.pid} on {each.host}" for each in workers if row.id in each.drives), None
    )
    if driver is None and reader.is_driven(row.id):
        driver = ""
    sent = [
        batch.request_count
        for batch in reader.snapshot.open_batches
        if batch.workspace_id == row.id and batch.submitted is not None
    ]
    return Led(row, name, driver, len(sent), sum(sent))
