"""Reconciliation: find the outcome of a sending whose answer never arrived.

The API takes no idempotency key, and a batch has no label. So an unknown sending is searched in the
API's list of batches. A new batch with the right number of requests and the right age is a
*candidate*, and a ``custom_id`` in its results proves its owner. The sending was not accepted only
if a complete walk of the list, made after the server had time to settle, leaves no candidate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.events import UnknownOutcome
from claude_batch.core.states import CandidateState
from claude_batch.ledger import batch_contents, unknown_batches
from claude_batch.ledger.store import Leader, Record, Transaction
from claude_batch.lifecycle.polling import (
    Evidence,
    Listing,
    Proof,
    age_of,
    is_due,
    lasted,
    walk,
)
from claude_batch.wire.batches_client import ApiError, RemoteBatch, Unreachable
from claude_batch.wire.retry_policy import next_check

_log = logging.getLogger(__name__)

SILENT_SENDINGS = 3
"""Sendings in a row, neither accepted nor refused, after which a batch is split in two.

If the batch has a single request, sending halts instead."""

COMPLETE_FETCHES = 3
"""Fetches without a readable ``custom_id`` before a candidate counts as impossible to judge.

They must also span ``missing_after``."""

# The ends of an unknown batch's note, while the list is no evidence.
_NOT_SHOWN = (
    "; the API's list shows none of the batches that it had before, so it may be another "
    "workspace's, or they were deleted"
)
_OLDER_SHOWN = (
    "; the API's list shows older batches although it had none, so it may be another workspace's"
)
_OTHERS_SHOWN = "; the API answered with the list of another workspace"
_UNREADABLE = "; an entry of the API's list cannot be read, and may be this batch"
_DOUBTS = (_NOT_SHOWN, _OLDER_SHOWN, _OTHERS_SHOWN, _UNREADABLE)


def may_be_ours(
    remote: RemoteBatch,
    *,
    snapshot: Collection[str],
    known: Collection[str],
    request_count: int,
    not_before: float,
    not_after: float,
) -> bool:
    """Return whether a listed batch may be the outcome of an unknown sending.

    Times are the server's. A batch whose counts are all 0 may be anybody's until they change. A
    batch without a readable time may have any age.
    """
    if remote.id in snapshot or remote.id in known:
        return False
    created = remote.created
    # The Date header has whole seconds, so a batch in the same second as a bound is inside.
    if created is not None and not not_before - 1 <= created <= not_after + 1:
        return False
    return remote.counts.total in (0, request_count)


def is_doubted(note: str | None) -> bool:
    """Return whether an unknown batch's note says that the list is no evidence.

    Its search does not settle meanwhile.
    """
    return (note or "").endswith(_DOUBTS)


def _note_of(row: Record) -> str:
    """Return why a batch is unknown, without what an earlier look has added."""
    note = str(row.note or "")
    for doubt in _DOUBTS:
        note = note.removesuffix(doubt)
    return note


def decide(states: Sequence[CandidateState], *, settled: bool) -> UnknownOutcome | None:
    """Return the outcome of an unknown sending from its candidates, none of which is proved.

    `None` if it cannot be decided yet.
    """
    if not settled or CandidateState.OPEN in states:
        return None
    return "unresolved" if CandidateState.GONE in states else "not_accepted"


class Reconciliation(Evidence):
    """The resolver of one workspace's unknown sendings."""

    async def reconcile(self, leader: Leader, now: float) -> bool:
        """Check every unknown batch that is due; return whether one was decided."""
        with self._ledger.read() as tx:
            rows = unknown_batches.unknown_batches(tx, leader.workspace_id)
        if not any(is_due(row.next_check or 0.0, row.max_poll_interval, now) for row in rows):
            return False
        try:
            listing = await walk(
                self._client,
                since=min(map(self._not_before, rows)),
                until=[unknown_batches.snapshot_of(row) for row in rows],
            )
        except (ApiError, Unreachable) as error:
            _log.info("the list of batches cannot be read: %s", error)
            self._look_later(leader, rows, now)
            return False
        is_ours = self.is_list_of(leader.workspace_id, listing.workspace)
        if is_ours is False:
            self._look_later(leader, rows, now, why=_OTHERS_SHOWN)
            return False
        overdue: list[Record] = []
        if is_ours is None:
            strange = [row for row in rows if not self._may_be_seen_in(listing, row)]
            for row in strange:
                why = _NOT_SHOWN if unknown_batches.snapshot_of(row) else _OLDER_SHOWN
                self._look_later(leader, [row], now, why=why)
            rows = [row for row in rows if row not in strange]
            # This list decides nothing about them, but the user's order may.
            overdue = [row for row in strange if self._is_overdue(row, now)]
        decided = False
        for row in rows:
            self._take_in(leader, row, listing)
            decided |= await self._judge_candidates(leader, row, listing)
        for row in (*rows, *overdue):
            decided |= self._decide(leader, row.id, now)
        return decided

    def _may_be_seen_in(self, listing: Listing, row: Record) -> bool:
        return listing.may_follow(unknown_batches.snapshot_of(row), self._not_before(row))

    def _not_before(self, row: Record) -> float:
        return (row.server_time or 0.0) - self._settings.lookback

    def _window(
        self, row: Record, listing: Listing, snapshot: Collection[str], end: float
    ) -> tuple[float, float]:
        """Return when a batch was created, at the earliest and at the latest, to be a candidate.

        ``end`` is that of settling. A gateway may write the time of its own clock into its answers,
        and the API its own into its batches. So what was listed before the POST bounds the age too,
        and if the list has batches of the future, nothing is too new.
        """
        earliest = listing.newest_of(snapshot) if snapshot else -math.inf
        not_before = self._not_before(row)
        if earliest is not None:
            not_before = min(not_before, earliest)
        return not_before, math.inf if listing.is_behind else end

    def _look_later(
        self, leader: Leader, rows: Sequence[Record], now: float, *, why: str = ""
    ) -> None:
        """Leave batches unknown until the next look; ``why`` is added to their notes."""
        if not rows:
            return
        with self._ledger.write(leader) as tx:
            for row in rows:
                unknown_batches.note_look(
                    tx,
                    row.id,
                    next_check=now + self._wait(row, now),
                    note=_note_of(row) + why if why else None,
                )

    def _wait(self, row: Record, now: float) -> float:
        age = age_of(row.unknown_since, now)
        wait = next_check(age, row.poll_interval, row.max_poll_interval)
        if row.settling_from is not None and row.settled is None:
            left = row.settling_from + self._settings.settling - self._client.server_now()
            # The first check after settling may decide.
            wait = min(wait, left + 0.05) if left > 0 else row.poll_interval
        return wait

    def _take_in(self, leader: Leader, row: Record, listing: Listing) -> None:
        """Record new candidates, those that are accounted for, and the progress of settling.

        One answer with other counts may be an old copy, so only its results rule a candidate out.
        """
        now = self._ledger.now()
        with self._ledger.write(leader) as tx:
            row = batch_contents.batch(tx, row.id)
            if not unknown_batches.is_unknown(tx, row.id):
                return
            started = row.settling_from
            # If the clock was set meanwhile, nobody knows how much time has passed.
            if started is None or started < self._client.steady_since:
                started = listing.server_time
            end = started + self._settings.settling
            passed = lasted(listing.server_time - started, now - (row.unknown_since or 0.0))
            known = unknown_batches.known_remote_ids(tx, leader.workspace_id, listing.ids)
            seen = {c.remote_id: c for c in unknown_batches.candidates_of(tx, row.id)}
            snapshot = unknown_batches.snapshot_of(row)
            not_before, not_after = self._window(row, listing, snapshot, end)
            fits = partial(
                may_be_ours,
                snapshot=snapshot,
                known=known,
                request_count=row.request_count,
                not_before=not_before,
                not_after=not_after,
            )
            is_doubted = row.settled is None and any(map(fits, listing.unreadable))
            is_over = passed >= self._settings.settling and not is_doubted
            settled = now if row.settled is None and is_over else None
            for remote in listing.batches.values():
                candidate = seen.get(remote.id)
                if candidate is None:
                    if row.settled is None and fits(remote):
                        unknown_batches.add_candidate(tx, row.id, remote.id, now)
                elif candidate.state == CandidateState.OPEN and remote.id in known:
                    unknown_batches.note_candidate(
                        tx,
                        row.id,
                        remote.id,
                        state=CandidateState.FOREIGN,
                        note="accounted for",
                    )
            unknown_batches.note_look(
                tx,
                row.id,
                next_check=now + self._wait(row, now),
                settling_from=None if is_doubted else started,
                settled=settled,
                note=_note_of(row) + (_UNREADABLE if is_doubted else ""),
            )

    async def _judge_candidates(self, leader: Leader, row: Record, listing: Listing) -> bool:
        with self._ledger.read() as tx:
            found = unknown_batches.candidates_of(tx, row.id)
        opened = [c for c in found if c.state == CandidateState.OPEN]
        exclusive = self._settings.exclusive_workspace and not listing.unreadable
        if exclusive and len(opened) == 1:
            lone = listing.batches.get(opened[0].remote_id)
            if lone is not None and self._adopt_lone(leader, row, lone):
                return True
        adopted = False
        for candidate in opened:
            remote = listing.batches.get(candidate.remote_id)
            try:
                remote = remote or await self._client.retrieve(candidate.remote_id)
            except (ApiError, Unreachable) as error:
                self._note_unproved(leader, row, candidate, Proof.failed(error))
                continue
            if remote.processing_status != "ended":
                self._note_seen(leader, row, candidate)
                continue
            requests = max(1, remote.counts.total)
            proof = await self.prove(remote.id, requests)
            if proof.owner is not None:
                adopted |= self._give_to(leader, proof.owner, row, remote)
            else:
                self._note_unproved(leader, row, candidate, proof, remote)
        return adopted

    def _adopt_lone(self, leader: Leader, row: Record, remote: RemoteBatch) -> bool:
        """Adopt a lone candidate if the workspace is exclusive; its results will prove it."""
        if remote.counts.total != row.request_count:
            return False
        with self._ledger.write(leader) as tx:
            # If it may also be another of our sendings, only its results can decide.
            if unknown_batches.rivals(tx, row.id):
                return False
            self._adopt(tx, row.id, remote, "assumed")
        self._reporter.decided(row.id, row.request_count, "assumed", remote.id)
        return True

    def _adopt(self, tx: Transaction, batch_id: int, remote: RemoteBatch, how: str) -> None:
        now = self._ledger.now()
        submitted = min(now, remote.created or now)
        unknown_batches.adopt(tx, batch_id, remote.id, how=how, submitted=submitted, now=now)

    def _note_seen(self, leader: Leader, row: Record, candidate: Any) -> None:
        """Clear an earlier 404 of a candidate that is in progress."""
        if candidate.not_found_since is not None:
            with self._ledger.write(leader) as tx:
                unknown_batches.note_candidate(
                    tx, row.id, candidate.remote_id, state=CandidateState.OPEN
                )

    def _give_to(self, leader: Leader, owner: int, row: Record, remote: RemoteBatch) -> bool:
        """Adopt a candidate of ``row`` for its proved owner; return whether that was unknown."""
        reach(CrashPoint.BEFORE_ADOPT)
        with self._ledger.write(leader) as tx:
            ours = unknown_batches.is_unknown(tx, owner)
            if ours:
                self._adopt(tx, owner, remote, "proved")
            if not ours or owner != row.id:
                note = f"it is the ledger's batch {owner}"
                unknown_batches.note_candidate(
                    tx, row.id, remote.id, state=CandidateState.FOREIGN, note=note
                )
        reach(CrashPoint.AFTER_ADOPT)
        if ours:
            count = remote.counts.total or row.request_count
            self._reporter.decided(owner, count, "found", remote.id)
        return ours

    def _note_unproved(
        self,
        leader: Leader,
        row: Record,
        candidate: Any,
        proof: Proof,
        remote: RemoteBatch | None = None,
    ) -> None:
        """Store what a look at a candidate has shown, other than its owner.

        ``remote`` is the candidate as the API shows it; None if it does not.
        """
        missing: float | None = candidate.not_found_since
        is_gone = remote is not None and remote.archived_at is not None and proof.missing
        is_read = proof.fetched or proof.foreign
        if proof.missing:
            missing, is_believed = self.absence(missing, row.next_check, sent=row.unknown_since)
            # As long as the API shows the batch, only its results are missing.
            is_gone |= is_believed and remote is None
            is_read = is_believed and remote is not None
        elif is_read:
            missing = None  # a batch that was not found before is there again
        unread: tuple[float, float] | None = None
        given_up = False
        if is_read:
            # The stream may have ended early, like that of any batch: the API still has the lines.
            gap = self.gap_of(candidate, 0, row.max_poll_interval)
            unread = gap.since, gap.seen
            given_up = candidate.fetches + 1 >= COMPLETE_FETCHES and gap.seen >= gap.until
        state = CandidateState.OPEN
        # One fetch may be a wrong entry of a cache, and a 404 does not confirm it.
        if proof.foreign and candidate.fetches and candidate.not_found_since is None:
            state = CandidateState.FOREIGN
        elif is_gone or given_up:
            state = CandidateState.GONE
        with self._ledger.write(leader) as tx:
            unknown_batches.note_candidate(
                tx,
                row.id,
                candidate.remote_id,
                state=state,
                note=proof.note,
                not_found_since=missing,
                unread=unread,
            )

    def _decide(self, leader: Leader, batch_id: int, now: float) -> bool:
        with self._ledger.read() as tx:
            row = batch_contents.batch(tx, batch_id)
            if not unknown_batches.is_unknown(tx, batch_id):
                return False
            outcome = self._outcome(tx, row, now)
        if outcome is None:
            return False
        reach(CrashPoint.BEFORE_DISPROVED)
        count = row.request_count
        with self._ledger.write(leader) as tx:
            # Only the holder of the leader lock decides, so the batch is still unknown. A driver
            # that has lost the lock may have added a candidate meanwhile.
            if self._outcome(tx, row, now) != outcome:
                return False
            if outcome == "resubmitted":
                count = unknown_batches.resubmit(tx, batch_id, now=now)
                if not count:
                    return False
            elif outcome == "unresolved":
                unknown_batches.unresolve(
                    tx,
                    batch_id,
                    note="a batch that may have been it is gone, so this can no longer be decided",
                )
            else:
                note = "the API's list proved that it was not accepted"
                silent = unknown_batches.disprove(tx, batch_id, note=note)
                if silent >= SILENT_SENDINGS:
                    self._too_silent(tx, leader, batch_id, silent)
        self._reporter.decided(batch_id, count, outcome)
        return True

    def _outcome(self, tx: Transaction, row: Record, now: float) -> UnknownOutcome | None:
        """Return `decide`, or that the user's limit on the wait for certainty has passed."""
        found = unknown_batches.candidates_of(tx, row.id)
        states = [CandidateState(each.state) for each in found]
        outcome = decide(states, settled=row.settled is not None)
        return "resubmitted" if outcome is None and self._is_overdue(row, now) else outcome

    def _too_silent(self, tx: Transaction, leader: Leader, batch_id: int, silent: int) -> None:
        now = self._ledger.now()
        if batch_contents.batch(tx, batch_id).request_count == 0 or batch_contents.split(
            tx, batch_id, now
        ):
            return
        self.stop_sending(
            tx,
            leader.workspace_id,
            f"a batch of a single request was sent {silent} times, each time without an answer and "
            "without being accepted",
        )

    def _is_overdue(self, row: Record, now: float) -> bool:
        """Return whether the user's limit on the wait for certainty has passed."""
        overdue = age_of(row.unknown_since, now) >= self._settings.resubmit_after
        return overdue and self._settings.on_unknown == "resubmit"
