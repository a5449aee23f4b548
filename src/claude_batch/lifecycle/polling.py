"""Polling: the API's list of batches, when to check a batch again, and what a check changes."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.states import BatchState
from claude_batch.ledger import collected_batches, unknown_batches, workspaces
from claude_batch.ledger.collected_batches import Check, Gap
from claude_batch.ledger.store import Leader, Record
from claude_batch.lifecycle.driver_context import DriverPart
from claude_batch.wire.batches_client import ApiError, BatchesClient, RemoteBatch, Unreachable
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.limits import RESULTS_KEPT_DAYS, SHORTEST_LIST_PAGE
from claude_batch.wire.messages import UnreadableLine, decode_line
from claude_batch.wire.retry_policy import next_check

_log = logging.getLogger(__name__)

# Proof of ownership -------------------------------------------------------------------------------

FOREIGN_LINES = 1000
"""Number of foreign results after which a batch counts as foreign without further reading.

After twice as many lines it is read no further either."""

CLOCKS_APART = 60.0
"""Seconds by which two clocks may differ. The API's is known to a second at best."""


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield lists of whole lines, without their ends; the last line needs no newline."""
    pending: list[bytes] = []
    async for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            pending.append(chunk)
            continue
        pending.append(head)
        lines = [line for line in b"".join(pending).split(b"\n") if line.strip()]
        pending = [tail] if tail else []
        if lines:
            yield lines
    rest = b"".join(pending)
    if rest.strip():
        yield [rest]


class Proof(msgspec.Struct, frozen=True):
    """Evidence from an ended batch's results: its owner, or why it is not known yet."""

    owner: int | None = None
    """Id of the ledger's batch whose sending it is."""
    foreign: bool = False
    missing: bool = False
    """Whether the API answered with 404."""
    fetched: bool = False
    """Whether the results were read to their end without evidence."""
    note: str | None = None

    @classmethod
    def failed(cls, error: ApiError | Unreachable) -> Proof:
        """Return what an error of the API, or on the way to it, shows."""
        is_missing = isinstance(error, ApiError) and error.fault.status == 404
        return cls(missing=is_missing, note=str(error))


# Batch list ---------------------------------------------------------------------------------------


MOST_PAGES = 1000
"""Most pages of one walk: a million batches. A longer list is treated as endless."""


class Listing(msgspec.Struct, frozen=True):
    """A completed walk of the list."""

    batches: dict[str, RemoteBatch]
    """Batches by id, newest first; includes some that are older than requested."""
    server_time: float
    """Server's time when the newest page was read."""
    workspace: str | None
    """Name of the workspace that answered, if the API reports it."""
    unreadable: Sequence[RemoteBatch] = ()
    """Entries that do not match the API's documentation, with the id and the age if they have one.
    """

    @property
    def ids(self) -> list[str]:
        """Ids of all batches seen, also of those that are otherwise unreadable."""
        return [*self.batches, *(entry.id for entry in self.unreadable if entry.id)]

    def may_follow(self, snapshot: Collection[str], not_before: float) -> bool:
        """Return whether this can be the list that had these batches at some time.

        It shows one of them. If there was none, it shows none that is older than ``not_before``,
        which allows for batches that were listed late.
        """
        if snapshot:
            return not set(self.ids).isdisjoint(snapshot)
        made = (batch.created for batch in self.batches.values())
        return not any(created is not None and created < not_before - 1 for created in made)

    def newest_of(self, ids: Collection[str]) -> float | None:
        """Return when the newest of these batches was created; `None` if none has a date."""
        shown = (*self.batches.values(), *self.unreadable)
        found = (batch.created for batch in shown if batch.id in ids)
        return max((created for created in found if created is not None), default=None)

    @property
    def is_behind(self) -> bool:
        """Whether the server's time is not that of the API, which has made batches since."""
        newest = self.newest_of(self.batches)
        return newest is not None and newest > self.server_time + CLOCKS_APART


