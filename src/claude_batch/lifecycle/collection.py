"""Collection: stream the results, store them as they arrive, and judge them when complete."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias, cast

import msgspec

from claude_batch.core.answer_parts import Usage
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import LedgerError
from claude_batch.core.outcome import Disposition
from claude_batch.core.user_functions import Classification, RequestFault
from claude_batch.ledger import (
    batch_contents,
    collected_batches,
    stored_results,
    unknown_batches,
)
from claude_batch.ledger.backends.backend import FetchClaim
from claude_batch.ledger.collected_batches import Complete, Gap
from claude_batch.ledger.store import Deposed, Leader, Transaction
from claude_batch.ledger.stored_results import Members, NewResult, Stored
from claude_batch.ledger.transitions import any_former
from claude_batch.lifecycle.budget_room import warn_after
from claude_batch.lifecycle.driver_context import DriverContext
from claude_batch.lifecycle.polling import (
    MANY,
    Evidence,
    split_lines,
)
from claude_batch.money.prices import Prices
from claude_batch.money.rates import FREE, UNPRICED
from claude_batch.wire.batches_client import ApiError, RemoteBatch, RequestCounts, Unreachable
from claude_batch.wire.encoding import parse_custom_id
from claude_batch.wire.error_table import ApiFault, account_reason
from claude_batch.wire.messages import LineError, ResultLine, UnreadableLine, decode_line
from claude_batch.wire.retry_policy import SENDING, next_check

_log = logging.getLogger(__name__)

_NO_USAGE = Usage()
_request_of = attrgetter("request_seq")

CHUNK_LINES = 4000
CHUNK_BYTES = 3 << 20
"""Most lines, and most bytes, that are stored in one transaction; more bytes would save little."""

LINES_PER_REQUEST = 2
SPARE_LINES = 1000
"""A results stream with more lines than these allow is treated as endless.

The limit is every result twice, and some spare lines."""

SMALL_REQUESTS = 100
SMALL_BYTES = 1 << 20
"""Most requests of a batch that is collected together with others, and most bytes of its results.
"""

FETCHES_AT_ONCE = 8
TOGETHER = 64
TOGETHER_SECONDS = 0.05
"""How small batches are collected: the results of how many are fetched at the same time, how many
at most wait to be stored together, and for how long."""

COMPLETE_FETCHES = 3
"""Number of complete fetches after which a missing result that was not billed is given up."""


def counts_of(row: Any) -> RequestCounts:
    """Return the API's counts of an ended batch, given by its row; all are 0 if it gave none."""
    return msgspec.json.decode(row.counts or "{}", type=RequestCounts)


def missing_may_be_billed(stored: Stored, counts: RequestCounts, members: int) -> bool:
    """Return whether requests without a line may have been billed, if no fetch brings it.

    They were not if the API counts an outcome for each of the batch's requests (``members``), and
    every success that it counts (and bills) is stored.
    """
    return not counts.are_final(members) or stored.succeeded < counts.succeeded


def judge_results(row: Any, stored: Stored, counts: RequestCounts) -> Complete:
    """Return what the stored results of a batch, given by its row, prove about the others."""
    members = row.request_count
    return Complete(
        row.id,
        stored,
        missing_may_be_billed(stored, counts, members),
        contradicted=stored.hides_success(counts.succeeded, members),
    )


def fetch_wait(row: Any, gap: Gap | None, failures: int = 0, asked: float | None = None) -> float:
    """Return the seconds until an incomplete batch, given by its row, is fetched again.

    The first waits are short; later ones are a tenth of the time for which results have been
    missing. A fetch is due when that time is over. ``failures``: how many fetches in a row have
    broken off, after which nothing is known to be missing. ``asked``: the last one's retry-after.
    """
    wait = SENDING(failures or row.fetches + 1, asked)
    if gap is not None and row.fetches + 1 >= COMPLETE_FETCHES:
        age = max(0.0, gap.seen - gap.since)
        wait = next_check(age, row.poll_interval, row.max_poll_interval)
        if gap.until > gap.seen:
            wait = min(wait, max(1.0, gap.until - gap.seen))
    return min(wait, row.max_poll_interval)


