"""Fetch the results of a run's batches again, on order, because missing ones may have arrived.

It costs nothing and needs no leader lock. Lines are stored idempotently, and one transaction fills
each batch from the states at that time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState, RequestState
from claude_batch.ledger import batch_contents, collected_batches, late_answers, queries
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.budget_room import warn_after
from claude_batch.lifecycle.collection import COMPLETE_FETCHES, Collection, missing_state
from claude_batch.lifecycle.doors import contact_faults
from claude_batch.wire.batches_client import ApiError, BatchesClient, Unreachable
from claude_batch.wire.retry_policy import SENDING

_log = logging.getLogger(__name__)

_KEPT = "What was found until then is kept, and nothing was sent"


@dataclass(slots=True)
class Refetched:
    """The outcome of fetching the results of a run's batches again."""

    found: int = 0
    """Number of the run's missing results that are stored now."""
    missing: int = 0
    """Number of the run's requests whose result is still missing."""
    batches: list[int] = field(default_factory=list[int])
    """The ledger's ids of batches whose results were read to their end."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Reason by the API's id, for batches whose results it refuses."""


async def refetch(
    ledger: Ledger, client: BatchesClient, settings: LedgerSettings, run_id: str
) -> Refetched:
    """Fetch every batch again that lacks results of a run, and store what arrives.

    A lost request gets its real outcome, and its cost is counted; requests of other runs in the
    same batches likewise. Raises `ActorConfigurationError` if the run was asked at another base
    URL, `AccountHaltedError` if the key is refused, and `EngineStoppedError` if the API cannot be
    reached. Earlier results stay stored.
    """
    with ledger.read() as tx:
        there = queries.workspace_row(tx, queries.run_row(tx, run_id).workspace_id).base_url
        rows = late_answers.incomplete_batches(tx, run_id)
        before = late_answers.missing_sendings(tx, run_id)
    if there != client.base_url:
        raise ActorConfigurationError(
            f"run {run_id} was sent to {there}, but this key is for {client.base_url}; name the "
            "run's server with --base-url. Nothing was fetched"
        )
    collection = Collection(ledger, client, settings)
    again = f"{_KEPT}; try again later"
    done = Refetched()
    for row in rows:
        try:
            with contact_faults(client, _KEPT, again):
                await _fetch(collection, row)
        except _Refused as error:
            done.refused[row.remote_id] = str(error)
            _log.warning("batch %s: its results cannot be fetched: %s", row.remote_id, error)
            continue
        done.batches.append(row.id)
        _fill(ledger, row.id)
    with ledger.read() as tx:
        done.missing = late_answers.missing_requests(tx, run_id)
        done.found = max(0, before - late_answers.missing_sendings(tx, run_id))
    return done


class _Refused(Exception):
    """The API definitely refuses the results of a batch."""


async def _fetch(collection: Collection, row: Any) -> None:
    for failures in range(1, COMPLETE_FETCHES + 1):
        try:
            await collection.fetch(None, row)
            return
        except ApiError as error:
            fault = error.fault
            if fault.from_api and not fault.passes and fault.account_reason is None:
                raise _Refused(str(error)) from None
            if fault.account_reason is not None or failures == COMPLETE_FETCHES:
                raise
        except Unreachable:
            if failures == COMPLETE_FETCHES:
                raise
        await asyncio.sleep(SENDING(failures))


def _fill(ledger: Ledger, batch_id: int) -> None:
    """Assign the stored results of a batch to its requests."""
    now = time.time()
    with ledger.write() as tx:
        row = batch_contents.batch(tx, batch_id)
        if row.state == BatchState.ENDED:
            # The driver judges this batch; its successes are certain, also those of earlier
            # sendings.
            collected_batches.give_successes(tx, batch_id)
            collected_batches.settle_again(tx, batch_id, lost=True, contradicted=True)
            collected_batches.fetch_soon(tx, batch_id, now)
            return
        stored = collected_batches.stored_counts(tx, batch_id)
        # A batch that disappeared before its end has no counts.
        counts = None if row.counts is None else json.loads(row.counts)
        succeeded = row.request_count if counts is None else int(counts.get("succeeded", 0))
        short = min(succeeded, row.request_count) - stored.succeeded
        gaps = row.request_count - stored.total
        contradicted = counts is not None and short > max(gaps, 0)
        late_answers.fill(tx, batch_id, contradicted=contradicted, now=now)
        lost = counts is None or missing_state(stored, succeeded) is RequestState.LOST
        collected_batches.settle_again(tx, batch_id, lost=lost, contradicted=contradicted)
        warnings = warn_after(tx, batch_id, now)
    for words in warnings:
        _log.warning("%s", words, extra={"for_people": True})