async def walk(
    client: BatchesClient,
    *,
    since: float | None = None,
    lookback: float = 0.0,
    until: Sequence[Collection[str]] = (),
) -> Listing:
    """Read the list from the newest batch back to batches created before ``since``.

    ``since`` is server time; without it, the walk goes back ``lookback`` seconds from now. It also
    goes on until it has seen a batch of each collection of ids in ``until``, because a gateway may
    write the time of its own clock into its answers; if one is empty, to the end. A list that is
    not in this order is read to its end, too. A server without pages repeats its list; that is the
    end if it is shorter than any page. Raises `ApiError` or `Unreachable`, because an incomplete
    walk is no evidence.
    """
    seen: dict[str, RemoteBatch] = {}
    unreadable: list[RemoteBatch] = []
    ids: set[str] = set()
    is_ordered, last = True, math.inf
    page = await client.list_page()
    here: list[str] = []
    server_time = client.server_now()
    bound = server_time - lookback if since is None else since
    for _ in range(MOST_PAGES):
        before, former = len(ids), here
        here = [batch.id for batch in (*page.data, *page.unreadable)]
        ids.update(here)
        seen |= {batch.id: batch for batch in page.data}
        unreadable += page.unreadable
        dated = [created for batch in page.data if (created := batch.created) is not None]
        # A proxy may list in another order than the API. Then any page may have a new batch.
        is_ordered = is_ordered and all(b <= a + CLOCKS_APART for a, b in pairwise([last, *dated]))
        last = dated[-1] if dated else last
        reached = is_ordered and bool(dated) and min(dated) < bound
        reached = reached and not any(ids.isdisjoint(wanted) for wanted in until)
        if reached or page.has_more is False:
            return Listing(seen, server_time, client.workspace, unreadable)
        if len(ids) == before or page.last_id is None:
            # A server that ignores `after_id` probably ignores `limit`, too.
            is_short = len(here) < SHORTEST_LIST_PAGE
            if page.has_more is None and here and here == former and is_short:
                return Listing(seen, server_time, client.workspace, unreadable)
            break
        page = await client.list_page(after_id=page.last_id)
    raise Unreachable("the list of batches repeats itself, or does not end")


# Checks -------------------------------------------------------------------------------------------


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


def lasted(there: float, here: float) -> float:
    """Return the seconds since something, by the API's clock and by ours, that both clocks prove.

    One ``Date`` of the API may be wrong. If ``here`` is negative, our clock was set back since, and
    proves nothing.
    """
    return there if here < 0 else min(there, here)


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
    planned = None if seen is None else seen + interval
    return missing_since(since, planned, now=now, server_now=now, after=after)


_NO_EVIDENCE = (
    "the list of batches does not prove that it is gone, so its results are waited for as long as "
    f"the API keeps them, {RESULTS_KEPT_DAYS} days"
)


