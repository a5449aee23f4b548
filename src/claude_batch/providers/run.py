"""`Run`: a set of requests submitted together, usable from any process at any time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from decimal import Decimal
from functools import partial
from types import UnionType
from typing import Any, TypeVar

from claude_batch.actor.output import FormatLike, OutputFormat, output_format_of
from claude_batch.actor.response import ActorResult, OutputT
from claude_batch.core.errors import (
    ActorConfigurationError,
    ActorError,
    BudgetExceededError,
    LedgerError,
)
from claude_batch.core.events import RequestsRetried, RunCancelled
from claude_batch.core.quantities import nano_dollars
from claude_batch.core.settings import check_arguments
from claude_batch.core.states import RequestState
from claude_batch.ledger import (
    cancellations,
    deliveries,
    queries,
    retries,
)
from claude_batch.ledger.cost_sums import Grouping
from claude_batch.ledger.deliveries import Delivery, Displaced, Forms, Outstanding
from claude_batch.ledger.queries import Answer, Success
from claude_batch.ledger.retries import Rerun, Retried
from claude_batch.ledger.store import Transaction
from claude_batch.lifecycle.engine import Engine
from claude_batch.lifecycle.recovery import Refetched, refetch
from claude_batch.lifecycle.tool_runner import check_blocking, in_asynchronous_tool, note_asking
from claude_batch.providers.cost_report import CostReport, cost_of, set_budget
from claude_batch.providers.engine_access import EngineAccess
from claude_batch.providers.export import (
    Format,
    export_run,
    finals,
    make_folder,
    rows_of,
    run_summary,
    write_folder,
)
from claude_batch.providers.failure_report import FailureReport, failures_in
from claude_batch.providers.mapping import result_of
from claude_batch.providers.middleware_runner import MiddlewareRunner
from claude_batch.providers.progress import Progress, ProgressReader
from claude_batch.providers.progress_reports import ProgressLike, check_progress, reported
from claude_batch.providers.reruns import decide_unknown, parse_only, report_rerun, retry_run
from claude_batch.providers.result_cursor import (
    PAGE,
    Outcomes,
    ResultCursor,
    ResultGroup,
    at_input,
)
from claude_batch.providers.run_waiter import LONGEST_REST, RunWaiter
from claude_batch.providers.run_writer import Beside, keeps_places, warn_of_displaced
from claude_batch.providers.status import RunStatus, require_run, status_in
from claude_batch.providers.sync_bridge import Closing, Pause, step_async, step_sync

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Run(Closing):
    """A run of a ledger. Created by `submit` and `open_run`, not directly."""

    elsewhere = "pass its `id`, and open it with cb.open_run"

    def __init__(
        self,
        engine_access: EngineAccess,
        run_id: str,
        *,
        middleware: MiddlewareRunner,
        settings: Mapping[str, Any] | None = None,
        stamp: int = 0,
        rerun: Rerun | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Open a stored run.

        ``engine_access`` is its provider. ``settings`` count instead of the run's own about waiting
        and polling. ``stamp``: the ledger's stamp at submission. Results that existed before it
        count as reused; by default none do, because `open_run` submits nothing. ``rerun``: what the
        run held when it was submitted again. ``beside``: what this process keeps beside its
        requests. Raises `RunNotFoundError` if the ledger has no such run.
        """
        self._engine_access = engine_access
        self._middleware = middleware
        self._beside = beside or Beside()
        self.is_continued: bool = rerun is not None
        """Whether its requests were stored before the call that submitted them."""
        self.owns_provider: bool = False
        """Whether closing the run closes the provider."""
        engine = engine_access.engine()
        row = engine.ledger.query(lambda tx: require_run(engine.ledger, tx, run_id))
        self.id: str = row.id
        """The run's id: ``run-`` and ten characters."""
        self.output: OutputFormat[Any] | None = None
        """Format that parses the answers in `results` without an ``output_format``."""
        self.ordered: bool = True
        """Whether iterating over the run yields its results in input order."""
        self.on_progress: ProgressLike = None
        """Receives the progress while the run is waited for or its results are read, if no
        ``progress`` is given.
        """
        self.results_dir: str | None = None
        """Folder for one file per result, written by `wait` and `results` when all requests have
        ended; None for no such files, and if the command line writes the run's output.
        """
        if row.output is None and row.delivered is None:
            self.results_dir = row.results_dir
        self._delivery: Delivery | None = None
        self._row = row
        self._stamp = stamp
        self._progress: ProgressReader | None = None
        self._waiter = RunWaiter(
            engine_access,
            row,
            settings or {},
            cancel=self.cancel_sync,
            again=rerun is not None and bool(rerun.queued),
        )
        # A cancellation was in progress: the requests it withdraws are retried once it has ended.
        self._cancelling = rerun is not None and rerun.cancelling

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def close(self) -> None:
        """Close the provider if `open_run` created it; the run's batches continue at the API.

        A run of another owner's provider leaves it open.
        """
        if self.owns_provider:
            self._engine_access.close()

    @property
    def provider(self) -> Closing:
        """The provider that the run was opened with; closing it parks the run."""
        return self._engine_access

    @property
    def _engine(self) -> Engine:
        if self._engine_access.closed:
            raise ActorConfigurationError(
                f"{self.id} is closed, with the provider that it was opened with; open it again "
                f"with cb.open_run({self.id!r}, ledger={self._engine_access.shown_location!r})"
            )
        return self._engine_access.engine()

    def _while_open(self, work: Generator[Pause | Any, Any, None]) -> Generator[Any, Any, None]:
        """Do work that waits; raise `EngineStoppedError` if the provider is closed."""
        with self._engine_access.open_for(self.id):
            yield from work

    def outstanding(self) -> Outstanding:
        """Return what a process needs to continue the run; cheaper than `status`."""
        return self._engine.ledger.query(lambda tx: deliveries.outstanding_run(tx, self.id))

    def status(self) -> RunStatus:
        """Return the current status of the run; needs no API key."""
        driven = True if self._engine_access.drives else None
        ledger = self._engine.ledger
        address = self._engine_access.known_address
        return ledger.query(
            lambda tx: status_in(ledger, tx, self.id, driven=driven, address=address)
        )

    def progress(self, status: RunStatus | None = None) -> Progress:
        """Return the run's progress: requests done by outcome, cost, budget, expected end.

        ``status``: a status that was just read, to avoid a second read.
        """
        if self._progress is None:
            prices = self._engine_access.prices
            self._progress = ProgressReader(self._engine.ledger, self.id, prices)
        return self._progress.read(status or self.status())

    def cost(self, *, by: Grouping | None = None, status: RunStatus | None = None) -> CostReport:
        """Return what the run has used and cost so far, also by ``actor``, ``model`` or ``day``.

        ``status``: a status that was just read, to avoid a second count of the requests.
        """
        counts = None if status is None else status.counts
        return cost_of(self._engine.ledger, self.id, by, counts)

    def failures(self, status: RunStatus) -> FailureReport:
        """Return why requests of the run failed, given its current status."""
        return self._engine.ledger.query(lambda tx: failures_in(tx, status))

    async def wait(self, *, progress: ProgressLike = None) -> RunStatus:
        """Wait until every request has its final state.

        ``progress`` is a function that is called with a `Progress`, at most twice a second and once
        at the end; True shows a progress bar. It runs on the caller's thread. Its first exception
        is logged and ends the calls; the run continues.

        Raises `AccountHaltedError` if sending halts and no request of the run is at the API,
        `BudgetExceededError` if the run is held and only another budget would release it,
        `BatchTimeoutError` after ``max_wait``, and ``OSError`` if `results_dir` cannot be written.
        """
        check_progress(progress)
        return await _only(step_async(self._reported(self._finished(), progress)))

    def wait_sync(self, *, progress: ProgressLike = None) -> RunStatus:
        """Run `wait` synchronously, with or without a running event loop."""
        check_progress(progress)
        self._check_blocking()
        [status] = step_sync(self._reported(self._finished(), progress))
        return status

    async def wait_until_sent(self) -> None:
        """Wait until the API has every batch of the run that its queue admits.

        Returns earlier if nothing can be sent now: no process drives the run and ``drive=False``
        keeps this one from it, the API cannot be reached or asks to wait, or ``max_wait`` has
        passed. Raises `AccountHaltedError`.
        """
        await _only(step_async(self._while_open(self._sent())))

    def wait_until_sent_sync(self) -> None:
        """Run `wait_until_sent` synchronously, with or without a running event loop."""
        next(step_sync(self._while_open(self._sent())))

    async def results(
        self,
        *,
        ordered: bool = True,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        progress: ProgressLike = None,
    ) -> AsyncIterator[ActorResult[OutputT]]:
        """Yield results in input order, or as they complete; wait for those that are missing.

        ``output_format``: the type that the run was submitted with; an answer that does not match
        it is a failed result. When all other requests have ended, a request that a budget holds is
        a failed result with `BudgetExceededError`. With a higher budget it is sent, and a later
        iteration yields its answer. ``progress`` works as in `wait`, whenever a result is asked
        for. Otherwise raises what `wait` raises, and `InvalidRequestError` for a type that is not a
        supported format.
        """
        output = self._format(output_format)
        async for result in self._read_async(
            self._reported(self._pages(ordered), progress), output
        ):
            yield result

    def results_sync(
        self,
        *,
        ordered: bool = True,
        output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None,
        progress: ProgressLike = None,
    ) -> Iterator[ActorResult[OutputT]]:
        """Run `results` synchronously, with or without a running event loop."""
        output = self._format(output_format)
        self._check_blocking()
        yield from self._read_sync(self._reported(self._pages(ordered), progress), output)

    def __aiter__(self) -> AsyncIterator[ActorResult]:
        """Yield `results` for ``async for result in run``, as ``ordered`` was set at submission."""
        return self.results(ordered=self.ordered)

    def __iter__(self) -> Iterator[ActorResult]:
        """Yield `results_sync` for ``for result in run``, as ``ordered`` was set at submission."""
        return self.results_sync(ordered=self.ordered)

    def by_outcome(
        self, *, output_format: type[OutputT] | UnionType | Mapping[str, Any] | None = None
    ) -> Outcomes[OutputT]:
        """Return the results that are there now, grouped by outcome; waits for none.

        A mapping from `RequestState` (``"succeeded"``, ``"errored"``, ``"expired"``, …) to a group
        of results. A group has a length and can be iterated over, with ``for`` and ``async for``,
        any number of times; it reads the ledger page by page, so its size does not matter. Only
        outcomes that occur are in the mapping, but any can be looked up.
        ``output_format`` works as in `results`.
        """
        output = self._format(output_format)
        with self._engine.ledger.read() as tx:
            counts = queries.request_counts(tx, self.id)

        def group(state: RequestState) -> ResultGroup[Any]:
            return ResultGroup(
                counts.get(state, 0),
                lambda: self._read_async(self._pages_of(state), output),
                lambda: self._read_sync(self._pages_of(state), output),
            )

        return Outcomes({state: group(state) for state in RequestState if state.is_final})

    def _pages_of(self, state: RequestState) -> Generator[Pause | list[ActorResult], Any, None]:
        """Yield the results of one outcome, in input order."""
        start = 0

        def read() -> list[Answer]:
            found = queries.answers_by_position(
                self._engine.ledger, self.id, start=start, state=state, page_rows=PAGE
            )
            return list(itertools.islice(found, PAGE))

        while page := (yield Pause(self._engine.look(read))):
            start = page[-1].position + 1
            yield [self._result(answer) for answer in page]

    async def _read_async(
        self, pages: Generator[Pause | Any, Any, None], output: OutputFormat[Any] | None
    ) -> AsyncIterator[ActorResult[Any]]:
        read = partial(self._parsed, output)
        async for page in step_async(pages):
            found = self._with_contexts(page)
            async for some in self._middleware.after_all(self._row.actor, found, self._kept, read):
                for result in some:
                    yield result

    def _read_sync(
        self, pages: Generator[Pause | Any, Any, None], output: OutputFormat[Any] | None
    ) -> Iterator[ActorResult[Any]]:
        read = partial(self._parsed, output)
        for page in step_sync(pages):
            found = self._with_contexts(page)
            for some in self._middleware.after_all_sync(self._row.actor, found, self._kept, read):
                yield from some

    def _with_contexts(self, page: list[ActorResult]) -> list[ActorResult]:
        """Add the contexts that only this process has."""
        contexts = self._beside.contexts
        if not contexts:
            return page
        return [
            result.with_context(contexts[result.position])
            if result.position in contexts
            else result
            for result in page
        ]

    def _parsed(self, output: OutputFormat[Any] | None, result: ActorResult) -> ActorResult[Any]:
        output = output or self._beside.outputs.get(result.position)
        return at_input(result.with_output(output), self._beside.refused)

    def _format(self, output_format: FormatLike | None) -> OutputFormat[Any] | None:
        if isinstance(output_format, Mapping):
            return None  # a JSON schema, whose answers are decoded as JSON
        return self.output if output_format is None else output_format_of(output_format)

    async def cancel(self) -> None:
        """Withdraw unsent requests, and cancel batches that hold no other run's requests.

        Returns at once; finished requests keep their results. `wait` returns when all have ended. A
        run that has ended stays as it is.
        """
        await self._apart(self.cancel_sync)

    def cancel_sync(self) -> None:
        """Run `cancel` synchronously, with or without a running event loop."""
        with self._engine.ledger.write() as tx:
            if not cancellations.cancel_run(tx, self.id, self._engine.ledger.now()):
                return
        engine = self._engine
        engine.observers.report(RunCancelled(ledger=engine.observers.ledger, run_id=self.id))
        engine.noticing.follow([self.id])
        engine.wake()

    async def set_budget(self, usd: Decimal | str | float | None) -> None:
        """Set, raise or lower the run's budget in dollars; None removes it.

        Held requests that fit now are sent. Requests in progress continue, whatever they may cost.
        Raises ``ValueError`` for an invalid amount.
        """
        await self._apart(lambda: self.set_budget_sync(usd))

    def set_budget_sync(self, usd: Decimal | str | float | None) -> None:
        """Run `set_budget` synchronously, with or without a running event loop."""
        amount = None if usd is None else nano_dollars(usd)
        prices = self._engine_access.prices
        set_budget(self._engine.ledger, "run", self.id, amount, prices)
        self._engine.wake()

    async def retry_failed(self, only: Iterable[str] | None = None) -> int:
        """Retry failed requests and return their number. Successful requests are not sent again.

        ``only`` lists outcomes (``expired``, ``errored``, ``canceled``) and error types
        (``type=overloaded_error``). Without it, all failures that were not billed are retried,
        except requests that were canceled with the run; an empty list retries nothing. With
        ``missing``, missing results are first fetched again, as by `refetch`; requests whose
        results are still missing are sent again, and may be paid for twice. Other lost requests
        need `resubmit_unknown`.

        The results join those of the run, in order; `wait` and `results` wait for them, up to
        ``max_wait`` from now. Raises `InvalidRequestError` if the run cannot be retried now,
        `ActorConfigurationError` for an invalid ``only``, and with ``missing`` what `refetch`
        raises; nothing is sent then.
        """
        return await self._apart(lambda: self.retry_failed_sync(only))

    def retry_failed_sync(self, only: Iterable[str] | None = None) -> int:
        """Run `retry_failed` synchronously, with or without a running event loop."""
        return self.retry(only).queued

    def retry(self, only: Iterable[str] | None = None) -> Retried:
        """Run `retry_failed_sync`, and also return what was not retried."""
        retried = retry_run(self._engine.ledger, self.id, parse_only(only), self.fetch_missing)
        if retried.found:
            self._engine.noticing.follow([self.id])
        self._ask_again(retried.queued)
        return retried

    def _ask_again(self, count: int) -> None:
        """Restart the time limit after ``count`` requests were queued again, as for a new run."""
        if count:
            observers = self._engine.observers
            observers.report(
                RequestsRetried(
                    ledger=observers.ledger, requests=count, reason="order", run_id=self.id
                )
            )
            self._waiter.restart()
        self._engine.wake()

    async def refetch(self) -> int:
        """Fetch the run's batches with missing results again; return the number of results found.

        Free of charge, and nothing is sent. A lost request gets its real outcome and cost, for as
        long as the API keeps the results (29 days). Raises `AccountHaltedError` if the API rejects
        the key, `EngineStoppedError` if the API cannot be reached, and `ActorConfigurationError` if
        the run was submitted to another base URL.
        """
        return await self._apart(self.refetch_sync)

    def refetch_sync(self) -> int:
        """Run `refetch` synchronously, with or without a running event loop."""
        return self.fetch_missing().found

    def fetch_missing(self) -> Refetched:
        """Run `refetch_sync`, and also return what is still missing or unavailable from the API."""
        engine, session = self._engine, self._engine_access.session()
        work = refetch(engine.ledger, session.client, engine.settings, self.id, engine.prices)
        fetched = engine.do(work).result()
        if fetched.found:
            engine.noticing.follow([self.id])
        engine.wake()
        return fetched

    async def resubmit_unknown(self) -> int:
        """Send unknown and lost requests again. They may be paid for twice.

        Returns how many requests are queued again.
        """
        return await self._apart(self.resubmit_unknown_sync)

    def resubmit_unknown_sync(self) -> int:
        """Run `resubmit_unknown` synchronously, with or without a running event loop."""
        return self._decide_unknown(resubmit=True)

    async def give_up_unknown(self) -> int:
        """End requests without an answer if it is unknown whether the API accepted them.

        They end in `SubmissionUnknownError`. Returns their number.
        """
        return await self._apart(self.give_up_unknown_sync)

    def give_up_unknown_sync(self) -> int:
        """Run `give_up_unknown` synchronously, with or without a running event loop."""
        return self._decide_unknown(resubmit=False)

    def _decide_unknown(self, *, resubmit: bool) -> int:
        count = decide_unknown(self._engine.ledger, self.id, resubmit=resubmit).requests
        self._engine.noticing.follow([self.id])
        self._ask_again(count if resubmit else 0)
        return count

    async def export(self, path: str | os.PathLike[str], format: Format | None = None) -> int:
        """Write the results so far to a file, and return their number; the run stays as it is.

        ``format`` is ``jsonl``, ``csv``, or ``csv-safe`` for spreadsheets; by default ``csv`` for a
        path that ends so, else ``jsonl``. The file appears when it is complete. Raises ``OSError``,
        and `ActorConfigurationError` for a path that ends like another format, such as ``.xlsx``.
        """
        return await self._apart(lambda: self.export_sync(path, format))

    def export_sync(self, path: str | os.PathLike[str], format: Format | None = None) -> int:
        """Run `export` synchronously, with or without a running event loop."""
        count = export_run(self._engine.ledger, self.id, os.fspath(path), format)
        with suppress(LedgerError):  # the file is written; a retry compares it with the results
            self.note_rewritten(os.fspath(path))
        return count

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every request as a flat row, as it is now and in input order; waits for none.

        A row has the names and values of an output line, and ``parsed`` and ``context`` as JSON
        texts. A value that a request without an outcome does not have yet is None. The reference
        page "Input and output" lists the columns.
        """
        return rows_of(self._engine.ledger, self.id, self._output_of)

    def _output_of(self, position: int) -> OutputFormat[Any] | None:
        return self._beside.outputs.get(position) or self.output

    def answers(self, start: int = 0) -> Iterator[Answer]:
        """Yield the requests in order, undecoded as in the ledger, from this position on."""
        return queries.answers_by_position(self._engine.ledger, self.id, start=start)

    def outputs(self, start: int = 0) -> Iterator[Answer | Success]:
        """Yield the same requests for an output file, which takes half the time."""
        return queries.outputs_by_position(self._engine.ledger, self.id, start=start)

    def set_results_dir(self, folder: str | os.PathLike[str]) -> None:
        """Have `wait` and `results` write one file per result to a folder, in any process.

        Creates the folder. Raises ``OSError`` if it cannot be written.
        """
        path = os.path.abspath(folder)
        make_folder(path)
        ledger = self._engine.ledger
        displaced: dict[tuple[str, str], Displaced] = {}

        def take(tx: Transaction) -> None:
            # The transaction may run again after its COMMIT, and then finds the run undelivered and
            # nothing to take.
            delivery = deliveries.ask_folder(tx, self.id, path, ledger.now())
            self._delivery = delivery or self._delivery
            keeps = partial(keeps_places, ledger)
            taken = deliveries.take_places(tx, self.id, None, path, keeps=keeps)
            displaced.update(((each.run_id, each.place), each) for each in taken)

        ledger.apply(take)
        warn_of_displaced(displaced.values(), self.id)
        self.results_dir = path

    def forms(self) -> Forms:
        """Return the formats and the folder of the run's output."""
        return self._engine.ledger.query(lambda tx: deliveries.forms_of(tx, self.id))

    def output_taker(self, place: str) -> str | None:
        """Return the id of a later run that writes this output path or folder instead, or None."""
        return self._engine.ledger.query(lambda tx: deliveries.taker_of(tx, self.id, place))

    def mark_delivered(
        self,
        *,
        seen: int | None = None,
        wrote: str | None = None,
        places: Collection[str | None] | None = None,
    ) -> bool:
        """Mark the run as delivered, so that `status` shows nothing outstanding.

        Returns False if a request has no final state, or has become final since `last_ending`
        returned ``seen``; the run is then outstanding. The same input submitted later is answered
        from the ledger in either case. ``wrote`` is the absolute path of the output, if the answers
        were just written to it. With ``places``, the output and the folder that were written, a run
        for which a command has named others meanwhile stays outstanding.
        """
        ledger = self._engine.ledger
        return ledger.apply(
            lambda tx: deliveries.mark_delivered(
                tx, self.id, ledger.now(), seen=seen, wrote=wrote, places=places
            )
        )

    def last_ending(self) -> int:
        """Return a number that grows whenever requests of the run become final."""
        return self._engine.ledger.query(lambda tx: queries.last_ending(tx, self.id))

    def note_rewritten(self, output: str) -> None:
        """Note that results so far replaced an output, so that the run may replace it again."""
        ledger, path = self._engine.ledger, os.path.abspath(output)
        row = ledger.query(lambda tx: queries.run_row(tx, self.id))
        if row.output == path and row.written is not None:
            ledger.apply(lambda tx: deliveries.note_rewritten(tx, self.id, path, ledger.now()))

    def _check_blocking(self) -> None:
        """Raise `ActorConfigurationError` if waiting here would block the run's own tools."""
        if self._row.tools and in_asynchronous_tool() and self._waiter.unfinished():
            check_blocking(self._engine.workbench.tools_of(self.id, self._row.tools))

    async def _apart(self, work: Callable[[], _T]) -> _T:
        """Do work that may block on a thread of the engine."""
        return await asyncio.wrap_future(self._engine.read(work))

    # What waits, written once for both kinds of callers ---------------------------------------

    def _finished(self) -> Generator[Pause | Any, Any, None]:
        """Yield the status once every request has its final state."""
        yield from self._until_settled()
        yield from self._waiter.until_final()
        yield from self._end()
        yield (yield Pause(self._engine.read(self.status)))

    def _reported(
        self, work: Generator[Pause | Any, Any, None], progress: ProgressLike
    ) -> Generator[Pause | Any, Any, None]:
        chosen = self.on_progress if progress is None else progress
        if chosen:
            work = reported(
                work, chosen, lambda: self._engine.read(self._look), lambda: self._engine.version
            )
        return self._while_open(work)

    def _look(self) -> tuple[RunStatus, Progress] | None:
        try:
            status = self.status()
            return status, self.progress(status)
        except ActorError:
            return None  # the work that is reported raises it

    def _end(self) -> Generator[Pause, Any, None]:
        try:
            self._engine.ledger.check_place()
        except LedgerError as error:
            # The answers can still be read from the file that this process has open.
            _log.warning("%s", error, extra={"for_people": True})
        if self.results_dir is not None:
            yield Pause(self._engine.read(self._write_files))

    def _write_files(self) -> None:
        """Write `results_dir`, unless a budget still holds requests of the run."""
        folder = self.results_dir
        if folder is None or self._waiter.unfinished():
            return
        if (taker := self.output_taker(folder)) is not None:
            _log.warning(
                "%s writes no files to %s, which now belongs to %s, a later run that writes to it; "
                "give it another folder with set_results_dir()",
                self.id,
                folder,
                taker,
            )
            return
        seen = self.last_ending()
        answers = finals(self.answers())
        status = self.status()
        summary = run_summary(status, self.cost(status=status))
        ledger, before = self._engine.ledger, self._delivery
        write_folder(answers, folder, summary, ledger.location, self._output_of)
        ledger.apply(
            lambda tx: deliveries.mark_folder_written(
                tx, self.id, folder, ledger.now(), seen=seen, before=before
            )
        )

    def _sent(self) -> Generator[Pause | Any, Any, None]:
        """Yield None once the API has every batch of the run that its queue admits."""
        yield from self._until_settled()
        yield from self._waiter.until_sent()
        yield None

    def _until_settled(self) -> Generator[Pause | Any, Any, None]:
        """Wait for a cancellation that was in progress at resubmission, then retry its requests.

        Usually there is none.
        """
        note_asking()
        if self._cancelling:
            yield from self._waiter.begin().until(self._is_cancelling, lambda found: not found)
            yield Pause(self._engine.read(self._take_up))

    def _is_cancelling(self) -> bool:
        with self._engine.ledger.read() as tx:
            cancelled = queries.run_row(tx, self.id).cancelled is not None
            return cancelled and queries.unfinished(tx, self.id) > 0

    def _take_up(self) -> None:
        """Continue a run whose cancellation has ended, unless another process has done that."""
        ledger, again = self._engine.ledger, None
        with ledger.write() as tx:
            if queries.run_row(tx, self.id).cancelled is not None:
                again = retries.rerun(tx, self.id, ledger.now())
        if again is not None:
            report_rerun(self.id, again)
            self._stamp = again.stamp
            self._ask_again(sum(again.queued.values()))
        self._cancelling = False

    def _pages(self, ordered: bool) -> Generator[Pause | list[ActorResult], Any, None]:
        check_arguments(bool, ordered=ordered)
        ordered = ordered is not False
        yield from self._until_settled()
        total = self._row.request_count
        cursor = ResultCursor(self._engine.ledger, self.id, total, self._result, ordered=ordered)
        wait = self._waiter.begin()
        while True:
            page: list[ActorResult] = []
            held: BudgetExceededError | None = None
            try:
                page, _ = yield from wait.until(
                    cursor.read, lambda found: bool(found[0]) or not found[1]
                )
            except BudgetExceededError as error:
                held = error
            if page:
                yield page
            elif held is None:
                yield from self._end()
                return
            elif not (yield from self._withheld(cursor, held)):
                yield from wait.rest(LONGEST_REST)

    def _withheld(
        self, cursor: ResultCursor, held: BudgetExceededError
    ) -> Generator[Pause | list[ActorResult], Any, bool]:
        """Yield what a budget holds as failed results; return whether there is anything."""
        found = False
        while page := (yield Pause(self._engine.look(partial(cursor.read_held, held)))):
            found = True
            yield page
        return found

    def _result(self, answer: Answer) -> ActorResult:
        if (answer.finished or 0) <= self._stamp:
            answer = answer._replace(reused=1)
        return result_of(answer, self._engine.ledger.location)

    @property
    def _kept(self) -> str:
        """Describe what is safe when middleware fails on a result."""
        return (
            f"the answer was billed and is kept in the ledger: the results of {self.id} "
            "return it, at no cost"
        )


async def _only(items: AsyncIterator[_T]) -> _T:
    [item] = [each async for each in items]
    return item
