"""Submission: list, intend, send with the tail held back, and judge the answer or refusal.

A POST without its last two bytes cannot have been accepted. So every failure before they are sent
is a definite no. A batch can become *unknown* only between ``armed`` and an understood answer, and
an unknown batch is never sent again automatically.

If the API rejects a batch and names a request, that request fails alone. If it names none, the
batch is split in two. A half that is accepted proves that the account and the connection work, so
the fault is in the other half. If both halves are refused alike, the requests are not at fault, and
sending halts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, TypeVar

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import InvalidRequestError, LedgerError
from claude_batch.core.states import BatchState
from claude_batch.ledger import (
    batch_contents,
    queries,
    run_deadlines,
    submissions,
    unknown_batches,
    workspaces,
)
from claude_batch.ledger.charges import any_budget
from claude_batch.ledger.high_water import count_post, note_behind
from claude_batch.ledger.store import Deposed, Leader, Record, Transaction
from claude_batch.lifecycle.budget_room import Reservations, withdraw_over_budget
from claude_batch.lifecycle.driver_context import DriverContext, DriverPart
from claude_batch.lifecycle.polling import Listing, walk
from claude_batch.lifecycle.threads import in_a_thread
from claude_batch.wire.batches_client import ApiError, RemoteBatch, Unreachable
from claude_batch.wire.encoding import (
    BODY_END,
    BODY_START,
    LaneHeaders,
    body_items,
    body_length,
    custom_id,
)
from claude_batch.wire.error_table import ApiFault, SendVerdict
from claude_batch.wire.messages import errored_line
from claude_batch.wire.retry_policy import SENDING, STORING, next_check

# Repeated writes ----------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def until_stored(write: Callable[[], _T], words: str) -> _T:
    """Repeat a write of the ledger until it succeeds, and return its result.

    For answers that exist only in this process: they are paid for, so it keeps trying while it
    lives. The caller sends nothing else meanwhile. ``words`` begin the message about each failure.
    Raises `LedgerError` if this process can never write again, because another one has migrated or
    recovered the ledger. The next driver then looks for the answer at the API.
    """
    failures = 0
    while True:
        try:
            return write()
        except LedgerError as error:
            failures += 1
            _log.error("%s: %s", words, error, extra={"for_people": True})
            if error.fault == "version":
                raise
            await asyncio.sleep(STORING(failures))


# Refusals -----------------------------------------------------------------------------------------

_NAMED_REQUEST = re.compile(r"requests\.([0-9]{1,6})\b")
"""A longer number names no request of a batch, and may exceed what a database can count."""

FAILED_TOGETHER = 1_000
"""Most requests of a refused batch that fail in one transaction."""


class _Refusal(NamedTuple):
    """Why a batch was refused, as its row has it in JSON."""

    error_type: str | None
    message: str
    request_id: str | None = None


class Refusals(DriverPart):
    """The judge of one workspace's refused batches."""

    def too_large(self, tx: Transaction, row: Any, note: str) -> None:
        """Split a batch in two; a single request that is too large fails."""
        if batch_contents.split(tx, row.id, self._ledger.now()) is None:
            self._fail(tx, row, _Refusal("request_too_large", note))
            self.put_off_probe(tx, row.workspace_id)

    def put_off_probe(self, tx: Transaction, workspace_id: int) -> None:
        """Let the next probe of a halted workspace wait, because this sending may have been one.

        Its end neither lifts the halt nor confirms it. Otherwise the next probe would be due at
        once, and each of them may fail a request.
        """
        workspaces.put_off_probe(
            tx, workspace_id, now=self._ledger.now(), interval=self._settings.probe_interval
        )

    def customer(self, tx: Transaction, row: Any, fault: ApiFault) -> None:
        """Fail the first requests of a batch whose user profile, which all have, is refused."""
        self.fail_next(tx, row, fault)
        self.put_off_probe(tx, row.workspace_id)

    def fail_next(self, tx: Transaction, row: Any, fault: ApiFault) -> bool:
        """Fail some more requests of such a batch; False if it has none."""
        refusal = _Refusal(fault.error_type or "billing_error", fault.message, fault.request_id)
        return self._fail(tx, row, refusal, most=FAILED_TOGETHER)

    def bad_request(self, tx: Transaction, row: Any, fault: ApiFault) -> None:
        """Handle a 400: fail the request that it names, or split the batch to find it."""
        refusal = _Refusal(fault.error_type, fault.message, fault.request_id)
        named = _NAMED_REQUEST.search(fault.message)
        if named and self._fail(tx, row, refusal, int(named[1])):
            self.put_off_probe(tx, row.workspace_id)
            return
        halted = workspaces.workspace_row(tx, row.workspace_id).halted is not None
        batch_contents.note_refusal(tx, row.id, json.dumps(refusal))
        other = batch_contents.other_half(tx, row.id)
        alike = (
            other is not None
            and other.state == BatchState.PACKED
            and other.refusal is not None
            and _Refusal(*json.loads(other.refusal))[:2] == refusal[:2]
        )
        if halted or alike:
            # A probe or the second half was refused like all before.
            self.halt(tx, row.workspace_id, fault)
        elif other is None:
            self._part(tx, batch_contents.batch(tx, row.id))

    def go_on(self, leader: Leader) -> bool:
        """Split refused halves whose other half has been judged; return whether there was one."""
        with self._ledger.read() as tx:
            found = batch_contents.refused_halves(tx, leader.workspace_id)
        # A half that still waits for its first sending is no evidence yet.
        judged = [
            row
            for row in found
            if row.other_state != BatchState.PACKED or row.other_refusal is not None
        ]
        if not judged:
            return False
        with self._ledger.write(leader) as tx:
            for row in judged:
                self._part(tx, batch_contents.batch(tx, row.id))
        return True

    def _part(self, tx: Transaction, row: Any) -> None:
        if batch_contents.split(tx, row.id, self._ledger.now()) is None:
            self._fail(tx, row, _Refusal(*json.loads(row.refusal)))

    def _fail(
        self, tx: Transaction, row: Any, refusal: _Refusal, index: int = 0, *, most: int = 1
    ) -> bool:
        """End requests from a 0-based position of a batch on as errored, at most ``most``.

        False if there are none.
        """
        found = submissions.members(tx, row.id, index, most)
        if not found:
            return False
        # The row may have been read before the POST was counted.
        posts = batch_contents.batch(tx, row.id).posts
        error_type = refusal.error_type or "invalid_request_error"
        lines: dict[int, bytes] = {}
        for request in found:
            sent = request.sendings + posts
            identifier = custom_id(request.id, self._ledger.incarnation, sent)
            lines[request.seq] = errored_line(
                identifier, error_type, refusal.message, refusal.request_id
            )
        now = self._ledger.now()
        submissions.fail_packed(tx, row.id, lines, error_type=error_type, now=now)
        return True


