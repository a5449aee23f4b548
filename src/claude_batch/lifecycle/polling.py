"""Polling: when to check a batch again, and what a check changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.events import BatchEnded
from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState
from claude_batch.ledger import (
    batch_contents,
    collected_batches,
    unknown_batches,
    workspaces,
)
from claude_batch.ledger.store import Ledger, Seat
from claude_batch.lifecycle.batch_list import MOST_PAGES, is_evidence
from claude_batch.lifecycle.event_reports import Reporter
from claude_batch.wire.batches_client import ApiError, BatchesClient, RemoteBatch, Unreachable
from claude_batch.wire.retry_policy import next_check

_log = logging.getLogger(__name__)

LATE = 7200.0
"""Seconds by which a check may be late, also in a program that is started now and then."""

MANY = 2
"""Number of batches from which one list call checks them all."""


def is_due(next_check: float, max_poll_interval: float, now: float) -> bool:
    """Return whether a check is due: its time has come, or is further ahead than any interval.

    The second case was planned before the clock jumped back.
    """
    return next_check <= now or next_check > now + max_poll_interval + 1


def age_of(submitted: float | None, now: float) -> float:
    """Return the seconds since a batch was submitted; never negative if the clock jumps back."""
    return 0.0 if submitted is None else max(0.0, now - submitted)


def missing_since(
    since: float | None, planned: float | None, *, now: float, server_now: float, after: float
) -> float:
    """Return the server's time since when every check, this one included, has returned 404.

    ``since`` is the value from the checks before. ``planned`` is when, by our clock, this check was
    to happen. ``after`` is the time for which 404s must last to be believed. If nobody polled for
    half of this window, the 404 before the pause and the one after it may both be transient. The
    window then restarts.
    """
    unwatched = planned is not None and now - planned > max(after / 2, LATE)
    if since is None or unwatched or since > server_now + 1:
        return server_now + 1  # the Date header has whole seconds
    return since


def gap_since(
    since: float | None, seen: float | None, *, now: float, after: float, interval: float
) -> float:
    """Return the server's time since when every complete fetch has lacked results.

    ``since`` and ``seen`` are the times of the first and the last earlier fetch, and ``now`` is
    this fetch. ``after`` is the time for which results must stay missing. ``interval`` is the
    longest wait between two fetches. If nobody fetched for half of ``after``, the fetches before
    and after that pause may both have been cut short, so the time starts anew.
    """
    unwatched = seen is not None and now - seen > interval + max(after / 2, LATE)
    if since is None or unwatched or since > now + 1:
        return now + 1  # the Date header has whole seconds
    return since


def absence(
    since: float | None,
    planned: float | None,
    client: BatchesClient,
    settings: LedgerSettings,
    now: float,
) -> tuple[float, bool]:
    """Return `missing_since` for a check that was just answered, and whether it is believed."""
    there, after = client.server_now(), settings.not_found_after
    begun = missing_since(since, planned, now=now, server_now=there, after=after)
    return begun, there - begun >= after


class Polling:
    """The checks and cancellations of one workspace's batches."""

    def __init__(
        self,
        ledger: Ledger,
        client: BatchesClient,
        settings: LedgerSettings,
        reporter: Reporter | None = None,
    ) -> None:
        self._ledger = ledger
        self._reporter = reporter or Reporter(ledger, client)
        self._client = client
        self._settings = settings

    async def check_due(self, seat: Seat, now: float) -> None:
        """Check every batch that is due. Raises `Deposed` if the leader lock was lost."""
        with self._ledger.read() as tx:
            # Asked first, because many passes only collect, and the list costs a call.
            if not collected_batches.any_check_due(tx, seat.workspace_id, now):
                return
            waiting = collected_batches.at_the_api(tx, seat.workspace_id)
        due = [row for row in waiting if is_due(row.next_check, row.max_poll_interval, now)]
        seen: dict[str, RemoteBatch] = {}
        if len(waiting) >= MANY:
            # The list also contains the batches that are not due yet, at the same price.
            seen = await self._list({row.remote_id for row in waiting})
        self._note(seat, [(row, seen[row.remote_id]) for row in waiting if row.remote_id in seen])
        for row in due:
            if row.remote_id in seen:
                continue
            # Absence from a list proves nothing, so retrieve the batch itself.
            remote = await self._retrieve(seat, row)
            if remote is not None:
                self._note(seat, [(row, remote)])

    async def _list(self, wanted: set[str]) -> dict[str, RemoteBatch]:
        seen: dict[str, RemoteBatch] = {}
        after: str | None = None
        try:
            for _ in range(MOST_PAGES):
                page = await self._client.list_page(after_id=after)
                seen.update({batch.id: batch for batch in page.data if batch.id in wanted})
                ended = not page.has_more or page.last_id in (None, after)
                if ended or not wanted - seen.keys():
                    break
                after = page.last_id
        except (ApiError, Unreachable) as error:
            _log.info("the list of batches cannot be read: %s", error)
        return seen

    async def _retrieve(self, seat: Seat, row: Any) -> RemoteBatch | None:
        note: str
        missing: float | None = row.not_found_since
        now = self._ledger.now()
        try:
            return await self._client.retrieve(row.remote_id)
        except ApiError as error:
            note = str(error)
            if error.fault.status == 404:
                # A 404 occurs right after create and after the end; it is final only after a day of
                # them.
                missing, gone = absence(
                    missing, row.next_check, self._client, self._settings, self._ledger.now()
                )
                if gone and await self._sees(seat):
                    with self._ledger.write(seat) as tx:
                        unknown_batches.take_earlier_answers(tx, row.id)
                        lost = collected_batches.mark_lost(tx, row.id, note=note, now=now)
                    self._reporter.collected([(row, lost)])
                    return None
        except Unreachable as error:
            note = str(error)
        with self._ledger.write(seat) as tx:
            collected_batches.checked(
                tx,
                row.id,
                state=BatchState(row.state),
                next_check=now + self._wait(row, now),
                not_found_since=missing,
                note=note,
            )
        return None

    async def _sees(self, seat: Seat) -> bool:
        """Return whether another batch of the same workspace is visible."""
        try:
            page = await self._client.list_page(limit=1)
        except (ApiError, Unreachable):
            return False
        here = is_evidence(self._ledger, seat.workspace_id, self._client.workspace)
        return bool(page.data) and here

    def _note(self, seat: Seat, answers: Sequence[tuple[Any, RemoteBatch]]) -> None:
        """Record the API's answers about batches, given by their rows, in one transaction."""
        if not answers:
            return
        now = self._ledger.now()
        reach(CrashPoint.AFTER_CHECK_BEFORE_RECORD)
        ended: list[BatchEnded] = []
        going: list[tuple[int, BatchState, float]] = []
        for row, remote in answers:
            if remote.processing_status == "ended":
                ended.append(self._end_of(row, remote, now))
                continue
            is_canceling = remote.processing_status == "canceling"
            state = BatchState.CANCELING if is_canceling else BatchState.IN_PROGRESS
            wait = row.poll_interval if is_canceling else self._wait(row, now)
            going.append((row.id, state, now + wait))
        with self._ledger.write(seat) as tx:
            collected_batches.note_checks(tx, going)
            ends = [(event.batch, json.dumps(event.counts), event.ended) for event in ended]
            collected_batches.mark_ended(tx, ends)
            if ended:
                # An ended batch frees room in the API's queue, so sendings that wait for room may
                # retry.
                workspaces.wait_until(tx, seat.workspace_id, None, None)
        for row, remote in answers:
            # What this program cancels is recorded before the API is asked to.
            is_ours = row.cancel_requested is not None or row.state == BatchState.CANCELING
            if remote.is_canceled and not is_ours:
                self._reporter.canceled(row)
        for event in ended:
            self._reporter.observers.report(event)

    def _end_of(self, row: Any, remote: RemoteBatch, now: float) -> BatchEnded:
        return BatchEnded(
            **self._reporter.here,
            batch=row.id,
            batch_id=row.remote_id,
            requests=row.request_count,
            counts=msgspec.to_builtins(remote.request_counts),
            submitted=row.submitted,
            ended=remote.ended or now,
        )

    def _wait(self, row: Any, now: float) -> float:
        if row.cancel_requested is not None:
            # It ends soon, and a caller may wait for the outcome.
            return row.poll_interval
        return next_check(age_of(row.submitted, now), row.poll_interval, row.max_poll_interval)

    async def cancel_requested(self, seat: Seat) -> None:
        """Cancel at the API what the user has cancelled. Raises `Deposed`."""
        with self._ledger.read() as tx:
            rows = collected_batches.to_cancel(tx, seat.workspace_id)
        for row in rows:
            now = self._ledger.now()
            try:
                remote = await self._client.cancel(row.remote_id)
            except (ApiError, Unreachable) as error:
                # A batch that has just ended can no longer be cancelled; the next check shows it.
                _log.info("batch %s cannot be cancelled: %s", row.remote_id, error)
                with self._ledger.write(seat) as tx:
                    collected_batches.checked(
                        tx, row.id, state=BatchState.CANCELING, next_check=now, note=str(error)
                    )
                continue
            reach(CrashPoint.AFTER_CANCEL_BEFORE_RECORD)
            with self._ledger.read() as tx:
                full = batch_contents.batch(tx, row.id)
            self._note(seat, [(full, remote)])