class Evidence(DriverPart):
    """A part that concludes from the API's answers whose a batch is, and whether it is gone."""

    async def prove(self, remote_id: str, requests: int, *, assumed: int | None = None) -> Proof:
        """Read the results of an ended batch until a ``custom_id`` names its unknown sending.

        A line of another client proves less, and so does one of another batch of the ledger: one
        that strayed into our results must not make us pay for them again. So a batch is foreign
        only if it has a foreign result for each of its ``requests``, or very many, and none of an
        unknown sending, or of the batch that it is ``assumed`` to be. Nothing is stored, because
        the lines may belong to somebody else.
        """
        note = "its results hold no readable custom_id"
        foreign: set[int] = set()  # hashes, because a server may send ids of any length
        count = 0
        try:
            async with self._client.results(remote_id) as chunks:
                async for lines in split_lines(chunks):
                    for raw in lines:
                        count += 1
                        if count > 2 * FOREIGN_LINES:
                            return Proof(note=f"most of {2 * FOREIGN_LINES} results are unreadable")
                        try:
                            line = decode_line(raw)
                        except UnreadableLine:
                            continue
                        proof = self._owner(line.custom_id, assumed)
                        if proof.owner is not None:
                            return proof
                        note = proof.note or note
                        foreign.add(hash(line.custom_id))
                        if len(foreign) >= FOREIGN_LINES:
                            return proof
        except (ApiError, Unreachable) as error:
            return Proof.failed(error)
        is_foreign = len(foreign) >= requests
        if foreign and not is_foreign:
            note = f"{len(foreign)} of its {requests} results are there, and none of them is ours"
        return Proof(foreign=is_foreign, fetched=True, note=note)

    def _owner(self, identifier: str, assumed: int | None) -> Proof:
        parts = parse_custom_id(identifier)
        if parts is None or parts[1] not in self._ledger.incarnations:
            return Proof(foreign=True, note="its results belong to another client")
        with self._ledger.read() as tx:
            owner = unknown_batches.owner_of(tx, parts[0], parts[2])
            if owner is None:
                return Proof(foreign=True, note="its results belong to a sending that was given up")
            if owner != assumed and not unknown_batches.is_unknown(tx, owner):
                return Proof(foreign=True, note=f"it is the ledger's batch {owner}")
        return Proof(owner=owner)

    def is_list_of(self, workspace_id: int, workspace: str | None) -> bool | None:
        """Return whether the list of the named ``workspace`` is that of ours; `None` if unnamed.

        A list without a name may be another workspace's, if the key of a gateway was changed. Only
        the batches in it can show that it is ours.
        """
        with self._ledger.read() as tx:
            name: str | None = workspaces.workspace_row(tx, workspace_id).name
        if name is None or workspace is None:
            return None
        if name != workspace:
            _log.warning("the list is of the workspace %s, not of %s", workspace, name)
        return name == workspace

    def gap_of(self, row: Any, missing: int, interval: float) -> Gap:
        """Return what the completed fetch of a batch or candidate lacked, given by its row."""
        now, after = self._client.server_now(), self._settings.missing_after
        since = gap_since(
            row.missing_since, row.missing_seen, now=now, after=after, interval=interval
        )
        return Gap(missing=missing, since=since, seen=now, until=since + after)

    def absence(
        self, since: float | None, planned: float | None, *, sent: float | None
    ) -> tuple[float, bool]:
        """Return `missing_since` for a check that was just answered, and whether it is believed.

        ``sent`` is when the batch was sent, by our clock.
        """
        now, there = self._ledger.now(), self._client.server_now()
        after = self._settings.not_found_after
        begun = missing_since(since, planned, now=now, server_now=there, after=after)
        return begun, lasted(there - begun, now - (sent or 0.0)) >= after

    def absence_of(self, row: Any) -> tuple[float, bool]:
        """Return `absence` for a submitted batch, given by its row, that was answered with 404."""
        return self.absence(row.not_found_since, row.next_check, sent=row.submitted)

    async def look_for(self, leader: Leader, row: Any) -> RemoteBatch | bool:
        """Return a batch whose results answer 404; if none is shown, whether it is gone."""
        try:
            return await self._client.retrieve(row.remote_id)
        except ApiError as error:
            return error.fault.status == 404 and await self.from_list(leader, row)
        except Unreachable:
            return False

    async def from_list(self, leader: Leader, row: Any) -> RemoteBatch | bool:
        """Return a batch that answers 404 from the list; if it lacks it, whether it is gone."""
        shows_others = False
        try:
            listing = await walk(self._client, until=[{row.remote_id}])
        except (ApiError, Unreachable) as error:
            _log.info("the list of batches cannot be read: %s", error)
        else:
            if row.remote_id in listing.batches:
                return listing.batches[row.remote_id]
            shows_others = self._shows_others(leader, row, listing)
        return shows_others or self.is_past_keeping(row)

    def _shows_others(self, leader: Leader, row: Any, listing: Listing) -> bool:
        """Return whether a list that lacks a batch is of its workspace, and can be believed."""
        here = leader.workspace_id
        # An unreadable entry may be the batch in question.
        if not listing.batches or listing.unreadable:
            return False
        is_ours = self.is_list_of(here, listing.workspace)
        if is_ours is not None:
            return is_ours
        # What was sent later may be in another workspace, if the key of a gateway was changed.
        with self._ledger.read() as tx:
            return bool(
                unknown_batches.known_remote_ids(
                    tx, here, listing.ids, before=row.submitted or math.inf
                )
            )

    def is_past_keeping(self, row: Any) -> bool:
        """Return whether the API keeps the results of a batch no longer; log it if so."""
        now = self._ledger.now()
        # Recovered batches have no ``server_time``.
        made = row.server_time or row.submitted or now
        age = lasted(self._client.server_now() - made, now - (row.submitted or 0.0))
        if age < RESULTS_KEPT_DAYS * 86400:
            return False
        _log.error(
            "batch %s: its results were not fetched within the %d days that the API keeps them",
            row.remote_id,
            RESULTS_KEPT_DAYS,
        )
        return True


