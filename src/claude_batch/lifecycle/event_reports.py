"""Events of a driver's batches; the expensive ones are made only if an observer wants them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from claude_batch.core.events import (
    AnsweredRequest,
    BatchSubmitted,
    BatchUnknown,
    CallsAnswered,
    QueueMeasured,
    RequestsAnswered,
    RequestsRetried,
    ResultsCollected,
    RunFinished,
)
from claude_batch.core.states import RequestState
from claude_batch.core.usage import Usage
from claude_batch.ledger import event_sums, queries
from claude_batch.ledger.collected_batches import Collected, NewResult
from claude_batch.ledger.event_sums import Told
from claude_batch.ledger.live_calls import Waiting
from claude_batch.ledger.store import Ledger
from claude_batch.lifecycle.observers import NOBODY, Observers
from claude_batch.wire.batches_client import BatchesClient
from claude_batch.wire.encoding import model_at_beginning

_log = logging.getLogger(__name__)

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
    """State of its request now: final, or ``queued``."""
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
        _log.exception("observers could not be told")


class Telling:
    """Reports to the observers of a ledger what one workspace's driver does."""

    def __init__(
        self, ledger: Ledger, client: BatchesClient, observers: Observers | None = None
    ) -> None:
        """Set up the reports; without ``observers``, nobody receives them."""
        self._ledger = ledger
        self._client = client
        self.observers: Observers = observers or NOBODY
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
        self.observers.tell(
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
        self.observers.tell(
            BatchUnknown(**self.here, batch=row.id, requests=row.request_count, reason=reason)
        )

    @_harmless()
    def given(self, row: Any) -> None:
        """Follow the runs of a batch, given by its row, some of whose successes are final early."""
        if self.observers.wants(RunFinished):
            with self._ledger.read() as tx:
                runs = queries.runs_of_batch(tx, row.id)
            self.follow(run.id for run in runs if run.kind == "run")

    @_harmless()
    def collected(self, row: Any, collected: Collected) -> None:
        """Report what happened to the requests of a batch, given by its row."""
        wants = self.observers.wants
        if wants(RunFinished) or wants(ResultsCollected):
            self._sums(row, collected)
        if wants(RequestsRetried):
            for reason, count in collected.retried.items():
                self.observers.tell(
                    RequestsRetried(
                        **self.here,
                        requests=count,
                        reason=reason,
                        batch_id=row.remote_id,
                    )
                )
        if wants(RequestsAnswered):
            self.observers.tell_each(RequestsAnswered, lambda: self._answered(row))

    def _sums(self, row: Any, collected: Collected) -> None:
        with self._ledger.read() as tx:
            runs = queries.runs_of_batch(tx, row.id)
            self.follow(run.id for run in runs if run.kind == "run")
            if not self.observers.wants(ResultsCollected):
                return
            sums = event_sums.sums_of_batch(tx, row.id)
        outcomes: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        models: Counter[str] = Counter()
        for each in sums:
            outcomes[each.outcome] += each.results
            if each.outcome != "succeeded":
                errors[each.error_type or each.outcome] += each.results
            elif each.model is not None:
                models[each.model] += each.results
        self.observers.tell(
            ResultsCollected(
                **self.here,
                batch=row.id,
                batch_id=row.remote_id,
                requests=row.request_count,
                run_ids=tuple(run.id for run in runs),
                outcomes=dict(outcomes),
                errors=dict(errors),
                final=collected.final,
                missing=collected.lost + collected.retried["missing"],
                models=dict(models),
                input_tokens=sum(each.input_tokens for each in sums),
                output_tokens=sum(each.output_tokens for each in sums),
                cache_read_tokens=sum(each.cache_read_tokens for each in sums),
                cache_write_tokens=sum(each.cache_write_tokens for each in sums),
                cost=sum(each.cost for each in sums),
                unpriced=sum(
                    each.results - each.priced for each in sums if each.outcome == "succeeded"
                ),
                submitted=row.submitted,
                ended=row.ended,
                traces=tuple(dict.fromkeys(run.trace for run in runs if run.trace is not None)),
            )
        )

    def _answered(self, row: Any) -> Iterator[RequestsAnswered]:
        for page in event_sums.results_of_batch(self._ledger, row.id):
            actors: dict[str, list[AnsweredRequest]] = {}
            for told in page:
                actors.setdefault(told.actor, []).append(_answer(told))
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
                self.observers.tell(
                    RequestsRetried(**self.here, requests=count, reason=reason, run_id=run_id)
                )
        if wants(CallsAnswered):
            self._call_sums(ended)
        if wants(RequestsAnswered):
            # They are few and in memory already, so nothing is read for them.
            for event in list(self._calls_answered(ended)):
                self.observers.tell(event)

    def _call_sums(self, ended: Sequence[CallEnd]) -> None:
        found = [end.result for end in ended if end.result is not None]
        outcomes = Counter(result.outcome for result in found)
        outcomes.update("lost" for end in ended if end.state is RequestState.LOST)
        if not outcomes:
            return
        usages = [result.usage for result in found if result.usage is not None]
        answers = [result for result in found if result.outcome == RequestState.SUCCEEDED]
        self.observers.tell(
            CallsAnswered(
                **self.here,
                requests=sum(outcomes.values()),
                run_ids=tuple(dict.fromkeys(end.request.run_id for end in ended)),
                outcomes=dict(outcomes),
                errors=dict(Counter(each.error_type for each in found if each.error_type)),
                models=dict(Counter(each.model for each in answers if each.model)),
                input_tokens=sum(usage.input_tokens for usage in usages),
                output_tokens=sum(usage.output_tokens for usage in usages),
                cache_read_tokens=sum(usage.cache_read_input_tokens for usage in usages),
                cache_write_tokens=sum(usage.cache_creation_input_tokens for usage in usages),
                cost=sum(each.cost or 0 for each in answers),
                unpriced=sum(each.cost is None for each in answers),
            )
        )

    def _calls_answered(self, ended: Sequence[CallEnd]) -> Iterator[RequestsAnswered]:
        now = time.time()
        for end in ended:
            result, asked = end.result, end.request
            if result is None:
                continue
            usage = result.usage or Usage()
            answer = AnsweredRequest(
                run_id=asked.run_id,
                key=asked.key,
                position=asked.position,
                attempt=asked.attempts + 1,
                outcome=result.outcome,
                error_type=result.error_type,
                request_model=model_at_beginning(asked.body[: event_sums.BEGINNING]),
                model=result.model,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cache_read_input_tokens,
                cache_write_tokens=usage.cache_creation_input_tokens,
                cost=result.cost if result.outcome == RequestState.SUCCEEDED else None,
                asked=asked.asked,
                trace=asked.trace,
            )
            yield RequestsAnswered(
                **self.here,
                batch=end.batch_id,
                batch_id=None,
                actor=asked.actor,
                answers=(answer,),
                submitted=end.left,
                ended=now,
            )

    @_harmless()
    def measure(self, workspace_id: int) -> None:
        """Report the size of the queue, if an observer wants it and the last report is old."""
        now = time.monotonic()
        if now - self._measured < MEASURED_APART or not self.observers.wants(QueueMeasured):
            return
        self._measured = now
        with self._ledger.read() as tx:
            queue = event_sums.queue_of(tx, workspace_id)
        age = 0.0 if queue.oldest is None else max(0.0, time.time() - queue.oldest)
        self.observers.tell(
            QueueMeasured(
                **self.here,
                queued=queue.queued,
                at_api=queue.at_api,
                batches=queue.batches,
                oldest_batch=age,
            )
        )


def _answer(told: Told) -> AnsweredRequest:
    return AnsweredRequest(
        run_id=told.run_id,
        key=told.key,
        position=told.position,
        attempt=told.attempt,
        outcome=told.outcome,
        error_type=told.error_type,
        request_model=model_at_beginning(told.beginning),
        model=told.model,
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        cache_read_tokens=told.cache_read_tokens,
        cache_write_tokens=told.cache_write_tokens,
        cost=told.cost,
        asked=told.asked,
        trace=told.trace,
    )
