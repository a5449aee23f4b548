"""Events of a driver's batches; the expensive ones are made only if an observer wants them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from claude_batch.core.events import (
    AnsweredRequest,
    BatchCanceled,
    BatchEnded,
    BatchSubmitted,
    BatchUnknown,
    CallsAnswered,
    QueueMeasured,
    RequestsAnswered,
    RequestsRetried,
    ResultsCollected,
    RunFinished,
    UnknownDecided,
    UnknownOutcome,
)
from claude_batch.core.settings import naming_ledger
from claude_batch.core.states import RequestState
from claude_batch.ledger import cost_sums, queries
from claude_batch.ledger.collected_batches import Collected
from claude_batch.ledger.cost_sums import BatchSums
from claude_batch.ledger.live_calls import Waiting
from claude_batch.ledger.store import Ledger
from claude_batch.ledger.stored_results import NewResult
from claude_batch.lifecycle.observers import Observers
from claude_batch.wire.batches_client import BatchesClient, RemoteBatch
from claude_batch.wire.encoding import model_at_beginning

_log = logging.getLogger(__name__)

RUNS_NAMED = 3
"""Most runs that a warning names."""

MEASURED_APART = 5.0
"""Minimum seconds between two measurements of the queue."""


class CallEnd(NamedTuple):
    """The end of a live call, as it is in the ledger now."""

    request: Waiting
    batch_id: int
    """Id of the ledger's batch that holds it."""
    result: NewResult | None
    """`None` if there is no outcome: the call is lost, or its request waits as before."""
    state: RequestState
    """State of its request after this outcome: final, or ``queued``. A conversation may go on."""
    is_accounts: bool
    """Whether the account is at fault."""
    left: float
    """Time when the call was made."""


@contextlib.contextmanager
def _harmless() -> Generator[None]:
    """Log an error in a report, so that it never disturbs the work that is reported."""
    try:
        yield
    except Exception:
        _log.exception("events could not be delivered to the observers")