def result_row_of(
    line: ResultLine,
    raw: bytes,
    seq: int,
    sending: int,
    batch_id: int,
    prices: Prices,
    *,
    batch: bool,
    at: float,
) -> NewResult:
    """Return the row to store for a decoded line of a batch, or of a live call (not ``batch``).

    ``batch_id`` is the ledger's id of the batch, also of one that groups live calls. ``at`` is the
    time of the answer, which selects the prices.
    """
    # A success was billed, even if its usage cannot be read.
    cost, live_cost, uncached_cost = FREE if line.outcome != "succeeded" else UNPRICED
    usage = line.usage
    if usage is None or usage.is_missing:
        usage = _NO_USAGE
    elif (charge := prices.charge(line.model or "", usage, batch=batch, at=at)) is not None:
        cost, live_cost, uncached_cost = charge
    else:
        cost, live_cost, uncached_cost = UNPRICED
    return NewResult(
        seq,
        sending,
        batch_id,
        line.outcome,
        # A plain text, because the driver of SQLite takes longer to bind a subclass.
        str(line.disposition),
        line.error.type if line.error else None,
        raw,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_5m_input_tokens,
        usage.cache_creation_1h_input_tokens,
        usage.web_search_requests,
        line.model,
        cost,
        live_cost,
        uncached_cost,
    )


Writing: TypeAlias = Callable[[], AbstractContextManager[Transaction]]
"""Begins a write transaction, with the check that the writer still may."""

_Strange: TypeAlias = list[tuple[bytes, str]]
"""Lines that are no results of their batch, and the reason."""


class _Fetched(msgspec.Struct):
    """The result of fetching one batch."""

    row: Any
    counts: RequestCounts
    error: ApiError | Unreachable | None = None
    """Why the results were not read to their end."""
    is_whole: bool = True
    """Whether they were, or only the results of a batch that the API shows are missing."""
    not_found_since: float | None = None
    is_gone: bool = False
    """Whether the batch is believed to be gone from the API."""
    lines: list[bytes] = msgspec.field(default_factory=list[bytes])
    """The lines of a small batch; those of others are stored as they arrive."""
    is_too_large: bool = False
    """Whether the results are larger than those of a small batch."""

    @property
    def fault(self) -> ApiFault | None:
        """The API's error, if the fetch broke off with one."""
        return self.error.fault if isinstance(self.error, ApiError) else None


def _is_small(row: Any) -> bool:
    """Return whether a batch is collected together with others."""
    return row.request_count <= SMALL_REQUESTS


def _may_be_shared(row: Any) -> bool:
    """Return whether a process that does not drive may fetch the results of a batch."""
    return not _is_small(row) and row.adopted != "assumed"


