"""Recovery on order: batches that a restored ledger has forgotten, and missing results.

The ledger's high-water mark counts POSTs that the ledger does not remember. Their batches are at
the API. Batches that the ledger lacks, and whose results have its incarnation, are adopted. While
one of them is processing or unreadable, nothing is sent, because it may hold the answers to
requests that wait here.

Fetching the results of a run's batches again costs nothing and needs no leader lock. Lines are
stored idempotently, and one transaction fills each batch from the states at that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from claude_batch.core.errors import ActorConfigurationError, LedgerError
from claude_batch.core.outcome import Disposition
from claude_batch.core.quantities import count_of, format_duration
from claude_batch.core.settings import LedgerSettings, naming_ledger, on_server
from claude_batch.core.states import BatchState
from claude_batch.ledger import (
    batch_contents,
    charges,
    collected_batches,
    conversations,
    live_calls,
    queries,
    recovered_batches,
    stored_results,
    submissions,
    unknown_batches,
    workspaces,
)
from claude_batch.ledger.high_water import (
    HighWater,
    Mark,
    behind_noted,
    count_post,
    is_known,
    note_behind,
    posts_of,
)
from claude_batch.ledger.recovered_batches import Line
from claude_batch.ledger.store import Deposed, Leader, Ledger, ServerChanged, Transaction
from claude_batch.lifecycle.api_sessions import contact_faults
from claude_batch.lifecycle.budget_room import warn_after
from claude_batch.lifecycle.collection import (
    Collection,
    counts_of,
    judge_results,
    result_row_of,
)
from claude_batch.lifecycle.contact import workspace_of
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.polling import (
    CLOCKS_APART,
    FOREIGN_LINES,
    Evidence,
    Listing,
    Polling,
    lasted,
    split_lines,
    walk,
)
from claude_batch.money.prices import Prices
from claude_batch.wire.batches_client import ApiError, BatchesClient, RemoteBatch, Unreachable
from claude_batch.wire.conversation import possible_calls
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.messages import ResultLine, UnreadableLine, decode_line, message_of_line
from claude_batch.wire.retry_policy import READING, SENDING

# Recovery -----------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

FETCH_TRIES = 3
"""How often the results of a batch are fetched, one failure after the other."""

_ALL_DUE = 366 * 86400.0
"""Seconds after which everything that waits is due."""


class Recovered(msgspec.Struct):
    """The result of a recovery, and whether the ledger may send again."""

    done: bool = False
    adopted: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Number of known requests by the API's id, for batches that belong to the ledger again."""
    strangers: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Number of unknown requests by the API's id, for batches with answers to such requests."""
    open: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Reason by the API's id, for batches that cannot be judged yet."""
    unlisted: str = ""
    """Why the API's list may hide a batch of the ledger; empty if it does not."""
    lost: int = 0
    """Number of requests that may have been called live since the restored state.

    No list of the API shows live calls. So these requests are lost, and are sent again only on
    explicit order."""
    wait: float = 0.0
    """Seconds until a batch of the last sending must have appeared in the list."""
    elsewhere: list[str] = msgspec.field(default_factory=list[str])
    """Base URLs of workspaces that another key must recover."""
    was_whole: bool = False
    """Whether there was nothing to recover, so that nothing was changed."""


def is_whole(ledger: Ledger) -> bool:
    """Return whether the ledger has each sending that its mark counts, and none more.

    A missing mark proves nothing, nor does a lower one: another machine may have sent since.
    """
    mark = HighWater(ledger).read()
    with ledger.read() as tx:
        return _has_all(ledger, tx, mark) and not queries.behind(tx)


def _has_all(ledger: Ledger, tx: Transaction, mark: Mark | None) -> bool:
    return (
        mark is not None
        and mark.incarnation in ledger.incarnations
        and mark.posts == posts_of(tx)
        and not ledger.is_elsewhere(tx)
    )