class Reporter:
    """Reports to the observers of a ledger what one workspace's driver does."""

    def __init__(self, ledger: Ledger, client: BatchesClient, observers: Observers) -> None:
        self._ledger = ledger
        self._client = client
        self.observers: Observers = observers
        self._measured = float("-inf")
        self.follow: Callable[[Iterable[str]], None] = lambda _: None
        """Called with the runs that the reported change may have finished."""

    @property
    def here(self) -> dict[str, Any]:
        """Ledger and workspace: the first fields of each event."""
        return {"ledger": self.observers.ledger, "workspace": self._client.workspace}

    @_harmless()
    def submitted(self, row: Any, remote_id: str) -> None:
        """Report that the API has accepted a batch, given by its row."""
        if not self.observers.wants(BatchSubmitted):
            return
        with self._ledger.read() as tx:
            runs = queries.runs_of_batch(tx, row.id)
        self.observers.report(
            BatchSubmitted(
                **self.here,
                batch=row.id,
                batch_id=remote_id,
                requests=row.request_count,
                run_ids=tuple(run.id for run in runs),
            )
        )

    @_harmless()
    def unknown(self, row: Any, reason: str) -> None:
        """Report that the outcome of sending a batch, given by its row, is unknown."""
        self.observers.report(
            BatchUnknown(**self.here, batch=row.id, requests=row.request_count, reason=reason)
        )

    @_harmless()
    def decided(
        self, batch: int, requests: int, outcome: UnknownOutcome, batch_id: str | None = None
    ) -> None:
        """Report what became of an unknown sending, with the API's id if it was found."""
        self.observers.report(
            UnknownDecided(
                **self.here, batch=batch, requests=requests, outcome=outcome, batch_id=batch_id
            )
        )

    @_harmless()
    def canceled(self, row: Any) -> None:
        """Report that somebody else canceled a batch, given by its row, at the API."""
        with self._ledger.read() as tx:
            found = queries.runs_of_batch(tx, row.id)
        runs = [run.id for run in found if run.kind == "run"]
        again = [
            naming_ledger(f"`claude-batch retry {run} --only canceled`", self._ledger.location)
            for run in runs[:RUNS_NAMED]
        ]
        _log.warning(
            "batch %s was canceled at the API, not by claude-batch: in the Console, or by another "
            "program. Requests that have run keep their answers; the others end as canceled, and "
            "nothing is billed for them. To send them again: %s",
            row.remote_id,
            ", ".join(again) or "repeat the calls",
            extra={"for_people": True},
        )
        self.observers.report(
            BatchCanceled(
                **self.here,
                batch=row.id,
                batch_id=row.remote_id,
                requests=row.request_count,
                run_ids=tuple(run.id for run in found),
            )
        )

    @_harmless()
    def ended(self, row: Any, remote: RemoteBatch, at: float) -> None:
        """Report that a batch, given by its row, has ended at the API."""
        counts = remote.counts
        self.observers.report(
            BatchEnded(
                **self.here,
                batch=row.id,
                batch_id=row.remote_id,
                requests=row.request_count,
                counts=msgspec.to_builtins(counts) if counts.total else {},
                submitted=row.submitted,
                ended=at,
            )
        )

    @_harmless()
    def given(self, row: Any) -> None:
        """Follow the runs of a batch, given by its row, some of whose successes are final early."""
        if self.observers.wants(RunFinished):
            with self._ledger.read() as tx:
                runs = queries.runs_of_batch(tx, row.id)
            self.follow(run.id for run in runs if run.kind == "run")

    @_harmless()
    def collected(self, done: Sequence[tuple[Any, Collected]]) -> None:
        """Report what happened to the requests of batches, given by their rows."""
        wants = self.observers.wants
        if wants(RunFinished) or wants(ResultsCollected):
            self._sums(done)
        if wants(RequestsRetried):
            for row, collected in done:
                for reason, count in collected.retried.items():
                    self.observers.report(
                        RequestsRetried(
                            **self.here,
                            requests=count,
                            reason=reason,
                            batch_id=row.remote_id,
                        )
                    )
        if wants(RequestsAnswered):
            for row, _ in done:
                self.observers.report_each(RequestsAnswered, partial(self._answered, row))

    def _sums(self, done: Sequence[tuple[Any, Collected]]) -> None:
        ids = [row.id for row, _ in done]
        with self._ledger.read() as tx:
            runs_of = queries.runs_of_batches(tx, ids)
            self.follow({run.id for runs in runs_of.values() for run in runs if run.kind == "run"})
            if not self.observers.wants(ResultsCollected):
                return
            sums_of = cost_sums.sums_of_batches(tx, ids)
        for row, collected in done:
            runs = runs_of[row.id]
            self.observers.report(
                ResultsCollected(
                    **self.here,
                    **_totals(sums_of[row.id]),
                    batch=row.id,
                    batch_id=row.remote_id,
                    requests=row.request_count,
                    run_ids=tuple(run.id for run in runs),
                    final=collected.final,
                    missing=collected.lost + collected.retried["missing"],
                    submitted=row.submitted,
                    ended=row.ended,
                    traces=tuple(dict.fromkeys(run.trace for run in runs if run.trace is not None)),
                )
            )

    def _answered(self, row: Any) -> Iterator[RequestsAnswered]:
        for page in cost_sums.results_of_batch(self._ledger, row.id):
            actors: dict[str, list[AnsweredRequest]] = {}
            for record in page:
                asked = model_at_beginning(record.beginning)
                answer = record.answer._replace(request_model=asked)
                actors.setdefault(record.actor, []).append(answer)
            for actor, answers in actors.items():
                yield RequestsAnswered(
                    **self.here,
                    batch=row.id,
                    batch_id=row.remote_id,
                    actor=actor,
                    answers=tuple(answers),
                    submitted=row.submitted,
                    ended=row.ended,
                )

    @_harmless()
    def called(self, ended: Sequence[CallEnd]) -> None:
        """Report live calls that have ended and are stored."""
        wants = self.observers.wants
        done = [end for end in ended if end.state is not RequestState.QUEUED]
        if wants(RunFinished):
            self.follow({end.request.run_id for end in done if end.request.kind == "run"})
        if wants(RequestsRetried):
            again = Counter(
                (end.request.run_id, end.is_accounts)
                for end in ended
                if end.state is RequestState.QUEUED and (end.result is not None or end.is_accounts)
            )
            for (run_id, is_accounts), count in again.items():
                reason = "account" if is_accounts else "passing"
                self.observers.report(
                    RequestsRetried(**self.here, requests=count, reason=reason, run_id=run_id)
                )
        if wants(CallsAnswered):
            self._call_sums(ended)
        if wants(RequestsAnswered):
            # They are few and in memory already, so nothing is read for them.
            for event in list(self._calls_answered(ended)):
                self.observers.report(event)

    def _call_sums(self, ended: Sequence[CallEnd]) -> None:
        totals = _totals([_sums_of(end.result) for end in ended if end.result is not None])
        lost = sum(end.state is RequestState.LOST for end in ended)
        if lost:
            totals["outcomes"]["lost"] = lost
        if not totals["outcomes"]:
            return
        run_ids = tuple(dict.fromkeys(end.request.run_id for end in ended))
        requests = sum(totals["outcomes"].values())
        self.observers.report(
            CallsAnswered(**self.here, **totals, requests=requests, run_ids=run_ids)
        )

    def _calls_answered(self, ended: Sequence[CallEnd]) -> Iterator[RequestsAnswered]:
        now = self._ledger.now()
        for end in ended:
            if end.result is None:
                continue
            yield RequestsAnswered(
                **self.here,
                batch=end.batch_id,
                batch_id=None,
                actor=end.request.actor,
                answers=(_answer_of(end.request, end.result),),
                submitted=end.left,
                ended=now,
            )

    def measure(self, workspace_id: int) -> float:
        """Report the size of the queue, if an observer wants it and the last report is old.

        Returns the seconds until it is due, because nothing else may follow the last change.
        """
        if not self.observers.wants(QueueMeasured):
            return float("inf")
        due = self._measured + MEASURED_APART - time.monotonic()
        if due > 0.0:
            return due
        self._measured = time.monotonic()
        self._report_queue(workspace_id)
        return float("inf")

    @_harmless()
    def _report_queue(self, workspace_id: int) -> None:
        with self._ledger.read() as tx:
            queue = cost_sums.queue_of(tx, workspace_id)
        age = 0.0 if queue.oldest is None else max(0.0, self._ledger.now() - queue.oldest)
        self.observers.report(
            QueueMeasured(
                **self.here,
                queued=queue.queued,
                at_api=queue.at_api,
                batches=queue.batches,
                oldest_batch=age,
            )
        )