async def _bounded_lines(row: Any, chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a batch's results; raises `Unreachable` if there are far too many."""
    most = LINES_PER_REQUEST * row.request_count + SPARE_LINES
    count = 0
    async for part in split_lines(chunks):
        count += len(part)
        if count > most:
            raise Unreachable(
                f"its results have more than {most:,} lines, for {row.request_count:,} requests"
            )
        yield part


class Collection(Evidence):
    """The collector of results of one workspace's ended batches."""

    def __init__(self, context: DriverContext) -> None:
        """Set up the collector."""
        super().__init__(context)
        self._failures: Counter[int] = Counter()
        """How many fetches in a row have broken off, by batch."""

    async def collect(self, leader: Leader, row: Any, *, is_stored: bool = False) -> None:
        """Fetch the results of an ended batch, given by its row; judge its requests if complete.

        An aborted fetch keeps what it stored, and is repeated later. ``is_stored``: the results
        were fetched already.
        """
        if row.adopted == "assumed" and not await self._is_ours(leader, row):
            return
        fetched = _Fetched(row, counts_of(row))
        try:
            if not is_stored:
                await self.fetch(partial(self._ledger.write, leader), row)
        except (ApiError, Unreachable) as error:
            await self._note_failure(leader, fetched, error)
        await self._finish_or_fetch_again(leader, [fetched])

    async def collect_all(
        self,
        leader: Leader,
        batch_ids: Sequence[int],
        *,
        collected: Callable[[], object],
    ) -> bool:
        """Do what `collect` does for several batches; the small ones are collected together.

        ``collected`` is called whenever results may have been given to their requests. No further
        batch is begun once the driver is to end. Returns whether another process still fetches one
        of them.
        """
        with self._ledger.read() as tx:
            rows = batch_contents.some_batches(tx, batch_ids)
        small = [row for row in rows if _is_small(row) and row.adopted != "assumed"]
        alone: list[Any] = rows
        if len(small) >= MANY:
            taken = await self._collect_small(leader, small, collected)
            alone = [row for row in rows if row.id not in taken]
        self._offer(leader, alone[1:])
        elsewhere = False
        for row in alone:
            if self._stopping():
                break
            by = self._ledger.fetches.withdraw(row.id) if _may_be_shared(row) else "driver"
            if by == "other":
                elsewhere = True
                continue
            await self.collect(leader, row, is_stored=by == "done")
            collected()
        return elsewhere

    def _offer(self, leader: Leader, rows: Sequence[Any]) -> None:
        """Offer the large batches that have to wait to the other processes of the ledger."""
        # The user's function may be in this process alone.
        if self._functions.classify is None:
            large = [row.id for row in rows if _may_be_shared(row)]
            if large:
                self._ledger.fetches.offer(leader.workspace_id, large)

    async def fetch_for_driver(self, claim: FetchClaim) -> None:
        """Store the results of a batch that the driver of its workspace has offered.

        The driver fetches it itself after an error of the API, and decides what the error means.
        """
        offer: bool | None = True
        try:
            with self._ledger.read() as tx:
                row = batch_contents.batch(tx, claim.batch_id)
            try:
                await self.fetch(partial(self._ledger.write_for_driver, claim), row)
            except (ApiError, Unreachable) as error:
                _log.info("batch %s: %s; left to the driver", row.remote_id, error)
                offer = False
                return
            with self._ledger.write_for_driver(claim) as tx:
                self._ledger.fetches.finish(tx, claim)
            offer = None
            _log.info("batch %s: its results were fetched for the driver", row.remote_id)
        except Deposed:
            _log.info("batch %d: the driver fetches it itself", claim.batch_id)
        except LedgerError as error:
            # This process's own work meets the same error, and handles it.
            _log.info("batch %d: %s", claim.batch_id, error)
        finally:
            if offer is not None:
                self._ledger.fetches.leave(claim, offer=offer)

    async def _collect_small(
        self,
        leader: Leader,
        rows: Sequence[Any],
        collected: Callable[[], object],
    ) -> set[int]:
        """Collect small batches, several in one transaction; return their ids.

        A batch whose fetch takes long delays no other. Those that are too large after all, or not
        begun, are left.
        """
        places = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def fetch(row: Any) -> _Fetched | None:
            async with places:
                return None if self._stopping() else await self._fetch_small(leader, row)

        taken: set[int] = set()
        fetching: list[asyncio.Task[_Fetched | None]] = [
            asyncio.create_task(fetch(row)) for row in rows
        ]
        try:
            while fetching:
                await asyncio.wait(fetching, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(fetching, timeout=TOGETHER_SECONDS)
                ended = [task for task in fetching if task.done()][:TOGETHER]
                gone = set(ended)
                fetching = [task for task in fetching if task not in gone]
                found = (task.result() for task in ended)
                some = [each for each in found if each is not None and not each.is_too_large]
                if some:
                    await self._store_together(leader, some)
                    await self._finish_or_fetch_again(leader, some)
                    taken.update(each.row.id for each in some)
                    collected()
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
        return taken

    async def _fetch_small(self, leader: Leader, row: Any) -> _Fetched:
        """Fetch the results of a small batch into memory."""
        fetched = _Fetched(row, counts_of(row))
        size = 0
        try:
            async with self._client.results(row.remote_id) as chunks:
                async for part in _bounded_lines(row, chunks):
                    fetched.lines += part
                    size += sum(map(len, part))
                    if size > SMALL_BYTES:
                        fetched.is_too_large = True
                        break
        except (ApiError, Unreachable) as error:
            await self._note_failure(leader, fetched, error)
        return fetched

    async def _note_failure(
        self, leader: Leader, fetched: _Fetched, error: ApiError | Unreachable
    ) -> None:
        """Note that a fetch broke off, and what its error says about the batch."""
        fetched.error, fetched.is_whole = error, False
        if isinstance(error, ApiError) and error.fault.status == 404:
            row = fetched.row
            fetched.not_found_since, lasted = self.absence_of(row)
            found = lasted and await self.look_for(leader, row)
            fetched.is_gone = found is True
            # The API shows the batch, so only its results are missing.
            fetched.is_whole = isinstance(found, RemoteBatch)

    async def _finish_or_fetch_again(self, leader: Leader, fetched: Sequence[_Fetched]) -> None:
        """Finish the batches that are complete, and plan a further fetch of the others."""
        await self._count_again(leader, fetched)
        with self._ledger.read() as tx:
            stored = stored_results.stored_counts_of(tx, [each.row.id for each in fetched])
            judged = [(each, self._judge(tx, each, stored[each.row.id])) for each in fetched]
            # Their answers may decide about requests of each other.
            apart = any_former(tx)
        complete: list[tuple[Any, Complete]] = []
        for each, verdict in judged:
            if isinstance(verdict, Complete):
                complete.append((each.row, verdict))
            else:
                self._fetch_again(leader, each, *verdict)
        if not complete:
            return
        reach(CrashPoint.BETWEEN_RESULTS_AND_STATE)
        for row, _ in complete:
            await self._give_slices(leader, row)
        for group in [[one] for one in complete] if apart else [complete]:
            self._finish(leader, group)

    async def _count_again(self, leader: Leader, fetched: Sequence[_Fetched]) -> None:
        """Read batches again that lack results or successes, and whose counts do not add up.

        A gateway may have answered with an old copy.
        """
        unsure = [
            each
            for each in fetched
            if each.counts.processing or each.counts.finished != each.row.request_count
        ]
        if not unsure:
            return
        with self._ledger.read() as tx:
            stored = stored_results.stored_counts_of(tx, [each.row.id for each in unsure])
        for each in unsure:
            row, has = each.row, stored[each.row.id]
            lacks = has.lacks(each.counts.succeeded, row.request_count)
            if has.total >= row.request_count and lacks <= 0:
                continue
            try:
                counts = (await self._client.retrieve(row.remote_id)).counts
            except (ApiError, Unreachable) as error:
                _log.info("batch %s cannot be read again: %s", row.remote_id, error)
                continue
            if counts.are_final(row.request_count):
                each.counts = counts
                with self._ledger.write(leader) as tx:
                    collected_batches.note_counts(tx, row.id, msgspec.json.encode(counts).decode())

    def _judge(
        self, tx: Transaction, fetched: _Fetched, stored: Stored
    ) -> Complete | tuple[Gap | None, str]:
        """Return how to finish a batch, or what its results still lack, also in words."""
        row, counted, members = fetched.row, fetched.counts.succeeded, fetched.row.request_count
        gaps, short = members - stored.total, stored.lacks(counted, members)
        missing = max(gaps, short)
        complete = judge_results(row, stored, fetched.counts)
        if not stored.total and (
            row.adopted == "assumed" or stored_results.has_foreign_lines(tx, row.id)
        ):
            # The counts of somebody else's batch say nothing about these requests.
            complete = complete._replace(missing_may_be_billed=True)
        if missing <= 0 or self._is_gone(fetched):
            return complete
        gap: Gap | None = None
        if fetched.is_whole:
            gap = self.gap_of(row, missing, row.max_poll_interval)
            # What may have been billed is waited for until the end of `missing_after`. A request
            # that was sent again and answered elsewhere waits for no result here.
            is_owed = gaps > 0 and collected_batches.without_result(tx, row.id) > 0
            waits = complete.missing_may_be_billed and (is_owed or complete.contradicted)
            if row.fetches + 1 >= COMPLETE_FETCHES and (not waits or gap.seen >= gap.until):
                return complete
        if fetched.error is not None:
            words = str(fetched.error)
        elif gaps > 0:
            words = f"{gaps} of {members} results were not in the stream"
        else:
            words = f"{short} of {counted} successes were not in the stream"
        return gap, words

    def _is_gone(self, fetched: _Fetched) -> bool:
        """Return whether the API has the batch, or its results, no longer."""
        fault = fetched.fault
        if fetched.is_gone or fault is None or not fault.from_api or fault.passes:
            return fetched.is_gone
        return self.is_past_keeping(fetched.row)

    def _fetch_again(self, leader: Leader, fetched: _Fetched, gap: Gap | None, words: str) -> None:
        """Plan another fetch of a batch; finish the requests whose success is stored."""
        row, now = fetched.row, self._ledger.now()
        if fetched.is_whole:
            del self._failures[row.id]
        else:
            self._failures[row.id] += 1
        asked = None if fetched.fault is None else fetched.fault.retry_after
        wait = fetch_wait(row, gap, self._failures[row.id], asked)
        with self._ledger.write(leader) as tx:
            collected_batches.note_fetch(
                tx,
                row.id,
                gap=gap,
                next_check=now + wait,
                note=words,
                not_found_since=fetched.not_found_since,
            )
            given = collected_batches.give_successes(tx, row.id)
        _log.info("batch %s: %s; fetched again", row.remote_id, words)
        if given:
            self._reporter.given(row)

    def _finish(self, leader: Leader, complete: Sequence[tuple[Any, Complete]]) -> None:
        """Finish complete batches, given by their rows, in one transaction."""
        now = self._ledger.now()
        for row, _ in complete:
            del self._failures[row.id]
        with self._ledger.write(leader) as tx:
            # One question for all batches: usually no request has left one undecided.
            left_undecided = any_former(tx)
            if left_undecided:
                for row, _ in complete:
                    unknown_batches.take_earlier_answers(tx, row.id)
            done = collected_batches.finish_collections(tx, [each for _, each in complete], now)
            if left_undecided:
                for row, each in complete:
                    unknown_batches.give_answers(tx, row.id, contradicted=each.contradicted)
            for collected in done.values():
                if collected.account_line is not None and collected.retried["account"]:
                    self._halt(tx, leader, collected.account_line)
            warnings = warn_after(tx, [row.id for row, _ in complete], now)
        for words in warnings:
            _log.warning("%s", words, extra={"for_people": True})
        reach(CrashPoint.AFTER_COLLECTED)
        self._reporter.collected([(row, done[row.id]) for row, _ in complete])

    async def _give_slices(self, leader: Leader, row: Any) -> None:
        """Finish most requests of a large batch in short transactions.

        The rest, and all that follows from failures, is left for the transaction that ends it.
        """
        last = 0 if row.request_count > collected_batches.SLICE else None
        while last is not None:
            with self._ledger.write(leader) as tx:
                last = collected_batches.give_slice(tx, row.id, last, self._ledger.now())
            reach(CrashPoint.BETWEEN_SLICES)
            # The other tasks of this loop have their turn, a heartbeat among them.
            await asyncio.sleep(0)

    async def _is_ours(self, leader: Leader, row: Any) -> bool:
        """Return whether the results prove the assumption that the batch is our unknown sending."""
        proof = await self.prove(row.remote_id, row.request_count, assumed=row.id)
        with self._ledger.write(leader) as tx:
            # A stored line proves it as well; once its request is answered, no further line does.
            if proof.owner == row.id or stored_results.stored_counts(tx, row.id).total > 0:
                unknown_batches.confirm(tx, row.id)
                return True
            if proof.foreign or proof.owner is not None:
                if unknown_batches.disown(
                    tx,
                    row.id,
                    row.remote_id,
                    note=proof.note or "",
                    next_check=self._ledger.now() + row.poll_interval,
                    seen=self._client.server_now(),
                ):
                    self.stop_sending(
                        tx,
                        leader.workspace_id,
                        f"the workspace is set as exclusive, but batch {row.remote_id} belongs to "
                        "another client; find that client, then run `claude-batch resume`",
                        reason="unexplained",
                    )
                return False
        # No answer, or nothing readable: the next steps are the same as for every batch.
        return True

    async def fetch(self, writing: Writing, row: Any) -> int:
        """Store the results that the API holds for a batch, given by its row; judge nothing.

        Returns the number of lines that are results of the batch. Raises `ApiError` or
        `Unreachable`, also midway, and what ``writing`` raises.
        """
        with self._ledger.read() as tx:
            # Nothing joins an ended batch, and requests that left it are still found by its row.
            members = {row.id: stored_results.members_of(tx, row.id)}
            retry_on = batch_contents.retry_on(tx, [row.id])
        lines: list[bytes] = []
        size = read = 0
        async with self._client.results(row.remote_id) as chunks:
            async for part in _bounded_lines(row, chunks):
                lines += part
                size += sum(map(len, part))
                if len(lines) >= CHUNK_LINES or size >= CHUNK_BYTES:
                    read += await self._store_lines(writing, [(row, lines)], members, retry_on)
                    lines, size = [], 0
            if lines:
                read += await self._store_lines(writing, [(row, lines)], members, retry_on)
        return read

    async def _store_together(self, leader: Leader, fetched: Sequence[_Fetched]) -> None:
        """Store the lines of several small batches in one transaction."""
        having = [(each.row, each.lines) for each in fetched if each.lines]
        if not having:
            return
        ids = [row.id for row, _ in having]
        with self._ledger.read() as tx:
            members = stored_results.members_of_all(tx, ids)
            retry_on = batch_contents.retry_on(tx, ids)
        await self._store_lines(partial(self._ledger.write, leader), having, members, retry_on)

    async def _store_lines(
        self,
        writing: Writing,
        lines_of: Sequence[tuple[Any, Sequence[bytes]]],
        members: Mapping[int, Members],
        retry_on: Mapping[str, str],
    ) -> int:
        """Store lines of batches, given by their rows, in one transaction; count the results."""
        new: list[NewResult] = []
        strange: list[tuple[int, _Strange]] = []
        for row, lines in lines_of:
            results, others = await self._decode(row, members[row.id], lines, retry_on)
            new += results
            strange.append((row.id, others))
        # In request order: results arrive shuffled, and are read in order later.
        new.sort(key=_request_of)
        with writing() as tx:
            stored_results.add_results(tx, new)
            for batch_id, others in strange:
                if others:
                    stored_results.add_strange_lines(tx, batch_id, others)
        reach(CrashPoint.DURING_COLLECT_CHUNK)
        return len(new)

    async def _decode(
        self, row: Any, members: Members, lines: Sequence[bytes], retry_on: Mapping[str, str]
    ) -> tuple[list[NewResult], _Strange]:
        """Return the results of a batch's lines, and the lines that are none, with the reason."""
        batch_id, ended = row.id, row.ended or self._ledger.now()
        new: list[NewResult] = []
        faults: list[tuple[LineError, int]] = []
        strange: _Strange = []
        for raw in lines:
            try:
                line = decode_line(raw)
            except UnreadableLine as error:
                strange.append((raw, f"{stored_results.UNREADABLE}: {error}"))
                continue
            parts = parse_custom_id(line.custom_id)
            if parts is None or parts[1] not in self._ledger.incarnations:
                strange.append((raw, f"unknown custom_id {line.custom_id[:64]!r}"))
                continue
            seq = members.find(parts[0])
            if seq is None:
                strange.append((raw, f"no request of this batch: {line.custom_id[:64]!r}"))
                continue
            new.append(
                result_row_of(
                    line, raw, seq, parts[2], batch_id, self._prices, batch=True, at=ended
                )
            )
            if line.error is not None and (retry_on or self._functions.classify is not None):
                faults.append((line.error, len(new) - 1))
        if faults:
            await self._decide_on(faults, new, retry_on)
        return new, strange

    async def _decide_on(
        self,
        faults: list[tuple[LineError, int]],
        new: list[NewResult],
        retry_on: Mapping[str, str],
    ) -> None:
        """Let the ``retry_on`` of runs, then the user's function, decide what errors mean.

        Each error is given with the place of its result in ``new``.
        """
        run_of: Mapping[int, str] = {}
        if retry_on:
            with self._ledger.read() as tx:
                run_of = batch_contents.runs_of(tx, [new[place].request_seq for _, place in faults])
        # The function is asked about each kind of error once.
        known: dict[tuple[str, ...], Disposition] = {}
        for error, place in faults:
            wanted = retry_on.get(run_of.get(new[place].request_seq, ""))
            # An error has no other disposition.
            default = cast("Classification", str(new[place].disposition))
            fault = RequestFault(error.type, error.message, error.details, None, default)
            fault = fault.with_retry_on(wanted)
            kind = (error.type, error.message, repr(error.details), fault.default)
            if kind not in known:
                known[kind] = await self._functions.disposition(fault)
            new[place] = new[place]._replace(disposition=known[kind])

    def _halt(self, tx: Transaction, leader: Leader, raw: bytes) -> None:
        error = decode_line(raw).error
        assert error is not None
        reason = account_reason(None, error.type, error.message, error.details) or "refused"
        self.stop_sending(
            tx, leader.workspace_id, error.message, reason=reason, error_type=error.type
        )