# Submission ---------------------------------------------------------------------------------------

CHUNK_BYTES = 1 << 16
"""Bytes that are sent at once; so few that a write timeout means a stalled connection."""

ANSWER_SECONDS = 10.0
"""Seconds that a stopping driver waits for the answer to a POST whose last bytes are sent.

After this time the sending is unknown, and the next driver finds its outcome in the list. That
costs time (`settling`) but no money. The API answers large batches within seconds."""

BROKEN_UPLOADS_ARE_413 = 3
"""Number of broken uploads in a row that count as a 413.

A proxy's early 413 response can look like a broken upload."""


class KeyRefused(Exception):
    """The API refuses this driver's credential; sending is halted in the ledger."""

    def __init__(self, *, for_batch: bool) -> None:
        """``for_batch``: it refused a batch, after it had accepted the list call."""
        super().__init__()
        self.for_batch = for_batch


class _NotArmed(Exception):
    """The upload was aborted before its last bytes were sent."""


def _is_halted(halt: Record, row: Any, now: float) -> bool:
    """Return whether sending was halted during the listing, from the workspace's row.

    A single request may still be sent as a probe.
    """
    if halt.halted is None:
        return False
    return row.request_count > 1 or workspaces.halt_stands(halt, now)


class Submission(DriverPart):
    """The sender of one workspace's packed batches, one at a time."""

    def __init__(self, context: DriverContext) -> None:
        """Set up the sender, which gives up a POST if the driver is to end."""
        super().__init__(context)
        self._failures = 0
        self._armed = False
        self._probed: float | None = None
        """When the halt began that the batch under way probes; None if there was no halt."""
        self.refusals: Refusals = Refusals(context)
        self.under_way: bool = False
        """Whether an intent is on disk whose outcome is not on disk yet."""
        self._answer_deadline: asyncio.Timeout | None = None

    def give_up_soon(self) -> None:
        """Limit the wait for the answer to a POST in progress to `ANSWER_SECONDS`.

        An answer that has arrived is still recorded.
        """
        if self._answer_deadline is not None:
            self._answer_deadline.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)

    async def send(self, leader: Leader, batch_id: int) -> None:
        """Send one batch once, and record the outcome. Raises `KeyRefused`."""
        try:
            await self._send(leader, batch_id)
        finally:
            self.under_way = False

    async def _send(self, leader: Leader, batch_id: int) -> None:
        try:
            listing = await walk(self._client, lookback=self._settings.lookback)
        except (ApiError, Unreachable) as error:
            # Without the snapshot, an unknown sending could not be distinguished from others.
            self._failed_look(leader, error)
            return
        if self._settings.exclusive_workspace and self._is_unexplained(leader, listing):
            return
        await self._count_for_batch(leader, batch_id)
        now = self._ledger.now()
        reach(CrashPoint.BEFORE_INTENT)
        with self._ledger.write(leader) as tx:
            unknown_batches.take_earlier_answers(tx, batch_id)
            if not batch_contents.withdraw_cancelled(tx, batch_id):
                return
            if run_deadlines.is_over(tx, batch_id, now):
                return  # the next pass withdraws it
            allowed = withdraw_over_budget(tx, batch_id, now)
            row = batch_contents.batch(tx, batch_id)
            if not allowed:
                if row.request_count:
                    # It is counted by the next attempt, unless that fails again.
                    self._wait(tx, leader, "what was sent before its budget is not counted yet")
                return
            halt = workspaces.workspace_row(tx, leader.workspace_id)
            if not row.request_count or _is_halted(halt, row, now):
                return
            self._probed = halt.halted
            posts = submissions.intend(
                tx,
                batch_id,
                snapshot=listing.ids,
                server_time=listing.server_time,
                now=now,
            )
        reach(CrashPoint.AFTER_INTENT)
        self._armed = False
        self.under_way = True
        try:
            answer = await self._post(leader, row, posts)
        except _NotArmed as reason:
            self._not_sent(leader, batch_id, str(reason))
            return
        except LedgerError as error:
            # The tail is not sent, so nothing was accepted. This is recorded if the disk allows it;
            # otherwise the next driver concludes it from the missing ``armed``.
            with contextlib.suppress(LedgerError), self._ledger.write(leader) as tx:
                submissions.mark_definite_no(tx, batch_id, note=str(error))
            raise
        except InvalidRequestError as error:
            with self._ledger.write(leader) as tx:
                submissions.mark_definite_no(tx, batch_id, note=str(error))
                self.stop_sending(tx, leader.workspace_id, str(error))
            return
        reach(CrashPoint.AFTER_POST_BEFORE_RECORD)
        if isinstance(answer, RemoteBatch):
            if not self._armed:
                answer = Unreachable("the server answered before it had the whole batch")
            elif self._is_anothers(leader, answer.id, listing):
                words = f"the server answered with batch {answer.id}, which was there before"
                answer = Unreachable(words)
        try:
            await self._record(leader, row, answer)
        except Deposed:
            if isinstance(answer, RemoteBatch):
                self._note_candidate(batch_id, posts, answer.id)
            raise
        reach(CrashPoint.AFTER_RECORD)

    async def _count_for_batch(self, leader: Leader, batch_id: int) -> None:
        """Count what was sent before the budgets of a batch's runs existed."""
        with self._ledger.read() as tx:
            rows = queries.runs_of_batch(tx, batch_id) if any_budget(tx) else []
        if rows:
            runs, now = [(run.id, run.actor) for run in rows], self._ledger.now()
            reservations = Reservations(self._ledger, self._prices, now, leader)
            await in_a_thread(reservations.count_for_runs, runs)

    async def _post(
        self, leader: Leader, row: Any, posts: int
    ) -> RemoteBatch | ApiError | Unreachable:
        length = body_length(row.request_count, row.params_bytes)
        headers = LaneHeaders.of_lane(row.api_version, row.betas, row.user_profile)
        try:
            async with asyncio.timeout(None) as self._answer_deadline:
                body = self._body(leader, row.id, posts)
                return await self._client.create(body, length, headers)
        except (ApiError, Unreachable) as error:
            return error
        except TimeoutError:
            return Unreachable("the process was closed before the answer was there")
        finally:
            self._answer_deadline = None

    def _is_unexplained(self, leader: Leader, listing: Listing) -> bool:
        """Halt if an exclusive workspace has a batch of unknown origin; return whether it has.

        The ledger has not made such a batch, nor can an unknown sending have made it.
        """
        workspace_id = leader.workspace_id
        newest = listing.newest_of(listing.batches) or 0.0
        # A batch that another client has just made may not be listed yet. One clock may be ahead.
        newest = max(newest, min(listing.server_time, self._ledger.now()))
        with self._ledger.write(leader) as tx:
            since = unknown_batches.ensure_explained_until(tx, workspace_id, newest)
            known = unknown_batches.known_remote_ids(tx, workspace_id, listing.ids)
            waiting = unknown_batches.unknown_batches(tx, workspace_id)
            counts = {row.request_count for row in waiting}
            for remote in listing.batches.values():
                created = remote.created
                if remote.id in known or created is None or created <= since:
                    continue
                total = remote.counts.total
                if waiting and (total == 0 or total in counts):
                    continue
                self.stop_sending(
                    tx,
                    workspace_id,
                    f"the workspace is set as exclusive, but batch {remote.id} was not created by "
                    "this ledger; find the client that created it, then run `claude-batch resume`",
                    reason="unexplained",
                )
                return True
        return False

    def _is_anothers(self, leader: Leader, remote_id: str, listing: Listing) -> bool:
        """Return whether an answer's id is that of another client's batch, listed before the POST.

        A gateway that repeats its answers may have accepted ours under another id.
        """
        if remote_id not in listing.ids:
            return False
        with self._ledger.read() as tx:
            return not unknown_batches.known_remote_ids(tx, leader.workspace_id, [remote_id])

    async def _body(self, leader: Leader, batch_id: int, posts: int) -> AsyncIterator[bytes]:
        incarnation = self._ledger.incarnation
        buffer = bytearray(BODY_START)
        first = True
        for page in submissions.body_pages(self._ledger, batch_id):
            if self._stopping():
                raise _NotArmed("stopped before the batch was sent; it is still in the ledger")
            items = (
                (custom_id(request_id, incarnation, earlier + posts), body)
                for request_id, earlier, body in page
            )
            for piece in body_items(items, first=first):
                buffer += piece
                while len(buffer) > CHUNK_BYTES:  # keep some bytes for the tail
                    yield bytes(buffer[:CHUNK_BYTES])
                    del buffer[:CHUNK_BYTES]
            first = False
            reach(CrashPoint.DURING_UPLOAD)
        yield bytes(buffer)
        reach(CrashPoint.BEFORE_ARMED)
        before, armed = time.monotonic(), self._ledger.now()
        with self._ledger.write(leader) as tx:
            if unknown_batches.has_earlier_answers(tx, batch_id):
                # These results arrived during the upload: the rest is sent without them.
                raise _NotArmed("an earlier sending has been answered meanwhile")
            submissions.mark_armed(tx, batch_id, posts, armed)
            number = count_post(tx)
        reach(CrashPoint.BEFORE_HIGH_WATER)
        at = self._client.server_now()
        if not self._high_water.raise_to(number, sending=True, at=at):
            with self._ledger.write(leader) as tx:
                note_behind(tx, at)
                self.stop_behind(tx, leader.workspace_id)
            raise _NotArmed("another copy of this ledger has sent meanwhile")
        reach(CrashPoint.AFTER_ARMED)
        if self._stopping():
            raise _NotArmed("stopped before the batch was sent; it is still in the ledger")
        # Measured from before the commit, because the flush to disk is part of the window. By both
        # clocks: one stands still while the machine sleeps, and the other one may be set back.
        took = max(time.monotonic() - before, self._ledger.now() - armed)
        if took > self._settings.arm_window:
            raise _NotArmed(
                f"recording the sending took longer than {self._settings.arm_window:g} s, because "
                "the disk is slow or the machine slept"
            )
        self._armed = True
        yield BODY_END

    async def _record(
        self, leader: Leader, row: Any, answer: RemoteBatch | ApiError | Unreachable
    ) -> None:
        if isinstance(answer, RemoteBatch):
            self._failures = 0
            if await self._note_accepted(leader, row, answer.id):
                self._reporter.submitted(row, answer.id)
            else:
                self._unresolved(leader, row, answer.id)
        elif isinstance(answer, ApiError):
            self._refused(leader, row, answer.fault)
            if answer.fault.verdict is SendVerdict.CUSTOMER:
                await self._fail_rest(leader, row, answer.fault)
        elif self._armed:
            self._unknown(leader, row, answer.reason)
        else:
            self._broken(leader, row, answer)

    async def _note_accepted(self, leader: Leader, row: Any, remote_id: str) -> bool:
        """Store the API's id; return False if the ledger can never take it."""
        now, probed = self._ledger.now(), self._probed
        first = next_check(0.0, row.poll_interval, row.max_poll_interval)

        def note() -> bool:
            try:
                with self._ledger.write(leader) as tx:
                    if not submissions.mark_submitted(
                        tx, row.id, remote_id, now=now, next_check=now + first
                    ):
                        return False
                    workspaces.wait_until(tx, leader.workspace_id, None, None)
                    # The batch that probed a halted account was accepted.
                    self.lift_halt(tx, leader.workspace_id, probed=probed)
                return True
            except LedgerError as error:
                if error.fault == "conflict":
                    return False
                raise

        return await until_stored(note, f"the id of batch {remote_id} cannot be stored yet")

    def _note_candidate(self, batch_id: int, posts: int, remote_id: str) -> None:
        """Store the API's id of an accepted batch as a candidate, for the next driver.

        It alone may decide, and looks at a candidate also if the API's list does not show it yet.
        """
        with contextlib.suppress(LedgerError), self._ledger.write() as tx:
            if unknown_batches.may_be_answered(tx, batch_id, posts):
                unknown_batches.add_candidate(tx, batch_id, remote_id, self._ledger.now())

    def _not_sent(self, leader: Leader, batch_id: int, reason: str) -> None:
        """Record an upload that this process aborted; it is no evidence on the API or the size."""
        with self._ledger.write(leader) as tx:
            submissions.mark_definite_no(tx, batch_id, note=reason)
            self._wait(tx, leader, reason)

    def _broken(self, leader: Leader, row: Any, error: Unreachable) -> None:
        # Without a connection nothing was uploaded, so this is not a broken upload either.
        broke = not error.never_connected and not self._stopping()
        with self._ledger.write(leader) as tx:
            broken = submissions.mark_definite_no(
                tx, row.id, note=error.reason, broken_upload=broke
            )
            if broken >= BROKEN_UPLOADS_ARE_413:
                self.refusals.too_large(tx, row, "the upload broke three times in a row")
            else:
                self._wait(tx, leader, error.reason)

    def _refused(self, leader: Leader, row: Any, fault: ApiFault) -> None:
        verdict = fault.verdict
        note = fault.describe()
        if verdict is SendVerdict.UNKNOWN and self._armed:
            self._unknown(leader, row, note)
            return
        with self._ledger.write(leader) as tx:
            submissions.mark_definite_no(tx, row.id, note=note)
            if verdict is SendVerdict.TOO_LARGE:
                self.refusals.too_large(tx, row, note)
            elif verdict is SendVerdict.BAD_REQUEST:
                self.refusals.bad_request(tx, row, fault)
            elif verdict is SendVerdict.CUSTOMER:
                self.refusals.customer(tx, row, fault)
            elif verdict in (SendVerdict.WAIT, SendVerdict.UNKNOWN):
                self._wait(tx, leader, note, fault.retry_after)
            else:
                self.halt(tx, leader.workspace_id, fault)
        if fault.account_reason == "credentials":
            raise KeyRefused(for_batch=True)

    async def _fail_rest(self, leader: Leader, row: Any, fault: ApiFault) -> None:
        """Fail what is left of a batch whose customer is refused, some requests a transaction.

        If this process ends before, the next sending is refused alike, and fails the rest.
        """
        more = True
        while more and not self._stopping():
            reach(CrashPoint.BETWEEN_REFUSED)
            await asyncio.sleep(0)
            with self._ledger.write(leader) as tx:
                more = self.refusals.fail_next(tx, row, fault)

    def _unknown(self, leader: Leader, row: Any, note: str) -> None:
        with self._ledger.write(leader) as tx:
            submissions.mark_unknown(tx, row.id, note=note, now=self._ledger.now())
            self.refusals.put_off_probe(tx, leader.workspace_id)
        self._reporter.unknown(row, note)

    def _unresolved(self, leader: Leader, row: Any, remote_id: str) -> None:
        """Give up a batch that the server accepted under the id of another batch.

        Nothing can be learned of it. The list too shows one batch of that id, and would seem to
        prove that this sending was not accepted.
        """
        note = (
            f"the server answered with the id {remote_id}, which another batch of this workspace "
            "has: a gateway in front of the API repeats its answers, or the server is not the API"
        )
        self._reporter.unknown(row, note)
        with self._ledger.write(leader) as tx:
            unknown_batches.unresolve(tx, row.id, note=note)
            self.stop_sending(tx, leader.workspace_id, note)

    def _failed_look(self, leader: Leader, error: ApiError | Unreachable) -> None:
        if isinstance(error, ApiError) and error.fault.account_reason is not None:
            with self._ledger.write(leader) as tx:
                self.halt(tx, leader.workspace_id, error.fault)
            if error.fault.account_reason == "credentials":
                raise KeyRefused(for_batch=False) from error
            return
        asked = error.fault.retry_after if isinstance(error, ApiError) else None
        with self._ledger.write(leader) as tx:
            self._wait(tx, leader, str(error), asked)

    def _wait(
        self, tx: Transaction, leader: Leader, reason: str, asked: float | None = None
    ) -> None:
        """Let the next sending wait: for ``asked`` seconds, and longer after each failure."""
        self._failures += 1
        until = self._ledger.now() + SENDING(self._failures, asked or None)
        workspaces.wait_until(tx, leader.workspace_id, until, reason)
        self.refusals.put_off_probe(tx, leader.workspace_id)
