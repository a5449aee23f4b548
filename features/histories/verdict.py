"""What must hold after every step of a history, and at its end.

Everything is read from the ledger by SQL of its own, and compared with what the simulated
API knows to be true.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from claude_batch.core.settings import LedgerSettings
from claude_batch.core.states import BatchState, RequestState
from claude_batch.wire.encoding import parse_custom_id
from histories.api import COST, Remote, SimulatedApi
from histories.ledger_rows import Row, open_rows

__all__ = ["OF_THIS_TURN", "Verdict", "Violation"]

LATE = 7200.0
"""Seconds by which a fetch may always be late."""

LONGEST_INTERVAL = 300.0
"""Seconds between two fetches of a batch (`max_poll_interval`)."""

COMPLETE_FETCHES = 3
"""So often a line must have been missing before its request may be given up."""

_FINAL = {str(state) for state in RequestState if state.is_final}
_ANSWERED = ("succeeded", "errored", "canceled", "expired")
_NO_MEMBERS = (BatchState.COLLECTED, BatchState.REJECTED, BatchState.UNRESOLVED)
_AT_API = (BatchState.IN_PROGRESS, BatchState.CANCELING, BatchState.ENDED)
_RETRYABLE = ("overloaded", "credit", "expired")


_KEPT = ("succeeded", "stopped", "refused")
"""How a request may end that has an answer."""

OF_THIS_TURN = (
    "s.sending > coalesce((SELECT consumed FROM conversations c WHERE c.request_seq = r.seq), -1)"
)
"""Of a result ``s`` and its request ``r``: no next turn was made from it."""

_CROWDED = """
SELECT r.id, r.parallel_batches AS most, count(*) AS there
FROM runs r JOIN batch_runs m ON m.run_id = r.id JOIN batches b ON b.id = m.batch_id
WHERE b.state IN ('submitting', 'in_progress', 'canceling', 'unknown')
AND r.id IN (SELECT m.run_id FROM batch_runs m JOIN batches b ON b.id = m.batch_id
    WHERE b.state = 'submitting')
