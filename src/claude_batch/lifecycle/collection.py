"""Collection: results streamed, stored as they arrive, judged when all that can be had is there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import RequestState
from claude_batch.ledger import collecting, halting, late_answers, packing, reconciling
from claude_batch.ledger.collecting import NewResult, Stored
from claude_batch.ledger.store import Ledger, Seat, Transaction
from claude_batch.lifecycle.budgeting import warn_after
from claude_batch.lifecycle.polling import absence
from claude_batch.lifecycle.proof import prove, split_lines
from claude_batch.lifecycle.submission import backoff
from claude_batch.lifecycle.telling import Telling
from claude_batch.money.prices import Prices, prices_of
from claude_batch.money.rates import FREE, UNPRICED
from claude_batch.wire.client import ApiError, BatchesClient, Unreachable
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.errors import account_reason
from claude_batch.wire.limits import RESULTS_KEPT_DAYS
from claude_batch.wire.messages import ResultLine, UnreadableLine, decode_line

__all__ = ["Collection", "missing_state", "result_of"]

_log = logging.getLogger(__name__)

CHUNK_LINES = 4000
CHUNK_BYTES = 4 << 20
"""Lines and bytes that are stored in one transaction."""

COMPLETE_FETCHES = 3
"""After so many fetches that ended properly, what is missing is missing for good."""


def missing_state(stored: Stored, succeeded: int) -> RequestState:
    """What becomes of requests without a line once fetching again is of no use.

    Tried again only where every success that the API counts (and bills) is stored; otherwise a
    missing line may be a paid one.
    """
    return RequestState.QUEUED if stored.succeeded >= succeeded else RequestState.LOST


def result_of(
    line: ResultLine,
    raw: bytes,
    seq: int,
    sending: int,
    prices: Prices,
    *,
    batch: bool,
    at: float,
) -> NewResult:
    """What is stored of a decoded line: the answer of a batch, or (not ``batch``) a live one.

    ``at`` is when it was answered, whose prices it costs.
    """
    charge = FREE
    if line.usage is not None:
        found = prices.charge(line.model or "", line.usage, batch=batch, at=at)
        charge = found or UNPRICED
    return NewResult(
        seq,
        sending,
        line.outcome,
        line.disposition,
        line.error.type if line.error else None,
        raw,
        line.usage,
        line.model,
        *charge,
    )


class Collection:
    """Fetches the results of one workspace's ended batches."""

    def __init__(
        self,
        ledger: Ledger,
        client: BatchesClient,
        settings: LedgerSettings,
        telling: Telling | None = None,
    ) -> None:
        self._ledger = ledger
        self._telling = telling or Telling(ledger, client)
        self._client = client
        self._settings = settings
        self._prices = prices_of(settings.prices)

    async def collect(self, seat: Seat, batch_id: int) -> None:
        """Fetch the results of an ended batch and, once they are complete, judge its requests.

        A fetch that breaks leaves what it brought, and is repeated later. Raises `Deposed`.
        """
        with self._ledger.read() as tx:
            row = packing.batch(tx, batch_id)
        if row.adopted == "assumed" and not await self._is_ours(seat, row):
            return
        complete, note = True, ""
        not_found_since: float | None = None
        refused = missed = False
        try:
            async with self._client.results(row.remote_id) as chunks:
                await self._store(seat, batch_id, chunks, row.ended or time.time())
        except (ApiError, Unreachable) as error:
            complete, note = False, str(error)
            if isinstance(error, ApiError):
                refused = error.fault.from_api and not error.fault.passes
                if error.fault.status == 404:
                    not_found_since, missed = absence(
                        row.not_found_since, row.next_check, self._client, self._settings
                    )
        counts = json.loads(row.counts or "{}")
        with self._ledger.read() as tx:
            stored = collecting.stored_counts(tx, batch_id)
        gaps = row.request_count - stored.total
        counted = int(counts.get("succeeded", 0))
        # A success that no line tells of is in a gap, or some line tells something else of it.
        # After a recovery fewer requests are known than the API counts.
        short = min(counted, row.request_count) - stored.succeeded
        fetches = row.fetches + (1 if complete else 0)
        now = time.time()
        # By the server's clock: ours may have jumped. What was recovered has no ``server_time``.
        age = self._client.server_now() - (row.server_time or row.submitted or now)
        outdated = refused and age >= RESULTS_KEPT_DAYS * 86400
        if outdated:
            _log.error(
                "batch %s: its results were kept for %d days and were not fetched in time",
                row.remote_id,
                RESULTS_KEPT_DAYS,
            )
        gone = missed or outdated
        if max(gaps, short) > 0 and not gone and (not complete or fetches < COMPLETE_FETCHES):
            words = note or (
                f"{gaps} of {row.request_count} results were not in the stream"
                if gaps > 0
                else f"{short} of {counted} successes were not in the stream"
            )
            wait = min(backoff(row.fetches + 1), row.max_poll_interval)
            with self._ledger.write(seat) as tx:
                collecting.note_fetch(
                    tx,
                    batch_id,
                    complete=complete,
                    next_check=now + wait,
                    note=words,
                    not_found_since=not_found_since,
                )
            _log.info("batch %s: %s; fetched again", row.remote_id, words)
            return
        reach(CrashPoint.BETWEEN_RESULTS_AND_STATE)
        missing = missing_state(stored, counted)
        with self._ledger.write(seat) as tx:
            late_answers.take_earlier_answers(tx, batch_id)
            collected = collecting.finish_collection(
                tx, batch_id, stored, missing=missing, now=now, contradicted=short > max(gaps, 0)
            )
            late_answers.give_answers(tx, batch_id)
            if collected.account_line is not None and collected.account:
                self._halt(tx, seat, collected.account_line, now)
            warnings = warn_after(tx, batch_id, now)
        for words in warnings:
            _log.warning("%s", words, extra={"for_people": True})
        reach(CrashPoint.AFTER_COLLECTED)
        self._telling.collected(row, collected, missing)

    async def _is_ours(self, seat: Seat, row: Any) -> bool:
        """Whether the results prove what was assumed: that the batch is our unknown sending."""
        proof = await prove(self._ledger, self._client, row.remote_id)
        now = time.time()
        with self._ledger.write(seat) as tx:
            if proof.owner == row.id:
                reconciling.confirm(tx, row.id)
                return True
            if proof.foreign or proof.owner is not None:
                reconciling.disown(tx, row.id, row.remote_id, note=proof.note or "", now=now)
                halting.halt(
                    tx,
                    seat.workspace_id,
                    reason="unexplained",
                    error_type=None,
                    message=f"the workspace is said to be exclusive, and batch {row.remote_id} is "
                    "somebody else's; find out whose, then `claude-batch resume`",
                    now=now,
                    interval=self._settings.probe_interval,
                )
                return False
        # No answer, or nothing readable: what then is to be done is the same for every batch.
        return True

    async def _store(
        self, seat: Seat, batch_id: int, chunks: AsyncIterator[bytes], ended: float
    ) -> None:
        with self._ledger.read() as tx:
            # Nothing joins or leaves a batch that has ended, as long as the seat is ours.
            members = collecting.members(tx, batch_id) | late_answers.former(tx, batch_id)
        lines: list[bytes] = []
        size = 0
        async for part in split_lines(chunks):
            lines += part
            size += sum(map(len, part))
            if len(lines) >= CHUNK_LINES or size >= CHUNK_BYTES:
                self._store_chunk(seat, batch_id, members, lines, ended)
                lines, size = [], 0
        if lines:
            self._store_chunk(seat, batch_id, members, lines, ended)

    def _store_chunk(
        self,
        seat: Seat,
        batch_id: int,
        members: Mapping[str, int],
        lines: Sequence[bytes],
        ended: float,
    ) -> None:
        new: list[NewResult] = []
        strange: list[tuple[bytes, str]] = []
        for raw in lines:
            try:
                line = decode_line(raw)
            except UnreadableLine as error:
                strange.append((raw, f"unreadable: {error}"))
                continue
            parts = parse_custom_id(line.custom_id)
            if parts is None or parts[1] not in self._ledger.incarnations:
                strange.append((raw, f"unknown custom_id {line.custom_id!r}"))
                continue
            seq = members.get(parts[0])
            if seq is None:
                strange.append((raw, f"no request of this batch: {line.custom_id!r}"))
                continue
            new.append(result_of(line, raw, seq, parts[2], self._prices, batch=True, at=ended))
        # In the order of the requests: results come shuffled, and are read in order later.
        new.sort()
        with self._ledger.write(seat) as tx:
            collecting.add_results(tx, batch_id, new)
            for raw, reason in strange:
                collecting.add_strange_line(tx, batch_id, raw, reason)
        reach(CrashPoint.DURING_COLLECT_CHUNK)

    def _halt(self, tx: Transaction, seat: Seat, raw: bytes, now: float) -> None:
        error = decode_line(raw).error
        assert error is not None
        reason = account_reason(None, error.type, error.message, error.details) or "billing"
        halting.halt(
            tx,
            seat.workspace_id,
            reason=reason,
            error_type=error.type,
            message=error.message,
            now=now,
            interval=self._settings.probe_interval,
        )