def _totals(sums: Sequence[BatchSums]) -> dict[str, Any]:
    """Return the fields that the events of a batch and of live calls share."""
    outcomes: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    models: Counter[str] = Counter()
    unpriced = 0
    for each in sums:
        outcomes[each.outcome] += each.results
        if each.outcome != RequestState.SUCCEEDED:
            errors[each.error_type or each.outcome] += each.results
            continue
        unpriced += each.results - each.priced
        if each.model is not None:
            models[each.model] += each.results
    return {
        "outcomes": dict(outcomes),
        "errors": dict(errors),
        "models": dict(models),
        "input_tokens": sum(each.input_tokens for each in sums),
        "output_tokens": sum(each.output_tokens for each in sums),
        "cache_read_tokens": sum(each.cache_read_tokens for each in sums),
        "cache_write_tokens": sum(each.cache_write_tokens for each in sums),
        "cost": sum(each.cost for each in sums),
        "unpriced": unpriced,
    }


def _sums_of(result: NewResult) -> BatchSums:
    """Return the sums of a single result."""
    return BatchSums(
        result.outcome,
        result.error_type,
        result.model,
        1,
        result.input_tokens,
        result.output_tokens,
        result.cache_read_tokens,
        result.cache_5m_tokens + result.cache_1h_tokens,
        int(result.cost is not None),
        result.cost or 0,
    )


def _answer_of(asked: Waiting, result: NewResult) -> AnsweredRequest:
    """Return the answer of a live call."""
    return AnsweredRequest(
        run_id=asked.run_id,
        key=asked.key,
        position=asked.position,
        attempt=asked.attempts + 1,
        outcome=result.outcome,
        error_type=result.error_type,
        request_model=model_at_beginning(asked.body[: cost_sums.BEGINNING]),
        model=result.model,
        input_tokens=result.input_tokens,
        output_tokens=result.output_tokens,
        cache_read_tokens=result.cache_read_tokens,
        cache_write_tokens=result.cache_5m_tokens + result.cache_1h_tokens,
        cost=result.cost if result.outcome == RequestState.SUCCEEDED else None,
        asked=asked.asked,
        trace=asked.trace,
    )