GROUP BY r.id HAVING count(*) > r.parallel_batches
"""
"""Runs that have just sent more batches than ``parallel_batches`` allows."""


class Violation(AssertionError):
    """A promise was broken."""


class Verdict:
    """The judge of one history."""

    def __init__(self, api: SimulatedApi, path: Path, settings: LedgerSettings) -> None:
        self._api = api
        self._settings = settings
        self._path = path
        self._db = open_rows(path)
        self.sendings: dict[str, dict[int, Remote]] = defaultdict(dict)
        """By request id: what the API accepted, by the number of the sending."""
        self._highest: dict[str, int] = {}
        self.ordered: set[tuple[str, int]] = set()
        """Sendings after which the user ordered to send again whatever became of them."""
        self.cancelled_runs: set[str] = set()
        """Runs that were cancelled. An order to send a request of one again makes the run go on,
        and what was cancelled before stays so."""
        self.given_up: set[str] = set()
        self._doubted: set[str] = set()
        """Ordered to be sent again, although an earlier sending may have been accepted."""
        self.reopened: set[str] = set()
        """Requests that an order may just have queued again, although they had failed."""
        self.withdrawn: set[str] = set()
        """Requests whose callers left before they were sent."""
        self.removed: set[str] = set()
        """Requests of runs that were removed from the ledger. What they have cost stays counted."""
        self._intended: set[tuple[int, int]] = set()
        """The POSTs that were intended, or being made, when one was intended last."""
        self._seen: dict[str, tuple[str, int | None]] = {}
        self._stamp = 0
        self.budget = 0
        """What all of it may cost, in nano-dollars; 0 for no budget."""
        self.is_lowered = False
        """Whether what is packed may be more than the budget allows, because it was lowered."""
        api.on_create, api.on_accept, api.on_cancel = self._create, self._accept, self._cancel
        api.is_missed = self.is_missed

    def close(self) -> None:
        self._db.close()

    def reopen(self) -> None:
        """Read the ledger that is at the path now; `close` came before."""
        self._db = open_rows(self._path)

    def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        return self._db.rows(sql, values)

    def _say(self, words: str) -> None:
        self._api.violations.append(words)

    def is_halted(self) -> bool:
        return bool(self.rows("SELECT 1 FROM workspaces WHERE halted IS NOT NULL"))

    def is_waiting(self) -> bool:
        """Whether a request waits to be sent."""
        found = self.rows(
            "SELECT 1 FROM requests r LEFT JOIN batches b ON b.id = r.batch_id "
            "WHERE r.state = 'queued' OR b.state = 'packed' LIMIT 1"
        )
        return bool(found)

    def unknown(self) -> Sequence[Row]:
        """The batches of which it is unknown whether they were accepted."""
        return self.rows("SELECT * FROM batches WHERE state = 'unknown' ORDER BY id")

    def is_missed(self, remote_id: str) -> bool:
        """Whether the last look at a batch has found nothing (404)."""
        found = self.rows(
            "SELECT 1 FROM batches WHERE remote_id = ?1 AND not_found_since IS NOT NULL UNION "
            "SELECT 1 FROM candidates WHERE remote_id = ?1 AND not_found_since IS NOT NULL",
            remote_id,
        )
        return bool(found)

    def removable(self) -> list[str]:
        """The runs that may be removed from the ledger: all of them has ended for certain."""
        rows = self.rows(
            "SELECT u.id FROM runs u WHERE u.kind = 'run' AND u.stored IS NOT NULL AND NOT EXISTS "
            "(SELECT 1 FROM requests r WHERE r.run_id = u.id AND (r.finished IS NULL OR "
            "r.state = 'lost')) AND NOT EXISTS (SELECT 1 FROM batches b WHERE b.state NOT IN "
            "('collected', 'rejected', 'live') AND (b.id IN (SELECT batch_id FROM batch_runs "
            "WHERE run_id = u.id) OR b.id IN (SELECT f.batch_id FROM former_members f "
            "JOIN requests r ON r.seq = f.request_seq WHERE r.run_id = u.id))) ORDER BY u.rowid"
        )
        return [row["id"] for row in rows]

    def requests_of(self, run_id: str) -> list[str]:
        return [row["id"] for row in self.rows("SELECT id FROM requests WHERE run_id = ?", run_id)]

    # Orders --------------------------------------------------------------------------------

    def undecided(self, run_id: str) -> list[str]:
        """The requests of a run that an order to send again, or to give up, concerns."""
        rows = self.rows(
            "SELECT r.id FROM requests r LEFT JOIN batches b ON b.id = r.batch_id WHERE "
            "r.run_id = ? AND (r.state = 'lost' OR (r.state = 'packed' AND b.state = 'unknown'))",
            run_id,
        )
        return [row["id"] for row in rows]

    def order_again(self, run_id: str) -> None:
        for request in self.undecided(run_id):
            self.ordered.update((request, sending) for sending in self.sendings[request])
            self._doubted.add(request)

    def lacking(self, run_id: str) -> Sequence[Row]:
        """The requests of a run without the result of their batch: id, batch."""
        return self.rows(
            "SELECT r.id, r.batch_id FROM requests r JOIN batches b ON b.id = r.batch_id WHERE "
            "r.run_id = ? AND b.remote_id IS NOT NULL AND (r.state = 'lost' AND b.state = "
            "'collected' OR r.state = 'packed' AND b.state = 'ended' AND b.missing IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM results s WHERE s.request_seq = r.seq AND "
            "s.batch_id = b.id))",
            run_id,
        )

    def order_missing(self, run_id: str, batches: list[int]) -> None:
        for row in self.lacking(run_id):
            if row["batch_id"] in batches:
                request = row["id"]
                self.ordered.update((request, sending) for sending in self.sendings[request])

    def leave(self, seqs: list[int]) -> None:
        """The callers of these calls are about to leave."""
        for row in self._calls(seqs):
            unsent = row["state"] == "queued" or row["carrier"] == "packed"
            halved = row["half_of"] is not None or row["refusal"] is not None
            if unsent and row["waits"] and not halved and not row["resent"]:
                self.withdrawn.add(row["id"])

    def left(self, seqs: list[int]) -> None:
        """They have left."""
        for row in self._calls(seqs):
            if row["id"] in self.withdrawn and row["state"] != "canceled":
                self._say(f"the caller of {row['id']} left, and it is {row['state']}")
            if row["waits"]:
                self._say(f"the caller of {row['id']} left, and it is still waited for")

    def _calls(self, seqs: list[int]) -> Sequence[Row]:
        return self.rows(
            "SELECT r.id, r.state, b.state AS carrier, b.half_of, b.refusal, EXISTS (SELECT 1 "
            "FROM calls c WHERE c.request_seq = r.seq AND c.process IS NOT NULL "
            "AND c.taken IS NULL) AS waits, EXISTS (SELECT 1 FROM former_members f "
            "WHERE f.request_seq = r.seq) AS resent FROM requests r "
            "LEFT JOIN batches b ON b.id = r.batch_id "
            f"WHERE r.seq IN ({','.join(map(str, seqs))})"
        )

    # At the API ----------------------------------------------------------------------------

    def _create(self, ids: list[str]) -> None:
        for identifier in ids:
            parts = parse_custom_id(identifier)
            if parts is None:
                self._say(f"{identifier} is no custom_id")
                continue
            request, incarnation, sending = parts
            if request in self.withdrawn:
                self._say(f"{identifier} was sent after its caller had left")
            # A ledger that was restored has forgotten the last numbers, and begins an incarnation.
            counted = request + incarnation
            if sending <= self._highest.get(counted, 0):
                self._say(f"{identifier}: the number of the sending did not rise")
            self._highest[counted] = sending
            found = self.rows(
                "SELECT r.state, b.state AS carrier, EXISTS (SELECT 1 FROM results s WHERE "
                f"s.request_seq = r.seq AND s.outcome = 'succeeded' AND {OF_THIS_TURN}) AS "
                "answered FROM requests r LEFT JOIN batches b ON b.id = r.batch_id WHERE r.id = ?",
                request,
            )
            states = [(row["state"], row["carrier"]) for row in found]
            if states != [("packed", "submitting")]:
                self._say(f"{identifier} was sent while its request was {states}")
            elif found[0]["answered"]:
                self._say(f"{identifier} was sent although a success of it is stored")

    def intended(self) -> None:
        """The intent to send is on disk."""
        found = self.rows(
            "SELECT b.id, b.posts, b.request_count, w.halted FROM batches b JOIN lanes l "
            "ON l.id = b.lane_id JOIN workspaces w ON w.id = l.workspace_id "
            "WHERE b.state = 'submitting'"
        )
        # The process of another workspace may be held up in a POST that began before a halt.
        before, self._intended = self._intended, {(row["id"], row["posts"]) for row in found}
        sizes = [
            row["request_count"]
            for row in found
            if row["halted"] is not None and (row["id"], row["posts"]) not in before
        ]
        if sizes not in ([], [1]):
            self._say(f"a halted workspace was probed with {sizes} requests")
        for row in self.rows(_CROWDED):
            self._say(f"{row['id']} has {row['there']} batches at once, of {row['most']} allowed")

    def _accept(self, remote: Remote) -> None:
        for identifier in remote.ids:
            parts = parse_custom_id(identifier)
            if parts is None:
                continue
            request, _, sending = parts
            for number, earlier in self.sendings[request].items():
                if not self._is_accounted(request, number, earlier):
                    self._say(
                        f"request {request} was accepted as sending {sending} in {remote.id}, "
                        f"while sending {number} in {earlier.id} was {self._fate(request, earlier)}"
                    )
            self.sendings[request][sending] = remote

    def _fate(self, request: str, remote: Remote) -> str:
        fates = [o for i, o in remote.outcomes.items() if i.startswith(request)]
        return f"{remote.status} {fates}{' and deleted' if remote.deleted else ''}"

    def _is_accounted(self, request: str, sending: int, remote: Remote) -> bool:
        """Whether a request may be sent again although this sending of it was accepted."""
        if (request, sending) in self.ordered:
            return True
        key = "(SELECT seq FROM requests WHERE id = ?)"
        if self._settings.on_unknown == "resubmit" and self.rows(
            f"SELECT 1 FROM former_members WHERE request_seq = {key} AND sending = ?",
            request,
            sending,
        ):
            return True
        [identifier] = [i for i in remote.ids if i.startswith(request)]
        if remote.status != "ended" or remote.outcomes[identifier] == "succeeded":
            return False
        seldom = len(remote.omitted[identifier]) < COMPLETE_FETCHES
        if not seldom or remote.deleted or remote.archived:
            return True
        recorded = self.rows(
            f"SELECT 1 FROM results WHERE request_seq = {key} AND sending = ?", request, sending
        )
        return bool(recorded) and remote.outcomes[identifier] in _RETRYABLE

    def _cancel(self, remote: Remote) -> None:
        if not remote.ours:
            self._say(f"{remote.id} is somebody else's and was cancelled")
        for batch in self.rows("SELECT * FROM batches WHERE remote_id = ?", remote.id):
            if batch["adopted"] == "assumed":
                self._say(f"{remote.id} was adopted without proof and cancelled")
            live = self.rows(
                "SELECT r.id FROM requests r JOIN runs u ON u.id = r.run_id WHERE r.batch_id = ? "
                "AND r.state = 'packed' AND NOT r.cancelled AND u.cancelled IS NULL "
                "AND u.past_margin IS NULL",
                batch["id"],
            )
            if live:
                self._say(f"{remote.id} was cancelled with {len(live)} live requests in it")

    # After each step -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise `Violation` where something does not hold now."""
        self._check_requests()
        self._check_batches()
        self._check_results()
        self._check_counts()
        self._check_budget()
        if self._api.violations:
            raise Violation("; ".join(self._api.violations))

    def _check_requests(self) -> None:
        stamp = self._stamp
        for row in self.rows(
            "SELECT r.*, b.state AS carrier, s.outcome FROM requests r "
            "LEFT JOIN batches b ON b.id = r.batch_id LEFT JOIN results s "
            "ON s.request_seq = r.seq AND s.sending = r.answered_by"
        ):
            request, state, finished = row["id"], row["state"], row["finished"]
            before, stamped = self._seen.get(request, ("queued", None))
            if state == "queued" and (row["batch_id"] is not None or finished is not None):
                self._say(f"{request} is queued, and in batch {row['batch_id']}, {finished}")
            if state == "packed" and (row["carrier"] in (None, *_NO_MEMBERS) or finished):
                self._say(f"{request} is packed in a batch that is {row['carrier']}, {finished}")
            if state in _FINAL and finished is None:
                self._say(f"{request} is {state} without a stamp")
            expired = state == "expired" and row["answered_by"] is None
            if expired and not self.may_expire(request):
                self._say(f"{request} expired unsent, and has no deadline")
            answered = state in ("succeeded", "errored", "expired") and not expired
            if answered and row["outcome"] != state:
                self._say(f"{request} is {state}, its answer is {row['outcome']}")
            is_settled = before in _FINAL and before != "lost" and request not in self.reopened
            if is_settled and (state, finished) != (before, stamped):
                self._say(f"{request} was {before} and is {state}")
            if finished is not None and finished != stamped:
                if finished <= self._stamp:
                    self._say(f"{request} ended with the stamp {finished} after {self._stamp}")
                stamp = max(stamp, finished)
                if state == "lost" and not self._may_be_lost(row):
                    self._say(f"{request} is lost, although nothing of it was destroyed")
            self._seen[request] = (state, finished)
        self._stamp = stamp

    def hidden(self, run_id: str) -> set[str]:
        """The requests of a run that have failed, and of which the API has a success."""
        failed = "r.run_id = ? AND r.state IN ('errored', 'expired', 'canceled')"
        return {
            row["id"]
            for row in self.rows(f"SELECT r.id FROM requests r WHERE {failed}", run_id)
            if "succeeded" in self._truths(row["id"])
        }

    def may_expire(self, request: str) -> bool:
        """Whether a request may end as expired that was not sent."""
        return False

    def _may_be_lost(self, row: Row) -> bool:
        request = row["id"]
        if request in self.given_up:
            return True
        if self._is_doubted(row) and self._has_ended_unsent(row):
            return True
        if any(self._is_destroyed(r, request) for r in self.sendings[request].values()):
            return True
        # What may have been it was somebody else's, and is gone, or was not whole for too long.
        names = self.rows(
            "SELECT remote_id FROM candidates WHERE batch_id = ?1 "
            "UNION SELECT remote_id FROM batches WHERE id = ?1",
            row["batch_id"],
        )
        possible = {name["remote_id"] for name in names}
        return any(
            self._is_destroyed(r) or any(r.omitted.values())
            for r in self._api.remotes
            if r.id in possible and not any(i.startswith(request) for i in r.ids)
        )

    def _is_doubted(self, row: Row) -> bool:
        """Whether a request was queued again while an earlier sending was undecided."""
        left = "SELECT 1 FROM former_members WHERE request_seq = ?"
        return row["id"] in self._doubted or bool(self.rows(left, row["seq"]))

    def _has_ended_unsent(self, row: Row) -> bool:
        """Whether a request was cancelled, or reached the margin of its deadline."""
        if row["run_id"] in self.cancelled_runs:
            return True  # and asked again since
        stopped = "id = ? AND (cancelled IS NOT NULL OR past_margin IS NOT NULL)"
        run = self.rows(f"SELECT 1 FROM runs WHERE {stopped}", row["run_id"])
        return bool(row["cancelled"] or run)

    def _is_missing(self, remote: Remote, identifier: str) -> bool:
        """Whether a line has been missing so often, and if it may be paid for so long, as it must.

        A line may be paid for if it is, and if any success of its batch is not known.
        """
        omitted = remote.omitted[identifier]
        if len(omitted) < COMPLETE_FETCHES:
            return False
        return self._all_paid_are_known(remote) or self._has_waited(omitted)

    def _has_waited(self, omitted: list[float]) -> bool:
        # Whoever has not fetched for half of the time begins anew.
        after = self._settings.missing_after
        since = omitted[0]
        for before, now in pairwise(omitted):
            if now - before > LONGEST_INTERVAL + max(after / 2, LATE):
                since = now
            if now - since >= after:
                return True  # and what is fetched on order later changes nothing
        return after <= 0

    def _all_paid_are_known(self, remote: Remote) -> bool:
        for identifier in remote.ids:
            parts = parse_custom_id(identifier)
            if remote.outcomes[identifier] != "succeeded" or parts is None:
                continue
            if parts[0] in self.removed:
                continue
            if not self.rows(
                "SELECT 1 FROM results s JOIN requests r ON r.seq = s.request_seq WHERE r.id = ? "
                "AND s.sending = ? AND s.outcome = 'succeeded'",
                parts[0],
                parts[2],
            ):
                return False
        return True

    def _is_destroyed(self, remote: Remote, request: str = "") -> bool:
        lines = [i for i in remote.ids if i.startswith(request)]
        missing = [i for i in remote.ids if remote.outcomes and self._is_missing(remote, i)]
        # Where a success is hidden by another line, any failure may be it.
        hidden = any(remote.outcomes[i] == "succeeded" for i in missing)
        return (
            remote.deleted
            or remote.archived
            or all(i in missing or (hidden and remote.outcomes[i] != "succeeded") for i in lines)
        )

    def _check_batches(self) -> None:
        for row in self.rows(
            "SELECT b.*, (SELECT count(*) FROM requests r WHERE r.batch_id = b.id AND "
            "r.state = 'packed') AS members FROM batches b"
        ):
            state, members, count = row["state"], row["members"], row["request_count"]
            named = f"the ledger's batch {row['id']}, {state},"
            if state in _NO_MEMBERS and members:
                self._say(f"{named} holds {members} open requests")
            if state in ("packed", "submitting") and members != count:
                self._say(f"{named} counts {count} requests and holds {members}")
            if (row["remote_id"] is not None) != (state in (*_AT_API, "collected")):
                self._say(f"{named} is {row['remote_id']} at the API")
            if members > count:
                self._say(f"{named} holds {members} requests of {count}")

    def _check_results(self) -> None:
        for row in self.rows(
            "SELECT s.sending, s.raw, r.id FROM results s JOIN requests r ON r.seq = s.request_seq "
            "WHERE s.sending > 0"
        ):
            parts = parse_custom_id(str(json.loads(row["raw"])["custom_id"]))
            if parts is None or (parts[0], parts[2]) != (row["id"], row["sending"]):
                self._say(f"a line of {parts} is stored as the result of {row['id']}")

    def _check_counts(self) -> None:
        for row in self.rows(
            "SELECT u.id, u.request_count, (SELECT count(*) FROM requests r WHERE r.run_id = u.id)"
            " AS stored FROM runs u"
        ):
            if row["stored"] != row["request_count"]:
                self._say(f"{row['id']} counts {row['request_count']}, and has {row['stored']}")

    def _check_budget(self) -> None:
        """What the API may bill is accounted for, and no more than is allowed."""
        if not self.budget:
            return
        billed, allowed = self._billed(), self.allowed()
        if billed > allowed:
            self._say(f"{billed} nano-dollars were spent, of {allowed} allowed")
        [(unasked, accounted)] = self.rows(
            "SELECT (SELECT count(*) FROM batch_runs m JOIN batches b ON b.id = m.batch_id "
            "WHERE b.state != 'rejected' AND (m.batch_id, m.run_id) NOT IN "
            "(SELECT batch_id, run_id FROM charges)), "
            "(SELECT coalesce(sum(reserved + spent + doubt), 0) FROM charges "
            f"WHERE batch_id NOT IN ({self._unsent}))"
        )
        if unasked:
            return  # of batches that were sent before the budget; they are counted when it packs
        if accounted > allowed:
            self._say(f"{accounted} nano-dollars are reserved or spent, of {allowed} allowed")
        if billed > accounted:
            self._say(f"the API billed {billed}, and {accounted} are accounted for")

    @property
    def _unsent(self) -> str:
        """The batches that a budget which was lowered may not allow any more."""
        return "SELECT id FROM batches WHERE state = 'packed'" if self.is_lowered else "0"

    def sent_cost(self) -> int | None:
        """What may have been billed by now, or be billed yet, in nano-dollars; None if unknown."""
        [(unasked, sent)] = self.rows(
            "SELECT (SELECT count(*) FROM batch_runs m JOIN batches b ON b.id = m.batch_id "
            "WHERE b.state != 'rejected' AND (m.batch_id, m.run_id) NOT IN "
            "(SELECT batch_id, run_id FROM charges)), "
            "(SELECT coalesce(sum(reserved + spent + doubt), 0) FROM charges "
            "WHERE batch_id NOT IN (SELECT id FROM batches WHERE state = 'packed'))"
        )
        return None if unasked else int(sent)

    def allowed(self) -> int:
        """What may be spent, in nano-dollars."""
        return self.budget

    def _billed(self) -> int:
        """What the API has billed, in nano-dollars."""
        return COST * sum(
            outcome == "succeeded"
            for remote in self._api.remotes
            if remote.ours
            for outcome in remote.outcomes.values()
        )

    def _truths(self, request: str) -> set[str]:
        """How a request ended at the API, in all of its sendings."""
        return {
            remote.outcomes.get(identifier, "nothing")
            for remote in self.sendings[request].values()
            for identifier in remote.ids
            if identifier.startswith(request)
        }

    # In the end ----------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether nothing is left to be done."""
        left = self.rows(
            "SELECT 1 FROM requests r JOIN runs u ON u.id = r.run_id WHERE u.stored IS NOT NULL "
            "AND r.state IN ('queued', 'packed', 'held') UNION SELECT 1 FROM batches WHERE state "
            "IN ('packed', 'submitting', 'in_progress', 'canceling', 'ended', 'unknown')"
        )
        return not left

    def describe(self) -> str:
        """What the ledger and the API hold, for people."""
        tables = {
            "runs": "id, kind, mode, live, deadline, past_margin, deadline_closed, cancelled",
            "requests": "id, state, batch_id, sendings, attempts, due, cancelled, finished",
            "batches": "id, state, remote_id, request_count, posts, adopted, unknown_since, "
            "settling_from, settled, next_check, not_found_since, fetches, counts, note",
            "candidates": "batch_id, remote_id, state, not_found_since, fetches, note",
            "results": "request_seq, sending, batch_id, outcome, disposition",
            "former_members": "*",
            "batch_runs": "*",
            "charges": "*",
            "budgets": "*",
            "workspaces": "halt_reason, halt_message, next_probe, wait_until",
        }
        found = [
            f"{table}: {dict(zip(row.keys(), row, strict=True))}"
            for table, columns in tables.items()
            for row in self.rows(f"SELECT {columns} FROM {table} ORDER BY 1")
        ]
        return "\n".join([*found, *map(str, self._api.remotes)])

    def conclude(self) -> None:
        """Raise `Violation` where the end of a history is not what it must be."""
        self._check_costs()
        for row in self.rows(
            "SELECT r.id, r.state, r.run_id, "
            "r.cancelled OR u.cancelled IS NOT NULL AS cancelled, EXISTS "
            # One that was sent again on order may have failed before its first answer came, which
            # then is kept for `retry`.
            "(SELECT 1 FROM results s WHERE s.request_seq = r.seq AND s.outcome = 'succeeded' AND "
            f"{OF_THIS_TURN} AND "
            "(s.request_seq, s.sending) NOT IN (SELECT request_seq, sending FROM former_members)) "
            "AS answered FROM requests r JOIN runs u ON u.id = r.run_id WHERE u.stored IS NOT NULL"
        ):
            request, state = row["id"], row["state"]
            is_kept = state in _KEPT or row["cancelled"] or self._may_waste(request, state)
            if row["answered"] and not is_kept:
                self._say(f"{request} ended {state}, although a success of it is stored")
            truths = self._truths(request)
            if state == "succeeded" and "succeeded" not in truths:
                self._say(f"{request} succeeded in the ledger, at the API it is {truths}")
            cancelled = row["cancelled"] or row["run_id"] in self.cancelled_runs
            if state == "canceled" and not cancelled and "canceled" not in truths:
                self._say(f"{request} ended canceled, and nobody cancelled it")
            if state == "expired" and "expired" not in truths and not self.may_expire(request):
                self._say(f"{request} ended expired, at the API it is {truths}")
            if (
                state == "errored"
                and not self._is_blamed(request)
                and not truths & {"invalid", "overloaded", "credit"}
            ):
                self._say(f"{request} ended errored, at the API it is {truths}")
        if self._api.violations:
            raise Violation("; ".join(self._api.violations))

    def _may_waste(self, request: str, state: str) -> bool:
        """Whether a request may end in this state although a success of it is stored."""
        return False

    def _is_blamed(self, request: str) -> bool:
        """Whether an upload with a request was refused, or broke."""
        return any(identifier.startswith(request) for identifier in self._api.blamed)

    def _was_answered(self, request: str, number: int, at: float) -> bool:
        """Whether another sending of a request had ended, so that nothing waited for this one."""
        others = (other for sent, other in self.sendings[request].items() if sent != number)
        return any(other.status == "ended" and other.ended <= at for other in others)

    def _taken_for(self, request: str, number: int, remote: Remote) -> list[Remote]:
        """Return the strangers' batches that were taken for the sending's.

        That happens only where the user had declared that there are no strangers.
        """
        rows = self.rows(
            "SELECT b.remote_id FROM former_members m JOIN batches b ON b.id = m.batch_id "
            "JOIN requests r ON r.seq = m.request_seq WHERE r.id = ? AND m.sending = ? "
            "AND b.adopted = 'assumed' AND b.remote_id != ?",
            request,
            number,
            remote.id,
        )
        taken = {row["remote_id"] for row in rows}
        return [other for other in self._api.remotes if other.id in taken]

    def _check_costs(self) -> None:
        stored = {
            (row["id"], row["sending"]): row["outcome"]
            for row in self.rows(
                "SELECT r.id, s.sending, s.outcome FROM results s "
                "JOIN requests r ON r.seq = s.request_seq"
            )
        }
        paid: dict[str, int] = defaultdict(int)
        for request, sent in self.sendings.items():
            if request in self.removed:
                continue
            for number, remote in sent.items():
                [identifier] = [i for i in remote.ids if i.startswith(request)]
                outcome = remote.outcomes.get(identifier)
                paid[request] += outcome == "succeeded"
                if remote.deleted or remote.archived:
                    continue
                seldom = len(remote.omitted[identifier]) < COMPLETE_FETCHES
                if not seldom and (
                    outcome != "succeeded"
                    or (request, number) in self.ordered
                    or self._has_waited(remote.omitted[identifier])
                    or self._was_answered(request, number, remote.omitted[identifier][-1])
                ):
                    continue
                if (request, number) in stored:
                    continue
                strangers = self._taken_for(request, number, remote)
                gone = any(other.deleted or other.archived for other in strangers)
                # Else something has shown the mistake.
                if not gone and (outcome == "succeeded" or not strangers):
                    self._say(f"the line of {identifier}, {outcome}, is not stored")
