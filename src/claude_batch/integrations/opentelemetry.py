"""OpenTelemetry observer (extra ``opentelemetry``): spans of batches and requests; metrics.

Names follow the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/); names outside them begin with
``claude_batch.``. Only the API package is needed: without an SDK in the program, nothing is
recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from claude_batch._version import __version__
from claude_batch.core.events import (
    AnsweredRequest,
    BatchUnknown,
    CallsAnswered,
    Event,
    QueueMeasured,
    RequestsAnswered,
    RequestsRetried,
    ResultsCollected,
)

_OPERATION: Final = "gen_ai.operation.name"
_PROVIDER: Final = "gen_ai.provider.name"
_REQUEST_MODEL: Final = "gen_ai.request.model"
_RESPONSE_MODEL: Final = "gen_ai.response.model"
_TOKEN_TYPE: Final = "gen_ai.token.type"
_ERROR_TYPE: Final = "error.type"

_CHAT: Final = {_OPERATION: "chat", _PROVIDER: "anthropic"}
_BATCH: Final = {_OPERATION: "batch", _PROVIDER: "anthropic"}

KEPT_BATCHES = 64
"""Number of batches whose spans the spans of their requests may still reference."""

_LINKS = 128
"""Maximum links of one span, as in the SDK."""

_traceparent = TraceContextTextMapPropagator()


class OpenTelemetryObserver:
    """Observer for ``observers=``. Creates a span when a batch is collected, with its real times.

    A batch has its own span, linked to the traces of its callers. A request is a span in its
    caller's trace (`respond`, `submit`), with a link to its batch; without a caller's trace, it
    belongs to its batch. The trace is stored with the run, so that any process that collects the
    batch, at any time, links to it.

    Metrics: ``gen_ai.client.token.usage`` (of each request), ``claude_batch.tokens``,
    ``claude_batch.cost`` (USD), ``claude_batch.requests``, ``claude_batch.retries``,
    ``claude_batch.unknown``, ``claude_batch.queue.depth``, ``claude_batch.batch.age`` (seconds).
    """

    def __init__(
        self,
        *,
        request_spans: bool = True,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        """Set up tracer and meter; by default with the program's own providers.

        ``request_spans=False`` omits everything per request, because a batch may have 100,000.
        """
        self._request_spans = request_spans
        self._tracer = trace.get_tracer("claude_batch", __version__, tracer_provider)
        meter = metrics.get_meter("claude_batch", __version__, meter_provider)
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used."
        )
        self._tokens = meter.create_counter("claude_batch.tokens", "{token}", "Tokens, by type.")
        self._cost = meter.create_counter("claude_batch.cost", "USD", "Cost of answers.")
        self._requests = meter.create_counter(
            "claude_batch.requests", "{request}", "Results, by outcome."
        )
        self._retries = meter.create_counter(
            "claude_batch.retries", "{request}", "Requests that are retried, by reason."
        )
        self._unknown = meter.create_counter(
            "claude_batch.unknown", "{batch}", "Sendings with an unknown outcome."
        )
        self._depth = meter.create_gauge(
            "claude_batch.queue.depth", "{request}", "Requests that are queued or at the API."
        )
        self._age = meter.create_gauge(
            "claude_batch.batch.age", "s", "Age of the oldest batch at the API."
        )
        self._batches: OrderedDict[tuple[str, int], SpanContext] = OrderedDict()
        """Spans of the latest batches, by ledger and row."""

    def wants(self, kind: type[Event]) -> bool:
        """Return True for every event; for single requests only if they have spans."""
        return self._request_spans or kind is not RequestsAnswered

    def carry(self) -> str | None:
        """Return the ``traceparent`` of the current span in the caller's context."""
        carrier: dict[str, str] = {}
        _traceparent.inject(carrier)
        return carrier.get("traceparent")

    def on_event(self, event: Event) -> None:
        """Record an event."""
        match event:
            case ResultsCollected():
                self._collected(event)
            case CallsAnswered():
                self._count(event)
            case RequestsAnswered():
                for answer in event.answers:
                    self._answered(event, answer)
            case RequestsRetried():
                self._retries.add(event.requests, {"claude_batch.reason": event.reason})
            case BatchUnknown():
                self._unknown.add(1)
            case QueueMeasured():
                where = {"claude_batch.workspace": event.workspace or ""}
                for state, count in (("queued", event.queued), ("at_api", event.at_api)):
                    self._depth.set(count, {**where, "claude_batch.state": state})
                self._age.set(event.oldest_batch, where)
            case _:
                pass

    def _collected(self, event: ResultsCollected) -> None:
        attributes: dict[str, Any] = {
            **_BATCH,
            "claude_batch.batch.id": event.batch_id,
            "claude_batch.batch.requests": event.requests,
            "claude_batch.batch.missing": event.missing,
            "claude_batch.run.ids": event.run_ids[:_LINKS],
            "claude_batch.cost_usd": event.cost / 1e9,
            **_tokens(event),
        }
        if len(event.models) == 1:
            (attributes[_RESPONSE_MODEL],) = event.models
        for outcome, count in event.outcomes.items():
            attributes[f"claude_batch.batch.{outcome}"] = count
        found = (trace.get_current_span(_context(each)) for each in event.traces[:_LINKS])
        span = self._tracer.start_span(
            f"batch {event.batch_id}",
            context=Context(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(each.get_span_context()) for each in found],
            start_time=_nanoseconds(event.submitted or event.ended or event.at),
        )
        if event.missing:
            span.set_status(Status(StatusCode.ERROR, f"{event.missing} results are missing"))
        span.end(_nanoseconds(_end(event)))
        self._batches[event.ledger, event.batch] = span.get_span_context()
        if len(self._batches) > KEPT_BATCHES:
            self._batches.popitem(last=False)
        self._count(event)

    def _count(self, event: ResultsCollected | CallsAnswered) -> None:
        for outcome, count in event.outcomes.items():
            self._requests.add(count, {**_CHAT, "claude_batch.outcome": outcome})
        for kind, count in (
            ("input", event.input_tokens),
            ("output", event.output_tokens),
            ("cache_read", event.cache_read_tokens),
            ("cache_write", event.cache_write_tokens),
        ):
            if count:
                self._tokens.add(count, {**_CHAT, _TOKEN_TYPE: kind})
        self._cost.add(event.cost / 1e9, _CHAT)

    def _answered(self, event: RequestsAnswered, answer: AnsweredRequest) -> None:
        asked = answer.request_model or answer.model
        models = {_REQUEST_MODEL: asked, _RESPONSE_MODEL: answer.model}
        known: dict[str, Any] = {name: model for name, model in models.items() if model}
        attributes: dict[str, Any] = {
            **_CHAT,
            **known,
            "gen_ai.agent.name": event.actor,
            "claude_batch.run.id": answer.run_id,
            "claude_batch.request.position": answer.position,
            "claude_batch.request.attempt": answer.attempt,
        }
        if event.batch_id is not None:
            attributes["claude_batch.batch.id"] = event.batch_id
        if answer.key is not None:
            attributes["claude_batch.request.key"] = answer.key
        if answer.cost is not None:
            attributes["claude_batch.cost_usd"] = answer.cost / 1e9
        succeeded = answer.outcome == "succeeded"
        if succeeded:
            usage = _tokens(answer)
            attributes.update(usage)
            for kind in ("input", "output"):
                self._usage.record(
                    usage[f"gen_ai.usage.{kind}_tokens"], {**_CHAT, **known, _TOKEN_TYPE: kind}
                )
        else:
            attributes[_ERROR_TYPE] = answer.error_type or answer.outcome
        batch = self._batches.get((event.ledger, event.batch))
        context = Context()
        if answer.trace is not None:
            context = _context(answer.trace)
        elif batch is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(batch), context)
        span = self._tracer.start_span(
            f"chat {asked}" if asked else "chat",
            context=context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(batch)] if batch is not None and answer.trace is not None else [],
            start_time=_nanoseconds(answer.asked),
        )
        if not succeeded:
            span.set_status(Status(StatusCode.ERROR, answer.error_type or answer.outcome))
        span.end(_nanoseconds(max(answer.asked, _end(event))))


def _context(traceparent: str) -> Context:
    return _traceparent.extract({"traceparent": traceparent}, Context())


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _end(event: ResultsCollected | RequestsAnswered) -> float:
    # The end is the server's time, the start is local: a span never ends before it starts.
    return max(event.submitted or 0.0, event.ended or event.at)


def _tokens(of: ResultsCollected | AnsweredRequest) -> dict[str, int]:
    # The conventions count cached tokens as input; the API reports them separately.
    return {
        "gen_ai.usage.input_tokens": of.input_tokens + of.cache_read_tokens + of.cache_write_tokens,
        "gen_ai.usage.output_tokens": of.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": of.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": of.cache_write_tokens,
    }
