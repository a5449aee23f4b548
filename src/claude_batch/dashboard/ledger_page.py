"""The page of the ledger: its size, its high-water mark, who drives it, and its limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from claude_batch.dashboard.ledger_reader import LedgerReader
from claude_batch.dashboard.overview_page import attention_of
from claude_batch.ledger import halts, page_queries
from claude_batch.ledger.schema import SCHEMA_VERSION
from claude_batch.providers.ledger_care import mark_of


def ledger_page(reader: LedgerReader, values: Mapping[str, str]) -> dict[str, Any]:
    """Read the page of the ledger."""
    ledger = reader.ledger
    with ledger.read() as tx:
        counts = page_queries.ledger_counts(tx)
        workspaces = page_queries.workspace_rows(tx)
        limits = halts.limits_of(tx)
    return {
        "snapshot": reader.snapshot,
        "path": ledger.backend.address,
        "size": ledger.size(),
        "workers": ledger.workers(),
        "schema_version": SCHEMA_VERSION,
        "incarnation": ledger.incarnation,
        "counts": counts,
        "mark": mark_of(ledger),
        "workspaces": [(row, reader.is_driven(row.id)) for row in workspaces],
        "limits": limits,
        "now": time.time(),
        "attention": [each for each in attention_of(reader.snapshot) if each.run_id is None],
    }