async def recover(
    ledger: Ledger,
    client: BatchesClient,
    settings: LedgerSettings,
    *,
    force: bool = False,
    even_if_whole: bool = False,
) -> Recovered:
    """Find what the ledger has forgotten in this key's workspace.

    ``force`` lets the ledger send again even if something could not be judged, which may then be
    billed twice, adopts batches of which the API does not send or count all results, and sends what
    had waited for a refused key with this one. A workspace that was recovered before those of other
    keys is left alone, unless ``even_if_whole``. Raises `LedgerError` if a process drives the
    ledger, `AccountHaltedError` if the key is refused, and `EngineStoppedError` if the API cannot
    be reached. Earlier findings stay stored.
    """
    with contact_faults(client, _NOT_RECOVERED, _AGAIN):
        await client.list_page(limit=1)
        with ledger.write() as tx:
            here = workspace_of(tx, ledger, client)
        mark = HighWater(ledger).read()
        with ledger.read() as tx:
            ids = queries.workspace_ids(tx)
            is_recovered = workspaces.workspace_row(tx, here).behind is None
            if is_recovered and not even_if_whole and _has_all(ledger, tx, mark):
                return Recovered(done=True, elsewhere=queries.behind(tx))
        with ledger.every_leader_lock(ids, "recovery must be alone with the ledger"):
            try:
                context = DriverContext(ledger, client, settings)
                context.workspace_id = here
                return await _Recovery(context, is_copy=even_if_whole).run(force)
            except ServerChanged:
                raise LedgerError(
                    f"another server has the ledger {ledger.location} now, and may have forgotten "
                    "what was found. Repeat `claude-batch ledger recover`",
                    fault="busy",
                ) from None
            except Deposed:
                raise LedgerError(
                    f"another process has taken over the ledger {ledger.location}, because this "
                    f"one did not answer for too long. End it first. {_AGAIN}",
                    fault="busy",
                ) from None


_ASKING = (Disposition.PAUSED, Disposition.TOOLS)
_NOT_RECOVERED = "The ledger was not recovered; nothing is sent"
_AGAIN = "What was found is kept; repeat `claude-batch ledger recover`"


