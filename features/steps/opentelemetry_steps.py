"""Steps of OpenTelemetry, with the SDK's own exporters that keep everything in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from behave import given, then, when
from behave.runner import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from staging import make_provider, until

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


@when('"{prompt}" is asked, and the provider is closed')
def _(context: Context, prompt: str) -> None:
    try:
        context.actor.respond_sync(prompt)
    except cb.BatchRequestError as error:
        context.error = error
    context.provider.close()


@when("{count:d} prompts are submitted in a span of the program, which ends")
def _(context: Context, count: int) -> None:
    with context.tracer.start_as_current_span("the work") as span:
        context.work = span.get_span_context()
        context.run = context.actor.submit_sync([f"prompt {n}" for n in range(count)])
    context.provider.close()


@when("another provider, in no span, collects them")
def _(context: Context) -> None:
    make_provider(context, observers=[context.observer])
    context.provider.open_run(context.run.id).wait_sync()
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


def _batch(context: Context) -> ReadableSpan:
    [span] = _spans(context, "batch msgbatch_")
    assert span.parent is None and span.kind is SpanKind.CLIENT
    assert span.attributes["gen_ai.operation.name"] == "batch"
    assert span.attributes["gen_ai.provider.name"] == "anthropic"
    assert span.attributes["claude_batch.batch.succeeded"] == 2
    assert span.attributes["gen_ai.usage.output_tokens"] > 0
    assert span.end_time >= span.start_time
    return span


@then("there is a span of a batch, linked to nothing but itself")
def _(context: Context) -> None:
    assert not _batch(context).links


@then("there is a span of a batch, linked to the program's trace")
def _(context: Context) -> None:
    [link] = _batch(context).links
    assert link.context.trace_id == context.work.trace_id
    assert link.context.span_id == context.work.span_id


@then("there are {count:d} spans \"{name}\" in the program's trace, linked to the batch's")
def _(context: Context, count: int, name: str) -> None:
    batch = _batch(context)
    context.requests = _spans(context, name)
    assert len(context.requests) == count
    for span in context.requests:
        assert span.context.trace_id == context.work.trace_id
        assert span.parent.span_id == context.work.span_id
        assert [link.context.span_id for link in span.links] == [batch.context.span_id]


@then('there are {count:d} spans "{name}" in the program\'s trace, linked to none')
def _(context: Context, count: int, name: str) -> None:
    assert not _spans(context, "batch")
    context.requests = _spans(context, name)
    assert len(context.requests) == count
    for span in context.requests:
        assert span.parent.span_id == context.work.span_id
        assert not span.links and "claude_batch.batch.id" not in span.attributes


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


@then("each request span lasts from its asking to the end of its batch")
def _(context: Context) -> None:
    batch = _batch(context)
    for span in context.requests:
        assert span.start_time <= batch.start_time
        assert span.end_time == batch.end_time


@then("the request's span is a child of the batch's")
def _(context: Context) -> None:
    [batch], [request] = _spans(context, "batch "), _spans(context, "chat ")
    assert request.parent.span_id == batch.context.span_id
    assert not request.links


@then('the request\'s span has the error "{kind}"')
def _(context: Context, kind: str) -> None:
    [request] = _spans(context, "chat ")
    assert request.attributes["error.type"] == kind
    assert request.attributes["gen_ai.request.model"] == "claude-haiku-4-5"
    assert request.status.status_code is StatusCode.ERROR


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


@then("there are no spans of requests")
def _(context: Context) -> None:
    assert not _spans(context, "chat")


@then("the batch's span is an error")
def _(context: Context) -> None:
    spans = until(lambda: _spans(context, "batch msgbatch_"))
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


@then("the late answer is a span of its own")
def _(context: Context) -> None:
    [span] = _spans(context, "chat")
    assert span.name == "chat" and span.parent is None
    assert span.attributes["error.type"] == "expired"
