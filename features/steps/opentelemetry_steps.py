"""Steps of OpenTelemetry, with the SDK's own exporters that keep everything in memory."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

from behave import given, then, when
from behave.runner import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from staging import make_provider

import claude_batch as cb
from claude_batch import events
from claude_batch.integrations import opentelemetry
from claude_batch.integrations.opentelemetry import OpenTelemetryObserver


def _trace(context: Context, **settings: Any) -> None:
    context.exporter = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(context.exporter))
    context.reader = InMemoryMetricReader()
    context.tracer = tracing.get_tracer("the program")
    context.observer = OpenTelemetryObserver(
        tracer_provider=tracing,
        meter_provider=MeterProvider(metric_readers=[context.reader]),
        **settings,
    )
    if "api" in context:
        make_provider(context, observers=[context.observer])


@given("a program that traces")
@given("a program that traces with {settings:JsonObject}")
def _(context: Context, settings: dict[str, Any] | None = None) -> None:
    """Settings are the observer's, but for the mode, which is the provider's."""
    mode = (settings or {}).pop("mode", None)
    _trace(context, **(settings or {}))
    if mode is not None:
        make_provider(context, observers=[context.observer], mode=mode)


async def _ask(actor: cb.Actor, count: int) -> list[cb.ActorResponse]:
    return await asyncio.gather(*(actor.respond(f"prompt {n}") for n in range(count)))


@when("{count:d} prompts are asked in {where}, and the provider is closed")
def _(context: Context, count: int, where: str) -> None:
    if where == "no span":
        asyncio.run(_ask(context.actor, count))
    else:
        assert where == "a span of the program", where
        with context.tracer.start_as_current_span("the work") as span:
            context.work = span.get_span_context()
            context.answers = asyncio.run(_ask(context.actor, count))
    context.provider.close()


@when("{count:d} prompts are submitted in a span of the program, and collected by another provider")
def _(context: Context, count: int) -> None:
    with context.tracer.start_as_current_span("the work") as span:
        context.work = span.get_span_context()
        run = context.actor.submit_sync([f"prompt {n}" for n in range(count)])
    context.provider.close()
    make_provider(context, observers=[context.observer])
    context.provider.open_run(run.id).wait_sync()
    context.provider.close()


@when("it is told of a batch with missing results, a retry, an unknown sending and a late answer")
def _(context: Context) -> None:
    where: dict[str, Any] = {"ledger": "l", "workspace": None}
    observer = context.observer
    for number in range(opentelemetry.KEPT_BATCHES + 1):
        observer.on_event(
            events.ResultsCollected(
                **where, batch=number, batch_id=f"msgbatch_{number}", requests=2, run_ids=("run",),
                outcomes={"succeeded": 1}, errors={}, final=1, missing=1, models={}, cost=0,
                input_tokens=1, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0,
                unpriced=1, submitted=None, ended=None,
            )
        )  # fmt: skip
    observer.on_event(events.RequestsRetried(**where, requests=3, reason="order", run_id="run"))
    observer.on_event(events.BatchUnknown(**where, batch=1, requests=3, reason="no answer"))
    observer.on_event(
        events.RunHeld(**where, run_id="run", scope="day", requests=3, reason="a budget")
    )
    answer = events.AnsweredRequest(
        "run", "k", 0, 1, "expired", None, None, None, 0, 0, 0, 0, None, 1.0, None
    )
    observer.on_event(
        events.RequestsAnswered(
            **where, batch=0, batch_id="msgbatch_0", actor="tests/asker", answers=(answer,),
            submitted=None, ended=None,
        )
    )  # fmt: skip


def _spans(context: Context, beginning: str) -> list[ReadableSpan]:
    return [
        span for span in context.exporter.get_finished_spans() if span.name.startswith(beginning)
    ]


@then("the observer's spans are")
def _(context: Context) -> None:
    """How many are equal in all columns; one whose name has a dot is an attribute."""
    batches = _spans(context, "batch ")
    context.requests = _spans(context, "chat")
    names = {span.context.span_id: "the batch" for span in batches}
    if "work" in context:
        names[context.work.span_id] = "the work"

    def shown(span: ReadableSpan, column: str) -> str:
        if "." in column:
            return str(span.attributes.get(column, ""))
        if column == "parent" and span.parent is not None:
            assert span.parent.trace_id == span.context.trace_id
            return names[span.parent.span_id]
        if column == "links":
            return ", ".join(names[link.context.span_id] for link in span.links)
        if column in ("begins", "ends") and batches:
            own, other = span.start_time, batches[0].start_time
            if column == "ends":
                own, other = span.end_time, batches[0].end_time
            order = {0: "with the batch", 1: "later"}
            return order.get((own > other) - (own < other), "before the batch")
        told = {"name": re.sub(r"msgbatch_\w+", "…", span.name), "kind": span.kind.name}
        return {**told, "status": span.status.status_code.name}.get(column, "")

    columns = context.table.headings[1:]
    found = Counter(
        tuple(shown(span, name) for name in columns) for span in batches + context.requests
    )
    wanted = {tuple(row.cells[1:]): int(row["spans"]) for row in context.table}
    assert found == wanted, found


@then("the request spans have the conventions' attributes")
def _(context: Context) -> None:
    for span in context.requests:
        assert span.kind is SpanKind.CLIENT
        assert span.attributes["gen_ai.operation.name"] == "chat"
        assert span.attributes["gen_ai.provider.name"] == "anthropic"
        assert span.attributes["gen_ai.request.model"] == "claude-haiku-4-5"
        assert span.attributes["gen_ai.response.model"] == "claude-haiku-4-5-20251001"
        assert span.attributes["gen_ai.agent.name"] == "tests/asker"
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert span.attributes["gen_ai.usage.output_tokens"] > 0
        assert span.attributes["claude_batch.cost_usd"] > 0
        assert "error.type" not in span.attributes


def _metrics(context: Context) -> dict[str, Any]:
    data = context.reader.get_metrics_data()
    return {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@then("the metrics have")
def _(context: Context) -> None:
    context.metrics = _metrics(context)
    for name in [context.table.headings[0], *(row[0] for row in context.table)]:
        assert context.metrics[name], (name, sorted(context.metrics))


@then("the cost that was measured is that of the answers")
def _(context: Context) -> None:
    [point] = context.metrics["claude_batch.cost"]
    assert abs(point.value - sum(answer.cost for answer in context.answers) / 1e9) < 1e-12