class _Recovery(Evidence):
    def __init__(self, context: DriverContext, *, is_copy: bool) -> None:
        """Begin a recovery, or continue one; ``is_copy`` if the mark may have been restored too."""
        super().__init__(context)
        self._is_copy = is_copy
        self._leader, self._behind, self._begins = self._begin()
        self._polling = Polling(context)
        self._collection = Collection(context)
        self.found = Recovered()
        self._foreign: list[RemoteBatch] = []
        """Batches whose results have no line of the ledger."""

    def _begin(self) -> tuple[Leader, float, bool]:
        """Begin the recovery, or continue one.

        The workspace gets a new epoch. If another copy of the ledger may have the same incarnation
        and mark, this one gets new ones. Returns the leader, when the recovery of the workspace
        began by the API's clock, and whether it began just now.
        """
        mark = self._high_water.read()
        with self._ledger.write() as tx:
            is_known_to_be_behind = bool(queries.behind(tx))
            moved = self._ledger.has_moved(tx)
            at = self._client.server_now()
            is_counted = is_known(mark, self._ledger.incarnations, posts_of(tx))
            # Without a mark, a copy of a file that was already behind may have been restored. A
            # server shows that by itself, and its next process may have no mark.
            anew = moved or (mark is None and not on_server(self._ledger.location))
            is_first = anew or not is_known_to_be_behind or not is_counted
            if is_first or self._is_copy:
                # This ends with a new mark, which no longer shows what the other workspaces have
                # forgotten. Those that are not behind after that were recovered before this one.
                # A copy that was made within another recovery has some that are not behind.
                note_behind(tx, at, anew=anew)
            # A mark that does not show what was forgotten may be as old as a copy, or new.
            is_doubted = self._is_copy or (is_first and is_counted)
            is_older = mark is not None and mark.incarnation not in self._ledger.incarnations
            if mark is not None:
                # A backup from before a recovery lacks the incarnation that the recovery gave.
                self._ledger.add_incarnation(tx, mark.incarnation)
            if is_doubted or is_older:
                # Other copies have this incarnation, too. One with as many POSTs as a mark of this
                # recovery counts would not be found to be behind.
                self._ledger.renew_incarnation(tx)
            posts = posts_of(tx)
            behind = recovered_batches.begin(tx, self.workspace_id, at)
            leader = Leader(self.workspace_id, submissions.begin_epoch(tx, self.workspace_id))
            live_calls.interrupted(tx, self.workspace_id)
            # If one was accepted, it is found below like all forgotten batches.
            submissions.settle_interrupted(
                tx, self.workspace_id, now=self._ledger.now(), note="the ledger was restored"
            )
        self._ledger.reopen()
        if is_doubted:
            self._high_water.renew(posts, at)
        elif is_counted:
            self._high_water.raise_to(posts, at=at)
        return leader, behind, behind == at

    async def run(self, force: bool) -> Recovered:
        mark = self._high_water.read()
        await self._collect_known()
        with self._ledger.read() as tx:
            last = recovered_batches.last_sending(tx, self.workspace_id)
        since = 0.0 if last is None else last.server_time - self._settings.lookback
        listed = None if last is None else last.listed
        latest, passed = self._latest_sending(mark)
        listing = await walk(self._client, since=since, until=[] if listed is None else [listed])
        # Earlier versions recorded the sending by this machine's clock.
        until = math.inf if listing.is_behind else latest + self._settings.settling + CLOCKS_APART
        if listed is not None:
            # If the server's time is ahead of the API's, all that was forgotten is older than that.
            # If the list had no batch then, all batches are newer. If all that it had were deleted
            # since, nothing but the server's time is left.
            newest = listing.newest_of(listed) if listed else 0.0
            since = since if newest is None else min(since, newest)
        with self._ledger.read() as tx:
            known = unknown_batches.known_remote_ids(tx, self.workspace_id, listing.ids)
        self.found.unlisted = self._unlisted(listing, known, last)
        # The oldest first: a later batch holds what an earlier one did not answer.
        forgotten = sorted(
            (
                batch
                for batch in listing.batches.values()
                if batch.id not in known and (batch.created or since) >= since
            ),
            key=lambda batch: batch.created or 0.0,
        )
        later = [batch for batch in forgotten if (batch.created or since) > until]
        has_sent_again = await self._any_is_ours(later)
        # On order, the ledger may have sent until now, and the list need not show it yet.
        if has_sent_again or (self._is_copy and not self._begins):
            self._begin_anew(everywhere=has_sent_again)
            later, passed = [], 0.0
        self.found.wait = max(0.0, self._settings.settling - passed)
        known_incarnations = self._ledger.incarnations
        for batch in forgotten[: len(forgotten) - len(later)]:
            await self._examine(batch, force)
        if self._ledger.incarnations != known_incarnations:
            # A batch that was sent after another recovery is recognised only now.
            foreign, self._foreign = self._foreign, []
            for batch in foreign:
                await self._examine(batch, force)
        if force or not (self.found.open or self.found.wait or self.found.unlisted):
            self._finish(force)
        with self._ledger.read() as tx:
            self.found.elsewhere = queries.behind(tx)
        return self.found

    async def _any_is_ours(self, later: list[RemoteBatch]) -> bool:
        """Return whether one of the batches that this recovery need not know is the ledger's.

        A copy from within the recovery was then restored together with its mark, after the ledger
        had sent again. A batch in progress cannot be distinguished from another client's.
        """
        for remote in later:
            if remote.processing_status == "ended":
                with contextlib.suppress(ApiError, Unreachable):
                    lines: dict[str, Line] = {}
                    await self._read_lines(remote, lines)
                    if lines:
                        return True
        return False

    def _begin_anew(self, *, everywhere: bool) -> None:
        """Expect sendings until now, in every workspace, or in those that are not recovered yet."""
        mark = self._high_water.read()
        at = self._client.server_now()
        with self._ledger.write(self._leader) as tx:
            if everywhere:
                note_behind(tx, at, anew=True)
            else:
                recovered_batches.begin_again(tx, at)
            is_counted = is_known(mark, self._ledger.incarnations, posts_of(tx))
            posts = count_post(tx) if is_counted else 0
        if is_counted:
            self._high_water.raise_to(posts, at=at)

    def _latest_sending(self, mark: Mark | None) -> tuple[float, float]:
        """Return when the last forgotten batch was sent at the latest, and the seconds since then.

        The time is the API's; the seconds are what both clocks prove, or ours alone if the time is
        in the API's future: its ``Date`` was wrong then, or is wrong now.

        If the mark of a SQLite ledger counts more than the ledger, it has that time. Otherwise
        another machine, or a process whose mark was replaced, may have sent until the ledger was
        found to be behind. The same holds if the mark's time is in the future, because the ``Date``
        was wrong then.
        """
        with self._ledger.read() as tx:
            is_counted = is_known(mark, self._ledger.incarnations, posts_of(tx))
            latest, noted = self._behind, behind_noted(tx)
        sent = latest
        now = self._client.server_now()
        if mark is not None and not is_counted and not on_server(self._ledger.location):
            at = mark.written + self._client.clock_offset if mark.at is None else mark.at
            latest = max(latest, at)
            if at <= now + CLOCKS_APART:
                sent, noted = at, mark.written
        there, here = now - sent, self._ledger.now() - noted
        passed = here if there < 0 and noted else lasted(there, here)
        if sent != self._behind or not self._begins:
            passed += 1.0  # the Date header has whole seconds, so two processes differ by one
        return latest, max(0.0, passed)

    def _unlisted(
        self, listing: Listing, known: set[str], last: recovered_batches.LastSending | None
    ) -> str:
        """Return why a list is no evidence; empty if it is."""
        if listing.unreadable:
            count = count_of(len(listing.unreadable), "entry", "entries")
            return f"{count} of the API's list of batches cannot be read, and may be this ledger's"
        is_ours = self.is_list_of(self.workspace_id, listing.workspace)
        if is_ours is False:
            return "the API answered with the list of another workspace"
        if is_ours or known or last is None:
            return ""
        not_before = last.server_time - self._settings.lookback
        if last.listed is None or not listing.may_follow(last.listed, not_before):
            force = naming_ledger("`claude-batch ledger recover --force`", self._ledger.location)
            return (
                "the API's list shows none of the batches that it had at the last sending. It may "
                "be another workspace's: look at the key that the server uses. If they were "
                f"deleted: {force}"
            )
        return ""

    async def _collect_known(self) -> None:
        # All of them, even if not due: their answers must come before those of later sendings.
        unseen = await self._polling.check_due(self._leader, self._ledger.now() + _ALL_DUE)
        with self._ledger.read() as tx:
            for row in unseen:
                # It may have ended since, and a tool may have run for an answer of it.
                if recovered_batches.may_go_on(tx, row.id):
                    self.found.open[row.remote_id] = (
                        "the API does not show it, and it may have been answered"
                    )
            now = self._ledger.now() + _ALL_DUE
            ended = collected_batches.ended_batches(tx, self.workspace_id, now)
        for batch_id in ended:
            await self._collect(batch_id)

    async def _collect(self, batch_id: int) -> None:
        with self._ledger.read() as tx:
            row = batch_contents.batch(tx, batch_id)
        await self._collection.collect(self._leader, row)
        with self._ledger.read() as tx:
            row = batch_contents.batch(tx, batch_id)
        if row.state == BatchState.COLLECTED:
            return
        why = f"its results are not complete: {row.note}"
        if row.not_found_since is not None:
            why = self._absent_words()
        self.found.open[row.remote_id] = why

    def _absent_words(self) -> str:
        """Describe why a batch that the API does not find is waited for, and for how long."""
        after = self._settings.not_found_after
        force = naming_ledger("`claude-batch ledger recover --force`", self._ledger.location)
        return (
            "the API answers 404, as it does for a batch that was deleted there. It counts as lost "
            f"after {format_duration(after)} of such answers, if the recovery is repeated at least "
            f"every {format_duration(after / 2)} until then. If everything else is known, {force} "
            "lets the ledger send now; the requests of this batch are not sent again by that"
        )

    async def _examine(self, remote: RemoteBatch, force: bool) -> None:
        """Adopt a batch that may have been forgotten, or note why it is not known yet."""
        if remote.processing_status != "ended":
            self.found.open[remote.id] = "it is still processing"
            return
        counts = remote.counts
        try:
            lines, others = await self._fetch(remote, FETCH_TRIES if force else 1)
        except (ApiError, Unreachable) as error:
            self.found.open[remote.id] = f"its results cannot be read: {error}"
            return
        if others and not lines:
            self._foreign.append(remote)
            return
        missing = counts.finished - len(lines)
        hidden = counts.succeeded - sum(line.succeeded for line in lines.values())
        why, rest = "", "a request without one is sent again, and may be paid for twice, or is lost"
        if not counts.finished or counts.processing > 0:
            why = "the API does not count its results, so some may be missing"
        elif missing > 0 or not lines:
            why = f"the API does not send {missing} of its results"
        elif hidden > 0:
            why = f"the API does not send {hidden} of its successes"
            rest = "a request that failed there may have been paid for, and is not sent again"
        if why and not (force and lines):
            if lines:
                go = naming_ledger("`claude-batch ledger recover --force`", self._ledger.location)
                why += (
                    f". If it never does, as behind some gateways, {go} adopts the "
                    f"{count_of(len(lines), 'result')} that it sends; {rest}"
                )
            self.found.open[remote.id] = why
            return
        if hidden > max(missing, 0):
            # A line of failure hides an answer, from which a conversation may have gone on.
            lines = {
                key: line if line.succeeded else line._replace(asks=True)
                for key, line in lines.items()
            }
        reason = "" if force else self._waits_for(lines)
        if reason:
            self.found.open[remote.id] = reason
            return
        await self._adopt(remote, lines)

    def _waits_for(self, lines: Mapping[str, Line]) -> str:
        """Return why a batch cannot be adopted before another one is known; empty if it can."""
        with self._ledger.read() as tx:
            earlier = recovered_batches.earlier_sendings(tx, lines)
        if earlier.batches:
            names = ", ".join(earlier.batches)
            return f"its requests were sent before in {names}, which cannot be read yet"
        if earlier.is_doubtful and (self.found.open or self.found.wait or self.found.unlisted):
            return "a batch before it, which is not known yet, may hold earlier turns"
        return ""

    async def _fetch(self, remote: RemoteBatch, tries: int) -> tuple[dict[str, Line], int]:
        """Return the lines of a batch's results that are the ledger's, by request id.

        Also returns the number of other lines in the last fetch. The results are fetched until they
        are complete, at most ``tries`` times, because a proxy may cut each fetch short elsewhere.
        Raises `ApiError` or `Unreachable` if the last fetch fails, unless ``tries`` allows several
        and one of them had a line.
        """
        counts, found, others = remote.counts, dict[str, Line](), 0
        for left in reversed(range(tries)):
            try:
                others = await self._read_lines(remote, found)
            except (ApiError, Unreachable):
                if not left and (tries == 1 or not found):
                    raise
                continue
            answered = sum(line.succeeded for line in found.values())
            is_counted = counts.finished > 0 and not counts.processing
            is_whole = len(found) >= counts.finished and answered >= counts.succeeded
            if (is_counted and is_whole) or (others and not found):
                break
        return found, others

    async def _read_lines(self, remote: RemoteBatch, found: dict[str, Line]) -> int:
        """Add the lines of a batch's results that are the ledger's, by request id.

        Returns the number of its other lines. A success outranks a line that contradicts it. If the
        stream breaks, the lines before that are added.
        """
        others = 0
        at = remote.ended or self._ledger.now()
        async with self._client.results(remote.id) as chunks:
            async for lines in split_lines(chunks):
                for raw in lines:
                    try:
                        line = decode_line(raw)
                    except UnreadableLine:
                        continue
                    parts = parse_custom_id(line.custom_id)
                    if parts is None or not self._recognise(parts[0], parts[1]):
                        # A single line may have strayed into our batch, but not so many.
                        others += 1
                        if not found and others >= FOREIGN_LINES:
                            return others
                    elif parts[0] not in found or not found[parts[0]].succeeded:
                        found[parts[0]] = self._line(line, parts[2], at)
        return others

    def _line(self, line: ResultLine, sending: int, at: float) -> Line:
        row = result_row_of(line, b"", 0, 0, 0, self._prices, batch=True, at=at)
        asks = None if line.outcome != "succeeded" else line.disposition in _ASKING
        return Line(sending, line.outcome, row.cost, asks)

    def _recognise(self, request_id: str, incarnation: str) -> bool:
        """Return whether a line is of this ledger; learn its incarnation from another recovery."""
        if incarnation in self._ledger.incarnations:
            return True
        with self._ledger.read() as tx:
            if not recovered_batches.has_request(tx, request_id):
                return False
        with self._ledger.write(self._leader) as tx:
            self._ledger.add_incarnation(tx, incarnation)
        self._ledger.reopen()
        return True

    async def _adopt(self, remote: RemoteBatch, lines: Mapping[str, Line]) -> None:
        now = self._ledger.now()
        created, ended = remote.created or now, remote.ended or now
        counts: dict[str, int] = msgspec.to_builtins(remote.counts)
        with self._ledger.write(self._leader) as tx:
            owner = recovered_batches.unknown_owner(tx, lines)
            if owner is not None:
                # The ledger remembers the sending, only not its answer.
                unknown_batches.adopt(
                    tx, owner, remote.id, how="proved", submitted=created, now=now
                )
                collected_batches.mark_ended(tx, [(owner, json.dumps(counts), ended)])
                claim = recovered_batches.Claim(owner, len(lines))
            else:
                claim = recovered_batches.adopt_forgotten(
                    tx,
                    self.workspace_id,
                    remote.id,
                    lines,
                    counts=counts,
                    created=created,
                    ended=ended,
                )
        strangers = len(lines) - (0 if claim is None else claim.known)
        if strangers:
            self.found.strangers[remote.id] = strangers
        if claim is None:
            return
        self.found.adopted[remote.id] = claim.known
        _log.info("batch %s had been forgotten: %d requests", remote.id, claim.known)
        await self._collect(claim.batch_id)

    def _note_forgotten_calls(self) -> None:
        """Let no tool run again that may have run after the restored copy was made."""
        after, now = (0, 0), self._ledger.now()
        while True:
            with self._ledger.write(self._leader) as tx:
                page = recovered_batches.answers_with_tools(tx, self.workspace_id, after=after)
                for row in page:
                    for use_id, name in possible_calls(message_of_line(row.raw)).items():
                        conversations.note_forgotten_call(
                            tx, row.seq, row.sending, use_id, name=name, now=now
                        )
            if not page:
                return
            after = page[-1].seq, page[-1].sending

    def _finish(self, force: bool) -> None:
        self._note_forgotten_calls()
        mark = self._high_water.read()
        with self._ledger.write(self._leader) as tx:
            # No mark counts all live calls: those of other machines are in other marks.
            if not force:
                self.found.lost = live_calls.forgotten(tx, self.workspace_id, self._ledger.now())
            else:
                workspaces.adopt_refused(tx, self.workspace_id, even_if_behind=True)
            conversations.forget_doubts(tx, self.workspace_id)
            posts = recovered_batches.end(tx, self.workspace_id, mark)
            if workspaces.workspace_row(tx, self.workspace_id).halt_reason == "ledger_behind":
                workspaces.clear_halt(tx, self.workspace_id)
            self._ledger.renew_incarnation(tx)
        self._ledger.reopen()
        self._high_water.renew(posts, self._client.server_now())
        self.found.done = True