class Polling(Evidence):
    """The checks and cancellations of one workspace's batches."""

    async def check_due(self, leader: Leader, now: float) -> list[Record]:
        """Check every batch that is due; return those that the API did not show."""
        with self._ledger.read() as tx:
            # Asked first, because many passes only collect, and the list costs a call.
            if not collected_batches.any_check_due(tx, leader.workspace_id, now):
                return []
            waiting = collected_batches.at_the_api(tx, leader.workspace_id)
        due = [row for row in waiting if is_due(row.next_check, row.max_poll_interval, now)]
        seen: dict[str, RemoteBatch] = {}
        if len(waiting) >= MANY:
            # The list also contains the batches that are not due yet, at the same price.
            seen = await self._list(waiting)
        self._note(leader, [(row, seen[row.remote_id]) for row in waiting if row.remote_id in seen])
        unseen: list[Record] = []
        for row in due:
            if row.remote_id in seen:
                continue
            # Absence from a list proves nothing, so retrieve the batch itself.
            remote = await self._retrieve(leader, row)
            if remote is not None:
                self._note(leader, [(row, remote)])
            else:
                unseen.append(row)
        return unseen

    async def _list(self, waiting: Sequence[Any]) -> dict[str, RemoteBatch]:
        """Return the batches that the list shows, at least down to the oldest of these.

        The walk ends early if a page repeats others, or is older than all of these batches.
        """
        wanted = {row.remote_id for row in waiting}
        oldest = min(row.server_time or row.submitted or 0.0 for row in waiting) - CLOCKS_APART
        seen: dict[str, RemoteBatch] = {}
        after: str | None = None
        try:
            for _ in range(MOST_PAGES):
                page = await self._client.list_page(after_id=after)
                before = len(seen)
                seen |= {batch.id: batch for batch in page.data}
                is_past = all((batch.created or math.inf) < oldest for batch in page.data)
                ended = page.has_more is False or page.last_id is None or len(seen) == before
                if ended or is_past or wanted <= seen.keys():
                    break
                after = page.last_id
        except (ApiError, Unreachable) as error:
            _log.info("the list of batches cannot be read: %s", error)
        return seen

    async def _retrieve(self, leader: Leader, row: Any) -> RemoteBatch | None:
        note: str
        missing: float | None = row.not_found_since
        try:
            return await self._client.retrieve(row.remote_id)
        except ApiError as error:
            note = str(error)
            if error.fault.status == 404:
                # A 404 occurs right after create and after the end; only a day of them is final.
                missing, is_believed = self.absence_of(row)
                found = is_believed and await self.from_list(leader, row)
                if isinstance(found, RemoteBatch):
                    return found
                if found:
                    with self._ledger.write(leader) as tx:
                        unknown_batches.take_earlier_answers(tx, row.id)
                        now = self._ledger.now()
                        lost = collected_batches.mark_lost(tx, row.id, note=note, now=now)
                    self._reporter.collected([(row, lost)])
                    return None
                if is_believed:
                    note += f"; {_NO_EVIDENCE}"
        except Unreachable as error:
            note = str(error)
        self._check_later(leader, row, note, not_found_since=missing)
        return None

    def _check_later(
        self, leader: Leader, row: Any, note: str, *, not_found_since: float | None = None
    ) -> None:
        """Leave a batch in its state until its next check, with the reason as its note."""
        now = self._ledger.now()
        wait = self._wait(row, now)
        check = Check(row.id, BatchState(row.state), now + wait, not_found_since, note)
        with self._ledger.write(leader) as tx:
            collected_batches.note_checks(tx, [check])

    def _note(self, leader: Leader, answers: Sequence[tuple[Any, RemoteBatch]]) -> None:
        """Record the API's answers about batches, given by their rows, in one transaction."""
        if not answers:
            return
        now = self._ledger.now()
        reach(CrashPoint.AFTER_CHECK_BEFORE_RECORD)
        ends: list[tuple[int, str | None, float]] = []
        going: list[Check] = []
        for row, remote in answers:
            if remote.processing_status == "ended":
                counts = msgspec.json.encode(remote.counts).decode()
                ends.append((row.id, counts if remote.counts.total else None, remote.ended or now))
                continue
            is_canceling = remote.processing_status == "canceling"
            state = BatchState.CANCELING if is_canceling else BatchState.IN_PROGRESS
            wait = row.poll_interval if is_canceling else self._wait(row, now)
            going.append(Check(row.id, state, now + wait))
        with self._ledger.write(leader) as tx:
            collected_batches.note_checks(tx, going)
            collected_batches.mark_ended(tx, ends)
            if ends:
                # An ended batch frees room in the API's queue, for which a sending may wait.
                workspaces.wait_until(tx, leader.workspace_id, None, None)
        for row, remote in answers:
            # What this program cancels is recorded before the API is asked to.
            is_ours = row.cancel_requested is not None or row.state == BatchState.CANCELING
            if remote.is_canceled and not is_ours:
                self._reporter.canceled(row)
        for row, remote in answers:
            if remote.processing_status == "ended":
                self._reporter.ended(row, remote, remote.ended or now)

    def _wait(self, row: Any, now: float) -> float:
        if row.cancel_requested is not None:
            # It ends soon, and a caller may wait for the outcome.
            return row.poll_interval
        return next_check(age_of(row.submitted, now), row.poll_interval, row.max_poll_interval)

    async def cancel_requested(self, leader: Leader) -> None:
        """Cancel at the API what the user has cancelled.

        A batch whose cancellation the API refuses, or does not show, is cancelled again at its next
        check.
        """
        with self._ledger.read() as tx:
            rows = collected_batches.to_cancel(tx, leader.workspace_id, self._ledger.now())
        for row in rows:
            try:
                remote = await self._client.cancel(row.remote_id)
            except (ApiError, Unreachable) as error:
                _log.info("batch %s cannot be cancelled: %s", row.remote_id, error)
                # Perhaps because it has ended, or is gone.
                remote = await self._retrieve(leader, row)
                if remote is None:
                    continue
                if remote.processing_status != "ended":
                    self._check_later(leader, row, str(error))
                    continue
            else:
                reach(CrashPoint.AFTER_CANCEL_BEFORE_RECORD)
                if remote.processing_status != "ended":
                    remote = msgspec.structs.replace(remote, processing_status="canceling")
            self._note(leader, [(row, remote)])
