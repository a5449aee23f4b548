"""Submissions with unknown outcome: the facts about them, and the user's choices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from claude_batch.core.states import BatchState, CandidateState
from claude_batch.ledger import live_calls, queries, unknown_batches
from claude_batch.ledger.store import Ledger, Record, Transaction, now_in
from claude_batch.ledger.submissions import INTERRUPTED
from claude_batch.lifecycle.leader_lock import interrupted_workspaces, settle_interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A batch at the API that may match an unknown submission."""

    batch_id: str
    state: CandidateState
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSending:
    """Requests of a run for which it is unknown whether the API accepted them.

    Times are seconds since the epoch (UTC).
    """

    run_id: str
    requests: int
    since: float | None
    reason: str | None
    """What happened to the submission, in words."""
    settled: bool
    """True if no new candidate can appear; False if it can no longer be determined."""
    lost: bool
    """True if the requests have ended without an answer, and may have been paid for."""
    candidates: tuple[Candidate, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def unknown_sendings(ledger: Ledger, run_id: str | None = None) -> list[UnknownSending]:
    """Return the unknown submissions and lost requests of a run, or of all runs."""
    found: list[UnknownSending] = []
    undriven = interrupted_workspaces(ledger)
    with ledger.read() as tx:
        for row in unknown_batches.undecided(tx, run_id, undriven=undriven):
            is_noted = row.state == BatchState.UNKNOWN
            candidates = tuple(
                Candidate(batch_id=c.remote_id, state=CandidateState(c.state), note=c.note)
                for c in unknown_batches.candidates_of(tx, row.id)
                if c.state != CandidateState.FOREIGN
            )
            found.append(
                UnknownSending(
                    run_id=row.run_id,
                    requests=row.members,
                    since=row.unknown_since if is_noted else row.armed,
                    reason=row.note if is_noted else INTERRUPTED,
                    settled=is_noted and row.settled is not None,
                    lost=False,
                    candidates=candidates,
                )
            )
        found += [_lost(row, "no answer came") for row in unknown_batches.lost(tx, run_id)]
        found += [
            _lost(row, "its process ended during live calls")
            for row in live_calls.under_way(tx)
            if row.workspace_id in undriven and run_id in (None, row.run_id)
        ]
    return found


def _lost(row: Record, reason: str) -> UnknownSending:
    return UnknownSending(
        run_id=row.run_id,
        requests=row.members,
        since=None,
        reason=reason,
        settled=True,
        lost=True,
    )


def decide_unknown(ledger: Ledger, run_id: str, *, resubmit: bool) -> int:
    """Send a run's unknown and lost requests again, or end the unknown ones as lost.

    Returns how many requests it affected. Sending them again may pay for them twice. While a
    cancellation of the run is in progress, nothing is sent again.
    """
    settle_interrupted(ledger)
    with ledger.write() as tx:
        return _resubmit(tx, run_id) if resubmit else _give_up(tx, run_id)


def _resubmit(tx: Transaction, run_id: str) -> int:
    now = now_in(tx)
    undecided = unknown_batches.undecided(tx, run_id)
    count = sum(unknown_batches.resubmit(tx, row.id, now=now, run_id=run_id) for row in undecided)
    # While a cancellation is in progress, its other requests would be sent again too.
    if queries.run_row(tx, run_id).cancelled is None or not queries.unfinished(tx, run_id):
        count += unknown_batches.resubmit_lost(tx, run_id, now)
    return count


def _give_up(tx: Transaction, run_id: str) -> int:
    undecided = unknown_batches.undecided(tx, run_id)
    return sum(unknown_batches.give_up(tx, row.id, run_id=run_id) for row in undecided)