# Missing results ----------------------------------------------------------------------------------

_KEPT = "What was found until then is kept, and nothing was sent"


class Refetched(msgspec.Struct):
    """The outcome of fetching the results of a run's batches again."""

    found: int = 0
    """Number of the run's missing results that are stored now."""
    missing: int = 0
    """Number of the run's requests whose result is still missing."""
    batches: list[int] = msgspec.field(default_factory=list[int])
    """The ledger's ids of batches whose results were read to their end."""
    refused: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Reason by the API's id, for batches whose results it refuses, or sends none of."""


async def refetch(
    ledger: Ledger,
    client: BatchesClient,
    settings: LedgerSettings,
    run_id: str,
    prices: Prices | None = None,
) -> Refetched:
    """Fetch every batch again that lacks results of a run, and store what arrives.

    A lost request gets its real outcome, and its cost is counted; requests of other runs in the
    same batches likewise. Raises `ActorConfigurationError` if the run was asked at another base
    URL, `AccountHaltedError` if the key is refused, and `EngineStoppedError` if the API cannot be
    reached. Earlier results stay stored.
    """
    with ledger.read() as tx:
        there = workspaces.workspace_row(tx, queries.run_row(tx, run_id).workspace_id).base_url
        rows = unknown_batches.incomplete_batches(tx, run_id)
        before = unknown_batches.missing_sendings(tx, run_id)
    if there != client.base_url:
        raise ActorConfigurationError(
            f"{run_id} was sent to {there}, but this key is for {client.base_url}; name the "
            "run's server with --base-url. Nothing was fetched"
        )
    collection = Collection(DriverContext(ledger, client, settings, prices=prices))
    again = f"{_KEPT}; try again later"
    done = Refetched()
    for row in rows:
        try:
            with contact_faults(client, _KEPT, again):
                refusal = await _fetch(ledger, collection, row)
        finally:
            # An earlier fetch may have stored results before one failed.
            _fill(ledger, row.id)
        if refusal is None:
            done.batches.append(row.id)
            continue
        done.refused[row.remote_id] = refusal
        _log.warning("batch %s: its results cannot be fetched: %s", row.remote_id, refusal)
    with ledger.read() as tx:
        done.missing = unknown_batches.missing_requests(tx, run_id)
        done.found = max(0, before - unknown_batches.missing_sendings(tx, run_id))
    return done


async def _fetch(ledger: Ledger, collection: Collection, row: Any) -> str | None:
    """Fetch the results of a batch; return why they cannot be had, if the answer is definite.

    A fetch that lacks what may be billed is repeated, because a proxy may have cut it short.
    """
    for failures in range(1, FETCH_TRIES + 1):
        asked = None
        try:
            lines = await collection.fetch(ledger.write, row)
            with ledger.read() as tx:
                stored = stored_results.stored_counts(tx, row.id)
                lacking = collected_batches.without_result(tx, row.id)
            counts = counts_of(row)
            lacking = max(lacking, stored.lacks(counts.succeeded, row.request_count))
            if lacking <= 0 or not judge_results(row, stored, counts).missing_may_be_billed:
                return None
            if failures == FETCH_TRIES:
                return None if lines else "the answer holds no result of the batch"
        except ApiError as error:
            fault, asked = error.fault, error.fault.retry_after
            if fault.from_api and not fault.passes and fault.account_reason is None:
                return str(error)
            if fault.account_reason is not None or failures == FETCH_TRIES:
                raise
        except Unreachable:
            if failures == FETCH_TRIES:
                raise
        await asyncio.sleep(SENDING(failures) if asked is None else READING(failures, asked))
    raise AssertionError("unreachable")


def _fill(ledger: Ledger, batch_id: int) -> None:
    """Assign the stored results of a batch to its requests."""
    now = ledger.now()
    with ledger.write() as tx:
        row = batch_contents.batch(tx, batch_id)
        if row.state == BatchState.ENDED:
            # The driver judges this batch; its successes are certain, also of earlier sendings.
            collected_batches.give_successes(tx, batch_id)
            collected_batches.fetch_soon(tx, batch_id, now)
            return
        stored = stored_results.stored_counts(tx, batch_id)
        if not stored.total:
            return  # the counts alone may be those of somebody else's batch
        # A batch that disappeared before its end has no counts.
        proved = judge_results(row, stored, counts_of(row))
        unknown_batches.fill(tx, batch_id, contradicted=proved.contradicted)
        charges.settle(
            tx,
            batch_id,
            lost=proved.missing_may_be_billed,
            contradicted=proved.contradicted,
            left=True,
        )
        warnings = warn_after(tx, [batch_id], now)
    for words in warnings:
        _log.warning("%s", words, extra={"for_people": True})
